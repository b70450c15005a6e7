"""Read the config of a model from a path, a folder or a stream, and the files beside it: weights, and how they are quantised."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from hwcalc.errors import ConfigError, KvplanError, ModelNotFoundError
from hwcalc.files import standard_input
from hwcalc.model import EXAMPLE_LAYERS, Note, RawModel, WeightFacts
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.caches import snapshot_of
from hwcalc.sources.document import (
    GGUF_MAGIC,
    config_from_params,
    read_document,
    read_start,
    read_stream,
    read_yaml,
    with_quantization,
)
from hwcalc.text import printable

MODEL_FILES = ("config.json", "params.json")
"""A file with one of these names describes the model of its folder. Any other file describes only itself."""
_YAML: Final = (".yaml", ".yml")
OPEN_FILE = "an open file"
"""The location of a config from a stream without a name."""


def has_path_syntax(text: str) -> bool:
    """True if ``text`` can only be a path: ``./x``, ``/x``, ``~/x``, ``a/../b``, ``x.json``, or any text with a backslash."""
    return (
        text.startswith(("/", "./", "~"))
        or text.endswith((".json", *_YAML, "/"))
        or "\\" in text
        or os.path.isabs(text)
        or any(part in (".", "..") for part in text.split("/"))
    )


def from_path(path: Path, *, weights: bool = False) -> RawModel:
    """The model whose ``config.json``, or GGUF file, is ``path`` or is in the folder ``path``.

    With ``weights``, the headers of the weight files beside a config are read too.
    Raises :class:`~hwcalc.errors.ModelNotFoundError` if there is none, and :class:`~hwcalc.errors.ConfigError` if it cannot be read.
    """
    name = printable(str(path))
    file = path / "config.json" if os.path.isdir(path) else path
    if file is path and path.suffix.lower() != ".json":
        from hwcalc.sources.gguf.local import begins_as_gguf, from_file

        if path.suffix.lower() == ".gguf" or begins_as_gguf(path):
            return from_file(path)
    if file is not path and not os.path.lexists(file) and os.access(path, os.X_OK):
        if not os.path.isfile(path / "params.json"):
            from hwcalc.sources.gguf.local import from_folder

            found = from_folder(path)
            if found is not None:
                return found
            inner: list[str] = []
            with suppress(OSError):
                inner = sorted(folder for folder in os.listdir(path) if os.path.isfile(path / folder / "config.json"))
            hint = "Give the folder that holds the model's config.json or its GGUF file, or the file itself."
            if inner:
                hint = f"A folder in it has one: {printable(str(path / inner[0]))}"
            raise ModelNotFoundError(f"the folder {name} has no config.json and no GGUF file.", hint=hint)
        file = path / "params.json"

    if file.suffix.lower() in _YAML:
        return _from_yaml(file)
    notes: list[Note] = []
    config = read_config(file, notes)
    if "kvplan_version" in config and "model_type" not in config:
        checks = "of kvplan check " if "checks" in config else ""
        hint = "Of two plans: kvplan diff a.json b.json; since an earlier check: kvplan check --baseline FILE"
        raise ConfigError(f"{name} is a JSON document {checks}that kvplan wrote, and describes no model.", hint=hint)
    model_id, revision = _identity(file)
    return RawModel(
        id=printable(model_id),
        config=config,
        source="local",
        location=printable(str(file)),
        revision=revision,
        weights=weights_beside(file, notes) if weights and file.name in MODEL_FILES else None,
        notes=tuple(notes),
    )


def _from_yaml(file: Path) -> RawModel:
    """The model of a file in YAML: one whose layers are written down, or a config in YAML's words."""
    name, config = printable(str(file)), read_yaml(file)
    if not {"layers", "model_type", "architectures"} & config.keys():
        if "checks" in config:
            raise ConfigError(f"{name} is a check file, not a model.", hint=f"Write: kvplan check {name}")
        hint = f"A model in YAML has its layers, such as: layers: {EXAMPLE_LAYERS}"
        raise ConfigError(f"{name} describes no model: it has no layers.", hint=hint)
    return RawModel(id=printable(file.stem), config=config, source="local", location=name)


def _identity(file: Path) -> tuple[str, str | None]:
    """The id and the commit. They come from the folder names of the cache, the name of the folder, or the name of the file."""
    where, found = Path(os.path.abspath(file)), snapshot_of(file)
    if found is not None and found[1] == where.parent:
        return found[0], found[1].name
    folder = where.parent.name
    return (folder if where.name in MODEL_FILES and folder else where.stem), None


def from_standard_input() -> RawModel:
    """The config or the GGUF file on standard input."""
    binary = standard_input("Pipe a config in: kvplan - < config.json")
    start = read_start(binary, "standard input")
    if start == GGUF_MAGIC:
        from hwcalc.sources.gguf.local import from_open_file

        return from_open_file(binary, start, "standard input", source="stdin", location="standard input")
    config = read_stream(binary, "standard input", start)
    return RawModel(id=_own_name(config), config=config, source="stdin", location="standard input")


def resolve_stream(stream: IO[str] | IO[bytes]) -> RawModel:
    """The config or the GGUF file in an open text or binary file. It is read to its end, or that of its header, and stays open."""
    if not callable(getattr(stream, "read", None)):
        raise ConfigError(f"a model must be an id, a path, an open file or a config dict (got {type(stream).__name__}).")
    if stream is sys.stdin or stream is getattr(sys.stdin, "buffer", None):
        return from_standard_input()
    opened: Any = stream
    name = getattr(opened, "name", None)
    path = name if isinstance(name, str) and not name.startswith("<") else None
    called = "the open file" if path is None else printable(path)
    start = read_start(opened, called)
    if start == GGUF_MAGIC:
        from hwcalc.sources.gguf.local import from_open_file

        return from_open_file(opened, start, called, source="gguf", location=OPEN_FILE if path is None else called)
    config = read_stream(opened, called, start)
    if path is None:
        return RawModel(id=_own_name(config), config=config, source="local", location=OPEN_FILE)
    model_id, revision = _identity(Path(path))
    return RawModel(id=printable(model_id), config=config, source="local", location=called, revision=revision)


def _own_name(config: Mapping[str, Any]) -> str:
    """The name in the config if it is an id. Some configs have a path of the training machine instead."""
    name = config.get("_name_or_path")
    return name if isinstance(name, str) and is_model_id(name) else "config"


def read_config(path: Path, notes: list[Note]) -> dict[str, Any]:
    """The config at ``path``, merged with ``hf_quant_config.json`` beside it. A ``params.json`` is translated.

    Raises :class:`~hwcalc.errors.ConfigError` if the config cannot be read. If the second file is broken, a note is added.
    """
    config = read_document(path)
    if path.name == "params.json":
        config = config_from_params(config, printable(str(path)))
    beside = path.with_name("hf_quant_config.json")
    if os.path.isfile(beside):
        try:
            config, more = with_quantization(config, read_document(beside))
        except KvplanError as error:
            more = (Note(code="quantization", message=f"The file beside the config was left out of account: {error.message}"),)
        notes.extend(more)
    return config


def weights_beside(path: Path, notes: list[Note]) -> WeightFacts | None:
    """The facts about the safetensors files beside the config ``path``, or ``None`` if files are missing or broken."""
    folder = os.path.dirname(path)
    stems = ("consolidated", "model") if path.name == "params.json" else ("model",)
    names = (f"{stem}.safetensors{end}" for stem in stems for end in ("", ".index.json"))
    if not any(os.path.isfile(os.path.join(folder, name)) for name in names):
        return None
    from hwcalc.sources.weights import Folder, read_weights

    try:
        return read_weights(Folder(folder), stems)
    except KvplanError as error:
        notes.append(Note(code="weights", message=f"The weight files could not be read: {error.message}"))
        return None

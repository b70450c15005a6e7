"""Ollama's store on this machine: ``ollama:llama3.1:8b`` by its manifest and the file that this names. No server is asked.

``<store>/manifests/<host>/<namespace>/<name>/<tag>`` is a JSON document with layers; ``<store>/blobs/sha256-<hash>`` holds one. The store is
``$OLLAMA_MODELS``, else that of this user and that of Linux's service.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.errors import ConfigError, KvplanError, ModelNotFoundError, UnsupportedError
from hwcalc.model import OLLAMA, Note, RawModel
from hwcalc.sources.document import read_document
from hwcalc.text import operand, printable, shown
from hwcalc.units import human_bytes

MOST_MODELS: Final = 10_000
"""Most models of a store that are listed."""

_HOST: Final = "registry.ollama.ai"
_NAMESPACE: Final = "library"
_TAG: Final = "latest"
_SERVICE: Final = "/usr/share/ollama/.ollama/models"
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PLACE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}(?::\d{1,5})?")
_DIGEST: Final = r"sha256[:-]([0-9a-f]{64})"
_MEDIA: Final = "application/vnd.ollama.image."
_MOST_LAYERS: Final = 10_000
_LISTED: Final = 12
_FORMAT: Final = re.compile(r"(?:^|-)(i?q\d\w*|fp16|bf16)$")
"""The format at the end of a tag."""
_NUMBERS: Final = r"[a-z][a-z0-9_]{0,40}"


class OllamaModel(NamedTuple):
    """A name as Ollama reads it, all parts filled in."""

    host: str
    namespace: str
    name: str
    tag: str

    @property
    def short(self) -> str:
        """As ``ollama list`` shows it."""
        words = [self.host, self.namespace, self.name]
        if self.host == _HOST:
            words = words[1:] if self.namespace != _NAMESPACE else words[2:]
        return f"{'/'.join(words)}:{self.tag}"


def ollama_stores() -> tuple[Path, ...]:
    """The stores of this machine, whether or not they exist."""
    given = os.environ.get("OLLAMA_MODELS")
    if given:
        return (Path(os.path.expanduser(given)),)
    return Path(os.path.expanduser("~/.ollama/models")), Path(_SERVICE)


def find_in_ollama(text: str) -> RawModel:
    """The model that ``text`` names, without its prefix.

    What its parameters set is kept among the metadata: ``num_ctx`` as ``ollama.num_ctx``, the bytes of a projector as
    ``ollama.projector_bytes``. Raises :class:`~hwcalc.errors.ModelNotFoundError` if no store has it, with what there is, and
    :class:`~hwcalc.errors.ConfigError` for a damaged store.
    """
    from hwcalc.sources.gguf.local import from_file

    store, model, path = _found(text)
    word = OLLAMA + model.short
    layers = _layers(store, path, word)
    digest, file = _blob(store, layers, "model", word, model)
    # What the other layers say: numbers that the model sets, and files that are loaded beside it.
    keys: dict[str, Any] = {}
    notes: list[Note] = []
    if any(row["mediaType"] == f"{_MEDIA}params" for row in layers):
        _, path = _blob(store, layers, "params", word, model)
        given = read_document(path, f"the parameters of {word}")
        keys = {
            f"ollama.{name}": value
            for name, value in given.items()
            if re.fullmatch(_NUMBERS, name) and type(value) in (int, float, bool) and abs(value) < 2**53
        }
        if "ollama.num_ctx" in keys:
            notes.append(Note(code="ollama-num-ctx", message=f"The model sets num_ctx {keys['ollama.num_ctx']}."))
    for kind, what in (("projector", "projector of images or sound"), ("adapter", "adapter")):
        if any(row["mediaType"] == _MEDIA + kind for row in layers):
            _, path = _blob(store, layers, kind, word, model)
            size = os.stat(path).st_size
            keys[f"ollama.{kind}_bytes"] = size
            message = f"Ollama loads its {what} beside the model, a file of {human_bytes(size)}, which is not planned."
            notes.append(Note(code=f"ollama-{kind}", message=message))
    try:
        raw = from_file(file, id=word, location=word, notes=tuple(notes))
    except ConfigError as error:
        error.hint = f"Pull it again: ollama pull {model.short}"
        raise
    return replace(raw, config={**raw.config, **keys}, revision=digest[:12])


def ollama_file(text: str) -> Path:
    """The GGUF file of the model that ``text`` names. Raises the errors of :func:`find_in_ollama`."""
    store, model, path = _found(text)
    word = OLLAMA + model.short
    return _blob(store, _layers(store, path, word), "model", word, model)[1]


def ollama_models(store: Path) -> Iterator[tuple[OllamaModel, Path]]:
    """The models of a store and their manifests, in alphabetical order. Nothing is opened."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(store / "manifests", ())]
    count = 0
    while waiting:
        folder, parts = waiting.pop()
        pattern = _PART if parts else _PLACE
        try:
            names = sorted((name for name in os.listdir(folder) if pattern.fullmatch(name)), key=str.lower)
        except OSError:
            continue
        if len(parts) < 3:
            waiting += [(folder / name, (*parts, name)) for name in reversed(names)]
            continue
        for name in names:
            count += 1
            if count > MOST_MODELS:
                return
            yield OllamaModel._make((*parts, name)), folder / name


def model_file(store: Path, manifest: Path) -> Path | None:
    """The GGUF file of a manifest; ``None`` for a model that is stored otherwise."""
    word = printable(str(manifest))
    try:
        return _blob(store, _layers(store, manifest, word), "model", word, None)[1]
    except KvplanError:
        return None


def _named(text: str) -> OllamaModel:
    """The model that a name stands for. Raises :class:`~hwcalc.errors.ModelNotFoundError` if it is no name of a model."""
    head, sign, tag = text.strip().rpartition(":")
    if not sign or "/" in tag:
        head, tag = text.strip(), _TAG
    words = head.split("/")
    words = {1: [_HOST, _NAMESPACE], 2: [_HOST]}.get(len(words), []) + words
    if len(words) != 3 or not _PLACE.fullmatch(words[0]) or not all(map(_PART.fullmatch, (*words[1:], tag))):
        raise ModelNotFoundError(
            f"{shown(OLLAMA + text)} is no name of an Ollama model.",
            hint="Write it as ollama list does: ollama:llama3.1:8b, ollama:user/model:tag, ollama:hf.co/org/name:Q4_K_M.",
        )
    return OllamaModel._make((*words, tag))


def unpulled(text: str) -> tuple[str, dict[str, str]] | None:
    """A command that plans a model of Ollama's library by its published config, and its options; ``None`` if no such model is known."""
    from hwcalc.profiles.compiled import built_in_models
    from hwcalc.profiles.engines import OLLAMA_PULLS, ollama_name
    from hwcalc.sources.nearest import nearest

    asked = _named(text)
    published = nearest(f"{asked.name}-{asked.tag}", built_in_models(), 1)
    if not published:
        return None
    options = {"engine": "ollama"}
    if ollama_name(published[0], None) is None:
        options["weights"] = named[0] if (named := _FORMAT.findall(asked.tag.lower())) else OLLAMA_PULLS
    words = (word for name, value in options.items() for word in (f"--{name}", value))
    return " ".join(("kvplan", published[0], *words)), options


def _found(text: str) -> tuple[Path, OllamaModel, Path]:
    """The store that has a model, the model as it is named there, perhaps in other capitals, and its manifest."""
    asked = _named(text)
    low = tuple(map(str.lower, asked))
    for store in ollama_stores():
        path = store.joinpath("manifests", *asked)
        if os.path.isfile(path):
            return store, asked, path
        for model, manifest in ollama_models(store):
            if tuple(map(str.lower, model)) == low:
                return store, model, manifest
    there = [model.short for store in ollama_stores() for model, _ in ollama_models(store)]
    before = unpulled(text)
    pull = f"Pull it: ollama pull {asked.short}"
    pull += "" if before is None else f". To plan it before: {before[0]}"
    if not there:
        places = " nor in ".join(printable(str(store)) for store in ollama_stores())
        error = ModelNotFoundError(
            f"there is no Ollama model in {places}.",
            hint=f"{pull}; a store elsewhere: OLLAMA_MODELS=FOLDER kvplan ...",
        )
    else:
        from hwcalc.sources.nearest import nearest

        near = nearest(asked.short, there)
        listed = ", ".join(there[:_LISTED]) + (f" and {len(there) - _LISTED:,} more" if len(there) > _LISTED else "")
        guess = f"Did you mean {' or '.join(OLLAMA + name for name in near)}? " if near else ""
        error = ModelNotFoundError(
            f"Ollama has no model {shown(asked.short)} here. It has: {printable(listed)}.",
            hint=f"{guess}{pull}",
        )
    error.command = before
    raise error


def _layers(store: Path, path: Path, word: str) -> list[Mapping[str, Any]]:
    """The layers of a manifest, each with a media type and a digest."""
    _check_inside(store, path, f"the manifest of {word}", "Pull the model again.")
    document = read_document(path, f"the manifest of {word}")
    layers = document.get("layers")
    rows = layers if isinstance(layers, list) else []
    sound = 0 < len(rows) <= _MOST_LAYERS and all(
        isinstance(row, dict) and isinstance(row.get("mediaType"), str) and isinstance(row.get("digest"), str) for row in rows
    )
    if not sound:
        raise ConfigError(f"the manifest of {word} lists no layers: it is none of Ollama's.", hint="Pull the model again.")
    return rows


def _blob(store: Path, layers: list[Mapping[str, Any]], kind: str, word: str, model: OllamaModel | None) -> tuple[str, Path]:
    """The hash and the file of the only layer of a kind."""
    found = [row for row in layers if row["mediaType"] == _MEDIA + kind]
    again = "Pull it again." if model is None else f"Pull it again: ollama pull {model.short}"
    if not found:
        if any(row["mediaType"] == f"{_MEDIA}tensor" for row in layers):
            raise UnsupportedError(
                f"Ollama keeps {word} as single tensors, not as a GGUF file.",
                hint="Plan the model it was made from, by its id on the Hub.",
            )
        raise ConfigError(f"the manifest of {word} has no model: it may be one that runs elsewhere.", hint=again)
    if len(found) > 1:
        raise ConfigError(f"the manifest of {word} has {len(found):,} files of the model.", hint=again)
    match = re.fullmatch(_DIGEST, found[0]["digest"])
    if match is None:
        raise ConfigError(f"the manifest of {word} names a file by {shown(found[0]['digest'])}, which is no digest.", hint=again)
    path = store / "blobs" / f"sha256-{match[1]}"
    if not os.path.isfile(path):
        raise ConfigError(f"the file of {word} is not there: {printable(str(path))}.", hint=again)
    _check_inside(store, path, f"the file of {word}", f"Plan the file itself: kvplan {operand(os.path.realpath(path))}")
    return match[1], path


def _check_inside(store: Path, path: Path, what: str, hint: str) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(store)):
        raise ConfigError(f"{what} is a link out of Ollama's store: {printable(str(path))}.", hint=hint)

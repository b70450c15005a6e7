"""GGUF files on this machine: a file, all parts of a model in several, a folder, an open file.

Headers of GGUF files as the description of a model.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from hwcalc.errors import ConfigError, KvplanError, ModelNotFoundError, UnsupportedError
from hwcalc.model import GGUF_ARCHITECTURE, Note, RawModel, gguf_weights
from hwcalc.sources.caches import snapshot_of
from hwcalc.sources.gguf.header import MAGIC, Header, Window, read_header
from hwcalc.sources.gguf.names import is_gguf, models_of, part_of
from hwcalc.text import printable, shown

_SPLIT: Final = "split."
_NO_MODEL: Final = {
    "clip": "the projector of a model for images or sound (mmproj), which llama.cpp loads beside the model",
    "adapter": "an adapter (LoRA), which is loaded into a model",
    "imatrix": "a file of measurements for quantisation (imatrix)",
    "controlvector": "a control vector, which is added to a model",
}
"""Files without a language model, by architecture or by ``general.type``."""


def raw_model(
    parts: Sequence[Header],
    *,
    id: str,  # noqa: A002
    location: str,
    name: str,
    source: str = "gguf",
    revision: str | None = None,
    notes: Sequence[Note] = (),
    files: int | None = None,
) -> RawModel:
    """The description that the headers of a model's files give. Messages call the model ``name``.

    ``files`` is how many files the headers come from, if one of them has the tensors of several.

    Raises :class:`~hwcalc.errors.UnsupportedError` for a file that holds no language model.
    """
    keys = parts[0].keys
    architecture, kind = keys.get(GGUF_ARCHITECTURE), keys.get("general.type")
    what = next((_NO_MODEL[word] for word in (architecture, kind) if isinstance(word, str) and word in _NO_MODEL), None)
    if what is not None:
        raise UnsupportedError(f"{name} is {what}: it has no cache of its own.", hint="Give the file of the model itself.")
    if not isinstance(architecture, str) or not architecture:
        found = "has no" if architecture is None else "has no text as"
        raise ConfigError(
            f"{name} {found} {shown(GGUF_ARCHITECTURE)}: nothing in it says which model it is.",
            hint="Give the file of a language model; a later part of a model in several files needs the first one beside it.",
        )
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    more = [*notes]
    if any(part.big_endian for part in parts):
        message = "The file is for processors that store the high byte first: llama.cpp on others does not load it."
        more.append(Note(code="byte-order", message=message))
    return RawModel(
        id=printable(id),
        config={key: value for key, value in keys.items() if not key.startswith(_SPLIT)},
        source=source,
        location=location,
        revision=revision,
        weights=gguf_weights(tensors, files or len(parts)) if tensors else None,
        notes=tuple(more),
        tensors=tensors,
    )


def joined(parts: Mapping[str, Header]) -> tuple[Header, ...]:
    """The headers of all files of one model by name, in their order, after a check that they belong together.

    Raises :class:`~hwcalc.errors.ConfigError` for a part of another model.
    """
    headers = tuple(parts.values())
    seen: dict[str, str] = {}
    for number, (name, header) in enumerate(parts.items()):
        says, count = header.keys.get("split.no"), header.keys.get("split.count")
        if (says is not None and says != number) or (count is not None and count != len(headers)):
            raise ConfigError(
                f"{name} is part {_number(says, 1)} of {_number(count)} by its own header, and part {number + 1} of {len(headers)} by its name.",
                hint="Give it the name that it had when it was split, or download the files again.",
            )
        for tensor in header.tensors:
            first = seen.setdefault(tensor.name, name)
            if first != name:
                raise ConfigError(
                    f"{first} and {name} both have the tensor {shown(tensor.name)}: they are not parts of one model.",
                    hint="Download the files again.",
                )
    expected = headers[0].keys.get("split.tensors.count")
    if isinstance(expected, int) and expected != len(seen):
        raise ConfigError(
            f"the files of {next(iter(parts))} have {len(seen):,} tensors together, and {expected:,} by their own header.",
            hint="Download the files again.",
        )
    return headers


def check_whole(header: Header, name: str) -> None:
    """Raise :class:`~hwcalc.errors.ConfigError` if a file is one of several by its header, and not by its name."""
    count = header.keys.get("split.count")
    if isinstance(count, int) and count > 1:
        raise ConfigError(
            f"{name} is part {_number(header.keys.get('split.no'), 1)} of {count:,} by its own header, and its name does not say so.",
            hint=f"Name the parts as gguf-split does, NAME-00001-of-{min(count, 99999):05}.gguf and so on, in one folder.",
        )


def given_name(keys: Mapping[str, Any]) -> str | None:
    """The name that a file gives the model, if it is one."""
    name = keys.get("general.name")
    return name.strip()[:200] if isinstance(name, str) and name.strip() else None


def _number(value: object, more: int = 0) -> str:
    return f"{value + more:,}" if isinstance(value, int) and not isinstance(value, bool) else "?"


_LISTED: Final = 8
_NO_NAME: Final = re.compile(r"(ggml-)?model\b.*|sha256-.*|[0-9a-f]{32,}", re.IGNORECASE)
"""Stems that say nothing about the model."""
_PIECE: Final = 1024**2


def begins_as_gguf(path: Path) -> bool:
    """True if a regular file begins as GGUF files do."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def gguf_files(folder: Path) -> tuple[str, ...]:
    """The names of the GGUF files in a folder, in alphabetical order; none if it cannot be listed."""
    try:
        return tuple(sorted(filter(is_gguf, os.listdir(folder))))
    except OSError:
        return ()


def from_file(path: Path, *, id: str | None = None, location: str | None = None, notes: tuple[Note, ...] = ()) -> RawModel:  # noqa: A002
    """The model in a file. One part of a model stands for all of them, which lie in the same folder.

    ``id`` and ``location`` replace those that follow from the path. Raises :class:`~hwcalc.errors.ModelNotFoundError` if there is no such
    file, and :class:`~hwcalc.errors.ConfigError` if it is damaged, or if a part is missing.
    """
    name = printable(str(path))
    part = part_of(path.name)
    if part is None:
        headers: tuple[Header, ...] = (read_file(path),)
        check_whole(headers[0], name)
    else:
        names = part.names
        missing = [name for name in names if not os.path.isfile(path.with_name(name))]
        if len(missing) == len(names):
            raise _no_file(path)
        if missing:
            listed = ", ".join(map(shown, missing[:_LISTED])) + (", ..." if len(missing) > _LISTED else "")
            raise ConfigError(
                f"{name} is one of {len(names):,} files of a model, and {len(missing):,} of them are not in its folder: {listed}.",
                hint="Download them into the same folder.",
            )
        headers = joined({printable(name): read_file(path.with_name(name)) for name in names})
    stem = path.stem if part is None else part.stem
    given = given_name(headers[0].keys)
    own_id, revision, found = given if given is not None and _NO_NAME.fullmatch(stem) else stem, None, snapshot_of(path)
    if found is not None:
        # Id and commit follow from the folders of the Hugging Face cache.
        repository, folder = found
        own_id, revision = f"{repository}:{Path(os.path.abspath(path)).relative_to(folder).as_posix()}", folder.name
    return raw_model(headers, id=id or own_id, location=location or name, name=name, revision=revision, notes=notes)


def from_folder(folder: Path) -> RawModel | None:
    """The only model among the GGUF files of a folder; ``None`` if it has no such file.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if there are several.
    """
    files = gguf_files(folder)
    if not files:
        return None
    models = models_of(files)
    if len(models) == 1:
        return from_file(folder / models[0])
    if not models:
        return from_file(folder / files[0])
    listed = ", ".join(map(shown, models[:_LISTED])) + (", ..." if len(models) > _LISTED else "")
    raise ModelNotFoundError(
        f"the folder {printable(str(folder))} has {len(models):,} GGUF models: {listed}.",
        hint=f"Name one of them: {printable(str(folder / models[0]))}",
    )


def read_file(path: Path) -> Header:
    """The header of a regular file."""
    name = printable(str(path))
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe or a device may block for ever
            raise ConfigError(f"{name} is not a regular file.", hint="Read from a pipe as standard input: kvplan -")
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size

            def read(first: int, end: int) -> bytes:
                file.seek(first)
                return _filled(file.read, end - first)

            return read_header(Window(read, size), name)
    except FileNotFoundError:
        raise _no_file(path) from None
    except KvplanError:
        raise
    except (OSError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise ConfigError(f"{name} cannot be read: {reason}.", hint="Check who may read the file.") from error


def from_open_file(stream: IO[bytes], start: bytes, name: str, *, source: str, location: str) -> RawModel:
    """The model in an open file or a pipe, of which ``start`` is already read. It is read no further than its header."""
    position = 0
    kept = start

    def more(count: int) -> bytes:
        nonlocal kept
        if kept:
            piece, kept = kept[:count], kept[count:]
            return piece
        piece = stream.read(count)
        if not isinstance(piece, bytes):
            raise TypeError(f"it gives {type(piece).__name__}, not bytes (open it with mode 'rb')")
        return piece

    def read(first: int, end: int) -> bytes:
        nonlocal position
        while position < first:
            skipped = len(more(min(first - position, _PIECE)))
            if not skipped:
                return b""
            position += skipped
        data = _filled(more, end - first)
        position += len(data)
        return data

    try:
        header = read_header(Window(read, None), name)
    except KvplanError:
        raise
    except Exception as error:
        # The caller's object may raise anything in its read(). All of it means that the file cannot be read.
        raise ConfigError(f"{name} cannot be read: {printable(str(error))}.", hint="Give an open, readable file.") from error
    check_whole(header, name)
    return raw_model((header,), id=given_name(header.keys) or "model", location=location, name=name, source=source)


def _filled(read: Callable[[int], bytes | None], count: int) -> bytes:
    """``count`` bytes of a file or pipe; fewer only at its end."""
    whole = bytearray()
    while len(whole) < count and (data := read(count - len(whole)) or b""):
        whole += data
    return bytes(whole)


def _no_file(path: Path) -> ModelNotFoundError:
    name = printable(str(path))
    broken = " (a link to a file that is gone)" if os.path.islink(path) else ""
    there = models_of(gguf_files(path.parent))
    hint = f"The folder has {', '.join(map(shown, there[:_LISTED]))}."
    if not there:
        hint = "Give a GGUF file, or an id with a file: org/name:Q4_K_M."
    return ModelNotFoundError(f"there is no file {name}{broken}.", hint=hint)

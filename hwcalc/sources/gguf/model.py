"""Headers of GGUF files as the description of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.model import GGUF_ARCHITECTURE, GgufTensor, Note, RawModel, WeightFacts
from hwcalc.sources.gguf.header import Header
from hwcalc.sources.gguf.names import Part
from hwcalc.text import printable, shown

__all__ = ["check_whole", "given_name", "joined", "raw_model", "weight_facts"]

_SPLIT: Final = "split."
_NO_MODEL: Final = {
    "clip": "the projector of a model for images or sound (mmproj), which llama.cpp loads beside the model",
    "adapter": "an adapter (LoRA), which is loaded into a model",
    "imatrix": "a file of measurements for quantisation (imatrix)",
    "controlvector": "a control vector, which is added to a model",
}
"""What a file is that holds no language model, by architecture or by ``general.type``."""


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
    _check_kind(keys, name)
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
        weights=weight_facts(tensors, files or len(parts)) if tensors else None,
        notes=tuple(more),
        tensors=tensors,
    )


def _check_kind(keys: Mapping[str, Any], name: str) -> None:
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


def check_whole(header: Header, part: Part | None, name: str) -> None:
    """Raise :class:`~hwcalc.errors.ConfigError` if a file is one of several by its header, and not by its name."""
    count = header.keys.get("split.count")
    if part is None and isinstance(count, int) and count > 1:
        raise ConfigError(
            f"{name} is part {_number(header.keys.get('split.no'), 1)} of {count:,} by its own header, and its name does not say so.",
            hint=f"Name the parts as gguf-split does, NAME-00001-of-{min(count, 99999):05}.gguf and so on, in one folder.",
        )


def weight_facts(tensors: Sequence[GgufTensor], files: int, source: str = "") -> WeightFacts:
    """The bytes of tensors by type. A block of 256 numbers in 144 bytes counts as 256 elements."""
    sizes: dict[str, int] = {}
    elements: dict[str, int] = {}
    for tensor in tensors:
        count = 1
        for size in tensor.shape:
            count *= size
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
        elements[tensor.type] = elements.get(tensor.type, 0) + count
    return WeightFacts(
        bytes_by_dtype=dict(sorted(sizes.items())),
        elements_by_dtype=dict(sorted(elements.items())),
        files=files,
        tensors=len(tensors),
        source=source or ("GGUF header" if files == 1 else "GGUF headers"),
    )


def given_name(keys: Mapping[str, Any]) -> str | None:
    """The name that a file gives the model, if it is one."""
    name = keys.get("general.name")
    return name.strip()[:200] if isinstance(name, str) and name.strip() else None


def _number(value: object, more: int = 0) -> str:
    return f"{value + more:,}" if isinstance(value, int) and not isinstance(value, bool) else "?"

"""The mixes of llama.cpp that publishers of GGUF files offer, from the largest to the smallest of three bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

__all__ = ["PUBLISHED_MIXES", "mix_sizes", "own_format", "published_formats"]

PUBLISHED_MIXES: Final = (
    "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q4_k_m", "q4_k_s", "iq4_xs", "q3_k_l", "q3_k_m", "iq3_m", "q3_k_s", "iq3_xxs",
)  # fmt: skip
"""What a model's page on the Hub usually has (bartowski's and unsloth's, 2025 and 2026). Files of fewer bits are there too, for who asks
for them by name: their answers suffer. More than eight bits gain nothing."""

_FOUR_BITS: Final = "mxfp4"
_REPACKED: Final = "mxfp4_moe"
"""The file type whose experts are MXFP4 (``LLAMA_FTYPE_MOSTLY_MXFP4_MOE``): the converter repacks those of a checkpoint as they are."""


def own_format(model: ModelSpec) -> tuple[str | None] | None:
    """The format in which the weights of a model are: that of its GGUF file (``None``, as it is), or of a checkpoint whose experts are MXFP4.

    No format at all for weights of 16 or 8 bits, which every mix makes smaller, nor for NVFP4: such checkpoints are copies of models in
    16 bits, of which the published files are made.
    """
    from hwcalc.quantization.converted import converted

    if model.gguf is not None:
        return (None,) if model.gguf.tensors else None
    kept = set(() if model.counted is None else converted(model).kept.values())
    return (_REPACKED,) if kept == {_FOUR_BITS} else None


def published_formats(model: ModelSpec) -> tuple[str | None, ...]:
    """The formats in which people publish a model for llama.cpp: its own, if it has one, and the mixes that make that smaller."""
    own = own_format(model)
    return PUBLISHED_MIXES if own is None else model.once("published formats", lambda: (*own, *_smaller(model, own[0])))


def _smaller(model: ModelSpec, own: str | None) -> Iterator[str]:
    """The mixes in which the weights that have four bits already take less: to quantise them again for more loses and gains nothing."""
    from hwcalc.errors import UnsupportedError
    from hwcalc.quantization.gguf_file import file_tensors

    stored = [one for one in file_tensors(model, own) or () if model.gguf is not None or one.type == _FOUR_BITS]
    names = {one.name for one in stored}
    for name in PUBLISHED_MIXES:
        try:
            made = file_tensors(model, name) or ()
        except UnsupportedError:
            continue
        if sum(one.bytes for one in made if one.name in names) < sum(one.bytes for one in stored):
            yield name


def mix_sizes(model: ModelSpec, names: Iterable[str | None], always: tuple[str, ...] = ()) -> dict[str | None, int]:
    """The bytes of a model in each of these mixes, without those that llama.cpp refuses or that are none; nothing is laid out for it.

    ``always`` is as in :func:`~hwcalc.quantization.gguf_file.mix_bytes`.
    """
    from hwcalc.errors import UnsupportedError
    from hwcalc.quantization.gguf_file import mix_bytes

    sizes: dict[str | None, int] = {}
    for name in names:
        try:
            found = None if name is None else mix_bytes(model, name, always=always)
        except UnsupportedError:
            continue
        if found is None:
            return {}
        sizes[name] = sum(found.values())
    return sizes

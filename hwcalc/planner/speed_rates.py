"""The peak rates at which numbers of a format may be multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

HALF_SUMS: Final = "fp16_sums"
"""The rate of 16-bit numbers whose products are added up in 16 bits."""
SIXTEEN: Final = ("bf16", "fp16", HALF_SUMS, "fp32")
RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "fp32": ("tf32", "fp32"),
    "bf16": SIXTEEN,
    "fp16": SIXTEEN,
    **dict.fromkeys(("fp8", "fp8_channel", "fp8_block", "mxfp8"), ("fp8", *SIXTEEN)),
    # llama.cpp multiplies 4-bit floats by 8-bit integers where the accelerator has no units for them.
    **dict.fromkeys(("mxfp4", "nvfp4"), ("fp4", "fp8", "int8", *SIXTEEN)),
    **dict.fromkeys(("int8", "bnb8"), ("int8", *SIXTEEN)),
    # Weight-only formats are unpacked to 16 bits before the multiplication.
    **dict.fromkeys(("int4", "gptq", "awq", "bnb4", "bnb4_double", "ternary"), SIXTEEN),
}
"""Weight format -> the peak rates at which it may be multiplied. The fastest one of the accelerator counts. Formats of GGUF files are not
here: their matrices are multiplied as 8-bit integers, or as any float."""
ANY_RATE: Final = ("int8", "fp8", *SIXTEEN)


def reached(flops: Mapping[tuple[str, ...], float], *, in_32_bits: bool) -> dict[tuple[str, ...], float]:
    """Operations without the rate that kernels never reach that add up products in 32 bits. llama.cpp asks cuBLAS for 16 (ggml-cuda.cu)."""
    out: dict[tuple[str, ...], float] = {}
    for names, count in flops.items():
        kept = _without_half_sums(names) if in_32_bits else names
        out[kept] = out.get(kept, 0) + count
    return out


@lru_cache(maxsize=64)
def _without_half_sums(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name != HALF_SUMS)


def fastest(gpu: Gpu, rates: Sequence[str]) -> tuple[str, float] | None:
    """The fastest of these rates that is known, by name, in operations per second.

    The rate of 32 bits alone says nothing of units for fewer, which are faster if there are any.
    """
    # Kept beside the accelerator: every plan asks for a few rates, and for each of them several times.
    known: dict[Sequence[str], tuple[str, float] | None] = vars(gpu).setdefault("_fastest", {})
    if rates not in known:
        known[rates] = _fastest(gpu, rates)
    return known[rates]


def _fastest(gpu: Gpu, rates: Sequence[str]) -> tuple[str, float] | None:
    found = ((_peak(gpu, name), name) for name in rates)
    known = [(rate * 1e12, name) for rate, name in found if rate is not None]
    if not known or ([name for _, name in known] == ["fp32"] and "tf32" not in rates):
        return None
    rate = max(rate for rate, _ in known)
    return next((name, found) for found, name in known if found == rate)


def _peak(gpu: Gpu, name: str) -> float | None:
    rates = gpu.tflops_dense
    if name != HALF_SUMS:
        return rates.get(name)
    integers, floats, single = (rates.get(one) for one in ("int8", "fp16", "fp32"))
    if gpu.vendor != "nvidia" or integers is None or floats is None or single is None:
        return None
    # Without tensor cores there is no such rate; where sums cost nothing it is that of fp16, but for the rounding of a data sheet.
    return integers / 2 if single < floats < integers / 3 else None

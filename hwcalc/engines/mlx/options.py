"""The options of mlx-lm, by its own names, and what they come to for a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.engines.base import Opened
from hwcalc.engines.mlx.models import OWN_CACHE, file_of
from hwcalc.engines.options import EngineOption, integer_option, is_auto
from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import brief

__all__ = ["DECODE_CONCURRENCY", "FLOATS", "GROUPS", "OPTIONS", "Bits", "bits_of", "checked_dtype", "number_of", "window_of"]

DECODE_CONCURRENCY: Final = 32
FLOATS: Final = ("bf16", "fp16", "fp32")
_BITS: Final = (2, 3, 4, 5, 6, 8)
GROUPS: Final = (32, 64, 128)
_BITS_OF_DTYPE: Final = {"int4": 4, "int8": 8}
"""Values of ``--dtype`` that stand for ``kv_bits``."""


def _one_of(*allowed: int) -> Callable[[str, str], int]:
    def check(name: str, value: str) -> int:
        number = integer_option(0)(name, value)
        if number not in allowed:
            raise UsageError(
                f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {', '.join(map(str, allowed))}."
            )
        return number

    return check


OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        option.name: option
        for option in (
            EngineOption(name="kv_bits", help="bits of a quantized cache", default="not quantized", check=_one_of(*_BITS)),
            EngineOption(
                name="kv_group_size", help="numbers that share a scale and a bias", default="64", check=_one_of(*GROUPS)
            ),
            EngineOption(
                name="quantized_kv_start",
                help="tokens from which on the cache is quantized",
                default="5000",
                check=integer_option(0),
            ),
            EngineOption(
                name="max_kv_size",
                help="tokens that a rotating cache keeps of every layer",
                default="every token",
                check=integer_option(5),
            ),
            EngineOption(
                name="prefill_step_size", help="tokens of a prompt that are read at once", default="2048", check=integer_option(1)
            ),
            EngineOption(
                name="decode_concurrency",
                help="sequences that the server generates at once",
                default="32",
                check=integer_option(1),
            ),
            EngineOption(
                name="prompt_cache_size",
                help="caches of earlier requests that the server keeps",
                default="0, no server",
                check=integer_option(0, 4096),
            ),
        )
    }
)


class Bits(Record):
    """A quantized cache: bits of a number, numbers of a group, and the tokens from which on it is quantized."""

    bits: int
    group: int
    start: int

    def row_bytes(self, width: int, scale_bytes: int) -> tuple[int, int]:
        """Bytes of the packed numbers of a row of so many, and of its scales; its biases take as much as those.

        128 numbers of 4 bits in groups of 64 with scales of 2 bytes are 64 bytes and 4.
        """
        return width * self.bits // 8, width // self.group * scale_bytes


def number_of(opened: Opened, name: str, default: int) -> int:
    """The value of a whole-number option."""
    return int(integer_option(0)(name, opened.request.options.get(name, str(default))))


def bits_of(opened: Opened) -> Bits | None:
    """How the cache is quantized, by ``kv_bits`` or by ``--dtype int8``; ``None`` if it never is."""
    options, spelled = opened.request.options, (opened.request.dtype or "").strip().lower()
    by_dtype = None if is_auto(opened.request.dtype) else _BITS_OF_DTYPE.get(spelled)
    if by_dtype is not None and "kv_bits" in options:
        raise UsageError(
            f"--dtype {spelled} and kv_bits={brief(options['kv_bits'], 8)} both say the bits.", hint="Leave out one."
        )
    if by_dtype is None and "kv_bits" not in options:
        for name in ("kv_group_size", "quantized_kv_start"):
            if name in options:
                raise UsageError(f"engine option {name} belongs to kv_bits.", hint="Add: --engine-option kv_bits=8")
        return None
    bits = number_of(opened, "kv_bits", 8) if by_dtype is None else by_dtype
    return Bits(
        bits=bits,
        group=number_of(opened, "kv_group_size", 64),
        start=number_of(opened, "quantized_kv_start", 5000),
    )


def window_of(opened: Opened) -> int | None:
    """``max_kv_size``; ``None`` if every token is kept, as where the model file makes its cache itself."""
    if "max_kv_size" not in opened.request.options or file_of(opened.model) in OWN_CACHE:
        return None
    return number_of(opened, "max_kv_size", 0)


def checked_dtype(opened: Opened) -> str | None:
    """The dtype that ``--dtype`` names for the model, as which the cache follows it; ``None`` if it names none."""
    spelled = (opened.request.dtype or "").strip().lower()
    if is_auto(opened.request.dtype) or spelled in _BITS_OF_DTYPE:
        return None
    if spelled not in FLOATS:
        raise UnknownNameError(
            f"mlx-lm keeps its cache in the dtype that the model runs in, or in 2 to 8 bits, not in {brief(spelled, 40)}.",
            option="dtype",
            hint="Use --dtype auto, bf16, fp16, fp32, int8 or int4, or --engine-option kv_bits=2|3|4|5|6|8",
        )
    return spelled

"""The value of ``--lora``: how many low-rank adapters are on the GPU at once, and their rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.text import shown

__all__ = ["Lora", "parse_lora"]

_LARGEST_RANK: Final = 8192
_LARGEST_COUNT: Final = 100_000
_TARGETS: Final = ("all", "attention", "mlp")
_DTYPES: Final = ("bf16", "fp16", "fp32")
_ALLOWED: Final = (
    f"rank=1..{_LARGEST_RANK:,}, count=1..{_LARGEST_COUNT:,}, targets={'|'.join(_TARGETS)}, dtype={'|'.join(_DTYPES)}"
)


class Lora(Record):
    """``count`` adapters of rank ``rank`` on the GPU at once, attached to the linear layers that ``targets`` names."""

    rank: int
    count: int = 1
    targets: str = "all"
    """``all``, ``attention`` (which includes other token mixers, such as Mamba) or ``mlp`` (which includes experts)."""
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"rank={self.rank},count={self.count},targets={self.targets},dtype={self.dtype}"

    @property
    def element_bytes(self) -> int:
        """Bytes of one number of an adapter."""
        return FLOATS[self.dtype].number_bytes


def parse_lora(text: str) -> Lora:
    """Parse ``rank=16,count=8,targets=attention,dtype=bf16``. Only ``rank`` is required.

    >>> parse_lora("rank=16,count=8").count
    8

    Raises :class:`~hwcalc.errors.UsageError` for an unknown or repeated key, or a wrong value.
    """
    values: dict[str, str] = {}
    for item in text.split(","):
        key, sign, value = (part.strip().lower() for part in item.partition("="))
        if not sign or key not in {"rank", "count", "targets", "dtype"} or key in values:
            reason = "twice" if key in values else "not known"
            raise UsageError(f"--lora {shown(text, 60)}: {shown((key or item), 20)} is {reason}.", hint=f"Allowed: {_ALLOWED}.")
        values[key] = value
    if "rank" not in values:
        raise UsageError(f"--lora {shown(text, 60)} names no rank.", hint=f"Allowed: {_ALLOWED}.")
    return Lora(
        rank=_number(text, "rank", values["rank"], _LARGEST_RANK),
        count=_number(text, "count", values.get("count", "1"), _LARGEST_COUNT),
        targets=_word(text, "targets", values.get("targets", "all"), _TARGETS),
        dtype=_word(text, "dtype", values.get("dtype", "bf16"), _DTYPES),
    )


def _number(text: str, key: str, value: str, largest: int) -> int:
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
    if not 1 <= number <= largest:
        raise UsageError(f"--lora {shown(text, 60)}: {key} is out of range: {shown(value, 20)}", hint=f"Allowed: {_ALLOWED}.")
    return number


def _word(text: str, key: str, value: str, words: Iterable[str]) -> str:
    if value not in words:
        raise UsageError(f"--lora {shown(text, 60)}: {key}={shown(value, 20)} is not known.", hint=f"Allowed: {_ALLOWED}.")
    return value

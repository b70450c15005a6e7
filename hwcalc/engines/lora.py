"""``--lora``: how many low-rank adapters are on the GPU at once, and of which rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.frozen import frozen

__all__ = ["Lora", "parse_lora"]

_LARGEST_RANK: Final = 8192
_LARGEST_COUNT: Final = 100_000
_TARGETS: Final = ("all", "attention", "mlp")
_DTYPES: Final = ("bf16", "fp16", "fp32")
_ALLOWED: Final = (
    f"rank=1..{_LARGEST_RANK:,}, count=1..{_LARGEST_COUNT:,}, targets={'|'.join(_TARGETS)}, dtype={'|'.join(_DTYPES)}"
)


@frozen
class Lora:
    """Adapters that are on the GPU at once: ``count`` of them, each of ``rank``, beside the linear layers that ``targets`` names."""

    rank: int
    count: int = 1
    targets: str = "all"
    """``all``, ``attention`` (and other mixers of tokens, such as Mamba's) or ``mlp`` (experts too)."""
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"rank={self.rank},count={self.count},targets={self.targets},dtype={self.dtype}"

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return FLOATS[self.dtype].number_bytes


def parse_lora(text: str) -> Lora:
    """``rank=16,count=8,targets=attention,dtype=bf16``; only ``rank`` must be there.

    >>> parse_lora("rank=16,count=8").count
    8

    Raises :class:`~hwcalc.errors.UsageError` for another key, a key twice, or a value out of range.
    """
    given: dict[str, str] = {}
    for item in text.split(","):
        key, sign, value = (part.strip().lower() for part in item.partition("="))
        if not sign or key not in {"rank", "count", "targets", "dtype"} or key in given:
            reason = "twice" if key in given else "not known"
            raise UsageError(f"--lora {text[:60]!r}: {(key or item)[:20]!r} is {reason}.", hint=f"Allowed: {_ALLOWED}.")
        given[key] = value
    if "rank" not in given:
        raise UsageError(f"--lora {text[:60]!r} names no rank.", hint=f"Allowed: {_ALLOWED}.")
    return Lora(
        rank=_number(text, "rank", given["rank"], _LARGEST_RANK),
        count=_number(text, "count", given.get("count", "1"), _LARGEST_COUNT),
        targets=_word(text, "targets", given.get("targets", "all"), _TARGETS),
        dtype=_word(text, "dtype", given.get("dtype", "bf16"), _DTYPES),
    )


def _number(text: str, key: str, value: str, largest: int) -> int:
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0
    if not 1 <= number <= largest:
        raise UsageError(f"--lora {text[:60]!r}: {key} is out of range: {value[:20]!r}", hint=f"Allowed: {_ALLOWED}.")
    return number


def _word(text: str, key: str, value: str, words: Iterable[str]) -> str:
    if value not in words:
        raise UsageError(f"--lora {text[:60]!r}: {key}={value[:20]!r} is not known.", hint=f"Allowed: {_ALLOWED}.")
    return value

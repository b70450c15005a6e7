"""The words of a verdict, the parallel sizes of a layout, and how far searches go."""

from __future__ import annotations

import enum
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.units import human_bytes

UNLIMITED: Final = 2**40
"""No search goes beyond this many tokens or sequences: where it ends here, nothing limits."""


class Verdict(enum.StrEnum):
    """Whether something fits by the expected value, and whether both ends of the estimate agree. Documents have the value."""

    FITS = "fits"
    """Even at the high end of the estimate."""
    PROBABLY = "probably"
    """By the expected value, but not at the high end."""
    PROBABLY_NOT = "probably_not"
    """Not by the expected value, but at the low end."""
    NO = "no"
    """Not even at the low end."""

    @classmethod
    def of(cls, fits: bool, *ends: bool) -> Verdict:
        """The verdict, from whether it fits by the expected value and whether it fits at each end of the estimate."""
        if any(end is not fits for end in ends):
            return cls.PROBABLY if fits else cls.PROBABLY_NOT
        return cls.FITS if fits else cls.NO

    @property
    def fits(self) -> bool:
        """True if it fits by the expected value."""
        return self in {Verdict.FITS, Verdict.PROBABLY}

    @property
    def certain(self) -> bool:
        """True if both ends of the estimate agree."""
        return self in {Verdict.FITS, Verdict.NO}

    @property
    def text(self) -> str:
        """The verdict in words, as in every text.

        >>> [verdict.text for verdict in Verdict]
        ['fits', 'probably fits', 'probably not', 'does not fit']
        """
        return _VERDICT_WORDS[self]

    @property
    def meaning(self) -> str:
        """The meaning of the verdict for the estimates, in words."""
        return _MEANINGS[self]

    __repr__ = str.__repr__


_VERDICT_WORDS: Final = {
    Verdict.FITS: "fits",
    Verdict.PROBABLY: "probably fits",
    Verdict.PROBABLY_NOT: "probably not",
    Verdict.NO: "does not fit",
}
_MEANINGS: Final = {
    Verdict.FITS: "It fits even if every estimate is at its high end.",
    Verdict.PROBABLY: "It fits by the expected values, but not if the estimates are at their high end.",
    Verdict.PROBABLY_NOT: "It does not fit by the expected values, but if the estimates are at their low end it does.",
    Verdict.NO: "It does not fit even if every estimate is at its low end.",
}


def layout_text(sizes: object) -> str:
    """The parallel sizes above one of what has ``tp``, ``pp``, ``dp``, ``dcp`` or ``ep``; empty for a single GPU.

    >>> layout_text(Layout(tp=4, dp=2, ep=8)), layout_text(Layout())
    ('tp 4, dp 2, ep 8', '')
    """
    found = {name: getattr(sizes, name, 1) for name in ("tp", "pp", "dp", "dcp", "ep")}
    return ", ".join(f"{name} {size:,}" for name, size in found.items() if size > 1)


def places_text(gpus: int, gpu_layers: int, all_layers: int, *, experts: int, host_bytes: int, moved_bytes: int) -> str:
    """Where layers and experts lie, and the bytes in the memory of the host.

    >>> places_text(1, 25, 33, experts=0, host_bytes=4 * 2**30, moved_bytes=0)
    '25 of 33 layers on the GPU, the others in host memory (4.00 GiB)'
    >>> places_text(2, 33, 33, experts=3, host_bytes=2**30, moved_bytes=0)
    'all 33 layers on 2 GPUs, the experts of 3 in host memory (1.00 GiB)'
    """
    where = "the GPU" if gpus == 1 else f"{gpus:,} GPUs"
    if gpu_layers == all_layers:
        words = f"all {all_layers:,} layers on {where}"
        if not experts:
            return f"{words}, {human_bytes(moved_bytes)} of their weights in host memory" if moved_bytes else words
        return f"{words}, the experts of {experts:,} in host memory ({human_bytes(host_bytes)})"
    words = f"{gpu_layers:,} of {all_layers:,} layers on {where}"
    more = f" and the experts of {experts:,} more" if experts else ""
    return f"{words}, the others{more} in host memory ({human_bytes(host_bytes)})"


class Layout(Record):
    """The parallel sizes of a layout. ``ep`` reuses the GPUs of ``tp`` and ``dp``."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.tp * self.pp * self.dp

    @property
    def text(self) -> str:
        """The sizes above one: ``tp 8, pp 2``; empty for a single GPU."""
        return layout_text(self)

"""The buffers of a pass as numbers: of a device that runs any part of a model, in a context or in an array of contexts.

:mod:`~hwcalc.engines.llamacpp.compute` says the same of one device and one context in a plan's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.compute import host_moments_of, moments_of
from hwcalc.engines.llamacpp.graph import FLOAT, OF_THE_HOST, PIPELINE_COPIES, Part, output_bytes
from hwcalc.formulas.arithmetic import ceiled, either, floored, larger, largest, some
from hwcalc.formulas.record import Record
from hwcalc.profiles.llamacpp import llamacpp_profile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwcalc.engines.llamacpp.graph import Moment
    from hwcalc.engines.llamacpp.opened import LlamacppOpened
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.engines.llamacpp.sums import Sum

__all__ = ["NOTHING_COPIED", "Buffers", "GpuPart", "HostPart"]

NOTHING_COPIED: Final = -1

Sized = tuple[str, Any]
"""The name of a moment, and the bytes of the buffer that it would need."""


class GpuPart(Record):
    """The part of a model that a GPU runs, as far as its buffer depends on it; numbers or arrays, as in :class:`~...graph.Part`.

    ``from_host`` are the bytes of the largest tensor that is copied for a batch, or :data:`NOTHING_COPIED`, and ``full`` and ``sliding``
    those of a cell of the host's widest layers without a window and with one.
    """

    runs: bool
    first: bool
    output: bool
    copies: int
    from_host: int = NOTHING_COPIED
    full: int = 0
    sliding: int = 0


class HostPart(Record):
    """What the host does: ``alone`` it runs everything, and ``partly`` it has weights of layers. ``helped``: a GPU multiplies with them."""

    alone: bool
    partly: bool
    helped: bool
    copies: int


class Buffers:
    """The buffers of contexts with these settings."""

    def __init__(self, opened: LlamacppOpened, one: Settings) -> None:
        """``opened`` is any request of the family."""
        gpu = opened.request.hardware.gpu
        self._opened = opened
        self.one = one
        self._sixteen_bit = gpu is None or gpu.vendor.lower() in ("nvidia", "amd")
        self._errors = llamacpp_profile().compute
        self._sizes: dict[tuple[bool, int], tuple[dict[str, Sized], tuple[Sized, ...]]] = {}
        self._plain: dict[tuple[bool, int, str], Any] = {}
        self._whole: dict[tuple[Any, ...], int] = {}

    def of(self, part: GpuPart | HostPart, end: str) -> int:
        """What a device needs for a pass, at an end of the estimates."""
        return self.on_gpu(part, end) if isinstance(part, GpuPart) else self.on_host(part, end)

    def on_gpu(self, part: GpuPart, end: str) -> int:
        """The compute buffer of a GPU."""
        size = 0
        for first in (True, False):
            for copies in (1, PIPELINE_COPIES):
                like = (part.first == first) & (part.copies == copies) & part.runs
                if some(like):
                    size = either(like, self._of_part(part, first=first, copies=copies, end=end), size)
        return size

    def on_host(self, part: HostPart, end: str) -> int:
        """The compute buffer of the host, and the logits that it keeps for the caller."""
        alone = self._alone(end, output=True) if some(part.alone) else 0
        beside = 0
        if part.alone is not True:
            beside = self._beside(1, end)
            if some(part.copies > 1):
                beside = either(part.copies > 1, self._beside(PIPELINE_COPIES, end), beside)
            if some(part.partly) and (end == "high" or (end == "expected" and not part.helped)):
                whole = self._alone(end, output=False)
                beside = either(part.partly, larger(beside, whole) if end == "high" else whole, beside)
        buffer: int = either(part.alone, alone, beside)
        return buffer + self._logits(end)

    def _logits(self, end: str) -> int:
        one = self.one
        count = larger(one.n_seq_max, one.n_outputs) if end == "high" else one.n_seq_max
        return output_bytes(self._opened.hparams, count)

    def _of_part(self, part: GpuPart, *, first: bool, copies: int, end: str) -> int:
        """The buffer of a GPU whose part is like this, whatever it copies from the host."""
        key = (first, copies, end)
        others, sizes = self._sized(first, copies)
        if key not in self._plain:
            self._plain[key] = largest(size * self._share(name, end) for name, size in sizes)
        most = self._plain[key]
        if "logits" in others and some(part.output):
            name, size = others["logits"]
            most = larger(most, part.output * (size * self._share(name, end)))
        helped = part.from_host >= 0
        if some(helped):
            one = self.one
            cells = one.n_stream * larger(one.cells_swa * part.sliding, one.n_ctx_seq * part.full)
            for name, copied in zip(OF_THE_HOST, (part.from_host, cells), strict=True):
                size = others[name][1] + FLOAT * (copied // FLOAT)
                most = larger(most, helped * (size * self._share(name, end)))
        return _rounded(most, end)

    def _share(self, name: str, end: str) -> float:
        share: float = getattr(self._errors[name], end)
        return share

    def _sized(self, first: bool, copies: int) -> tuple[dict[str, Sized], tuple[Sized, ...]]:
        """The moments that not every part has, by name, and all others."""
        key = (first, copies)
        if key not in self._sizes:
            part = Part(first=first, copies=copies, from_host=0, sixteen_bit=self._sixteen_bit)
            others: dict[str, Sized] = {}
            always: list[Sized] = []
            for moment, size in moments_of(self._opened, part):
                if moment.per_output:
                    others["logits"] = moment.name, size.at(self.one)
                elif moment.name in OF_THE_HOST:
                    others[moment.name] = moment.name, size.at(self.one)
                else:
                    always.append((moment.name, size.at(self.one)))
            self._sizes[key] = others, tuple(always)
        return self._sizes[key]

    def _alone(self, end: str, *, output: bool) -> int:
        """The buffer of a device that runs everything, or all but the output."""
        key = ("alone", output, end)
        if key not in self._whole:
            moments = moments_of(self._opened, Part(alone=True, output=output))
            self._whole[key] = self._fullest(moments, end)
        return self._whole[key]

    def _beside(self, copies: int, end: str) -> int:
        """The buffer of the host beside GPUs that run everything."""
        key = ("beside", copies, end)
        if key not in self._whole:
            self._whole[key] = self._fullest(host_moments_of(self._opened, copies), end)
        return self._whole[key]

    def _fullest(self, moments: Iterable[tuple[Moment, Sum]], end: str) -> int:
        return _rounded(largest(size.at(self.one) * self._share(moment.name, end) for moment, size in moments), end)


def _rounded(size: float, end: str) -> int:
    rounded: int = floored(size) if end == "low" else ceiled(size)
    return rounded

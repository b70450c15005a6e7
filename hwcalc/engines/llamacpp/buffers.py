"""The buffers of a pass on each device: compute buffers, and the logits that the host keeps for the caller.

A buffer is as large as its fullest moment (:mod:`~hwcalc.engines.llamacpp.graph`), each by what was measured of it. :class:`Buffers` says the
bytes for a context or for an array of contexts; of one context it also says how they come about.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.llamacpp.graph import (
    FLOAT,
    OF_THE_HOST,
    PIPELINE_COPIES,
    Moment,
    Part,
    gpu_moments,
    host_moments,
    output_bytes,
)
from hwcalc.engines.memory import BudgetPart, Section
from hwcalc.engines.steps import Step, step
from hwcalc.formulas.arithmetic import ceiled, either, floored, larger, largest, some
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.profiles.engines import llamacpp_profile

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.settings import Settings
    from hwcalc.engines.llamacpp.sums import Sum
    from hwcalc.parsers.gguf.hparams import Hparams
    from hwcalc.profiles.estimate import Estimate

NOTHING_COPIED: Final = -1
COMPUTE_BUFFER: Final = "compute buffer"
_ENDS: Final = ("low", "expected", "high")
_ALL_LAYERS: Final = Part(alone=True, output=False)
_EVERYTHING: Final = Part(alone=True)

Moments = tuple[tuple[Moment, "Sum"], ...]
"""Moments with the bytes of the whole buffer that each would need."""
Once = Callable[[Hashable, Callable[[], Moments]], Moments]


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
    """The part of a model that the host runs: everything (``alone``), or some layers (``partly``).

    If ``helped``, a GPU multiplies with its weights.
    """

    alone: bool
    partly: bool
    helped: bool
    copies: int


class ModelMoments:
    """The moments of a model in contexts of one sort, with the names of their sizes: nothing here depends on length and batch."""

    def __init__(self, read: Hparams, settings: Settings, *, sixteen_bit: bool, once: Once) -> None:
        """``once`` makes a value once and keeps it under a key."""
        self._once = once
        self._read = read
        self._settings = settings
        self._sixteen_bit = sixteen_bit
        self._sort = (
            settings.flash_attn,
            settings.type_k.name,
            settings.type_v.name,
            not settings.kv_unified or settings.n_seq_max == 1,
            settings.n_rs_seq,
        )

    def gpu(self, *, first: bool, copies: int) -> Moments:
        """The moments of a GPU that runs the output and copies from the host, of which another GPU lacks some."""
        return self._of(Part(first=first, copies=copies, from_host=0, sixteen_bit=self._sixteen_bit))

    def host(self, *, output: bool) -> Moments:
        """The moments of a host that runs all layers, with the output or without."""
        return self._of(_EVERYTHING if output else _ALL_LAYERS)

    def beside(self, copies: int) -> Moments:
        """The moments of the host where GPUs run all layers. The inputs of a pass are kept ``copies`` times."""
        key = ("llamacpp host moments", copies, self._sort)
        return self._once(key, lambda: host_moments(self._read, self._settings, copies))

    def _of(self, part: Part) -> Moments:
        key = ("llamacpp moments", part, self._sort)
        return self._once(key, lambda: gpu_moments(self._read, self._settings, part))


class Sized(NamedTuple):
    """A moment of a pass, and the bytes of the whole buffer that it needs."""

    moment: Moment
    size: Any
    error: Estimate


class Buffers:
    """The buffers of a context, or of an array of contexts, with these settings."""

    def __init__(self, moments: ModelMoments, read: Hparams, settings: Settings) -> None:
        self._moments = moments
        self._read = read
        self._settings = settings
        self._on_gpu: dict[tuple[bool, int], tuple[Sized, ...]] = {}
        self._always: dict[tuple[bool, int, str], Any] = {}
        self._on_host: dict[tuple[Any, ...], int] = {}

    def of(self, part: GpuPart | HostPart, end: str) -> int:
        """Bytes that a device needs for a pass, at an end of the estimates."""
        if isinstance(part, HostPart):
            return self._compute_on_host(part, end) + self._logits(end)
        size = 0
        for first in (True, False):
            for copies in (1, PIPELINE_COPIES):
                like = (part.first == first) & (part.copies == copies) & part.runs
                if some(like):
                    size = either(like, self._of_gpu(part, first=first, copies=copies, end=end), size)
        return size

    def parts(self, part: GpuPart | HostPart) -> tuple[BudgetPart, ...]:
        """The buffers of a device in one context, as terms of the memory equation."""
        if isinstance(part, HostPart):
            return self._host_parts(part)
        if not part.runs:
            return ()
        sizes = (self._with_copy(sized, part) for sized in self._sizes(part.first, part.copies) if _has(part, sized.moment))
        low, expected, high = (self.of(part, end) for end in _ENDS)
        return (_described(sizes, self._settings, (low, expected, high)),)

    def moments_of(self, part: GpuPart | HostPart) -> Moments:
        """The moments of a device in one context, which copies nothing from the host, with the names of their sizes."""
        if isinstance(part, HostPart):
            return self._moments.host(output=True) if part.alone else self._moments.beside(part.copies)
        return tuple(pair for pair in self._moments.gpu(first=part.first, copies=part.copies) if _has(part, pair[0]))

    def _of_gpu(self, part: GpuPart, *, first: bool, copies: int, end: str) -> int:
        """Bytes of the buffer of a GPU with such a part, whatever it copies from the host."""
        key, sizes = (first, copies, end), self._sizes(first, copies)
        if key not in self._always:
            always = (sized for sized in sizes if not sized.moment.per_output and sized.moment.name not in OF_THE_HOST)
            self._always[key] = largest(sized.size * getattr(sized.error, end) for sized in always)
        most = self._always[key]
        for sized in sizes:
            if sized.moment.per_output or sized.moment.name in OF_THE_HOST:
                has = _has(part, sized.moment)
                if some(has):
                    most = larger(most, has * (self._with_copy(sized, part).size * getattr(sized.error, end)))
        return _rounded(most, end)

    def _sizes(self, first: bool, copies: int) -> tuple[Sized, ...]:
        """All moments that a GPU may have, each with the bytes of its buffer."""
        key = (first, copies)
        if key not in self._on_gpu:
            self._on_gpu[key] = sizes_of(self._moments.gpu(first=first, copies=copies), self._settings)
        return self._on_gpu[key]

    def _with_copy(self, sized: Sized, part: GpuPart) -> Sized:
        """The moment with the bytes that are copied from the host at that time."""
        settings, name = self._settings, sized.moment.name
        if name not in OF_THE_HOST:
            return sized
        copied = part.from_host
        if name != OF_THE_HOST[0]:
            copied = settings.n_stream * larger(settings.cells_swa * part.sliding, settings.n_ctx_seq * part.full)
        whole = FLOAT * (copied // FLOAT)
        moment = sized.moment
        if isinstance(whole, int):
            moment = moment._replace(fixed_bytes=moment.fixed_bytes + whole)
        return sized._replace(moment=moment, size=sized.size + whole)

    def _compute_on_host(self, part: HostPart, end: str) -> int:
        """Bytes of the compute buffer of the host.

        If it has some layers, they lie between those of a host without layers and with all layers.
        """
        alone = self._of_host(self._moments.host(output=True), end, "everything") if some(part.alone) else 0
        if part.alone is True:
            return alone
        beside = self._beside(1, end)
        if some(part.copies > 1):
            beside = either(part.copies > 1, self._beside(PIPELINE_COPIES, end), beside)
        if some(part.partly) and (end == "high" or (end == "expected" and not part.helped)):
            layers = self._of_host(self._moments.host(output=False), end, "all layers")
            beside = either(part.partly, larger(beside, layers) if end == "high" else layers, beside)
        size: int = either(part.alone, alone, beside)
        return size

    def _beside(self, copies: int, end: str) -> int:
        return self._of_host(self._moments.beside(copies), end, copies)

    def _of_host(self, moments: Moments, end: str, key: object) -> int:
        if (key, end) not in self._on_host:
            self._on_host[key, end] = fullest(sizes_of(moments, self._settings), end)
        return self._on_host[key, end]

    def _host_parts(self, part: HostPart) -> tuple[BudgetPart, ...]:
        moments = self.moments_of(part)
        if part.partly and not part.alone and not part.helped:
            moments = self._moments.host(output=False)
        low, expected, high = (self._compute_on_host(part, end) for end in _ENDS)
        compute = _described_alone(moments, self._settings)
        return (replace(compute, low=low, expected=expected, high=high), output_buffer(self._read, self._settings))

    def _logits(self, end: str) -> int:
        """The logits that the host keeps: of one token of each sequence at the start, of as many as a caller asks for later."""
        one = self._settings
        return output_bytes(self._read, larger(one.n_seq_max, one.n_outputs) if end == "high" else one.n_seq_max)


def _has(part: GpuPart, moment: Moment) -> bool:
    """Whether a GPU has a moment: logits if it runs the output, copies if it multiplies with what lies on the host."""
    if moment.per_output:
        return part.output
    return part.from_host >= 0 if moment.name in OF_THE_HOST else True


def sizes_of(moments: Moments, settings: Settings) -> tuple[Sized, ...]:
    """The moments with the bytes of the buffer that each needs in a context."""
    errors = llamacpp_profile().compute
    return tuple(Sized(moment, size.at(settings), errors[moment.name]) for moment, size in moments)


def fullest(sizes: Iterable[Sized], end: str) -> int:
    """Bytes of a compute buffer: those of its fullest moment. Each end of the range has its own."""
    return _rounded(largest(sized.size * getattr(sized.error, end) for sized in sizes), end)


def _rounded(size: float, end: str) -> int:
    rounded: int = floored(size) if end == "low" else ceiled(size)
    return rounded


def compute_buffer(read: Hparams, settings: Settings, part: Part) -> BudgetPart:
    """The compute buffer of a device that runs a part of the model."""
    return _described_alone(gpu_moments(read, settings, part), settings)


def output_buffer(read: Hparams, settings: Settings) -> BudgetPart:
    """The logits that the host keeps: of one token of each sequence at the start, of as many as a caller asks for later."""
    low, high = output_bytes(read, settings.n_seq_max), output_bytes(read, max(settings.n_seq_max, settings.n_outputs))
    source = "src/llama-context.cpp output_reserve: n_vocab x n_seq_max numbers from the start, more when a batch asks for more"
    return BudgetPart(name="output buffer", section=Section.ACTIVATIONS, low=low, expected=low, high=high, source=source)


def _described_alone(moments: Moments, settings: Settings) -> BudgetPart:
    """The compute buffer with these moments as a term of the memory equation."""
    sizes = sizes_of(moments, settings)
    low, expected, high = (fullest(sizes, end) for end in _ENDS)
    return _described(sizes, settings, (low, expected, high))


def _described(sizes: Iterable[Sized], settings: Settings, ends: tuple[int, int, int]) -> BudgetPart:
    """A compute buffer of these bytes, with the moment that is the fullest by the expected value."""
    low, expected, high = ends
    moment, size, error = max(sizes, key=lambda sized: sized.size * sized.error.expected)
    return BudgetPart(
        name=COMPUTE_BUFFER,
        section=Section.ACTIVATIONS,
        low=low,
        expected=expected,
        high=high,
        source=f"fullest moment: {moment.name}; {error.source}",
        definition=Definition.ESTIMATE,
        grows=None,
        steps=tuple(_steps(moment, size, settings, ends, error)),
    )


def _steps(moment: Moment, size: int, one: Settings, ends: tuple[int, int, int], error: Estimate) -> Iterator[Step]:
    terms: dict[str, float] = {"kept_inputs": size - moment.bytes.at(one)}
    products = []
    if per_token := moment.per_token.at(one):
        terms |= {"n_ubatch": one.n_ubatch, "numbers_per_token": per_token}
        products.append("n_ubatch x numbers_per_token")
    if moment.per_output:
        terms |= {"n_outputs": one.outputs, "numbers_per_output": moment.per_output}
        products.append("n_outputs x numbers_per_output")
    if fixed := moment.fixed_bytes.at(one):
        terms["other_numbers"] = fixed // FLOAT
        products.append("other_numbers")
    formula = f"kept_inputs + number_bytes x ({' + '.join(products)})"
    terms["number_bytes"] = FLOAT
    if error.expected != 1:
        formula, terms = f"({formula}) x measured_share", terms | {"measured_share": error.expected}
    yield step("compute_buffer", formula, ends, unit="bytes", **terms)

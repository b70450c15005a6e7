"""The memory of a context as a function of length and number of sequences: the form of all requests with one setup.

:class:`PlacedForm` asks the :class:`~hwcalc.engines.llamacpp.layout.Layout` of the contexts. Where options keep all layers on the GPUs, the
same cells and buffers are a closed form that a page can draw, with the names of their sizes kept (:mod:`~hwcalc.engines.llamacpp.graph`). They
are asked of a context so long that a batch is full and a window slides; what is shorter has fewer steps of the same stairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from hwcalc.engines.forms import (
    ENDS,
    HOST,
    Amount,
    Constant,
    Curve,
    Factor,
    Fullest,
    HostRoom,
    Memory,
    MemoryForm,
    Moment,
    PartForm,
    PerGpu,
    Product,
    Term,
)
from hwcalc.engines.llamacpp.builds import NEWEST_RULES
from hwcalc.engines.llamacpp.graph import COMPUTE_BUFFER, FLOAT, GpuPart
from hwcalc.engines.llamacpp.layers import ON_HOST
from hwcalc.engines.llamacpp.layout import budget_beside
from hwcalc.engines.llamacpp.settings import CELLS, MAX_SEQUENCES
from hwcalc.engines.memory import Section
from hwcalc.formulas import LayerKind, LayerNumbers
from hwcalc.formulas.stairs import Stair
from hwcalc.profiles.engines import llamacpp_profile

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.engine import LlamacppDeployment
    from hwcalc.engines.llamacpp.graph import Moments, Sum
    from hwcalc.engines.llamacpp.layout import Layout
    from hwcalc.engines.memory import Budget

_FAR: Final = 2**31
"""Tokens, more than any batch or window has."""
_UNDRAWN: Final = frozenset({"n_rs_seq", "ctx_type", "load_mtp", "mmproj", "ollama"})
"""Options with which a context follows from length and number of sequences, but not as a page can draw it."""
_FACTORS: Final[Mapping[str, Factor]] = {
    "n_ubatch": "passed",
    "outputs": "sequences",
    "n_seq_max": "sequences",
    "n_stream": "sequences",
    "tokens_each": "each",
    "alone": "alone",
}
"""A size of a context -> a factor of the form. With the defaults of llama-server, a sequence has one output."""


class PlacedCurve(Curve):
    """The cache of many contexts, each with the layers on the devices that the deployment chooses for it."""

    deployment: LlamacppDeployment

    def bytes_on(self, gpu: int, tokens: int, sequences: int) -> int:
        """Bytes of the cache on the fullest GPU, as :meth:`needed_bytes`: the context decides which GPU that is."""
        return self.needed_bytes(tokens, sequences)

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        return self.deployment.layout_at(tokens, sequences).needed_bytes

    def total_bytes(self, tokens: int, sequences: int) -> int:
        return self.deployment.layout_at(tokens, sequences).total_bytes


class PlacedForm(MemoryForm):
    """The memory equation of many contexts, each with the layers on the devices that the deployment chooses for it."""

    deployment: LlamacppDeployment

    def at(self, tokens: int, sequences: int) -> Memory:
        return _PlacedMemory(self, tokens, sequences)


class _PlacedMemory(Memory):
    """The memory of some contexts by :class:`PlacedForm`."""

    form: PlacedForm

    @cached_property
    def _layout(self) -> Layout:
        return self.form.deployment.layout_at(self.tokens, self.sequences)

    @cached_property
    def needed_bytes(self) -> int:
        return self._layout.needed_bytes

    @cached_property
    def total_bytes(self) -> int:
        return self._layout.total_bytes

    def parts_bytes(self, end: str, section: str | None = None) -> int:
        layout = self._layout
        sections = [included for included in Section if section in (None, included)]
        return layout.on_fullest(lambda device: sum(layout.part_bytes(device, end, included) for included in sections))

    def holds(self, end: str = "expected") -> bool:
        if self.allowed is False:
            return False
        layout = self._layout
        return self.allowed & layout.hold(layout.main, self.form.usable[ENDS.index(end)], end) & layout.host_holds(end)

    @cached_property
    def devices_bytes(self) -> int:
        return self._layout.devices_bytes


def form_of(deployment: LlamacppDeployment) -> MemoryForm | None:
    """The form of a deployment on a GPU, whose context follows from the load; ``None`` if the memory is not known."""
    if not deployment.knows_devices:
        return None
    budget = budget_beside(deployment.setup.hardware, deployment.options, ()).value
    if budget is None:
        return None
    drawn = _drawn_form(deployment, budget)
    if drawn is not None:
        return drawn
    return PlacedForm(
        curve=placed_curve(deployment),
        parts=(),
        usable=budget.usable,
        total_bytes=budget.total_bytes,
        most_sequences=deployment.most_slots,
        limited_by="n_seq_max",
        deployment=deployment,
    )


def placed_curve(deployment: LlamacppDeployment) -> PlacedCurve:
    """The curve of the cache of a deployment whose context follows from the load."""
    return PlacedCurve(gpus=(), total=(), most_sequences=deployment.most_slots, deployment=deployment)


def _drawn_form(deployment: LlamacppDeployment, budget: Budget) -> MemoryForm | None:
    """The form of a deployment with all layers on the GPUs at every length; ``None`` for another one."""
    options, gpu = deployment.options, deployment.gpu
    if deployment.rules != NEWEST_RULES:
        return None
    if gpu is None or gpu.is_host or not deployment.has_drawn_form or deployment.setup.options.keys() & _UNDRAWN:
        return None
    if options.n_gpu_layers is None or options.kv_on_host or deployment.setup.lora is not None:
        return None
    layout = deployment.layout_at(_FAR, 1)
    if layout.settings.n_ubatch < MAX_SEQUENCES or not layout.assignment.everything or layout.layers.weighed.largest_moved:
        return None
    weights = [_constant("weights", Section.WEIGHTS, layout.weights_on(gpu)) for gpu in range(len(layout.gpus))]
    buffers = [
        _buffer(COMPUTE_BUFFER, Section.ACTIVATIONS, layout.buffers.moments_of(load.part), layout)
        if load.part.runs
        else _constant(COMPUTE_BUFFER, Section.ACTIVATIONS, 0)
        for load in layout.gpus
        if isinstance(load.part, GpuPart)
    ]
    # The logits of a token of each sequence.
    logits = Moment(share=1.0, products=(Product(FLOAT * deployment.hparams.n_vocab, ("sequences",)),))
    output = Fullest(moments=(logits,), chunk=None, up=True)
    low, expected, high = (deployment.host_rooms[end] for end in ENDS)
    return MemoryForm(
        curve=Curve(
            gpus=tuple(_terms(layout, gpu) for gpu in range(deployment.gpus)),
            total=_terms(layout, None),
            most_sequences=MAX_SEQUENCES,
        ),
        parts=(
            _together(weights),
            _together(buffers),
            *map(PartForm.constant, deployment.process_parts(0)),
            _constant("host weights", HOST, layout.weights_on(ON_HOST)),
            _buffer("host compute buffer", HOST, layout.buffers.moments_of(layout.host.part), layout),
            PartForm(name="output buffer", section=HOST, low=output, expected=output, high=output),
        ),
        usable=budget.usable,
        total_bytes=budget.total_bytes,
        most_sequences=MAX_SEQUENCES,
        limited_by="n_seq_max",
        host=HostRoom(room=(low, expected, high), shared=deployment.shares_memory),
    )


def _cells(layout: Layout, size: str) -> tuple[Stair, str] | None:
    """The cells of a stream as a function of length, and in words, by the name of the size; ``None`` for a size that does not count cells."""
    settings, cells = layout.settings, Stair(times=CELLS, per=CELLS, add=CELLS - 1)
    if size == "n_ctx_seq" or (size == "cells_swa" and settings.swa_full):
        return cells, f"roundup(n, {CELLS})"
    if size == "cells_swa":
        # A context that is shorter than a batch has no fewer than its own length: n_swa + n_ubatch is never less than that.
        words = f"roundup(min(n, window {layout.deployment.hparams.n_swa:,} + n_ubatch {settings.n_ubatch:,}), {CELLS})"
        return cells._replace(most=settings.cells_swa // CELLS), words
    if size.startswith("groups_of_"):
        per = CELLS * int(size.removeprefix("groups_of_"))
        return cells._replace(per=per, add=per - 1), f"roundup(ceil(n / {per // CELLS}), {CELLS})"
    return None


def _terms(layout: Layout, device: int | None) -> tuple[Term, ...]:
    """The terms of the cache on a GPU, or on all: a term for each kind of layer and each number of cells. States are counted by sequence."""
    layers: dict[LayerKind, list[int]] = {}
    blocks = layout.assignment.blocks
    for number, (place, kinds) in enumerate(zip(blocks, layout.deployment.plain_stack.layers, strict=False)):
        for kind in kinds if device in (None, place) else ():
            layers.setdefault(kind, []).append(number)
    rows = [
        (kind.name, numbers, size, each) for kind, numbers in layers.items() for size, each in layout.layers.units[kind].items()
    ]
    if blocks and device in (None, blocks[-1]):
        rows += [("model", [], unit.size, each) for unit, each in layout.layers.extras.items()]
    terms = []
    for name, numbers, size, each in rows:
        stair, rule = _cells(layout, size) or (Stair(most=1), "1")
        term = Term(
            kind=name, layers=LayerNumbers(numbers), count=len(numbers) or 1, unit_bytes=each, stairs=((stair,),), rule=rule
        )
        terms.append(term)
    return tuple(terms)


def _together(parts: Sequence[PartForm]) -> PartForm:
    """The parts of all GPUs as a single part: with equal amounts, or with the amounts of each GPU."""
    first = parts[0]
    if all(part == first for part in parts):
        return first
    low, expected, high = (PerGpu(amounts=tuple(getattr(part, end) for part in parts)) for end in ENDS)
    return PartForm(name=first.name, section=first.section, low=low, expected=expected, high=high)


def _constant(name: str, section: str, size: int) -> PartForm:
    amount = Constant.of(size)
    return PartForm(name=name, section=str(section), low=amount, expected=amount, high=amount)


def _buffer(name: str, section: str, moments: Moments, layout: Layout) -> PartForm:
    """A compute buffer as a part of the form. Each end of its range is the largest moment, scaled by the measured error at that end."""
    errors = llamacpp_profile().compute
    moments_with_errors = [(errors[moment.name], _products(size, layout)) for moment, size in moments]

    def amount(end: str) -> Amount:
        ends = tuple(Moment(share=getattr(error, end), products=products) for error, products in moments_with_errors)
        # A batch of a model that is not causal is as long as its options say, however short the context is.
        return Fullest(moments=ends, chunk=layout.settings.n_ubatch, up=end != "low")

    return PartForm(name=name, section=str(section), low=amount("low"), expected=amount("expected"), high=amount("high"))


def _products(size: Sum, layout: Layout) -> tuple[Product, ...]:
    """The products of a buffer with the factors of the form in place of the sizes of a context."""
    products: dict[tuple[tuple[Factor, ...], tuple[Stair, ...]], int] = {}
    for names, number in size.products.items():
        factors: list[Factor] = []
        stairs: tuple[Stair, ...] = ()
        for name in names:
            cells = _cells(layout, name)
            if cells is not None:
                assert not stairs, "a product of cells and cells"
                stairs = (cells[0],)
            elif name == "n_ubatch" and not layout.deployment.hparams.causal:
                number *= layout.settings.n_ubatch  # noqa: PLW2901
            else:
                factors.append(_FACTORS[name])
        key = tuple(sorted(factors)), stairs
        products[key] = products.get(key, 0) + number
    return tuple(Product(number, *key) for key, number in products.items() if number)

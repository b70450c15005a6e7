"""The memory of a context as a function of length and number of sequences: the form of all requests that lie alike.

Cells and buffers are those of the engine's own rules, with the names of their sizes kept (:mod:`~hwcalc.engines.llamacpp.sums`). They are
asked of a context so long that a batch is full and a window slides; what is shorter has fewer steps of the same stairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.budget import Section
from hwcalc.engines.forms import ENDS, HOST, Amount, Constant, Curve, HostRoom, MemoryForm, PartForm, PerGpu, Term
from hwcalc.engines.llamacpp.assignment import ON_HOST, PINNED
from hwcalc.engines.llamacpp.compute import copies_of, host_moments_of, moments_of, part_of
from hwcalc.engines.llamacpp.equation import budget_beside, host_room, process
from hwcalc.engines.llamacpp.graph import output_bytes
from hwcalc.engines.llamacpp.opened import LlamacppOpened, of_llamacpp
from hwcalc.engines.llamacpp.placed import PlacedCurve, PlacedForm, Places
from hwcalc.engines.llamacpp.placement import assignment_of, device_weights, whole_assignment
from hwcalc.engines.llamacpp.rules import Cells
from hwcalc.engines.llamacpp.settings import CELLS, MAX_SEQUENCES
from hwcalc.engines.llamacpp.weighing import weighed_of
from hwcalc.engines.moments import Factor, Fullest, Moment, Product
from hwcalc.engines.request import is_plain
from hwcalc.formulas import LayerKind, LayerNumbers
from hwcalc.formulas.stairs import Stair
from hwcalc.profiles.llamacpp import llamacpp_profile

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.assignment import Assignment
    from hwcalc.engines.llamacpp.graph import Moment as GraphMoment
    from hwcalc.engines.llamacpp.graph import Part
    from hwcalc.engines.llamacpp.sums import Sum
    from hwcalc.engines.stored import StoredTensor

__all__ = ["curve_of", "form_of"]

_FAR: Final = 2**31
"""Tokens, more than any batch or window has."""
_FIXED: Final = frozenset({"n_ctx", "n_seq_max", "kv_unified"})
"""Options with which a context does not follow from length and number of sequences."""
_UNDRAWN: Final = frozenset({"n_rs_seq", "ctx_type", "ollama"})
"""Options with which it does, but not as a page can draw it."""
_ONE: Final = (Stair(most=1),)
_FACTORS: Final[Mapping[str, Factor]] = {
    "n_ubatch": "passed",
    "outputs": "sequences",
    "n_seq_max": "sequences",
    "n_stream": "sequences",
    "tokens_each": "each",
    "alone": "alone",
}
"""A size of a context -> a factor of the form. With the defaults of llama-server, a sequence has one output."""


def form_of(opened: LlamacppOpened) -> MemoryForm | None:
    """The form of the family; ``None`` if the sizes of a context are fixed by options, or the memory is not known."""
    request = opened.request
    if not _follows(opened):
        return None
    if request.hardware.kv_memory is not None:
        from hwcalc.engines.general_form import form_with

        return form_with(opened)
    if request.hardware.gpu is None or weighed_of(opened) is None:
        return None
    # What is the same at all lengths is in the numbers that a page can draw.
    return _drawn_form(opened) or _placed_form(opened)


def curve_of(opened: LlamacppOpened) -> Curve | None:
    """The cache of the family; ``None`` if the sizes of a context are fixed by options."""
    if not _follows(opened):
        return None
    form = form_of(opened) if opened.request.hardware.kv_memory is None else None
    if form is not None:
        return form.curve
    alone = not opened.gpus or (opened.gpus == 1 and opened.request.hardware.gpu is None)
    if opened.request.hardware.gpu is not None and weighed_of(opened) is not None:
        return _placed_curve(opened, Places(opened, assignment_of(opened)))
    # How much else lies on each GPU is not known.
    places = Places(opened, whole_assignment(opened))
    return replace(_placed_curve(opened, places), answers=None if alone else attrgetter("widest"))


def _placed_curve(opened: LlamacppOpened, places: Places) -> PlacedCurve:
    """The cache on the GPU that has least left."""
    return PlacedCurve(gpus=(), total=(), most_sequences=opened.most_slots, places=places, answers=attrgetter("cache_on_fullest"))


def _follows(opened: LlamacppOpened) -> bool:
    """Whether a context follows from length and number of sequences."""
    request = opened.request
    return is_plain(request) and not request.options.keys() & _FIXED and opened.settings.server


def _placed_form(opened: LlamacppOpened) -> MemoryForm | None:
    """The form of requests whose layers lie elsewhere at other lengths, or on the host."""
    options, gpu = opened.place_options, opened.request.hardware.gpu
    budget = budget_beside(opened, options, ()).value
    if gpu is None or budget is None:
        return None
    moves = options.n_gpu_layers is None and opened.gpus > 0 and PINNED not in opened.family
    places = Places(opened, None if moves else assignment_of(opened))
    return PlacedForm(
        curve=_placed_curve(opened, places),
        parts=(),
        usable=budget.usable,
        total_bytes=budget.total_bytes,
        most_sequences=opened.most_slots,
        limited_by="n_seq_max",
        places=places,
        without_gpu=not opened.gpus,
    )


def _drawn_form(opened: LlamacppOpened) -> MemoryForm | None:
    """The form of requests with all layers on the GPUs at every length, because the options say so; ``None`` for others."""
    request, gpu = opened.request, opened.request.hardware.gpu
    if gpu is None or gpu.is_host or opened.engine.name != "llamacpp" or request.options.keys() & _UNDRAWN:
        return None
    far = of_llamacpp(opened.with_request(replace(request, seq=_FAR, batch=1)))
    one, options, weighed = far.settings, far.place_options, weighed_of(far)
    if one.n_ubatch < MAX_SEQUENCES or options.n_gpu_layers is None or options.kv_on_host or weighed is None:
        return None
    assignment = assignment_of(far)
    budget = budget_beside(far, options, ()).value
    if not assignment.everything or assignment.largest_moved or budget is None:
        return None
    weights = {device: device_weights(far, device, assignment, weighed) for device in (*range(far.gpus), ON_HOST)}
    low, expected, high = (host_room(far.request, options, lambda _: 0, end) for end in ENDS)
    return MemoryForm(
        # The cache is the same on GPUs of all makers, and beside weights of all formats.
        curve=far.model.once(("llamacpp curve", one, assignment, far.gpus), lambda: _curve(far, assignment)),
        parts=(*_gpu_parts(far, assignment, weights), *_host_parts(far, assignment, weights[ON_HOST])),
        usable=budget.usable,
        total_bytes=budget.total_bytes,
        most_sequences=MAX_SEQUENCES,
        limited_by="n_seq_max",
        host=HostRoom(room=(low, expected, high), shared=gpu.shares_host_memory),
    )


def _curve(far: LlamacppOpened, assignment: Assignment) -> Curve:
    gpus = tuple(_terms(far, assignment, device) for device in range(far.gpus))
    return Curve(gpus=gpus, total=_terms(far, assignment, None), most_sequences=MAX_SEQUENCES)


def _stairs(far: LlamacppOpened, size: str) -> tuple[Stair, ...] | None:
    """The cells of a stream of a context of any length, by their name; ``None`` for sizes that are none."""
    one = far.settings
    cells = Stair(times=CELLS, per=CELLS, add=CELLS - 1)
    if size == "n_ctx_seq" or (size == "cells_swa" and one.swa_full):
        return (cells,)
    if size == "cells_swa":
        # A context that is shorter than a batch has no fewer than its own length: n_swa + n_ubatch is never less than that.
        return (cells._replace(most=one.cells_swa // CELLS),)
    if size.startswith("groups_of_"):
        per = CELLS * int(size.removeprefix("groups_of_"))
        return (cells._replace(per=per, add=per - 1),)
    return None


def _terms(far: LlamacppOpened, assignment: Assignment, device: int | None) -> tuple[Term, ...]:
    """The cache of the layers on a GPU, or of all: a term for each kind of layer and each number of cells."""
    layers: dict[LayerKind, list[int]] = {}
    for number, (place, kinds) in enumerate(zip(assignment.blocks, far.stack.layers, strict=False)):
        for kind in kinds if device in (None, place) else ():
            layers.setdefault(kind, []).append(number)
    terms = [
        term
        for kind, numbers in layers.items()
        for term in _terms_of(far, kind.name, far.kind_tensors[kind], LayerNumbers(numbers), len(numbers))
    ]
    if assignment.blocks and device in (None, assignment.blocks[-1]):
        terms += _terms_of(far, "model", far.extras, LayerNumbers(), 1)
    return tuple(terms)


def _terms_of(
    far: LlamacppOpened, kind: str, tensors: Iterable[StoredTensor], layers: LayerNumbers, count: int
) -> Iterable[Term]:
    """A term for the tensors that have the same cells, and one for the states."""
    sizes: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        sizes.setdefault(tensor.span.size if isinstance(tensor.span, Cells) else "", []).append(tensor)
    for size, alike in sizes.items():
        stairs = _stairs(far, size)
        yield Term(
            kind=kind,
            layers=layers,
            count=count,
            unit_bytes=sum(tensor.bytes // (tensor.positions if stairs else 1) for tensor in alike),
            stairs=(stairs or _ONE,),
            rule=_words(far, size),
        )


def _words(far: LlamacppOpened, size: str) -> str:
    one = far.settings
    if size.startswith("groups_of_"):
        return f"roundup(ceil(n / {size.removeprefix('groups_of_')}), {CELLS})"
    if size == "cells_swa" and not one.swa_full:
        return f"roundup(min(n, window {far.hparams.n_swa:,} + n_ubatch {one.n_ubatch:,}), {CELLS})"
    return f"roundup(n, {CELLS})" if size else "1"


def _gpu_parts(far: LlamacppOpened, assignment: Assignment, weights: Mapping[int, int]) -> tuple[PartForm, ...]:
    """Weights, compute buffer and process of each GPU."""
    gpu = far.request.hardware.gpu
    assert gpu is not None
    own = process(gpu)
    parts = [part_of(far, assignment, device) for device in range(far.gpus)]
    buffers = [_NO_BUFFER if part is None else _gpu_buffer(far, part) for part in parts]
    overhead = PartForm(
        name=own.name,
        section=own.section.value,
        low=Constant.of(own.low),
        expected=Constant.of(own.expected),
        high=Constant.of(own.high),
    )
    sizes = [_constant("weights", Section.WEIGHTS, weights[device]) for device in range(far.gpus)]
    return (_together(sizes), _together(buffers), overhead)


def _gpu_buffer(far: LlamacppOpened, part: Part) -> PartForm:
    made: PartForm = far.model.once(
        ("llamacpp buffer", far.settings, part),
        lambda: _buffer(_COMPUTE_BUFFER, Section.ACTIVATIONS, moments_of(far, part), far),
    )
    return made


def _together(parts: Sequence[PartForm]) -> PartForm:
    """One part of all GPUs: the same amounts for all, or those of each."""
    first = parts[0]
    if all(part == first for part in parts):
        return first
    low, expected, high = (PerGpu(amounts=tuple(getattr(part, end) for part in parts)) for end in ENDS)
    return PartForm(name=first.name, section=first.section, low=low, expected=expected, high=high)


def _host_parts(far: LlamacppOpened, assignment: Assignment, weights_bytes: int) -> tuple[PartForm, ...]:
    """The table of the tokens, the buffer of a batch, and the logits of a token of each sequence."""
    copies = copies_of(far, assignment)
    buffer: PartForm = far.model.once(
        ("llamacpp host buffer", far.settings, copies),
        lambda: _buffer("host compute buffer", HOST, host_moments_of(far, copies), far),
    )
    logits = Moment(share=1.0, products=(Product(output_bytes(far.hparams, 1), ("sequences",)),))
    output = Fullest(moments=(logits,), chunk=None, up=True)
    return (
        _constant("host weights", HOST, weights_bytes),
        buffer,
        PartForm(name="output buffer", section=HOST, low=output, expected=output, high=output),
    )


def _constant(name: str, section: str, size: int) -> PartForm:
    amount = Constant.of(size)
    return PartForm(name=name, section=str(section), low=amount, expected=amount, high=amount)


def _buffer(name: str, section: str, moments: Iterable[tuple[GraphMoment, Sum]], far: LlamacppOpened) -> PartForm:
    """A compute buffer: at each end of the range the fullest moment, by what was measured of it."""
    errors = llamacpp_profile().compute
    # A batch of a model that is not causal is as long as its options say, however short the context is.
    chunk = far.settings.n_ubatch
    made = [(errors[moment.name], _products(size, far)) for moment, size in moments]

    def amount(end: str) -> Amount:
        ends = tuple(Moment(share=getattr(error, end), products=products) for error, products in made)
        return Fullest(moments=ends, chunk=chunk, up=end != "low")

    return PartForm(name=name, section=str(section), low=amount("low"), expected=amount("expected"), high=amount("high"))


def _products(size: Sum, far: LlamacppOpened) -> tuple[Product, ...]:
    """The products of a buffer with the factors of the form in place of the sizes of a context."""
    products: dict[tuple[tuple[Factor, ...], tuple[Stair, ...]], int] = {}
    for names, number in size.products.items():
        factors: list[Factor] = []
        stairs: tuple[Stair, ...] = ()
        for name in names:
            found = _stairs(far, name)
            if found is not None:
                assert not stairs, "a product of cells and cells"
                stairs = found
            elif name == "n_ubatch" and not far.hparams.causal:
                number *= far.settings.n_ubatch  # noqa: PLW2901
            else:
                factors.append(_FACTORS[name])
        key = tuple(sorted(factors)), stairs
        products[key] = products.get(key, 0) + number
    return tuple(Product(number, *key) for key, number in products.items() if number)


_COMPUTE_BUFFER: Final = "compute buffer"
_NO_BUFFER: Final = _constant(_COMPUTE_BUFFER, Section.ACTIVATIONS, 0)
"""Of a GPU that runs no layer."""

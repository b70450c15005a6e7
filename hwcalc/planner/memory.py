"""What the weights take: the checkpoint's own figure where it is known, else every parameter in the format that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.base import Opened
from hwcalc.engines.budget import Section
from hwcalc.engines.noted import Noted
from hwcalc.formulas.formats import WeightFormat
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.weights import Block, Part, Weights
from hwcalc.model import Definition, ModelSpec, Note, WeightFacts
from hwcalc.planner.result import (
    BudgetInfo,
    BudgetPartInfo,
    CacheShare,
    MemoryInfo,
    OverheadInfo,
    PerGpu,
    Share,
    WeightPart,
    WeightsInfo,
)
from hwcalc.quantization.planned import PLAIN_FORMATS, format_name, named_in_the_id, planned_scheme

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme

__all__ = ["plan_memory"]


_UNKNOWN_SCHEME: Final = Note(
    code="weights-unknown",
    message="The config's quantization is of a form that kvplan does not know: weights are not counted. Give a format with --weights.",
)


def plan_memory(
    opened: Opened, *, cache_bytes: int, rank_bytes: int, definition: Definition, budget: BudgetInfo | None
) -> MemoryInfo:
    """The sum: weights and cache, and with hardware activations and overhead. What is not known is ``None`` and says why in a note.

    Raises :class:`~hwcalc.errors.UsageError` if ``--weights`` names no weight format.
    """
    request = opened.request
    model, wanted, plain = opened.model, format_name(request.weights), opened.engine.plain_dtype(opened)
    weights = opened.told(model.once(("weights", wanted, plain), lambda: _weights(model, wanted, plain)))
    share, overhead = (None, None) if budget is None else (_activations(budget, request.gpus), _overhead(budget, request.gpus))
    total = None if weights.bytes is None else weights.bytes + cache_bytes
    if total is not None and share is not None and overhead is not None:
        total += share.bytes + overhead.bytes
    return MemoryInfo(
        weights=weights,
        cache=CacheShare(bytes=cache_bytes, definition=definition),
        activations=share,
        overhead=overhead,
        total_bytes=total,
        per_gpu=_per_gpu(opened, weights, rank_bytes, budget),
    )


def _of(budget: BudgetInfo, section: Section) -> tuple[BudgetPartInfo, ...]:
    return tuple(part for part in budget.parts if part.section == section)


def _activations(budget: BudgetInfo, gpus: int) -> Share:
    parts = _of(budget, Section.ACTIVATIONS)
    low, expected, high = (gpus * sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return Share(bytes=expected, low=low, high=high, definition=_definition(parts))


def _overhead(budget: BudgetInfo, gpus: int) -> OverheadInfo:
    parts = _of(budget, Section.OVERHEAD)
    low, expected, high = (gpus * sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return OverheadInfo(bytes=expected, low=low, high=high, definition=_definition(parts), parts=parts)


def _definition(parts: tuple[BudgetPartInfo, ...]) -> Definition:
    measured = bool(parts) and all(part.definition is Definition.MEASURED for part in parts)
    return Definition.MEASURED if measured else Definition.ESTIMATE


def _per_gpu(opened: Opened, weights: WeightsInfo, rank_bytes: int, budget: BudgetInfo | None) -> PerGpu:
    """The fullest GPU: by the budget where there is one; else weights and cache alone, as the engine cuts them."""
    if budget is None:
        parallel, size = opened.request.parallel, weights.bytes
        if size is not None and parallel.gpus * parallel.ep > 1:
            parts = opened.weights.value
            size = None if parts is None else sum(part.expected for part in parts)
        total = None if size is None else size + rank_bytes
        return PerGpu(weights=size, cache=rank_bytes, activations=None, overhead=None, total=total)
    held = {section: sum(part.expected for part in _of(budget, section)) for section in Section}
    return PerGpu(
        weights=held[Section.WEIGHTS],
        cache=rank_bytes,
        activations=held[Section.ACTIVATIONS],
        overhead=held[Section.OVERHEAD],
        total=sum(held.values()) + rank_bytes,
    )


def _weights(model: ModelSpec, wanted: str | None, own: str) -> Noted[WeightsInfo]:
    if wanted is None and model.weights is not None:
        return Noted(_as_published(model.weights))
    if model.counted is None:
        return _unknown(Note(code="weights-unknown", message=f"Weights of a {model.model_type} model are not counted yet."))
    scheme, known = planned_scheme(model, wanted)
    if not known:
        named = named_in_the_id(model) if model.quantization is None else None
        return _unknown(named or _UNKNOWN_SCHEME)
    plain = PLAIN_FORMATS.get(wanted or "") or PLAIN_FORMATS[own]
    if scheme is None:
        return Noted(_estimate(model.counted, None, plain))
    weights, spread = _numbered(model.counted)
    notes = []
    if spread and scheme.names_layers:
        message = (
            "The config's quantization names layers by number, and which of the model's unlike layers those are is not "
            f"known for {', '.join(spread)}: they are taken to be spread evenly."
        )
        notes.append(Note(code="weights-approximate", message=message))
    strangers = scheme.strangers(weights.blocks)
    if strangers:
        message = (
            f"The config's quantization leaves {', '.join(name[:60] for name in strangers[:3])}"
            f"{' and others' if len(strangers) > 3 else ''} alone: no module is known by that name, so none is left out."
        )
        notes.append(Note(code="weights-approximate", message=message))
    return Noted(_estimate(weights, scheme if scheme.rules else None, plain), tuple(notes))


def _as_published(weights: WeightFacts) -> WeightsInfo:
    size = weights.total_bytes
    return WeightsInfo(
        bytes=size,
        low=size,
        high=size,
        definition=weights.definition,
        source=weights.source,
        format="as published",
        parts=(),
    )


def _numbered(weights: Weights) -> tuple[Weights, tuple[str, ...]]:
    """The weights with a number for each layer of the language model, and the kinds whose numbers are not known."""
    depth = max((block.count for block in weights.blocks if block.part is Part.LANGUAGE), default=0)
    spread: dict[str, None] = {}
    blocks = []
    for block in weights.blocks:
        if block.part is Part.LANGUAGE and block.layers is None and 1 < block.count < depth:
            if any(len(weight.shape) > 1 for weight in block.weights):
                spread[block.kind] = None
            blocks.append(replace(block, layers=tuple(i * depth // block.count for i in range(block.count))))
        else:
            blocks.append(block)
    return Weights(blocks=tuple(blocks)), tuple(spread)


def _unknown(why: Note) -> Noted[WeightsInfo]:
    unknown = WeightsInfo(bytes=None, low=None, high=None, definition=Definition.UNKNOWN, source="", format="", parts=())
    return Noted(unknown, (why,))


def _estimate(weights: Weights, scheme: Scheme | None, plain: WeightFormat) -> WeightsInfo:
    """Every parameter in its format. High is with the multi-token-prediction layers that a checkpoint may bring along."""
    parts = tuple(_part(block, scheme, plain) for block in weights.blocks)
    size = sum(part.bytes for part in parts if part.part != Part.MTP.value)
    source = f"parameters from the config, {plain.name if scheme is None else scheme.name}"
    return WeightsInfo(
        bytes=size,
        low=size,
        high=sum(part.bytes for part in parts),
        definition=Definition.ESTIMATE,
        source=source,
        format=plain.name if scheme is None else scheme.name,
        parts=parts,
    )


def _part(block: Block, scheme: Scheme | None, plain: WeightFormat) -> WeightPart:
    if scheme is None:
        size = block.count * sum(plain.bytes(weight) for weight in block.weights)
    else:
        size = sum(scheme.bytes(block, weight, plain) for weight in block.weights)
    return WeightPart(
        kind=block.kind,
        part=block.part.value,
        count=block.count,
        parameters=block.elements,
        bytes=size,
    )

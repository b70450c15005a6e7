"""The weights of a plan: block by block, and how each is stored.

The weights of a plan: the published size of the checkpoint if it is known, or else every parameter in its format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.devices import TensorGroup
from hwcalc.formulas.formats import FLOATS, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weights
from hwcalc.model import NO_WEIGHTS, Definition, ModelSpec, Note, Noted, WeightFacts
from hwcalc.quantization.planned import format_name, named_in_the_id, planned_scheme

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme


class StoredWeights(Record):
    """The parameters of a block in one format. ``scale_bytes`` is what the format keeps beside their ``bits``; it is in ``bytes``."""

    format: str
    bits: int
    parameters: int
    scale_bytes: int
    bytes: int


class WeightPart(Record):
    """One kind of block: how many layers have it, its parameters, and what they take. ``mtp`` is not in the total.

    ``formats`` says how they are stored; their bytes add up to ``bytes``.
    """

    kind: str
    part: str
    count: int
    parameters: int
    bytes: int
    formats: tuple[StoredWeights, ...]


class WeightsInfo(Record):
    """What the weights take. ``exact`` is the checkpoint's own figure, ``estimate`` parameters x format.

    Null is unknown. ``high`` counts the multi-token-prediction layers of the checkpoint as well.
    """

    bytes: int | None
    low: int | None
    high: int | None
    definition: Definition
    source: str
    format: str
    parts: tuple[WeightPart, ...]


_UNKNOWN_SCHEME: Final = Note(
    code="weights-unknown",
    message="The config's quantization is of a form that kvplan does not know: weights are not counted. Give a format with --weights.",
)


def weights_of(opened: Occupancy) -> Noted[WeightsInfo]:
    """Parameters and bytes of the weights: as in the files of the engine, else as published or in the requested format."""
    model, weight_format = opened.model, format_name(opened.setup.weights)
    model_weights = opened.deployment.model_weights()
    if model_weights is not None:
        told = WeightsInfo(
            bytes=model_weights.bytes,
            low=min((model_weights.bytes, *model_weights.other_bytes)),
            high=max((model_weights.bytes, *model_weights.other_bytes)),
            definition=model_weights.definition,
            source=model_weights.source,
            format=weight_format or "as published",
            parts=tuple(map(_grouped, model_weights.groups)),
        )
        return Noted(told, _made_again(model, weight_format))
    weight_dtype = opened.deployment.weight_dtype()
    key = ("weights", weight_format, weight_dtype)
    weights = model.once(key, lambda: _weights(model, weight_format, weight_dtype))
    return Noted(weights.value, (*weights.notes, *_made_again(model, weight_format)))


def _grouped(group: TensorGroup) -> WeightPart:
    formats = tuple(
        StoredWeights(format=name, bits=bits, parameters=parameters, scale_bytes=size - -(-parameters * bits // 8), bytes=size)
        for name, bits, parameters, size in group.types
    )
    return WeightPart(
        kind=group.kind,
        part=(Part.MTP if group.mtp else Part.LANGUAGE).value,
        count=group.layers,
        parameters=sum(stored.parameters for stored in formats),
        bytes=sum(stored.bytes for stored in formats),
        formats=formats,
    )


def _made_again(model: ModelSpec, weight_format: str | None) -> tuple[Note, ...]:
    """A note that the planned weights are not those of the GGUF file; empty if they are."""
    if model.gguf is None or not model.gguf.tensors or weight_format is None:
        return ()
    message = f"Weights: {weight_format}, as llama-quantize makes it of this file's tensors. The file's own types are planned without --weights."
    return (Note(code="weights-requantized", message=message),)


def _weights(model: ModelSpec, weight_format: str | None, weight_dtype: str) -> Noted[WeightsInfo]:
    """Parameters and bytes of the weights in the requested format, or as published.

    Weights that are not quantised have ``weight_dtype``.
    """
    if weight_format is None and model.weights is not None:
        return Noted(_as_published(model.weights))
    if model.counted is None:
        why = next((note for note in model.notes if note.code == NO_WEIGHTS), None)
        what = f"those of a {model.model_type} model are not counted yet"
        if model.gguf is not None:
            what = "metadata alone name no tensors. Give the GGUF file"
        return _unknown(why or Note(code="weights-unknown", message=f"Weights are not known: {what}."))
    scheme, known = planned_scheme(model, weight_format)
    if not known:
        named = named_in_the_id(model) if model.quantization is None else None
        return _unknown(named or _UNKNOWN_SCHEME)
    unquantized = FLOATS.get(weight_format or "") or FLOATS[weight_dtype]
    if scheme is None:
        return Noted(_defined(model, _estimate(model.counted, None, unquantized)))
    notes = []
    blocks = model.counted.blocks
    unknown_names = model.once(("strangers", weight_format), lambda: scheme.strangers(blocks))
    if unknown_names:
        message = (
            f"The config's quantization leaves {', '.join(name[:60] for name in unknown_names[:3])}"
            f"{' and others' if len(unknown_names) > 3 else ''} alone: no module is known by that name, so none is left out."
        )
        notes.append(Note(code="weights-approximate", message=message))
    return Noted(_defined(model, _estimate(model.counted, scheme if scheme.rules else None, unquantized)), tuple(notes))


def _as_published(weights: WeightFacts) -> WeightsInfo:
    size = weights.total_bytes
    return WeightsInfo(
        bytes=size, low=size, high=size, definition=weights.definition, source=weights.source, format="as published", parts=()
    )


def _unknown(why: Note) -> Noted[WeightsInfo]:
    unknown = WeightsInfo(bytes=None, low=None, high=None, definition=Definition.UNKNOWN, source="", format="", parts=())
    return Noted(unknown, (why,))


def _estimate(weights: Weights, scheme: Scheme | None, unquantized: WeightFormat) -> WeightsInfo:
    """The estimate of the weights: every parameter in its format.

    ``high`` includes the multi-token-prediction layers of a checkpoint.
    """
    parts = tuple(_part(block, scheme, unquantized) for block in weights.blocks)
    size = sum(part.bytes for part in parts if part.part != Part.MTP.value)
    ways = [size, *(_built(weights, other, unquantized) for other in (() if scheme is None else scheme.others))]
    mtp = sum(part.bytes for part in parts) - size
    source = f"parameters from the config, {unquantized.name if scheme is None else scheme.name}"
    return WeightsInfo(
        bytes=size,
        low=min(ways),
        high=max(ways) + mtp,
        definition=Definition.ESTIMATE,
        source=source,
        format=unquantized.name if scheme is None else scheme.name,
        parts=parts,
    )


def _built(weights: Weights, scheme: Scheme, unquantized: WeightFormat) -> int:
    return sum(_part(block, scheme, unquantized).bytes for block in weights.blocks if block.part is not Part.MTP)


def _defined(model: ModelSpec, weights: WeightsInfo) -> WeightsInfo:
    """The weights; their definition is ``assumed`` if the model is assumed."""
    return replace(weights, definition=Definition.ASSUMED) if model.assumed else weights


def _part(block: Block, scheme: Scheme | None, unquantized: WeightFormat) -> WeightPart:
    stored: dict[WeightFormat, list[int]] = {}
    if scheme is None:
        stored[unquantized] = [block.elements, block.count * sum(unquantized.bytes(weight) for weight in block.weights)]
    else:
        for weight in block.weights:
            for portion in scheme.portions(block, weight, unquantized):
                sums = stored.setdefault(portion.format, [0, 0])
                sums[0] += portion.elements
                sums[1] += portion.bytes
    formats = tuple(
        StoredWeights(
            format=form.name,
            bits=form.bits,
            parameters=parameters,
            scale_bytes=size - -(-parameters * form.bits // 8),
            bytes=size,
        )
        for form, (parameters, size) in stored.items()
        if size
    )
    return WeightPart(
        kind=block.kind,
        part=block.part.value,
        count=block.count,
        parameters=block.elements,
        bytes=sum(one.bytes for one in formats),
        formats=formats,
    )

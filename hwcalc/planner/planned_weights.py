"""The weights of a plan: block by block, and how each is stored.

The weights of a plan: the published size of the checkpoint if it is known, or else every parameter in its format.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.models import loads_as_published
from hwcalc.formulas.formats import FLOATS, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part
from hwcalc.model import NO_WEIGHTS, Definition, ModelSpec, Note, Noted
from hwcalc.quantization.planned import format_name, named_in_the_id, planned_scheme

if TYPE_CHECKING:
    from hwcalc.quantization.scheme import Scheme


AS_PUBLISHED: Final = "as published"
"""What stands for a format where the weights are those of the model's own files."""


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


_UNKNOWN: Final = WeightsInfo(bytes=None, low=None, high=None, definition=Definition.UNKNOWN, source="", format="", parts=())
_UNKNOWN_SCHEME: Final = Note(
    code="weights-unknown",
    message="The config's quantization is of a form that kvplan does not know: weights are not counted. Give a format with --weights.",
)


def weights_of(opened: Occupancy) -> Noted[WeightsInfo]:
    """Parameters and bytes of the weights: as in the files of the engine, else as published or in the requested format."""
    model, weight_format = opened.model, format_name(opened.setup.weights)
    notes: tuple[Note, ...] = ()
    if model.gguf is not None and model.gguf.tensors and weight_format is not None:
        message = f"Weights: {weight_format}, as llama-quantize makes it of this file's tensors. The file's own types are planned without --weights."
        notes = (Note(code="weights-requantized", message=message),)
    own = opened.deployment.model_weights()
    if own is None:
        weight_dtype = opened.deployment.weight_dtype()
        key = ("weights", weight_format, weight_dtype)
        weights = model.once(key, lambda: _weights(model, weight_format, weight_dtype))
        return Noted(weights.value, (*weights.notes, *notes))
    parts = []
    for group in own.groups:
        formats = tuple(_stored(*one) for one in group.types)
        part, parameters = Part.MTP if group.mtp else Part.LANGUAGE, sum(stored.parameters for stored in formats)
        parts.append(_part(group.kind, part, group.layers, parameters, formats))
    told = WeightsInfo(
        bytes=own.bytes,
        low=min((own.bytes, *own.other_bytes)),
        high=max((own.bytes, *own.other_bytes)),
        definition=own.definition,
        source=own.source,
        format=weight_format or AS_PUBLISHED,
        parts=tuple(parts),
    )
    return Noted(told, notes)


def _stored(name: str, bits: int, parameters: int, size: int) -> StoredWeights:
    scales = size - -(-parameters * bits // 8)
    return StoredWeights(format=name, bits=bits, parameters=parameters, scale_bytes=scales, bytes=size)


def _part(kind: str, part: Part, count: int, parameters: int, formats: tuple[StoredWeights, ...]) -> WeightPart:
    size = sum(stored.bytes for stored in formats)
    return WeightPart(kind=kind, part=part.value, count=count, parameters=parameters, bytes=size, formats=formats)


def _weights(model: ModelSpec, weight_format: str | None, weight_dtype: str) -> Noted[WeightsInfo]:
    """Parameters and bytes of the weights in the requested format, or as published.

    Weights that are not quantised have ``weight_dtype``.
    """
    if weight_format is None and model.weights is not None and loads_as_published(model, weight_dtype):
        size, definition, source = model.weights.total_bytes, model.weights.definition, model.weights.source
        return Noted(
            WeightsInfo(bytes=size, low=size, high=size, definition=definition, source=source, format=AS_PUBLISHED, parts=())
        )
    if model.counted is None:
        why = next((note for note in model.notes if note.code == NO_WEIGHTS), None)
        what = f"those of model type {model.model_type} are not counted yet"
        if model.assumed:
            what = "keys of the file that are not read may change them"
        if model.gguf is not None:
            what = "metadata alone name no tensors. Give the GGUF file"
        return Noted(_UNKNOWN, (why or Note(code="weights-unknown", message=f"Weights are not known: {what}."),))
    scheme, known = planned_scheme(model, weight_format)
    if not known:
        named = named_in_the_id(model) if model.quantization is None else None
        return Noted(_UNKNOWN, (named or _UNKNOWN_SCHEME,))
    unquantized = FLOATS.get(weight_format or "") or FLOATS[weight_dtype]
    notes, blocks = [], model.counted.blocks
    if scheme is not None:
        unknown_names = model.once(("strangers", weight_format), partial(scheme.strangers, blocks))
        if unknown_names:
            message = (
                f"The config's quantization leaves {', '.join(name[:60] for name in unknown_names[:3])}"
                f"{' and others' if len(unknown_names) > 3 else ''} alone: no module is known by that name, so none is left out."
            )
            notes.append(Note(code="weights-approximate", message=message))
        scheme = scheme if scheme.rules else None
    parts = tuple(_of_block(block, scheme, unquantized) for block in blocks)
    size = sum(part.bytes for part in parts if part.part != Part.MTP.value)
    # The same weights made in other ways.
    loaded, ways = [block for block in blocks if block.part is not Part.MTP], [size]
    ways += [
        sum(_of_block(block, other, unquantized).bytes for block in loaded) for other in (() if scheme is None else scheme.others)
    ]
    weights = WeightsInfo(
        bytes=size,
        low=min(ways),
        # A checkpoint has the multi-token-prediction layers as well.
        high=max(ways) + sum(part.bytes for part in parts) - size,
        definition=Definition.ASSUMED if model.assumed else Definition.ESTIMATE,
        source=f"parameters from the config, {unquantized.name if scheme is None else scheme.name}",
        format=unquantized.name if scheme is None else scheme.name,
        parts=parts,
    )
    return Noted(weights, tuple(notes))


def _of_block(block: Block, scheme: Scheme | None, unquantized: WeightFormat) -> WeightPart:
    """The weights of a block, every parameter in its format."""
    stored: dict[WeightFormat, list[int]] = {}
    if scheme is None:
        stored[unquantized] = [block.elements, block.count * sum(unquantized.bytes(weight) for weight in block.weights)]
    else:
        for weight in block.weights:
            for portion in scheme.portions(block, weight, unquantized):
                sums = stored.setdefault(portion.format, [0, 0])
                sums[0] += portion.elements
                sums[1] += portion.bytes
    formats = tuple(_stored(form.name, form.bits, parameters, size) for form, (parameters, size) in stored.items() if size)
    return _part(block.kind, block.part, block.count, block.elements, formats)

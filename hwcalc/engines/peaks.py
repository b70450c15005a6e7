"""What a cache policy needs at its fullest: while a layer of the prompt is scored, and while text is generated.

A layer's cache is whole until the policy has cut it, one layer after the other: the layers before it are cut already, and those behind
it hold nothing yet. Beside it lies what the policy takes to score. What comes on top of the cache that a plan counts is a part of the
memory equation, :func:`policy_part`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.costs import model_width
from hwcalc.engines.cut_layers import first_alike
from hwcalc.engines.evicting import shapes_of
from hwcalc.engines.ranks import rank_bytes_of, stage_spans
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas import Layer, LayerNumbers, Stack
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import Effect, Extra, LayerShape, Setting
from hwcalc.policies.outcome import Beside, beside_of
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

PART: Final = "policy prefill"
Layers = range | LayerNumbers
_SCORED: Final = "the cache of a layer is whole until the policy has cut it, layer after layer"


class Peaks(Record):
    """Bytes on the fullest GPU. ``cache`` is what the plan counts, the most between steps or within a step.

    ``scored`` is the cache while the last layer of the prompt is scored, and ``beside`` what the policy holds besides at that moment;
    ``held`` is what it holds besides the cache while text is generated, also while the cache is cut.
    """

    cache: int
    scored: int
    beside: int
    held: int
    extras: tuple[Extra, ...] = ()

    @property
    def prefill(self) -> int:
        """Bytes of the cache and of all that the policy holds in the prefill."""
        return self.scored + self.beside

    @property
    def decoding(self) -> int:
        """Bytes of the cache and of all that the policy holds while text is generated."""
        return self.cache + self.held

    def beyond(self, inner_vectors: int = 0) -> int:
        """Bytes that the policy needs on top of the cache. Inner vectors of a layer are not there while its cache is scored."""
        return max(0, self.prefill - inner_vectors - self.cache, self.held)


def peaks_of(opened: Occupancy) -> Peaks:
    """What the policy of the request needs at its fullest."""
    evicted = opened.evicted
    assert evicted is not None
    scored = beside = held = 0
    extras: tuple[Extra, ...] = ()
    for number, span in enumerate(stage_spans(opened)):
        peak = _beside(opened, span)
        if peak is None:
            continue
        cache = opened.prefill_bytes(number)
        if cache + peak.prefill > scored + beside or not extras:
            scored, beside, extras = cache, peak.prefill, peak.extras
        held = max(held, peak.decoding)
    return Peaks(cache=opened.needed_bytes, scored=scored, beside=beside, held=held, extras=extras)


def whole_bytes(opened: Occupancy) -> int:
    """The same moment without the policy."""
    plain = opened.without_policy()
    return max(plain.prefill_bytes(stage) for stage in range(len(stage_spans(opened))))


def _beside(opened: Occupancy, span: Layers) -> Beside | None:
    """What the policy holds besides the cache of these layers on a tensor-parallel rank; ``None`` if it acts on none of them."""
    evicted, local = opened.evicted, opened.replica
    setting = _rank_setting(local, span)
    if evicted is None or not setting.layers:
        return None
    at_once, longest = local.scored_at_once(), max(evicted.most.values(), default=0)
    return beside_of(evicted.chosen, setting, evicted.state, longest=longest, cuts=evicted.cuts, at_once=at_once)


def _rank_setting(opened: Occupancy, span: Layers) -> Setting:
    """What a policy is told of these layers, on one tensor-parallel rank."""
    assert opened.evicted is not None
    whole, rules, tp, plain = (
        opened.evicted.setting,
        opened.weight_rules(),
        opened.request.parallel.tp,
        opened.plain_stack,
    )

    def sharded() -> tuple[LayerShape, ...]:
        return shapes_of(Stack(tuple(tuple(rules.shard(opened.model, kind, tp) for kind in layer) for layer in plain.layers)))

    layers = whole.layers if tp == 1 else opened.model.once((opened.engine.name, "policy layers", tp), sharded)
    if len(span) < len(plain):
        layers = tuple(shape for shape in layers if shape.index in span)
    return replace(whole, layers=layers, batch=opened.batch)


def pages_bytes(opened: Occupancy) -> int:
    """The keys of pages of one sequence, which a decode step reads besides the cache, on one tensor-parallel rank."""
    return page_keys_bytes(opened, replace(_rank_setting(opened, range(len(opened.plain_stack))), batch=1))


def page_keys_bytes(opened: Occupancy, setting: Setting) -> int:
    """The keys of all pages of these layers; none where a policy does not choose what is read."""
    evicted = opened.evicted
    assert evicted is not None
    if evicted.chosen.policy.effect is not Effect.READS_LESS:
        return 0
    return beside_of(evicted.chosen, setting, evicted.state, longest=opened.tokens, cuts=False).decoding


def stage_prefill_bytes(opened: Occupancy, stage: int) -> int:
    """Bytes of cache on a rank of a pipeline stage at the fullest, if each layer is cut before the next one begins."""
    local = opened.replica.sized(seq=opened.request.prompt_tokens)
    alike = first_alike(local)
    each = _sizes(local, local.plain_stack.layers, sorted(set(alike)))
    whole = [each[first] for first in alike]
    if local.cut_layers is None:
        sizes = _sizes(local, local.stack.layers, range(len(alike)))
        cut = tuple(sizes[number] for number in range(len(alike)))
    else:
        cut = local.cut_layers.sizes
    before = fullest = 0
    for number in stage_spans(opened)[stage]:
        fullest = max(fullest, before + whole[number])
        before += cut[number]
    return max(fullest, before) + bytes_of(local.extras)


def _sizes(local: Occupancy, layers: Sequence[Layer], numbers: Iterable[int]) -> dict[int, int]:
    """Bytes on a rank of the layers with these numbers."""
    rules, tp = local.weight_rules(), local.request.parallel.tp
    known: dict[Layer, int] = {}
    for layer in {layers[number]: None for number in numbers}:
        shards = (rules.shard(local.model, kind, tp) for kind in layer)
        known[layer] = sum(rank_bytes_of(local, local.tensors(shard)) for shard in shards)
    return {number: known[layers[number]] for number in numbers}


def policy_part(opened: Occupancy, device: Layers | None = None) -> tuple[BudgetPart, ...]:
    """What the policy needs on top of the cache that the plan counts, as a part of the memory equation; nothing without a policy.

    While a layer is scored, its inner vectors are not there, which the equation counts with the activations. ``device`` are the layers of
    a device whose cache is allocated in full at the start.
    """
    if opened.evicted is None:
        return ()
    if device is None:
        peaks = peaks_of(opened)
    else:
        peak = _beside(opened, device)
        if peak is None:
            return ()
        peaks = Peaks(cache=0, scored=0, beside=peak.prefill, held=peak.decoding, extras=peak.extras)
    rooms = inner_vectors(opened)
    low, expected, high = peaks.beyond(rooms[2]), peaks.beyond(rooms[1]), peaks.beyond(rooms[0])
    if not high:
        return ()
    known = all(extra.definition is not Definition.ESTIMATE for extra in peaks.extras)
    names = " and ".join(extra.name for extra in peaks.extras)
    return (
        BudgetPart(
            name=PART,
            section=Section.ACTIVATIONS,
            low=low,
            expected=expected,
            high=high,
            source=f"{_SCORED}{f'; {names}' if names else ''}",
            definition=Definition.ESTIMATE if not known or low != high else Definition.ENGINE,
            steps=peak_steps(peaks, rooms),
        ),
    )


def inner_vectors(opened: Occupancy) -> tuple[int, int, int]:
    """Bytes of the activations inside an MLP, low, expected and high: they are not there while the cache of a layer is scored.

    Zeros for an engine that allocates one compute buffer for the whole pass before it starts.
    """
    if opened.engine.splits_layers:
        return 0, 0, 0
    model, rules, parallel = opened.model, opened.weight_rules(), opened.parallel
    weight_format = format_name(opened.request.weights)
    element_bytes = rules.weight_format(model, weight_format if weight_format in FLOATS else None).bits // 8
    low, expected, high = (tokens * element_bytes * model_width(rules, model, parallel) for tokens in opened.forward_tokens())
    return low, expected, high


def peak_steps(peaks: Peaks, rooms: tuple[int, int, int]) -> tuple[Step, ...]:
    """How the fullest moment of the prefill comes about, and what of it is beyond the cache that the plan counts."""
    low, expected, high = rooms
    fullest = step(
        "prefill_peak",
        "cache_while_scored + beside_in_prefill",
        peaks.prefill,
        cache_while_scored=peaks.scored,
        beside_in_prefill=peaks.beside,
    )
    beyond = step(
        "policy_prefill",
        "max(prefill_peak - inner_vectors - cache, beside_always, 0)",
        (peaks.beyond(high), peaks.beyond(expected), peaks.beyond(low)),
        prefill_peak=peaks.prefill,
        inner_vectors=(high, expected, low),
        cache=peaks.cache,
        beside_always=peaks.held,
    )
    return (fullest, beyond)

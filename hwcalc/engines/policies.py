"""What a cache policy leaves of a request, and what it needs at its fullest.

A layer's cache is whole until the policy has cut it, one layer after the other: the layers before it are cut already, and those behind
it hold nothing yet. Beside it lies what the policy takes to score. What comes on top of the cache that a plan counts is a part of the
memory equation, :func:`policy_part`.

A search tries hundreds of lengths, and PyramidKV leaves another number of tokens in each layer. Where a cut layer takes as much for every
token, :func:`cut_layers` counts it without its tensors one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from hwcalc.engines.memory import BudgetPart, Section, model_width
from hwcalc.engines.steps import Step, step
from hwcalc.engines.stored import bytes_of, rank_bytes_of, stage_spans
from hwcalc.errors import UsageError
from hwcalc.formulas import Layer, LayerKind, LayerNumbers, Role, Stack
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.kind import BY_TOKEN
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import EAGER, KVPRESS, Chosen, Count, Effect, Extra, LayerShape, Setting, State
from hwcalc.policies.outcome import MOST_STEPS, Beside, Course, after_prefill, beside_of, course_of, ends_of, kernel_for
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.general import GeneralOccupancy
    from hwcalc.engines.stored import StoredTensor
    from hwcalc.policies.counting import Ends

_Start: TypeAlias = tuple[int, int]


def acted_on(stack: Stack) -> dict[int, LayerKind]:
    """The layers on which a policy acts, by number, with the kind on which it acts."""
    return {number: kind for number, layer in enumerate(stack) for kind in layer if kind.acts_by_token}


def shapes_of(stack: Stack) -> tuple[LayerShape, ...]:
    """The shapes of the layers on which a policy acts: heads, key/value heads and head width."""
    shapes = []
    for number, kind in acted_on(stack).items():
        dims, key = kind.dims(), next(tensor for tensor in kind.tensors() if tensor.role in BY_TOKEN)
        heads, kv_heads = dims.get("num_attention_heads", 1), dims.get("num_key_value_heads", 1)
        shapes.append(LayerShape(index=number, heads=heads, kv_heads=kv_heads, head_dim=key.shape[-1]))
    return tuple(shapes)


def courses_of(chosen: Chosen | None, state: State, prompt: int, steps: int, setting: Setting) -> list[Course]:
    """The decode steps of each layer. Layers that start alike go alike, unless the policy looks at their number."""
    keys, unlike = _starts(chosen, state)
    if len(unlike) * steps > MOST_STEPS and chosen is not None and chosen.policy.decode is not None:
        raise UsageError(
            f"decode is {steps:,} steps of {len(unlike):,} layers that differ.",
            hint=f"At most {MOST_STEPS:,} in all are followed.",
        )
    known = {key: course_of(chosen, key[0], number, prompt, steps, setting) for key, number in unlike.items()}

    def lengths() -> set[Hashable]:
        # Layers that only grow may do so for very many steps: their ranges are compared, not the numbers in them.
        growing = all(isinstance(course.lengths, range) for course in known.values())
        within = {key: course.lengths[:-1] for key, course in known.items()}
        return {(start, each if growing else tuple(each)) for (start, _), each in within.items()}

    _check_masks(state, steps, setting, lengths, cuts=any(course.cuts for course in known.values()))
    return [known[key] for key in keys]


def _starts(chosen: Chosen | None, state: State) -> tuple[list[_Start], dict[_Start, int]]:
    """The starts by which layers differ when decoding begins, and the first layer with each start.

    A start is their tokens, and their number if the policy looks at it.
    """
    by_layer = chosen is not None and any(one.policy.by_layer for one in chosen.whole)
    keys = [(left.stored.high, number if by_layer else 0) for number, left in enumerate(state.layers)]
    return keys, dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))


def _check_masks(state: State, steps: int, setting: Setting, lengths: Callable[[], set[Hashable]], *, cuts: bool) -> None:
    """Raise an error if masked tokens cannot be right: before a policy that ``cuts``, or in layers of unlike ``lengths``.

    Eager attention adds one mask to the scores of all layers, as long as the first: a step fails where another has more or fewer.
    Source: transformers 5.2.0 under kvpress 0.5.5, run.
    """
    one_mask = steps and setting.attention == EAGER and setting.rules == KVPRESS
    if one_mask and all(left.stored.is_exact for left in state.layers) and len(lengths()) > 1:
        raise UsageError(
            "eager attention has one mask for all layers, and this policy leaves them unlike lengths: no token can follow.",
            hint="Use attention sdpa, or leave it out.",
        )
    if cuts and any(left.masked is not None and left.masked.total.high for left in state.layers):
        raise UsageError(
            "a policy that masks cannot come before one that cuts: the places of what it masked move.",
            hint="Use one that frees in the prefill, such as snapkv.",
        )


class Evicted(Record):
    """A policy at work on one request. Numbers of tokens are those of each layer that it acts on, by number.

    ``most`` is the length of a layer at its longest, behind the prompt and while text is generated; a step counts before it cuts.
    ``plain`` are the layers without the policy, and ``setting`` is that of a single sequence.
    """

    chosen: Chosen
    prompt: int
    steps: int
    setting: Setting
    state: State
    ends: Mapping[int, Ends]
    most: Mapping[int, int]
    plain: Stack
    ahead: int = 0
    """Tokens before all these that the policy does not touch, since other sequences have them too."""

    @cached_property
    def stack(self) -> Stack:
        """The layers, each with the tokens that it has at the most. A search for a length may need none of them."""
        made: dict[tuple[Layer, int], Layer] = {}
        layers = list(self.plain.layers)
        for number, tokens in self.most.items():
            kept = self.ahead + tokens
            key = (layers[number], kept)
            if key not in made:
                made[key] = tuple(replace(kind, kept=kept) if kind.acts_by_token else kind for kind in key[0])
            layers[number] = made[key]
        return Stack(tuple(layers))

    @property
    def behind_prompt(self) -> dict[int, int]:
        """Tokens behind the prompt."""
        return {number: left.stored.high for number, left in zip(self.ends, self.state.layers, strict=True)}

    @property
    def kv_heads(self) -> dict[int, int]:
        """Key/value heads: as many may choose tokens on their own."""
        return {shape.index: shape.kv_heads for shape in self.setting.layers}

    @property
    def last(self) -> dict[int, int]:
        """Tokens at the end."""
        return {number: ends.last for number, ends in self.ends.items()}

    @property
    def is_exact(self) -> bool:
        """True if the text does not matter."""
        return all(left.stored.is_exact for left in self.state.layers)

    @property
    def cuts(self) -> bool:
        """True if anything is cut while text is generated."""
        return any(ends.cut for ends in self.ends.values())

    @property
    def drops(self) -> bool:
        """True if any token may go, of the prompt or while text is generated."""
        return self.cuts or any(left.stored.low < self.prompt for left in self.state.layers)

    @cached_property
    def courses(self) -> Mapping[int, Course]:
        """The decode steps of each layer, one by one. Raises :class:`~hwcalc.errors.UsageError` for very many."""
        return dict(zip(self.ends, courses_of(self.chosen, self.state, self.prompt, self.steps, self.setting), strict=True))

    @cached_property
    def lows(self) -> Evicted:
        """The tokens that the policy leaves where the text lets it drop most."""
        if self.is_exact:
            return self
        state = self.state.with_stored(tuple(Count.of(left.stored.low) for left in self.state.layers), self.state.ranges)
        tokens = self.prompt + self.steps
        return evicted_of(self.chosen, tokens, self.prompt, self.setting, self.plain, self.ahead, state)

    @cached_property
    def alike(self) -> Mapping[int, int]:
        """For each number of tokens that some layer holds, how many of them all branches have in common (the fewest over such layers)."""
        found: dict[int, int] = {}
        for (number, ends), left in zip(self.ends.items(), self.state.layers, strict=True):
            # Once a branch has cut its own cache, it need not have the same tokens as the others.
            held, common = self.ahead + self.most[number], self.ahead + (0 if ends.cut else left.stored.low)
            found[held] = min(common, found.get(held, common))
        return found

    @cached_property
    def read(self) -> Mapping[int, int]:
        """Tokens that a decode step reads: all that are stored, or the pages that are chosen."""
        if all(left.read is None for left in self.state.layers):
            return self.most
        reads = after_prefill(self.chosen, self.prompt + self.steps, self.setting).layers
        pairs = zip(self.ends, reads, strict=True)
        return {number: self.most[number] if left.read is None else left.read.high for number, left in pairs}

    @property
    def grown(self) -> Evicted:
        """The tokens that the policy leaves after one more generated token."""
        tokens = self.prompt + self.steps + 1
        return evicted_of(self.chosen, tokens, self.prompt, self.setting, self.plain, self.ahead, self.state)

    def holding(self, counts: Mapping[int, int]) -> Evicted:
        """The tokens that the policy leaves, with ``counts`` as the most tokens of each layer."""
        return replace(self, most=counts)


def evicted_of(
    chosen: Chosen, tokens: int, prompt: int, setting: Setting, plain: Stack, ahead: int = 0, state: State | None = None
) -> Evicted:
    """The tokens that a policy leaves of ``tokens``, ``prompt`` of which are the prompt. ``plain`` are the layers without it.

    ``ahead`` are tokens before all these that it does not touch, since other sequences have them too. ``state`` is what it leaves of the
    prompt, where that is known.
    """
    state, steps = after_prefill(chosen, prompt, setting) if state is None else state, tokens - prompt
    keys, unlike = _starts(chosen, state)

    def behind(more: int) -> dict[_Start, Ends]:
        return {key: ends_of(chosen, key[0], number, prompt, more, setting) for key, number in unlike.items()}

    def lengths() -> set[Hashable]:
        # Layers that start alike end unlike only under a policy that looks at their number.
        by_layer = any(one.policy.by_layer for one in chosen.whole)
        return {(start, ends) for (start, _), ends in (behind(steps - 1) if by_layer else dict.fromkeys(known)).items()}

    known = behind(steps)
    _check_masks(state, steps, setting, lengths, cuts=any(ends.cut for ends in known.values()))
    ends = {shape.index: known[key] for shape, key in zip(setting.layers, keys, strict=True)}
    longest = (max(left.stored.high, one.most_within) for left, one in zip(state.layers, ends.values(), strict=True))
    most = dict(zip(ends, longest, strict=True))
    return Evicted(
        chosen=chosen, prompt=prompt, steps=steps, setting=setting, state=state, ends=ends, most=most, plain=plain, ahead=ahead
    )


def evicted_under(occupancy: Occupancy) -> Evicted | None:
    """The tokens of the cache that the policy of the request leaves; ``None`` without a policy."""
    policy, request = occupancy.setup.policy, occupancy.request
    if policy is None:
        return None
    # An engine without a pool takes a batch through one prefill.
    together = 1 if occupancy.engine.facts.pooled else request.load.sequences
    setting = replace(occupancy.deployment.shared("policy setting", lambda: _setting_of(occupancy)), together=together)
    # A prefix that others need too cannot go: the policy acts behind it. A solver also tries sequences that are all prefix.
    ahead, plain = min(occupancy.policies.ahead, request.load.prompt_tokens), occupancy.deployment.plain_stack
    tokens, prompt = request.load.seq - ahead, request.load.prompt_tokens - ahead
    evicted = occupancy.deployment.shared(
        ("evicted", tokens, prompt, ahead, together),
        lambda: evicted_of(policy.chosen, tokens, prompt, setting, plain, ahead),
    )
    return evicted if occupancy.counts is None else evicted.holding(occupancy.counts)


def _setting_of(occupancy: Occupancy) -> Setting:
    """The setting in which the policy acts, as the model tells; the batch is not known yet."""
    policy, plain = occupancy.setup.policy, occupancy.deployment.plain_stack
    assert policy is not None
    return Setting(
        layers=occupancy.model.once((occupancy.engine.name, "policy layers"), lambda: shapes_of(plain)),
        depth=len(plain),
        attention=kernel_for(policy.chosen, None),
        rules=policy.rules,
        element_bytes=FLOATS[occupancy.deployment.weight_dtype()].bits // 8,
        hidden_size=occupancy.model.hidden_size,
    )


class CutLayers(Record):
    """Bytes of each layer on a tensor-parallel rank, as the policy leaves it at its longest, and the largest tensor that grows."""

    sizes: tuple[int, ...]
    largest: int


def cut_layers(opened: GeneralOccupancy) -> CutLayers | None:
    """The layers of a replica, counted from what one token more takes; ``None`` where they are not that simple, or nothing is cut."""
    local = opened.replica
    evicted, parallel = local.evicted, opened.setup.parallel
    if evicted is None or parallel.dcp > 1 or local.together.unlike or not opened.deployment.traits.sizes_by_token:
        return None
    rules = opened.deployment.weight_rules()

    def tensors(kind: LayerKind) -> tuple[StoredTensor, ...]:
        return local.tensors(rules.shard(opened.model, kind, parallel.tp))

    def by_token(layer: Layer) -> tuple[int, int, int, int] | None:
        """Bytes of a layer whatever is left of it, and for each token that is; of the largest tensor of each sort that grows too.

        They follow from what it takes with one token and with two; ``None`` if a tensor has bytes of both sorts.
        """
        fixed: list[StoredTensor] = []
        token: list[StoredTensor] = []
        for kind in layer:
            if not kind.acts_by_token:
                fixed += tensors(kind)
                continue
            for one, two in zip(tensors(replace(kind, kept=1)), tensors(replace(kind, kept=2)), strict=True):
                if two.bytes - one.bytes not in (0, one.bytes):
                    return None
                (token if two.bytes != one.bytes else fixed).append(one)
        largest_fixed, largest_token = (
            max((tensor.bytes for tensor in each if tensor.role not in (Role.STATE, Role.CONV)), default=0)
            for each in (fixed, token)
        )
        return bytes_of(fixed), bytes_of(token), largest_fixed, largest_token

    known: dict[int, tuple[int, int, int, int] | None] = {}
    sizes: list[int] = []
    largest = 0
    layers = local.deployment.plain_stack.layers
    for number, first in enumerate(first_alike(local)):
        if first not in known:
            known[first] = by_token(layers[first])
        counted = known[first]
        if counted is None:
            return None
        fixed, token, largest_fixed, largest_token = counted
        tokens = evicted.most.get(number, 0)
        sizes.append(fixed + tokens * token)
        largest = max(largest, largest_fixed, tokens * largest_token)
    return CutLayers(sizes=tuple(sizes), largest=largest)


def first_alike(opened: Occupancy) -> tuple[int, ...]:
    """For each layer without the policy, the first one that is like it."""

    def numbers() -> tuple[int, ...]:
        found: dict[Layer, int] = {}
        return tuple(found.setdefault(layer, number) for number, layer in enumerate(opened.deployment.plain_stack.layers))

    return opened.model.once((opened.engine.name, "layers alike"), numbers)


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
    inner: tuple[int, int, int] = (0, 0, 0)
    """Bytes of the activations inside an MLP, low, expected and high: they are not there while the cache of a layer is scored.

    Zeros for an engine that allocates one compute buffer for the whole pass before it starts.
    """

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

    @property
    def part(self) -> tuple[int, int, int]:
        """The bytes of :meth:`beyond` at the low, expected and high end."""
        low, expected, high = self.inner
        return self.beyond(high), self.beyond(expected), self.beyond(low)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps to the fullest moment of the prefill, and what of it is beyond the cache that the plan counts."""
        whole = "cache_while_scored + beside_in_prefill"
        beyond = "max(prefill_peak - inner_vectors - cache, beside_always, 0)"
        inner, peak, cache, held = self.inner[::-1], self.prefill, self.cache, self.held
        return (
            step("prefill_peak", whole, peak, cache_while_scored=self.scored, beside_in_prefill=self.beside),
            step("policy_prefill", beyond, self.part, prefill_peak=peak, inner_vectors=inner, cache=cache, beside_always=held),
        )


def peaks_of(opened: Occupancy, device: Layers | None = None) -> Peaks:
    """The peaks of the policy of the request; on a ``device`` with these layers, besides the cache that is there at the start."""
    evicted, model, rules = opened.evicted, opened.model, opened.deployment.weight_rules()
    assert evicted is not None
    scored = beside = held = 0
    extras: tuple[Extra, ...] = ()
    for number, span in enumerate(stage_spans(opened) if device is None else (device,)):
        peak = _beside(opened, span)
        if peak is None:
            continue
        cache = opened.policies.prefill_bytes(number) if device is None else 0
        if cache + peak.prefill > scored + beside or not extras:
            scored, beside, extras = cache, peak.prefill, peak.extras
        held = max(held, peak.decoding)
    low = expected = high = 0
    if not opened.engine.facts.splits_layers:
        weight_format = format_name(opened.setup.weights)
        element_bytes = rules.weight_format(model, weight_format if weight_format in FLOATS else None).bits // 8
        width = element_bytes * model_width(rules, model, opened.deployment.parallel)
        low, expected, high = (tokens * width for tokens in opened.forward_tokens())
    cache = opened.needed_bytes if device is None else 0
    return Peaks(cache=cache, scored=scored, beside=beside, held=held, extras=extras, inner=(low, expected, high))


def _beside(opened: Occupancy, span: Layers) -> Beside | None:
    """The bytes that the policy holds beside the cache of these layers on a rank; ``None`` if it acts on none of them."""
    evicted, local = opened.evicted, opened.replica
    setting = _rank_setting(local, span)
    if evicted is None or not setting.layers:
        return None
    at_once, longest = local.policies.scored_at_once(), max(evicted.most.values(), default=0)
    return beside_of(evicted.chosen, setting, evicted.state, longest=longest, cuts=evicted.cuts, at_once=at_once)


def _rank_setting(opened: Occupancy, span: Layers) -> Setting:
    """The setting of these layers that a policy is told, on one tensor-parallel rank."""
    assert opened.evicted is not None
    whole, rules, tp, plain = (
        opened.evicted.setting,
        opened.deployment.weight_rules(),
        opened.setup.parallel.tp,
        opened.deployment.plain_stack,
    )

    def sharded() -> tuple[LayerShape, ...]:
        return shapes_of(Stack(tuple(tuple(rules.shard(opened.model, kind, tp) for kind in layer) for layer in plain.layers)))

    layers = whole.layers if tp == 1 else opened.model.once((opened.engine.name, "policy layers", tp), sharded)
    if len(span) < len(plain):
        layers = tuple(shape for shape in layers if shape.index in span)
    return replace(whole, layers=layers, batch=opened.batch)


def page_keys_bytes(opened: Occupancy, setting: Setting | None = None) -> int:
    """The keys of all pages of these layers, which a decode step reads besides the cache; none where a policy does not choose what is read.

    By default the layers are those of one sequence on one tensor-parallel rank.
    """
    evicted = opened.evicted
    assert evicted is not None
    if setting is None:
        setting = replace(_rank_setting(opened, range(len(opened.deployment.plain_stack))), batch=1)
    if evicted.chosen.policy.effect is not Effect.READS_LESS:
        return 0
    return beside_of(evicted.chosen, setting, evicted.state, longest=opened.tokens, cuts=False).decoding


def stage_prefill_bytes(opened: GeneralOccupancy, stage: int) -> int:
    """Bytes of cache on a rank of a pipeline stage at the fullest, if each layer is cut before the next one begins."""
    local = opened.replica.sized(seq=opened.load.prompt_tokens)
    rules, tp, known = local.deployment.weight_rules(), local.setup.parallel.tp, {}

    def size(layer: Layer) -> int:
        if layer not in known:
            shards = (rules.shard(local.model, kind, tp) for kind in layer)
            known[layer] = sum(rank_bytes_of(local, local.tensors(shard)) for shard in shards)
        return known[layer]

    plain, alike = local.deployment.plain_stack.layers, first_alike(local)
    each = {first: size(plain[first]) for first in set(alike)}
    whole = [each[first] for first in alike]
    cut = tuple(map(size, local.stack.layers)) if local.cut_layers is None else local.cut_layers.sizes
    before = fullest = 0
    for number in stage_spans(opened)[stage]:
        fullest = max(fullest, before + whole[number])
        before += cut[number]
    return max(fullest, before) + bytes_of(local.extras)


def policy_part(opened: Occupancy, device: Layers | None = None) -> tuple[BudgetPart, ...]:
    """The need of the policy beyond the cache that the plan counts, as a part of the memory equation; empty without a policy.

    While a layer is scored, its inner vectors are not there, which the equation counts with the activations. ``device`` are the layers of
    a device whose cache is allocated in full at the start.
    """
    peaks = None if opened.evicted is None else peaks_of(opened, device)
    if peaks is None or not peaks.part[2]:
        return ()
    low, _, high = peaks.part
    known = all(extra.definition is not Definition.ESTIMATE for extra in peaks.extras)
    definition = Definition.ESTIMATE if not known or low != high else Definition.ENGINE
    names = " and ".join(extra.name for extra in peaks.extras)
    source = f"{_SCORED}{f'; {names}' if names else ''}"
    return (BudgetPart.of(PART, Section.ACTIVATIONS, peaks.part, source, definition=definition, steps=peaks.steps),)

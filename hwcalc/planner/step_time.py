"""The time of one step of an engine: prompts computed and tokens decoded together, as a bound and as an expected time with its range.

    times = step_times(opened)
    times.step(decoding=32, context=8_000)                               # 32 sequences gain a token each
    times.step(prompt_tokens=2_048, prompt_context=4_096, decoding=32, context=8_000)     # and a chunk of a prompt is computed with them

A step is one forward pass of one replica. It reads the weights that its tokens use, each once, and the caches of its sequences; it computes;
it launches the kernels of each layer; and the ranks exchange what they computed. The expected time is the sum of these terms, each at the
share of the accelerator's rate that engines of its class reach (``profiles/speed``). The bound is the longer of reading and computing at the
full rate. Bytes and operations are those of :mod:`hwcalc.planner.speed_work`.

Numbers may be whole numbers, or arrays of one shape: then so many steps that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.formulas import Stack
from hwcalc.formulas.arithmetic import ceil_div, larger, smaller
from hwcalc.formulas.flops import positions_sum
from hwcalc.planner.speed import is_divided, known_bandwidth, shares_of
from hwcalc.planner.speed_work import (
    ALIKE,
    Growing,
    Use,
    WeightShare,
    cache_form,
    decode_form,
    fastest,
    prompt_terms,
    workload_of,
)
from hwcalc.profiles.speed import SpeedClass, StepParameters, find_speed_class

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.devices import DeviceReads
    from hwcalc.formulas.stairs import Stair
    from hwcalc.planner.speed_work import DecodeForm, PromptTerm, Workload
    from hwcalc.profiles.hardware_file import Gpu

Number = Any
"""A number, or an array of numbers."""
TERMS: Final = ("weights", "cache", "matrices", "attention", "launches", "exchange")
"""The terms of a step, in the order in which they are explained."""
_FLOATS: Final = frozenset({"fp32", "fp16", "bf16"})
_EIGHT: Final = frozenset({"fp8", "fp8_channel", "fp8_block", "mxfp8", "int8", "bnb8"})
_FOUR: Final = frozenset({"mxfp4", "nvfp4"})
_WEIGHT_ONLY: Final = frozenset({"int4", "gptq", "awq", "bnb4", "bnb4_double", "ternary"})
_HIDDEN_BYTES: Final = 2
"""Bytes of a number that ranks exchange: engines keep hidden states in 16 bits."""
_EXCHANGES: Final = 2
"""Of a layer: after attention, and after the matrices that follow it."""


class StepTime(Struct, frozen=True):
    """Seconds of a step: the expected time, the sum of its ``terms``, and the ``bound`` that nothing is faster than.

    ``low`` and ``high`` are times too: ``low`` is the shortest of the range. All are numbers, or arrays of one shape. What an unmeasured
    class would take is ``None``.
    """

    bound: Number
    expected: Number
    low: Number
    high: Number
    terms: Mapping[str, Number]


class _Place(Struct, frozen=True):
    """A device, or all GPUs that work alike: what a pass reads there, and how fast."""

    name: str
    shares: tuple[WeightShare, ...]
    cache: tuple[Growing, ...]
    bandwidth: float | None

    def weight_bytes(
        self, times: StepTimes, tokens: Number, routed: Number, sampled: Number, prompts: Number, power: float
    ) -> Number:
        return sum(times.touched(share, tokens, routed, sampled, prompts, power) for share in self.shares)


class StepTimes(Struct, frozen=True):
    """The steps of one replica of a deployment; :func:`step_times` makes it.

    ``chunk`` is how many tokens of prompts the engine computes in a step at most. ``parameters`` is ``None`` where nothing like it was
    measured.
    """

    places: tuple[_Place, ...]
    form: DecodeForm
    prompt_attention: tuple[PromptTerm, ...]
    gpu: Gpu
    speed_class: SpeedClass | None
    layers: int
    hidden_size: int
    has_experts: bool
    tp: int
    pp: int
    dcp: int
    expert_ranks: int
    replicas: int
    chunk: int
    encoder_tokens: int = 0

    @property
    def parameters(self) -> StepParameters | None:
        """The shares and times of the class."""
        return None if self.speed_class is None else self.speed_class.parameters

    def step(
        self,
        *,
        prompt_tokens: Number = 0,
        prompt_context: Number = 0,
        prompts: Number | None = None,
        decoding: Number = 0,
        context: Number = 0,
    ) -> StepTime:
        """The time of a step that computes ``prompt_tokens`` tokens of prompts and decodes ``decoding`` sequences.

        ``prompt_context`` are the tokens of those prompts that lie in the cache already, and ``context`` the tokens of each decoded sequence
        with the new one: the mean, if they differ. ``prompts`` is how many prompts end in this step, so that a token is sampled from
        them; by default it is one where there are prompt tokens. Where pipeline stages work on parts of a batch, the step is that of
        one part through all stages.
        """
        ending = smaller(prompt_tokens, 1) if prompts is None else prompts
        pairs = self.prompt_flops(prompt_context + prompt_tokens) - self.prompt_flops(prompt_context)
        scored = decoding * _sum(self.form.attention, larger(context, 1)) + pairs
        ahead = smaller(prompt_tokens, 1) * smaller(prompt_context, 1)
        caches = [
            decoding * self._read(place, larger(context, 1)) + ahead * self._read(place, larger(prompt_context, 1))
            for place in self.places
        ]
        return self._time(
            prompt_tokens + decoding, decoding, ending, caches, scored, "decode" if _is_zero(prompt_tokens) else "serving"
        )

    def mixed(self, chunks: Sequence[tuple[int, int]], contexts: Sequence[int]) -> StepTime:
        """The time of a step of unlike requests: ``chunks`` are tokens and context of each prompt, ``contexts`` the tokens of each decoded sequence.

        All prompts count as ending in the step.
        """
        from numpy import array

        tokens = sum(count for count, _ in chunks)
        lengths = array([max(1, one) for one in contexts], dtype="int64")
        scored = sum(self.prompt_flops(before + count) - self.prompt_flops(before) for count, before in chunks)
        scored += float(_sum(self.form.attention, lengths).sum())
        caches = [
            sum(self._read(place, before) for _, before in chunks if before) + float(self._read(place, lengths).sum())
            for place in self.places
        ]
        kind = "decode" if not chunks else "serving" if contexts else "prompt"
        return self._time(tokens + len(contexts), len(contexts), len(chunks), caches, scored, kind)

    def prompt(self, tokens: Number, context: Number = 0) -> StepTime:
        """The time to compute a prompt of ``tokens`` tokens behind ``context`` cached ones, with nothing else running, chunk by chunk.

        Pipeline stages work on different chunks at the same time. The bound is that of a prompt which is computed at once.
        """
        passes = ceil_div(tokens, self.chunk)
        each = tokens / passes
        whole = self.step(prompt_tokens=tokens, prompt_context=context)
        # Chunks differ in what lies before them alone, so that of the mean chunk counts for all.
        middle = context + (tokens - each) / 2
        pairs = self.prompt_flops(context + tokens) - self.prompt_flops(context)
        behind = smaller(middle, 1)
        caches = [behind * self._read(place, larger(middle // 1, 1)) for place in self.places]
        one = self._time(each, 0, 1, caches, pairs / passes, "prompt")
        if one.expected is None:
            return replace(whole, bound=whole.bound / self.pp)
        # The first chunk passes all stages, and each further one leaves the last stage a stage's time later.
        times = (passes + self.pp - 1) / self.pp
        bound = whole.bound / self.pp
        return _ranged({name: times * value for name, value in one.terms.items()}, bound, self.speed_class, "prompt")

    def prompt_flops(self, tokens: Number) -> Number:
        """Operations of attention for a prompt of so many tokens, on one rank."""
        return sum(each * positions_sum(span, tokens, self.encoder_tokens, most) for each, span, most in self.prompt_attention)

    def touched(
        self, share: WeightShare, tokens: Number, routed: Number, sampled: Number, prompts: Number, power: float
    ) -> Number:
        """The bytes of these weights that a rank reads in a step."""
        if share.use is Use.ENCODER:
            return share.bytes / self.tp * smaller(prompts, 1)
        if share.use is Use.LAST:
            return share.bytes / self.tp * smaller(sampled, 1)
        if share.use is Use.CHOSEN:
            return share.touched_bytes(routed, power) / self.expert_ranks
        return share.touched_bytes(tokens) / self.tp

    def _read(self, place: _Place, tokens: Number) -> Number:
        """The bytes that a rank reads there of the caches of one sequence."""
        return _sum(place.cache, tokens) / self.dcp

    def _flops(self, tokens: Number, sampled: Number, prompts: Number) -> list[tuple[WeightShare, tuple[str, ...], Number]]:
        """The operations of a rank with each share of the weights."""
        counts = []
        for share, rates in self.form.shares:
            if share.use is Use.ROW:
                continue
            ranks = self.expert_ranks / self.replicas if share.use is Use.CHOSEN else self.tp
            used: Number = {Use.LAST: sampled, Use.ENCODER: prompts * self.encoder_tokens}.get(share.use, tokens)
            counts.append((share, rates, used * share.flops_per_token / ranks))
        return counts

    def _time(
        self, tokens: Number, decoding: Number, prompts: Number, caches: Sequence[Number], scored: Number, kind: str
    ) -> StepTime:
        sampled = decoding + prompts
        routed = tokens * self.replicas
        flops = self._flops(tokens, sampled, prompts)
        read = [
            (place.bandwidth, place.weight_bytes(self, tokens, routed, sampled, prompts, ALIKE), cache)
            for place, cache in zip(self.places, caches, strict=True)
        ]
        reading = sum((weights + cache) / rate for rate, weights, cache in read if rate)
        counts = [*((names, count) for _, names, count in flops), (self.form.attention_rates, scored)]
        computing = sum(count / peak[1] for names, count in counts if (peak := fastest(self.gpu, names)) is not None)
        bound = larger(reading, computing)
        chosen = self.parameters
        if chosen is None:
            return StepTime(bound, None, None, None, {})
        terms = self._terms(chosen, tokens, routed, sampled, decoding, prompts, caches, flops, scored)
        return _ranged(terms, bound, self.speed_class, kind)

    def _terms(
        self,
        chosen: StepParameters,
        tokens: Number,
        routed: Number,
        sampled: Number,
        decoding: Number,
        prompts: Number,
        caches: Sequence[Number],
        flops: Sequence[tuple[WeightShare, tuple[str, ...], Number]],
        scored: Number,
    ) -> dict[str, Number]:
        """Seconds of each term of :data:`TERMS`."""
        weights_s: Number = 0.0
        cache_s: Number = 0.0
        for place, cache in zip(self.places, caches, strict=True):
            if place.bandwidth:
                rate = place.bandwidth * chosen.bandwidth_share
                weights_s = weights_s + place.weight_bytes(self, tokens, routed, sampled, prompts, chosen.expert_power) / rate
                cache_s = cache_s + chosen.cache_times * cache / rate
        matrices_s: Number = 0.0
        for share, names, count in flops:
            peak = fastest(self.gpu, names)
            if peak is not None:
                reached = chosen.compute_shares[multiplied(share.format)] * (
                    chosen.expert_compute if share.use is Use.CHOSEN else 1.0
                )
                matrices_s = matrices_s + count / (peak[1] * reached)
        peak = fastest(self.gpu, self.form.attention_rates)
        attention_s = 0 * scored if peak is None else scored / (peak[1] * chosen.attention_share)
        layer_us = chosen.layer_us
        if self.has_experts and chosen.expert_layer_us is not None:
            layer_us = chosen.expert_layer_us
        fixed_us = chosen.step_us + self.layers * layer_us + (self.pp - 1) * chosen.stage_us
        return {
            "weights": weights_s,
            "cache": cache_s,
            "matrices": matrices_s,
            "attention": attention_s,
            "launches": 1e-6 * (fixed_us + chosen.sequence_us * decoding),
            "exchange": self._exchange(chosen, tokens),
        }

    def _exchange(self, chosen: StepParameters, tokens: Number) -> Number:
        ranks = max(self.tp, min(self.expert_ranks, self.tp * self.replicas))
        if ranks == 1:
            return 0.0 * tokens
        link = link_rate(self.gpu)
        sent = _EXCHANGES * 2 * (ranks - 1) / ranks * tokens * self.hidden_size * _HIDDEN_BYTES
        moving = 0.0 if link is None else sent / (link * chosen.link_share)
        return self.layers * (1e-6 * chosen.exchange_us + moving)


def _sum(terms: Iterable[Growing], tokens: Number) -> Number:
    total: Number = 0 * tokens
    for term in terms:
        total = total + term.at(tokens)
    return total


def _together(terms: Iterable[Growing]) -> tuple[Growing, ...]:
    """Terms that grow alike as one."""
    sums: dict[tuple[int | None, tuple[Stair, ...]], int] = {}
    for term in terms:
        key = term.most, term.stairs
        sums[key] = sums.get(key, 0) + term.each
    return tuple(Growing(each, most, stairs) for (most, stairs), each in sums.items())


def _is_zero(number: Number) -> bool:
    return isinstance(number, (int, float)) and number == 0


def _ranged(terms: Mapping[str, Number], bound: Number, chosen: SpeedClass | None, kind: str) -> StepTime:
    """The sum of the terms, never shorter than the bound, with the range of the class."""
    assert chosen is not None
    expected: Number = 0.0
    for value in terms.values():
        expected = expected + value
    spread = chosen.ranges.get(kind) or next(iter(chosen.ranges.values()))
    return StepTime(bound, expected, larger(expected / spread.high, bound), expected / spread.low, terms)


def _places(
    reads: Sequence[DeviceReads], form: DecodeForm, bandwidth: float | None, stack: Stack, load: Workload
) -> tuple[_Place, ...]:
    """The devices that wait for each other; all GPUs together where they work alike."""
    if not is_divided(reads):
        return (_Place("gpu", tuple(share for share, _ in form.shares), _together(form.cache), bandwidth),)
    places = []
    for one in reads:
        rate = bandwidth if one.gbps is None else one.gbps * 1e9
        held = Stack(tuple(stack.layers[number] for number in one.cache_layers if number < len(stack.layers)))
        places.append(_Place(one.device, shares_of((one,)), _together(cache_form(held, load)), rate and rate * one.at_once))
    return tuple(places)


def multiplied(form: str) -> str:
    """How weights of a format are multiplied: the key of ``compute_shares``."""
    for name, forms in (("floats", _FLOATS), ("eight_bit", _EIGHT), ("four_bit", _FOUR), ("weight_only", _WEIGHT_ONLY)):
        if form in forms:
            return name
    return "gguf"


_PCIE_GBPS: Final = {"PCIe3": 0.985, "PCIe4": 1.969, "PCIe5": 3.938, "PCIe6": 7.563}
"""GB/s of a lane in one direction."""


def link_rate(gpu: Gpu) -> float | None:
    """Bytes per second that an accelerator sends to the others of its node, in one direction; ``None`` if unknown."""
    both = gpu.interconnect.get("gbps_bidirectional")
    if isinstance(both, (int, float)):
        return both * 1e9 / 2
    generation, _, lanes = str(gpu.interconnect.get("host") or "").partition(" x")
    lane = _PCIE_GBPS.get(generation)
    count = lanes.partition(" ")[0]
    return lane * int(count) * 1e9 if lane is not None and count.isdigit() else None


def step_times(opened: Occupancy, *, speed_class: SpeedClass | None = None, backend: str | None = None) -> StepTimes | None:
    """The steps of a deployment as an occupancy plans it; ``None`` without a GPU, or if the weights are not counted.

    ``speed_class`` is the class to go by, if not that of the engine and the accelerator.
    """
    gpu = opened.setup.hardware.gpu
    if gpu is None:
        return None
    reads = opened.told(opened.devices.reads())
    load = workload_of(opened)
    form = decode_form(opened.model, load, shares_of(reads) or None)
    if form is None:
        return None
    parallel = load.parallel
    return StepTimes(
        places=_places(reads, form, known_bandwidth(gpu), opened.model.stack_for(load.engine), load),
        form=replace(form, attention=_together(form.attention)),
        prompt_attention=prompt_terms(opened.model, load),
        gpu=gpu,
        speed_class=speed_class or find_speed_class(opened.engine.name, gpu, backend),
        layers=sum(group.count for group in opened.deployment.plain_stack.groups),
        hidden_size=opened.model.hidden_size or 0,
        has_experts=any(share.use is Use.CHOSEN for share, _ in form.shares),
        tp=parallel.tp,
        pp=parallel.pp,
        dcp=parallel.dcp,
        expert_ranks=parallel.expert_ranks,
        replicas=parallel.dp if parallel.expert_ranks > parallel.tp else 1,
        chunk=max(1, next((one.pass_tokens for one in reads if one.pass_tokens), None) or opened.forward_tokens()[1]),
        encoder_tokens=load.encoder_tokens,
    )

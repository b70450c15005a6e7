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
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas import CompressedAttention, LatentAttention, Stack
from hwcalc.formulas.arithmetic import ceil_div, larger, picked, smaller
from hwcalc.formulas.flops import positions_sum
from hwcalc.planner.measured_speed import as_measured
from hwcalc.planner.speed import is_divided, known_bandwidth, output_bytes, pass_bytes, shares_of, summed
from hwcalc.planner.speed_work import (
    ALIKE,
    RATES,
    SIXTEEN,
    Growing,
    Use,
    WeightShare,
    cache_form,
    decode_form,
    fastest,
    form_of,
    prompt_terms,
    workload_of,
)
from hwcalc.profiles.links import host_link
from hwcalc.profiles.speed import MOST_REACHED, SpeedClass, StepParameters, find_speed_class

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.devices import Copied, DeviceReads
    from hwcalc.formulas.stairs import Stair
    from hwcalc.planner.speed_work import DecodeForm, PromptTerm, Workload
    from hwcalc.profiles.hardware_file import Gpu

Number = Any
"""A number, or an array of numbers."""
TERMS: Final = ("weights", "experts", "cache", "copies", "unpacking", "matrices", "attention", "launches", "exchange")
"""The terms of a step, in the order in which they are explained: reading weights, the experts of its tokens and caches; copying weights out of
host memory; unpacking quantised weights; multiplying matrices; attention; launching kernels; and what the ranks exchange."""
_FLOATS: Final = frozenset({"fp32", "fp16", "bf16"})
_EIGHT: Final = frozenset({"fp8", "fp8_channel", "fp8_block", "mxfp8", "int8", "bnb8"})
_FOUR: Final = frozenset({"mxfp4", "nvfp4"})
_WEIGHT_ONLY: Final = frozenset({"int4", "gptq", "awq", "bnb4", "bnb4_double", "ternary"})
_HOST_LOW: Final = 0.6
"""How much lower the low end is where the host has a part of the model."""
_HIDDEN_BYTES: Final = 2
"""Bytes of a number that ranks exchange: engines keep hidden states in 16 bits."""
_LATENT_LAUNCHES: Final = 21 / 16
"""How many layers one with latents launches: 11 kernels before its second norm instead of 6, of 16 in a layer with experts. Queries pass two
matrices, both halves of them a norm, and products on both sides of attention stand for the keys and values (vllm/model_executor/layers/mla.py)."""


class StepTime(Struct, frozen=True):
    """Seconds of a step: the expected time, the sum of its ``terms``, and the ``bound`` that nothing is faster than.

    The bound is the longer of ``reading`` and ``computing`` at full rates. ``low`` and ``high`` are times too: ``low`` is the shortest of
    the range. All are numbers, or arrays of one shape. What an unmeasured class would take is ``None``.
    """

    bound: Number
    expected: Number
    low: Number
    high: Number
    terms: Mapping[str, Number]
    reading: Number
    computing: Number


class _Place(Struct, frozen=True):
    """A device, or all GPUs that work alike: what a pass reads there, and how fast."""

    name: str
    shares: tuple[WeightShare, ...]
    cache: tuple[Growing, ...]
    bandwidth: float | None
    seen: float | None = None
    """What it was seen to read at most, if that is far less than its bandwidth."""
    copied: Copied | None = None
    """How a pass of many tokens copies the weights to an accelerator, if it does."""
    accelerator: float | None = None
    """The bandwidth of the accelerator's memory, out of which copied weights are read."""
    last_layer: tuple[WeightShare, ...] = ()
    """Weights of which the passes of a prompt may compute no more than its last token."""

    def reading(self, share: float) -> Number | None:
        """The bytes per second of kernels that reach this share of the bandwidth; ``None`` if unknown."""
        if self.bandwidth is None or self.seen is None:
            return None if self.bandwidth is None else self.bandwidth * share
        return smaller(self.bandwidth * share, self.seen)

    def copies(self, tokens: Number) -> Number:
        """True if a pass of so many tokens copies the weights to the accelerator."""
        return self.copied is not None and self.copied.by(tokens)

    def rate(self, tokens: Number, link_share: float = 1.0) -> Number:
        """Bytes per second of the weights in a pass of so many tokens, of which a link reaches this share of its rate."""
        assert self.bandwidth is not None
        return self.bandwidth if self.copied is None else self.copied.rate(self.bandwidth, tokens, link_share)


class _Work(Struct, frozen=True):
    """What a step does: tokens of prompts and decoded ones together, decoded sequences, and prompts that end.

    ``decoding`` are the tokens of those sequences. ``caches`` are the bytes of cache that are read at each place, and ``scored`` the operations of attention.
    """

    tokens: Number
    decoding: Number
    prompts: Number
    caches: tuple[Number, ...]
    scored: Number

    def __add__(self, other: _Work) -> _Work:
        """Both in one step."""
        return _Work(
            tokens=self.tokens + other.tokens,
            decoding=self.decoding + other.decoding,
            prompts=self.prompts + other.prompts,
            caches=tuple(one + another for one, another in zip(self.caches, other.caches, strict=True)),
            scored=self.scored + other.scored,
        )


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
    launched: float
    """Layers, by how many kernels they launch."""
    hidden_size: int
    has_experts: bool
    tp: int
    pp: int
    dcp: int
    expert_ranks: int
    replicas: int
    chunk: int
    servers: int = 1
    """Data-parallel replicas, each with its own requests."""
    mixes_prompts: bool = True
    """Whether the engine begins a prompt while it decodes other sequences."""
    whole_experts: int = 1
    """The ranks over which whole experts are dealt; 1 where each expert is divided instead."""
    encoder_tokens: int = 0
    accepted_tokens: float = 1.0
    """Tokens that a step adds to each sequence on average: more than one where drafts are accepted."""
    verified_tokens: int = 1
    """Tokens of each sequence that a step computes, its drafts and the one behind them. What drafting takes is not counted."""

    @property
    def parameters(self) -> StepParameters | None:
        """The shares and times of the class."""
        return None if self.speed_class is None else self.speed_class.parameters

    def range_of(self, kind: str) -> tuple[float, float]:
        """Low and high as factors of the expected speed. Few measured models of which the host has a part: the low end is far off then."""
        low, high = (1.0, 1.0) if self.speed_class is None else self.speed_class.range_of(kind)
        return low * (1.0 if len(self.places) == 1 else _HOST_LOW), high

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
        # A chunk reads what lies before it once.
        ahead = smaller(prompt_tokens, 1) * smaller(prompt_context, 1)
        prompt = _Work(
            tokens=prompt_tokens,
            decoding=0,
            prompts=ending,
            caches=tuple(ahead * self._read(place, larger(prompt_context, 1)) for place in self.places),
            scored=pairs,
        )
        return self._time(self._decoding_work(decoding, context) + prompt, "decode" if _is_zero(prompt_tokens) else "serving")

    def decode(self, sequences: Number, context: Number) -> StepTime:
        """The time of a step in which each of so many sequences, on all replicas and stages, gains a token or what is accepted."""
        return self.step(decoding=larger(larger(sequences / self.servers, 1.0) / self.pp, 1.0), context=context)

    def mixed(self, chunks: Sequence[tuple[int, int]], contexts: Sequence[int]) -> StepTime:
        """The time of a step of unlike requests: ``chunks`` are tokens and context of each prompt, ``contexts`` the tokens of each decoded sequence.

        All prompts count as ending in the step.
        """
        from numpy import array

        lengths = array([max(1, one) for one in contexts], dtype="int64")
        pairs = sum(self.prompt_flops(before + count) - self.prompt_flops(before) for count, before in chunks)
        work = _Work(
            tokens=sum(count for count, _ in chunks) + len(contexts),
            decoding=len(contexts),
            prompts=len(chunks),
            caches=tuple(
                sum(self._read(place, before) for _, before in chunks if before) + float(self._read(place, lengths).sum())
                for place in self.places
            ),
            scored=pairs + float(_sum(self.form.attention, lengths).sum()),
        )
        return self._time(work, "decode" if not chunks else "serving" if contexts else "prompt")

    def prompt(self, tokens: Number, context: Number = 0) -> StepTime:
        """The time to compute a prompt of ``tokens`` tokens behind ``context`` cached ones, with nothing else running, chunk by chunk.

        Pipeline stages work on different chunks at the same time, as far as the class says so and the host has no part of the model. The
        bound is that of a prompt which is computed at once, but for what is copied chunk by chunk.
        """
        passes = ceil_div(tokens, self.chunk)
        each = tokens / passes
        whole = self.step(prompt_tokens=tokens, prompt_context=context)
        reading, computing = whole.reading / self.pp + self._copied_again(tokens), whole.computing / self.pp
        one = self._time(self._chunk_work(each, tokens, context), "prompt")
        if one.expected is None:
            return _unmeasured(reading, computing)
        # The first chunk passes all stages, and each further one leaves the last stage a stage's time later.
        assert self.parameters is not None
        together = self.parameters.stages_together if len(self.places) == 1 else 0.0
        times = together * (passes + self.pp - 1) / self.pp + (1 - together) * passes
        terms = {name: times * value for name, value in one.terms.items()}
        return _ranged(terms, reading, computing, self.range_of("prompt"))

    def _copied_again(self, tokens: Number) -> Number:
        """Seconds that copies take at least, beyond those of a pass that computes a prompt of so many tokens at once.

        They are less than none where that pass reads more: of its last layer all tokens, on each stage a part.
        """
        seconds: Number = 0.0
        earlier = larger(tokens - 1, 0) // self.chunk
        for place in self.places:
            if place.copied is not None and place.bandwidth:
                weights = place.shares, place.last_layer
                left = tokens - earlier * self.chunk
                each, last = (pass_bytes(*weights, count) / place.rate(count) for count in (self.chunk, left))
                at_once = sum(share.touched_bytes(tokens) for share in place.shares) / place.rate(tokens)
                seconds = seconds + earlier * each + last + output_bytes(*weights) / place.bandwidth - at_once / self.pp
        return seconds

    def with_prompts(self, chunk: Number, prompt: Number, prompt_context: Number, decoding: Number, context: Number) -> StepTime:
        """The time of a step that decodes, and computes ``chunk`` tokens of prompts of ``prompt`` tokens: parts of one, or several."""
        work = self._decoding_work(decoding, context) + self._chunk_work(chunk, prompt, prompt_context)
        return self._time(work, "serving")

    def _decoding_work(self, sequences: Number, context: Number) -> _Work:
        """The work of a token, or of what is verified, of each of these sequences."""
        tokens, length = sequences * self.verified_tokens, larger(context, 1)
        return _Work(
            tokens=tokens,
            decoding=tokens,
            prompts=0,
            caches=tuple(sequences * self._read(place, length) for place in self.places),
            scored=tokens * _sum(self.form.attention, length),
        )

    def _chunk_work(self, chunk: Number, prompt: Number, context: Number) -> _Work:
        """The work of ``chunk`` tokens of prompts: chunks differ in what lies before them alone, so the middle of the prompt counts for all."""
        share = chunk / prompt
        pairs = self.prompt_flops(context + prompt) - self.prompt_flops(context)
        middle = context + larger(prompt - chunk, 0) / 2
        behind = smaller(middle, 1)
        return _Work(
            tokens=chunk,
            decoding=0,
            prompts=larger(share, 1),
            caches=tuple(behind * self._read(place, larger(middle // 1, 1)) for place in self.places),
            scored=pairs * share,
        )

    def prompt_flops(self, tokens: Number) -> Number:
        """Operations of attention for a prompt of so many tokens, on one rank."""
        return sum(each * positions_sum(span, tokens, self.encoder_tokens, most) for each, span, most in self.prompt_attention)

    def _touched(self, share: WeightShare, work: _Work, power: float, *, fullest: bool) -> Number:
        """The share of these weights that a rank reads in a step, of those of all ranks."""
        if share.use is Use.ENCODER:
            return smaller(work.prompts, 1) / self.tp
        if share.use is Use.LAST:
            return smaller(work.decoding + work.prompts, 1) / self.tp
        if share.use is not Use.CHOSEN:
            return share.touched_bytes(work.tokens) / share.bytes / self.tp if share.bytes else 0.0
        used = share.touched_bytes(work.tokens * self.replicas, power) / share.bytes
        if not fullest or self.whole_experts == 1:
            return used / self.expert_ranks
        most = fullest_deviations(self.whole_experts)
        held = share.copies / self.whole_experts
        mean = used * held
        return smaller(mean + most * (mean * (1 - used)) ** 0.5, held) / share.copies

    def _read(self, place: _Place, tokens: Number) -> Number:
        """The bytes that a rank reads there of the caches of one sequence."""
        return _sum(place.cache, tokens) / self.dcp

    def _flops(self, work: _Work) -> list[tuple[WeightShare, tuple[str, ...], Number]]:
        """The operations of a rank with each share of the weights, and the rates at which they may run."""
        counts = []
        for share, rates in self.form.shares:
            if share.use is Use.ROW:
                continue
            ranks = self.expert_ranks / self.replicas if share.use is Use.CHOSEN else self.tp
            others = {Use.LAST: work.decoding + work.prompts, Use.ENCODER: work.prompts * self.encoder_tokens}
            used: Number = others.get(share.use, work.tokens)
            counts.append((share, rates, used * share.flops_per_token / ranks))
        return counts

    def _time(self, work: _Work, kind: str) -> StepTime:
        flops = self._flops(work)
        reading: Number = 0.0
        for place, cache in zip(self.places, work.caches, strict=True):
            if place.bandwidth:
                weights = sum(share.bytes * self._touched(share, work, ALIKE, fullest=False) for share in place.shares)
                reading = reading + weights / place.rate(work.tokens) + cache / place.bandwidth
        counts = [*((names, count) for _, names, count in flops), (self.form.attention_rates, work.scored)]
        computing = sum(count / peak[1] for names, count in counts if (peak := fastest(self.gpu, names)) is not None)
        chosen = self.parameters
        if chosen is None:
            return _unmeasured(reading, computing)
        return _ranged(self._terms(chosen, work, flops), reading, computing, self.range_of(kind))

    def _terms(
        self, chosen: StepParameters, work: _Work, flops: Sequence[tuple[WeightShare, tuple[str, ...], Number]]
    ) -> dict[str, Number]:
        """Seconds of each term of :data:`TERMS`."""
        terms: dict[str, Number] = dict.fromkeys(TERMS, 0.0)
        vectors = self.gpu.tflops_dense.get("fp32")
        for place, cache in zip(self.places, work.caches, strict=True):
            reading: Number = 0.0
            unpacking: Number = 0.0
            memory = bandwidth = place.reading(chosen.bandwidth_share)
            power: Number = chosen.expert_power
            copies = place.copies(work.tokens)
            if memory is not None and place.copied is not None:
                # A copy is read where it arrives.
                bandwidth = picked(copies, (place.accelerator or memory) * chosen.bandwidth_share, memory)
                power = picked(copies & (work.tokens > work.decoding), chosen.copied_power, power)
            for share in place.shares:
                touched = self._touched(share, work, power, fullest=True)
                if memory is not None and place.copied is not None:
                    copied = share.bytes * touched / place.copied.rate(memory, work.tokens, chosen.copied_share)
                    terms["copies"] = terms["copies"] + copies * copied
                if bandwidth is not None:
                    term, reached = ("experts", chosen.expert_bandwidth) if share.use is Use.CHOSEN else ("weights", 1.0)
                    seconds = share.bytes * touched / (bandwidth * reached)
                    terms[term], reading = terms[term] + seconds, reading + seconds
                unpacked = chosen.unpack_shares.get(packed(share.format, integers=chosen.integer_matrices))
                if unpacked is not None and vectors is not None and share.use is not Use.ROW:
                    rate = vectors * 1e12 * unpacked * chosen.integer_products
                    unpacking = unpacking + 2 * share.parameters * touched / rate
            # A kernel unpacks some weights while it reads others: what is longer counts nearly alone.
            terms["unpacking"] = terms["unpacking"] + (reading**2 + unpacking**2) ** 0.5 - reading
            if memory is not None:
                terms["cache"] = terms["cache"] + chosen.cache_times * cache / memory
        for share, names, count in flops:
            peak = fastest(self.gpu, rates_of(share.format, names, chosen, self.gpu))
            if peak is not None:
                reached = chosen.compute_shares[multiplied(share.format)]
                if packed(share.format) == "superblocks":
                    reached = reached * chosen.superblock_share
                if share.use is Use.CHOSEN:
                    reached = reached * chosen.expert_compute
                    touched = self._touched(share, work, chosen.expert_power, fullest=True)
                    count = count + chosen.expert_rows * 2 * share.parameters * touched  # noqa: PLW2901
                # An instruction is two operations on 32-bit numbers, and 32 products are 64.
                scaling = (
                    0.0
                    if vectors is None or packed(share.format) == "none"
                    else chosen.scale_instructions / (32 * vectors * 1e12)
                )
                terms["matrices"] = terms["matrices"] + count * (1 / peak[1] + scaling) / reached
        matrices = fastest(self.gpu, self.form.attention_rates)
        attending = None if matrices is None else matrices[1]
        if chosen.vector_attention:
            attending = None if vectors is None else vectors * 1e12
        if attending is not None:
            terms["attention"] = work.scored / (attending * chosen.attention_share)
        layer_us = chosen.layer_on(self.gpu, experts=self.has_experts)
        fixed_us = chosen.step_us + self.launched * layer_us + (self.pp - 1) * chosen.stage_us
        terms["launches"] = 1e-6 * (fixed_us + chosen.sequence_us * (work.decoding + work.prompts))
        terms["exchange"] = self._exchange(chosen, work.tokens)
        return terms

    def _exchange(self, chosen: StepParameters, tokens: Number) -> Number:
        ranks = max(self.tp, min(self.expert_ranks, self.tp * self.replicas))
        if ranks == 1:
            return 0.0 * tokens
        link = link_rate(self.gpu)
        # After attention the ranks of a replica add up what they computed, and after the experts those of all replicas, for the tokens of all.
        exchanged = (self.tp - 1) / self.tp + self.replicas * (ranks - 1) / ranks
        sent = 2 * exchanged * tokens * self.hidden_size * _HIDDEN_BYTES
        moving = 0.0 if link is None else sent / (link * chosen.link_share)
        return self.layers * (1e-6 * (chosen.exchange_us + chosen.peer_us * (ranks - 1)) + moving)


def _sum(terms: Iterable[Growing], tokens: Number) -> Number:
    total: Number = 0 * tokens
    for term in terms:
        total = total + term.at(tokens)
    return total


def fullest_deviations(ranks: int) -> float:
    """How many standard deviations the fullest of ranks with whole experts has above their mean: as the largest of so many normal numbers.

    >>> fullest_deviations(1), round(fullest_deviations(8), 2)
    (0.0, 1.43)
    """
    from statistics import NormalDist

    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def launched_layers(stack: Stack) -> float:
    """The number of layers, where one counts for more that launches more kernels."""
    latent = (LatentAttention, CompressedAttention)
    return sum(group.count * (_LATENT_LAUNCHES if isinstance(group.kind, latent) else 1) for group in stack.groups)


def _together(terms: Iterable[Growing]) -> tuple[Growing, ...]:
    """Terms that grow alike as one."""
    sums: dict[tuple[int | None, tuple[Stair, ...]], int] = {}
    for term in terms:
        key = term.most, term.stairs
        sums[key] = sums.get(key, 0) + term.each
    return tuple(Growing(each, most, stairs) for (most, stairs), each in sums.items())


def _is_zero(number: Number) -> bool:
    return isinstance(number, (int, float)) and number == 0


def _unmeasured(reading: Number, computing: Number) -> StepTime:
    return StepTime(larger(reading, computing), None, None, None, {}, reading, computing)


def _ranged(terms: Mapping[str, Number], reading: Number, computing: Number, ends: tuple[float, float]) -> StepTime:
    """The sum of the terms, with its range, whose short end is no shorter than the bound by what engines reach of it at most."""
    expected: Number = 0.0
    for value in terms.values():
        expected = expected + value
    low, high = ends
    bound = larger(reading, computing)
    return StepTime(bound, expected, shortest(expected, bound, high), expected / low, terms, reading, computing)


def shortest(expected: Number, bound: Number, high: float) -> Number:
    """The short end of an expected time: by the range of its class, but no faster than :data:`MOST_REACHED` of the bound, nor slower than it."""
    return larger(larger(expected / high, smaller(expected, bound / MOST_REACHED)), bound)


def _places(reads: Sequence[DeviceReads], form: DecodeForm, gpu: Gpu, stack: Stack, load: Workload) -> tuple[_Place, ...]:
    """The devices that wait for each other; all GPUs together where they work alike."""
    bandwidth = known_bandwidth(gpu)
    if not is_divided(reads):
        return (_alone(form, gpu),)
    places = []
    for one in reads:
        rate = bandwidth if one.gbps is None else one.gbps * 1e9
        held = Stack(tuple(stack.layers[number] for number in one.cache_layers if number < len(stack.layers)))
        place = _Place(one.device, shares_of((one,)), _together(cache_form(held, load)), rate and rate * one.at_once)
        places.append(replace(place, copied=one.copied, accelerator=bandwidth, last_layer=summed(one.last_layer)))
    return tuple(places)


def _alone(form: DecodeForm, gpu: Gpu) -> _Place:
    """A GPU that holds all there is, or several that work alike."""
    seen = gpu.memory_bandwidth_seen_gbps
    shares = tuple(share for share, _ in form.shares)
    return _Place("gpu", shares, _together(form.cache), known_bandwidth(gpu), None if seen is None else seen * 1e9)


def multiplied(form: str) -> str:
    """The way in which weights of a format are multiplied: the key of ``compute_shares``."""
    for name, forms in (("floats", _FLOATS), ("eight_bit", _EIGHT), ("four_bit", _FOUR), ("weight_only", _WEIGHT_ONLY)):
        if form in forms:
            return name
    return "gguf"


def packed(form: str, *, integers: bool = True) -> str:
    """The way in which numbers of a format are packed: the key of ``unpack_shares``. GGUF calls groups of blocks superblocks.

    ``integers`` are multiplied as they are, or unpacked to 16 bits.
    """
    if form in _FLOATS or (form in _EIGHT and integers):
        return "none"
    return "superblocks" if form.startswith("iq") or form.endswith("_k") else "blocks"


def rates_of(form: str, rates: tuple[str, ...], parameters: StepParameters, gpu: Gpu) -> tuple[str, ...]:
    """The rates at which the kernels of a class may multiply weights of a format, which may be multiplied at ``rates`` at best.

    Cards of AMD before RDNA 3 and CDNA have no matrix units: there llama.cpp adds up products of 8-bit integers, with either backend (ggml-org/llama.cpp#12135).
    """
    if form == "bf16" and not (gpu.architecture or "").startswith(parameters.bf16_matrices):
        return RATES["fp32"]
    without_matrices = gpu.vendor == "amd" and gpu.tflops_dense.get("bf16") is None
    return rates if parameters.integer_matrices or without_matrices else SIXTEEN


def link_rate(gpu: Gpu) -> float | None:
    """Bytes per second that an accelerator sends to the others of its node, in one direction; ``None`` if unknown."""
    both = gpu.interconnect.get("gbps_bidirectional")
    if isinstance(both, (int, float)):
        return both * 1e9 / 2
    link = host_link(gpu)
    return None if link is None else link.gbps * 1e9


def speed_class_of(opened: Occupancy, backend: str | None = None, engine: str | None = None) -> SpeedClass | None:
    """The class of the engine and the accelerator of an occupancy, or of another engine on it; ``None`` if nothing like it was measured."""
    gpu = opened.setup.hardware.gpu
    if gpu is None:
        return None
    found = find_speed_class(engine or opened.engine.name, gpu, backend, opened.deployment.traits.build)
    return as_measured(opened, found) if engine is None else found


def speculating(times: StepTimes, opened: Occupancy, accepted_tokens: float) -> StepTimes:
    """The steps with speculative decoding that adds so many tokens to each sequence on average; as they are for one token.

    The engine's options say how many tokens are drafted; else they are as few as could be accepted. Raises
    :class:`~hwcalc.errors.UsageError` if more are accepted than drafted.
    """
    if accepted_tokens == 1:
        return times
    drafted = opened.deployment.traits.drafted_tokens or ceil(accepted_tokens) - 1
    if accepted_tokens > drafted + 1:
        raise UsageError(
            f"accepted-tokens is {accepted_tokens:g}, but {drafted:,} tokens are drafted for each sequence.",
            hint=f"Allowed: from 1 to {drafted + 1:,}, with the one behind them.",
        )
    return replace(times, accepted_tokens=accepted_tokens, verified_tokens=drafted + 1)


def steps_alone(stack: Stack, shares: Iterable[WeightShare], load: Workload, gpu: Gpu, loaded_layers: int) -> StepTimes:
    """The steps of sequences without a prompt on one accelerator, of layers and weights that are known without a deployment: for lists of models.

    ``loaded_layers`` are those that the engine loads: the stack's, and such as predict several tokens.
    """
    form = form_of(stack, load, shares)
    return StepTimes(
        places=(_alone(form, gpu),),
        form=replace(form, attention=_together(form.attention)),
        prompt_attention=(),
        gpu=gpu,
        speed_class=find_speed_class(load.engine, gpu),
        layers=sum(group.count for group in stack.groups) + loaded_layers - len(stack),
        launched=launched_layers(stack) + loaded_layers - len(stack),
        hidden_size=0,
        has_experts=any(share.use is Use.CHOSEN for share, _ in form.shares),
        tp=1,
        pp=1,
        dcp=1,
        expert_ranks=1,
        replicas=1,
        chunk=1,
    )


def step_times(opened: Occupancy, *, speed_class: SpeedClass | None = None) -> StepTimes | None:
    """The steps of a deployment as an occupancy plans it; ``None`` without a GPU, or if the weights are not counted.

    ``speed_class`` is the class to go by, if not that of the engine and the accelerator (:func:`speed_class_of`).
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
    has_experts = any(share.use is Use.CHOSEN for share, _ in form.shares)
    return StepTimes(
        places=_places(reads, form, gpu, opened.model.stack_for(load.engine), load),
        form=replace(form, attention=_together(form.attention)),
        prompt_attention=prompt_terms(opened.model, load),
        gpu=gpu,
        speed_class=speed_class or speed_class_of(opened),
        layers=sum(group.count for group in opened.deployment.plain_stack.groups),
        launched=launched_layers(opened.deployment.plain_stack),
        hidden_size=opened.model.hidden_size or 0,
        has_experts=has_experts,
        tp=parallel.tp,
        pp=parallel.pp,
        dcp=parallel.dcp,
        expert_ranks=parallel.expert_ranks,
        replicas=parallel.dp if has_experts and parallel.expert_ranks > parallel.tp else 1,
        chunk=max(1, next((one.pass_tokens for one in reads if one.pass_tokens), None) or opened.forward_tokens()[1]),
        servers=parallel.dp,
        mixes_prompts=opened.engine.facts.mixes_prompts,
        whole_experts=parallel.ep,
        encoder_tokens=load.encoder_tokens,
    )

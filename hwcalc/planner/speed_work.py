"""What a decode step and a prompt read and compute on one rank: the part of the roofline that is the same on every accelerator.

:mod:`hwcalc.planner.speed` has the rules, and makes of it the bound on one accelerator with all that is said of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.formulas import Once, Role
from hwcalc.formulas.flops import decode_flops, prefill_flops, selected_tokens
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.passes import Passes, passes_of, whole_passes
from hwcalc.planner.speed_rates import ANY_RATE, RATES, SIXTEEN, fastest, reached
from hwcalc.planner.weight_share import Use, WeightShare
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.formulas import DType, LayerKind, Stack
    from hwcalc.profiles.gpus import Gpu

UNCOUNTED: Final = Note(code="speed-unknown", message="No bound on speed: the model's weights are not counted.")

Flops = dict[tuple[str, ...], float]
"""Operations, by the names of the peak rates at which they may run."""


class Times(NamedTuple):
    """The bounds of a decode step and of a prompt on one accelerator; ``None`` where neither its bandwidth nor its rates are known."""

    decode_tokens_per_s: float | None
    step_s: float | None
    bound_by: str | None
    prefill_s: float | None
    prefill_by: str | None


class Work(NamedTuple):
    """What a decode step and a prompt of one request take, whatever the accelerator.

    ``stack`` and ``caches`` are the layers that a step computes on, and what it reads of them for one sequence.
    """

    decode: Pass
    prompt: Pass
    stack: Stack
    caches: _Caches
    batch: int
    pp: int

    def on(self, gpu: Gpu, bandwidth: float | None) -> Times:
        """How long that takes at least on GPUs of this kind with so many bytes per second each."""
        step_s, bound_by = self.decode.seconds(gpu, bandwidth)
        prompt_s, prefill_by = self.prompt.seconds(gpu, bandwidth)
        return Times(
            decode_tokens_per_s=None if step_s is None else self.batch / step_s,
            step_s=step_s,
            bound_by=bound_by,
            prefill_s=None if prompt_s is None else prompt_s / self.pp,
            prefill_by=prefill_by,
        )

    def unknown(self, gpu: Gpu, bandwidth: float | None) -> list[Note]:
        """A note on what the bound leaves out, as it is not known of the GPU."""
        return _unknown(gpu, {*self.decode.flops, *self.prompt.flops}, bandwidth)


def work_of(
    model: ModelSpec,
    *,
    seq: int,
    batch: int,
    roles: Mapping[Role, DType],
    engine: str = DEFAULT,
    encoder_tokens: int = 0,
    weights: str | None = None,
    dtype: str | None = None,
    parallel: Parallel = ALONE,
    passes: Passes | None = None,
    counted: tuple[WeightShare, ...] | None = None,
) -> Work | None:
    """The part of :func:`speed_bound` that is the same on every accelerator; ``None`` if the model's weights are not counted."""
    counted = counted or model.once(("weight shares", weights, dtype), lambda: _counted(model, weights, dtype))
    if counted is None:
        return None
    whole = whole_passes(model.stack_for(engine), seq)
    kinds = model.once(("rank kinds", engine, parallel.tp), lambda: _rank_kinds(whole.decode, parallel.tp))
    caches = _caches_of(whole, kinds, roles, seq, encoder_tokens)
    stack, prefill = whole.decode, caches
    if passes is not None:
        stack, caches, prefill = passes.decode, *_caches_in(passes, caches, parallel.tp)
    in_32_bits = find_engine(engine)[0].sums_in_32_bits
    return Work(
        decode=_decode_step(_step(counted), caches, batch, parallel, in_32_bits=in_32_bits),
        prompt=_prompt(counted, prefill, parallel, in_32_bits=in_32_bits),
        stack=stack,
        caches=caches,
        batch=batch,
        pp=parallel.pp,
    )


def _counted(model: ModelSpec, weights: str | None, dtype: str | None) -> tuple[WeightShare, ...] | None:
    from hwcalc.planner.weight_use import weight_shares

    return weight_shares(model, weights, dtype)


def decode_of(
    stack: Stack, counted: Iterable[WeightShare], *, seq: int, batch: int, roles: Mapping[Role, DType], engine: str
) -> Pass:
    """The decode step of :func:`work_of` on one rank alone, for lists, which say nothing of a prompt."""
    whole = whole_passes(stack, seq)
    caches = _caches_of(whole, _rank_kinds(whole.decode, 1), roles, seq, 0)
    return _decode_step(_step(counted), caches, batch, ALONE, in_32_bits=find_engine(engine)[0].sums_in_32_bits)


def workload_of(opened: Occupancy) -> dict[str, Any]:
    """What :func:`work_of` asks about a request, by its keywords."""
    return {
        "seq": opened.tokens,
        "batch": opened.batch,
        "roles": opened.dtypes.roles,
        "engine": opened.engine.name,
        "encoder_tokens": opened.encoder_tokens,
        "weights": format_name(opened.request.weights),
        # An engine that runs in 16 bits reads weights of 16 bits, whatever the dtype of the checkpoint.
        "dtype": opened.weight_dtype(),
        "parallel": opened.parallel,
        "passes": passes_of(opened),
    }


class CacheReads(NamedTuple):
    """What a step reads of the caches of one kind of layer: how often it reads an entry -> the bytes of such entries in one layer."""

    kind: str
    layers: int
    times: Mapping[int, int]

    @property
    def bytes(self) -> int:
        """The bytes of all layers."""
        return self.layers * sum(times * size for times, size in self.times.items())


class _Caches(NamedTuple):
    """The caches of one sequence on one rank. ``selected`` is how many tokens sparse attention reads."""

    kinds: tuple[tuple[int, LayerKind], ...]
    roles: Mapping[Role, DType]
    seq: int
    encoder_tokens: int
    selected: int | None
    beside_bytes: int = 0

    @property
    def reads(self) -> tuple[CacheReads, ...]:
        """What one decode step reads and writes, for each kind of layer."""
        found = _cache_reads(self.kinds, self.roles, self.seq, self.encoder_tokens, self.selected)
        return (*found, CacheReads("page_keys", 1, {1: self.beside_bytes})) if self.beside_bytes else found

    def flops(self, of_kind: Callable[..., int]) -> int:
        """Operations of all layers. ``of_kind`` returns those of one layer."""
        return sum(
            count * of_kind(kind, self.seq if kind.kept is None else kind.kept, self.encoder_tokens, selected=self.selected)
            for count, kind in self.kinds
        )


def _caches_of(
    passes: Passes, kinds: tuple[tuple[int, LayerKind], ...], roles: Mapping[Role, DType], seq: int, encoder_tokens: int
) -> _Caches:
    """The caches of a decode step, in layers of these ``kinds``."""
    return _Caches(
        kinds=kinds,
        roles=roles,
        seq=seq,
        encoder_tokens=encoder_tokens,
        selected=selected_tokens(passes.decode),
        beside_bytes=passes.beside_bytes,
    )


def _caches_in(passes: Passes, caches: _Caches, tp: int) -> tuple[_Caches, _Caches]:
    """The caches of a decode step and of a prompt on the layers that they compute on, in place of those of the model."""
    decode = _caches_of(passes, _rank_kinds(passes.decode, tp), caches.roles, caches.seq, caches.encoder_tokens)
    return decode, decode._replace(kinds=_rank_kinds(passes.prompt, tp), seq=passes.prompt_tokens, beside_bytes=0)


class Pass(NamedTuple):
    """The bytes that one rank reads, and the operations that it computes."""

    weights_read: tuple[tuple[Use, float], ...]
    sequences: float
    cache_bytes_each: float
    flops: Flops
    cache_reads: tuple[CacheReads, ...] = ()

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights of all uses."""
        return sum(size for _, size in self.weights_read)

    @property
    def cache_bytes(self) -> float:
        """Bytes of cache of all sequences."""
        return self.sequences * self.cache_bytes_each

    def seconds(self, gpu: Gpu, bandwidth: float | None) -> tuple[float | None, str | None]:
        """The time for reading or for computing, whichever is longer, and which it is."""
        return _slower(self.weight_bytes + self.cache_bytes, self.flops, gpu, bandwidth)


def _decode_step(shares: list[WeightShare], caches: _Caches, batch: int, parallel: Parallel, *, in_32_bits: bool) -> Pass:
    tp, replicas = parallel.tp, min(parallel.dp, batch)
    each = max(1.0, batch / replicas / parallel.pp)
    experts = parallel.expert_ranks
    routed = each * (replicas if experts > tp else 1)
    flops = _weight_flops(shares, tp, experts, each, routed)
    attention = _attention_rates(caches.roles)
    flops[attention] = flops.get(attention, 0) + each * caches.flops(decode_flops)
    reads = caches.reads
    return Pass(
        weights_read=tuple(
            (share.use, _on_rank(share, share.touched_bytes(_tokens(share, each, routed)), tp, experts)) for share in shares
        ),
        sequences=each,
        cache_bytes_each=sum(one.bytes for one in reads) / parallel.dcp,
        flops=reached(flops, in_32_bits=in_32_bits),
        cache_reads=reads,
    )


def _prompt(shares: Iterable[WeightShare], caches: _Caches, parallel: Parallel, *, in_32_bits: bool) -> Pass:
    tp, experts = parallel.tp, parallel.expert_ranks
    flops = _prompt_flops(shares, tp, experts, caches.seq, caches.encoder_tokens)
    attention = _attention_rates(caches.roles)
    flops[attention] = flops.get(attention, 0) + caches.flops(prefill_flops)
    read = tuple((share.use, _on_rank(share, share.touched_bytes(caches.seq), tp, experts)) for share in shares)
    return Pass(weights_read=read, sequences=1, cache_bytes_each=0, flops=reached(flops, in_32_bits=in_32_bits))


def cache_bytes_read(stack: Stack, roles: Mapping[Role, DType], *, seq: int, encoder_tokens: int = 0, tp: int = 1) -> int:
    """Bytes of cache that one rank reads for one sequence in a decode step. States count twice, as they are also written.

    The bytes are those of the formulas. The padding of an engine's blocks and pages takes memory, but is not read.
    """
    return sum(one.bytes for one in _cache_reads(_rank_kinds(stack, tp), roles, seq, encoder_tokens, selected_tokens(stack)))


def _step(shares: Iterable[WeightShare]) -> list[WeightShare]:
    return [share for share in shares if share.use is not Use.ENCODER]


def _tokens(share: WeightShare, each: float, routed: float) -> float:
    return routed if share.use is Use.CHOSEN else each


def _on_rank(share: WeightShare, size: float, tp: int, experts: int) -> float:
    return size / (experts if share.use is Use.CHOSEN else tp)


def _weight_flops(shares: Iterable[WeightShare], tp: int, experts: int, each: float, routed: float) -> Flops:
    out: Flops = {}
    for share in shares:
        rates = RATES.get(share.format, ANY_RATE)
        size = _tokens(share, each, routed) * share.flops_per_token
        out[rates] = out.get(rates, 0) + _on_rank(share, size, tp, experts)
    return out


def _prompt_flops(shares: Iterable[WeightShare], tp: int, experts: int, seq: int, encoder_tokens: int) -> Flops:
    out: Flops = {}
    for share in shares:
        tokens = {Use.LAST: 1, Use.ENCODER: encoder_tokens}.get(share.use, seq)
        rates = RATES.get(share.format, ANY_RATE)
        out[rates] = out.get(rates, 0) + _on_rank(share, tokens * share.flops_per_token, tp, experts)
    return out


def _rank_kinds(stack: Stack, tp: int) -> tuple[tuple[int, LayerKind], ...]:
    return tuple((group.count, group.kind.shard(tp)) for group in stack.groups)


def layer_bytes(stack: Stack, caches: _Caches) -> tuple[int, ...]:
    """What a step reads of each layer's cache for one sequence, where no layer is divided."""
    kinds = {kind for layer in stack.layers for kind in layer}
    sizes = {kind: sum(one.bytes for one in caches._replace(kinds=((1, kind),), beside_bytes=0).reads) for kind in kinds}
    return tuple(sum(sizes[kind] for kind in layer) for layer in stack.layers)


def _cache_reads(
    kinds: Iterable[tuple[int, LayerKind]], roles: Mapping[Role, DType], seq: int, encoder_tokens: int, selected: int | None
) -> tuple[CacheReads, ...]:
    layers = ((kind.name, count, _layer_reads(kind, roles, seq, encoder_tokens, selected)) for count, kind in kinds)
    return tuple(CacheReads(name, count, read) for name, count, read in layers if read)


def _layer_reads(
    kind: LayerKind, roles: Mapping[Role, DType], seq: int, encoder_tokens: int, selected: int | None
) -> dict[int, int]:
    """How often a step reads, or writes, an entry of one layer's cache -> the bytes of all such entries."""
    out: dict[int, int] = {}
    limit = kind.dims().get("index_topk") if kind.name == "compressed_attention" else selected
    for tensor in kind.tensors():
        positions = tensor.span.positions(seq, encoder_tokens)
        if limit is not None and tensor.role in (Role.LATENT, Role.ROPE):
            positions = min(positions, limit)
        times = 2 if tensor.role is Role.STATE and isinstance(tensor.span, Once) else 1
        out[times * positions] = out.get(times * positions, 0) + tensor.bytes_per_position(roles[tensor.role])
    return out


def _attention_rates(roles: Mapping[Role, DType]) -> tuple[str, ...]:
    """Attention runs in 16 bits, or in 8 bits if its keys have 8 bits, which are up to 8.5 with scales."""
    # A packed layout has no keys beside its latents.
    keys = roles.get(Role.KEY) or roles[Role.LATENT]
    return ("fp8", "int8", *SIXTEEN) if keys.bits_per_element < 9 else SIXTEEN


def _rate(gpu: Gpu, rates: tuple[str, ...]) -> float | None:
    """Operations per second at the fastest of these rates that is known."""
    found = fastest(gpu, rates)
    return None if found is None else found[1]


def _slower(size: float, flops: Flops, gpu: Gpu, bandwidth: float | None) -> tuple[float | None, str | None]:
    """The longer of the reading and computing times in seconds, and which it is. Unknown times are left out; the rest is still a bound."""
    reading = None if bandwidth is None else size / bandwidth
    rates = {names: _rate(gpu, names) for names in flops}
    known = [flops[names] / rate for names, rate in rates.items() if rate is not None]
    computing = sum(known) if known else None
    if reading is None and computing is None:
        return None, None
    if computing is None or (reading is not None and reading >= computing):
        return reading, "memory bandwidth"
    return computing, "compute"


def _unknown(gpu: Gpu, used: Iterable[tuple[str, ...]], bandwidth: float | None) -> list[Note]:
    missing = [] if bandwidth is not None else ["memory bandwidth"]
    if any(_rate(gpu, rates) is None for rates in used):
        missing.append("compute rate")
    if not missing:
        return []
    message = f"The {' and '.join(missing)} of {gpu.id} are not known: the bound on speed leaves them out."
    if len(missing) == 1:
        message = f"The {missing[0]} of {gpu.id} is not known: the bound on speed leaves it out."
    return [Note(code="speed-partly-known", message=message)]

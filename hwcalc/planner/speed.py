"""The roofline of a decode step and of a prompt. It is a bound and not a forecast: no engine is faster than this.

A step takes at least the time to read its bytes at peak bandwidth, and at least the time for its operations at the peak rate (Williams,
Waterman and Patterson 2009, doi:10.1145/1498765.1498785). It reads the weights that its tokens use, each once, and the caches. It
computes two operations per weight and token (Kaplan et al. 2020, arXiv:2001.08361), and what :mod:`hwcalc.formulas.flops` counts.
Communication, activations, sampling and the inefficiency of kernels are left out.

- Tensor-parallel ranks work at the same time. Matrices are divided evenly, and caches by :meth:`LayerKind.shard`: every rank reads a
  latent that every rank keeps.
- Pipeline stages work one after another, so they do not make a step shorter. A batch that is split into as many parts as there are
  stages keeps all of them busy: each part reads the weights and its own caches, and a step takes as long as one part needs for all
  stages. The stages can work on different chunks of a prompt at the same time.
- Replicas work at the same time, each on its own sequences.
- If each token uses k of E experts, and all are equally likely, t tokens use E x (1 - (1 - k / E)^t) of them on average. Routers prefer
  some experts, and tokens of one step are alike: measured steps of up to 32 tokens are as fast as if t^(2/3) tokens were drawn so. The
  bound takes the square root of t.
- Operands may be multiplied at any rate of their precision or a higher one: where units for 16 bits are few, engines compute in 32. Tensor
  cores of NVIDIA that add up 16-bit products in 16 bits are half as fast as with 8-bit integers, which on GeForce is twice the rate with
  sums in 32 bits. vLLM and transformers add up in 32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines import DEFAULT, find_engine
from hwcalc.engines.calibration import measurements
from hwcalc.engines.devices import DeviceReads
from hwcalc.engines.noted import Noted
from hwcalc.engines.request import ALONE, Parallel
from hwcalc.engines.steps import Step, step
from hwcalc.formulas import Once, Role
from hwcalc.formulas.flops import decode_flops, prefill_flops, selected_tokens
from hwcalc.formulas.frozen import replace
from hwcalc.formulas.named import NamedTuple
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.planner.passes import Passes, whole_passes
from hwcalc.planner.result import SpeedInfo
from hwcalc.planner.speed_places import Divided, divided, is_divided, shares_of
from hwcalc.planner.speed_rates import ANY_RATE, RATES, SIXTEEN, fastest, reached
from hwcalc.planner.speed_steps import CacheReads, cache_steps, time_steps, weight_step
from hwcalc.planner.weight_use import Use, WeightShare, weight_shares
from hwcalc.profiles.calibration import BANDWIDTH

if TYPE_CHECKING:
    from hwcalc.formulas import DType, LayerKind, Stack
    from hwcalc.profiles.calibration import Measurement
    from hwcalc.profiles.gpus import Gpu

__all__ = ["cache_bytes_read", "speed_bound"]

_SOURCE: Final = "roofline: peak memory bandwidth and dense peak rate of the accelerator's profile"
_MEASURED_SOURCE: Final = "roofline: measured memory bandwidth, and dense peak rate of the accelerator's profile"


def speed_bound(
    model: ModelSpec,
    *,
    gpu: Gpu,
    seq: int,
    batch: int,
    roles: Mapping[Role, DType],
    engine: str = DEFAULT,
    encoder_tokens: int = 0,
    weights: str | None = None,
    dtype: str | None = None,
    parallel: Parallel = ALONE,
    passes: Passes | None = None,
    shares: tuple[WeightShare, ...] | tuple[DeviceReads, ...] | None = None,
) -> Noted[SpeedInfo]:
    """The bound for ``batch`` sequences of ``seq`` tokens, divided evenly over the replicas. Notes say what it leaves out.

    ``roles`` are the formats of the cache (``opened.dtypes.roles``). ``weights`` is the name of a weight format, or ``None`` for the
    published one. ``dtype`` is the dtype of weights that are not quantised, by default the model's. The experts of a layer are divided
    over ``parallel.expert_ranks``. ``passes`` are the layers that a step and a prompt compute on, where they are not those of the
    model. ``shares`` may be the result of :func:`~hwcalc.planner.weight_use.weight_shares` for the same model, weights and dtype, so that they are not counted again, or what a pass reads on each device, where an engine says it: what
    lies in host memory is read at its own bandwidth then (:mod:`hwcalc.planner.speed_places`).
    """
    places = tuple(one for one in shares or () if isinstance(one, DeviceReads))
    counted: tuple[WeightShare, ...] | None = shares_of(places) or tuple(
        one for one in shares or () if isinstance(one, WeightShare)
    )
    measured, notes = _measured(gpu)
    if not counted:
        counted = model.once(("weight shares", weights, dtype), lambda: weight_shares(model, weights, dtype))
    if counted is None:
        unknown = Note(code="speed-unknown", message="No bound on speed: the model's weights are not counted.")
        return Noted(_no_bound(), (*notes, unknown))
    rate = gpu.memory_bandwidth_gbps if measured is None else measured.values["read_gbps"]
    bandwidth = None if rate is None else rate * 1e9
    whole = whole_passes(model.stack_for(engine), seq)
    kinds = model.once(("rank kinds", engine, parallel.tp), lambda: _rank_kinds(whole.decode, parallel.tp))
    caches = _caches_of(whole, kinds, roles, seq, encoder_tokens)
    stack, prefill = whole.decode, caches
    if passes is not None:
        stack, caches, prefill = passes.decode, *_caches_in(passes, caches, parallel.tp)
    in_32_bits = find_engine(engine)[0].sums_in_32_bits
    step_work = _decode_step(_step(counted), caches, batch, parallel, in_32_bits=in_32_bits)
    prompt = _prompt(counted, prefill, parallel, in_32_bits=in_32_bits)
    step_s, bound_by = step_work.seconds(gpu, bandwidth)
    prefill_s, prefill_by = prompt.seconds(gpu, bandwidth)
    bound = SpeedInfo(
        definition=Definition.BOUND if measured is None else Definition.MEASURED,
        decode_tokens_per_s_bound=None if step_s is None else batch / step_s,
        decode_step_s_bound=step_s,
        bound_by=bound_by,
        prefill_s_bound=None if prefill_s is None else prefill_s / parallel.pp,
        prefill_bound_by=prefill_by,
        weight_bytes_per_step=int(step_work.weight_bytes),
        cache_bytes_per_step=int(step_work.cache_bytes),
        flops_per_step=int(sum(step_work.flops.values())),
        prefill_flops=int(sum(prompt.flops.values())),
        steps=_steps(step_work, prompt, gpu, bandwidth, batch=batch, pp=parallel.pp),
        source=_SOURCE if measured is None else f"{_MEASURED_SOURCE} ({measured.measured.device}, {measured.measured.date})",
    )
    if is_divided(places):
        sequences, computing = max(1.0, batch / min(parallel.dp, batch)), time_steps("prompt", {}, prompt.flops, gpu, None)
        sizes = _layer_bytes(stack, caches)
        bound = divided(bound, places, sizes, Divided(batch, sequences, seq, parallel.pp, bandwidth), computing[:1])
    # Without an accelerator nothing is known of one.
    used = {*step_work.flops, *prompt.flops} if not places or any(one.gbps is None for one in places) else None
    return Noted(bound, (*notes, *(() if used is None else _unknown(gpu, used, bandwidth))))


Flops = dict[tuple[str, ...], float]
"""Operations, by the names of the peak rates at which they may run."""


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


class _Work(NamedTuple):
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


def _decode_step(shares: list[WeightShare], caches: _Caches, batch: int, parallel: Parallel, *, in_32_bits: bool) -> _Work:
    tp, replicas = parallel.tp, min(parallel.dp, batch)
    each = max(1.0, batch / replicas / parallel.pp)
    experts = parallel.expert_ranks
    routed = each * (replicas if experts > tp else 1)
    flops = _weight_flops(shares, tp, experts, each, routed)
    attention = _attention_rates(caches.roles)
    flops[attention] = flops.get(attention, 0) + each * caches.flops(decode_flops)
    reads = caches.reads
    return _Work(
        weights_read=tuple(
            (share.use, _on_rank(share, share.touched_bytes(_tokens(share, each, routed)), tp, experts)) for share in shares
        ),
        sequences=each,
        cache_bytes_each=sum(one.bytes for one in reads) / parallel.dcp,
        flops=reached(flops, in_32_bits=in_32_bits),
        cache_reads=reads,
    )


def _prompt(shares: Iterable[WeightShare], caches: _Caches, parallel: Parallel, *, in_32_bits: bool) -> _Work:
    tp, experts = parallel.tp, parallel.expert_ranks
    flops = _prompt_flops(shares, tp, experts, caches.seq, caches.encoder_tokens)
    attention = _attention_rates(caches.roles)
    flops[attention] = flops.get(attention, 0) + caches.flops(prefill_flops)
    read = tuple((share.use, _on_rank(share, share.touched_bytes(caches.seq), tp, experts)) for share in shares)
    return _Work(weights_read=read, sequences=1, cache_bytes_each=0, flops=reached(flops, in_32_bits=in_32_bits))


def _steps(decode: _Work, prompt: _Work, gpu: Gpu, bandwidth: float | None, *, batch: int, pp: int) -> tuple[Step, ...]:
    """How the bounds of a decode step and of a prompt come about."""
    weights = weight_step("weight_bytes", decode.weights_read)
    cache = step(
        "cache_bytes",
        "sequences x cache_bytes_each",
        decode.cache_bytes,
        sequences=decode.sequences,
        cache_bytes_each=decode.cache_bytes_each,
    )
    sizes = {"weight_bytes": decode.weight_bytes, "cache_bytes": decode.cache_bytes}
    caches = (*cache_steps(decode.cache_reads, decode.cache_bytes_each), cache)
    if decode.sequences == 1 and len(caches) > 1:
        # What a step reads for the only sequence is what it reads.
        caches = (*caches[:-2], replace(caches[-2], name="cache_bytes"))
    steps = (weights, *caches, *time_steps("step", sizes, decode.flops, gpu, bandwidth))
    if steps[-1].name == "step_s" and steps[-1].expected:
        seconds = steps[-1].expected
        steps += (step("decode_tokens_per_s", "batch / step_s", batch / seconds, unit="tokens/s", batch=batch, step_s=seconds),)
    sizes = {"prompt_weight_bytes": prompt.weight_bytes}
    steps += (weight_step("prompt_weight_bytes", prompt.weights_read), *time_steps("prompt", sizes, prompt.flops, gpu, bandwidth))
    if steps[-1].name == "prompt_s" and pp > 1:
        seconds = steps[-1].expected
        steps += (step("prefill_s", "prompt_s / pp", seconds / pp, unit="s", prompt_s=seconds, pp=pp),)
    return steps


def _measured(gpu: Gpu) -> Noted[Measurement | None]:
    """The user's measurement of this accelerator's bandwidth, with a note; ``None`` if there is none."""
    calibration, notes = measurements(gpu.id, BANDWIDTH)
    reading = None if calibration is None else calibration.latest("read_gbps")
    if reading is None:
        return Noted(None, notes)
    peak = "" if gpu.memory_bandwidth_gbps is None else f" instead of the peak of {gpu.memory_bandwidth_gbps:,g}"
    message = (
        f"Speed by the bandwidth measured on {reading.measured.date}: {reading.values['read_gbps']:,g} GB/s{peak}. "
        "Without: KVPLAN_NO_CALIBRATION=1."
    )
    return Noted(reading, (*notes, Note(code="calibrated", message=message)))


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


def _layer_bytes(stack: Stack, caches: _Caches) -> tuple[int, ...]:
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


def _no_bound() -> SpeedInfo:
    return SpeedInfo(
        definition=Definition.UNKNOWN,
        decode_tokens_per_s_bound=None,
        decode_step_s_bound=None,
        bound_by=None,
        prefill_s_bound=None,
        prefill_bound_by=None,
        weight_bytes_per_step=None,
        cache_bytes_per_step=None,
        flops_per_step=None,
        prefill_flops=None,
        source="",
        steps=(),
    )

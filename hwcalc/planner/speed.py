"""The bound on the speed of an occupancy: the roofline of a decode step and of a prompt.

Where a part of the model lies in host memory, its layers run one after another, so the times of the devices add up. A device reads what
it holds at the bandwidth of its own memory. Weights of the host are read by its cores at that bandwidth; a pass of many tokens copies
them to a GPU instead, at the bandwidth of the link to it if that is lower (:class:`~hwcalc.engines.devices.Copied`). The operations of
such a step are left out, since those of the host's cores are not known; a prompt takes at least as long as if the GPU computed all of it,
and as reading or copying the weights for each pass over a batch of its tokens.

The roofline is a bound and not a forecast: no engine is faster than this.

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.engines.devices import HOST, DeviceReads
from hwcalc.engines.memory import measurements
from hwcalc.engines.steps import Step, step
from hwcalc.model import Definition, ModelSpec, Note, Noted
from hwcalc.planner.speed_result import SpeedInfo
from hwcalc.planner.speed_work import Use, WeightShare, fastest, layer_bytes, work_of, workload_of
from hwcalc.profiles.calibration import BANDWIDTH

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.devices import WeightRead
    from hwcalc.planner.speed_work import CacheReads, Pass, Work, Workload
    from hwcalc.profiles.calibration import Measurement
    from hwcalc.profiles.hardware_file import Gpu

_MOST_KINDS: Final = 4
_USES: Final = {
    Use.ALWAYS: "weights_of_every_token",
    Use.CHOSEN: "weights_of_chosen_experts",
    Use.ROW: "embedding_rows",
    Use.LAST: "output_head",
    Use.ENCODER: "encoder_weights",
}
"""What the weights of a use are called in a formula."""


def weight_step(name: str, read: Iterable[tuple[Use, float]]) -> Step:
    """The bytes of weights that a pass reads, by their use."""
    sums: dict[str, float] = {}
    total = 0.0
    for use, size in read:
        total += size
        sums[_USES[use]] = sums.get(_USES[use], 0) + size
    return step(name, " + ".join(sums) or "0", total, unit="bytes", **sums)


def cache_steps(reads: Sequence[CacheReads], whole: float) -> tuple[Step, ...]:
    """The bytes of cache that a step reads for one sequence, kind by kind; ``whole`` is their sum, shared by decode context parallelism.

    Nothing for a model of very many kinds, whose sum nobody would read.
    """
    if not reads or len(reads) > _MOST_KINDS:
        return ()
    steps = []
    for number, read in enumerate(reads):
        (positions, row), *others = sorted(read.times.items(), reverse=True)
        rest = sum(times * size for times, size in others)
        terms = {"kind_layers": read.layers, "entries": positions, "entry_bytes": row} | ({"other_bytes": rest} if rest else {})
        formula = "kind_layers x (entries x entry_bytes + other_bytes)" if rest else "kind_layers x entries x entry_bytes"
        again = f"_{number + 1}" if read.kind in {one.kind for one in reads[:number]} else ""
        steps.append(step(f"{read.kind}_read{again}", formula, read.bytes, unit="bytes", **terms))
    sizes = {one.name: one.expected for one in steps}
    total = sum(sizes.values())
    if len(steps) == 1 and total == whole:
        return (replace(steps[0], name="cache_bytes_each"),)
    formula, shared = " + ".join(sizes), total != whole
    if shared:
        formula = formula if len(sizes) == 1 else f"({formula})"
        formula, sizes = f"{formula} / dcp", sizes | {"dcp": round(total / whole)}
    return (*steps, step("cache_bytes_each", formula, whole, unit="bytes", **sizes))


def time_steps(
    pass_name: str, sizes: Mapping[str, float], flops: Mapping[tuple[str, ...], float], gpu: Gpu, bandwidth: float | None
) -> tuple[Step, ...]:
    """The time for reading, the time for computing and the longer one, in seconds. What is not known is left out.

    ``sizes`` are the bytes that the pass reads, and ``flops`` its operations by the names of the rates at which they may run.
    """
    times: dict[str, float] = {}
    steps = []
    if bandwidth is not None:
        reading = sum(sizes.values()) / bandwidth
        summed = " + ".join(sizes) if len(sizes) == 1 else f"({' + '.join(sizes)})"
        steps.append(step(f"{pass_name}_reading", f"{summed} / bandwidth", reading, unit="s", **sizes, bandwidth=bandwidth))
        times[f"{pass_name}_reading"] = reading
    terms: dict[str, float] = {}
    quotients = []
    computing = 0.0
    for names, count in flops.items():
        found = fastest(gpu, names)
        if found is None:
            continue
        name, rate = found
        if f"rate_{name}" not in terms:
            quotients.append(f"flops_{name} / rate_{name}")
        terms[f"flops_{name}"] = terms.get(f"flops_{name}", 0) + count
        terms[f"rate_{name}"] = rate
        computing += count / rate
    if quotients:
        steps.append(step(f"{pass_name}_computing", " + ".join(quotients), computing, unit="s", **terms))
        times[f"{pass_name}_computing"] = computing
    if times:
        formula = f"max({', '.join(times)})" if len(times) > 1 else next(iter(times))
        steps.append(step(f"{pass_name}_s", formula, max(times.values()), unit="s", **times))
    return tuple(steps)


def shares_of(places: Iterable[DeviceReads]) -> tuple[WeightShare, ...]:
    """Parameters and bytes of the weights of all devices, by format and use."""
    return summed(weight for place in places for weight in place.weights)


def summed(weights: Iterable[WeightRead]) -> tuple[WeightShare, ...]:
    """Parameters and bytes of these weights, by format and use."""
    sums: dict[tuple[str, str, int, int], tuple[int, int]] = {}
    for weight in weights:
        key = (weight.format, weight.use, weight.copies, weight.active)
        elements, size = sums.get(key, (0, 0))
        sums[key] = elements + weight.elements, size + weight.bytes
    return tuple(
        WeightShare(format=form, use=Use(use), parameters=elements, bytes=size, copies=copies, active=active)
        for (form, use, copies, active), (elements, size) in sums.items()
    )


def pass_bytes(shares: Iterable[WeightShare], last_layer: Iterable[WeightShare], tokens: Any) -> Any:
    """The bytes that a pass of so many tokens of a prompt uses of the weights on a device, whatever it may leave out of the last layer."""
    return sum(one.touched_bytes(tokens) for one in shares if one.use is not Use.LAST) - sum(
        one.touched_bytes(tokens) for one in last_layer
    )


def output_bytes(shares: Iterable[WeightShare], last_layer: Iterable[WeightShare]) -> float:
    """The bytes that the output of a prompt takes beside its passes: one token of the last layer, and the head."""
    return sum(one.touched_bytes(1) for one in last_layer) + sum(one.bytes for one in shares if one.use is Use.LAST)


def is_divided(places: Sequence[DeviceReads]) -> bool:
    """True if the devices read one after another, so that the rule for GPUs alone does not hold.

    They do if the host holds caches or weights of layers, or if a device works on several parts at once.
    """
    host = next((place for place in places if place.device == HOST), None)
    if host is not None and (host.cache_layers or any(one.use != "row" for one in host.weights)):
        return True
    return any(place.at_once > 1 for place in places)


def divided(
    whole: SpeedInfo,
    places: Sequence[DeviceReads],
    layer_bytes: Sequence[int],
    load: Workload,
    bandwidth: float | None,
    computing: tuple[Step, ...],
) -> SpeedInfo:
    """The bound on speed where the devices read one after another.

    ``whole`` is that of the same model on GPUs alone, ``layer_bytes`` what a step reads of each layer's cache for one sequence,
    ``bandwidth`` the bytes per second of the accelerator's memory, and ``computing`` the step that computes a prompt on a GPU, if
    its rate is known. A device whose bandwidth is not known takes no time: what is left is still a bound.
    """
    batch, stages = load.batch, load.parallel.pp
    sequences = max(1.0, batch / min(load.parallel.dp, batch))
    prompt = load.seq if load.passes is None else load.passes.prompt_tokens
    reads = [_Reads.of(place, layer_bytes, sequences, prompt, bandwidth) for place in places]
    known = [one for one in reads if one.memory and (one.weights or one.cache)]
    if not known:
        return whole
    readings, prompts = [one.step() for one in known], [one.prompt_step() for one in known]
    whole_step, whole_prompt = _sum("step_s", readings), _sum("prompt_reading", prompts)
    step_s, prompt_s = whole_step.expected, whole_prompt.expected
    rate = step("decode_tokens_per_s", "batch / step_s", unit="tokens/s", batch=batch, step_s=step_s)
    steps = [*readings, whole_step, rate, *prompts, whole_prompt, *computing]
    if computing and stages > 1:
        terms = {computing[0].name: computing[0].expected, "pp": stages}
        steps.append(step("prompt_stages", f"{computing[0].name} / pp", unit="s", **terms))
    last = {"prompt_reading": prompt_s} | ({steps[-1].name: float(steps[-1].expected)} if computing else {})
    longest = max(last.values())
    steps.append(step("prefill_s", f"max({', '.join(last)})" if computing else "prompt_reading", longest, unit="s", **last))
    return replace(
        whole,
        decode_tokens_per_s_bound=rate.expected,
        decode_step_s_bound=step_s,
        bound_by=_longest(known, readings, lambda one: one.rate),
        prefill_s_bound=longest,
        prefill_bound_by="compute" if longest > prompt_s else _longest(known, prompts, lambda one: one.pass_rate),
        weight_bytes_per_step=int(sum(one.weights for one in reads)),
        cache_bytes_per_step=int(sum(one.cache for one in reads)),
        steps=tuple(steps),
        source=f"{whole.source}; devices one after another, host memory at its own bandwidth",
    )


class _Reads(Struct, frozen=True):
    """Bytes that one device reads for a step, for each pass of a prompt and for its output, and the bytes per second at which it has weights.

    ``memory`` is what its memory delivers, 0 if that is not known. ``rate`` is that of a step, ``pass_rate`` that of a whole pass, and
    ``last_rate`` that of the last pass, which has the tokens that are left.
    """

    device: str
    weights: float
    cache: float
    pass_weights: float
    passes: int
    last_pass: float
    output: float
    memory: float
    rate: float
    pass_rate: float
    last_rate: float

    @classmethod
    def of(cls, place: DeviceReads, layer_bytes: Sequence[int], sequences: float, prompt: int, bandwidth: float | None) -> _Reads:
        def rate(tokens: float) -> float:
            return memory if place.copied is None else float(place.copied.rate(memory, tokens))

        memory = ((bandwidth if place.gbps is None else place.gbps * 1e9) or 0) * place.at_once
        tokens = min(prompt, place.pass_tokens or prompt)
        passes = (prompt - 1) // tokens
        left = prompt - passes * tokens
        shares, last_layer = shares_of((place,)), summed(place.last_layer)
        return cls(
            device=place.device,
            weights=sum(share.touched_bytes(sequences) for share in shares),
            cache=sequences * sum(layer_bytes[number] for number in place.cache_layers if number < len(layer_bytes)),
            pass_weights=pass_bytes(shares, last_layer, tokens),
            passes=passes,
            last_pass=pass_bytes(shares, last_layer, left),
            output=output_bytes(shares, last_layer),
            memory=memory,
            rate=rate(sequences),
            pass_rate=rate(tokens),
            last_rate=rate(left),
        )

    def step(self) -> Step:
        sizes = {"weight_bytes": (self.weights, self.rate), "cache_bytes": (self.cache, self.memory)}
        return self._read("reading", {name: (name, *size) for name, size in sizes.items()})

    def prompt_step(self) -> Step:
        sizes = {"last_pass_bytes": (self.last_pass, self.last_rate), "output_bytes": (self.output, self.memory)}
        read = {name: (name, *size) for name, size in sizes.items()}
        if not self.passes:
            return self._read("prompt_reading", read)
        earlier = {"pass_bytes": ("earlier_passes", self.pass_weights, self.pass_rate)}
        return self._read("prompt_reading", earlier | read, earlier_passes=self.passes)

    def _read(self, name: str, sizes: Mapping[str, tuple[str, float, float]], **times: int) -> Step:
        """The seconds of these sizes: each with the term that says how often it is read, or its own name, and its bytes per second."""
        terms: dict[str, float] = dict(times)
        by_rate: dict[str, list[str]] = {}
        for size, (often, value, rate) in sizes.items():
            if value:
                divisor = f"{self.device}_{'bandwidth' if rate == self.memory else 'link'}"
                terms |= {f"{self.device}_{size}": value, divisor: rate}
                by_rate.setdefault(divisor, []).append(
                    f"{often} x {self.device}_{size}" if often in times else f"{self.device}_{size}"
                )
        sums = {divisor: read[0] if len(read) == 1 else f"({' + '.join(read)})" for divisor, read in by_rate.items()}
        formula = " + ".join(f"{read} / {divisor}" for divisor, read in sums.items()) or "0"
        return step(f"{self.device}_{name}", formula, unit="s", **terms)


def _longest(reads: Sequence[_Reads], steps: Sequence[Step], rate: Callable[[_Reads], float]) -> str:
    """What the most of these times goes to: a memory, that of the host, or the link to it. ``rate`` is the rate that counts."""
    times = {one.device: (found.expected, rate(one) == one.memory) for one, found in zip(reads, steps, strict=True)}
    seconds, stays = times.get(HOST, (0.0, True))
    if 2 * seconds < sum(time for time, _ in times.values()):
        return "memory bandwidth"
    return "host memory bandwidth" if stays else "host link"


def _sum(name: str, steps: Sequence[Step]) -> Step:
    times = {one.name: one.expected for one in steps}
    return step(name, " + ".join(times), sum(times.values()), unit="s", **times)


_SOURCE: Final = "roofline: peak memory bandwidth and dense peak rate of the accelerator's profile"
_MEASURED_SOURCE: Final = "roofline: measured memory bandwidth, and dense peak rate of the accelerator's profile"


def speed_bound(
    model: ModelSpec, gpu: Gpu, load: Workload, shares: tuple[WeightShare, ...] | tuple[DeviceReads, ...] | None = None
) -> Noted[SpeedInfo]:
    """The bound on speed of what is asked of a model. Notes say what it leaves out.

    ``shares`` are the weights of :func:`~hwcalc.planner.speed_work.weight_shares` for the same model, weights and dtype, so that they are not counted again,
    or what a pass reads on each device, where an engine says it: what lies in host memory is read at its own bandwidth then.
    """
    places = tuple(one for one in shares or () if isinstance(one, DeviceReads))
    measured, notes = _measured(gpu)
    work = work_of(model, load, shares_of(places) or tuple(one for one in shares or () if isinstance(one, WeightShare)))
    if work is None:
        nothing: dict[str, Any] = dict.fromkeys(SpeedInfo.__struct_fields__)
        unknown = SpeedInfo(**nothing | {"definition": Definition.UNKNOWN, "source": "", "steps": ()})
        return Noted(
            unknown, (*notes, Note(code="speed-unknown", message="No bound on speed: the model's weights are not counted."))
        )
    bandwidth = _bandwidth(gpu, measured)
    bound = _on_gpus(work, load, gpu, bandwidth, measured)
    if is_divided(places):
        computing = time_steps("prompt", {}, work.prompt.flops, gpu, None)
        bound = divided(bound, places, layer_bytes(work.stack, work.caches), load, bandwidth, computing[:1])
    missing = [] if bandwidth is not None else ["memory bandwidth"]
    if any(fastest(gpu, rates) is None for rates in {**work.decode.flops, **work.prompt.flops}):
        missing.append("compute rate")
    # Without an accelerator nothing is known of one.
    if missing and (not places or any(one.gbps is None for one in places)):
        message = f"The {' and '.join(missing)} of {gpu.id} are not known: the bound on speed leaves them out."
        if len(missing) == 1:
            message = f"The {missing[0]} of {gpu.id} is not known: the bound on speed leaves it out."
        notes = (*notes, Note(code="speed-partly-known", message=message))
    return Noted(bound, notes)


def _on_gpus(work: Work, load: Workload, gpu: Gpu, bandwidth: float | None, measured: Measurement | None) -> SpeedInfo:
    """The bound on speed where no layer lies on the host."""
    decode, prompt, pp = work.decode, work.prompt, load.parallel.pp
    step_s, bound_by = decode.seconds(gpu, bandwidth)
    prompt_s, prefill_by = prompt.seconds(gpu, bandwidth)
    return SpeedInfo(
        definition=Definition.BOUND if measured is None else Definition.MEASURED,
        decode_tokens_per_s_bound=None if step_s is None else load.batch / step_s,
        decode_step_s_bound=step_s,
        bound_by=bound_by,
        prefill_s_bound=None if prompt_s is None else prompt_s / pp,
        prefill_bound_by=prefill_by,
        weight_bytes_per_step=int(decode.weight_bytes),
        cache_bytes_per_step=int(decode.cache_bytes),
        flops_per_step=int(sum(decode.flops.values())),
        prefill_flops=int(sum(prompt.flops.values())),
        source=_SOURCE if measured is None else f"{_MEASURED_SOURCE} ({measured.measured.device}, {measured.measured.date})",
        steps=_steps(decode, prompt, gpu, bandwidth, batch=load.batch, pp=pp),
    )


def _steps(decode: Pass, prompt: Pass, gpu: Gpu, bandwidth: float | None, *, batch: int, pp: int) -> tuple[Step, ...]:
    """The steps that derive the bounds of a decode step and of a prompt."""
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


def known_bandwidth(gpu: Gpu) -> float | None:
    """The bandwidth of the accelerator's memory in bytes per second, as the user has measured it or by its profile.

    It is ``None`` if unknown.
    """
    return _bandwidth(gpu, _measured(gpu).value)


def _bandwidth(gpu: Gpu, measured: Measurement | None) -> float | None:
    rate = gpu.memory_bandwidth_gbps if measured is None else measured.values["read_gbps"]
    return None if rate is None else rate * 1e9


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


def bound_of(opened: Occupancy) -> SpeedInfo | None:
    """The bound on speed for the planned GPU; ``None`` without a GPU."""
    gpu = opened.setup.hardware.gpu
    if gpu is None:
        return None
    shares = opened.told(opened.devices.reads()) or None
    return opened.told(speed_bound(opened.model, gpu, workload_of(opened), shares))

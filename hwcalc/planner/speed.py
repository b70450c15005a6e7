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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines import DEFAULT
from hwcalc.engines.calibration import measurements
from hwcalc.engines.devices import DeviceReads
from hwcalc.engines.noted import Noted
from hwcalc.engines.setup import ALONE, Parallel
from hwcalc.engines.steps import Step, step
from hwcalc.formulas import Role
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.planner.passes import Passes
from hwcalc.planner.speed_places import Divided, divided, is_divided, shares_of
from hwcalc.planner.speed_result import SpeedInfo
from hwcalc.planner.speed_steps import cache_steps, time_steps, weight_step
from hwcalc.planner.speed_work import UNCOUNTED, layer_bytes, work_of
from hwcalc.planner.weight_share import WeightShare
from hwcalc.profiles.calibration import BANDWIDTH

if TYPE_CHECKING:
    from hwcalc.formulas import DType
    from hwcalc.planner.speed_work import Pass, Work
    from hwcalc.profiles.calibration import Measurement
    from hwcalc.profiles.gpus import Gpu

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
    work = work_of(
        model,
        seq=seq,
        batch=batch,
        roles=roles,
        engine=engine,
        encoder_tokens=encoder_tokens,
        weights=weights,
        dtype=dtype,
        parallel=parallel,
        passes=passes,
        counted=counted,
    )
    if work is None:
        return Noted(_no_bound(), (*notes, UNCOUNTED))
    bandwidth = _bandwidth(gpu, measured)
    bound = _info(work, gpu, bandwidth, measured)
    if is_divided(places):
        sequences, computing = max(1.0, batch / min(parallel.dp, batch)), time_steps("prompt", {}, work.prompt.flops, gpu, None)
        sizes = layer_bytes(work.stack, work.caches)
        bound = divided(bound, places, sizes, Divided(batch, sequences, seq, parallel.pp, bandwidth), computing[:1])
    # Without an accelerator nothing is known of one.
    on_gpus = not places or any(one.gbps is None for one in places)
    return Noted(bound, (*notes, *(work.unknown(gpu, bandwidth) if on_gpus else ())))


def _info(work: Work, gpu: Gpu, bandwidth: float | None, measured: Measurement | None) -> SpeedInfo:
    """The bound where no layer is divided."""
    times = work.on(gpu, bandwidth)
    decode, prompt = work.decode, work.prompt
    return SpeedInfo(
        definition=Definition.BOUND if measured is None else Definition.MEASURED,
        decode_tokens_per_s_bound=times.decode_tokens_per_s,
        decode_step_s_bound=times.step_s,
        bound_by=times.bound_by,
        prefill_s_bound=times.prefill_s,
        prefill_bound_by=times.prefill_by,
        weight_bytes_per_step=int(decode.weight_bytes),
        cache_bytes_per_step=int(decode.cache_bytes),
        flops_per_step=int(sum(decode.flops.values())),
        prefill_flops=int(sum(prompt.flops.values())),
        source=_SOURCE if measured is None else f"{_MEASURED_SOURCE} ({measured.measured.device}, {measured.measured.date})",
        steps=_steps(decode, prompt, gpu, bandwidth, batch=work.batch, pp=work.pp),
    )


def _steps(decode: Pass, prompt: Pass, gpu: Gpu, bandwidth: float | None, *, batch: int, pp: int) -> tuple[Step, ...]:
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


def known_bandwidth(gpu: Gpu) -> float | None:
    """Bytes per second of the accelerator's memory: as the user has measured them, or by its profile."""
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

"""Time a prompt and a decode step of a small real model, next to the bound of their bytes and operations.

The model has the planned type and widths, random weights, and as many of the first layers as the limit holds; with fewer it is divided as
that of ``--live`` is. The installed transformers runs it, one kernel after another and without CUDA graphs, so that a GPU waits for launches
where a model is small. An accelerator's bound is by its profile. A CPU has none, and what is not known of an accelerator is measured: the rate
at which as many bytes are read as a step reads, and that at which a square matrix is multiplied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.planner.speed import speed_bound
from hwcalc.planner.speed_work import RATES, fastest, workload_of
from hwcalc.probe import live_model
from hwcalc.probe.bandwidth import best_time, read_time
from hwcalc.probe.devices import TORCH_NAMES, Device, default_reserve, holding
from hwcalc.probe.live import open_small
from hwcalc.probe.live_model import NotRun
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.text import brief
from hwcalc.units import GIB, MIB

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_WEIGHT_BYTES: Final = {"cuda": 2 * GIB, "mps": GIB}
_CPU_WEIGHT_BYTES: Final = 256 * MIB
"""More than the caches of most processors hold, and few enough to be made in a second."""
_PROMPT_TOKENS: Final = 2048
_CPU_PROMPT_TOKENS: Final = 128
_REPEATS: Final = 5
_SIDES: Final = {"cuda": 8192, "mps": 4096}
_CPU_SIDE: Final = 1024
"""Rows and columns of the matrix that is multiplied by itself."""
_FORMATS: Final = ("tf32", "fp32", "fp16", "bf16")
HERE: Final = "measured here"


class SpeedStep(Record):
    """One pass over ``tokens`` tokens behind ``context`` others. ``share`` is the part of the bound's speed that it reached."""

    name: str
    tokens: int
    context: int
    seconds: float
    bound_s: float | None
    bound_by: str | None
    share: float | None


class SpeedResult(Record):
    """The passes of the small model: ``layers`` of the ``model_layers`` layers of the planned one, its widths divided by ``factor``.

    Where it was not run, ``reason`` says why, and there are no steps. ``rates`` is the profile that the bound goes by, or ``measured here``.
    """

    reason: str
    model_type: str
    device: str
    dtype: str
    torch_version: str = ""
    transformers_version: str = ""
    layers: int = 0
    model_layers: int = 0
    factor: int = 1
    weight_bytes: int = 0
    rates: str = ""
    bandwidth_gbps: float | None = None
    tflops: float | None = None
    steps: tuple[SpeedStep, ...] = ()


def run_speed(
    model: ModelSpec, device: Device, gpu: Gpu | None, *, most_bytes: int | None = None, reserve_bytes: int | None = None
) -> SpeedResult:
    """Build the small model with at most ``most_bytes`` of weights, and time it. ``gpu`` is the profile of the device.

    If the model cannot be run, the result says so. Everything on the device is freed, also after an error.
    """
    dtype = "fp32" if device.kind == "cpu" else model.dtype if model.dtype in ("fp16", "bf16") else "bf16"
    result = SpeedResult(reason="", model_type=model.model_type, device=device.label, dtype=dtype)
    most = most_bytes or _WEIGHT_BYTES.get(device.kind, _CPU_WEIGHT_BYTES)
    free = device.free_bytes()
    if free is not None:
        # Weights are made in memory of the host, and a prompt needs some as well.
        most = min(most, (free - (default_reserve(device) if reserve_bytes is None else reserve_bytes)) // 2)
    try:
        versions = live_model.library()
        result = replace(result, torch_version=versions[0], transformers_version=versions[1])
        return _run(model, result, device, gpu, most)
    except NotRun as reason:
        return replace(result, reason=str(reason))


def _run(model: ModelSpec, result: SpeedResult, device: Device, gpu: Gpu | None, most: int) -> SpeedResult:
    dtype = getattr(device.torch, TORCH_NAMES[result.dtype])

    def build(config: Any, where: str) -> Any:
        try:
            return live_model.make(config, dtype=dtype, device=where, attention="sdpa", seed=0)
        except NotRun:
            # Some classes have no fused attention.
            return live_model.make(config, dtype=dtype, device=where, attention="eager", seed=0)

    small, factor, spec, size = live_model.smaller(live_model.full_config(model), model, build, most, wide=True)
    tokens = _CPU_PROMPT_TOKENS if device.kind == "cpu" else _PROMPT_TOKENS
    tokens = max(1, min(tokens, (spec.max_position_embeddings or 2 * tokens) - _REPEATS - 1))
    load = replace(
        workload_of(open_small(spec, result.transformers_version, seq=tokens + 1, prompt=tokens, batch=1, dtype=result.dtype)),
        dtype=result.dtype,
    )
    try:
        prompt, step = _timed(build(small.config, device.label), device, tokens, load.encoder_tokens)
    except NotRun:
        raise
    except Exception as error:
        words = brief(str(error), 160)
        raise NotRun(f"it does not run on {result.device}: {type(error).__name__}: {words}; smaller: --max-bytes") from error
    if gpu is None or gpu.memory_bandwidth_gbps is None or fastest(gpu, RATES[result.dtype]) is None:
        gpu = _measured_rates(device, size, result.dtype)
    bound = speed_bound(spec, gpu, load).value
    rate = fastest(gpu, RATES[result.dtype])
    return replace(
        result,
        layers=len(small.layers),
        model_layers=len(model.stack_for(live_model.ENGINE).layers),
        factor=factor,
        weight_bytes=size,
        rates=gpu.id,
        bandwidth_gbps=gpu.memory_bandwidth_gbps,
        tflops=None if rate is None else rate[1] / 1e12,
        steps=(
            _step("prefill", tokens, 0, prompt, bound.prefill_s_bound, bound.prefill_bound_by),
            _step("decode", 1, tokens, step, bound.decode_step_s_bound, bound.bound_by),
        ),
    )


def _step(name: str, tokens: int, context: int, seconds: float, bound: float | None, bound_by: str | None) -> SpeedStep:
    share = None if bound is None else bound / seconds
    return SpeedStep(name=name, tokens=tokens, context=context, seconds=seconds, bound_s=bound, bound_by=bound_by, share=share)


def _timed(built: Any, device: Device, tokens: int, encoder_tokens: int) -> tuple[float, float]:
    """The seconds of a prompt of so many tokens, and of a decode step behind it: the best of several."""
    reader = live_model.Reader(built, batch=1, tokens=tokens + _REPEATS + 1, encoder=encoder_tokens or 1, seed=0)
    with live_model.running(), holding(device) as cache:
        prompt = best_time(lambda: reader.read(0, tokens), 0, device, _REPEATS).seconds
        places = iter(range(tokens, tokens + _REPEATS + 1))
        cache.append(live_model.cache_of(reader.begin(tokens)))

        def decode() -> None:
            at = next(places)
            cache[0] = live_model.cache_of(reader.read(at, at + 1, **cache[0]))

        return prompt, best_time(decode, 0, device, _REPEATS).seconds


def _measured_rates(device: Device, size: int, dtype: str) -> Gpu:
    """A profile of what the device reaches: reading so many bytes, and multiplying a square matrix in this format."""
    side = _SIDES.get(device.kind, _CPU_SIDE)
    read = read_time(max(size, MIB), device, _REPEATS)
    with holding(device) as held:
        held.append(device.empty((side, side), dtype).fill_(1.0))
        multiplied = best_time(lambda: held[0] @ held[0], 0, device, _REPEATS).seconds
    rates = dict.fromkeys(_FORMATS, 2 * side**3 / multiplied / 1e12)
    return Gpu(id=HERE, name=device.name, vendor="", memory_bandwidth_gbps=read.gbps, tflops_dense=rates)

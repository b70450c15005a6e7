"""The steps that ask the machine: the context and its growth, how fast memory is read, and small models that really decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.hardware.local import bounded_output
from hwcalc.library.load import load_model
from hwcalc.model import Note
from hwcalc.planner.context import open_request
from hwcalc.probe.bandwidth import BandwidthResult, measure_bandwidth
from hwcalc.probe.devices import Device, holding
from hwcalc.probe.live import AGREES as LIVE_AGREES
from hwcalc.probe.live import NOT_RUN, LiveResult, run_live
from hwcalc.probe.live_model import NotRun, library
from hwcalc.probe.run import accelerator_of
from hwcalc.profiles.engines import runtime_profile
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.units import GIB, MIB
from scripts.gpu_proof.cases import Run, cases
from scripts.gpu_proof.record import DIFFERS, CaseRecord, exact, failed, judged, known, skipped, within

_LABEL: Final = "cuda:0"
_START, _CONTEXT, _LAST = "before torch is imported", "mem_get_info", "first attention"
"""The stages between which the context and its growth lie."""
_SIDE: Final = 1024
_COPY: Final = 2 * GIB
_LEAST_READ: Final = 0.8
"""A sum that reads a cache at less than this share of a plain copy's rate would not measure the memory."""
_LEAST_COPY: Final = 0.5
_EVENTS: Final = 0.15
"""What the clock of the host may differ from the device's events, as a share."""


def smi_memory() -> dict[str, dict[str, int]]:
    """The memory that ``nvidia-smi`` reports of each GPU, in bytes; empty if it does not run."""
    text = bounded_output(
        "nvidia-smi", "--query-gpu=uuid,memory.total,memory.reserved,memory.used,memory.free", "--format=csv,noheader,nounits"
    )
    found = {}
    for line in (text or "").splitlines():
        uuid, *words = (word.strip() for word in line.split(","))
        if len(words) == 4 and all(word.isdecimal() for word in words):
            found[uuid] = {name: int(word) * MIB for name, word in zip(("total", "reserved", "used", "free"), words, strict=True)}
    return found


class _Reading(Record):
    """One look at the memory. ``used`` is of the whole GPU by nvidia-smi, the others are of this process."""

    stage: str
    smi: Mapping[str, Mapping[str, int]]
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None


def context_step(run: Run, smi: Callable[[], dict[str, dict[str, int]]] = smi_memory) -> Iterator[CaseRecord]:
    """Open questions 1 and 3: what a context takes, before anything, after the first matrix product, after the first attention."""
    readings = [_Reading(stage=_START, smi=smi())]
    torch = run.load()
    readings.append(_Reading(stage="torch imported", smi=smi()))
    torch.cuda.init()
    readings.append(_Reading(stage="torch.cuda.init", smi=smi()))
    properties = torch.cuda.get_device_properties(_LABEL)
    readings.append(_Reading(stage="get_device_properties", smi=smi()))
    free, total = torch.cuda.mem_get_info(_LABEL)
    readings.append(_Reading(stage=_CONTEXT, smi=smi(), free=int(free)))
    mine = _mine(readings[0].smi, str(getattr(properties, "uuid", "")))
    yield judged("total memory", exact("mem_get_info beside get_device_properties", int(properties.total_memory), int(total)))
    for before, reading in zip([None, *readings], readings, strict=False):
        yield _stage_record(before, reading, mine)
    for stage, work in _stages(torch).items():
        work()
        torch.cuda.synchronize(_LABEL)
        reading = _Reading(
            stage=stage,
            smi=smi(),
            free=int(torch.cuda.mem_get_info(_LABEL)[0]),
            allocated=int(torch.cuda.memory_allocated(_LABEL)),
            reserved=int(torch.cuda.memory_reserved(_LABEL)),
        )
        yield _stage_record(readings[-1], reading, mine)
        readings.append(reading)
    yield from _answers({reading.stage: reading for reading in readings}, torch, mine)


def _mine(smi: Mapping[str, Any], uuid: str) -> str | None:
    """The name that nvidia-smi has for the GPU of this process."""
    named = [name for name in smi if uuid and name.lower().endswith(uuid.lower())]
    return named[0] if named else next(iter(smi)) if len(smi) == 1 else None


def _stages(torch: Any) -> dict[str, Callable[[], object]]:
    """The stages, one after the other. Operands and results are allocated before, so that what is added is the library's own."""
    kept: list[Any] = []

    def tensors() -> None:
        for dtype in (torch.bfloat16, torch.float32):
            kept.extend(torch.empty((_SIDE, _SIDE), dtype=dtype, device=_LABEL) for _ in range(3))
        kept.append(torch.empty((1, 8, _SIDE, 128), dtype=torch.bfloat16, device=_LABEL))
        kept.append(torch.empty((_SIDE,), dtype=torch.bfloat16, device=_LABEL))

    def kernel() -> None:
        for tensor in kept:
            tensor.fill_(1)

    def product(first: int) -> None:
        torch.mm(kept[first], kept[first + 1], out=kept[first + 2])

    def other_stream() -> None:
        with torch.cuda.stream(torch.cuda.Stream(device=_LABEL)):
            product(0)

    def attention() -> None:
        torch.nn.functional.scaled_dot_product_attention(kept[6], kept[6], kept[6])

    return {
        "first tensors": tensors,
        "first kernel": kernel,
        "first product": partial(product, 0),
        "second product": partial(product, 0),
        "product in fp32": partial(product, 3),
        "product with a bias": lambda: torch.nn.functional.linear(kept[0], kept[1], kept[7]),
        _LAST: attention,
        "product on another stream": other_stream,
    }


def _stage_record(before: _Reading | None, reading: _Reading, mine: str | None) -> CaseRecord:
    """The numbers of one stage, and what has been added since the one before."""
    used = _used(reading, mine)
    figures = [known("used by nvidia-smi", used), known("free", reading.free)]
    figures += [known("allocated", reading.allocated), known("reserved", reading.reserved)]
    if before is not None:
        earlier = _used(before, mine)
        figures.append(known("added by nvidia-smi", None if used is None or earlier is None else used - earlier))
        figures.append(
            known("taken of free", None if before.free is None or reading.free is None else before.free - reading.free)
        )
    return judged(f"stage: {reading.stage}", *figures)


def _used(reading: _Reading, mine: str | None) -> int | None:
    return None if mine is None or mine not in reading.smi else reading.smi[mine]["used"]


def _answers(at: Mapping[str, _Reading], torch: Any, mine: str | None) -> Iterator[CaseRecord]:
    """The context, its growth and the workspaces beside the constants that plans use."""
    runtime = runtime_profile()
    context, kernels = runtime.estimate("context.cuda"), runtime.estimate("kernels")
    start, made, end = (_used(at[stage], mine) for stage in (_START, _CONTEXT, _LAST))
    if start is None or made is None or end is None:
        yield skipped("context", "nvidia-smi does not say what is used")
    else:
        reserved = at[_LAST].reserved or 0
        yield judged("context", within("bytes", made - start, context.low, context.high, context.expected))
        yield judged(
            "growth until the first attention",
            within("bytes", end - made - reserved, kernels.low, kernels.high, kernels.expected),
        )
    major, minor = torch.cuda.get_device_capability(_LABEL)
    size = int(runtime.estimate(f"workspace.{'sm_90' if (major, minor) == (9, 0) else 'other'}").expected)
    stages = list(at)
    expected = {"first product": size, "second product": 0, "product in fp32": 0, "product on another stream": size}
    for stage, added in {**expected, "product with a bias": None, _LAST: None}.items():
        before = at[stages[stages.index(stage) - 1]].allocated or 0
        rise = (at[stage].allocated or 0) - before
        figure = known("allocated bytes added", rise) if added is None else exact("allocated bytes added", added, rise)
        yield judged(f"workspace: {stage}", figure, capability=f"{major}.{minor}")


_READ: Final = (
    ("Qwen/Qwen3-8B", 32_768, 2, "bf16"),
    ("Qwen/Qwen3-8B", 32_768, 4, "fp8"),
    ("google/gemma-3-27b-it", 131_072, 1, "bf16"),
    ("deepseek-ai/DeepSeek-V3", 131_072, 1, "bf16"),
)


def bandwidth_step(run: Run) -> Iterator[CaseRecord]:
    """The rate at which a cache is read, beside a plain copy, which is timed twice: by the host's clock and by the device's events."""
    device = run.opened()
    notes: list[Note] = []
    try:
        gpu = accelerator_of(device, notes) if device.kind == "cuda" else None
    except KvplanError:
        gpu = None
    copied = min(_COPY, run.usable_bytes(device) // 2)

    def read(name: str, seq: int, batch: int, dtype: str, case: str) -> CaseRecord:
        opened = open_request(load_model(name, offline=True), seq=seq, batch=batch, dtype=dtype)
        result = measure_bandwidth(opened, device, gpu=gpu, most_bytes=min(8 * GIB, run.usable_bytes(device)))
        if device.kind != "cuda":
            rates = {"read": result.read, "plain copy": result.copy, "attention": result.attention}
            return judged(case, *(known(f"{name}, 10^9 B/s", one.gbps) for name, one in rates.items() if one is not None))
        return bandwidth_record(case, result, gpu, events_gbps(device, copied))

    yield from cases(run, [(case, partial(read, *given, case)) for given in _READ for case in (f"{given[0]} {given[3]}",)])


def events_gbps(device: Device, size: int) -> float:
    """10^9 bytes a second, read and written, of a plain copy between two buffers, by events of the device: the best of seven."""
    cuda = device.torch.cuda
    best = float("inf")
    with holding(device) as held:
        for _ in range(2):
            held.append(device.empty((size,), "uint8").fill_(1))
        for _ in range(8):
            start, end = (cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            held[1].copy_(held[0])
            end.record()
            cuda.synchronize(device.label)
            best = min(best, float(start.elapsed_time(end)))
    return 2 * size / max(best, 1e-6) / 1e6


def bandwidth_record(case: str, result: BandwidthResult, gpu: Gpu | None, events: float) -> CaseRecord:
    """The rates, judged: no rate is above the memory's peak, and a read of the cache is about as fast as a copy."""
    peak = None if gpu is None or gpu.memory_bandwidth_gbps is None else float(gpu.memory_bandwidth_gbps)
    copy = result.copy.gbps
    figures = [within("read, 10^9 B/s", result.read.gbps, _LEAST_READ * copy, peak, copy)]
    figures.append(within("plain copy, 10^9 B/s", copy, None if peak is None else _LEAST_COPY * peak, peak, peak))
    figures.append(within("plain copy by events, 10^9 B/s", events, (1 - _EVENTS) * copy, (1 + _EVENTS) * copy, copy))
    figures.append(known("attention, 10^9 B/s", None if result.attention is None else result.attention.gbps))
    return judged(
        case,
        *figures,
        gpu=None if gpu is None else gpu.id,
        read_bytes=result.read.bytes,
        planned_bytes=result.planned_bytes,
        step_seconds=result.step_seconds,
        attention_message=result.attention_message,
    )


_LIVE: Final = (
    ("Qwen/Qwen3-1.7B", "fp32", "dynamic"),
    ("google/gemma-3-1b-it", "fp32", "dynamic"),
    ("openai/gpt-oss-20b", "fp32", "dynamic"),
    ("deepseek-ai/DeepSeek-V3", "fp32", "dynamic"),
    ("state-spaces/mamba-1.4b-hf", "fp32", "dynamic"),
    ("tiiuae/Falcon-H1-1.5B-Base", "fp32", "dynamic"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "fp32", "dynamic"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "fp32", "dynamic"),
    ("LiquidAI/LFM2-1.2B", "fp32", "dynamic"),
    ("facebook/bart-large", "fp32", "dynamic"),
    ("Qwen/Qwen3-1.7B", "bf16", "dynamic"),
    ("google/gemma-3-1b-it", "bf16", "static"),
    ("Qwen/Qwen3-1.7B", "fp32", "static"),
)


_OLDER: Final = ("transformers has no", "transformers does not take", "transformers cannot")
"""How the reason begins if the installed library is too old for a model."""


def live_step(run: Run, live: Callable[..., LiveResult] = run_live) -> Iterator[CaseRecord]:
    """Small real models on the device: the bytes of the cache object, and cached decoding against computing anew."""
    try:
        library()
    except NotRun as reason:
        yield skipped("live models", str(reason))
        return
    device = run.opened()

    def one(name: str, dtype: str, cache: str, case: str) -> CaseRecord:
        return live_record(case, live(load_model(name, offline=True), device.label, dtype=dtype, cache=cache))

    yield from cases(run, [(case, partial(one, *given, case)) for given in _LIVE for case in (" ".join(given),)])


def live_record(case: str, result: LiveResult) -> CaseRecord:
    """A model that the installed library does not know is skipped; one that is read otherwise, or breaks on the device, has failed."""
    if result.status == NOT_RUN:
        return (skipped if result.reason.startswith(_OLDER) else failed)(case, result.reason)
    record = judged(
        case,
        exact("cache", result.predicted_bytes, result.measured_bytes),
        known("storage behind the cache", result.storage_bytes),
        within("difference of logits", result.logits_difference, None, result.tolerance),
        within("difference without a cache", result.control_difference, result.tolerance, None),
        why=result.reason,
        dtype=result.dtype,
        cache=result.cache,
        layers=[[layer.layer, layer.predicted_bytes, layer.measured_bytes] for layer in result.layers],
        tokens=[result.batch, result.prompt_tokens, result.decode_tokens],
        factor=result.factor,
        transformers=result.transformers_version,
    )
    return record if result.status == LIVE_AGREES else replace(record, status=DIFFERS)

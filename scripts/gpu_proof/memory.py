"""The steps that compare bytes: counters of the allocator, free memory, tensors that are read back, the largest that fits, policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.documents import document_of
from hwcalc.engines.deployment import Occupancy
from hwcalc.library.load import load_model
from hwcalc.library.plan import load_request
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.probe.allocator import Allocator, predict
from hwcalc.probe.devices import Counters, Device, holding
from hwcalc.probe.limits import find_max
from hwcalc.probe.policy_run import run_policy
from hwcalc.probe.receipt import make_receipt
from hwcalc.probe.result import MEASURED as ALLOCATED
from hwcalc.probe.result import RankResult
from hwcalc.probe.run import ProbeOptions, probe
from hwcalc.units import GIB, MIB
from scripts.gpu_proof.cases import (
    DTYPES,
    LISTS,
    MODELS,
    POOLED,
    POOLED_DTYPE,
    Case,
    Run,
    TooLargeError,
    cases,
    longest,
    operations,
)
from scripts.gpu_proof.record import DIFFERS, CaseRecord, Figure, exact, judged, known, skipped

_PAGE: Final = 2 * MIB
"""What free memory may differ by: a page of the driver."""
_CAP: Final = 24 * GIB
_FILL_CAP: Final = 4 * GIB
_POOL_SLACK: Final = 2 * GIB
"""Rounding of a pool of up to a hundred tensors to pages of 20 MiB."""
_LEAST_POOL: Final = 16 * MIB
"""A pool of a few blocks of each layer."""
_COUNTERS: Final = ("memory_allocated", "memory_reserved")


def _probed(opened: Occupancy, run: Run, device: Device, *, fill: bool = False) -> tuple[RankResult, Any]:
    """One rank as ``kvplan probe`` measures it, and the whole answer."""
    result = probe(opened, ProbeOptions(device=device.label, fill=fill), environment=run.environment, torch=run.load())
    assert result is not None
    return result.ranks[0], result


def _compared(case: str, opened: Occupancy, rank: RankResult, device: Device, **details: Any) -> CaseRecord:
    """The record of a probe: its comparisons, and the allocator's two counters, which must have been compared on a GPU."""
    figures = [
        Figure(
            name=one.name,
            predicted=one.predicted_bytes,
            measured=one.measured_bytes,
            least=None if one.tolerance_bytes is None else (one.predicted_bytes or 0) - one.tolerance_bytes,
            most=None if one.tolerance_bytes is None else (one.predicted_bytes or 0) + one.tolerance_bytes,
        )
        for one in rank.comparisons
    ]
    compared = {figure.name for figure in figures if figure.is_judged}
    missing = [name for name in _COUNTERS if device.kind == "cuda" and name not in compared]
    version = opened.deployment.version
    why = rank.message or (f"not compared: {', '.join(missing)}" if missing else "")
    record = judged(
        case,
        *figures,
        why=why,
        model=opened.model.id,
        engine=f"{opened.engine.name}@{version}" if version else opened.engine.name,
        dtype=opened.dtypes.kv,
        seq=opened.load.seq,
        batch=opened.load.batch,
        tensors=len(rank.tensors),
        **details,
    )
    agrees = rank.agrees and rank.outcome == ALLOCATED and not missing
    return record if agrees else replace(record, status=DIFFERS)


def allocator_step(run: Run) -> Iterator[CaseRecord]:
    """Allocated and reserved bytes of twenty models in three dtypes, and of vLLM's pool for them, against the rules."""
    device = run.opened()
    most = min(_CAP, run.usable_bytes(device) // 2)

    def one(name: str, engine: str, dtype: str, case: str) -> CaseRecord:
        opened = longest(name, engine, dtype, most, run.settings)
        rank, _ = _probed(opened, run, device)
        return _compared(case, opened, rank, device)

    chosen = [(name, "reference", dtype) for name in MODELS for dtype in DTYPES]
    chosen += [(name, "vllm", POOLED_DTYPE) for name in POOLED]
    named = {f"{name} {engine} {dtype}": (name, engine, dtype) for name, engine, dtype in chosen}
    yield from cases(run, [(case, partial(one, *given, case)) for case, given in named.items()])


def lists_step(run: Run) -> Iterator[CaseRecord]:
    """Two hundred random lists of sizes, the counters after each allocation, tolerance 0."""
    device = run.opened()
    yield from cases(run, [(f"list {number}", partial(_list, number, run, device)) for number in range(LISTS)])


def _list(number: int, run: Run, device: Device) -> CaseRecord:
    """One list, in an allocator that holds nothing; the first step at which a counter is wrong, or the last one."""
    rules, case = Allocator(run.settings), f"list {number}"
    if run.settings.unmodelled:
        return skipped(case, f"the allocator's settings are not modelled: {', '.join(run.settings.unmodelled)}")
    usable = run.usable_bytes(device)
    if _peak(number, run) > usable:
        return skipped(case, f"it does not fit: {usable:,} bytes are usable")
    addresses: list[int] = []
    with holding(device) as held:
        start = device.counters()
        if start.reserved:
            return judged(case, exact("reserved before", 0, start.reserved))
        steps, figures = 0, _counted(rules, start)
        for size in operations(number):
            steps += 1
            if size < 0:
                rules.free(addresses.pop(-1 - size))
                del held[-1 - size]
            else:
                addresses.append(rules.allocate(size))
                held.append(device.empty((size,), "uint8"))
            figures = _counted(rules, device.counters())
            if not all(figure.agrees for figure in figures):
                break
    return judged(case, *figures, steps=steps)


def _peak(number: int, run: Run) -> int:
    """The most that a list ever reserves, by the rules: nothing goes back on the way."""
    rules, addresses = Allocator(run.settings), list[int]()
    for size in operations(number):
        if size < 0:
            rules.free(addresses.pop(-1 - size))
        else:
            addresses.append(rules.allocate(size))
    return rules.statistics.reserved_bytes


def _counted(rules: Allocator, now: Counters) -> tuple[Figure, ...]:
    told = rules.statistics
    return (
        exact("allocated", told.allocated_bytes, now.allocated),
        exact("reserved", told.reserved_bytes, now.reserved),
        exact("requested", told.requested_bytes, now.requested),
    )


def free_step(run: Run) -> Iterator[CaseRecord]:
    """Records of whether free memory falls by exactly what is reserved, for a tensor of up to 128 GiB and for many small ones."""
    device = run.opened()
    with holding(device) as held:
        # The kernel that writes bytes is loaded before anything is measured.
        held.append(device.empty((_PAGE,), "uint8"))
        _write(held)
    todo: list[Case] = [(f"{size} GiB", partial(_drop, f"{size} GiB", [size * GIB], run, device)) for size in (1, 8, 32, 64, 128)]
    many = {"128 x 20 MiB": [20 * MIB] * 128, "1,000 x 2 MiB": [2 * MIB] * 1000, "1,000 x 100,000 B": [100_000] * 1000}
    todo += [(name, partial(_drop, name, sizes, run, device)) for name, sizes in many.items()]
    yield from cases(run, todo)


def _write(held: Iterable[Any]) -> None:
    """Write to tensors, and keep none of them by the name of a loop."""
    for tensor in held:
        tensor.fill_(1)


def _drop(case: str, sizes: list[int], run: Run, device: Device) -> CaseRecord:
    told = predict(sizes, run.settings).reserved_bytes
    usable = run.usable_bytes(device)
    if told > usable:
        return skipped(case, f"it does not fit: {usable:,} bytes are usable")
    before = device.counters()
    with holding(device) as held:
        for size in sizes:
            held.append(device.empty((size,), "uint8"))
        after = device.counters()
        _write(held)
        written = device.counters()
    end = device.counters()

    def rise(later: Counters) -> int:
        return (before.free or 0) - (later.free or 0)

    reserved = (after.reserved or 0) - (before.reserved or 0)
    return judged(
        case,
        exact("reserved", told, reserved),
        exact("drop of mem_get_info", reserved, rise(after), tolerance=_PAGE),
        exact("drop once written", reserved, rise(written), tolerance=_PAGE),
        exact("drop after the tensors are gone", 0, rise(end), tolerance=_PAGE),
        known("drop beyond reserved", rise(after) - reserved),
        tensors=len(sizes),
    )


_FILLED: Final = (
    ("Qwen/Qwen3-8B", "reference", "bf16"),
    ("deepseek-ai/DeepSeek-V3", "transformers", "bf16"),
    ("google/gemma-3-27b-it", "vllm", "fp8"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "vllm", "bf16"),
    ("openai/gpt-oss-20b", "reference", "q8_0"),
)


def fill_step(run: Run) -> Iterator[CaseRecord]:
    """Every byte written and read back: some models, and a pool that takes all the memory that there is. Each with its receipt."""
    device = run.opened()
    most = min(_FILL_CAP, run.usable_bytes(device) // 2)

    def filled(opened: Occupancy, case: str) -> CaseRecord:
        rank, probed = _probed(opened, run, device, fill=True)
        record = _compared(
            case, opened, rank, device, filled=rank.filled, probe_receipt=document_of(make_receipt(opened, probed))
        )
        return record if rank.filled else replace(record, status=DIFFERS, why=record.why or "read back otherwise")

    def some(name: str, engine: str, dtype: str, case: str) -> CaseRecord:
        return filled(longest(name, engine, dtype, most, run.settings), case)

    def pool(case: str) -> CaseRecord:
        usable = run.usable_bytes(device)
        if usable < _LEAST_POOL:
            raise TooLargeError(f"it does not fit: {usable:,} bytes are usable")
        slack = _POOL_SLACK if usable > 4 * _POOL_SLACK else usable // 4
        model = load_model("Qwen/Qwen3-8B", offline=True)
        return filled(open_request(model, seq=16_384, engine="vllm", kv_memory=usable - slack), case)

    todo: list[Case] = [
        (case, partial(some, *given, case)) for given in _FILLED for case in (f"{given[0]} {given[1]} {given[2]}",)
    ]
    whole = "a pool of all usable memory"
    yield from cases(run, [*todo, (whole, partial(pool, whole))])


_SEARCHES: Final = (
    ("Qwen/Qwen3-8B", "reference", "batch", 32_768),
    ("Qwen/Qwen3-8B", "vllm", "batch", 4_096),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "reference", "batch", 8_192),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "reference", "seq", 1_024),
    ("deepseek-ai/DeepSeek-V3", "reference", "batch", 16_384),
    ("state-spaces/mamba-1.4b-hf", "reference", "batch", 1_024),
)


def find_max_step(run: Run) -> Iterator[CaseRecord]:
    """The largest batch or sequence that allocates, against the planner's answer; and how near to the last byte one can come."""
    device = run.opened()

    def search(name: str, engine: str, what: str, seq: int, case: str, *, reserve: int | None) -> CaseRecord:
        opened = open_request(load_model(name, offline=True), seq=seq, engine=engine)
        if reserve is None:
            found = find_max(
                opened, device, what, reserve_bytes=0, available_bytes=run.usable_bytes(device), settings=run.settings
            )
        else:
            found = find_max(opened, device, what, reserve_bytes=reserve, settings=run.settings)
        if not found.expected and not found.value:
            raise TooLargeError(f"it does not fit: not one into {found.usable_bytes:,} bytes")
        details = {name: value for name, value in document_of(found).items() if name not in {"what", "value", "expected"}}
        details |= {"model": name, "engine": engine}
        if reserve is None:
            return judged(case, exact(f"largest {what}", found.expected, found.value), **details)
        left = known("bytes of free memory that were not taken", found.free_bytes - found.bytes)
        return judged(
            case, known(f"largest {what}", found.value), known(f"largest {what} by the rules", found.expected), left, **details
        )

    todo: list[tuple[str, Callable[[], CaseRecord]]] = []
    for given in _SEARCHES:
        case = f"{given[0]} {given[1]} {given[2]}"
        todo.append((case, partial(search, *given, case, reserve=None)))
    # Pages of expandable segments are mapped one by one: filling a GPU with them to the last takes seconds each time.
    if run.most_bytes is None and device.kind == "cuda" and not run.settings.expandable_segments:
        case = "Qwen/Qwen3-8B reference batch, nothing left alone"
        todo.append((case, partial(search, "Qwen/Qwen3-8B", "reference", "batch", 1_024, case, reserve=0)))
    yield from cases(run, todo)


_POLICIES: Final = (
    ("Qwen/Qwen3-8B", "snapkv:compression_ratio=0.9", "reference", 8_192, 64),
    ("Qwen/Qwen3-8B", "pyramidkv:compression_ratio=0.5", "transformers", 8_192, 16),
    ("Qwen/Qwen3-0.6B", "rkv:budget=128", "reference", 100, 300),
    ("Qwen/Qwen3-0.6B", "h2o:budget=1024", "transformers", 4_096, 16),
    ("deepseek-ai/DeepSeek-V2-Lite", "knorm:compression_ratio=0.5", "reference", 8_192, 16),
    ("Qwen/Qwen3-8B", "triattention", "vllm", 100, 2_500),
    ("Qwen/Qwen3-8B", "knorm:compression_ratio=0.9", "vllm", 16_000, 16),
)
"""Model, policy, engine, tokens of the prompt and of the text behind it."""
_SMALLER: Final = 8
"""On a CPU prompts are as much shorter."""
_POLICY_SECONDS: Final = 30.0


def policy_step(run: Run) -> Iterator[CaseRecord]:
    """Policies with real tensors: lengths and copies against the plan."""
    device = run.opened()
    usable = run.usable_bytes(device)

    def ran(case: str, model: str, policy: str, engine: str, prompt: int, output: int) -> CaseRecord:
        if device.kind == "cpu" and prompt > 1_000:
            prompt //= _SMALLER
        asked = {"seq": prompt + output, "prompt": prompt, "policy": policy, "engine": engine, "offline": True}
        spec, request = load_request(model, read_options(asked))
        return _policy_record(case, open_request(spec, **request), device, usable)

    todo: list[Case] = []
    for model, policy, engine, prompt, output in _POLICIES:
        case = f"{model} {policy} {engine}"
        todo.append((case, partial(ran, case, model, policy, engine, prompt, output)))
    yield from cases(run, todo)


def _policy_record(case: str, opened: Occupancy, device: Device, usable: int) -> CaseRecord:
    found = run_policy(opened, device, usable_bytes=usable, seconds=_POLICY_SECONDS)
    figures = [
        Figure(name=one.name, predicted=one.predicted, measured=one.measured, least=one.least, most=one.most)
        for one in found.figures
    ]
    details = {name: value for name, value in document_of(found).items() if name not in {"figures", "agrees"}}
    record = judged(case, *figures, model=opened.model.id, **details)
    return record if found.in_place is not False else replace(record, status=DIFFERS, why="a survivor is not in its place")

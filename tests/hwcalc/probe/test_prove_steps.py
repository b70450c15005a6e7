"""Every step of ``scripts/prove_on_gpu.py`` on a CUDA device that is not there: what agrees, what must be reported, what is skipped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch as real_torch

from hwcalc import load_model
from hwcalc.errors import UnsupportedError
from hwcalc.hardware.named import gpu_named
from hwcalc.probe import bandwidth, policy_cut
from hwcalc.probe.allocator import Allocator, Statistics
from hwcalc.probe.bandwidth import BandwidthResult, Timing
from hwcalc.probe.live import NOT_RUN, LiveResult
from scripts.gpu_proof import machine, memory
from scripts.gpu_proof.cases import DTYPES, LISTS, MODELS, POOLED, Run, cases, operations
from scripts.gpu_proof.machine import bandwidth_record, context_step, live_record, live_step, smi_memory
from scripts.gpu_proof.record import AGREES, DIFFERS, FAILED, MEASURED, SKIPPED, CaseRecord, exact, judged, known
from scripts.gpu_proof.steps import STEPS
from tests.hwcalc.probe.fake_cuda import CONTEXT, GPU_NAME, WORKSPACE, FakeTorch

MIB = 2**20
GIB = 2**30
ON_CUDA = tuple(name for name in STEPS if name not in {"live", "context", "policy"})


def run_on(torch: Any, *, expandable: bool = False, **more: Any) -> Run:
    """What a step is given in a process with these settings."""
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    return Run(**{"load": lambda: torch, "until": monotonic() + 600, "environment": environment, **more})


def fake(*, total: int = 80 * GIB, **more: Any) -> FakeTorch:
    """A GPU with the name of one that has a profile."""
    return FakeTorch(total=total, name=GPU_NAME, **more)


def counted(records: list[CaseRecord]) -> dict[str, int]:
    """How many records there are of each status."""
    return dict(Counter(record.status for record in records))


@pytest.fixture(autouse=True)
def _fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock is the device's, wherever a step asks for it."""
    clocks: list[FakeTorch] = []
    made = FakeTorch.__init__

    def remember(self: FakeTorch, **more: Any) -> None:
        made(self, **more)
        clocks[:] = [self]

    monkeypatch.setattr(FakeTorch, "__init__", remember)
    monkeypatch.setattr(bandwidth, "perf_counter", lambda: clocks[-1].now)


@pytest.fixture
def few_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models instead of twenty: 16 cases of the allocator."""
    monkeypatch.setattr(memory, "MODELS", MODELS[:4])
    monkeypatch.setattr(memory, "POOLED", POOLED[:4])


@pytest.mark.usefixtures("few_models")
@pytest.mark.parametrize("expandable", [False, True], ids=["default", "expandable"])
@pytest.mark.parametrize("name", ON_CUDA)
def test_a_gpu_that_follows_the_rules_agrees(name: str, expandable: bool) -> None:
    """Nothing differs, nothing fails, and only what does not fit is skipped; all memory goes back."""
    torch = fake(expandable=expandable)
    records = list(STEPS[name].run(run_on(torch, expandable=expandable)))
    counts = counted(records)

    assert counts.keys() <= {AGREES, SKIPPED, MEASURED}
    assert counts[AGREES] >= 4
    assert {record.case for record in records if record.status == SKIPPED} <= {"128 GiB"}
    assert torch.allocator.reserved == 0


def test_the_models() -> None:
    """Twenty in three dtypes, and their pools: 80 cases, of many architectures."""
    records = list(STEPS["allocator"].run(run_on(fake())))

    assert (20, 3, 80) == (len(set(MODELS)), len(DTYPES), len({record.case for record in records}))
    assert len({load_model(name, offline=True).model_type for name in MODELS}) >= 15
    for record in records:
        assert {"memory_allocated", "memory_reserved"} <= {figure.name for figure in record.figures if figure.is_judged}


@pytest.mark.usefixtures("few_models")
@pytest.mark.parametrize("total", [4 * GIB, 140 * GIB])
def test_sizes_go_by_what_is_free(total: int) -> None:
    """Lengths are chosen so that a small GPU is enough, and a large one is used."""
    records = list(STEPS["allocator"].run(run_on(fake(total=total))))
    largest = max(figure.measured or 0 for record in records for figure in record.figures)

    assert counted(records) == {AGREES: 16}
    assert min(24 * GIB, total // 2 - GIB) / 4 < largest <= min(24 * GIB, total // 2)


@pytest.mark.usefixtures("few_models")
@pytest.mark.parametrize("name", ["lists", "allocator", "fill"])
def test_a_wrong_prediction_is_reported(name: str) -> None:
    """An allocator that counts 512 bytes more than the rules: every case says which figure and by how much."""
    records = list(STEPS[name].run(run_on(fake(extra=512))))

    assert counted(records).keys() == {DIFFERS}
    for record in records:
        (wrong,) = [figure for figure in record.figures if not figure.agrees]
        assert wrong.name in {"allocated", "memory_allocated"}
        assert wrong.measured == (wrong.predicted or 0) + 512
        assert wrong.name in record.why


def test_settings_that_took_no_effect_are_noticed() -> None:
    """The process was to have expandable segments, and the device has none: the rules differ, and that is seen."""
    records = list(STEPS["lists"].run(run_on(fake(), expandable=True)))

    assert counted(records)[DIFFERS] > 100


@pytest.mark.usefixtures("few_models")
def test_what_was_not_compared_does_not_agree() -> None:
    """Another program's memory in the process: the probe draws no conclusion then, which proves nothing."""
    records = list(STEPS["allocator"].run(run_on(fake(held_before=3 * MIB))))

    assert counted(records) == {DIFFERS: 16}
    assert "not compared: memory_allocated, memory_reserved" in records[0].why


def dropped(leak: int, sizes: list[int], total: int = 80 * GIB) -> CaseRecord:
    """One case of the step about free memory, on a driver that keeps ``leak`` bytes for each tensor."""
    run = run_on(fake(leak=leak, total=total))
    return memory._drop("drop", sizes, run, run.opened())


def test_free_memory_that_falls_by_more() -> None:
    """3 MiB beyond what is reserved is more than a page; 1 MiB is not, and is told; for 128 tensors it adds up."""
    kept = dropped(MIB, [GIB])

    assert (DIFFERS, AGREES, DIFFERS) == (dropped(3 * MIB, [GIB]).status, kept.status, dropped(MIB, [20 * MIB] * 128).status)
    assert {figure.name: figure.measured for figure in kept.figures}["drop beyond reserved"] == MIB


def test_128_gib_where_they_fit() -> None:
    """143,156 MiB are 139.8 GiB; less the context and 5 percent they hold 128, as 80 do not."""
    assert (AGREES, SKIPPED) == (dropped(0, [128 * GIB], 143_156 * MIB).status, dropped(0, [128 * GIB]).status)


def test_memory_that_forgets() -> None:
    """What is read back is not what was written."""
    assert counted(list(STEPS["fill"].run(run_on(fake(flaw=True))))) == {DIFFERS: 6}


def test_the_pool_is_nearly_all_memory() -> None:
    """80 GiB less the context and 5 percent: at least nine tenths of it are written."""
    *_, record = STEPS["fill"].run(run_on(fake()))
    written = {figure.name: figure.measured for figure in record.figures}["tensors"]

    assert "a pool of all usable memory" == record.case
    assert (written or 0) > 0.9 * (80 * GIB * 0.95 - CONTEXT)
    assert record.details["probe_receipt"]["probe"]["ranks"][0]["filled"] is True


def test_a_device_with_less_than_it_says() -> None:
    """Of what is said to be free, a part cannot be had: fewer fit than the rules say."""
    torch = fake()
    torch.allocator.total = 40 * GIB
    records = list(STEPS["find-max"].run(run_on(torch)))

    assert counted(records)[DIFFERS] == 6
    assert "largest batch" in records[0].why


def test_the_context() -> None:
    """The context by nvidia-smi, 32 MiB of workspace for each of two streams, and no more for another dtype."""
    torch = fake()
    records = {record.case: record for record in context_step(run_on(torch), torch.smi)}
    answers = {case: record.figures[0].measured for case, record in records.items() if not case.startswith("stage")}

    assert {record.status for record in records.values()} == {AGREES, MEASURED}
    assert answers["context"] == CONTEXT
    assert answers["growth until the first attention"] == 0
    assert {case: size for case, size in answers.items() if "workspace" in case} == {
        "workspace: first product": WORKSPACE,
        "workspace: second product": 0,
        "workspace: product in fp32": 0,
        "workspace: product with a bias": 0,
        "workspace: first attention": 0,
        "workspace: product on another stream": WORKSPACE,
    }
    assert {figure.name: figure.measured for figure in records["stage: mem_get_info"].figures}["added by nvidia-smi"] == CONTEXT


def test_another_workspace_is_reported() -> None:
    """The constant of a plan is 33,554,432 bytes on sm_90: 8,519,680 would be a difference."""
    torch = fake(workspace=8_519_680)
    records = {record.case: record for record in context_step(run_on(torch), torch.smi)}

    assert DIFFERS == records["workspace: first product"].status
    assert AGREES == records["workspace: product in fp32"].status


def test_without_nvidia_smi() -> None:
    """What only it knows is skipped with the reason; the workspaces are measured all the same."""
    records = {record.case: record for record in context_step(run_on(fake()), dict)}

    assert (SKIPPED, "nvidia-smi does not say what is used") == (records["context"].status, records["context"].why)
    assert AGREES == records["workspace: first product"].status


def test_the_stages_with_torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done in each stage runs on a CPU as well, but for the stream."""
    import torch

    monkeypatch.setattr(machine, "_LABEL", "cpu")
    for stage, work in machine._stages(torch).items():
        if "stream" not in stage:
            work()


def test_torch_has_what_is_asked_of_it() -> None:
    """Each function of ``torch.cuda`` takes a device by its name, and the counters have the names that are looked up."""
    import inspect

    import torch

    named = ("synchronize", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "set_device")
    for name in (*named, "get_device_name", "get_device_properties", "get_device_capability"):
        inspect.signature(getattr(torch.cuda, name)).bind("cuda:0")
    inspect.signature(torch.cuda.init).bind()
    inspect.signature(torch.cuda.Stream.__new__).bind(torch.cuda.Stream, device="cuda:0")
    inspect.signature(torch.cuda.Event.__new__).bind(torch.cuda.Event, enable_timing=True)
    assert "requested_bytes.{all,large_pool,small_pool}.{current,peak,allocated,freed}" in (torch.cuda.memory_stats.__doc__ or "")
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def test_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each GPU, in MiB; a line of another form is no GPU."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-aa, 81559, 477, 1, 81081'\necho 'GPU-bb, [N/A], 0, 0, 0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert smi_memory() == {"GPU-aa": {"total": 81559 * MIB, "reserved": 477 * MIB, "used": MIB, "free": 81081 * MIB}}
    assert machine._mine(smi_memory(), "AA") == "GPU-aa"
    assert machine._mine({"GPU-aa": {}, "GPU-bb": {}}, "cc") is None


@pytest.mark.parametrize(
    "read, copy, events, status",
    [
        (2800, 3000, 3000, AGREES),
        (2300, 3000, 3000, DIFFERS),
        (3400, 3000, 3000, DIFFERS),
        (2800, 3500, 3500, DIFFERS),
        (1200, 1400, 1400, DIFFERS),
        (2800, 3000, 2500, DIFFERS),
    ],
)
def test_rates(read: float, copy: float, events: float, status: str) -> None:
    """Of 3,350 x 10^9 B/s: a read slower than the copy, a rate above the peak, a copy far below it, a clock that is off."""

    def timing(gbps: float) -> Timing:
        return Timing(bytes=10**9, seconds=1 / gbps, passes=7)

    opened: Any = None
    result = BandwidthResult(
        environment=opened, model="m", engine="reference", kv_dtype="bf16", gpu=None, peak_gbps=None, planned_bytes=1,
        read=timing(read), copy=timing(copy), attention=None, attention_message="",
    )  # fmt: skip

    assert bandwidth_record("m", result, gpu_named("h100-sxm5-80gb"), events).status == status


def test_a_clock_that_does_not_wait_is_reported() -> None:
    """Without synchronizing, a pass would take no time: the rate is above what the memory can do."""
    torch = fake()

    def no_time(size: int) -> None:
        """Nothing is waited for."""

    torch._tick = no_time  # type: ignore[method-assign]
    assert counted(list(STEPS["bandwidth"].run(run_on(torch)))) == {DIFFERS: 4}


def live_result(**more: Any) -> LiveResult:
    """What a live model gives back, nothing wrong with it."""
    numbers = {"predicted_bytes": 512, "measured_bytes": 512, "tolerance": 1e-4, "control_difference": 0.5}
    common = {"reason": "", "model_type": "llama", "device": "cuda:0", "dtype": "fp32", "attention": "eager"}
    return LiveResult(**{"status": "agrees", **common, **numbers, **more})


def test_live_models() -> None:
    """Each is asked for on the device; what differs, what the library does not know, and what breaks there are told apart."""
    asked: list[Any] = []

    def live(model: Any, device: str, **keywords: Any) -> LiveResult:
        asked.append((model.id, device))
        return live_result()

    assert counted(list(live_step(run_on(fake()), live))) == {AGREES: len(asked)}
    assert len(asked) >= 12
    assert {device for _, device in asked} == {"cuda:0"}
    assert live_record("m", live_result(status="differs", reason="x", measured_bytes=513)).status == DIFFERS
    assert live_record("m", live_result(status=NOT_RUN, reason="transformers has no model type 'x'")).status == SKIPPED
    assert live_record("m", live_result(status=NOT_RUN, reason="it does not run on cuda:0: RuntimeError: x")).status == FAILED
    assert live_record("m", live_result(status=NOT_RUN, reason="transformers reads other layers from it")).status == FAILED


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step says why it is skipped."""
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    (record,) = live_step(run_on(fake()))

    assert SKIPPED == record.status
    assert "transformers is not installed" in record.why


def test_policies_agree_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts, the sawtooth and blocks are what the plan says; a figure that is not is the record's reason."""
    real = run_on(real_torch, device_name="cpu", most_bytes=8 * MIB)
    records = list(STEPS["policy"].run(real))
    assert counted(records) == {AGREES: 7}
    assert all(record.details["in_place"] for record in records)

    monkeypatch.setattr(memory, "_POLICIES", memory._POLICIES[2:3])
    monkeypatch.setattr(policy_cut, "_gathered", lambda tensor, index, _: tensor[:, :, : index.shape[1]].clone())
    (record,) = STEPS["policy"].run(real)
    assert (record.status, record.why) == (DIFFERS, "a survivor is not in its place")


@pytest.mark.parametrize("name", ["lists", "allocator", "free", "fill", "find-max", "bandwidth"])
def test_a_deadline(name: str) -> None:
    """When the time is up, every case that is left is named with the reason."""
    begun: list[float] = []

    def clock() -> float:
        begun.append(0)
        return 0.0 if len(begun) <= 2 else 1.0

    records = list(STEPS[name].run(run_on(fake(), until=0.5, clock=clock)))

    assert [AGREES, AGREES] == [record.status for record in records[:2]]
    assert {(SKIPPED, "no time was left")} == {(record.status, record.why) for record in records[2:]}


def test_an_error_is_the_record_of_its_case() -> None:
    """The next ones are tried; after three in a row the context is taken to be lost."""

    def fails() -> CaseRecord:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")

    def works() -> CaseRecord:
        return judged("good", exact("n", 1, 1))

    todo = [("a", fails), ("b", works), ("c", fails), ("d", fails), ("e", fails), ("f", works)]
    records = list(cases(run_on(fake()), todo))

    assert [FAILED, AGREES, FAILED, FAILED, FAILED, SKIPPED] == [record.status for record in records]
    assert records[0].why == "RuntimeError: CUDA error: an illegal memory access was encountered"


def test_a_case_that_is_not_planned_is_skipped() -> None:
    """There is no prediction that could be wrong. It is no sign of a lost context, and the next ones are tried."""

    def refuses() -> CaseRecord:
        raise UnsupportedError("vLLM 0.24 does not run BartForConditionalGeneration", hint="")

    records = list(cases(run_on(fake()), [(name, refuses) for name in "abcd"] + [("e", lambda: judged("e", exact("n", 1, 1)))]))

    assert [SKIPPED, SKIPPED, SKIPPED, SKIPPED, AGREES] == [record.status for record in records]
    assert records[0].why == "kvplan does not plan it: vLLM 0.24 does not run BartForConditionalGeneration"


@pytest.mark.parametrize("most", [0, 1024, 16 * MIB])
def test_a_pool_of_next_to_nothing(most: int) -> None:
    """It does not fit, which is no fault."""
    records = list(STEPS["fill"].run(run_on(fake(), most_bytes=most)))

    assert records[-1].case == "a pool of all usable memory"
    assert records[-1].status == (SKIPPED if most < 16 * MIB else AGREES)
    assert FAILED not in counted(records)


def test_a_figure_that_is_missing_does_not_agree() -> None:
    """A counter that torch does not have."""
    assert judged("x", exact("n", 0, None)).status == DIFFERS
    assert judged("x", known("n", None)).status == MEASURED


class Falling(Allocator):
    """The driver may return addresses in any order: here each is below the last."""

    def _new_segment(self, size: int, page: int) -> int:
        self._next = (self._next or 2**80) - 2**61
        return self._next // page * page


def stepped(number: int, rules: Allocator) -> list[Statistics]:
    """The counters after each step of a list."""
    addresses: list[int] = []
    out = []
    for size in operations(number):
        if size < 0:
            rules.free(addresses.pop(-1 - size))
        else:
            addresses.append(rules.allocate(size))
        out.append(rules.statistics)
    return out


def test_lists_do_not_depend_on_addresses() -> None:
    """The lists have no choice between equal blocks that would matter: whatever the driver returns, the counters are the same."""
    assert [] == [number for number in range(LISTS) if stepped(number, Allocator()) != stepped(number, Falling())]
    assert 3000 < sum(len(list(operations(number))) for number in range(LISTS))

"""What ``--calibrate`` keeps of a log, and what later plans do with it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import ConfigError
from hwcalc.planner.result import FitInfo
from hwcalc.profiles.calibration import BANDWIDTH, Measured, Measurement, save_reading
from hwcalc.reconcile import reconcile
from tests.hwcalc.reconcile.logs import GIB, LLAMA, LOGS, figures


def part(fit: FitInfo | None, name: str) -> tuple[int, int, int, str]:
    """Low, expected, high and definition of one part of the equation."""
    assert fit is not None
    assert fit.budget is not None
    found = next(one for one in fit.budget.parts if one.name == name)
    return found.low, found.expected, found.high, found.definition


def test_out_of_memory() -> None:
    """23.60 GiB of the process, less 22.90 and 194.87 MiB of torch: about 522 MiB lie outside; kept, they are planned with."""
    log = LOGS / "transformers/out-of-memory.log"
    found = reconcile(LLAMA, log, gpu="rtx-4090", seq=8192, calibrate=True)
    outside = figures(found)["outside torch"]

    assert outside.reported == round(23.60 * GIB) - round(22.90 * GIB) - round(194.87 * 2**20)
    assert found.saved is not None
    assert found.saved.values == {"context_bytes": outside.reported}
    fit = plan(LLAMA, gpu="rtx-4090", seq=8192, engine="transformers").fit
    assert part(fit, "context") == (outside.reported, outside.reported, outside.reported, "measured")
    assert part(plan(LLAMA, gpu="rtx-4090", seq=8192, engine="reference").fit, "context")[3] == "estimate"


def test_calibration_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log measured is planned with: for the same model, ranks and batch, and not for others."""
    log = LOGS / "vllm/v0-0.6-llama-3-8b-a100.log"
    same: dict[str, Any] = {
        "engine": "vllm@0.8",
        "gpu": "a100-pcie-40gb",
        "seq": 8192,
        "memory_utilization": 0.9,
        # The batch of the log: V0 takes a whole prompt at once.
        "engine_options": {"max_num_batched_tokens": 8192},
    }
    model = "meta-llama/Meta-Llama-3-8B"
    before = plan(model, **same)
    found = reconcile(model, log, gpu="a100-pcie-40gb", calibrate=True)

    # 0.10 and 9.37 GiB.
    assert found.saved is not None
    assert found.saved.values == {"non_torch_bytes": 107_374_182, "activation_bytes": 10_060_960_891}
    after = plan(model, **same)
    assert part(after.fit, "non-torch") == (107_374_182, 107_374_182, 107_374_182, "measured")
    assert part(after.fit, "activations") == (10_060_960_891, 10_060_960_891, 10_060_960_891, "measured")
    assert after.fit is not None
    assert after.fit.budget is not None
    # The peak holds the workspaces of cuBLAS too.
    assert "workspaces" not in {one.name for one in after.fit.budget.parts}
    # The log's 11.12 GiB are met better than the estimate did.
    assert abs(after.fit.budget.expected - 11.12 * GIB) < 0.2 * GIB < abs(budget(before) - 11.12 * GIB)
    assert after.memory.activations is not None
    assert after.memory.activations.definition == "measured"
    today = datetime.now(tz=UTC).date().isoformat()
    notes = [note.message for note in after.notes if note.code == "calibrated"]
    assert len(notes) == 1
    assert today in notes[0]

    # Another batch or model: its own peak, but the same outside of torch. Another number of ranks: neither.
    for change in ({"seq": 4096, "engine_options": {"max_num_batched_tokens": 4096}}, {"model": "meta-llama/Llama-3.2-1B"}):
        other = plan(**{"model": model, **same, **change})
        assert part(other.fit, "activations")[3] == "estimate"
        assert part(other.fit, "non-torch")[3] == "measured"
    assert part(plan(model, **same, tp=2).fit, "non-torch")[3] == "estimate"
    assert part(plan(model, **same | {"gpu": "a100-sxm4-40gb"}).fit, "non-torch")[3] == "estimate"

    # A prediction that was made of the log's own figures would prove nothing.
    again = figures(reconcile(model, log, gpu="a100-pcie-40gb"))["activation peak"]
    assert again.definition == "estimate"
    assert again.difference != 0

    monkeypatch.setenv("KVPLAN_NO_CALIBRATION", "1")
    off = plan(model, **same)
    assert (off.fit, off.memory) == (before.fit, before.memory)
    assert [note.code for note in off.notes if note.code.startswith("calibrat")] == ["calibration-off"]


def budget(made: Any) -> int:
    """What the equation leaves for the cache."""
    return int(made.fit.budget.expected)


def test_graphs_as_vllm_estimates_them() -> None:
    """A version that subtracts its estimate is planned with the estimate, not with what the graphs took in the end."""
    text = (
        "Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=4096\n"
        "Available KV cache memory: 4.00 GiB\n"
        "CUDA graph pool memory: 0.4 GiB (actual), 0.26 GiB (estimated), difference: 0.14 GiB (35.3%).\n"
        "Actual usage is 15.73 GiB for consumed memory (weights + non-torch), 1.09 GiB for peak activation\n"
        "Model loading took 14.99 GiB memory and 3 seconds\n"
        "Free memory on device (21.83/22.06 GiB) on startup.\n"
    )
    found = reconcile(LLAMA, text, gpu="l4", calibrate=True)

    assert found.saved is not None
    values = {name: round(size / GIB, 2) for name, size in found.saved.values.items()}
    # Outside of torch is what was consumed beside the weights: 15.73 - 14.99.
    assert values == {"graphs_bytes": 0.26, "activation_bytes": 1.09, "non_torch_bytes": 0.74, "context_bytes": 0.23}
    assert figures(found)["CUDA graphs"].reported == round(0.26 * GIB)


def test_measured_bandwidth() -> None:
    """The bound on speed goes by what was read, in the ratio of the two, and says so."""
    before = plan(LLAMA, gpu="l4", seq=4096).speed
    measured = Measured(device="NVIDIA L4", date="2026-11-20", source="kvplan probe")
    save_reading("l4", BANDWIDTH, Measurement(values={"read_gbps": 240.0}, measured=measured))
    made = plan(LLAMA, gpu="l4", seq=4096)

    assert before is not None
    assert made.speed is not None
    assert (before.definition, made.speed.definition) == ("bound", "measured")
    assert before.decode_step_s_bound is not None
    # An L4's profile says 300 GB/s.
    assert made.speed.decode_step_s_bound == pytest.approx(before.decode_step_s_bound * 300 / 240)
    assert any("240 GB/s instead of the peak of 300" in note.message for note in made.notes if note.code == "calibrated")


def test_a_broken_calibration_is_named(own_folder: Path) -> None:
    """A plan with that GPU says which file; another GPU is unaffected."""
    folder = own_folder / "kvplan/profiles/calibration"
    folder.mkdir(parents=True)
    (folder / "l4.bandwidth.json").write_text("{", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"l4\.bandwidth\.json"):
        plan(LLAMA, gpu="l4", seq=4096)
    assert plan(LLAMA, gpu="l40s", seq=4096).fit is not None

"""vLLM's blocks are counted in one place, and one place says what a pool holds: changed there, all answers change alike."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import compare, load_model, plan, sweep
from hwcalc.engines.vllm.pool import BlockPool
from hwcalc.engines.vllm.specs import FullSpec
from hwcalc.planner.context import open_request
from tests.hwcalc.form_answers import answer, form_of

QWEN = "Qwen/Qwen3-8B"
SETUP: dict[str, Any] = {"engine": "vllm", "gpu": "l4"}


def answers() -> dict[str, Any]:
    """How many sequences of 2,000 tokens fit, as everything says that speaks of vLLM's pool; and of four the longest, as the plan says."""
    planned = plan(QWEN, seq=2000, batch=4, **SETUP)
    assert planned.fit is not None
    assert planned.pool is not None
    steps = {step.name: step.expected for step in planned.pool.steps}
    form = form_of(open_request(load_model(QWEN), seq=2000, batch=4, **SETUP))
    assert form is not None
    rows = list(sweep(QWEN, seq="2000", batch=list(range(1, 20)), **SETUP))
    (compared,) = compare(QWEN, seq=2000, batch=4, **SETUP).records()
    return {
        "plan": (planned.fit.fits, planned.fit.expected_max_batch, planned.fit.expected_max_seq),
        "pool": planned.pool.max_requests,
        "explain": steps["max_requests"],
        "form": answer(form, 2000, 4)["fit"]["expected_max_batch"],
        "sweep": sum(row.fits in ("fits", "probably") for row in rows),
        "compare": compared["expected_max_batch"],
    }


def test_what_a_pool_holds_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 500 null blocks in place of one, everything has 499 blocks of 16 tokens less."""
    before = answers()
    of = BlockPool.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(BlockPool, "of", classmethod(lambda cls, *given: _with(of(cls, *given), null_blocks=500)))
    after = answers()

    assert all(before[name] != after[name] for name in before), (before, after)
    assert len({after["pool"], after["explain"], after["form"], after["compare"], after["plan"][1]}) == 1
    assert abs(before["plan"][2] - after["plan"][2] - 499 * 16 // 4) < 16


def test_blocks_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With twice the blocks for every sequence, everything holds half of the sequences."""
    before, stairs = answers(), FullSpec.stairs
    monkeypatch.setattr(FullSpec, "stairs", lambda self, limits: tuple(each._replace(times=2) for each in stairs(self, limits)))
    after = answers()

    assert {before[name] // 2 for name in after if name != "plan"} == {after[name] for name in after if name != "plan"}
    assert after["plan"][1] == after["pool"]
    assert abs(before["plan"][2] - 2 * after["plan"][2]) <= 32


def _with(pool: BlockPool | None, **change: int) -> BlockPool | None:
    from msgspec.structs import replace

    return None if pool is None else replace(pool, **change)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {"engine": "vllm@0.27", "dtype": "fp8", "gpu": "h200", "tp": 4, "kv_memory": "1GiB"}),
        ("Qwen/Qwen3-30B-A3B", {"engine": "vllm@0.16", "gpu": "h100", "pp": 2, "kv_memory": "2GiB"}),
        (
            "Qwen/Qwen3-8B",
            {"engine": "vllm@0.19", "gpu": "l4", "kv_memory": "100MiB", "engine_options": {"num_gpu_blocks_override": "1000"}},
        ),
    ],
)
def test_what_fits_also_starts(model: str, options: dict[str, Any]) -> None:
    """Where the check before start-up asks for more than the blocks of a request, a length that it refuses is not said to fit."""
    longest = plan(model, seq=500, **options).fit
    assert longest is not None
    most = longest.expected_max_seq
    assert most is not None
    for seq in (most, most + 1):
        planned = plan(model, seq=seq, **options)
        assert planned.fit is not None
        assert planned.pool is not None
        assert planned.fit.fits == planned.pool.fits == (seq == most)
        assert planned.pool.max_seq == most

"""Every option of a plan reaches the plans of ``sweep`` and ``compare``, or the reading of their models."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict

from hwcalc.cli import completion
from hwcalc.cli.options import OUTPUT, PLANNING, Option
from hwcalc.library import compare
from hwcalc.library.load import load
from hwcalc.planner.asked import Access
from hwcalc.planner.options import OPTIONS, PRICED
from hwcalc.sweep import grid, rows
from tests.hwcalc.command import QWEN, Capture, run

GIVEN = [option for option in PLANNING if option.flags and option not in OUTPUT]
READING = [row.name for row in OPTIONS if row.reads_model]
DRAFT = "Qwen/Qwen3-4B"
VALUES = {
    "draft": DRAFT,
    "engine": "vllm",
    "engine_options": "knob=7",
    "gpu": "l4",
    "lora": "rank=8",
    "instance": "p5.48xlarge",
    "dtype": "fp8",
    "kv_memory": "20GiB",
    "policy": "knorm:compression_ratio=0.5",
    "policy_rules": "paper",
    "compaction": "fill",
    "price": "l4=1/h",
    **dict.fromkeys(("ttft", "itl", "e2e"), "3s"),
}


SINGLE = ("avg_seq", "measured")
"""Options of a single plan, which both commands refuse."""
LEFT = {"sweep": (*SINGLE, "ram", *PRICED), "compare": SINGLE}
"""The options that each refuses: rows of a sweep have no prices."""
TAKEN = [(command, option) for command, left in LEFT.items() for option in GIVEN if option.name not in left]


class ReachedError(Exception):
    """Raised instead of planning."""


@pytest.mark.parametrize(("command", "option"), TAKEN, ids=[f"{option.name}-{command}" for command, option in TAKEN])
def test_option_reaches_the_plans(capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str, option: Option) -> None:
    """Nothing is accepted and dropped."""
    seen: list[dict[str, Any]] = []

    def read(model: str, access: Access, **how: Any) -> Any:
        if model != DRAFT:
            seen.append({**asdict(access), **how})
        return load(model, Access(offline=True))

    def plan(_: object, **wanted: Any) -> None:
        seen.append(wanted)
        raise ReachedError

    for place in ("compare", "load"):
        monkeypatch.setattr(f"hwcalc.library.{place}.load", read)
    monkeypatch.setattr(rows, "load", read)
    for module, name in ((compare, "open_loaded"), (grid, "plan_loaded")):
        monkeypatch.setattr(module, name, lambda model, given, _: plan(model, **given))
    run(capsys, command, QWEN)
    run(capsys, command, QWEN, option.flags[0], *([] if option.kind == "flag" else [VALUES.get(option.name, "3")]))

    plain_reading, plain, reading, wanted = seen
    assert (plain_reading != reading) == (option.name in READING)
    assert (plain != wanted) == (option.name not in READING)


@pytest.mark.parametrize(("command", "name"), [(command, name) for command, left in LEFT.items() for name in left])
def test_an_option_of_a_single_plan_is_refused(capsys: Capture, command: str, name: str) -> None:
    """The reason is said, and what to type."""
    (option,) = (option for option in GIVEN if option.name == name)
    status, _, said = run(capsys, command, QWEN, option.flags[0], *([] if option.kind == "flag" else [VALUES.get(name, "3")]))

    assert status == 2
    assert f"It is an option of a single plan: kvplan MODEL {option.flags[0]}" in said


def test_a_list_is_completed_behind_its_last_comma() -> None:
    """What stands before it stays."""
    assert completion.dtypes("bf16,nvf") == ["bf16,nvfp4"]
    assert completion.gpus("l4,h100-s") == [f"l4,{name}" for name in completion.gpus("h100-s")] != []
    assert completion.sweep_formats("p") == ["parquet"]

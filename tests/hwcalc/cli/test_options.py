"""Every option of a planning command reaches the plan."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.cli.options import OUTPUT, PLANNING, Option
from hwcalc.library import plan as api
from tests.hwcalc.command import QWEN, Capture, run

GIVEN = [option for option in PLANNING if option.flags and option not in OUTPUT]
VALUES = {"engine_options": "knob=7", "price": "l4=1/h"}


class ReachedError(Exception):
    """Raised instead of planning."""


@pytest.mark.parametrize("option", GIVEN, ids=lambda option: option.name)
def test_option_reaches_the_plan(capsys: Capture, monkeypatch: pytest.MonkeyPatch, option: Option) -> None:
    """What is written after an option is what the plan is asked for: nothing is accepted and dropped."""
    seen: list[dict[str, Any]] = []

    def plan(_: object, **wanted: Any) -> None:
        seen.append(wanted)
        raise ReachedError

    monkeypatch.setattr(api, "plan", plan)
    run(capsys, QWEN)
    run(capsys, QWEN, option.flags[0], *([] if option.kind == "flag" else [VALUES.get(option.name, "3")]))

    assert len(seen) == 2
    assert seen[0] != seen[1]


def test_a_weight_format_is_planned_with(capsys: Capture) -> None:
    """8,190,735,360 parameters in 16 bits; an unknown format is a usage error."""
    _, plain, _ = run(capsys, QWEN, "--seq", "1k", "--weights", "bf16")
    _, half, _ = run(capsys, QWEN, "--seq", "1k", "--weights", "fp8")

    assert f"{2 * 8_190_735_360:,} B" in plain
    assert f"{2 * 8_190_735_360:,} B" not in half
    assert run(capsys, QWEN, "--weights", "nonsense")[0] == 2

"""Every option of a plan reaches the plans of ``sweep`` and ``compare``, or the reading of their models."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.cli import completion
from hwcalc.cli.lists import READING
from hwcalc.cli.options import OUTPUT, PLANNING, Option
from hwcalc.library import plan as api
from hwcalc.sweep import grid, variants
from tests.hwcalc.command import QWEN, Capture, run

GIVEN = [option for option in PLANNING if option.flags and option not in OUTPUT]
VALUES = {"engine_option": "knob=7", "gpu": "l4", "lora": "rank=8", "instance": "p5.48xlarge", "dtype": "fp8"}


class ReachedError(Exception):
    """Raised instead of planning."""


@pytest.mark.parametrize("command", ["sweep", "compare"])
@pytest.mark.parametrize("option", GIVEN, ids=lambda option: option.name)
def test_option_reaches_the_plans(capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str, option: Option) -> None:
    """Nothing is accepted and dropped."""
    seen: list[dict[str, Any]] = []
    load_model = api.load_model

    def load(model: str, **how: Any) -> Any:
        seen.append(how)
        return load_model(model, offline=True)

    def plan(_: object, **wanted: Any) -> None:
        seen.append(wanted)
        raise ReachedError

    monkeypatch.setattr(api, "load_model", load)
    monkeypatch.setattr(grid, "plan", plan)
    monkeypatch.setattr(variants, "plan", plan)
    run(capsys, command, QWEN)
    run(capsys, command, QWEN, option.flags[0], *([] if option.kind == "flag" else [VALUES.get(option.name, "3")]))

    plain_reading, plain, reading, wanted = seen
    assert (plain_reading != reading) == (option.name in READING)
    assert (plain != wanted) == (option.name not in READING)


def test_a_list_is_completed_behind_its_last_comma() -> None:
    """What stands before it stays."""
    assert completion.dtypes("bf16,nvf") == ["bf16,nvfp4"]
    assert completion.gpus("l4,h100-s") == [f"l4,{name}" for name in completion.gpus("h100-s")] != []
    assert completion.sweep_formats("p") == ["parquet"]

"""What is said of deployments and options that SGLang's replay does not take."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.errors import KvplanError
from hwcalc.replay.simulate import deploy

_QWEN = "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("model", "given", "said", "hint"),
    [
        (_QWEN, {"tokens": 1000, "engine_options": {"shedule_policy": "lpm"}}, "shedule_policy", "schedule_policy"),
        (_QWEN, {"tokens": 1000, "engine_options": {"schedule_policy": "lpmm"}}, "lpmm", "lpm"),
        (_QWEN, {"blocks": 100}, "counted in tokens", "tokens"),
        (_QWEN, {}, "tokens of a pool", "--tokens N"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"tokens": 100_000}, "no rules for the pools", "Replay a model"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"gpu": "h200", "tp": 2, "gpus": 2}, "extra_buffer", "no_buffer"),
    ],
)
def test_refused(model: str, given: dict[str, Any], said: str, hint: str) -> None:
    """The error says what was given, and what to do instead."""
    with pytest.raises(KvplanError) as raised:
        deploy(model, engine="sglang", **given)
    assert said in str(raised.value)
    assert hint in (raised.value.hint or "")

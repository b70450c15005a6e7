"""Each rule of vLLM's planner changes in the release that the table names: what a plan says before and since, with its arithmetic."""

from __future__ import annotations

import pytest

from hwcalc.engines.vllm.rules import TABLE
from tests.hwcalc.engines.vllm_cases import Case, answer
from tests.hwcalc.engines.vllm_layer_cases import LAYER_CASES
from tests.hwcalc.engines.vllm_pool_cases import POOL_CASES

CASES = (*POOL_CASES, *LAYER_CASES)


@pytest.mark.parametrize("asked", CASES, ids=lambda asked: f"{asked.rule}-{asked.since}")
def test_rule_changes_in_that_release(asked: Case) -> None:
    before, since = asked.releases
    assert answer(asked, before) == asked.before
    assert answer(asked, since) == asked.after
    assert asked.before != asked.after

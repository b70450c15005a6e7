"""Each rule of vLLM's planner changes in the release that the table names: what a plan says before and since, with its arithmetic."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc.engines.vllm.rules import TABLE, Rule, periods, rules_of
from hwcalc.engines.vllm.versions import numbers
from tests.hwcalc.engines.vllm_cases import RELEASES, Case, answer
from tests.hwcalc.engines.vllm_layer_cases import LAYER_CASES
from tests.hwcalc.engines.vllm_pending_cases import PENDING, WRONG_ENTRIES, Pending
from tests.hwcalc.engines.vllm_pool_cases import POOL_CASES

CASES: Final = (*POOL_CASES, *LAYER_CASES)
BOUNDARIES: Final = {(rule.name, since) for rule in TABLE for since, _ in rule.entries[:-1]}
"""Every rule with every release in which it changed."""


def _name(asked: Case | Pending) -> str:
    inner = asked.case if isinstance(asked, Pending) else asked
    return f"{inner.rule}-{inner.since}"


@pytest.mark.parametrize("asked", CASES, ids=_name)
def test_a_rule_changes_what_a_plan_says(asked: Case) -> None:
    """The last release before it and the first one with it."""
    before, since = asked.releases
    assert asked.before != asked.after
    assert answer(asked, before) == asked.before
    assert answer(asked, since) == asked.after


@pytest.mark.parametrize("pending", PENDING, ids=_name)
def test_a_rule_that_is_not_planned_yet(pending: Pending) -> None:
    """A case that begins to pass must move to the others."""
    before, since = pending.case.releases
    found = answer(pending.case, before), answer(pending.case, since)
    assert found != (pending.case.before, pending.case.after), f"{_name(pending)} is planned now: move the case"
    pytest.xfail(pending.evidence)


def test_every_change_of_every_rule_has_a_case() -> None:
    """And no case names a rule or a release that the table lacks."""
    cases = {(each.rule, each.since) for each in CASES}
    pending = {(each.case.rule, each.case.since) for each in PENDING}
    assert cases <= BOUNDARIES
    assert set(WRONG_ENTRIES) <= BOUNDARIES
    assert BOUNDARIES <= cases | pending | set(WRONG_ENTRIES)
    assert not set(WRONG_ENTRIES) & cases


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.name)
def test_a_rule_has_one_value_in_each_release(rule: Rule) -> None:
    """Its entries go from the newest to the oldest, each changes something, and a release has the value of the period that holds."""
    since = [numbers(each, first=True) for each, _ in rule.entries]
    assert since == sorted(since, reverse=True)
    assert rule.entries[-1][0] == "0.0"
    values = [value for _, value in rule.entries]
    assert all(newer != older for newer, older in zip(values, values[1:], strict=False))
    assert rule.source
    own = [period for period in periods() if period.rule == rule.name]
    for release in map(numbers, RELEASES):
        held = [
            period.value
            for period in own
            if numbers(period.since, first=True) <= release and (period.until is None or release < numbers(period.until, first=True))
        ]
        assert held == [getattr(rules_of(release), rule.name)]

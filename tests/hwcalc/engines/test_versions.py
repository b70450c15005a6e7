"""Rules by version: every rule goes from the newest to the oldest, each entry changes something, and every version has one value."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pytest

from hwcalc.engines.llamacpp import builds
from hwcalc.engines.sglang import rules as sglang
from hwcalc.engines.versions import Rule, changed_in, listed, off, on, rules_at, rules_in, unknown_version
from hwcalc.engines.vllm import rules as vllm
from hwcalc.formulas.record import Record
from hwcalc.profiles.engines import planned_version, since

RECORDS: Final[dict[str, tuple[type[Record], set[str]]]] = {
    "vllm": (vllm.Rules, set[str]()),
    "sglang": (sglang.Rules, {"version"}),
    "llamacpp": (builds.BuildRules, set[str]()),
}


@pytest.mark.parametrize("engine", RECORDS)
def test_a_rule_tells_its_field_of_every_version(engine: str) -> None:
    """Entries from the newest to the oldest, of which the last is that of all older versions; a rule for each field."""
    record, others = RECORDS[engine]
    for name, rule in rules_in(record).items():
        firsts = [since(first) for first, _ in rule.entries]
        assert all(newer > older for newer, older in pairwise(firsts)), name
        assert not any(firsts[-1]), name
        assert all(newer != older for (_, newer), (_, older) in pairwise(rule.entries)), name
        assert rule.source
    assert {*rules_in(record), *others} == set(record.__struct_fields__)


def test_what_holds_in_a_version() -> None:
    """Patches count, and a version of two numbers is its newest patch; a build is one number."""
    table = (on("0.10.2", "a"), off("0.6", "b"), Rule((("0.20", 128), ("0.11.1", 64), ("0.0", 16)), "c"))
    held = [[rule.at(planned_version(version)) for rule in table] for version in ("0.5.9", "0.10.1", "0.10", "0.11.0", "0.20.0")]
    assert held == [[False, True, 16], [False, False, 16], [True, False, 16], [True, False, 16], [True, False, 128]]
    assert Rule((("7256", 1), ("4617", 64), ("0", 32)), "d").at((7255,)) == 64
    assert changed_in(vllm.Rules, "dcp") == "0.10.2"
    assert rules_at(vllm.Rules, (0, 33)) == vllm.rules_of((0, 33))


def test_the_error_of_an_unknown_version() -> None:
    """What was given, and what is known."""
    error = unknown_version("vllm", "0.1", hint=f"{listed(['0.33', '0.32', '0.6'])}.")
    assert "no rules for that version" in str(error)
    assert error.hint == "Known: 0.6 to 0.33."

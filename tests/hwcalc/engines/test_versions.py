"""Rules by version: every table goes from the newest to the oldest, each entry changes something, and every version has one value."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pytest

from hwcalc.engines.llamacpp import builds
from hwcalc.engines.sglang import rules as sglang
from hwcalc.engines.versions import Rule, changed_in, listed, off, on, rules_at, unknown_version
from hwcalc.engines.vllm import rules as vllm
from hwcalc.profiles.engines import planned_version, since

TABLES: Final = {
    "vllm": (vllm.TABLE, vllm.Rules, set[str]()),
    "sglang": (sglang.TABLE, sglang.Rules, {"version"}),
    "llamacpp": (builds.TABLE, builds.BuildRules, set[str]()),
}


@pytest.mark.parametrize("engine", TABLES)
def test_a_table_tells_every_field_of_every_version(engine: str) -> None:
    """Entries from the newest to the oldest, of which the last is that of all older versions; a rule for each field, and none twice."""
    table, record, others = TABLES[engine]
    for rule in table:
        firsts = [since(first) for first, _ in rule.entries]
        assert all(newer > older for newer, older in pairwise(firsts)), rule.name
        assert not any(firsts[-1]), rule.name
        assert all(newer != older for (_, newer), (_, older) in pairwise(rule.entries)), rule.name
        assert rule.source
    names = [rule.name for rule in table]
    assert len(names) == len(set(names))
    assert {*names, *others} == set(record.__struct_fields__)


def test_what_holds_in_a_version() -> None:
    """Patches count, and a version of two numbers is its newest patch; a build is one number."""
    table = (
        on("streams", "0.10.2", "a"),
        off("forks", "0.6", "b"),
        Rule("step", (("0.20", 128), ("0.11.1", 64), ("0.0", 16)), "c"),
    )
    held = [[rule.at(planned_version(version)) for rule in table] for version in ("0.5.9", "0.10.1", "0.10", "0.11.0", "0.20.0")]
    assert held == [[False, True, 16], [False, False, 16], [True, False, 16], [True, False, 16], [True, False, 128]]
    assert Rule("mask_rows", (("7256", 1), ("4617", 64), ("0", 32)), "d").at((7255,)) == 64
    assert changed_in(table, "step") == "0.20"
    assert rules_at(vllm.Rules, vllm.TABLE, (0, 33)) == vllm.rules_of((0, 33))


def test_the_error_of_an_unknown_version() -> None:
    """What was given, and what is known."""
    error = unknown_version("vllm", "0.1", hint=f"{listed(['0.33', '0.32', '0.6'])}.")
    assert "no rules for that version" in str(error)
    assert error.hint == "Known: 0.6 to 0.33."

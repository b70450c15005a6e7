"""What SGLang 0.5.23's own configurators computed (``tests/golden/sglang.json``) is planned to the token."""

from __future__ import annotations

import pytest

from hwcalc import plan
from hwcalc.engines.steps import value_of
from tests.golden_configs import config_as_run
from tests.hwcalc.engines.sglang_rows import differences, opened_of, options_of, rows


@pytest.mark.parametrize("name", rows())
def test_row_is_planned_to_the_token(name: str) -> None:
    """Every figure of the row."""
    assert not differences(rows()[name])


@pytest.mark.parametrize("name", list(rows())[::9])
def test_a_plan_has_the_figures_of_the_row(name: str) -> None:
    """The pool of a whole plan is that of the row: its tokens, window tokens, slots, and requests at once."""
    row = rows()[name]
    made = plan(
        config_as_run(row["model"]),
        engine="sglang",
        seq=1024,
        dtype=row["kv_dtype"],
        tp=row.get("opt_tp", 1),
        kv_memory=row["budget_bytes"],
        engine_options=options_of(row),
    )
    assert made.pool is not None
    found = made.pool.tokens, made.pool.swa_tokens, made.pool.state_slots, made.pool.max_requests
    wanted = (row[key] for key in ("max_total_num_tokens", "swa_tokens"))
    assert found == (*wanted, row.get("max_mamba_cache_size"), row["max_running_requests"])


@pytest.mark.parametrize("name", list(rows())[::3])
def test_each_figure_follows_from_its_formula(name: str) -> None:
    """The arithmetic that ``kvplan explain`` shows gives the tokens, windows, slots and requests of the row."""
    row = rows()[name]
    made = opened_of(row).pool(row["budget_bytes"]).value
    assert made is not None
    for one in made.steps:
        assert value_of(one.formula, {term.name: term.expected for term in one.terms}) == one.expected, one
    found = {one.name: one.expected for one in made.steps}
    assert found.get("tokens", made.tokens) == row["max_total_num_tokens"]
    assert found.get("running", found.get("running_by_tokens")) == (row["max_running_requests"] if made.steps else None)

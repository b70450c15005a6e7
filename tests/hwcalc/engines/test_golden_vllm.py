"""What vLLM 0.33's own planner computed (``tests/golden/vllm.json``) is planned to the block."""

from __future__ import annotations

import pytest

from tests.hwcalc.engines.vllm_rows import differences, row_opened, rows


@pytest.mark.parametrize("name", rows())
def test_row_is_planned_to_the_block(name: str) -> None:
    """Every figure of the row."""
    assert not differences(rows()[name])


@pytest.mark.parametrize(
    "name", [name for name, row in rows().items() if "bytes_needed_for_one_max_len_request_per_rank" in row["result"]]
)
def test_tensors_and_extras_add_up_to_what_a_request_takes(name: str) -> None:
    """All ranks together: each of tp ranks of each pipeline stage holds its stage's blocks."""
    row = rows()[name]
    context = row_opened(row)
    stack = context.model.stack_for("vllm")
    total = sum(group.count * tensor.bytes for group in stack.groups for tensor in context.tensors(group.kind))
    total += sum(tensor.bytes for tensor in context.extras)
    needed = row["result"]["bytes_needed_for_one_max_len_request_per_rank"]
    assert total == context.setup.parallel.tp * sum(needed)

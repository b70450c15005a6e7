"""CSV of a plan's tensors, and lists (models, engines, dtypes) in every text format."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hwcalc.planner.result import Plan
from hwcalc.report.columns import columns, over
from hwcalc.report.layer_shares import is_room
from hwcalc.report.markdown import markdown_table
from hwcalc.report.table import PIPED_WIDTH, rendered
from hwcalc.report.text import VERDICT_COLORS
from hwcalc.text import LONGEST_MESSAGE, clean, csv_cell, cut

if TYPE_CHECKING:
    from rich.text import Text

    from hwcalc.library.explain import Explanation

__all__ = ["csv_text", "explain_csv", "listing", "plan_csv"]

_PLAN_COLUMNS = (
    "model", "engine", "engine_version", "seq", "batch", "kv_dtype", "definition",
    "kind", "layers", "count", "tensor", "role", "axes", "shape", "dtype", "span", "positions", "bytes",
    "cache_total_bytes", "weights_bytes", "total_bytes", "gpu", "gpus", "total_per_gpu_bytes", "total_per_gpu_low_bytes",
    "total_per_gpu_high_bytes", "usable_bytes", "fits",
    "prompt", "policy", "policy_offered", "without_policy_bytes", "policy_saved_bytes", "policy_loses", "sequences", "unshared_bytes",
)  # fmt: skip

_EXPLAIN_COLUMNS = (
    "section", "name", "formula", "numbers", "per_layer", "layers", "result", "low", "high", "unit", "definition", "source",
)  # fmt: skip


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values with a header line, as every command writes them.

    An empty cell is unknown, ``true`` and ``false`` are those of JSON, and text that a spreadsheet would run as a formula stands behind an
    apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_value(cell) for cell in row] for row in rows)
    return out.getvalue()


def _csv_value(cell: object) -> object:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return csv_cell(cell) if isinstance(cell, str) else cell


def plan_csv(plan: Plan, **_style: object) -> str:
    """One row for each cached tensor. The ``bytes`` column adds up to ``cache_total_bytes``.

    Each row names its plan, so files can be joined, and ends with the plan's sums and its verdict. A plan that caches nothing is one row
    without a tensor.
    """
    request, memory, fit = plan.request, plan.memory, plan.fit
    sums = (
        plan.cache.total_bytes, memory.weights.bytes, memory.total_bytes,
        *((None,) * 7 if fit is None else (
            fit.gpu, fit.gpus, memory.per_gpu.total, fit.needed_low_bytes, fit.needed_high_bytes, fit.usable_bytes, fit.verdict.value,
        )),
        *_dropped_and_shared(plan),
    )  # fmt: skip
    common = (
        plan.model.id, request.engine, request.engine_version or "", request.seq, request.batch, request.kv_dtype,
        plan.cache.definition,
    )  # fmt: skip
    rows = (
        (
            *common, tensor.kind, tensor.layers.text, tensor.count, tensor.name, tensor.role, " x ".join(tensor.axes),
            "x".join(map(str, tensor.shape)), "" if is_room(tensor) else tensor.dtype, tensor.span.text, tensor.positions, tensor.bytes, *sums,
        )
        for tensor in plan.cache.tensors
    )  # fmt: skip
    nothing = (*common, *(None,) * (len(_PLAN_COLUMNS) - len(common) - len(sums)), *sums)
    return csv_text(_PLAN_COLUMNS, rows if plan.cache.tensors else [nothing])


def _dropped_and_shared(plan: Plan) -> tuple[object, ...]:
    """What the policy of the cache gives back, and what sharing does; empty without them."""
    policy, sharing, request = plan.policy, plan.sharing, plan.request
    of_policy: tuple[object, ...] = (request.prompt, request.policy, *(None,) * 4)
    if policy is not None:
        of_policy = (policy.prompt, request.policy, policy.offered, policy.full_bytes, policy.saved_bytes, policy.loses)
    return (*of_policy, *((None, None) if sharing is None else (sharing.sequences, sharing.unshared_bytes)))


def explain_csv(explanation: Explanation) -> str:
    """One row for each figure and each limit, as :meth:`Explanation.records`; each names its plan, so that files can be joined."""
    request = explanation.plan.request
    common = {
        "model": explanation.plan.model.id,
        "engine": request.engine,
        "engine_version": request.engine_version or "",
        "seq": request.seq,
        "batch": request.batch,
    }
    return csv_text(
        (*common, *_EXPLAIN_COLUMNS),
        ([*common.values(), *(_whole(row[name]) for name in _EXPLAIN_COLUMNS)] for row in explanation.records()),
    )


def _whole(cell: object) -> object:
    """Whole numbers without a decimal point."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def listing(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    format_: str,
    right: Iterable[int] = (),
    color: bool = False,
    width: int = PIPED_WIDTH,
    last: int = 0,
) -> str:
    """Rows as a table, Markdown or CSV; the columns in ``right`` are aligned right, and no word is cut, whatever the width.

    In a table the last column goes below its row where it would have fewer than ``last`` characters, and needs more.
    """
    numbers = frozenset(right)
    if format_ == "csv":
        return csv_text(header, rows)
    if format_ == "markdown":
        return markdown_table(header, rows, right=numbers)
    from rich.text import Text

    cells = [[Text(clean(cut(cell, LONGEST_MESSAGE)), style=VERDICT_COLORS.get(cell, "")) for cell in row] for row in rows]
    lines = [[Text(title, style="bold") for title in header], *cells]
    if last and min(last, _longest(lines, -1)) > width - sum(_longest(lines, place) + 2 for place in range(len(header) - 1)):
        return rendered(over(lines, width=width, right=numbers), color=color, width=width)
    return rendered([columns(lines, width=width, right=numbers)], color=color, width=width)


def _longest(lines: Sequence[Sequence[Text]], place: int) -> int:
    """Characters of the longest cell of a column."""
    return max(line[place].cell_len for line in lines)

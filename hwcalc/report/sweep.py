"""The points of a sweep as a table, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hwcalc.planner.verdict import Verdict
from hwcalc.report.columns import NEEDED, RATE, Column, gib, left_out, rate_text, said_of, size_text, that_fit
from hwcalc.report.text import filled
from hwcalc.report.view import View
from hwcalc.sweep.grid import RowBlock
from hwcalc.text import clean

MOST_ROWS: Final = 500
"""Points of a table. Files have all."""
_NAMES: Final = {
    "model": "model", "engine": "engine", "dtype": "KV dtype", "gpu": "GPU", "gpus": "GPUs", "tp": "tp", "policy": "policy", "seq": "tokens",
    "batch": "batch",
}  # fmt: skip
"""Fields that tell points apart -> titles."""
_NUMBERS: Final = frozenset({"gpus", "tp", "seq", "batch"})
_SHARED: Final = {"gpus": "{} GPUs", "tp": "tp {}", "seq": "{} tokens", "batch": "batch {}", "dtype": "KV {}"}

Row = Mapping[str, Any]


def first_rows(blocks: Iterable[RowBlock]) -> tuple[list[Row], int]:
    """The first points, and how many there are. All of them are planned, as for a file."""
    rows: list[Row] = []
    count = 0
    for block in blocks:
        count += block.size
        if len(rows) < MOST_ROWS:
            columns = {name: block.values(name) for name in block.columns}
            rows += (
                {name: values[place] for name, values in columns.items()}
                for place in range(min(block.size, MOST_ROWS - len(rows)))
            )
    return rows, count


def sweep_text(rows: Sequence[Row], count: int, view: View) -> str:
    """A line of what all points share, then a row for each."""
    varying = [name for name in _NAMES if len({row[name] for row in rows}) > 1]
    shared = []
    for name in _NAMES:
        value = rows[0][name] if rows and name not in varying else None
        if value is not None and not (name in ("gpus", "tp") and value == 1):
            shared.append(_SHARED.get(name, "{}").format(f"{value:,}" if isinstance(value, int) else value))
    columns = [
        Column(title=_NAMES[name], cells=tuple(_name(row[name]) for row in rows), right=name in _NUMBERS) for name in varying
    ]

    def column(title: str, cell: Callable[[Row], str], rank: int, *, right: bool = True) -> list[Column]:
        cells = tuple("" if row["error"] else cell(row) for row in rows)
        return [Column(title=title, cells=cells, rank=rank, right=right)] if any(cells) else []

    if any(row["gpu"] is not None for row in rows):
        columns += column("verdict", lambda row: "unknown" if row["fits"] is None else Verdict(row["fits"]).text, 0, right=False)
        columns += column("needs", lambda row: gib(row["total_per_gpu_bytes"]), 1)
        columns += column("of", lambda row: gib(row["usable_bytes"]), 2)
    columns += column("cache", lambda row: size_text(row["cache_total_bytes"]), 0)
    columns += column(RATE, lambda row: rate_text(row["decode_tokens_per_s"], row["decode_tokens_per_s_low"]), 1)
    columns += column("a token", lambda row: size_text(row["bytes_per_token"]), 4)
    columns += column("weights", lambda row: size_text(row["weights_bytes"]), 3)
    columns += column("total", lambda row: size_text(row["total_bytes"]), 5)
    columns += column("saved", lambda row: "" if row["policy_saved_bytes"] is None else size_text(row["policy_saved_bytes"]), 1)
    errors = tuple(clean(row["error"] or "") for row in rows)
    columns += [Column(title="not planned", cells=errors, right=False)] if any(errors) else []
    shown, dropped = that_fit(columns, view.width)
    titles = [one.title for one in shown]
    right = [place for place, one in enumerate(shown) if one.right]
    cells = [list(row) for row in zip(*(one.cells for one in shown), strict=True)]
    parts = [clean(" · ".join(shared)) + "\n"] if shared else []
    parts += [view.table(titles, cells, right=right)] if rows else []
    said = [said_of({NEEDED, "of", RATE} & set(titles))] if NEEDED in titles else []
    said += [left_out(dropped)] if dropped else []
    said += [f"{count - len(rows):,} more points: -o points.csv, or --format csv."] if count > len(rows) else []
    parts += [] if view.quiet or not said else ["".join(f"{filled(line, view.width)}\n" for line in said)]
    return "\n".join(parts)


def _name(value: object) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

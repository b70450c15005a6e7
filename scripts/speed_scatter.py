"""Print how far measured speeds of one setup lie apart, class by class: what no model of that setup can be better than.

    python scripts/speed_scatter.py ROWS.jsonl

``ROWS.jsonl`` are rows as ``scripts/speed_rows.py`` reads them. Rows of one setup have the same model, weights, accelerators, engine, layout,
lengths and number of requests; what differs is the build, the driver, settings that the rows do not state, and who measured. Where sources have
no setup in common, they are compared by the quotients of measured and expected speeds on the same accelerators, whose expected speeds are by
parameters that were fitted to all of them.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from statistics import median
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from scripts.speed_rows import Compared, Row, compared, is_plain, kind_of, rows_of  # noqa: E402

Groups = dict[Hashable, list[Compared]]


def setup(row: Row) -> Hashable:
    """What a row says of what was run, but for the build and the driver."""
    load = row.prompt, row.output, row.cached_prefix, row.concurrency, row.saturated, row.quantity
    return row.engine, row.model, tuple(sorted(row.keywords.items())), load


def grouped(rows: Iterable[Compared], key: Callable[[Row], Hashable]) -> Groups:
    """The rows by what they have in common."""
    found: Groups = defaultdict(list)
    for one in rows:
        found[key(one.row)].append(one)
    return found


def within(rows: Iterable[Compared]) -> list[float]:
    """For each setup that a source measured several times, the fastest of these rows over the slowest."""
    groups = grouped(rows, lambda row: (row.source, setup(row))).values()
    return [max(one.measured for one in some) / min(one.measured for one in some) for some in groups if len(some) > 1]


def between(rows: Iterable[Compared], key: Callable[[Row], Hashable], of: Callable[[Compared], float]) -> list[float]:
    """For each key that several sources measured, the middle value of the highest source over that of the lowest."""
    factors = []
    for group in grouped(rows, key).values():
        sources = grouped(group, lambda row: row.source).values()
        if len(sources) > 1:
            middles = [median(map(of, some)) for some in sources]
            factors.append(max(middles) / min(middles))
    return factors


def shown(factors: list[float]) -> str:
    """The number of factors, their median and the largest."""
    return f"{len(factors)}: {median(factors):.2f}, {max(factors):.2f}" if factors else "none"


def table(rows: Iterable[Compared]) -> str:
    """The table in docs/speed.md. Builds of an engine are one class here: their difference is a part of the scatter."""
    lines = [
        "| class | measured | rows | sources | one setup, one source | one setup, several sources | one accelerator, several sources |",
        "| --- | --- | --: | --: | --- | --- | --- |",
    ]
    classes: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for one in rows:
        classes[one.speed_class.partition("-before-")[0], kind_of(one.row)].append(one)
    for (name, kind), some in sorted(classes.items()):
        alike = between(some, setup, lambda one: one.measured)
        near = between(some, lambda row: row.gpu, lambda one: one.measured / one.expected)
        sources = len({one.row.source for one in some})
        lines.append(f"| {name} | {kind} | {len(some)} | {sources} | {' | '.join(map(shown, (within(some), alike, near)))} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    options = parser.parse_args(arguments)
    found, _ = compared(filter(is_plain, rows_of(options.rows)))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Replay public serving benchmarks that state how many requests were served at once, and print how far the replay is off, by class.

    python scripts/served_rows.py ROWS.jsonl

Rows are those of ``scripts/speed_rows.py``. Each is replayed as benchmarks are run: requests of one length, of which so many are with the
server at a time, five times as many in all. What is compared is the mean time of a further token, or the output tokens a second of the
whole run. Beside it is what the formula of ``hwcalc.speed`` says of the same row.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    # A script's own folder is on the path, its repository is not.
    sys.path.insert(0, str(ROOT))

from hwcalc import simulate  # noqa: E402
from hwcalc.engines import find_engine  # noqa: E402
from hwcalc.errors import KvplanError  # noqa: E402
from scripts.speed_rows import Row, compared, is_plain, model_of, rows_of  # noqa: E402

_ROUNDS: Final = 5
"""Requests for each that is served at a time."""
_NAMES: Final = {
    "itl_s": "time of a further token",
    "output_tokens_per_s": "output tokens a second",
    "ttft_s": "time to the first token",
}
_VARIED: Final = {"InferenceX": 9}
"""Sources whose lengths vary, from 80 to 100 % of what they name: one in so many parts of the mean, up or down."""
_ALL_SERVED: Final = "neighbours"
"""The flag of rows whose first tokens waited for prompts of others, which a prompt alone says nothing of."""
_OPTIONS: Final = {"sglang": {"ignore_eos": "true"}}
"""What benchmarks ask of their servers."""


class Served(Struct, frozen=True):
    """A row with what was measured, replayed, and said by the formula, all as speeds."""

    speed_class: str
    quantity: str
    measured: float
    replayed: float
    formula: float


def replayed(row: Row) -> float:
    """The quantity of a row by a replay, as a speed."""
    options: dict[str, Any] = dict(_OPTIONS.get(row.engine, {}))
    shares = find_engine(row.engine)[0].facts.shared_experts_option
    if shares and row.keywords["dp"] > 1 and row.keywords["ep"] > 1:
        options[shares] = "true"
    part, total = _VARIED.get(row.source), row.prompt + row.output
    prompt, output = (
        f"{size}" if part is None else f"min={size - size // part},max={size + size // part}" for size in (row.prompt, row.output)
    )
    traffic = simulate(
        model_of(row.model),
        f"prompt={prompt} output={output} requests={_ROUNDS * row.concurrency} concurrency={row.concurrency}",
        engine=row.engine,
        seq=total + total // min(_VARIED.values()) + 8,
        engine_options=options,
        **row.keywords,
    ).traffic
    spread = {"itl_s": traffic.tpot, "ttft_s": traffic.ttft}.get(row.quantity)
    if spread is not None:
        return 1 / spread.mean
    assert traffic.throughput is not None
    return traffic.throughput.output_tokens_per_s


def served(path: Path) -> tuple[list[Served], Counter[str]]:
    """All rows of a file that can be replayed, and how many cannot, by the reason."""
    found, refused = list[Served](), Counter[str]()
    for row in rows_of(path):
        wanted = row.quantity in _NAMES and not row.saturated and row.concurrency > 1 and not row.cached_prefix
        if not wanted or not is_plain(row, even=_ALL_SERVED):
            continue
        try:
            if find_engine(row.engine)[0].scheduler is None:
                refused[f"no rules of {row.engine}'s scheduler"] += 1
                continue
            rows, _ = compared([row])
            if not rows:
                refused["no expected speed"] += 1
                continue
            found.append(
                Served(
                    speed_class=rows[0].speed_class,
                    quantity=row.quantity,
                    measured=rows[0].measured,
                    replayed=replayed(row),
                    formula=rows[0].expected,
                )
            )
        except KvplanError as error:
            refused[str(error)] += 1
    return found, refused


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path, help="the file of rows")
    found, refused = served(parser.parse_args(arguments).rows)
    by_class: dict[tuple[str, str], list[Served]] = defaultdict(list)
    for one in found:
        by_class[one.speed_class, one.quantity].append(one)
    print("| class | measured | rows | error of the replay | bias | error of the formula | bias |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    for (name, quantity), rows in sorted(by_class.items()):
        cells = [name, _NAMES[quantity], str(len(rows))]
        for said in ("replayed", "formula"):
            shares = [getattr(one, said) / one.measured for one in rows]
            cells += [f"{100 * median([abs(share - 1) for share in shares]):.0f} %", f"{median(shares):.2f}"]
        print(f"| {' | '.join(cells)} |")
    for reason, number in refused.most_common():
        print(f"not replayed, {number}: {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Text, Markdown or CSV of what a benchmark measured beside what was expected."""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile.speeds import BenchReconciliation, SpeedRow
from hwcalc.report.text import csv_text
from hwcalc.report.view import View
from hwcalc.units import human_duration

_HEADER: Final = ("", "run", "figure", "measured", "expected", "range", "bound", "times")
_NAMES: Final = {
    "ttft_s": "to the first token",
    "itl_s": "between tokens",
    "e2e_s": "of a request",
    "output_tokens_per_s": "output of all",
    "prefill_tokens_per_s": "prompt",
    "decode_tokens_per_s": "tokens",
}
_MEANING: Final = "times: the measured time in times of the expected one; above 1 is slower"


def bench_csv(compared: BenchReconciliation) -> str:
    """One row for each figure, with numbers without units and separators."""
    return csv_text(
        SpeedRow.__struct_fields__, [[getattr(row, name) for name in SpeedRow.__struct_fields__] for row in compared.rows]
    )


def bench_text(compared: BenchReconciliation, view: View) -> str:
    """The verdict, the figures side by side, and what to do with them."""
    version = f" {compared.engine_version}" if compared.engine_version else ""
    on = f"{compared.model} on {compared.gpus:,} x {compared.gpu}"
    title = f"{on} beside {compared.file} ({compared.tool}, {compared.engine}{version})"
    head = view.headed(title, verdict(compared), agrees=compared.within is not False)
    table = view.table(_HEADER, [_cells(row) for row in compared.rows], right=(3, 4, 5, 6, 7))
    if view.quiet:
        return head + table
    lines = [("expected", f"{compared.source}; {_MEANING}")]
    if compared.saved is not None:
        lines.append(
            ("kept", f"{factors(compared)}, for later plans with {compared.engine} on {compared.gpu}: {compared.saved.path}")
        )
    elif compared.decode_times is not None and compared.within is False:
        lines.append(("keep", f"--calibrate keeps it for later plans: {factors(compared)}"))
    lines += [("note", note.message) for note in compared.notes]
    return f"{head}{table}\n{view.labelled(lines)}"


def verdict(compared: BenchReconciliation) -> str:
    """Words for the figures in range."""
    beyond = sum(row.beats_bound for row in compared.rows)
    faster = f"; {beyond:,} faster than the bound" if beyond else ""
    if compared.within is None:
        return f"no expected speed of {compared.engine} on {compared.gpu}: beside the bound alone{faster}"
    inside = sum(row.within is True for row in compared.rows)
    return f"{'as expected' if compared.within else 'not as expected'}: {inside:,} of {len(compared.rows):,} figures in their range{faster}"


def factors(compared: BenchReconciliation) -> str:
    """Words for how much longer it took."""
    if compared.decode_times is None or compared.prompt_times is None:
        return ""
    if compared.decode_times == compared.prompt_times:
        return f"{compared.decode_times:.2f} times the expected time"
    return f"{compared.decode_times:.2f} times the expected time of decoding, {compared.prompt_times:.2f} times that of prompts"


def _cells(row: SpeedRow) -> list[str]:
    sign = "?" if row.within is None else "" if row.within else "!"
    span = "" if row.low is None or row.high is None else f"{_shown(row.low, row)} to {_shown(row.high, row)}"
    expected = "" if row.expected is None else _shown(row.expected, row)
    times = "" if row.times is None else f"{row.times:.2f}"
    return [
        sign,
        row.run,
        _NAMES.get(row.figure, row.figure),
        _shown(row.measured, row),
        expected,
        span,
        _shown(row.bound, row),
        times,
    ]


def _shown(value: float, row: SpeedRow) -> str:
    if row.unit == "s":
        return human_duration(value)
    return f"{value:,.3g} /s" if value < 1000 else f"{value:,.0f} /s"

"""The results of a probe, and of a receipt that was planned again, as documents and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.formulas.record import Record
from hwcalc.probe.live import NOT_RUN
from hwcalc.probe.more import More
from hwcalc.probe.receipt import Verified
from hwcalc.probe.result import AT_RANDOM, MEASURED, Compared, PolicyFigure, PolicyRun, Probed, RankResult, TensorResult
from hwcalc.report.drawing import AGREES, DIFFERS, listing, marked
from hwcalc.report.text import both, csv_text, exact, plural
from hwcalc.text import clean
from hwcalc.units import human_bytes

_COLUMNS = ("figure", "predicted", "measured", "difference", "")
_CSV = ("rank", "what", "name", "dtype", "shape", "predicted_bytes", "measured_bytes", "difference_bytes", "tolerance_bytes")


class ProbeDocument(Record):
    """What ``kvplan probe --json`` prints."""

    schema_version: str
    kvplan_version: str
    probe: Probed
    more: More | None


def probe_document(probed: Probed, more: More | None = None) -> dict[str, Any]:
    """The result of a probe as a JSON document."""
    document: dict[str, Any] = document_of(
        ProbeDocument(schema_version=SCHEMA_VERSION, kvplan_version=__version__, probe=probed, more=more)
    )
    return document


def probe_text(probed: Probed, more: More | None = None, *, format_: str, color: bool, width: int, quiet: bool) -> str:
    """The verdict, the figures of every rank, and the tensors; equal tensors share a row."""
    sections = [_head(probed, color=color and format_ == "table")]
    shown = {"format_": format_, "color": color, "width": width}
    figures = [row for rank in probed.ranks for row in _figures(rank, several=len(probed.ranks) > 1)]
    if figures:
        header = ("rank", *_COLUMNS) if len(probed.ranks) > 1 else _COLUMNS
        sections.append(listing(header, figures, right=range(len(header) - 4, len(header) - 1), **shown))  # type: ignore[arg-type]
    if not quiet:
        rows = [row for rank in probed.ranks for row in _tensors(rank, several=len(probed.ranks) > 1)]
        header = ("tensors", "dtype", "shape", "bytes each", "bytes")
        header = ("rank", *header) if len(probed.ranks) > 1 else header
        sections.append(listing(header, rows, right=(len(header) - 2, len(header) - 1), **shown))  # type: ignore[arg-type]
    if more is not None:
        sections += _more(more, shown)
    notes = () if quiet else (*probed.notes, *(() if more is None else more.notes))
    if notes:
        sections.append("".join(f"note  {clean(note.message)}\n" for note in notes))
    return "\n".join(sections)


def probe_csv(probed: Probed, more: More | None = None) -> str:
    """One row for each tensor and each figure of each rank."""
    rows: list[tuple[object, ...]] = []
    for rank in probed.ranks:
        for one in rank.tensors:
            measured = one.measured_bytes
            difference = "" if measured is None else measured - one.predicted_bytes
            shape = "x".join(map(str, one.shape))
            cells = (one.dtype, shape, one.predicted_bytes, "" if measured is None else measured, difference, 0)
            rows.append((rank.rank, "tensor", one.name, *cells))
        for figure in rank.comparisons:
            numbers = (figure.predicted_bytes, figure.measured_bytes, figure.difference_bytes, figure.tolerance_bytes)
            rows.append((rank.rank, "figure", figure.name, "", "", *("" if one is None else one for one in numbers)))
    live = () if more is None or more.live is None else more.live.rows()
    rows += (("", "live", name, "", "", predicted, measured, measured - predicted, 0) for name, predicted, measured in live)
    figures = () if more is None or more.policy is None else more.policy.figures
    rows += [
        (
            "",
            "policy",
            f"{one.name} ({one.unit})",
            "",
            "",
            *("" if cell is None else cell for cell in (one.predicted, one.measured)),
            "",
            "",
        )
        for one in figures
    ]
    return csv_text(_CSV, rows)


def verified_text(verified: Verified, *, format_: str, color: bool, width: int) -> str:
    """The measurements of a receipt beside today's predictions."""
    words = "still as predicted" if verified.agrees else "no longer as predicted"
    head = f"{clean(verified.model)}  {clean(verified.receipt)}: {words}\n"
    head += f"measured {clean(verified.date)} on {clean(verified.device)} by {clean(verified.measured_with)}\n"
    rows = [_row(one) for one in verified.comparisons]
    table = listing(_COLUMNS, rows, format_=format_, right=(1, 2, 3), color=color, width=width) if rows else ""
    drift = "".join(f"drift  {clean(line)}\n" for line in verified.drift)
    return "\n".join(filter(None, (head, table, drift)))


def verify_csv(verified: Verified) -> str:
    """One row for each figure and for each difference from the receipt."""
    rows: list[tuple[object, ...]] = [
        ("figure", one.name, one.predicted_bytes, one.measured_bytes, one.difference_bytes) for one in verified.comparisons
    ]
    rows += [("drift", line, "", "", "") for line in verified.drift]
    return csv_text(("what", "name", "predicted_bytes", "measured_bytes", "difference_bytes"), rows)


def _more(more: More, shown: dict[str, Any]) -> list[str]:
    """A paragraph for each measurement beside the allocation: live model, largest size, bandwidth."""
    out = []
    if more.live is not None:
        live = more.live
        head = f"live {live.model_type} on {live.device}: {live.status}"
        if live.status == NOT_RUN:
            out.append(f"{head}, {clean(live.reason)}\n")
        else:
            head += (
                f"; {live.batch:,} x {live.prompt_tokens:,} + {live.decode_tokens:,} tokens, logits differ by "
                f"{live.logits_difference:.1e} (allowed {live.tolerance:.0e}, without a cache {live.control_difference:.1e})\n"
            )
            rows = [_row(Compared.of(*row)) for row in live.rows()]
            out.append(head + listing(_COLUMNS, rows, right=(1, 2, 3), **shown))
    if more.policy is not None:
        out.append(_policy(more.policy, shown))
    if more.maximum is not None:
        largest = more.maximum
        out.append(
            f"largest {largest.what}: {largest.value:,} ({both(largest.bytes)}), by the allocator's rules {largest.expected:,}, "
            f"by the solver {largest.solver:,}; limited by: {largest.limiting}\n"
        )
    if more.bandwidth is not None:
        measured = [
            (name, exact(size), f"{seconds:.6f} s", f"{rate:,.1f} GB/s", "" if share is None else f"{100 * share:.1f} %")
            for name, size, seconds, rate, share in more.bandwidth.rows()
        ]
        header = ("bandwidth", "bytes", "time", "rate", "of peak")
        out.append(listing(header, measured, right=(1, 2, 3, 4), **shown))
        if more.bandwidth.attention is None:
            out.append(f"no attention step: {clean(more.bandwidth.attention_message)}\n")
    return out


def _policy(run: PolicyRun, shown: dict[str, Any]) -> str:
    """What a policy left of real tensors, beside the plan."""
    lines = [f"policy {clean(run.policy)} on {run.device}: {'as planned' if run.agrees else 'DIFFERS from the plan'}"]
    seed = f" (seed {run.seed})" if run.survivors == AT_RANDOM else ""
    lines.append(f"survivors {run.survivors}{seed}, {run.copied_tokens:,} rows of heads copied")
    if run.in_place is not None:
        lines.append("every survivor read back in its place" if run.in_place else "A SURVIVOR IS NOT IN ITS PLACE")
    if run.scaled:
        lines.append(f"scaled down: {run.scaled}")
    head = "".join(f"{line}\n" for line in lines)
    rows = [_policy_row(figure) for figure in run.figures]
    return head + listing(("policy", "predicted", "measured", "difference", "", "remark"), rows, right=(1, 2, 3), **shown)


def _policy_row(figure: PolicyFigure) -> tuple[str, ...]:
    predicted, measured = figure.predicted, figure.measured
    cells = ("" if number is None else f"{_number(number)} {figure.unit}" for number in (predicted, measured))
    apart = None if predicted is None or measured is None else measured - predicted
    difference = "" if apart is None else f"{'-' if apart < 0 else '+'}{_number(abs(apart))} {figure.unit}" if apart else "0"
    word = ("agrees" if figure.agrees else "DIFFERS") if figure.is_judged else "for information"
    return (figure.name, *cells, difference, word, clean(figure.remark))


def _number(number: float) -> str:
    """Whole, or with the digits that say something of a mean."""
    return f"{number:,.1f}" if number % 1 else f"{int(number):,}"


def _head(probed: Probed, *, color: bool) -> str:
    engine = probed.engine if probed.engine_version is None else f"{probed.engine} {probed.engine_version}"
    sizes = [f"{name} {size}" for name in ("tp", "pp", "dp", "dcp") if (size := getattr(probed, name)) > 1]
    request = [engine, f"{probed.batch:,} x {probed.seq:,} tokens", probed.kv_dtype, *sizes]
    where = probed.ranks[0].environment
    lines = [
        f"{clean(probed.model)}  {', '.join(request)}",
        f"on {where.device} ({clean(where.device_name)}), torch {where.torch}",
        marked(_verdict(probed), AGREES if probed.agrees else DIFFERS, color=color).rstrip("\n"),
    ]
    for rank in probed.ranks:
        prefix = f"rank {rank.rank}: " if len(probed.ranks) > 1 else ""
        if rank.scaled:
            lines.append(
                f"{prefix}scaled down: {rank.scaled}, {human_bytes(rank.asked_bytes)} of {human_bytes(rank.planned_bytes)}"
            )
        if rank.message:
            lines.append(f"{prefix}{rank.outcome}: {rank.message}")
        if rank.filled is not None:
            lines.append(
                f"{prefix}every byte written and read back" if rank.filled else f"{prefix}WHAT WAS READ IS NOT WHAT WAS WRITTEN"
            )
    return "".join(f"{line}\n" for line in lines)


def _verdict(probed: Probed) -> str:
    ranks = probed.ranks
    if probed.agrees:
        tensors = sum(len(rank.tensors) for rank in ranks)
        size = sum(rank.asked_bytes for rank in ranks)
        return f"measured as predicted, to the byte: {plural(tensors, 'tensor')}, {both(size)}"
    outcomes = {rank.outcome for rank in ranks} - {MEASURED}
    if outcomes:
        return f"not measured: {', '.join(sorted(outcomes))}"
    return "measured is not what was predicted"


def _figures(rank: RankResult, *, several: bool) -> list[tuple[str, ...]]:
    return [((str(rank.rank),) if several else ()) + _row(one) for one in rank.comparisons]


def _row(one: Compared) -> tuple[str, ...]:
    numbers = ("unknown" if value is None else exact(value) for value in (one.predicted_bytes, one.measured_bytes))
    difference = "" if one.difference_bytes is None else "0" if not one.difference_bytes else f"{one.difference_bytes:+,} B"
    word = "for information" if one.tolerance_bytes is None else "agrees" if one.agrees else "DIFFERS"
    return (one.name, *numbers, difference, word)


def _tensors(rank: RankResult, *, several: bool) -> list[tuple[str, ...]]:
    """Equal tensors share a row, with their count and the name they have in common."""
    forms: dict[tuple[Any, ...], list[TensorResult]] = {}
    for one in rank.tensors:
        forms.setdefault((_kind(one.name), one.dtype, one.shape, one.measured_bytes), []).append(one)
    return [((str(rank.rank),) if several else ()) + _form(equal) for equal in forms.values()]


def _kind(name: str) -> str:
    """A tensor's name without the layer's number: ``layers.keys`` for ``layers.0.keys``."""
    return ".".join(part for part in name.split(".") if not part.isdecimal())


def _form(equal: Sequence[TensorResult]) -> tuple[str, ...]:
    first = equal[0]
    name = first.name if len(equal) == 1 else f"{len(equal):,} x {_kind(first.name)}"
    size = first.predicted_bytes if first.measured_bytes is None else first.measured_bytes
    return (name, first.dtype, "x".join(map(str, first.shape)), exact(size), exact(size * len(equal)))

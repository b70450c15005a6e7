"""The results of a probe, and of a receipt that was planned again, as documents and as text."""

from __future__ import annotations

from typing import Any

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, document_of
from hwcalc.formulas.record import Record
from hwcalc.planner.verdict import layout_text
from hwcalc.probe.live import NOT_RUN, LiveResult
from hwcalc.probe.receipt import Verified
from hwcalc.probe.result import AT_RANDOM, MEASURED, Compared, PolicyRun, Probed, RankResult, TensorResult
from hwcalc.probe.run import More
from hwcalc.probe.speed import HERE, SpeedResult
from hwcalc.report.drawing import marked
from hwcalc.report.styles import BAD, GOOD
from hwcalc.report.text import both, csv_text, exact, plural, share_text
from hwcalc.report.view import View
from hwcalc.text import clean
from hwcalc.units import human_bytes

_COLUMNS = ("figure", "predicted", "measured", "difference", "")
_TENSORS = ("tensors", "dtype", "shape", "bytes each", "bytes")
_CSV = ("rank", "what", "name", "dtype", "shape", "predicted_bytes", "measured_bytes", "difference_bytes", "tolerance_bytes")


class ProbeDocument(Record):
    """Document of ``kvplan probe --json``."""

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


def probe_text(probed: Probed, more: More | None, view: View) -> str:
    """The verdict, the figures of every rank, and the tensors; equal tensors share a row."""
    sections = [_head(probed, color=view.color and view.format == "table")]
    several = len(probed.ranks) > 1
    first = ("rank",) if several else ()
    figures, tensors = [], []
    for rank in probed.ranks:
        start = (str(rank.rank),) if several else ()
        figures += [start + _row(compared) for compared in rank.comparisons]
        tensors += [start + row for row in _tensors(rank)]
    if figures:
        sections.append(view.table(first + _COLUMNS, figures, right=range(len(first) + 1, len(first) + 4)))
    if not view.quiet:
        sections.append(view.table(first + _TENSORS, tensors, right=(len(first) + 3, len(first) + 4)))
    if more is not None:
        sections += _more(more, view)
    notes = () if view.quiet else (*probed.notes, *(() if more is None else more.notes))
    if notes:
        sections.append("".join(f"note  {clean(note.message)}\n" for note in notes))
    return "\n".join(sections)


def probe_csv(probed: Probed, more: More | None) -> str:
    """One row for each tensor and each figure of each rank."""
    rows: list[tuple[object, ...]] = []
    for rank in probed.ranks:
        for tensor in rank.tensors:
            difference = None if tensor.measured_bytes is None else tensor.measured_bytes - tensor.predicted_bytes
            cells = (tensor.dtype, "x".join(map(str, tensor.shape)), tensor.predicted_bytes, tensor.measured_bytes, difference, 0)
            rows.append((rank.rank, "tensor", tensor.name, *cells))
        for figure in rank.comparisons:
            numbers = (figure.predicted_bytes, figure.measured_bytes, figure.difference_bytes, figure.tolerance_bytes)
            rows.append((rank.rank, "figure", figure.name, "", "", *numbers))
    live = () if more is None or more.live is None else more.live.rows()
    rows += (("", "live", name, "", "", predicted, measured, measured - predicted, 0) for name, predicted, measured in live)
    figures = () if more is None or more.policy is None else more.policy.figures
    rows += [
        ("", "policy", f"{figure.name} ({figure.unit})", "", "", figure.predicted, figure.measured, "", "") for figure in figures
    ]
    steps = () if more is None or more.speed is None else more.speed.steps
    rows += [("", "speed", f"{step.name} (s)", "", "", step.bound_s, step.seconds, "", "") for step in steps]
    return csv_text(_CSV, rows)


def verified_text(verified: Verified, view: View) -> str:
    """The measurements of a receipt beside today's predictions."""
    words = "still as predicted" if verified.agrees else "no longer as predicted"
    head = f"{clean(verified.model)}  {clean(verified.receipt)}: {words}\n"
    head += f"measured {clean(verified.date)} on {clean(verified.device)} by {clean(verified.measured_with)}\n"
    rows = [_row(compared) for compared in verified.comparisons]
    table = view.table(_COLUMNS, rows, right=(1, 2, 3)) if rows else ""
    drift = "".join(f"drift  {clean(line)}\n" for line in verified.drift)
    return "\n".join(filter(None, (head, table, drift)))


def verify_csv(verified: Verified) -> str:
    """One row for each figure and for each difference from the receipt."""
    rows: list[tuple[object, ...]] = [
        ("figure", compared.name, compared.predicted_bytes, compared.measured_bytes, compared.difference_bytes)
        for compared in verified.comparisons
    ]
    rows += [("drift", line, "", "", "") for line in verified.drift]
    return csv_text(("what", "name", "predicted_bytes", "measured_bytes", "difference_bytes"), rows)


def _head(probed: Probed, *, color: bool) -> str:
    """Lines: what was planned, where it was measured, the verdict, and what each rank says."""
    engine = probed.engine if probed.engine_version is None else f"{probed.engine} {probed.engine_version}"
    request = [engine, f"{probed.batch:,} x {probed.seq:,} tokens", probed.kv_dtype, *filter(None, [layout_text(probed)])]
    ranks, where = probed.ranks, probed.ranks[0].environment
    outcomes = {rank.outcome for rank in ranks} - {MEASURED}
    if probed.agrees:
        tensors = plural(sum(len(rank.tensors) for rank in ranks), "tensor")
        verdict = f"measured as predicted, to the byte: {tensors}, {both(sum(rank.asked_bytes for rank in ranks))}"
    elif outcomes:
        verdict = f"not measured: {', '.join(sorted(outcomes))}"
    else:
        verdict = "measured is not what was predicted"
    lines = [
        f"{clean(probed.model)}  {', '.join(request)}",
        f"on {where.device} ({clean(where.device_name)}), torch {where.torch}",
        marked(verdict, GOOD if probed.agrees else BAD, color=color).rstrip("\n"),
    ]
    for rank in ranks:
        said = []
        if rank.scaled:
            said.append(f"scaled down: {rank.scaled}, {human_bytes(rank.asked_bytes)} of {human_bytes(rank.planned_bytes)}")
        if rank.message:
            said.append(f"{rank.outcome}: {rank.message}")
        if rank.filled is not None:
            said.append("every byte written and read back" if rank.filled else "WHAT WAS READ IS NOT WHAT WAS WRITTEN")
        lines += [f"rank {rank.rank}: {line}" if len(ranks) > 1 else line for line in said]
    return "".join(f"{line}\n" for line in lines)


def _row(compared: Compared) -> tuple[str, ...]:
    numbers = ("unknown" if value is None else exact(value) for value in (compared.predicted_bytes, compared.measured_bytes))
    difference = (
        "" if compared.difference_bytes is None else "0" if not compared.difference_bytes else f"{compared.difference_bytes:+,} B"
    )
    word = "for information" if compared.tolerance_bytes is None else "agrees" if compared.agrees else "DIFFERS"
    return (compared.name, *numbers, difference, word)


def _tensors(rank: RankResult) -> list[tuple[str, ...]]:
    """Equal tensors share a row, with their count and their name without the layer's number: ``layers.keys`` for ``layers.0.keys``."""
    forms: dict[tuple[Any, ...], list[TensorResult]] = {}
    for tensor in rank.tensors:
        kind = ".".join(part for part in tensor.name.split(".") if not part.isdecimal())
        forms.setdefault((kind, tensor.dtype, tensor.shape, tensor.measured_bytes), []).append(tensor)
    rows: list[tuple[str, ...]] = []
    for (kind, dtype, shape, measured), equal in forms.items():
        name = equal[0].name if len(equal) == 1 else f"{len(equal):,} x {kind}"
        size = equal[0].predicted_bytes if measured is None else measured
        rows.append((name, dtype, "x".join(map(str, shape)), exact(size), exact(size * len(equal))))
    return rows


def _more(more: More, view: View) -> list[str]:
    """A paragraph for each measurement beside the allocation: live model, policy, largest size, bandwidth."""
    out = [] if more.live is None else [_live(more.live, view)]
    if more.policy is not None:
        out.append(_policy(more.policy, view))
    if more.maximum is not None:
        largest = more.maximum
        out.append(
            f"largest {largest.what}: {largest.value:,} ({both(largest.bytes)}), by the allocator's rules {largest.expected:,}, "
            f"by the solver {largest.solver:,}; limited by: {largest.limiting}\n"
        )
    if more.bandwidth is not None:
        measured = [
            (name, exact(size), f"{seconds:.6f} s", f"{rate:,.1f} GB/s", "" if share is None else share_text(share))
            for name, size, seconds, rate, share in more.bandwidth.rows()
        ]
        out.append(view.table(("bandwidth", "bytes", "time", "rate", "of peak"), measured, right=(1, 2, 3, 4)))
        if more.bandwidth.attention is None:
            out.append(f"no attention step: {clean(more.bandwidth.attention_message)}\n")
    if more.speed is not None:
        out.append(_speed(more.speed, view))
    return out


def _speed(speed: SpeedResult, view: View) -> str:
    """The passes of a small model beside their bound."""
    head = f"speed of {speed.model_type} on {speed.device}"
    if speed.reason:
        return f"{head}: not run, {clean(speed.reason)}\n"
    size = f"{speed.layers:,} of {speed.model_layers:,} layers" + (f", 1/{speed.factor} as wide" if speed.factor > 1 else "")
    head += f", transformers {clean(speed.transformers_version)}, {speed.dtype}: {size}, {human_bytes(speed.weight_bytes)}\n"
    tflops = "" if speed.tflops is None else f" and {speed.tflops:,.4g} TFLOP/s"
    whose = speed.rates if speed.rates == HERE else f"the profile of {speed.rates}"
    head += f"bound by {speed.bandwidth_gbps:,.4g} GB/s{tflops}, {whose}\n"
    rows = [
        (
            step.name,
            f"{step.tokens:,}",
            f"{step.context:,}",
            f"{1e3 * step.seconds:,.3f} ms",
            "" if step.bound_s is None else f"{1e3 * step.bound_s:,.3f} ms",
            "" if step.share is None else f"{step.share:.0%}",
            step.bound_by or "",
        )
        for step in speed.steps
    ]
    return head + view.table(("speed", "tokens", "behind", "time", "bound", "reached", "bound by"), rows, right=range(1, 6))


def _live(live: LiveResult, view: View) -> str:
    """Lines: what a small model of the type kept."""
    head = f"live {live.model_type} on {live.device}: {live.status}"
    if live.status == NOT_RUN:
        return f"{head}, {clean(live.reason)}\n"
    head += (
        f"; {live.batch:,} x {live.prompt_tokens:,} + {live.decode_tokens:,} tokens, logits differ by "
        f"{live.logits_difference:.1e} (allowed {live.tolerance:.0e}, without a cache {live.control_difference:.1e})\n"
    )
    return head + view.table(_COLUMNS, [_row(Compared.of(*row)) for row in live.rows()], right=(1, 2, 3))


def _policy(run: PolicyRun, view: View) -> str:
    """Lines: what a policy left of real tensors and plan."""
    lines = [f"policy {clean(run.policy)} on {run.device}: {'as planned' if run.agrees else 'DIFFERS from the plan'}"]
    seed = f" (seed {run.seed})" if run.survivors == AT_RANDOM else ""
    lines.append(f"survivors {run.survivors}{seed}, {run.copied_tokens:,} rows of heads copied")
    if run.in_place is not None:
        lines.append("every survivor read back in its place" if run.in_place else "A SURVIVOR IS NOT IN ITS PLACE")
    if run.scaled:
        lines.append(f"scaled down: {run.scaled}")
    rows = []
    for figure in run.figures:
        predicted, measured, unit = figure.predicted, figure.measured, figure.unit
        cells = ("" if number is None else f"{_number(number)} {unit}" for number in (predicted, measured))
        difference = ""
        if predicted is not None and measured is not None:
            apart = measured - predicted
            difference = f"{'-' if apart < 0 else '+'}{_number(abs(apart))} {unit}" if apart else "0"
        word = ("agrees" if figure.agrees else "DIFFERS") if figure.is_judged else "for information"
        rows.append((figure.name, *cells, difference, word, clean(figure.remark)))
    header = ("policy", "predicted", "measured", "difference", "", "remark")
    return "".join(f"{line}\n" for line in lines) + view.table(header, rows, right=(1, 2, 3))


def _number(number: float) -> str:
    """Whole, or with the digits that say something of a mean."""
    return f"{number:,.1f}" if number % 1 else f"{int(number):,}"

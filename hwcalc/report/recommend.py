"""A recommendation as a table, Markdown or CSV: hardware that fits, then what probably fits, then what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.planner.recommend import LARGEST_MOST, Offer, Recommendation
from hwcalc.report.drawing import PIPED_WIDTH
from hwcalc.report.listing import csv_text, listing
from hwcalc.report.text import escaped, filled, how_many, percent, plural
from hwcalc.text import clean
from hwcalc.units import GIB

_CSV_COLUMNS = (
    "gpu", "instance", "gpus", "tp", "pp", "dp", "ep", "verdict", "total_bytes", "usable_bytes", "needed_bytes", "needed_low_bytes",
    "needed_high_bytes", "headroom_bytes", "max_batch", "max_seq", "decode_tokens_per_s_bound", "bound_by", "prefill_s_bound",
)  # fmt: skip

_MOST_GIB: Final = 10**6
"""Larger numbers are cut, so that they leave room for the other columns; the reason below the table has the exact bytes."""
_MEANINGS: Final = {
    "GiB used": "GiB of the fullest GPU",
    "max batch": "max batch at the planned length",
    "max seq": "max seq at the planned batch",
    "max tok/s": "max tok/s is a bound that no engine is faster than",
}
_ORDERS: Final = {
    "memory": "least memory of all GPUs together first",
    "gpus": "fewest GPUs first",
    "speed": "most tokens per second first",
    "headroom": "most of a GPU free first",
}
_ALSO: Final = "and N more: instances of the cloud with the same accelerator, as many of them or more; --all lists each"
_EXPENDABLE: Final = ("max tok/s", "free", "max seq", "layout")
"""Columns that are left out where the terminal is too narrow, in this order."""


def recommendation_csv(recommendation: Recommendation) -> str:
    """One row for each offer. Numbers have no separators; an empty cell is unknown."""
    return csv_text(_CSV_COLUMNS, ([getattr(offer, name) for name in _CSV_COLUMNS] for offer in recommendation.offers))


def recommendation_text(
    recommendation: Recommendation, *, format_: str = "table", color: bool = False, width: int = PIPED_WIDTH, quiet: bool = False
) -> str:
    """The request, the offers, and what was left out and why. ``quiet`` leaves only the request and the offers."""
    sure = [offer for offer in recommendation.offers if offer.verdict.certain]
    unsure = [offer for offer in recommendation.offers if not offer.verdict.certain]
    blocks = [_lines([_asked(recommendation)], format_, width)]
    if sure:
        blocks.append(_table(sure, format_=format_, color=color, width=width))
    if unsure:
        blocks.append("Probably fits: enough by the expected value, not at the high end of the estimates.\n")
        blocks.append(_table(unsure, format_=format_, color=color, width=width))
    if not recommendation.offers:
        blocks += _nothing(recommendation, format_=format_, color=color, width=width)
    lines = [f"{recommendation.more:,} more: --limit 0"] if recommendation.more else []
    if not quiet:
        lines += [
            _meaning(recommendation, format_, width),
            *left_out(recommendation),
            *(note.message for note in recommendation.notes),
        ]
    if lines:
        blocks.append(_lines(lines, format_, width))
    return "\n".join(blocks)


def _lines(lines: Sequence[str], format_: str, width: int) -> str:
    """Lines as a Markdown list, or as paragraphs with a hanging indent."""
    if format_ == "markdown":
        return "".join(f"- {escaped(line)}\n" for line in lines)
    # An id or a command is never cut.
    how = {"subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
    return "".join(f"{filled(clean(line), width, **how)}\n" for line in lines)


def left_out(recommendation: Recommendation) -> list[str]:
    """What is not listed, and why."""
    out = []
    if recommendation.too_small and recommendation.offers:
        more = recommendation.could_be_more and recommendation.max_gpus < LARGEST_MOST
        larger = f"; more: --max-gpus {min(2 * recommendation.max_gpus, LARGEST_MOST)}" if more else ""
        out.append(
            f"{recommendation.too_small:,} of {recommendation.considered:,} do not hold it{_up_to(recommendation)}{larger}."
        )
    if recommendation.one_at_a_time:
        out.append(
            f"{recommendation.one_at_a_time:,} of those are machines by themselves, such as laptops and Macs, which are not joined."
        )
    if recommendation.refused:
        out.append(f"{recommendation.refused:,} of {recommendation.considered:,} are not for {recommendation.engine}.")
    if recommendation.unknown:
        out.append(f"{recommendation.unknown:,} of {recommendation.considered:,}: memory not known.")
    if recommendation.unsure_left_out:
        out.append(f"{recommendation.unsure_left_out:,} that probably fit left out (--strict).")
    return out


def _up_to(recommendation: Recommendation) -> str:
    """With how many GPUs; nothing where machines cannot be joined anyway."""
    joined = recommendation.one_at_a_time < recommendation.too_small
    return f" with up to {plural(recommendation.max_gpus, 'GPU')}" if joined else ""


def layout_words(offer: Offer) -> str:
    """The parallel sizes above one, such as ``tp4 pp2``; empty for a single GPU.

    >>> from types import SimpleNamespace
    >>> layout_words(SimpleNamespace(tp=4, pp=2, dp=1, ep=1)), layout_words(SimpleNamespace(tp=1, pp=1, dp=1, ep=1))
    ('tp4 pp2', '')
    """
    sizes = (("tp", offer.tp), ("pp", offer.pp), ("dp", offer.dp), ("ep", offer.ep))
    return " ".join(f"{name}{size}" for name, size in sizes if size > 1)


def _asked(recommendation: Recommendation) -> str:
    engine = (
        recommendation.engine
        if recommendation.engine_version is None
        else f"{recommendation.engine} {recommendation.engine_version}"
    )
    weights = "weights as published" if recommendation.weights == "as published" else f"{recommendation.weights} weights"
    what = f"{plural(recommendation.batch, 'sequence')} of {plural(recommendation.seq, 'token')}"
    policy = "" if recommendation.policy is None else f", policy {recommendation.policy}"
    return f"{recommendation.model}: {what}, {engine}, {recommendation.kv_dtype} cache, {weights}{policy}"


def _table(offers: Sequence[Offer], *, format_: str, color: bool, width: int) -> str:
    header, rows = _columns(offers, format_, width)
    right = [place for place, title in enumerate(header) if title not in _WORDS]
    return listing(header, rows, format_=format_, right=right, color=color, width=width)


_WORDS: Final = ("instance", "accelerator", "GPUs", "layout")
"""The columns of words; all others are numbers."""


def _columns(offers: Sequence[Offer], format_: str, width: int) -> tuple[list[str], list[list[str]]]:
    """The header and the rows, without the columns for which a terminal has no room."""
    instances = any(offer.instance is not None for offer in offers)
    clouds = {offer.instance.partition("/")[0] for offer in offers if offer.instance is not None}
    header = ["instance" if instances else "accelerator", "GPUs", "layout", "GiB used", "of", "free", "max batch"]
    header += [*([] if instances else ["max seq"]), "max tok/s"]
    rows = [_row(offer, one_cloud=len(clouds) == 1) for offer in offers]
    for title in _EXPENDABLE:
        if format_ != "table" or _width([header, *rows]) <= width:
            break
        if title in header:
            place = header.index(title)
            header, *rows = ([*line[:place], *line[place + 1 :]] for line in (header, *rows))
    return header, rows


def _width(lines: Sequence[Sequence[str]]) -> int:
    """Characters of a line, with two blanks between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2


def _meaning(recommendation: Recommendation, format_: str, width: int) -> str:
    """What the columns say, and the order of the rows."""
    offers = recommendation.offers or ([] if recommendation.nearest is None else [recommendation.nearest])
    titles = _columns(offers, format_, width)[0] if offers else []
    said = [said for title, said in _MEANINGS.items() if title in titles]
    said += [_ALSO] if any(offer.also for offer in offers) else []
    said += [_ORDERS[recommendation.sort]] if len(offers) > 1 else []
    return f"{'; '.join(said)}."


def _row(offer: Offer, *, one_cloud: bool) -> list[str]:
    instance = offer.instance is not None
    return [
        _instance(offer, one_cloud=one_cloud) if instance else offer.gpu,
        f"{offer.gpus:,} {offer.gpu}" if instance else f"{offer.gpus:,}",
        layout_words(offer),
        _used(offer),
        _gib(offer.usable_bytes),
        _headroom(offer),
        how_many(offer.max_batch),
        *([] if instance else [how_many(offer.max_seq)]),
        _rate(offer.decode_tokens_per_s_bound),
    ]


def _instance(offer: Offer, *, one_cloud: bool) -> str:
    """The instance, without its cloud where all are of one, and how many others it stands for."""
    name = str(offer.instance)
    more = f" and {len(offer.also):,} more" if offer.also else ""
    return f"{name.partition('/')[2] if one_cloud else name}{more}"


def _used(offer: Offer) -> str:
    if offer.verdict.certain:
        return _gib(offer.needed_bytes)
    return f"{_gib(offer.needed_low_bytes)} to {_gib(offer.needed_high_bytes)}"


def _headroom(offer: Offer) -> str:
    """Free memory as a share of what may be used. How much is missing is said below the table."""
    return "none" if offer.headroom_bytes < 0 else percent(offer.headroom_bytes, offer.usable_bytes)


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f}" if size < _MOST_GIB * GIB else f">{_MOST_GIB - 1:,}"


def _rate(tokens: float | None) -> str:
    return "" if tokens is None else f"{tokens:,.0f}" if tokens >= 100 else f"{tokens:,.1f}"


def _nothing(recommendation: Recommendation, *, format_: str, color: bool, width: int) -> list[str]:
    """What to show if nothing fits: the nearest hardware, and what would help."""
    up_to = _up_to(recommendation)
    of = f"{plural(recommendation.considered, 'candidate')}{up_to}{' each' if up_to else ''}"
    sure = " for certain" if recommendation.unsure_left_out else ""
    out = [f"Nothing holds it{sure}: {of}.\n"]
    if recommendation.nearest is not None:
        out += ["Nearest:\n", _table([recommendation.nearest], format_=format_, color=color, width=width)]
        lines = [recommendation.message] if recommendation.message else []
        out += [_lines(lines, format_, width)] if lines else []
        if recommendation.suggestions:
            out.append(_advice(recommendation, format_))
    return out


def _advice(recommendation: Recommendation, format_: str) -> str:
    from hwcalc.report.summary import advice_block, advice_items

    if format_ == "markdown":
        return "".join(advice_items(recommendation.suggestions, recommendation.engine, escaped))
    return advice_block(recommendation.suggestions, recommendation.engine)

"""Tables, Markdown or CSV of the hardware that ``kvplan recommend`` found, and of the models that ``kvplan fit`` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hwcalc.hardware.candidates import Availability
from hwcalc.hardware.named import MEMORY_OPTION
from hwcalc.planner.recommend import DEFAULT_SORT, LARGEST_MOST
from hwcalc.planner.recommend_result import Offer, Recommendation
from hwcalc.planner.runnables import Runnable, Runnables
from hwcalc.planner.speed_result import COST_COLUMNS, SPEED_COLUMNS, cost_row
from hwcalc.planner.values import AUTO
from hwcalc.planner.verdict import layout_text
from hwcalc.report.columns import (
    HOURLY,
    MONTHLY,
    OF_COLUMNS,
    PER_MILLION,
    PER_USER,
    RATE,
    cost_cells,
    dated_prices,
    left_out,
    rate_text,
)
from hwcalc.report.text import csv_text, how_many, parameters, percent, plural, sure_or_likely
from hwcalc.report.view import View
from hwcalc.units import GIB, HOURS_PER_MONTH

_OFFER_COLUMNS: Final = (
    "gpu", "instance", "availability", "released", "gpus", "nodes", "tp", "pp", "dp", "ep", "weights", "kv_dtype", "verdict", "total_bytes", "usable_bytes", "needed_bytes", "needed_low_bytes",
    "needed_high_bytes", "headroom_bytes", "max_batch", "max_seq", *SPEED_COLUMNS, "bound_by", "prefill_s_bound",
    "users", "users_low", "ttft_s", "itl_s",
)  # fmt: skip

_MOST_GIB: Final = 10**6
"""Larger numbers are cut, so that they leave room for the other columns; the reason below the table has the exact bytes."""
_MEANINGS: Final = {
    "needs": "needs: GiB of the fullest GPU",
    "at once": "at once: the most sequences of the planned length",
    "users": "users: served at once within the limits, by the expected times and memory (and by the slow end of their range, for sure)",
    "longest": "longest: the most tokens of each planned sequence",
    **{title: OF_COLUMNS[title] for title in (RATE, HOURLY, PER_MILLION, PER_USER, MONTHLY)},
}
_ORDERS: Final = {
    "common": "in each group the newest first; last come several nodes and what is less than a quarter full, the smallest first",
    "memory": "least memory of all GPUs together first",
    "gpus": "fewest GPUs first",
    "speed": "most tokens per second first",
    "cost": "least dollars an hour first",
    "headroom": "most of a GPU free first",
}
_ALSO: Final = "and N more: instances of the cloud with the same accelerator, as many of them or more; --all lists each"
# Columns that are left out where the terminal is too narrow, in this order.
_EXPENDABLE_OF_OFFERS: Final = (MONTHLY, "free", RATE, "longest", "layout", "of")
_EXPENDABLE_OF_MODELS: Final = ("free", "KV", "parameters", "weights", "total", "longest")
"""Never the format, the speed, and whether it fits: that is the answer."""
_ORDER: Final = (
    "Order: what surely fits in four bits or more comes first, the largest and newest on top: a year of age counts as half the size, and a model with "
    "experts as the geometric mean of its total and active parameters. At most three of a family are listed, next to each other."
)
_WORDS: Final = ("instance", "accelerator", "GPUs", "layout", "model", "format", "cache", "fits")
"""The columns of words; all others are numbers."""


def recommendation_csv(recommendation: Recommendation) -> str:
    """One row for each offer. Numbers have no separators; an empty cell is unknown."""
    rows = (
        [*(getattr(offer, name) for name in _OFFER_COLUMNS), *cost_row(offer.cost).values()] for offer in recommendation.offers
    )
    return csv_text((*_OFFER_COLUMNS, *COST_COLUMNS), rows)


def recommendation_text(recommendation: Recommendation, view: View) -> str:
    """The request, the offers, and what was left out and why; quiet, only the request and the offers."""
    asked = recommendation
    engine = asked.engine if asked.engine_version is None else f"{asked.engine} {asked.engine_version}"
    weights = {"as published": "weights as published", "auto": "each in its best format"}.get(
        asked.weights, f"{asked.weights} weights"
    )
    cache = "cache by the accelerator" if asked.kv_dtype is None else f"{asked.kv_dtype} cache"
    what = f"{plural(asked.batch, 'sequence')} of {plural(asked.seq, 'token')}"
    policy = "" if asked.policy is None else f", policy {asked.policy}"
    first = f"{asked.model}: {what}, {engine}, {cache}, {weights}{policy}"

    def table(offers: Sequence[Offer]) -> str:
        return _table(*_offers(offers, view, recommendation), view)

    sure = [offer for offer in recommendation.offers if offer.verdict.certain]
    unsure = [offer for offer in recommendation.offers if not offer.verdict.certain]
    blocks = [view.paragraphs([first])]
    if recommendation.sort != DEFAULT_SORT or len({offer.availability for offer in sure}) < 2:
        blocks += [table(sure)] if sure else []
    else:
        # The groups have the same columns.
        header, rows = _offers(sure, view, recommendation)
        for way in Availability:
            of_group = [row for offer, row in zip(sure, rows, strict=True) if offer.availability is way]
            blocks += [f"{_GROUPS[way]}\n", _table(header, of_group, view)] if of_group else []
    if unsure:
        blocks += ["Probably fits: enough by the expected value, not at the high end of the estimates.\n", table(unsure)]
    if not recommendation.offers:
        up_to = _up_to(recommendation)
        of = f"{plural(recommendation.considered, 'candidate')}{up_to}{' each' if up_to else ''}"
        limit = recommendation.budget_usd_per_hour
        if limit is not None and recommendation.over_budget + recommendation.unpriced:
            blocks.append(f"Nothing that holds it is known to cost {_limit(limit)} or less.\n")
        else:
            nothing = f"Nothing holds it{' for certain' if recommendation.unsure_left_out else ''}"
            if recommendation.late:
                nothing = "None within the limits of time"
                of += f", of which {recommendation.late:,} {'holds' if recommendation.late == 1 else 'hold'} it by memory"
            blocks.append(f"{nothing}: {of}{_larger(recommendation)}.\n")
        if recommendation.nearest is not None:
            blocks += ["Nearest:\n", table([recommendation.nearest])]
            blocks += [view.paragraphs([recommendation.message])] if recommendation.message else []
            blocks += [_advice(recommendation, view)] if recommendation.suggestions else []
    lines = [f"{recommendation.more:,} more: --limit 0"] if recommendation.more else []
    offers = recommendation.offers or ([] if recommendation.nearest is None else [recommendation.nearest])
    lines += dated_prices(offer.cost for offer in offers)
    if not view.quiet:
        # What the columns say, and the order of the rows.
        titles = _offers(offers, view, recommendation)[0] if offers else []
        said = [said for title, said in _MEANINGS.items() if title in titles]
        said += [_NODES] if any(offer.nodes > 1 for offer in offers) else []
        said += [_ALSO] if any(offer.also for offer in offers) else []
        said += [_ORDERS[recommendation.sort]] if len(offers) > 1 else []
        dropped = [title for title in _all_of_offers(offers, recommendation)[0] if title not in titles] if offers else []
        lines += [left_out(dropped)] if dropped else []
        lines += [f"{'; '.join(said)}.", *hardware_left_out(recommendation), *(note.message for note in recommendation.notes)]
    if lines:
        blocks.append(view.paragraphs(lines))
    return "\n".join(blocks)


_GROUPS: Final = {
    Availability.RENT: "Clouds rent:",
    Availability.BUY: "Sold as cards, computers and servers:",
    Availability.RARE: "Few people can get:",
}
_NODES: Final = "N in M nodes: no speed and no cost of tokens counts the network between them"


def _offers(offers: Sequence[Offer], view: View, recommendation: Recommendation) -> tuple[list[str], list[list[str]]]:
    """The header and the rows, without the columns for which a terminal has no room."""
    return _narrowed(*_all_of_offers(offers, recommendation), _EXPENDABLE_OF_OFFERS, view)


def _all_of_offers(offers: Sequence[Offer], recommendation: Recommendation) -> tuple[list[str], list[list[str]]]:
    """The header and the rows with every column."""
    by_gpu, auto = recommendation.kv_dtype is None, recommendation.weights == AUTO
    instances = any(offer.instance is not None for offer in offers)
    clouds = {offer.instance.partition("/")[0] for offer in offers if offer.instance is not None}
    header = [
        "instance" if instances else "accelerator",
        "GPUs",
        "layout",
        *(["format"] if auto else []),
        *(["cache"] if by_gpu else []),
    ]
    timed = any(offer.users is not None for offer in offers)
    header += ["needs", "of", "free", "at once", *(["users"] if timed else [])]
    priced = any(offer.cost is not None for offer in offers)
    costs = [HOURLY, PER_MILLION, *([PER_USER] if timed else []), MONTHLY] if priced else []
    header += [*([] if instances else ["longest"]), RATE, *costs]
    rows = []
    for offer in offers:
        name, gpus, longest = offer.gpu, f"{offer.gpus:,}", [how_many(offer.max_seq)]
        gpus += f" in {offer.nodes:,} nodes" if offer.nodes > 1 else ""
        formats = [*([offer.weights or "as published"] if auto else []), *([offer.kv_dtype] if by_gpu else [])]
        if offer.instance is not None:
            # Without its cloud where all are of one, and with how many others it stands for.
            more = f" and {len(offer.also):,} more" if offer.also else ""
            name = (offer.instance.partition("/")[2] if len(clouds) == 1 else offer.instance) + more
            gpus, longest = f"{gpus} {offer.gpu}", []
        used = _gib(offer.needed_bytes)
        if not offer.verdict.certain:
            used = f"{_gib(offer.needed_low_bytes)} to {_gib(offer.needed_high_bytes)}"
        # How much is missing is said below the table.
        free = "none" if offer.headroom_bytes < 0 else percent(offer.headroom_bytes, offer.usable_bytes)
        rows.append(
            [
                name,
                gpus,
                layout_text(offer),
                *formats,
                used,
                _gib(offer.usable_bytes),
                free,
                how_many(offer.max_batch),
                *([_users(offer)] if timed else []),
                *longest,
                rate_text(offer.decode_tokens_per_s, offer.decode_tokens_per_s_low, offer.decode_tokens_per_s_bound),
                *map(cost_cells(offer.cost).__getitem__, costs),
            ]
        )
    return header, rows


def _users(offer: Offer | Runnable) -> str:
    """The users within the limits of time, and those of the slow end."""
    if offer.users is None:
        return "?"
    return how_many(offer.users) if offer.users_low in (None, offer.users) else f"{how_many(offer.users)} ({offer.users_low:,})"


def hardware_left_out(recommendation: Recommendation) -> list[str]:
    """Reasons for what is not listed."""
    out, of = [], f"of {recommendation.considered:,}"
    missed = {
        "do not hold it": recommendation.too_small,
        "hold it by memory, but not within the limits of time": recommendation.late,
    }
    for how, count in missed.items() if recommendation.offers else ():
        alone = any(offer.instance is not None for offer in recommendation.offers)
        up_to = f"{_up_to(recommendation)}{', each alone' if alone else ''}{_larger(recommendation)}"
        out += [f"{count:,} {of} {how}{up_to}{'; kvplan fleet joins several' if alone else ''}."] if count else []
    if recommendation.one_at_a_time:
        machines = "single machines, such as laptops and Macs, that are never joined"
        out.append(f"{recommendation.one_at_a_time:,} of those are {machines}.")
    if recommendation.refused:
        out.append(f"{recommendation.engine} does not run on {recommendation.refused:,} {of}.")
    if recommendation.unknown:
        out.append(f"{recommendation.unknown:,} {of}: memory not known.")
    if recommendation.over_budget and recommendation.budget_usd_per_hour is not None:
        out.append(f"{recommendation.over_budget:,} that hold it cost more than {_limit(recommendation.budget_usd_per_hour)}.")
    if recommendation.unpriced:
        where = "left out" if recommendation.budget_usd_per_hour is not None else "last"
        said = "that holds it has" if recommendation.unpriced == 1 else "that hold it have"
        are = "is" if recommendation.unpriced == 1 else "are"
        told = f"{recommendation.unpriced:,} {said} no price with a date, and {are} {where}."
        out.append(f"{told} Give yours: --price NAME=2.50/h")
    if recommendation.unsure_left_out:
        out.append(f"{recommendation.unsure_left_out:,} that probably fit left out (--strict).")
    return out


def _larger(recommendation: Recommendation) -> str:
    """The option that takes more GPUs, where some of the hardware could have more."""
    more = recommendation.could_be_more and recommendation.max_gpus < LARGEST_MOST
    # Within limits of time twice as many may not be enough, where the most are known to be.
    in_time = recommendation.nearest is not None and recommendation.nearest.users is not None
    most = LARGEST_MOST if in_time else min(2 * recommendation.max_gpus, LARGEST_MOST)
    return f"; more: --max-gpus {most}" if more else ""


def _limit(usd_per_hour: float) -> str:
    from hwcalc.hardware.prices import money

    return f"{money(usd_per_hour)}/h, {money(usd_per_hour * HOURS_PER_MONTH)}/month"


def _up_to(recommendation: Recommendation) -> str:
    """With how many GPUs; nothing where machines cannot be joined anyway."""
    joined = recommendation.one_at_a_time < recommendation.too_small + recommendation.late
    return f" with up to {plural(recommendation.max_gpus, 'GPU')}" if joined else ""


def _advice(recommendation: Recommendation, view: View) -> str:
    """Lines on what would make the nearest do."""
    from hwcalc.report.summary import advice_items, advice_pair

    if view.format == "markdown":
        return advice_items(recommendation.suggestions, recommendation.engine)
    pairs = [advice_pair(one, recommendation.engine) for one in recommendation.suggestions]
    return "".join(f"try {command}\n    {about}\n" for command, about in pairs)


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f}" if size < _MOST_GIB * GIB else f">{_MOST_GIB - 1:,}"


def _narrowed(
    header: list[str], rows: list[list[str]], expendable: Sequence[str], view: View
) -> tuple[list[str], list[list[str]]]:
    """The header and the rows without the columns for which a terminal has no room: two blanks are between columns."""
    for title in expendable:
        if view.format != "table" or _width(header, rows) <= view.width:
            break
        if title in header:
            place = header.index(title)
            header, *rows = ([*line[:place], *line[place + 1 :]] for line in (header, *rows))
    return header, rows


def _names_above(header: list[str], rows: list[list[str]], view: View) -> tuple[list[str], list[list[str]]]:
    """For each row its name, if that stands on a line of its own, so that all columns have room; and the rows without these names.

    Only a few long names do, for which no column is left out.
    """
    room = view.width - _width(header[1:], [cells for _, *cells in rows]) - 2
    long = [name if len(name) > room else "" for name, *_ in rows]
    if view.format != "table" or not any(long) or len(rows) < _FEW_NAMES * sum(map(bool, long)):
        return [], rows
    return long, [["", *cells] if above else [name, *cells] for above, (name, *cells) in zip(long, rows, strict=True)]


_FEW_NAMES: Final = 4
"""One name in so many, at most, is longer than its column."""


def _width(header: list[str], rows: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True)) - 2


def _table(header: list[str], rows: list[list[str]], view: View, above: Sequence[str] = ()) -> str:
    return view.table(header, rows, right=[place for place, title in enumerate(header) if title not in _WORDS], titles=above)


_MODEL_COLUMNS: Final = (
    "id", "family", "source", "modality", "parameters", "active_parameters", "released", "weights", "file_type", "weights_bytes", "seq", "batch",
    "kv_dtype", "cache_bytes", "needed_bytes", "usable_bytes", "headroom_bytes", "max_seq", "expected_max_seq", "max_position_embeddings", "verdict", "gpu_layers", "all_layers",
    "host_bytes", "host_experts", *SPEED_COLUMNS, "bound_by", "command", "users", "users_low", "ttft_s", "itl_s",
)  # fmt: skip


def fit_csv(runnables: Runnables) -> str:
    """One row for each model. Numbers have no separators; an empty cell is unknown."""
    return csv_text(_MODEL_COLUMNS, ([getattr(row, name) for name in _MODEL_COLUMNS] for row in runnables.models))


BESIDE_MODELS: Final = 17
"""Lines of a screen of 80 columns that the models of ``kvplan fit`` leave to the rest, at most."""


def fit_text(runnables: Runnables, view: View) -> str:
    """Text: the request, the models, what was left out and why; quiet, only the first two. A screen has what its columns mean, and how to see more."""
    engine = " ".join(filter(None, (runnables.engine, runnables.engine_version)))
    usable = "" if runnables.usable_bytes is None else f", {runnables.usable_bytes / GIB:,.2f} GiB may be used"
    what = (
        f"{plural(runnables.batch, 'sequence')} of {plural(runnables.seq, 'token')}, {engine}, {' and '.join(runnables.sources)}"
    )
    # Which machine it is, where the name leaves that open, bears on all that follows.
    sizes = [note.message for note in runnables.notes if note.code == MEMORY_OPTION]
    blocks = [view.paragraphs([f"{runnables.gpus:,} x {runnables.gpu}{usable}: {what}", *sizes])]
    header, dropped = list[str](), list[str]()
    if runnables.models:
        timed = any(row.users is not None for row in runnables.models)
        header = ["model", "parameters", "format", "weights", "KV", "total", "free", "longest", RATE, "fits"]
        titles = header = [*header, "users"] if timed else header
        rows = [[*_model_row(row), *([_users(row)] if timed else [])] for row in runnables.models]
        header, rows = _narrowed(header, rows, _EXPENDABLE_OF_MODELS[:3], view)
        if _width(header, rows) > view.width and view.format == "table":
            # The name alone is found too. Names may be equal only where their makers are not.
            short = [[name.rpartition("/")[2], *cells] for name, *cells in rows]
            rows = short if len({name for name, *_ in short}) == len(rows) else rows
        header, rows = _narrowed(header, rows, _EXPENDABLE_OF_MODELS[:-1], view)
        above, rows = _names_above(header, rows, view)
        header, rows = _narrowed(header, rows, _EXPENDABLE_OF_MODELS, view)
        dropped = [title for title in titles if title not in header]
        blocks.append(_table(header, rows, view, above))
    else:
        found = runnables.filtered < runnables.considered
        blocks.append(view.paragraphs(["Nothing runs on it." if found else "No model matches."]))
    lines = [f"{one.id}: {one.message}" for one in runnables.unread]
    if view.detail == "screen" and not view.quiet:
        more = f"{runnables.more:,} more run. " if runnables.more else ""
        more += "More of them, their order, and what is left out: --limit 30"
        lines = [*_meaning(runnables.models, header), *lines, more]
    elif not view.quiet:
        lines = [
            *_meaning(runnables.models, header),
            *([_ORDER] if len(runnables.models) > 1 else []),
            *([left_out(dropped)] if dropped else []),
            *lines,
            *models_left_out(runnables),
            *(note.message for note in runnables.notes if note.code != MEMORY_OPTION),
        ]
    if lines:
        blocks.append(view.paragraphs(lines))
    if runnables.models and not view.quiet:
        blocks.append(view.command("plan one", runnables.models[0].command))
    return "\n".join(blocks)


def _model_row(row: Runnable) -> list[str]:
    also = f" +{len(row.also):,}" if row.also else ""
    sizes = (row.weights_bytes, row.cache_bytes, row.needed_bytes, max(0, row.headroom_bytes))
    if row.whole:
        fits = row.verdict.text
    elif row.gpu_layers == row.all_layers:
        fits = f"experts of {row.host_experts:,}"
    else:
        fits = f"{row.gpu_layers:,} of {row.all_layers:,}"
    return [
        f"{row.id}{also}",
        "" if row.parameters is None else parameters(row.parameters),
        row.weights or row.file_type or "as published",
        *(f"{size / GIB:,.2f}" for size in sizes),
        sure_or_likely(row.max_seq, row.expected_max_seq) if row.max_seq or row.expected_max_seq else "-",
        rate_text(row.decode_tokens_per_s, None, row.decode_tokens_per_s_bound),
        fits,
    ]


def _meaning(models: Sequence[Runnable], header: Sequence[str]) -> list[str]:
    """Meanings of this header's columns."""
    if not models:
        return []
    # Of a machine without a GPU there is nothing but the host.
    alone = all(row.gpu_layers is None and row.host_bytes is not None for row in models)
    where = "host memory" if alone else "the GPU"
    sizes = [title for title in ("weights", "KV", "total", "free") if title in header]
    of = [f"{', '.join(sizes)}: GiB of {where}"] if sizes else []
    longest = ["longest is what surely fits with the layers where they are"] if "longest" in header else []
    users = [_MEANINGS["users"]] if "users" in header else []
    out = [f"{'; '.join([*of, *longest, 'tok/s as expected, with < at most', *users])}."]
    if longest and not all(row.max_seq for row in models):
        out.append("longest with ~: expected, not sure; -: no length is expected to fit.")
    if any(row.also for row in models):
        out.append("+N: the row stands for N more variants of the same size; --all lists each.")
    if any(row.gpu_layers != row.all_layers for row in models):
        out.append("N of M: N layers are on the GPU, the others in host memory.")
    if any(row.gpu_layers == row.all_layers and row.host_experts for row in models):
        out.append("experts of N: those of N layers are in host memory, the rest is on the GPU.")
    return out


def models_left_out(runnables: Runnables) -> list[str]:
    """Reasons for what is not listed."""
    out = []
    if runnables.more:
        out.append(f"{runnables.more:,} more run: --all --limit 0 lists each, --family F those of one family.")
    does_not_run = f"cannot be planned: {runnables.engine} does not run"
    found = [
        f"{count:,} {of_one if count == 1 else of_several}"
        for count, of_several, of_one in (
            (runnables.too_large, "do not fit", "does not fit"),
            (runnables.short, f"have a maximum below {runnables.seq:,} tokens", f"has a maximum below {runnables.seq:,} tokens"),
            (runnables.slow, "are slower than asked for", "is slower than asked for"),
            (
                runnables.embeddings,
                "are embedding models (--modality embedding lists them)",
                "is an embedding model (--modality embedding lists it)",
            ),
            (
                runnables.refused,
                f"{does_not_run} them, or their size is not known",
                f"{does_not_run} it, or its size is not known",
            ),
        )
        if count
    ]
    if found:
        out.append(f"Of {runnables.considered:,}: {'; '.join(found)}.")
    return out

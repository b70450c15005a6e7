"""A running server as text: what it holds, how full it is, who else fits; and a line for each further reading."""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile.server import Room, Serving
from hwcalc.report.reconcile import compared_text
from hwcalc.report.text import csv_text, plural, share_text
from hwcalc.report.view import View
from hwcalc.text import clean

_CSV: Final = (
    "time", "engine", "engine_version", "model", "pools", "blocks", "tokens", "used_share", "used_tokens", "running", "waiting", "most_running",
)  # fmt: skip
_ROOM: Final = ("seq", "users", "limit", "at_most")
_UNSAID: Final = "the server does not say"


def server_text(serving: Serving, view: View) -> str:
    """Text: what the server states, and the comparison with its settings' plan."""
    engine = f"{serving.engine} {serving.engine_version or ''}".rstrip()
    title = clean(f"{serving.address} ({engine}, {serving.model or 'a model without a name'})")
    head = f"## {title}\n\n" if view.format == "markdown" else f"{title}\n"
    text = head + view.labelled(
        [("pool", _pool(serving)), ("in use", _used(serving)), ("requests", _requests(serving)), ("more users", _rooms(serving))]
    )
    compared = serving.reconciliation
    if compared is not None:
        text += "\n" + compared_text(compared, f"{compared.model} as it is planned with the server's settings", view)
    if serving.notes and not view.quiet:
        text += "\n" + view.labelled(("note", note.message) for note in serving.notes)
    return text


def server_csv(serving: Serving, *, header: bool = True) -> str:
    """A row for a reading, with the more users of the first and the second length at its end."""
    rooms = [None if room is None else getattr(room, name) for room in _two(serving) for name in _ROOM]
    names = [f"{which}_{name}" for which in ("planned", "mean") for name in _ROOM]
    text = csv_text((*_CSV, *names), [[*(getattr(serving, name) for name in _CSV), *rooms]])
    return text if header else text.partition("\n")[2]


def reading_line(serving: Serving, first: Serving) -> str:
    """A reading in one line, as short as a terminal needs it. A pool of another size than at ``first`` is named: the server started anew."""
    parts = [serving.time.partition("T")[2].partition("+")[0]]
    parts += [] if serving.running is None and serving.waiting is None else [_counts(serving)]
    size, before = _sizes(serving)[-1:], _sizes(first)[-1:]
    changed = f"{size[0]} (at first {before[0]})" if size and before and size != before else ""
    share = "" if serving.used_share is None else share_text(serving.used_share)
    pool = " of ".join(filter(None, (share, changed)))
    parts += [f"pool {pool}"] if pool else []
    rooms = ", ".join(f"{_most(room)}{room.users:,} x {room.seq:,}" for room in serving.rooms)
    return "; ".join([*parts, *([f"room for {rooms} tokens"] if rooms else [])])


def _two(serving: Serving) -> tuple[Room | None, Room | None]:
    first, second, *_ = (*serving.rooms, None, None)
    return first, second


def _sizes(serving: Serving) -> list[str]:
    """The size of the pools in blocks and in tokens, as far as it is known."""
    return [f"{size:,} {unit}" for size, unit in ((serving.blocks, "blocks"), (serving.tokens, "tokens")) if size is not None]


def _pool(serving: Serving) -> str:
    sizes = _sizes(serving)
    several = f" in {plural(serving.pools, 'pool')}" if serving.pools > 1 else ""
    return f"{', '.join(sizes)}{several}" if sizes else _UNSAID


def _used(serving: Serving) -> str:
    share = "" if serving.used_share is None else share_text(serving.used_share)
    tokens = "" if serving.used_tokens is None else f"{serving.used_tokens:,} tokens"
    return ", ".join(filter(None, (share, tokens))) or _UNSAID


def _counts(serving: Serving) -> str:
    counts = ((serving.running, "running"), (serving.waiting, "waiting"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count is not None)


def _requests(serving: Serving) -> str:
    most = "" if serving.most_running is None else f" (at most {serving.most_running:,} at once)"
    return f"{_counts(serving) or _UNSAID}{most}"


def _most(room: Room) -> str:
    return "at most " if room.at_most else ""


def _rooms(serving: Serving) -> str:
    said = [f"{_most(room)}{room.users:,} of {room.seq:,} tokens each ({room.limit})" for room in serving.rooms]
    said[1:] = [f"{text} as those that run" for text in said[1:]]
    return "; ".join(said) or _UNSAID

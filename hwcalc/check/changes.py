"""Why a check fails and what to write: which of its keys differ from the baseline or the lock, and which edits make it hold.

Both are in the words of the check file, and a finding is placed at the key that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.check.fields import OPTIONS, REQUIREMENTS
from hwcalc.check.file import Check, Place
from hwcalc.check.result import Edit, Judged, KeyChange
from hwcalc.planner.asked import read_options
from hwcalc.planner.options import ROWS
from hwcalc.planner.values import TYPES
from hwcalc.text import printable

MOST_EDITS: Final = 5
NUMBERS: Final = ("seq", "batch")
"""Keys with a largest value that fits: the first edits to offer."""
OF_SLOT: Final = "tokens a slot"
"""What the length is called where a text says the tokens of all slots together."""
PROBABLY: Final = "probably"
"""What is said of an edit that holds by the expected value alone."""
_ROUNDED: Final = 8 * 1024
"""From so many tokens on, an edit has whole thousands (1,024) of them, which people write and remember."""
_LONGEST: Final = 200
"""Characters of a value."""
HARDWARE: Final = frozenset({"gpu", "gpus", "instance", "tp", "pp", "dp", "dcp", "ep"})
"""Options of hardware, and of how it is divided."""


def asked_of(check: Check) -> dict[str, str]:
    """Every key of a check with its value as text: the same text for ``16k`` and 16384. Defaults are left out."""
    out = {"model": _short(check.model)}
    for name, value in read_options(check.asked).values.items():
        row = ROWS[name]
        if name not in OPTIONS or value is None or value == row.default:
            continue
        if row.type == "pairs":
            out |= {f"{name}.{_short(each)}": _short(text) for each, text in value.items()}
        else:
            out[name] = _short(TYPES[row.type].write(value))
    return out | {item.name: _short(item.text) for item in check.required if item.name != "fits" or item.limit is not True}


def planned_of(figures: Mapping[str, Any]) -> dict[str, str]:
    """The options of the request behind the figures of a plan, for a baseline without the keys of its checks."""
    fit = figures.get("fit") or {}
    names = {"batch": "batch", "dtype": "kv_dtype", "engine": "engine", "policy": "policy"}
    known = {"seq": TYPES["tokens"].write(figures["seq"]), **{key: figures.get(name) for key, name in names.items()}}
    known |= {"gpu": fit.get("gpu"), "gpus": fit.get("gpus")}
    return {name: _short(str(value)) for name, value in known.items() if value is not None}


def changed_keys(before: Mapping[str, str], after: Mapping[str, str], since: str) -> tuple[KeyChange, ...]:
    """The keys whose values differ, in the order of the options; requirements, and what is no key of a check file, come last."""
    order = {name: place for place, name in enumerate(("model", *OPTIONS, *REQUIREMENTS))}
    names = sorted({*before, *after}, key=lambda name: (order.get(name.partition(".")[0], len(order)), name))
    return tuple(
        KeyChange(key=name, before=before.get(name), after=after.get(name), since=since)
        for name in names
        if before.get(name) != after.get(name)
    )


def placed(judged: Judged, check: Check, changes: Sequence[KeyChange]) -> Judged:
    """The requirement at its place in the file: the key that changed, else its own key, if it is written there. One of a flag stays at the flag."""
    if judged.name == "flags":
        return judged
    own = "model" if judged.name == "lock" else judged.name
    keys = [own] if own == "model" or any(change.key == own for change in changes) else [change.key for change in changes]
    for key in (*keys, own):
        place = check.places.get(key) or check.places.get(key.partition(".")[0])
        if place is not None:
            return replace(judged, line=place.line, column=place.column)
    return judged


def taken_back(
    changes: Sequence[KeyChange], made: Callable[[Mapping[str, str | None], str], Edit | None], as_one: Collection[str] = ()
) -> list[Edit]:
    """The edits to values of the baseline or the lock with each of which the check passes; if none does alone, to all of them together.

    ``made`` is the edit of some settings, since the baseline or the lock; ``None`` where the check does not pass with it. Keys that are said
    ``as_one`` are taken back together.
    """
    alone, together = dict[tuple[str, str], list[KeyChange]](), dict[str, list[KeyChange]]()
    for change in changes:
        if change.key.partition(".")[0] in OPTIONS:
            alone.setdefault((change.since, "" if change.key in as_one else change.key), []).append(change)
            together.setdefault(change.since, []).append(change)
    for tried in (alone, together):
        each = (made({change.key: change.before for change in group}, group[0].since) for group in tried.values())
        out = [one for one in each if one is not None]
        if out:
            return out
    return []


def as_before(since: str, count: int) -> str:
    """What is said of an edit of so many words that takes them back."""
    return f"as the {since} has {'it' if count == 1 else 'them'}"


def joined(*said: str) -> str:
    """What is said of an edit, each once."""
    return "; ".join(filter(None, dict.fromkeys(said)))


def merged(edits: Sequence[Edit], words: Callable[[Edit], object] = lambda edit: edit.yaml) -> tuple[Edit, ...]:
    """The edits, each once by its ``words``, with all that is said of it."""
    told: dict[object, Edit] = {}
    for one in edits:
        same = told.setdefault(words(one), one)
        if same is not one:
            said = one.effect.removeprefix(f"{PROBABLY}; ")
            told[words(one)] = replace(same, effect=joined(*same.effect.split("; "), *said.split("; ")))
    return tuple(told.values())


def as_written(changes: Sequence[KeyChange], check: Check) -> tuple[KeyChange, ...]:
    """The changes by the words of the file for their keys, such as ``concurrency`` or ``--max-model-len``.

    What a deployment says itself stands before a load that follows from it.
    """
    written = [replace(change, key=check.word_for(change.key)) for change in check.known(changes)]
    if check.document is None:
        return tuple(written)
    return tuple(sorted(written, key=lambda change: change.key in (*NUMBERS, OF_SLOT, "users")))


def number_edit(
    name: str,
    value: int | None,
    planned: int,
    places: Mapping[str, Place],
    is_sure: Callable[[int], bool] = lambda _: True,
    beside: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Edit, ...]:
    """The edit that sets ``seq`` or ``batch`` to the largest value that holds, with the settings ``beside``; ``is_sure`` says of one whether it surely does.

    There is none if nothing smaller than planned does, or for ``seq`` if the check has ``lengths`` in its place.
    """
    if value is None or not 0 < value < planned or (name == "seq" and "lengths" in places):
        return ()
    written = rounded(value) if name == "seq" else value
    sure = is_sure(written)
    made = edit({**beside, name: str(value)}, "" if sure else PROBABLY, places)
    # The length that is written surely holds, and the one behind it may not.
    expected = sure and written != value and not is_sure(value)
    return (replace(made, effect=f"surely; {made.effect} expected") if expected else made,)


def edit(settings: Mapping[str, str | None], effect: str, places: Mapping[str, Place]) -> Edit:
    """The edit of a check that makes these settings, by the words that it has for them."""
    most, settings = "", dict(settings)
    if settings.get("seq") is not None:
        tokens = read_options({"seq": settings["seq"]}).values["seq"]
        settings["seq"] = TYPES["tokens"].write(rounded(tokens))
        most = f"at most {tokens:,} tokens" if rounded(tokens) != tokens else ""
    told = _effect(settings, effect)
    if most:
        # The length is in the effect of several changes, too.
        told = f"{PROBABLY}; {most}" if PROBABLY in told else most
    return Edit(yaml=_in_file(settings, places), effect=told, settings=settings)


def _in_file(settings: Mapping[str, str | None], places: Mapping[str, Place]) -> str:
    """The lines of a check file with these settings, and what it is to be without."""
    counted = places["gpu"].counted if "gpu" in places else None
    if counted is not None and not settings.keys().isdisjoint({"gpu", "gpus"}):
        gpu, gpus = settings.get("gpu") or counted[0], settings.get("gpus") or counted[1]
        settings = {"gpu": f"{gpus}x{gpu}", **{name: value for name, value in settings.items() if name not in {"gpu", "gpus"}}}
    written, pairs, without = list[str](), dict[str, list[str]](), list[str]()
    for name, value in settings.items():
        key, _, inner = name.partition(".")
        word = inner or (places[name].word if name in places else name)
        if value is None:
            without.append(f"without {word}")
        elif inner:
            pairs.setdefault(key, []).append(f"{inner}: {value}")
        else:
            written.append(f"{word}: {value}")
    written += [f"{key}: {{{', '.join(each)}}}" for key, each in pairs.items()]
    return "\n".join([*written, *without])


def rounded(tokens: int) -> int:
    """A length as people write it."""
    return tokens if tokens < _ROUNDED else tokens // 1024 * 1024


def _effect(settings: Mapping[str, str | None], effect: str) -> str:
    """The effect of the edit in words, without those that its key says already."""
    if settings.keys() <= {*NUMBERS}:
        return PROBABLY if effect.endswith("probably fits") else effect if effect == PROBABLY else ""
    # How many it holds now is in the edit that takes fewer.
    effect = re.sub(r" instead of [0-9,]+(?=;|$)", "", effect)
    return gain_of(effect) if settings.keys() <= HARDWARE else effect


def gain_of(effect: str) -> str:
    """What a change gives, without the words for what it changes."""
    return effect.partition("; ")[2]


def in_words(changes: Sequence[KeyChange]) -> Iterator[str]:
    """``seq 16k -> 32k``, ... for each change."""
    for change in changes:
        yield f"{change.key} {change.before or '(not set)'} -> {change.after or '(not set)'}"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

"""What sequences have in common, explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.engines.steps import value_of
from hwcalc.library.explain_memory import bytes_figure
from hwcalc.library.explain_policy import plain_figure
from hwcalc.library.explained import ExplainedFigure, ExplainedSection, figure_of
from hwcalc.planner.result import Plan

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.result import SharingInfo


def sharing(plan: Plan, opened: Occupancy) -> ExplainedSection | None:
    """What sequences have in common, and what keeping it once saves; ``None`` where they share nothing."""
    info = plan.sharing
    if info is None:
        return None
    return ExplainedSection(
        name="sharing",
        title="sharing",
        about="What several sequences have in common is kept once where the engine can.",
        figures=tuple(_of_sharing(plan, info, opened)),
        remarks=(info.support,) if info.support else (),
    )


def _of_sharing(plan: Plan, info: SharingInfo, opened: Occupancy) -> Iterator[ExplainedFigure]:
    known = str(info.definition)
    for number, one in enumerate(info.steps):
        name = _SHARING_WORDS.get(one.name, one.name.replace("_", " "))
        yield figure_of(one, f"sharing.steps.{number}.expected", definition=known, name=name)
    for place, group in enumerate(info.groups):
        for number, one in enumerate(group.steps):
            name = f"blocks, group {place + 1}: {one.name.replace('_', ' ')}"
            yield figure_of(one, f"sharing.groups.{place}.steps.{number}.expected", definition=known, name=name)
    formula, values = _apart(info, opened)
    yield bytes_figure("cache without sharing", "sharing.unshared_bytes", info.unshared_bytes, formula, values, definition=known)
    values = {"unshared": info.unshared_bytes, "shared": plan.cache.total_bytes}
    formula = "unshared - shared" if info.unshared_bytes - plan.cache.total_bytes == info.saved_bytes else ""
    yield bytes_figure("saved", "sharing.saved_bytes", info.saved_bytes, formula, values, definition=known)
    if info.padded_tokens:
        yield plain_figure(
            "positions of padding", "sharing.padded_tokens", info.padded_tokens, *_padding(opened), "tokens", known
        )


def _apart(info: SharingInfo, opened: Occupancy) -> tuple[str, dict[str, int]]:
    """All sequences by themselves: as many times one of them, or one of each length."""
    lengths, branches = opened.unshared.together.lengths, opened.together.branches
    if len(lengths) > _LENGTHS:
        return "", {}
    parts: list[str] = []
    values: dict[str, int] = {}
    count = "sequences" if len(lengths) == 1 else "sequences_alike"
    for number, (tokens, requests) in enumerate(lengths):
        names = [f"{name}_{number}" if number else name for name in (count, "bytes_of_sequence")]
        parts.append(" x ".join(names))
        values |= dict(zip(names, (requests * branches, opened.single.sized(seq=tokens).stored_bytes), strict=True))
    formula = " + ".join(parts)
    return (formula, values) if value_of(formula, values) == info.unshared_bytes else ("", {})


def _padding(opened: Occupancy) -> tuple[str, dict[str, int]]:
    """As many tokens as the longest has for every sequence, less those that there are."""
    (longest, requests), *_ = opened.together.lengths
    asked = sum(tokens * count for tokens, count in opened.request.lengths_of)
    values = {"branches": opened.request.sharing.branches, "requests": requests, "own_tokens": longest, "tokens_asked": asked}
    return "branches x (requests x own_tokens - tokens_asked)", values


_LENGTHS: Final = 4
"""Lengths of sequences that are written one by one."""


_SHARING_WORDS: Final = {"sequences": "sequences alive", "kept_tokens": "tokens that are kept of all sequences"}

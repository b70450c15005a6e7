"""What sequences have in common, explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from hwcalc.library.explain_memory import bytes_figure
from hwcalc.library.explain_policy import plain_figure
from hwcalc.library.explained import ExplainedFigure, ExplainedSection, figure_of
from hwcalc.planner.result import Plan

if TYPE_CHECKING:
    from hwcalc.planner.sharing_result import SharingInfo

__all__ = ["sharing"]


def sharing(plan: Plan) -> ExplainedSection | None:
    """What sequences have in common, and what keeping it once saves; ``None`` where they share nothing."""
    info = plan.sharing
    if info is None:
        return None
    return ExplainedSection(
        name="sharing",
        title="sharing",
        about="What several sequences have in common is kept once where the engine can.",
        figures=tuple(_of_sharing(plan, info)),
        remarks=(info.support,) if info.support else (),
    )


def _of_sharing(plan: Plan, info: SharingInfo) -> Iterator[ExplainedFigure]:
    known = str(info.definition)
    for number, one in enumerate(info.steps):
        name = _SHARING_WORDS.get(one.name, one.name.replace("_", " "))
        yield figure_of(one, f"sharing.steps.{number}.expected", definition=known, name=name)
    for place, group in enumerate(info.groups):
        for number, one in enumerate(group.steps):
            name = f"blocks, group {place + 1}: {one.name.replace('_', ' ')}"
            yield figure_of(one, f"sharing.groups.{place}.steps.{number}.expected", definition=known, name=name)
    yield bytes_figure("cache without sharing", "sharing.unshared_bytes", info.unshared_bytes, definition=known)
    values = {"unshared": info.unshared_bytes, "shared": plan.cache.total_bytes}
    formula = "unshared - shared" if info.unshared_bytes - plan.cache.total_bytes == info.saved_bytes else ""
    yield bytes_figure("saved", "sharing.saved_bytes", info.saved_bytes, formula, values, definition=known)
    if info.padded_tokens:
        yield plain_figure("positions of padding", "sharing.padded_tokens", info.padded_tokens, "", {}, "tokens", known)


_SHARING_WORDS: Final = {"sequences": "sequences alive", "kept_tokens": "tokens that are kept of all sequences"}

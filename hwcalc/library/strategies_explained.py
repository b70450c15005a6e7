"""How the numbers of a strategy come about: its steps as the figures of one section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.library.explained import ExplainedFigure, ExplainedSection, figure_of
from hwcalc.model import Definition
from hwcalc.planner.strategies import ENGINE, NAMES, WORDS
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.engines.steps import Step
    from hwcalc.planner.strategies_result import Strategies, Strategy

__all__ = ["only_strategy", "strategy_section"]

_OF_ENGINE: Final = "What the engine holds by its own rules. kvplan explain MODEL --engine ENGINE derives it tensor by tensor."


def only_strategy(found: Strategies, name: str) -> Strategies:
    """The answer with one strategy alone. Raises :class:`~hwcalc.errors.UsageError` if it has none of that name."""
    wanted = name.strip().lower()
    kept = tuple(one for one in found.strategies if one.name == wanted)
    if not kept:
        hint = f"Known: {', '.join(one.name for one in found.strategies)}."
        if wanted == ENGINE:
            hint = "Name one: --engine vllm"
        raise UsageError(f"strategy {shown(name, 40)} is not known.", hint=hint)
    return replace(found, strategies=kept)


def strategy_section(strategy: Strategy) -> ExplainedSection:
    """Each number of a strategy with its formula, in the order in which they follow from each other."""
    about = WORDS[strategy.name].about if strategy.name in NAMES else _OF_ENGINE
    return ExplainedSection(
        name=strategy.name,
        title=strategy.title,
        about=about,
        figures=tuple(_figure(one, strategy) for one in strategy.steps),
        remarks=(
            f"The trade: {strategy.trades}." if strategy.name in NAMES else strategy.trades,
            f"Used by: {strategy.used_by}.",
        ),
    )


def _figure(step: Step, strategy: Strategy) -> ExplainedFigure:
    definition = strategy.peak_definition if step.name == "peak_bytes" else strategy.definition
    if step.unit == "operations":
        definition = Definition.EXACT
    if step.unit == "s":
        definition = Definition.BOUND
    return figure_of(step, f"strategies.{strategy.name}.{step.name}", definition=definition.value)

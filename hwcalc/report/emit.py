"""A plan as the command line of the engine it was planned for."""

from __future__ import annotations

import shlex

from hwcalc.engines import ENGINES, find_engine
from hwcalc.errors import UsageError
from hwcalc.planner.result import Plan

__all__ = ["emitted", "emitters"]


def emitters() -> tuple[str, ...]:
    """Engines that have a command line."""
    return tuple(name for name in ENGINES if find_engine(name)[0].has_command)


def emitted(plan: Plan, engine: str) -> str:
    """The full command. Raises :class:`~hwcalc.errors.UsageError` if the plan is not of that engine."""
    if engine not in emitters():
        raise UsageError(f"--emit {engine[:40]!r} is not known.", hint=f"Known: {', '.join(emitters())}.")
    if plan.request.engine != engine:
        raise UsageError(f"the plan is of engine {plan.request.engine}, not {engine}.", hint=f"Add: --engine {engine}")
    return shlex.join(find_engine(engine)[0].command(plan))

"""The verdict of a plan where a command's own output has none: the exit status, and why."""

from __future__ import annotations

from hwcalc.planner.result import NO_VERDICT, Plan

__all__ = ["why_not"]


def why_not(plan: Plan) -> tuple[str, ...]:
    """Lines for standard error: why a plan is not known to fit, and what would help. Empty if it fits or has no verdict."""
    if not plan.refutes:
        return ()
    if plan.fit is None:
        return tuple(note.message for note in plan.warnings if note.code == NO_VERDICT)
    from hwcalc.report.summary import verdict

    lines = (verdict(plan), plan.reason, *(f"try {one.command or one.flag}" for one in plan.fit.suggestions))
    return tuple(line for line in lines if line)

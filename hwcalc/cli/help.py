"""``kvplan help``: the help of kvplan, or of one command."""

from __future__ import annotations

from hwcalc.cli.options import COMMANDS, Example, Option, command_meant
from hwcalc.cli.output import Answer
from hwcalc.errors import UsageError
from hwcalc.text import shown

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (Option("commands", (), "[COMMAND]", "One of the commands that kvplan help lists.", "list", complete="commands"),)
EXAMPLES = (
    Example("What can it do?", "kvplan help"),
    Example("Every option of a plan", "kvplan help plan"),
    Example("How is a check file written?", "kvplan help check"),
)


def run(*, commands: list[str] | None) -> Answer:
    """Print this help, or that of one command."""
    from hwcalc.cli.commands import help_of

    if not commands:
        return Answer(text=help_of(None))
    name = commands[0]
    if len(commands) > 1 or name not in COMMANDS:
        near = command_meant(name)
        raise UsageError(
            f"there is no command {shown(' '.join(commands), 40)}.",
            hint=f"Did you mean: kvplan help {near}" if near else f"Commands: {', '.join(COMMANDS)}.",
        )
    return Answer(text=help_of(name))

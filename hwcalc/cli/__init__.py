"""The command line: parse arguments, call one function, print what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_OBJECTS = 100_000
"""Objects that are made before Python searches them for garbage. Its own 700 costs a tenth of a plan."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. The answer is written to standard output in one piece, or not at all.

    Without ``arguments`` it reads those of the process, which is to end afterwards: from then on a signal ends the process
    (:mod:`hwcalc.cli.interrupt`). With ``arguments`` it is a function like any other, and signals are its caller's. Raises only
    ``SystemExit``, which ends a completion request of the shell.
    """
    if arguments is not None:
        from hwcalc.cli.run import run

        return run(arguments)
    from hwcalc.cli.interrupt import end_quietly, leave

    end_quietly()
    import gc

    # Most commands end before there is garbage worth a search; a long one searches as often as its work goes on.
    gc.set_threshold(_OBJECTS)
    from hwcalc.cli.run import run

    return leave(run(None))

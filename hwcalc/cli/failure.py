"""Report errors to the user: an exit status, a message and a hint; a traceback only with ``KVPLAN_DEBUG=1``.

==  ==========================================================================
 0  it fits, all checks hold, or no verdict was asked for
 1  it does not fit or nobody can say, a check fails, or measured and predicted differ
 2  wrong usage
 3  the model or its config is missing, unreadable or not understood
 4  network or permission
 5  no device for the probe
70  a bug in kvplan itself (``EX_SOFTWARE`` of sysexits.h)
74  the output, or a file that was named, cannot be written (``EX_IOERR``)
==  ==========================================================================

As usual, 130 means an interrupt (Ctrl-C), 143 SIGTERM, 129 that the terminal went away, and 141 that the reader of the output did
(``| head``).
"""

from __future__ import annotations

import os
import sys

from hwcalc.cli.output import write
from hwcalc.documents import dumps, error_document
from hwcalc.errors import KvplanError, OutputError, UnwritableFileError
from hwcalc.formulas.record import Record
from hwcalc.text import message as safe_message

__all__ = ["INTERNAL", "USAGE", "Failure", "describe", "is_abort", "report"]

USAGE = 2
INTERNAL = 70


class Failure(Record):
    """An error as the command line reports it."""

    status: int
    type: str
    message: str
    hint: str


def is_abort(error: Exception) -> bool:
    """Whether the exception is Typer's own form of an interrupt."""
    return is_typers(error, "Abort")


def is_typers(error: Exception, name: str) -> bool:
    """Whether an error is Typer's exception of this name. Older releases import Click, newer releases contain a copy of it."""
    return any(base.__name__ == name and base.__module__.startswith(("typer", "click")) for base in type(error).__mro__)


def describe(error: Exception) -> Failure:
    """Turn any exception into a failure. Only here does a class become an exit status."""
    if isinstance(error, KvplanError):
        return Failure(status=error.exit_code, type=error.type, message=error.message, hint=error.hint)
    if is_typers(error, "ClickException"):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "kvplan"
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        return Failure(
            status=USAGE, type="usage", message=safe_message(message.replace("\n", " ")), hint=f"See: {command} --help"
        )
    return Failure(
        status=INTERNAL,
        type="internal",
        message=safe_message(f"internal error: {type(error).__name__}: {error}"[:500].replace("\n", " ")),
        hint="This is a fault in kvplan. Please report it with the output of the same command under KVPLAN_DEBUG=1.",
    )


def report(error: Exception, *, json: bool) -> int:
    """Report an error, as JSON on standard output or as text on standard error. Returns the exit status."""
    failure = describe(error)
    if os.environ.get("KVPLAN_DEBUG", "") not in {"", "0"}:
        import traceback

        write(sys.stderr, "".join(traceback.format_exception(error)))
    if json and (isinstance(error, UnwritableFileError) or not isinstance(error, OutputError)):
        document = error_document(code=failure.status, type_=failure.type, message=failure.message, hint=failure.hint)
        write(sys.stdout, dumps(document), json=True)
    else:
        hint = f"{failure.hint}\n" if failure.hint else ""
        write(sys.stderr, f"kvplan: {failure.message}\n{hint}")
    return failure.status

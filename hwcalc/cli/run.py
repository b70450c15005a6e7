"""``main``: run a command line and return its exit status."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from hwcalc.cli.options import COMMANDS
from hwcalc.cli.output import Answer, OutputError, discard, wants_json, write
from hwcalc.cli.quick import read
from hwcalc.errors import KvplanError

__all__ = ["BROKEN_PIPE", "INTERRUPTED", "main"]

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. The answer is written to standard output in one piece, or not at all.

    Without ``arguments`` it reads those of the process, which is to end afterwards. Raises only ``SystemExit``, which ends a completion
    request of the shell.
    """
    if arguments is not None:
        return _run(list(arguments))
    status = _run(sys.argv[1:])
    # The process gives all memory back at its end. Python need not search it for garbage before: that takes a sixth of a plan's time.
    gc.freeze()
    return status


def _run(words: list[str]) -> int:
    try:
        try:
            return _print(_answer(words))
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a message and a status here
            from hwcalc.cli.failure import is_abort, report

            return INTERRUPTED if is_abort(error) else report(error, json=wants_json(words))
    except OutputError as error:
        # Standard output cannot be written; standard error may still work.
        with suppress(OSError, OutputError):
            write(sys.stderr, f"kvplan: {error.message}\n")
        return error.exit_code
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def _answer(words: list[str]) -> Any:
    line = read(words)
    if line is not None:
        name, values = line
        return import_module(COMMANDS[name]).run(**values)
    from hwcalc.cli.commands import root

    try:
        return root().main(args=words, prog_name="kvplan", standalone_mode=False)
    except (BrokenPipeError, KvplanError):
        raise
    except OSError as error:
        # Typer itself writes help and completions.
        discard(sys.stdout)
        raise OutputError(f"the output could not be written: {error.strerror}.") from error


def _print(result: Any) -> int:
    """Write an answer and return the status. For help and version, Typer has written the text and returns a status or ``None``."""
    if not isinstance(result, Answer):
        return result if isinstance(result, int) else 0
    for remark in result.remarks:
        write(sys.stderr, f"kvplan: {remark}\n")
    write(sys.stdout, result.text, json=result.json, commands=result.commands)
    return result.status

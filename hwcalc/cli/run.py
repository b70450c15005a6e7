"""Run a command line and return its exit status. Errors become a message and a hint; a traceback only with ``KVPLAN_DEBUG=1``.

==  ======================================================================================
 0  it fits, all checks hold, or no verdict was asked for
 1  it does not fit or nobody can say, a check fails, or measured and predicted differ
 2  wrong usage
 3  the model or its config, a log or a trace is missing, unreadable or not understood
 4  network or permission; a worker died twice
 5  no device for the probe
70  a bug in kvplan itself (``EX_SOFTWARE`` of sysexits.h)
74  the output, or a file that was named, cannot be written (``EX_IOERR``)
==  ======================================================================================

As usual, 130 means an interrupt (Ctrl-C), 143 SIGTERM, 129 that the terminal went away, and 141 that the reader of the output did
(``| head``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.cli.options import COMMANDS, DEFAULT, Option, find_command
from hwcalc.cli.output import Answer, discard, on_screen, on_terminal, wants_json, write
from hwcalc.documents import ErrorInfo, dumps, error_document
from hwcalc.errors import KvplanError, OutputError, UnwritableFileError, UsageError
from hwcalc.text import message as safe_message
from hwcalc.unfinished import Uncut, Unfinished

INTERRUPTED = 130
BROKEN_PIPE = 141
_OF_TYPER: Final = (["--install-completion"], ["--show-completion"])
"""Lines in which there is nothing of ours to read."""


def run(arguments: Sequence[str] | None) -> int:
    """Run one command, that of the process without ``arguments``. See :func:`hwcalc.cli.main`."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _interruptible(words) if wants_json(words) else _print(_answer(words))
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a message and a status here
            return INTERRUPTED if is_typers(error, "Abort") else report(error, words)
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


def _interruptible(words: list[str]) -> int:
    """Write the answer of a command that is asked for JSON: a signal that comes before it makes a document of an error."""
    with ExitStack() as unwritten:
        unwritten.enter_context(Unfinished(lambda status: os.write(1, dumps(_interrupted(status)).encode())))
        try:
            result = _answer(words)
        except KeyboardInterrupt:
            # Where signals are the caller's.
            result = Answer(text=dumps(_interrupted(INTERRUPTED)), json=True, status=INTERRUPTED)
        return _print(result, before=unwritten.close)


def _interrupted(status: int) -> Mapping[str, Any]:
    return error_document(ErrorInfo(code=status, type="interrupted", message="the command was interrupted.", hint=""))


def _answer(words: list[str]) -> Any:
    """An :class:`Answer` to a line, or a status where Typer has written help or a completion itself."""
    from typer import Exit

    from hwcalc.cli.commands import ALL_OPTIONS, help_of, root
    from hwcalc.cli.line import translated, with_command

    before = words[: words.index("--")] if "--" in words else words
    if ALL_OPTIONS in before:
        command_line = with_command([word for word in before if word != ALL_OPTIONS])
        return Answer(text=help_of(command_line[0] if command_line and command_line[0] in COMMANDS else None, whole=True))
    remarks: tuple[str, ...] = ()
    if words not in _OF_TYPER and "_KVPLAN_COMPLETE" not in os.environ:
        words, remarks = translated(words)
    command = root()
    try:
        if "_KVPLAN_COMPLETE" in os.environ or words in _OF_TYPER:
            return command.main(args=words, prog_name="kvplan", standalone_mode=False)
        # Not by main(), which answers Ctrl-C itself.
        with command.make_context("kvplan", words) as context:
            result = command.invoke(context)
    except Exit as end:
        return end.exit_code
    except (BrokenPipeError, KvplanError):
        raise
    except OSError as error:
        # Typer itself writes help and completions.
        discard(sys.stdout)
        raise OutputError(f"the output could not be written: {error.strerror}.") from error
    if remarks and isinstance(result, Answer) and not {"-q", "--quiet"} & set(words):
        return replace(result, remarks=(*remarks, *result.remarks))
    return result


def _print(result: Any, *, before: Callable[[], object] = lambda: None) -> int:
    """Write an answer and return the status. For help and version, Typer has written the text and returns a status or ``None``.

    ``before`` is called when the text is next: from then on a signal waits for its end.
    """
    if not isinstance(result, Answer):
        return result if isinstance(result, int) else 0

    def say() -> None:
        for remark in result.remarks:
            write(sys.stderr, on_screen(f"kvplan: {remark}") + "\n")

    # On a screen a list of hundreds of lines goes by; what is said of it stands below it.
    below = on_terminal() and not result.readings
    if not below:
        say()
    with Uncut():
        before()
        write(sys.stdout, result.text, json=result.json, commands=result.commands, color=result.color)
        for piece in result.pieces:
            write(sys.stdout, piece, json=result.json)
    if below:
        say()
    for line in result.readings:
        write(sys.stdout, line, json=result.json)
    return result.status


USAGE = 2
INTERNAL = 70


def is_typers(error: Exception, name: str) -> bool:
    """True if an error is Typer's exception of this name. Older releases import Click, newer releases contain a copy of it."""
    return any(base.__name__ == name and base.__module__.startswith(("typer", "click")) for base in type(error).__mro__)


_MOST_CHOICES: Final = 16


def _options(words: Sequence[str]) -> tuple[Option, ...]:
    """The options of the command that a line names."""
    return find_command(words[0] if words and words[0] in COMMANDS else DEFAULT).options


def _choices(words: Sequence[str], flag: str | None) -> list[str]:
    """Values for an option of a line that lacks its own, where they are a short list."""
    if flag is None or not words:
        return []
    from hwcalc.cli import completion

    complete = next((option.complete for option in _options(words) if flag in option.flags), None)
    values: list[str] = [] if complete is None else getattr(completion, complete)("")
    return values if len(values) <= _MOST_CHOICES else []


def _as_typed(message: str, words: Sequence[str]) -> str:
    """A message that begins with the name of an option, or of its keyword, with the name by which the line gives it instead."""
    from hwcalc.cli.line import aliases

    options = _options(words)
    named = {flag: option for option in options for flag in option.flags}
    named |= {flag: alias.option for flag, alias in aliases(options).items() if not alias.knob}
    for flag in (word.partition("=")[0] for word in words):
        option = named.get(flag)
        if option is not None and option.kind != "flag":
            start = re.match(rf"{option.flags[0]}(?![\w-])|{option.name.replace('_', '[_-]')}(?= is | must | ')", message)
            if start is not None:
                return f"{flag}{message[start.end() :]}"
    return message


def describe(error: Exception, words: Sequence[str] = ()) -> ErrorInfo:
    """The error that any exception is, where ``words`` is the line. Only here does a class become an exit status."""
    if isinstance(error, UsageError):
        return replace(ErrorInfo.of(error), message=_as_typed(error.message, words))
    if isinstance(error, KvplanError):
        return ErrorInfo.of(error)
    if is_typers(error, "ClickException"):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "kvplan"
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        said = safe_message(message.replace("\n", " "))
        choices = _choices(words, getattr(error, "option_name", None))
        flag = getattr(error, "option_name", None)
        write = next((f"{flag} {row.metavar}" for row in _options(words) if flag in row.flags and row.metavar), "")
        named = words[0] if words and words[0] in COMMANDS else DEFAULT
        see = f"Write: {write}. See: kvplan help {named} --all" if write else f"See: {command} --help"
        hint = f"Known: {', '.join(choices)}." if choices else see
        return ErrorInfo(code=USAGE, type="usage", message=said, hint=hint)
    said = safe_message(f"internal error: {type(error).__name__}: {error}"[:500].replace("\n", " "))
    hint = "This is a fault in kvplan. Please report it with the output of the same command under KVPLAN_DEBUG=1."
    return ErrorInfo(code=INTERNAL, type="internal", message=said, hint=hint)


def report(error: Exception, words: list[str]) -> int:
    """Report an error of a line, as JSON on standard output or as text on standard error. Returns the exit status."""
    failure, json = describe(error, words), wants_json(words)
    if os.environ.get("KVPLAN_DEBUG", "") not in {"", "0"}:
        import traceback

        write(sys.stderr, "".join(traceback.format_exception(error)))
    if json and (isinstance(error, UnwritableFileError) or not isinstance(error, OutputError)):
        write(sys.stdout, dumps(error_document(failure)), json=True)
    else:
        # A file may have several faults.
        for each in (failure, *map(ErrorInfo.of, getattr(error, "others", ()))):
            hint = f"{on_screen(each.hint)}\n" if each.hint else ""
            write(sys.stderr, on_screen(f"kvplan: {each.message}") + f"\n{hint}")
    return failure.code

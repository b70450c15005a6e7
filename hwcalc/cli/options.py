"""The arguments and options that commands share, as data that both readers of a command line use."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

from hwcalc.cli.output import FORMATS, View, write
from hwcalc.errors import HubError, ModelNotFoundError, UsageError
from hwcalc.model import Note
from hwcalc.planner.options import PlanOption, options_of
from hwcalc.text import brief, shown

__all__ = [
    "COMMANDS",
    "DEFAULT",
    "OPTIONAL_MODEL",
    "OUTPUT",
    "PLANNING",
    "Option",
    "format_help",
    "given_options",
    "plan_options",
    "progress",
    "reading",
    "say_unreachable",
    "view_of",
]

COMMANDS: Final = {
    "plan": "hwcalc.cli.plan",
    "explain": "hwcalc.cli.explain",
    "diff": "hwcalc.cli.diff",
    "compare": "hwcalc.cli.compare",
    "sweep": "hwcalc.cli.sweep",
    "recommend": "hwcalc.cli.recommend",
    "check": "hwcalc.cli.check",
    "reconcile": "hwcalc.cli.reconcile",
    "probe": "hwcalc.cli.probe",
    "models": "hwcalc.cli.models",
    "engines": "hwcalc.cli.engines",
    "gpus": "hwcalc.cli.gpus",
    "instances": "hwcalc.cli.instances",
    "dtypes": "hwcalc.cli.dtypes",
    "schema": "hwcalc.cli.schema",
}
"""Name -> module with ``OPTIONS`` and ``run``, whose docstring is the help. A new command is one module and one line here."""
DEFAULT: Final = "plan"
"""The command of a line that names none; its first word is a MODEL."""


class Option(NamedTuple):
    """One option; without ``flags``, a positional argument.

    ``name`` is the keyword of the command's ``run``; ``complete`` names the function of :mod:`hwcalc.cli.completion` that lists its
    values. ``kind`` is ``text``, ``flag`` or ``list`` (an option that may be repeated, or an argument of any number of words).
    """

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    kind: str = "text"
    default: str | None = None
    complete: str | None = None
    required: bool = False


MODEL: Final = Option(
    "model",
    (),
    "MODEL",
    "Hub id (org/name, org/name@revision), folder, config.json, or - for a config on standard input.",
    complete="models",
    required=True,
)
OPTIONAL_MODEL: Final = MODEL._replace(required=False)
"""The MODEL of commands that can do with the bare equation: dimensions alone."""


def format_help(formats: Iterable[str]) -> str:
    """The help of ``--format``; the first format is the default."""
    first, *others, last = formats
    return f"{', '.join((first, *others))} or {last}. Default: {first}."


OUTPUT: Final = (
    Option("json", ("--json",), "", "One JSON document on standard output, on errors too.", "flag"),
    Option("format_", ("--format",), "F", format_help(FORMATS), complete="formats"),
    Option("quiet", ("--quiet", "-q"), "", "No notes and hints, only the numbers and warnings.", "flag"),
    Option("no_color", ("--no-color",), "", "No colour on a terminal (NO_COLOR does the same).", "flag"),
)


def plan_options(command: str) -> tuple[Option, ...]:
    """The options of a plan that a command takes, from their table."""
    return tuple(_of_row(row, command) for row in options_of(command))


def _of_row(row: PlanOption, command: str) -> Option:
    listed = command in row.lists
    return Option(
        row.name,
        row.spellings,
        f"{row.metavar},..." if listed else row.metavar,
        row.helps.get(command, row.help),
        kind="list" if listed or row.type == "pairs" else "flag" if row.type == "flag" else "text",
        complete=row.complete,
    )


PLANNING: Final = (OPTIONAL_MODEL, *plan_options(DEFAULT), *OUTPUT)
"""The arguments and options of a command that plans one model."""


def view_of(
    *, json: bool, format_: str | None, quiet: bool, no_color: bool, formats: Collection[str] = FORMATS, **_others: object
) -> View:
    """The view that the output options of a command ask for; the command's other options are ignored."""
    return View.choose(json=json, format_=format_, quiet=quiet, no_color=no_color, formats=formats)


def given_options(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plan that were given to a command, as keywords of the library."""
    given = {row.name: values[row.name] for row in options_of(command) if values[row.name] not in (None, [], False)}
    if "engine_options" in given:
        given["engine_options"] = _pairs(given["engine_options"])
    return given


def say_unreachable(notes: Iterable[Note]) -> None:
    """Report on standard error if the Hub could not be reached, which the numbers alone do not show."""
    for note in notes:
        if note.code == "hub-unreachable":
            write(sys.stderr, f"kvplan: {note.message}\n")


@contextmanager
def reading(model: str | None) -> Iterator[None]:
    """A block in which a model is read. It shows progress, and suggests a command if a name that no source knows resembles one."""
    try:
        with progress():
            yield
    except (ModelNotFoundError, HubError) as error:
        error.hint = _command_meant(model or "") or error.hint
        raise


def progress() -> AbstractContextManager[None]:
    """A block in which a terminal shows progress."""
    if sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    from hwcalc.cli.progress import shown

    return shown(sys.stderr)


def _command_meant(model: str) -> str:
    """A hint if an unknown MODEL looks like a misspelled command, such as ``engine`` for ``engines``."""
    from difflib import get_close_matches

    near = get_close_matches(model, COMMANDS, n=1, cutoff=0.75)
    return f"Did you mean the command: kvplan {near[0]}" if near else ""


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    """``["cache=static", "nbits=4"]`` as a dict.

    Raises :class:`~hwcalc.errors.UsageError` if a name has no value or is given twice.
    """
    out: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not (name and sign and value):
            raise UsageError(
                f"--engine-option {shown(pair, 40)} has no name or no value.", hint="Write: --engine-option NAME=VALUE"
            )
        if name in out:
            raise UsageError(f"--engine-option {brief(name, 40)} is given twice.", hint="Give it once.")
        out[name] = value
    return out

"""The arguments and options that commands share, as data from which Typer's parameters and the help are made."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from hwcalc.cli.output import FORMATS, Answer, on_screen, shown_progress, write
from hwcalc.errors import UsageError
from hwcalc.model import Note
from hwcalc.planner.options import GROUPS as PLAN_GROUPS
from hwcalc.planner.options import PlanOption, options_of
from hwcalc.text import brief, shell_word, shown

PANELS: Final = {
    "plan": {
        "plan": "hwcalc.cli.plan",
        "explain": "hwcalc.cli.explain",
        "diff": "hwcalc.cli.compare",
        "compare": "hwcalc.cli.compare",
        "sweep": "hwcalc.cli.sweep",
        "strategies": "hwcalc.cli.explain",
        "launch": "hwcalc.cli.launch",
    },
    "hardware": {
        "recommend": "hwcalc.cli.compare",
        "fit": "hwcalc.cli.compare",
        "fleet": "hwcalc.cli.fleet",
        "swap": "hwcalc.cli.compare",
        "disaggregate": "hwcalc.cli.apart",
    },
    "traffic": {
        "workload": "hwcalc.cli.workload",
        "simulate": "hwcalc.cli.simulate",
        "tune": "hwcalc.cli.simulate",
    },
    "pictures": {
        "plot": "hwcalc.cli.plan",
        "explore": "hwcalc.cli.sweep",
    },
    "proof": {
        "check": "hwcalc.cli.check",
        "reconcile": "hwcalc.cli.measure",
        "probe": "hwcalc.cli.measure",
    },
    "lists": {
        "models": "hwcalc.cli.lists",
        "gpus": "hwcalc.cli.hardware",
        "instances": "hwcalc.cli.hardware",
        "engines": "hwcalc.cli.lists",
        "dtypes": "hwcalc.cli.lists",
        "policies": "hwcalc.cli.lists",
    },
    "more": {
        "help": "hwcalc.cli.commands",
        "version": "hwcalc.cli.commands",
        "schema": "hwcalc.cli.lists",
        "mcp": "hwcalc.cli.agents",
    },
}
"""What commands are for -> their names -> the module in which the :class:`Command` of each is. A new command is a function and a line here."""
COMMANDS: Final = {name: module for panel in PANELS.values() for name, module in panel.items()}
"""Name -> the module of each command, in the order of the help."""
DEFAULT: Final = "plan"
"""The command of a line that names none; its first word is a MODEL."""
FOREIGN_COMMANDS: Final[Mapping[str, str]] = {
    "calculate": "plan",
    "estimate": "plan",
    "memory": "plan",
    "layers": "explain",
    "buy": "recommend",
    "rent": "recommend",
    "price": "recommend",
    "prices": "recommend",
    "cost": "recommend",
    "draw": "plot",
    "list": "models",
    "search": "models",
    "hardware": "gpus",
    "cards": "gpus",
    "clouds": "instances",
    "grid": "sweep",
    "verify": "check",
    "usage": "help",
}
"""Other programs' names of commands -> ours."""
GROUPS: Final = ("log", "probe", "check", *PLAN_GROUPS, "output")
"""The groups of options in the help of a command, in their order."""
_NEAR: Final = 0.75
"""Likeness of a word to the command that is probably meant."""


class Option(Struct, frozen=True):
    """One option; without ``flags``, a positional argument.

    ``name`` is the keyword of the command's ``run``; ``complete`` names the function of :mod:`hwcalc.cli.completion` that lists its
    values; ``group`` is one of :data:`GROUPS`. ``kind`` is ``text``, ``flag`` or ``list`` (an option that may be repeated, or an
    argument of any number of words).
    """

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    kind: str = "text"
    default: str | None = None
    complete: str | None = None
    required: bool = False
    group: str = "output"
    short: str = ""
    """A few words for the short help, of an option that most people need."""
    bare: str = ""
    """The value of an option that may stand alone; else a number follows it."""


class Example(Struct, frozen=True):
    """An example in the help of a command: a whole line, and what it answers."""

    says: str
    line: str


class Command(Struct, frozen=True):
    """A command. The docstring of its function is the help: first the line for the list of commands."""

    run: Callable[..., Answer]
    options: tuple[Option, ...]
    examples: tuple[Example, ...]


def command(options: tuple[Option, ...], examples: Mapping[str, str]) -> Callable[[Callable[..., Answer]], Command]:
    """A decorator that makes a command of a function, whose keywords are the options. ``examples``: what each answers -> the line."""
    return lambda run: Command(run=run, options=options, examples=tuple(Example(*one) for one in examples.items()))


def find_command(name: str) -> Command:
    """The command of this name, from its module."""
    found: Command = getattr(import_module(COMMANDS[name]), name)
    return found


MODEL: Final = Option(
    "model",
    (),
    "MODEL",
    "Hub id (org/name, org/name@revision), folder, config.json, GGUF file (path, org/name:Q4_K_M, ollama:NAME), or - for standard input.",
    complete="models",
    required=True,
    short="Hub id, folder, config.json, GGUF file or -.",
)
OPTIONAL_MODEL: Final = replace(MODEL, required=False)
"""The MODEL of commands that can do with the bare equation: dimensions alone."""
MODELS: Final = Option(
    "models",
    (),
    "MODEL...",
    "Ids, folders or config.json files, patterns of catalog ids ('Qwen/*'), or @FILE with one model on each line.",
    "list",
    complete="models",
)
"""The models of a command that puts several side by side."""


def format_help(formats: Iterable[str]) -> str:
    """The help of ``--format``; the first format is the default."""
    first, *others, last = formats
    return f"{', '.join((first, *others))} or {last}. Default: {first}."


OUTPUT: Final = (
    Option("json", ("--json",), "", "One JSON document on standard output, on errors too.", "flag", short="One JSON document."),
    Option("format_", ("--format",), "F", format_help(FORMATS), complete="formats"),
    Option("quiet", ("--quiet", "-q"), "", "No notes and hints, only the numbers and warnings.", "flag"),
    Option(
        "color",
        ("--color",),
        "WHEN",
        "auto, always or never. auto, the default: NO_COLOR, then FORCE_COLOR, then whether it is a terminal.",
        complete="colors",
    ),
    Option("no_color", ("--no-color",), "", "The same as --color never.", "flag"),
)
DETAIL: Final = (
    Option("brief", ("--brief",), "", "Only the answer, in a few lines.", "flag"),
    Option(
        "verbose",
        ("-v", "--verbose"),
        "",
        "Everything: all notes, every tensor.",
        "flag",
        short="Everything: pool, layers, notes.",
    ),
)
"""Options of a command whose answer may be shorter or longer. JSON and CSV are always whole."""


def plan_options(command: str) -> tuple[Option, ...]:
    """The options of a plan that a command takes, from the table of options."""
    options = []
    for row in options_of(command):
        listed = command in row.lists
        kind = "list" if listed or row.type == "pairs" else "flag" if row.type == "flag" else "text"
        metavar, complete = f"{row.metavar},..." if listed else row.metavar, row.completes.get(command, row.complete)
        help_, short = row.helps.get(command, row.help), row.shorts.get(command, row.short)
        options.append(
            Option(row.name, row.spellings, metavar, help_, kind=kind, complete=complete, group=row.group, short=short)
        )
    return tuple(options)


def grouped(group: str, *options: Option) -> tuple[Option, ...]:
    """Options of a command, in one group of its help."""
    return tuple(replace(option, group=group) for option in options)


PLANNING: Final = (OPTIONAL_MODEL, *plan_options(DEFAULT), *OUTPUT)
"""The arguments and options of a command that plans one model."""


def given_options(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plan that were given to a command, as keywords of the library: ``["nbits=4"]`` as a dict."""
    given = {row.name: values[row.name] for row in options_of(command) if values.get(row.name) not in (None, [], False)}
    for row in options_of(command):
        if row.type == "pairs" and row.name in given:
            given[row.name] = _pairs(row, given[row.name])
    return given


_PAIR: Final = {"K=V": "NAME=VALUE", "NAME=USD": "h100=2.50/h"}
"""What to write for a pair, by its word in the help."""


def _pairs(row: PlanOption, given: Sequence[str]) -> dict[str, str]:
    """The values of an option that is given by name: ``["nbits=4"]`` as a dict."""
    pairs: dict[str, str] = {}
    flag = row.spellings[0]
    for pair in given:
        name, sign, value = pair.partition("=")
        if not (name and sign and value):
            raise UsageError(f"{flag} {shown(pair, 40)} has no name or no value.", hint=f"Write: {flag} {_PAIR[row.metavar]}")
        if name in pairs:
            raise UsageError(f"{flag} {brief(name, 40)} is given twice.", hint="Give it once.")
        pairs[name] = value
    return pairs


def typed_again(command: str, model: str | None, values: Mapping[str, Any]) -> str:
    """The command line of a plan without secrets, to which words can be added; empty if the model looks like an option.

    >>> typed_again("plan", "gpt2", {row.name: None for row in options_of("plan")} | {"seq": "32k", "token": "t"})
    'kvplan gpt2 --seq 32k'
    """
    if model and model.startswith("-") and model != "-":
        return ""
    words = ["kvplan", *([] if command == DEFAULT else [command]), *([model] if model else [])]
    flags = {row.name: row.spellings[0] for row in options_of(command) if row.type != "secret"}
    if command != DEFAULT:
        # Those of the command itself, such as --budget: a plan's are about what it prints.
        rows = {row.name for row in options_of(command)}
        own = (option for option in find_command(command).options if option.flags and option not in OUTPUT)
        flags |= {option.name: option.flags[0] for option in own if option.name not in rows}
    for name, flag in flags.items():
        value = values.get(name)
        if value in (None, [], False):
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [flag] if one is True else [flag, one]
    return " ".join(map(shell_word, words))


def say_unreachable(notes: Iterable[Note]) -> None:
    """Report on standard error if the Hub could not be reached, which the numbers alone do not show."""
    for note in notes:
        if note.code == "hub-unreachable":
            write(sys.stderr, on_screen(f"kvplan: {note.message}") + "\n")


@contextmanager
def reading(model: str | None, command: str = "") -> Iterator[None]:
    """A context manager for reading a model, which shows progress. A hint without a model names the ``command``.

    A word that is no model but resembles a command raises :class:`~hwcalc.errors.UsageError`, before any network is asked.
    """
    if model and command_meant(model):
        refuse_command(model)
    try:
        with progress():
            yield
    except UsageError as error:
        if model is None and command:
            hint = error.hint.replace("kvplan MODEL", f"kvplan {command} MODEL")
            error.hint = hint.replace("kvplan --", f"kvplan {command} --")
        raise


def progress() -> AbstractContextManager[None]:
    """A context manager that shows progress on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    return shown_progress(sys.stderr)


def command_meant(word: str) -> str:
    """The command that a word resembles which is neither a command nor a model, such as ``engine`` for ``engines``; else empty."""
    if word in COMMANDS or not word.isascii() or not word.replace("-", "").isalpha():
        return ""
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), (*COMMANDS, *FOREIGN_COMMANDS), n=1, cutoff=_NEAR)
    if not near or os.path.lexists(word):
        return ""
    from hwcalc.sources.listing import known_ids

    return "" if word in known_ids() else FOREIGN_COMMANDS.get(near[0], near[0])


def refuse_command(word: str, others: Sequence[str] = ()) -> NoReturn:
    """Raise :class:`~hwcalc.errors.UsageError` for a mistyped command. The hint is the whole line as it was meant."""
    line = " ".join(shell_word(each) for each in ("kvplan", command_meant(word), *others))
    raise UsageError(f"there is no command or model {shown(word, 40)}.", hint=f"Did you mean: {line}")

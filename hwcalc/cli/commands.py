"""The command line as Typer reads it: one application, whose commands are loaded by name; and its help."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace
from typer.core import TyperCommand, TyperGroup

from hwcalc._version import __version__
from hwcalc.cli import completion
from hwcalc.cli.line import aliases, aliases_of, with_command
from hwcalc.cli.options import (
    COMMANDS,
    DEFAULT,
    GROUPS,
    PANELS,
    Example,
    Option,
    command,
    command_meant,
    find_command,
    typed_again,
)
from hwcalc.cli.output import Answer, answer_lists, colored, output_width
from hwcalc.errors import KvplanError, UsageError
from hwcalc.planner.options import DIMENSIONS
from hwcalc.planner.options import OPTIONS as PLAN_OPTIONS
from hwcalc.report.text import broken, filled, together
from hwcalc.text import shell_word, shown

_HELP = """Say how much memory a language model takes when it is served.

It is computed from the config alone, layer by layer, as each engine reserves it.

MODEL is a Hub id, a folder, a config.json, a GGUF file, or - for standard input. `kvplan MODEL` is `kvplan plan MODEL`.
"""
_WIDTH = 100
"""Columns of help where the output has no width of its own."""
_NARROWEST = 50
_OF_ONE_MODEL: Final = frozenset({"plan", "explain", "recommend", "strategies"})
"""The commands whose line is a MODEL and options of a plan. An error of another names a line of ``plan``, or of ``compare`` where values may be lists."""
_TYPES: dict[str, Any] = {"text": str | None, "flag": bool, "list": list[str] | None}


class Root(TyperGroup):
    """The ``kvplan`` command itself. It loads commands by name, and reads a line without a command as ``kvplan plan``."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command's module and build the command."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _command(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of a line, with the options that the line may have: to define all of them takes longer than to plan.

        A shell that completes the line may go on with any option.
        """
        name, *words = args
        if name in COMMANDS and name not in self.commands:
            self.commands[name] = _command(name, None if ctx.resilient_parsing else words)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command first: ``--seq 32k MODEL`` becomes ``plan --seq 32k MODEL``."""
        return super().parse_args(ctx, with_command(args))

    def get_help(self, ctx: Any) -> str:
        """Questions and commands on one screen, or all of the help where that is asked for."""
        if ctx.find_root().obj == WHOLE:
            return super().get_help(ctx)
        return short_root_help(ctx.terminal_width or _WIDTH)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The questions that people ask with the command of each, and all commands, uncut."""
        _write_examples(formatter, "Questions", QUESTIONS)
        for title, names in PANELS.items():
            with formatter.section(title.capitalize()):
                _write_columns(formatter, [(name, summary(name)) for name in names], max(map(len, COMMANDS)))
        formatter.write_paragraph()
        formatter.write_text("All options of a command, with examples: kvplan help COMMAND --all")

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Commands, and the models and options of ``plan``, because a line may leave the command out."""
        default = self.get_command(ctx, DEFAULT)
        items = super().shell_complete(ctx, incomplete)
        with default.make_context(DEFAULT, [], parent=ctx, resilient_parsing=True) as inner:
            if incomplete.startswith("-"):
                return items + default.shell_complete(inner, incomplete)
            model = next(parameter for parameter in default.params if parameter.param_type_name == "argument")
            return items + model.shell_complete(inner, incomplete)


class ReadOnce(TyperCommand):
    """One command. It refuses an option that is given twice but takes one value; Typer would take the last."""

    def get_help(self, ctx: Any) -> str:
        """The short help, or all of it where that is asked for."""
        if ctx.find_root().obj == WHOLE:
            return super().get_help(ctx)
        width = ctx.find_root().terminal_width
        return short_help(str(self.name), _WIDTH if width is None else width)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, the options by group, and the examples."""
        command = find_command(str(self.name))
        of = {option.name: option.group if option.flags else "arguments" for option in command.options}
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                groups.setdefault(of.get(parameter.name or "", GROUPS[-1]), []).append(record)
        names = [first for rows in groups.values() for first, _ in rows]
        width = max((len(name) for name in names if len(name) <= _WIDEST), default=0)
        for title in ("arguments", *GROUPS):
            if title in groups:
                with formatter.section(title.capitalize()):
                    _write_columns(formatter, groups[title], width)
        _write_examples(formatter, "Examples", command.examples)

    def make_parser(self, ctx: Any) -> Any:
        """The parser of a line, which refuses a single-value option that is given twice."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            parsed = parse(args)
            given: Any = parsed[2]
            # A line that asks for help gets help, whatever else it has.
            if ctx.resilient_parsing or any(one.name == "help" for one in given):
                return parsed
            single = [one for one in given if one.param_type_name == "option" and not one.multiple and not one.is_flag]
            twice = next((one for place, one in enumerate(single) if one in single[:place]), None)
            if twice is None:
                return parsed
            flag = twice.opts[0]
            several = next((row.lists for row in PLAN_OPTIONS if row.name == twice.name), ())
            more = f" Several values side by side: kvplan {several[0]} MODEL {flag} A,B" if several else ""
            raise UsageError(f"{flag} is given twice, and takes one value.", hint=f"Give it once.{more}")

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


def _command(name: str, words: Sequence[str] | None = None) -> Any:
    """Build a command from its module's options, or those that ``words`` have: a function with the signature that Typer reads."""
    found = find_command(name)
    options: Sequence[Option] = found.options
    if words is not None:
        # The arguments, and the options that are among the words; all of them if a word may be an option of another spelling.
        flags = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
        named = [option for option in options if not option.flags or not flags.isdisjoint(option.flags)]
        options = named if flags.issubset(flag for option in named for flag in option.flags) else options
    others = {option.name: _default(option) for option in found.options if option not in options}

    def run(**given: Any) -> Answer:
        values = {**others, **given}
        try:
            result = found.run(**values)
        except KvplanError as error:
            error.hint = _typed(name, values, error)
            raise
        wanted = values.get("no_color") is not None and colored(values.get("color"), no_color=values["no_color"])
        return replace(result, color=True) if wanted and not result.json else result

    # vLLM's names are options that only completion uses: a line is translated before Typer reads it.
    foreign = aliases(options) if "_KVPLAN_COMPLETE" in os.environ else {}
    completed = []
    for number, (spelling, alias) in enumerate(foreign.items()):
        complete = None if alias.knob else alias.option.complete
        completed.append(Option(f"alias_{number}", (spelling,), "N", "", "flag" if alias.value else "text", complete=complete))
    parameters = [_parameter(option) for option in (*options, *completed)]
    run.__doc__ = found.run.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=ReadOnce)(run)
    return typer.main.get_command(app)


def _typed(name: str, values: Mapping[str, Any], error: KvplanError) -> str:
    """The hint of an error about a model, whose command lines repeat what was typed."""
    hint = error.hint
    if name not in _OF_ONE_MODEL:
        name = "compare" if any(name in row.lists for row in PLAN_OPTIONS) else DEFAULT
    # Layers that are written down have the dimensions that were typed already.
    without = {*DIMENSIONS} - {"parameters"} | {"assume"}
    for given, left_out in ((error.command, error.left_out), (error.written, without)):
        if given is None:
            continue
        line, options = given
        # Of several models the one that is not known.
        model = None if given is error.written else shlex.split(line)[1]
        typed = {key: None if key in left_out else value for key, value in values.items()}
        # What was typed counts before the file's own length and format.
        added = {key: value for key, value in options.items() if key == "assume" or typed.get(key) in (None, [])}
        hint = hint.replace(line, typed_again(name, model, {**typed, **added}) or line)
    return hint


def _parameter(option: Option) -> inspect.Parameter:
    complete = getattr(completion, option.complete) if option.complete else None
    type_ = str if option.required else _TYPES[option.kind]
    if option.flags:
        flag = option.kind == "flag"
        info = typer.Option(
            *option.flags,
            metavar=None if flag else option.metavar,
            help=f"{option.help} {aliases_of(option)}".rstrip(),
            show_default=False,
            autocompletion=complete,
        )
    else:
        info = typer.Argument(metavar=option.metavar, help=option.help, show_default=False, autocompletion=complete)
    default = inspect.Parameter.empty if option.required else _default(option)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, info])


def _default(option: Option) -> str | bool | None:
    return False if option.kind == "flag" else option.default


def root() -> Any:
    """The whole command line as a Typer command. Its help has lines as wide as the output."""
    columns = _WIDTH
    if os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty()):
        columns = max(min(get_terminal_size().columns, _WIDTH) - 2, _NARROWEST)
    app = typer.Typer(
        cls=Root,
        help=_HELP,
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": columns},
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def _root(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False
) -> None:
    if version:
        typer.echo(f"kvplan {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


WHOLE: Final = "whole"
"""The object of a context where help with all options is wanted."""
ALL_OPTIONS: Final = "--help-all"
USUAL: Final = {
    "fit": ("installed", "min_speed", "limit"),
    "recommend": ("gpu", "category", "max_gpus", "sort"),
    "check": ("files", "lock", "baseline", "format_", "output", "example"),
    "compare": ("tp",),
    "sweep": ("output", "format_"),
    "simulate": ("trace", "requests", "ttft", "itl", "replicas", "compare"),
    "tune": ("trace", "ttft", "itl", "share", "compare"),
    "explore": ("output", "open", "serve"),
    "plot": ("kind", "output"),
    "probe": ("device", "scale", "receipt"),
    "disaggregate": ("decode_gpu", "total_gpus", "link"),
    "strategies": ("lengths", "block_size"),
    "swap": ("most_awake", "disk"),
    "launch": ("sets", "env_file"),
    "workload": ("requests", "arrival", "trace_format", "block_size"),
}
"""The options of a command's own that its short help has, beside those with a short text."""
_MOST_SHOWN: Final = 11
"""A command with no more options shows all of them."""


def short_help(name: str, width: int) -> str:
    """The help of a command on one screen: its usual options by group, two examples, and how to see more."""
    found = find_command(name)
    arguments = " ".join(option.metavar for option in found.options if not option.flags)
    few = sum(bool(option.flags) for option in found.options) <= _MOST_SHOWN
    shown = [option for option in found.options if few or not option.flags or option.short or option.name in USUAL.get(name, ())]
    rows: list[tuple[str, str, str]] = []
    for group in ("", *GROUPS):
        for option in shown:
            if (option.group if option.flags else "") == group:
                spelled = ", ".join(dict.fromkeys((option.flags[0], option.flags[-1]))) if option.flags else ""
                text = option.short or re.split(r"(?<!\.)\. ", option.help)[0].removesuffix(".") + "."
                rows.append((group, " ".join(filter(None, (spelled, option.metavar))), text))
    groups = max((len(group) for group, *_ in rows), default=0)
    widest = min(_WIDEST, max((len(second) for _, second, _ in rows), default=0))
    lines = [f"Usage: kvplan {name} {arguments} [OPTIONS]".replace("  ", " "), ""]
    lines += [*(f"  {line}" for line in broken(summary(name), width - 2)), ""]
    before = ""
    for group, second, text in rows:
        room = max(width - groups - widest - 6, 20)
        first, *others = broken(text, room)
        title = group if group != before else ""
        lines.append(f"  {title:<{groups}}  {second:<{widest}}  {first}")
        lines += [f"  {'':<{groups}}  {'':<{widest}}  {other}" for other in others]
        before = group
    lines += ["", *(f"  {example.line}" for example in found.examples[:2])]
    more = "" if few else f"All options: kvplan help {name} --all. "
    return "\n".join([*lines, "", f"{more}A word explained: kvplan help pool"])


def help_of(command: str | None, *, whole: bool) -> str:
    """The help of kvplan, or of a command, as ``--help`` prints it, or as ``--help-all`` does."""
    top = root()
    with top.make_context("kvplan", [], resilient_parsing=True, obj=WHOLE if whole else None) as context:
        if command is None:
            return f"{top.get_help(context)}\n"
        one = top.get_command(context, command)
        with one.make_context(command, [], parent=context, resilient_parsing=True) as inner:
            return f"{one.get_help(inner)}\n"


def short_root_help(width: int) -> str:
    """The questions that kvplan answers, and its commands, on one screen."""
    about = broken(_HELP.partition("\n")[0], width - 2)
    lines = ["Usage: kvplan MODEL [OPTIONS], or kvplan COMMAND ...", "", *(f"  {line}" for line in about), ""]
    says = max(len(question.says) for question in QUESTIONS)
    for question in QUESTIONS:
        line = question.line.replace("Qwen/Qwen3-8B", "MODEL")
        lines.append(f"  {question.says:<{says}}  {line}" if says + len(line) + 4 <= width else f"  {question.says}\n    {line}")
    usual = " ".join(option.flags[0] for option in find_command(DEFAULT).options if option.short and option.flags)
    paragraphs = {
        "MODEL": "a Hub id, folder, config.json or GGUF file; - is standard input",
        "options": f"{usual}: kvplan help plan",
        **{title: ", ".join(names) for title, names in PANELS.items()},
        "see": f"kvplan help COMMAND; kvplan help WORD; kvplan {ALL_OPTIONS}",
    }
    lines.append("")
    for title, text in paragraphs.items():
        first, *others = broken(text, width - 12)
        lines += [f"  {title:<8}  {first}", *(f"{'':<12}{other}" for other in others)]
    return "\n".join(lines)


QUESTIONS: Final = (
    Example("How much memory does it take?", "kvplan Qwen/Qwen3-8B --seq 32k"),
    Example("Does it fit, how many users?", "kvplan Qwen/Qwen3-8B --engine vllm --gpu l4"),
    Example("Where is every byte from?", "kvplan explain Qwen/Qwen3-8B"),
    Example("Which models run on my card?", "kvplan fit --gpu rtx-4060-ti --seq 16k"),
    Example("What should I buy or rent?", "kvplan recommend Qwen/Qwen3-8B --seq 32k --users 8"),
    Example("Which model, format or GPU?", "kvplan compare Qwen/Qwen3-8B --gpu l4,l40s"),
    Example("Will the next commit still fit?", "kvplan check kvplan.yaml"),
)
"""Questions of most people, with commands."""
_HYPHEN: Final = "\N{NON-BREAKING HYPHEN}"
"""Stands for the hyphens of options while lines are broken, which would else end behind one."""
_OPTION: Final = r"(?<![\w-])--?[a-z][a-z-]+"
_WIDEST: Final = 26
"""The most columns of the options' names; longer ones have a line of their own."""


def summary(command: str) -> str:
    """A command in a line: the first sentence of its ``run``."""
    first: str = (find_command(command).run.__doc__ or "").strip().partition("\n")[0]
    return first.partition(". ")[0].rstrip(".") + "."


def _write_columns(formatter: Any, rows: Sequence[tuple[str, str]], width: int) -> None:
    """Two columns, of the same widths in all groups."""
    (first, text), *others = [(name, re.sub(_OPTION, lambda match: match[0].replace("-", _HYPHEN), said)) for name, said in rows]
    formatter.write_dl([(first.ljust(width), text), *others], col_max=_WIDEST)
    formatter.buffer[:] = [piece.replace(_HYPHEN, "-") for piece in formatter.buffer]


def _write_examples(formatter: Any, title: str, examples: Sequence[Example]) -> None:
    if not examples:
        return
    with formatter.section(title):
        for example in examples:
            formatter.write(f"{'':{formatter.current_indent}}{example.says}\n")
            formatter.write(f"{'':{formatter.current_indent + 2}}{example.line}\n")


@command(
    (
        Option(
            "words",
            (),
            "[COMMAND | WORD]",
            "A command, or a word that kvplan prints: pool, fullest GPU, tp, q4_k_m.",
            "list",
            complete="commands",
        ),
        Option("every", ("--all",), "", "All options of the command.", "flag"),
    ),
    {
        "What can it do?": "kvplan help",
        "The usual options of a plan, then all": "kvplan help plan --all",
        "What does a word mean?": "kvplan help fullest GPU",
    },
)
def help(*, words: list[str] | None, every: bool) -> Answer:  # noqa: A001 - the command's name
    """Print this help, that of a command, or what a word means."""
    name = " ".join(words or ())
    if not name or name in COMMANDS:
        return Answer(text=help_of(name or None, whole=every))
    columns = min(output_width(), _WIDTH)
    if name in WORDS:
        return Answer(text=_all_words(columns))
    if said := _word_explained(name, columns):
        return Answer(text=said)
    from hwcalc.report.cache_format import cache_text
    from hwcalc.report.weight_format import format_text

    # Some formats are those of weights and of a cache.
    if said := "\n".join(filter(None, (format_text(name, columns), cache_text(name, columns)))):
        return Answer(text=said)
    near = command_meant(name) or _word_meant(name)
    said = _listed_by(name) or (f"Did you mean: kvplan help {near}" if near else _flag_meant(name))
    hint = said or f"Commands: {', '.join(COMMANDS)}. Words: kvplan help words."
    raise UsageError(f"there is no command or word {shown(name, 40)}.", hint=hint)


def _listed_by(name: str) -> str:
    """The hint for the name of an engine, a dtype, a policy, an accelerator, an instance or a document; else empty."""
    for listing in ("engines", "dtypes", "policies", "gpus", "instances", "schema"):
        complete = next(option.complete for option in find_command(listing).options if not option.flags)
        if complete and name.lower() in getattr(completion, complete)(name.lower()):
            return f"See: kvplan {listing} {shell_word(name)}"
    return ""


def _flag_meant(name: str) -> str:
    """The hint for an option of another program, with its hyphens or without; else empty."""
    from hwcalc.cli.line import meant

    word = name.lstrip("-").replace(" ", "-")
    options = find_command(DEFAULT).options
    return next(filter(None, (meant(f"{hyphens}{word}", DEFAULT, options) for hyphens in ("--", "-"))), "")


WORDS: Final = frozenset({"words", "terms", "glossary"})
"""Names of the list of all words."""


def _word_explained(name: str, columns: int) -> str:
    """The meaning of a word or an option, with the options and JSON keys that belong to it; empty for an unknown one."""
    from hwcalc.cli.line import aliases
    from hwcalc.planner.options import OTHER_NAMES, ROWS
    from hwcalc.profiles.glossary import find_term, meaning_of

    flag = re.sub(r"[ _]", "-", f"--{name.lower().lstrip('-')}")
    option = flag.removeprefix("--").replace("-", "_")
    alias = aliases(find_command(DEFAULT).options).get(flag)
    knob = alias.knob if alias is not None and alias.knob else option
    # vLLM's --dtype is that of the arithmetic: the name is kvplan's first.
    option = OTHER_NAMES.get(option, option)
    option = alias.option.name if option not in ROWS and alias is not None and not alias.knob else option
    term = find_term(name)
    lines = []
    if term is not None:
        also = f" (also: {', '.join(term.also)})" if term.also else ""
        lines += [filled(f"{term.word}{also}", columns), *(f"  {line}" for line in broken(term.text, columns - 2)), ""]
    for each in dict.fromkeys((*(term.options if term is not None else ()), *((option,) if option in ROWS else ()))):
        row = ROWS[each]
        lines += [
            f"  {', '.join(row.spellings)} {row.metavar}".rstrip(),
            *(f"    {line}" for line in broken(row.help, columns - 4)),
        ]
    if not lines:
        lines = _knob_explained(knob, columns)
    if meaning := meaning_of(name):
        lines += [filled(f"  {name} in a formula: {meaning}", columns)]
    if term is not None:
        lines += [f"  in JSON: {term.key}"] if term.key else []
        lines += [filled(f"  see also: {', '.join(term.see)}", columns)] if term.see else []
    return "\n".join(lines).rstrip() + "\n" if lines else ""


def _knob_explained(name: str, columns: int) -> list[str]:
    """Lines on an option of engines, by its own name: what it means to each that has it, and its default."""
    from hwcalc.engines import ENGINES, find_engine

    known = [(engine, row) for engine in ENGINES if (row := find_engine(engine)[0].options.get(name)) is not None]
    lines = [f"--engine-option {name}=VALUE"] if known else []
    for engine, row in known:
        lines += [f"  {line}" for line in broken(f"{engine}: {row.help}. Default: {row.default}.", columns - 2)]
    return lines


def _all_words(columns: int) -> str:
    """All words, group by group."""
    from hwcalc.profiles.glossary import groups, terms

    parts: list[str] = []
    for group, title in groups().items():
        words = ", ".join(together(term.word) for term in terms() if term.group == group)
        parts += [title, filled(f"  {words}", columns)]
    return "\n".join([*parts, "", "What one of them means: kvplan help WORD"]) + "\n"


def _word_meant(name: str) -> str:
    """The word that a mistyped one resembles; else empty."""
    from difflib import get_close_matches

    from hwcalc.profiles.glossary import spellings

    return next(iter(get_close_matches(name.lower(), spellings(), n=1, cutoff=0.75)), "")


@command(
    (Option("json", ("--json",), "", "One JSON document on standard output, on errors too.", "flag"),),
    {"The version": "kvplan version", "The same, as an option": "kvplan --version", "For a script": "kvplan version --json"},
)
def version(*, json: bool, **_others: Any) -> Answer:
    """Print the version."""
    if json:
        return answer_lists(kvplan_version=__version__)
    return Answer(text=f"kvplan {__version__}\n")

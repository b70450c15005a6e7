"""The command line as Typer reads it: one application, whose commands are loaded by name."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hwcalc.cli import completion
from hwcalc.cli.foreign import Alias, aliases, aliases_of
from hwcalc.cli.help_text import write_command, write_root
from hwcalc.cli.line import with_command
from hwcalc.cli.options import COMMANDS, DEFAULT, Option, run_command
from hwcalc.errors import UsageError
from hwcalc.planner.options import OPTIONS as PLAN_OPTIONS

__all__ = ["help_of", "root"]

_HELP = """How much memory a language model's cache takes, exactly: from its config alone, layer by layer, engine by engine.

MODEL is a Hub id, a folder, a config.json, a GGUF file, or - for standard input. `kvplan MODEL` is `kvplan plan MODEL`.
"""
_WIDTH = 100
"""Columns of help where the output has no width of its own."""
_NARROWEST = 50
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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command first: ``--seq 32k MODEL`` becomes ``plan --seq 32k MODEL``."""
        return super().parse_args(ctx, with_command(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The questions that people ask with the command of each, and all commands."""
        write_root(formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Commands, and the models and options of ``plan``, because a line may leave the command out."""
        default = self.get_command(ctx, DEFAULT)
        items = super().shell_complete(ctx, incomplete)
        with default.make_context(DEFAULT, [], parent=ctx, resilient_parsing=True) as inner:
            if incomplete.startswith("-"):
                return items + default.shell_complete(inner, incomplete)
            model = next(parameter for parameter in default.params if parameter.param_type_name == "argument")
            return items + model.shell_complete(inner, incomplete)


class Command(TyperCommand):
    """One command. It refuses an option that is given twice but takes one value; Typer would take the last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, the options by group, and the examples."""
        rows = [(parameter.name or "", parameter.get_help_record(ctx)) for parameter in self.get_params(ctx)]
        write_command(formatter, import_module(COMMANDS[str(self.name)]), [(name, record) for name, record in rows if record])

    def make_parser(self, ctx: Any) -> Any:
        """The parser of a line, which refuses a single-value option that is given twice."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            parsed = parse(args)
            if not ctx.resilient_parsing:
                _check_once(parsed[2])
            return parsed

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser


def _check_once(order: Sequence[Any]) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if ``order``, the parameters as given, has a single-value option twice.

    A line that asks for help gets help, whatever else it has.
    """
    if any(one.name == "help" for one in order):
        return
    single = [one for one in order if one.param_type_name == "option" and not one.multiple and not one.is_flag]
    twice = next((one for place, one in enumerate(single) if one in single[:place]), None)
    if twice is None:
        return
    flag = twice.opts[0]
    several = next((row.lists for row in PLAN_OPTIONS if row.name == twice.name), ())
    hint = f"Give it once. Several values side by side: kvplan {several[0]} MODEL {flag} A,B" if several else "Give it once."
    raise UsageError(f"{flag} is given twice, and takes one value.", hint=hint)


def _command(name: str) -> Any:
    """Build a command from its module's options: a function with the signature that Typer reads."""
    module = import_module(COMMANDS[name])

    def run(**values: Any) -> Any:
        return run_command(module, values)

    parameters = [_parameter(option) for option in (*module.OPTIONS, *_completed(module.OPTIONS))]
    run.__doc__ = module.run.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=Command)(run)
    return typer.main.get_command(app)


def _completed(options: Sequence[Option]) -> list[Option]:
    """The options, and vLLM's names as options that only completion uses: a line is translated before Typer reads it."""
    if "_KVPLAN_COMPLETE" not in os.environ:
        return []
    return [
        Option(f"alias_{number}", (spelling,), "N", "", "flag" if alias.value else "text", complete=_completion_of(alias))
        for number, (spelling, alias) in enumerate(aliases(options).items())
    ]


def _completion_of(alias: Alias) -> str | None:
    return None if alias.knob else alias.option.complete


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
    default = inspect.Parameter.empty if option.required else False if option.kind == "flag" else option.default
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, info])


def root(width: int | None = None) -> Any:
    """The whole command line as a Typer command. Its help has lines of ``width`` characters; by default those of the output."""
    app = typer.Typer(
        cls=Root,
        help=_HELP,
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": line_width() if width is None else width,
        },
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def _root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from hwcalc._version import __version__

        typer.echo(f"kvplan {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def help_of(command: str | None, width: int | None = None) -> str:
    """The help of kvplan, or of a command, as ``--help`` prints it; its lines have ``width`` characters, by default those of the output."""
    top = root(width)
    with top.make_context("kvplan", [], resilient_parsing=True) as context:
        if command is None:
            return f"{top.get_help(context)}\n"
        one = top.get_command(context, command)
        with one.make_context(command, [], parent=context, resilient_parsing=True) as inner:
            return f"{one.get_help(inner)}\n"


def line_width() -> int:
    """Characters of a line of help, as Typer counts them."""
    columns = _WIDTH
    if os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty()):
        columns = max(min(get_terminal_size().columns, _WIDTH) - 2, _NARROWEST)
    return columns

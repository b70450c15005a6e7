"""``kvplan plan``: the cache of one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.cli.options import (
    DETAIL,
    PLANNING,
    Example,
    Option,
    format_help,
    given_options,
    reading,
    say_unreachable,
    typed_again,
    view_of,
)
from hwcalc.cli.output import Answer, answer
from hwcalc.engines import ALL
from hwcalc.errors import UsageError
from hwcalc.report.plan import FORMATS, plan_report

__all__ = ["EXAMPLES", "OPTIONS", "run"]

OPTIONS = (
    *(
        option._replace(help=format_help(FORMATS), complete="plan_formats") if option.name == "format_" else option
        for option in PLANNING
    ),
    *DETAIL,
    Option(
        "emit",
        ("--emit",),
        "E",
        "Print the engine's own command line of this plan instead: any engine but reference and transformers; ollama: a Modelfile.",
        complete="emitters",
    ),
    Option(
        "plot", ("--plot",), "", "Draw memory against length below the table. Needs plotext: pip install 'hwcalc[plot]'.", "flag"
    ),
)
EXAMPLES: Final = (
    Example("How much memory does it take?", "kvplan Qwen/Qwen3-8B --seq 32k"),
    Example("Can one L4 serve it, how long, how many at once?", "kvplan Qwen/Qwen3-8B --engine vllm --gpu l4 --seq 16k"),
    Example(
        "A 72B model for 20 users on four H100",
        "kvplan Qwen/Qwen2.5-72B --engine vllm --gpu h100 -tp 4 --seq 4k --batch 20",
    ),
)


def _side_by_side(model: str | None, options: Mapping[str, Any], *, emit: str | None, plot: bool) -> Answer:
    """One row for each engine, as ``kvplan compare`` gives it of one model."""
    from hwcalc.cli import compare

    shared = {option.name for option in compare.OPTIONS}
    given = {
        "emit": emit is not None,
        "plot": plot,
        **{name: value not in (None, False, (), "") for name, value in options.items()},
    }
    for option in OPTIONS:
        if option.name not in {"model", *shared} and given.get(option.name):
            raise UsageError(
                f"{option.flags[-1]} is about the plan of one engine, and --engine {ALL} is every one.",
                hint="Name one: --engine vllm",
            )
    models = None if model is None else [model]
    return compare.run(models=models, **{name: value for name, value in options.items() if name in shared})


def run(*, model: str | None, emit: str | None, plot: bool, **options: Any) -> Answer:
    """Plan one model: the exact bytes of its cache. Exit status 1 says that it does not fit, or that nobody can say."""
    from hwcalc.library.plan import plan

    if (options.get("engine") or "").strip().lower() == ALL:
        return _side_by_side(model, options, emit=emit, plot=plot)
    if emit is not None and options.get("engine") is None:
        from hwcalc.report.emit import emitted_engine

        options["engine"] = emitted_engine(emit)
    view, given = view_of(**options, formats=FORMATS), given_options("plan", options)
    if plot and model == "-":
        raise UsageError(
            "--plot reads the config again, and standard input is read once.",
            hint="Write it to a file: kvplan config.json --plot",
        )
    if plot and (view.format != "table" or emit is not None):
        raise UsageError(
            "--plot draws below the table only.", hint=f"Leave out {'--emit' if emit else '--plot, or --format and --json'}."
        )
    with reading(model):
        planned = plan(model, **given)
    say_unreachable(planned.notes)
    status = 1 if planned.refutes else 0
    if emit is not None:
        from hwcalc.cli.verdict import why_not
        from hwcalc.report.emit import emitted, emitted_document, remarks_on

        remarks = (*why_not(planned), *remarks_on(planned, emit))
        if view.format == "json":
            from msgspec.structs import replace

            from hwcalc.documents import document_of

            return replace(answer(document_of(emitted_document(planned, emit))), status=status, remarks=remarks)
        return Answer(text=emitted(planned, emit) + "\n", status=status, remarks=remarks)
    command = typed_again("plan", model, options)
    style = {"color": view.color, "width": view.width, "quiet": view.quiet, "detail": view.detail, "command": command}
    text = plan_report(planned, view.format, **style)
    if plot:
        from hwcalc.cli.plot import characters
        from hwcalc.plot.build import picture_of

        text += "\n" + characters(picture_of(model or (), "memory", {**given, "seq": None} if model else given))
    remarks = tuple(f"warning: {note.message}" for note in planned.warnings) if view.format == "csv" else ()
    return Answer(text=text, json=view.format == "json", status=status, remarks=remarks)

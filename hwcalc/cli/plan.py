"""``kvplan plan`` and ``kvplan plot``: the cache of one model, in numbers and as a picture."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hwcalc.cli.options import (
    DETAIL,
    OUTPUT,
    PLANNING,
    Option,
    command,
    format_help,
    given_options,
    plan_options,
    progress,
    reading,
    say_unreachable,
    typed_again,
)
from hwcalc.cli.output import WIDTH, Answer, answer, colored, detail_of, output_lines, output_width, view_of, why_not
from hwcalc.engines import ALL
from hwcalc.errors import UsageError
from hwcalc.report.plan import FORMATS, plan_report
from hwcalc.report.text import PIPED_WIDTH
from hwcalc.text import shell_word, shown

if TYPE_CHECKING:
    from hwcalc.plot.build import Picture


_PLAN = (
    *(
        replace(option, help=format_help(FORMATS), complete="plan_formats") if option.name == "format_" else option
        for option in PLANNING
    ),
    *DETAIL,
    Option(
        "emit",
        ("--emit",),
        "E",
        "Print the engine's own command line of this plan instead: any engine but reference and transformers; ollama: a Modelfile; command: that of --engine. Or its server as a manifest: compose, kubernetes, helm (values of vLLM's production stack).",
        complete="emitters",
        short="The command alone that starts it: vllm.",
    ),
    Option(
        "plot", ("--plot",), "", "Draw memory against length below the table. Needs plotext: pip install 'hwcalc[plot]'.", "flag"
    ),
)


def _side_by_side(model: str | None, options: Mapping[str, Any], *, emit: str | None, plot: bool) -> Answer:
    """One row for each engine, as ``kvplan compare`` gives it of one model."""
    from hwcalc.cli.compare import compare

    shared = {option.name for option in compare.options}
    given = {name for name, value in options.items() if value not in (None, False, (), "")}
    given |= {name for name, value in (("emit", emit is not None), ("plot", plot)) if value}
    for option in _PLAN:
        if option.name in given - {"model", *shared}:
            message = f"{option.flags[-1]} is about the plan of one engine, and --engine {ALL} is every one."
            raise UsageError(message, hint="Name one: --engine vllm")
    models = None if model is None else [model]
    return compare.run(models=models, **{name: value for name, value in options.items() if name in shared})


@command(
    _PLAN,
    {
        "How much memory does it take?": "kvplan Qwen/Qwen3-8B --seq 32k",
        "Can one L4 serve it, how long, how many at once?": "kvplan Qwen/Qwen3-8B --engine vllm --gpu l4 --seq 16k",
        "A 72B model for 20 users on four H100": "kvplan Qwen/Qwen2.5-72B --engine vllm --gpu h100 -tp 4 --seq 4k --users 20",
    },
)
def plan(*, model: str | None, emit: str | None, plot: bool, **options: Any) -> Answer:
    """Plan one model: how much memory it takes, and whether it fits. The exit status is 1 if it does not fit, or if that is not known."""
    from hwcalc.library.plan import plan

    if (options.get("engine") or "").strip().lower() == ALL:
        return _side_by_side(model, options, emit=emit, plot=plot)
    if emit is not None:
        from hwcalc.report.emit import EACH, emitted_engine

        if options.get("engine") is None:
            options["engine"] = emitted_engine(emit)
        elif emit.strip().lower() == EACH:
            emit = emitted_engine(options["engine"].partition("@")[0])
    view, given = view_of(**options, formats=FORMATS), given_options("plan", options)
    if plot and model == "-":
        hint = "Write it to a file: kvplan config.json --plot"
        raise UsageError("--plot reads the config again, and standard input is read once.", hint=hint)
    if plot and (view.format != "table" or emit is not None):
        hint = f"Leave out {'--emit' if emit else '--plot, or --format and --json'}."
        raise UsageError("--plot draws below the table only.", hint=hint)
    with reading(model):
        planned = plan(model, **given)
    say_unreachable(planned.notes)
    status = 1 if planned.refutes else 0
    if emit is not None:
        from hwcalc.report.emit import emitted, emitted_document, manifest_form, remarks_on

        remarks = (*why_not(planned), *remarks_on(planned, emit))
        if view.format == "json":
            return answer(emitted_document(planned, emit), status=status, remarks=remarks)
        # Documents of YAML are parted by lines that a runner would take for its own.
        parted = manifest_form(emit) is not None
        return Answer(text=emitted(planned, emit) + "\n", status=status, remarks=remarks, commands=parted)
    command = typed_again("plan", model, options)
    style = {"color": view.color, "width": view.width, "quiet": view.quiet, "command": command}
    style |= {"lines": output_lines(), "detail": detail_of(view, verdict=planned.fit is not None)}
    text = plan_report(planned, view.format, **style)
    if plot:
        from hwcalc.plot.build import picture_of

        text += "\n" + characters(picture_of(model or (), "memory", {**given, "seq": None} if model else given), color=view.color)
    remarks = tuple(f"warning: {note.message}" for note in planned.warnings) if view.format == "csv" else ()
    return Answer(text=text, json=view.format == "json", status=status, remarks=remarks)


@command(
    (
        Option(
            "models",
            (),
            "MODEL...",
            "Ids, folders or config.json files, GGUF files, patterns of catalog ids ('Qwen/*'), or @FILE. A kind may stand before them: layers MODEL.",
            "list",
            complete="models",
        ),
        *plan_options("plot"),
        Option(
            "kind",
            ("--kind",),
            "K",
            "memory (bytes against length), frontier (most sequences against length), layers, nodes (models on nodes), or cost (dollars a month against users). Default: memory.",
            complete="plot_kinds",
        ),
        Option("scale", ("--scale",), "S", "Axes: linear or log. Default: linear; log for a frontier.", complete="plot_scales"),
        Option("output", ("--output", "-o"), "FILE", "Write to this file: .png, .svg or .pdf. Default: the terminal."),
        *(option for option in OUTPUT if option.name == "quiet"),
    ),
    {
        "At which length is the card full?": "kvplan plot Qwen/Qwen3-8B --engine vllm --gpu l4 -o memory.png",
        "Windows and latents, side by side": "kvplan plot Qwen/Qwen3-8B google/gemma-3-12b-it -o lengths.svg",
        "How many users at which length?": "kvplan plot Qwen/Qwen3-8B --kind frontier --engine vllm --gpu h100 -o users.pdf",
    },
)
def plot(
    *, models: Sequence[str] | None, kind: str | None, scale: str | None, output: str | None, quiet: bool, **options: Any
) -> Answer:
    """Draw memory against length, how many fit, or each layer.

    To a file, or in the terminal.
    """
    given = given_options("plot", options)
    from hwcalc.plot.build import format_of, picture_of
    from hwcalc.plot.series import KINDS

    if kind is None and models and models[0] in KINDS:
        kind, *models = models
    elif kind is None and models:
        _refuse_kind(models, KINDS)
    with progress():
        chosen = None if output is None else format_of(output)
        picture = picture_of(tuple(models or ()), kind or "memory", given, scale)
        data = None if chosen is None else picture.data(chosen)
    if output is None or data is None:
        return Answer(text=characters(picture, color=colored()), color=colored())
    from hwcalc.files import write_file

    write_file(output, data, "--output", read=[name.removeprefix("@") for name in models or ()])
    return Answer(text="", remarks=() if quiet else (*picture.chart.remarks, f"wrote {str(output)!r}: {picture.chart.title}"))


def _refuse_kind(words: Sequence[str], kinds: Collection[str]) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for a first word that is a mistyped kind, or no model and stands before one. No network is asked."""
    from difflib import get_close_matches

    near = get_close_matches(words[0].lower(), kinds, 1)
    if not words[0].isalpha() or not (near or len(words) > 1) or os.path.lexists(words[0]):
        return
    from hwcalc.sources.listing import known_ids

    if words[0] not in known_ids():
        line = " ".join(map(shell_word, ("kvplan", "plot", *(near or ("layers",)), *(words[1:] or ("MODEL",)))))
        hint = f"{'Did you mean' if near else 'Write'}: {line}; kinds: {', '.join(kinds)}"
        raise UsageError(f"there is no kind of picture or model {shown(words[0], 40)}.", hint=hint)


def characters(picture: Picture, *, color: bool) -> str:
    """A picture for standard output: as wide as the terminal, or what fits everywhere where nothing limits it, in the characters that it has."""
    width = output_width()
    try:
        # Lines and corners; else they are written in ASCII.
        "┌─┤".encode((None if sys.stdout is None else sys.stdout.encoding) or "utf-8")
        ascii_only = False
    except (UnicodeEncodeError, LookupError):
        ascii_only = True
    return picture.text(WIDTH if width == PIPED_WIDTH else width, ascii_only=ascii_only, color=color)

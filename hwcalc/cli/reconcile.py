"""``kvplan reconcile``: an engine's own log beside the plan."""

from __future__ import annotations

import sys
from typing import IO, Any, Final

from hwcalc.cli.options import MODEL, OUTPUT, Example, Option, given_options, plan_options, reading, view_of
from hwcalc.cli.output import Answer, answer
from hwcalc.errors import UsageError

__all__ = ["EXAMPLES", "OPTIONS", "run"]

_FIRST: Final = ("engine", "batch")
"""Options that the log may not state come first in the help."""
_PLAN: Final = {option.name: option for option in plan_options("reconcile")}
OPTIONS = (
    MODEL,
    Option(
        "log",
        ("--log",),
        "FILE",
        "The engine's start-up log or its /metrics text, or - for standard input.",
        complete="files",
        group="log",
    ),
    Option(
        "dialect",
        ("--dialect",),
        "D",
        "How to read it: prometheus, or the name of an engine. Default: by its lines.",
        complete="dialects",
        group="log",
    ),
    Option("tolerance", ("--tolerance",), "F", "How far apart estimates may lie: 1%. Default: 1%.", default="1%", group="log"),
    Option(
        "calibrate",
        ("--calibrate",),
        "",
        "Keep the overheads of the log for later plans with this engine and --gpu.",
        "flag",
        group="log",
    ),
    Option("verbose", ("-v", "--verbose"), "", "List the lines about memory that were not understood, without secrets.", "flag"),
    *(_PLAN[name] for name in _FIRST),
    *(option for name, option in _PLAN.items() if name not in _FIRST),
    *OUTPUT,
)
EXAMPLES: Final = (
    Example("Does vLLM's log say what was planned?", "kvplan reconcile meta-llama/Llama-3.1-8B --log vllm.log"),
    Example("On which accelerator it ran", "kvplan reconcile meta-llama/Llama-3.1-8B --log vllm.log --gpu l4"),
    Example("Keep its overheads for later plans", "kvplan reconcile meta-llama/Llama-3.1-8B --log vllm.log --gpu l4 --calibrate"),
)


def run(
    *, model: str, log: str | None, dialect: str | None, tolerance: str, calibrate: bool, verbose: bool, **options: Any
) -> Answer:
    """Compare an engine's own log or metrics with the plan.

    Exit status 1: they differ.
    """
    from hwcalc.reconcile import reconcile

    view, given = view_of(**options), given_options("reconcile", options)
    if log is None:
        raise UsageError("no log is named.", hint="Write: kvplan reconcile MODEL --log FILE, or --log - for standard input.")
    if log == model == "-":
        raise UsageError(
            "standard input can be only one of model and log.", hint="Name the model: kvplan reconcile MODEL --log -"
        )
    with reading(model):
        source = _log_source(log)
        result = reconcile(model, source, dialect=dialect, tolerance=tolerance, calibrate=calibrate, verbose=verbose, **given)
    status = 0 if result.within else 1
    if view.format == "json":
        return Answer(text=answer(result.to_dict()).text, json=True, status=status)
    from hwcalc.report.reconcile import reconcile_csv, reconcile_text, unread_rows, verdict

    # A table with notes has these lines itself.
    unread: tuple[str, ...] = ()
    if view.quiet or view.format == "csv":
        unread = tuple(f"{label}: {line}" if label else line for label, line in unread_rows(result))
    if view.format == "csv":
        if not view.quiet:
            unread += tuple(note.message for note in result.notes if note.code == "lines-unread")
        remarks = () if result.within else (verdict(result),)
        return Answer(text=reconcile_csv(result), status=status, remarks=(*remarks, *unread))
    text = reconcile_text(result, format_=view.format, color=view.color, width=view.width, quiet=view.quiet)
    return Answer(text=text, status=status, remarks=unread)


def _log_source(log: str) -> Any:
    from pathlib import Path

    if log != "-":
        return Path(log)
    stream: IO[bytes] | IO[str] | None = getattr(sys.stdin, "buffer", sys.stdin)
    if stream is None:
        raise UsageError("standard input is closed.", hint="Name a file: --log FILE")
    return stream

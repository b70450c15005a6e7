"""``kvplan simulate`` and ``tune``: a trace replayed on a server, step by step, with one setting or with many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.apart import SERVERS
from hwcalc.cli.options import MODEL, OUTPUT, Option, command, given_options, grouped, plan_options, reading
from hwcalc.cli.output import Answer, formatted, view_of
from hwcalc.cli.parts import OF_PARTS, shared
from hwcalc.cli.workload import OF_TRACE
from hwcalc.errors import UsageError
from hwcalc.text import cut

if TYPE_CHECKING:
    from hwcalc.replay.result import Simulation
    from hwcalc.report.view import View
    from hwcalc.workload.request import Workload

_OWN: Final = grouped(
    "workload",
    Option(
        "clock",
        ("--clock",),
        "C",
        "Unit of arrivals: seconds, or steps, which take no time then. Default: seconds.",
        complete="clocks",
    ),
    Option("step_time", ("--step-time",), "T", "Time of each step: 25ms. Default: what the speed model expects on --gpu."),
    Option(
        "ttft",
        ("--ttft",),
        "T",
        "Limit for the first token, by which goodput is counted: 2s.",
        short="Limit for the first token: 2s.",
    ),
    Option(
        "itl",
        ("--itl",),
        "T",
        "Limit for each further token, on average over a request: 50ms.",
        short="Limit for each further token: 50ms.",
    ),
    Option("e2e", ("--e2e",), "T", "Limit for the whole answer: 30s."),
    Option("replicas", ("--replicas",), "N", "Servers that share the requests. Default: --dp."),
    Option(
        "route",
        ("--route",),
        "R",
        "Which server gets a request: least-requests, round-robin, least-loaded (fewest tokens left) or prefix. Default: least-requests, as vLLM does for --dp.",
        complete="routes",
    ),
)
_APART: Final = tuple(
    replace(
        option,
        help=option.help.replace("what balances", "1 if there are others for tokens or prompts, else all do both"),
        short="",
    )
    for option in SERVERS
)
_COMPARE: Final = grouped(
    "workload",
    Option(
        "compare",
        ("--compare",),
        "K=V,V",
        "Replay with each of these values of a setting, in one table. Repeatable.",
        "list",
        short="Replay with each of these values.",
    ),
)
_POOL: Final = grouped(
    "hardware",
    Option("blocks", ("--blocks",), "N", "Blocks for requests, whatever the memory (vLLM)."),
    Option("tokens", ("--tokens",), "N", "Tokens for requests, whatever the memory (SGLang)."),
)
_FILES: Final = (
    Option(
        "steps_csv", ("--steps-csv",), "FILE", "Write a row for each step to this file; - is standard output.", complete="files"
    ),
    Option(
        "requests_csv",
        ("--requests-csv",),
        "FILE",
        "Write a row for each request to this file; - is standard output.",
        complete="files",
    ),
    Option(
        "plot",
        ("--plot",),
        "FILE",
        "Draw the pool and the requests over time, as .html to point at, or as .png, .svg or .pdf (needs matplotlib: pip install 'hwcalc[plot]').",
        complete="files",
        short="Draw the pool and the requests over time.",
    ),
)
STDOUT: Final = "-"
_EVERY: Final = 50
"""Requests that end between two reports of progress."""
_LONGEST: Final = 40
"""Characters of a setting beside the bar of progress."""


_TRACE: Final = Option(
    "trace",
    ("--trace",),
    "FILE|WORDS",
    "The requests: a trace, or words such as 'prompt=p50=2k,p95=16k output=300 arrival=poisson=4'.",
    complete="workloads",
    group="workload",
    short="A trace, or words: 'prompt=2k output=300'.",
)


def _planned(command: str) -> tuple[Option, ...]:
    """The options of a plan, with the engine that is replayed where none is named."""
    return tuple(
        replace(option, help=option.help.replace("Default: reference", "Default: vllm")) for option in plan_options(command)
    )


@command(
    (MODEL, _TRACE, *OF_TRACE, *_OWN, *_COMPARE, *_POOL, *_APART, *_planned("simulate"), *_FILES, *OF_PARTS, *OUTPUT),
    {
        "What do users wait for?": "kvplan simulate Qwen/Qwen3-8B --gpu h100 --trace 'prompt=2k output=100 arrival=poisson=4'",
        "Which setting serves most in time?": "kvplan simulate Qwen/Qwen3-8B --gpu l4 --trace 'prompt=1k output=9' --compare dtype=fp8,bf16",
        "How full is a pool of 2,000 blocks?": "kvplan simulate Qwen/Qwen3-8B --blocks 2000 --trace 'prompt=500 output=200'",
    },
)
def simulate(
    *,
    model: str,
    trace: str | None,
    compare: list[str] | None,
    workers: str | None,
    dask: str | None,
    out: str | None,
    steps_csv: str | None,
    requests_csv: str | None,
    plot: str | None,
    **options: Any,
) -> Answer:
    """Replay traffic on a server: what users wait for.

    The scheduler of the engine is replayed over its own pool of blocks: admission, chunks, preemption, prefix cache, windows and states.
    Exit status: 0, or 1 if a request is left that the server will never serve, or that it refuses.
    """
    if steps_csv == requests_csv == STDOUT:
        raise UsageError(
            "--steps-csv - and --requests-csv - are two tables on standard output.", hint="Name a file for one of them."
        )
    is_page = False
    if plot is not None:
        from hwcalc.plot.build import format_of

        is_page = format_of(plot, "--plot", ".html") == "html"
    of_parts = {"--workers": workers, "--dask": dask, "--out": out}
    if not compare and (named := [option for option, value in of_parts.items() if value is not None]):
        message = f"{named[0]} is for several replays, and this is one."
        raise UsageError(message, hint="Leave it out, or add: --compare max_num_seqs=64,256")
    view, requests, given = _opened(model, trace, "simulate", options)
    from hwcalc.report.traffic import comparison_text, traffic_text

    if compare:
        if steps_csv is not None or requests_csv is not None or plot is not None:
            raise UsageError(
                "--compare has many replays, and a file of rows or a picture is of one.", hint="Leave out one of them."
            )
        from hwcalc.replay.compare import compare_settings, parse_settings

        with shared(workers, dask, out) as executor, _progress(requests.count, parts=executor is not None) as told:
            given |= {"executor": executor, "out": out, "begin": told.begin, "watch": told.watch}
            compared = compare_settings(model, requests, parse_settings(compare), **given)
        status = int(all(setting.traffic is None for setting in compared.settings))
        return formatted(compared, view, comparison_text, status=status)
    from hwcalc.replay.simulate import simulate

    with _progress(requests.count) as told:
        replayed = simulate(model, requests, watch=told.watch, **given)
    traffic = replayed.traffic
    status = int(bool(traffic.warnings))
    if plot is not None:
        if is_page:
            from hwcalc.explore.timeline import save_timeline_page as save
        else:
            from hwcalc.plot.timeline import save_timeline as save
        save(replayed.timeline, plot, "--plot")
    printed = _rows_written(replayed, steps_csv, requests_csv)
    if printed is not None:
        return Answer(text=printed, status=status)
    return formatted(traffic, view, traffic_text, status=status)


_OF_SEARCH: Final = grouped(
    "workload",
    Option("share", ("--share",), "F", "Share of the requests that have to be within the limits. Default: 95%."),
    Option("budget", ("--budget",), "N", "Most work for each number of GPUs, in replays of all requests. Default: 64."),
    Option("top", ("--top",), "N", "List so many of the best; 0 lists all. Default: 10."),
)


@command(
    (
        MODEL,
        _TRACE,
        *OF_TRACE,
        *(option for option in _OWN if option.name in ("ttft", "itl", "e2e")),
        *_OF_SEARCH,
        *(
            replace(
                option,
                help="Try these values of a setting, default among them. Repeatable. Default: those of the engine.",
                short="Try these values.",
            )
            for option in _COMPARE
        ),
        *_planned("tune"),
        *OF_PARTS,
        *OUTPUT,
    ),
    {
        "Which settings serve most in time?": "kvplan tune Qwen/Qwen3-8B --gpu l4 --trace 'prompt=1k output=9 requests=9' --ttft 9s",
        "On which hardware, and how many?": "kvplan tune Qwen/Qwen3-8B --gpu 2xl4,h100 --trace 'prompt=1k output=9 requests=9' --ttft 9s",
        "With these values of a setting": "kvplan tune gpt2 --gpu 2xl4 --trace 'prompt=9 output=9 requests=9' --e2e 9s --compare tp=1,2",
    },
)
def tune(
    *,
    model: str,
    trace: str | None,
    compare: list[str] | None,
    workers: str | None,
    dask: str | None,
    out: str | None,
    **options: Any,
) -> Answer:
    """Search the settings that serve most within limits.

    Hardware, its layouts and the engine's own trade-offs are searched for the requests within the limits per second and GPU.
    Exit status: 0, or 1 if no setting holds the limits; then the nearest are listed.
    """
    view, requests, given = _opened(model, trace, "tune", options)
    given |= {option.name: options[option.name] for option in _OF_SEARCH if options[option.name] is not None}
    from hwcalc.replay.compare import parse_settings
    from hwcalc.replay.tune import tune
    from hwcalc.report.traffic import tuning_text

    with shared(workers, dask, out) as executor, _progress(requests.count, parts=executor is not None) as told:
        given |= {"executor": executor, "out": out, "begin": told.begin, "watch": told.watch}
        tuned = tune(model, requests, settings=parse_settings(compare or ()), **given)
    status = int(not tuned.holds)
    return formatted(tuned, view, tuning_text, status=status)


def _opened(model: str, trace: str | None, command: str, options: Mapping[str, Any]) -> tuple[View, Workload, dict[str, Any]]:
    """The view, the workload, and the options of the plan and of the replay that were given."""
    view = view_of(**options)
    if trace is None:
        raise UsageError("no workload is named.", hint="Add: --trace FILE, or --trace 'prompt=2k output=300 arrival=poisson=4'")
    of_trace = {option.name: options[option.name] for option in OF_TRACE if options.get(option.name) is not None}
    of_replay = {option.name: options[option.name] for option in (*_OWN, *_POOL, *_APART) if options.get(option.name) is not None}
    from hwcalc.workload.opening import workload

    with reading(model):
        requests = workload(trace, **of_trace)
    return view, requests, {**given_options(command, options), **of_replay}


class _Told:
    """A progress bar on a terminal; nothing elsewhere. It counts ``parts``, or the requests of the replay that runs here."""

    def __init__(self, update: Callable[..., None] | None, *, parts: bool) -> None:
        self._update, self._parts = update, parts

    def watch(self, done: int) -> None:
        """So many requests have ended."""
        if self._update is not None and not done % _EVERY:
            self._update(completed=done)

    def begin(self, done: int, total: int, words: str) -> None:
        """So many parts are done of all, and this begins here, or has ended elsewhere."""
        if self._update is not None and self._parts:
            self._update(completed=done, total=total, description=cut(words, _LONGEST))
        elif self._update is not None:
            self._update(completed=0, description=f"{min(done + 1, total):,} of {total:,}: {cut(words, _LONGEST)}")


@contextmanager
def _progress(total: int | None, *, parts: bool = False) -> Iterator[_Told]:
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Told(None, parts=parts)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)

        def update(**fields: Any) -> None:
            bar.update(task, **fields)

        yield _Told(update, parts=parts)


def _rows_written(replayed: Simulation, steps_csv: str | None, requests_csv: str | None) -> str | None:
    """Write the rows that were asked for; returns those for standard output (``-``)."""
    from hwcalc.files import write_file
    from hwcalc.report.text import csv_text

    printed = None
    for path, option in ((steps_csv, "--steps-csv"), (requests_csv, "--requests-csv")):
        if path is None:
            continue
        names: tuple[str, ...] = replayed.columns
        rows: Iterable[tuple[Any, ...]] = replayed.each_step()
        if option == "--requests-csv":
            records = replayed.records()
            names = tuple(records[0]) if records else ("request",)
            rows = (tuple(row.values()) for row in records)
        text = csv_text(names, rows)
        if path == STDOUT:
            printed = text
        else:
            write_file(path, text.encode("utf-8", "surrogateescape"), option)
    return printed

"""``kvplan simulate``: a trace replayed on a server, step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.options import MODEL, OUTPUT, Option, command, given_options, grouped, plan_options, reading
from hwcalc.cli.output import Answer, answer, view_of
from hwcalc.cli.workload import OF_TRACE
from hwcalc.errors import UsageError

if TYPE_CHECKING:
    from hwcalc.replay.result import Simulation

_OWN: Final = grouped(
    "workload",
    Option("clock", ("--clock",), "C", "seconds, or steps: then steps take no time. Default: seconds.", complete="clocks"),
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
        "How: least-requests, round-robin, least-loaded (fewest tokens left) or prefix. Default: least-requests, as vLLM does for --dp.",
        complete="routes",
    ),
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
        "Draw the pool and the requests over time, as .png, .svg or .pdf. Needs matplotlib: pip install 'hwcalc[plot]'.",
        complete="files",
        short="Draw the pool and the requests over time: pool.svg.",
    ),
)
STDOUT: Final = "-"
_EVERY: Final = 50
"""Requests that end between two reports of progress."""


@command(
    (
        MODEL,
        Option(
            "trace",
            ("--trace",),
            "FILE|WORDS",
            "The requests: a trace, or words such as 'prompt=p50=2k,p95=16k output=300 arrival=poisson=4'.",
            complete="workloads",
            group="workload",
            short="A trace, or words: 'prompt=2k output=300 arrival=poisson=4'.",
        ),
        *OF_TRACE,
        *_OWN,
        *_POOL,
        *(
            replace(option, help=option.help.replace("Default: reference", "Default: vllm"))
            if option.name == "engine"
            else option
            for option in plan_options("simulate")
        ),
        *_FILES,
        *OUTPUT,
    ),
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
    steps_csv: str | None,
    requests_csv: str | None,
    plot: str | None,
    **options: Any,
) -> Answer:
    """Replay traffic on a server: what users wait for.

    The scheduler of the engine is replayed over its own pool of blocks: admission, chunks, preemption, prefix cache, windows and states.
    Exit status: 0, or 1 if a request is left that the server will never serve, or that it refuses.
    """
    view = view_of(**options)
    if trace is None:
        raise UsageError("no workload is named.", hint="Add: --trace FILE, or --trace 'prompt=2k output=300 arrival=poisson=4'")
    if steps_csv == requests_csv == STDOUT:
        raise UsageError(
            "--steps-csv - and --requests-csv - are two tables on standard output.", hint="Name a file for one of them."
        )
    if plot is not None:
        from hwcalc.plot.build import format_of

        format_of(plot, "--plot")
    of_trace = {option.name: options[option.name] for option in OF_TRACE if options.get(option.name) is not None}
    of_replay = {option.name: options[option.name] for option in (*_OWN, *_POOL) if options.get(option.name) is not None}
    given = {**given_options("simulate", options), **of_replay}
    from hwcalc.report.traffic import comparison_csv, comparison_text, traffic_csv, traffic_text
    from hwcalc.workload.opening import workload

    with reading(model):
        requests = workload(trace, **of_trace)
    if compare:
        if steps_csv is not None or requests_csv is not None or plot is not None:
            raise UsageError(
                "--compare has many replays, and a file of rows or a picture is of one.", hint="Leave out one of them."
            )
        from hwcalc.replay.compare import compare_settings, parse_settings

        with _progress(requests.count) as told:
            compared = compare_settings(model, requests, parse_settings(compare), begin=told.begin, watch=told.watch, **given)
        status = int(all(setting.traffic is None for setting in compared.settings))
        if view.format == "json":
            return answer(compared, status=status)
        return Answer(text=comparison_csv(compared) if view.format == "csv" else comparison_text(compared, view), status=status)
    from hwcalc.replay.simulate import simulate

    with _progress(requests.count) as told:
        replayed = simulate(model, requests, watch=told.watch, **given)
    traffic = replayed.traffic
    status = int(bool(traffic.warnings))
    if plot is not None:
        from hwcalc.plot.timeline import save_timeline

        save_timeline(replayed.timeline, plot, "--plot")
    printed = _rows_written(replayed, steps_csv, requests_csv)
    if printed is not None:
        return Answer(text=printed, status=status)
    if view.format == "json":
        return answer(traffic, status=status)
    return Answer(text=traffic_csv(traffic) if view.format == "csv" else traffic_text(traffic, view), status=status)


class _Told:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, update: Callable[..., None] | None) -> None:
        self._update = update

    def watch(self, done: int) -> None:
        """So many requests have ended."""
        if self._update is not None and not done % _EVERY:
            self._update(completed=done)

    def begin(self, words: str) -> None:
        """A replay of this setting begins."""
        if self._update is not None:
            self._update(completed=0, description=words)


@contextmanager
def _progress(total: int | None) -> Iterator[_Told]:
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Told(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total)

        def update(**fields: Any) -> None:
            bar.update(task, **fields)

        yield _Told(update)


def _rows_written(replayed: Simulation, steps_csv: str | None, requests_csv: str | None) -> str | None:
    """Write the rows that were asked for; returns those for standard output (``-``)."""
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
        if path == STDOUT:
            printed = csv_text(names, rows)
        else:
            _write(path, option, names, rows)
    return printed


def _write(path: str, option: str, names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write a CSV file, which appears when it is whole."""
    import csv
    import io

    from hwcalc.files import whole_file

    with whole_file(path, option) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(names)
        writer.writerows(rows)
        text.flush()
        text.detach()

"""``kvplan probe`` and ``kvplan reconcile``: a plan beside what a device, an engine's log or a running server says."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.cli.options import MODEL, OUTPUT, Option, command, given_options, grouped, plan_options, reading
from hwcalc.cli.output import Answer, answer, formatted, live_line, on_terminal, view_of
from hwcalc.documents import ErrorInfo, dumps, error_document
from hwcalc.errors import ServerError, UsageError
from hwcalc.files import standard_input
from hwcalc.report.view import View
from hwcalc.text import shown

if TYPE_CHECKING:
    from pathlib import Path

    from hwcalc.probe.run import MoreOptions
    from hwcalc.reconcile.server import Server, Serving


@command(
    (
        replace(MODEL, required=False),
        *plan_options("probe"),
        *grouped(
            "probe",
            Option("device", ("--device",), "D", "cuda:0, mps or cpu. Default: the best there is.", complete="probe_devices"),
            Option(
                "reserve", ("--reserve",), "B", "Bytes of the device to leave free. Default: 1 GiB, or 5% where that is more."
            ),
            Option(
                "scale", ("--scale",), "F", "Only this share of the cache: fewer layers, or a pool of fewer blocks. 0.1, 10%."
            ),
            Option(
                "max_bytes",
                ("--max-bytes",),
                "B",
                "At most so many bytes on each device: 8GiB. More is made smaller, as with --scale.",
            ),
            Option("fill", ("--fill",), "", "Write every byte and read it back, so that the pages are real.", "flag"),
            Option("live", ("--live",), "", "Build a small model of this type, and compare its cache and its decoding.", "flag"),
            Option("find_max", ("--find-max",), "WHAT", "Largest batch or seq that allocates.", complete="probe_searches"),
            Option("bandwidth", ("--bandwidth",), "", "Time reading the cache; plans of this accelerator then use it.", "flag"),
            Option("speed", ("--speed",), "", "Time a prompt and a step of a small model of this type.", "flag"),
            Option("receipt", ("--receipt",), "F", "Keep plan, measurements and environment in this JSON file."),
            Option("verify", ("--verify",), "F", "Plan a receipt again and report drift; needs no MODEL and no device."),
        ),
        *OUTPUT,
    ),
    {
        "Allocate a planned cache, and compare": "kvplan probe Qwen/Qwen3-1.7B --seq 1k --device cpu",
        "Keep what was measured": "kvplan probe Qwen/Qwen3-1.7B --seq 1k --device cpu --receipt receipt.json",
        "Look for drift since": "kvplan probe --verify receipt.json",
    },
)
def probe(*, model: str | None, verify: str | None, receipt: str | None, **options: Any) -> Answer:
    """Allocate the cache of a plan on a real device and compare. Exit status 1: it does not fit or differs; 5: there is no device."""
    from hwcalc.probe.run import MoreOptions, check_alone

    view = view_of(**options)
    chosen = MoreOptions(
        live=options["live"],
        search=options["find_max"],
        bandwidth=options["bandwidth"],
        policy=options["policy"] is not None,
        speed=options["speed"],
    )
    if verify is not None:
        if model is not None or receipt is not None or chosen.any or options["fill"]:
            message = "--verify takes a receipt alone: no MODEL, no --receipt, and nothing to measure."
            raise UsageError(message, hint="Write: kvplan probe --verify F.json")
        from hwcalc.probe.receipt import read_receipt
        from hwcalc.probe.receipt import verify as planned_again

        verified = planned_again(read_receipt(verify), verify)
        status = 0 if verified.agrees else 1
        from hwcalc.report.probe import verified_text, verify_csv

        return formatted(verified, view, verified_text, verify_csv, status=status)
    if model is None:
        raise UsageError("no MODEL given.", hint="Write: kvplan probe MODEL, or kvplan probe --verify F.json")
    check_alone(chosen)
    return _probed(model, given_options("probe", options), options, chosen, receipt, view)


def _probed(
    model: str, given: dict[str, Any], options: Mapping[str, Any], chosen: MoreOptions, receipt: str | None, view: View
) -> Answer:
    """The answer of a probe; ``given`` are the options of the plan, ``options`` have the device, and how much to allocate."""
    from hwcalc.library.plan import load_request
    from hwcalc.model import DEFAULT_GPU
    from hwcalc.planner.asked import read_options
    from hwcalc.planner.context import open_request
    from hwcalc.planner.plan import without_effect
    from hwcalc.probe.receipt import check_path, make_receipt, write_receipt
    from hwcalc.probe.run import ProbeOptions, gpu_here, measure_more, probe
    from hwcalc.units import parse_bytes, parse_share

    reserve, scale, most = (options[name] for name in ("reserve", "scale", "max_bytes"))
    allocated = ProbeOptions(
        device=options["device"],
        reserve_bytes=None if reserve is None else parse_bytes(reserve, "reserve"),
        scale=None if scale is None else parse_share(scale, "scale"),
        max_bytes=None if most is None else parse_bytes(most, "max-bytes"),
        fill=options["fill"],
    )
    if receipt is not None:
        check_path(receipt)
    with reading(model):
        spec, request = load_request(model, read_options(given))
    opened = open_request(spec, **request)
    if any(note.code == DEFAULT_GPU for note in opened.notes) and (here := gpu_here(allocated.device)) is not None:
        # What the engine would take by default depends on the accelerator, and that is known here.
        request["gpu"] = here
        opened = open_request(spec, **request)
    opened.tell(*without_effect(request))
    probed = probe(opened, allocated)
    if probed is None:
        # Rank 0 answers for all ranks.
        return Answer(text="")
    more = measure_more(opened, allocated, chosen) if chosen.any else None
    if receipt is not None:
        write_receipt(make_receipt(opened, probed, more), receipt)
    from hwcalc.report.probe import probe_csv, probe_document, probe_text

    status = 0 if probed.agrees and (more is None or more.agrees) else 1
    if view.format == "json":
        return answer(probe_document(probed, more), status=status)
    if view.format == "csv":
        messages = tuple(rank.message for rank in probed.ranks if rank.message)
        return Answer(text=probe_csv(probed, more), status=status, remarks=messages)
    return Answer(text=probe_text(probed, more, view), status=status)


def _is_log(path: Path) -> bool:
    """True if a lone argument is a log: a file that is no description of a model, or the name of one that is missing."""
    return path.suffix.lower() in (".log", ".out", ".txt") or (path.suffix.lower() not in (".json", ".gguf") and path.is_file())


def _beside_bench(model: str | None, bench: str, *, calibrate: bool, options: dict[str, Any]) -> Answer:
    """A benchmark beside the expected speed."""
    from pathlib import Path

    from hwcalc.reconcile.speeds import reconcile_bench
    from hwcalc.report.speeds import bench_csv, bench_text, verdict

    view, given = view_of(**options), given_options("reconcile", options)
    source = Path(bench) if bench != "-" else standard_input("Name a file: --bench FILE")
    with reading(model or bench):
        found = reconcile_bench(model, source, calibrate=calibrate, **given)
    status = 1 if found.within is False else 0
    remarks = (verdict(found),) if status and view.format == "csv" else ()
    return formatted(found, view, bench_text, bench_csv, status=status, remarks=remarks)


_SECONDS: Final = (0.1, 86_400.0)
"""The least and the most between two readings."""


def _beside_server(
    model: str | None, address: str, watch: str | None, api_key_env: str | None, tolerance: str, options: dict[str, Any]
) -> Answer:
    """A running server, and its readings from then on."""
    from hwcalc.reconcile.server import Server
    from hwcalc.report.server import server_csv, server_text

    view, given = view_of(**options), given_options("reconcile", options)
    seconds, server = None if watch is None else _seconds(watch), Server(address, api_key_env)
    with reading(model or address):
        first = server.serving(model, tolerance=tolerance, **given)
    status = 0 if first.reconciliation is not None and first.reconciliation.within else 1
    if view.format == "json":
        text = dumps(first.to_dict(), None if seconds is not None else 2)
    else:
        text = server_csv(first) if view.format == "csv" else server_text(first, view)
    readings = () if seconds is None else _readings(server, first, seconds, view)
    return Answer(text=text, json=view.format == "json", readings=readings, status=status)


def _seconds(text: str) -> float:
    """The time between two readings."""
    least, most = _SECONDS
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not least <= seconds <= most:
        raise UsageError(
            f"--watch {shown(text, 40)} is no time between two readings.", hint=f"Allowed: {least:g} to {most:g} seconds."
        )
    return seconds


def _readings(server: Server, first: Serving, seconds: float, view: View) -> Iterator[str]:
    """A line for each further reading, without end; on a terminal nothing, since one line is written there anew.

    A server that does not answer is asked again: it may be starting.
    """
    from hwcalc.report.server import reading_line, server_csv

    def line() -> str:
        try:
            serving = server.again()
        except ServerError as error:
            if view.format == "json":
                return dumps(error_document(ErrorInfo.of(error)), None)
            return "" if view.format == "csv" else f"{error.message}\n"
        if view.format == "json":
            return dumps(serving.to_dict(), None)
        return server_csv(serving, header=False) if view.format == "csv" else f"{reading_line(serving, first)}\n"

    live = view.format == "table" and on_terminal()
    with live_line(sys.stdout) if live else nullcontext() as show:
        while True:
            time.sleep(seconds)
            if show is None:
                yield line()
            else:
                show(line())


_FIRST: Final = ("engine", "batch")
"""Options that the log may not state come first in the help."""
_PLAN: Final = {option.name: option for option in plan_options("reconcile")}


@command(
    (
        replace(MODEL, required=False, short="A log, a server's URL, or --log's model."),
        Option(
            "log",
            ("--log",),
            "FILE",
            "The engine's start-up log or its /metrics text, - for standard input, or the address of a server that runs.",
            complete="files",
            group="log",
            short="A start-up log, or a server's address.",
        ),
        Option(
            "watch",
            ("--watch",),
            "[S]",
            "Follow a server that runs, with a reading every S seconds. Default: 5.",
            bare="5",
            group="log",
            short="A reading of the server every S seconds: 5.",
        ),
        Option(
            "api_key_env",
            ("--api-key-env",),
            "NAME",
            "The variable of the environment that has the server's API key.",
            group="log",
        ),
        Option(
            "bench",
            ("--bench",),
            "FILE",
            "Result of vllm bench serve, sglang.bench_serving, llama-bench, genai-perf or aiperf, beside the expected speed; - for standard input.",
            complete="files",
            group="log",
            short="Result of vllm bench serve, llama-bench, ...",
        ),
        Option(
            "dialect",
            ("--dialect",),
            "D",
            "How to read it: prometheus, or the name of an engine. Default: by its lines.",
            complete="dialects",
            group="log",
        ),
        Option(
            "tolerance",
            ("--tolerance",),
            "F",
            "How far a figure may lie from its prediction, or from the range of it: 1%. Default: 1%.",
            default="1%",
            group="log",
        ),
        Option(
            "calibrate",
            ("--calibrate",),
            "",
            "Keep the overheads of the log, or the speed of the benchmark, for later plans with this engine and --gpu.",
            "flag",
            group="log",
        ),
        Option(
            "verbose", ("-v", "--verbose"), "", "List the lines about memory that were not understood, without secrets.", "flag"
        ),
        *(_PLAN[name] for name in _FIRST),
        *(option for name, option in _PLAN.items() if name not in _FIRST),
        *OUTPUT,
    ),
    {
        "Does a log agree, by what it says itself?": "kvplan reconcile vllm.log",
        "How full is a server that runs?": "kvplan reconcile http://localhost:8000",
        "Keep its overheads for later plans": "kvplan reconcile meta-llama/Llama-3.1-8B --log vllm.log --gpu l4 --calibrate",
    },
)
def reconcile(
    *,
    model: str | None,
    log: str | None,
    bench: str | None,
    watch: str | None,
    api_key_env: str | None,
    dialect: str | None,
    tolerance: str,
    calibrate: bool,
    verbose: bool,
    **options: Any,
) -> Answer:
    """Compare an engine's log, server or benchmark with the plan.

    Without --log, MODEL is the log or the server, which names its model. Exit status 1: they differ, or a server cannot be compared.
    """
    from pathlib import Path

    from hwcalc.reconcile import reconcile
    from hwcalc.reconcile.endpoint import is_address

    if log is None and bench is None and model is not None and is_address(model):
        model, log = None, model
    if log is not None and bench is None and is_address(log):
        if calibrate or dialect is not None:
            raise UsageError("--calibrate and --dialect are for logs, and this is a server.", hint="Leave them out.")
        return _beside_server(model, log, watch, api_key_env, tolerance, options)
    if watch is not None or api_key_env is not None:
        hint = "Write: kvplan reconcile http://localhost:8000 --watch"
        raise UsageError("--watch and --api-key-env are for a server that runs, and none is named.", hint=hint)

    if bench is not None:
        if log is not None or dialect is not None:
            raise UsageError("--bench and --log are two things to compare.", hint="Give one of them.")
        return _beside_bench(model, bench, calibrate=calibrate, options=options)
    view, given = view_of(**options), given_options("reconcile", options)
    if log is None and model is not None and (model == "-" or _is_log(Path(model))):
        model, log = None, model
    if log is None:
        hint = "Write: kvplan reconcile FILE, kvplan reconcile http://HOST:PORT, or kvplan reconcile MODEL --log FILE; - is standard input."
        if model is not None and re.fullmatch(r"[\w.-]+:\d{1,5}/?", model, re.ASCII):
            hint = f"Write: kvplan reconcile http://{model}"
        raise UsageError("no log is named.", hint=hint)
    if log == model == "-":
        hint = "Name the model: kvplan reconcile MODEL --log -"
        raise UsageError("standard input can be only one of model and log.", hint=hint)
    with reading(model or log):
        source = Path(log) if log != "-" else standard_input("Pipe a log in: kvplan reconcile - < LOG")
        result = reconcile(model, source, dialect=dialect, tolerance=tolerance, calibrate=calibrate, verbose=verbose, **given)
    status = 0 if result.within else 1
    from hwcalc.report.reconcile import reconcile_csv, reconcile_text, unread_rows, verdict

    # A table with notes, and a document, have these lines themselves.
    remarks: list[str] = []
    if view.format != "json":
        remarks += [verdict(result)] if view.format == "csv" and not result.within else []
        if view.quiet or view.format == "csv":
            remarks += (f"{label}: {line}" if label else line for label, line in unread_rows(result))
        if view.format == "csv" and not view.quiet:
            remarks += (note.message for note in result.notes if note.code == "lines-unread")
    return formatted(result, view, reconcile_text, reconcile_csv, status=status, remarks=tuple(remarks))

"""``kvplan fleet``: which models on which nodes, at the least cost."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.cli.options import OUTPUT, Option, command, given_options, plan_options, progress
from hwcalc.cli.output import Answer, formatted, view_of
from hwcalc.errors import UsageError

EXAMPLE: Final = """\
# Run it: kvplan fleet fleet.yaml; every key and what it takes: kvplan schema fleet-file
schema_version: 1

defaults:                     # for every model that does not say otherwise; options as kvplan MODEL has them
  engine: vllm
  ttft: 2s                    # longest time to the first token, for sure
  itl: 50ms                   # longest time between two tokens

models:
  - {name: chat, model: Qwen/Qwen3-32B, weights: fp8, users: 300, prompt: 3k, output: 1k}
  - {name: small, model: Qwen/Qwen3-8B, users: 200, seq: 8k, prompt: 6k}
  - {name: agents, model: openai/gpt-oss-120b, users: 100, prompt: 7k, output: 1k}

nodes:
  - {gpu: 8xh100-sxm, count: 1}                               # there already
  - {gpu: 4xl40s, count: 2}
  - {instance: aws/p5.48xlarge, rent: {at_most: 4}}           # at its dated price
  - {name: colo, gpu: 8xh200, rent: true, price: 38/h}        # at your own

survive: 1                    # any node may fail
growth: 1.5x                  # so many times the users
rolling: false                # true: a replica more of one model at a time fits
"""


@command(
    (
        Option("file", (), "FILE", "Models with users, and nodes, in YAML; - is standard input.", complete="paths"),
        Option(
            "survive",
            ("--survive",),
            "N",
            "Any N nodes may fail, and all users are still served. Default: the file's, or 0.",
            short="So many nodes may fail.",
        ),
        Option(
            "growth",
            ("--growth",),
            "X",
            "So many times the users of the file: 2x, 150%. Default: the file's, or 1.",
            short="So many times the users: 2x.",
        ),
        Option(
            "rolling", ("--rolling",), "", "Leave room for one more replica of a model at a time, for rolling updates.", "flag"
        ),
        Option(
            "emit",
            ("--emit",),
            "E",
            "Print what starts the servers instead, for each group of replicas: kubernetes, compose, helm, or command (each engine's own).",
            complete="fleet_emitters",
            short="What starts them: kubernetes, command.",
        ),
        Option(
            "plot",
            ("--plot",),
            "FILE",
            "Draw models against nodes: .png, .svg or .pdf (needs matplotlib: pip install 'hwcalc[plot]'); - is the terminal.",
            complete="files",
        ),
        Option("example", ("--example",), "", "Print a file to start from.", "flag"),
        *plan_options("fleet"),
        *OUTPUT,
    ),
    {
        "Start a file": "kvplan fleet --example > fleet.yaml",
        "Which model on which nodes, for the least money?": "kvplan fleet fleet.yaml",
        "And where any node may fail?": "kvplan fleet fleet.yaml --survive 1",
    },
)
def fleet(
    *,
    file: str | None,
    survive: str | None,
    growth: str | None,
    rolling: bool,
    emit: str | None,
    plot: str | None,
    example: bool,
    **options: Any,
) -> Answer:
    """Place models on unlike nodes, at the least cost.

    Replicas serve as many users as their plans say are sure. Exit status 1: not all users are served; what lacks, and the least that would have to be added, is said. Needs highspy: pip install 'hwcalc[fleet]'.
    """
    if example:
        return Answer(text=EXAMPLE)
    if file is None:
        raise UsageError("no file is given.", hint="Write: kvplan fleet FILE; to start one: kvplan fleet --example > fleet.yaml")
    view = view_of(**options)
    from hwcalc.report.fleet import check_emitted, fleet_chart, fleet_emitted, fleet_text

    words = emit is not None or plot == "-"
    if words and view.format != "table":
        raise UsageError(f"{'--emit' if emit else '--plot -'} prints text.", hint="Leave out --json and --format.")
    if emit is not None:
        check_emitted(emit)
    if plot not in (None, "-"):
        from hwcalc.plot.build import format_of

        format_of(plot, "--plot")
    with progress():
        from hwcalc.fleet.run import planned_fleet

        planned = planned_fleet(
            file,
            survive=survive,
            growth=growth,
            rolling=rolling or None,
            options=given_options("fleet", options),
        )
    status = 0 if planned.fleet.holds else 1
    remarks: tuple[str, ...] = ()
    if plot is not None:
        from hwcalc.plot.build import Picture

        picture = Picture(chart=fleet_chart(planned.fleet))
        if plot == "-":
            from hwcalc.cli.plan import characters

            return Answer(text=characters(picture, color=view.color), color=view.color, status=status)
        from hwcalc.files import write_file

        write_file(plot, picture.data(format_of(plot, "--plot")), "--plot", read=[file])
        remarks = () if view.quiet else (f"wrote {str(plot)!r}: {picture.chart.title}",)
    if emit is not None:
        return Answer(text=fleet_emitted(planned, emit), status=status, remarks=remarks, commands=True)
    return formatted(planned.fleet, view, fleet_text, status=status, remarks=remarks)

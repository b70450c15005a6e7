"""``kvplan workload``: what a trace of requests is, or a workload that is made of words."""

from __future__ import annotations

import os
from typing import Any, Final

from hwcalc.cli.options import OUTPUT, Option, command, grouped, progress
from hwcalc.cli.output import Answer, formatted, view_of

OF_TRACE: Final = grouped(
    "workload",
    Option(
        "trace_format",
        ("--trace-format",),
        "F",
        "azure, mooncake, burstgpt, csv, ... Default: by its content.",
        complete="trace_formats",
    ),
    Option("columns", ("--columns",), "K=C,...", "Columns of a trace with other names: prompt=tokens_in,output=tokens_out."),
    Option("requests", ("--requests",), "N", "Only the first so many requests. Default: all."),
    Option(
        "arrival", ("--arrival",), "A", "Other arrivals: once, rate=4, poisson=4 (requests a second). Default: the trace's own."
    ),
    Option("concurrency", ("--concurrency",), "N", "At most so many requests together: the next is sent when one is answered."),
    Option("speedup", ("--speedup",), "X", "The same arrivals, so many times as fast. Default: 1."),
    Option("seed", ("--seed",), "N", "Seed of all that is random. Default: 0."),
)
"""The options of commands that take a workload."""


@command(
    (
        Option(
            "words",
            (),
            "FILE | WORDS",
            "A trace, or words: prompt=p50=2k,p95=16k output=300 arrival=poisson=4 requests=1000.",
            "list",
            complete="workloads",
        ),
        *OF_TRACE,
        *grouped(
            "workload", Option("block_size", ("--block-size",), "N", "Tokens of a block, for the share of prefixes. Default: 16.")
        ),
        *OUTPUT,
    ),
    {
        "What is such a workload?": "kvplan workload prompt=p50=2k,p95=16k output=300 arrival=poisson=4",
        "What do conversations have in common?": "kvplan workload prompt=200 output=300 turns=min=1,max=8 prefix=1k",
        "What do lengths limit?": "kvplan workload prompt=mean=4k,max=32k output=1k,2k requests=100 --json",
    },
)
def workload(*, words: list[str] | None, block_size: str | None = None, **options: Any) -> Answer:
    """Say what a trace is: lengths, rate, common prefixes.

    FILE is a trace of Azure, Mooncake, BurstGPT, Qwen-Bailian or ShareGPT, a result of vllm bench serve or sglang.bench_serving, or CSV, JSON
    lines or Parquet with named columns, also packed by gzip. WORDS make a workload: prompt, output, requests, arrival, concurrency, prefix, groups,
    samples, turns, think, cancel, cancel_after, max, seed. Exit status 3: the trace cannot be read.
    """
    from hwcalc.units import parse_tokens
    from hwcalc.workload.made import words_of
    from hwcalc.workload.opening import workload
    from hwcalc.workload.request import BLOCK_SIZE

    view = view_of(**options)
    given = {option.name: options[option.name] for option in OF_TRACE if options.get(option.name) is not None}
    size = BLOCK_SIZE if block_size is None else parse_tokens(block_size, "block-size")
    source = list(words or ())
    if len(source) > 1 and os.path.lexists(source[0]):
        # A trace, and words that change it.
        given, source = {**words_of(" ".join(source[1:])), **given}, source[:1]
    with progress():
        summary = workload(" ".join(source), **given).summary(size)
    from hwcalc.report.workload import workload_text

    return formatted(summary, view, workload_text)

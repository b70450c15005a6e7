"""The arguments and options that several commands share, as data: each is said once, and both readers of a line use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

from hwcalc.cli.output import View, write
from hwcalc.errors import HubError, ModelNotFoundError, UsageError
from hwcalc.planner.result import Plan

__all__ = [
    "COMMANDS",
    "DEFAULT",
    "OUTPUT",
    "PLANNING",
    "Option",
    "engine_options",
    "planned",
    "progress",
    "reading",
    "view_of",
]

COMMANDS: Final = {
    "plan": "hwcalc.cli.plan",
    "explain": "hwcalc.cli.explain",
    "diff": "hwcalc.cli.diff",
    "compare": "hwcalc.cli.compare",
    "sweep": "hwcalc.cli.sweep",
    "recommend": "hwcalc.cli.recommend",
    "check": "hwcalc.cli.check",
    "reconcile": "hwcalc.cli.reconcile",
    "probe": "hwcalc.cli.probe",
    "models": "hwcalc.cli.models",
    "engines": "hwcalc.cli.engines",
    "gpus": "hwcalc.cli.gpus",
    "instances": "hwcalc.cli.instances",
    "dtypes": "hwcalc.cli.dtypes",
    "schema": "hwcalc.cli.schema",
}
"""Name -> module with ``OPTIONS`` and ``run``, whose docstring is the help. A new command is one module and one line here."""
DEFAULT: Final = "plan"
"""The command of a line that names none: its first word is a MODEL."""


class Option(NamedTuple):
    """One option, or without ``flags`` one positional argument.

    ``name`` is the keyword of the command's ``run``, ``complete`` the function of :mod:`hwcalc.cli.completion` that
    knows the values. ``kind`` is ``text``, ``flag`` or ``list`` (repeatable; as an argument, any number of words).
    """

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    kind: str = "text"
    default: str | None = None
    complete: str | None = None
    required: bool = False


MODEL: Final = Option(
    "model",
    (),
    "MODEL",
    "Hub id (org/name, org/name@revision), folder, config.json, or - for a config on standard input.",
    complete="models",
    required=True,
)
OUTPUT: Final = (
    Option("json", ("--json",), "", "One JSON document on standard output, on errors too.", "flag"),
    Option("format_", ("--format",), "F", "table, json, markdown or csv. Default: table.", complete="formats"),
    Option("quiet", ("--quiet", "-q"), "", "No notes and hints, only the numbers and warnings.", "flag"),
    Option("no_color", ("--no-color",), "", "No colour on a terminal (NO_COLOR does the same).", "flag"),
)
PLANNING: Final = (
    MODEL,
    Option("seq", ("--seq",), "N", "Tokens per sequence, prompt and output: 32768, 32k. Default: the model's own maximum."),
    Option("batch", ("--batch", "--concurrency"), "N", "Sequences alive at once. Default: 1.", default="1"),
    Option(
        "dtype",
        ("--dtype",),
        "D",
        "KV-cache dtype: fp8, bf16, q8_0; K:V for two. See: kvplan dtypes. Default: the model's dtype.",
        complete="dtypes",
    ),
    Option(
        "weights",
        ("--weights",),
        "W",
        "Weight format: bf16, fp8, awq, nvfp4, ... Default: as published.",
        complete="weight_formats",
    ),
    Option(
        "engine",
        ("--engine",),
        "E",
        "Whose rules: reference (the formulas), transformers, transformers@5.14. See: kvplan engines. Default: reference.",
        default="reference",
        complete="engines",
    ),
    Option("gpu", ("--gpu",), "G", "Accelerator: l4, h100-sxm5-80gb. Default: none, and no verdict.", complete="gpus"),
    Option("gpus", ("--gpus",), "N", "How many, shared by tensor parallelism. Default: 1."),
    Option("instance", ("--instance",), "I", "Cloud instance: p5.48xlarge. Its accelerators, all of them.", complete="instances"),
    Option("tp", ("--tp",), "N", "Tensor parallel size. Default: 1."),
    Option("pp", ("--pp",), "N", "Pipeline parallel size. Default: 1."),
    Option("dp", ("--dp",), "N", "Data parallel size. Default: 1."),
    Option("dcp", ("--dcp",), "N", "Decode context parallel size. Default: 1."),
    Option("ep", ("--ep",), "N", "Expert parallel size. Default: 1."),
    Option("memory_utilization", ("--memory-utilization",), "F", "Share of the GPU for the engine. Default: the engine's."),
    Option("kv_memory", ("--kv-memory",), "B", "Bytes per GPU for the cache, given directly: 60GiB."),
    Option(
        "margin",
        ("--margin",),
        "F",
        "Share of the GPU to leave alone: 5%. Default: 5%, none for an engine with a share of its own.",
    ),
    Option("lora", ("--lora",), "K=V,...", "Adapters held beside the model: rank=16,count=8."),
    Option("draft", ("--draft",), "MODEL", "Draft model for speculative decoding, loaded beside the model.", complete="models"),
    Option("encoder_seq", ("--encoder-seq",), "N", "Encoder tokens for cross attention. Default: the model's own."),
    Option(
        "engine_option",
        ("--engine-option",),
        "K=V",
        "An engine's own knob by its own name; repeatable. See: kvplan engines NAME.",
        "list",
        complete="engine_options",
    ),
    Option(
        "assume",
        ("--assume",),
        "gqa",
        "Read an unknown architecture as plain attention; every number is marked as assumed.",
        complete="assumptions",
    ),
    Option("revision", ("--revision",), "R", "Branch, tag or commit of the model."),
    Option("offline", ("--offline",), "", "Use no network (HF_HUB_OFFLINE=1 does the same).", "flag"),
    Option("token", ("--token",), "T", "Token for the Hub. Default: HF_TOKEN, or the login that hf auth login stored."),
    Option("endpoint", ("--endpoint",), "URL", "Address of the Hub. Default: HF_ENDPOINT, or https://huggingface.co."),
    *OUTPUT,
)


def view_of(*, json: bool, format_: str | None, quiet: bool, no_color: bool) -> View:
    """The output options of any command."""
    return View.choose(json=json, format_=format_, quiet=quiet, no_color=no_color)


def planned(
    *,
    model: str,
    seq: str | None,
    batch: str,
    dtype: str | None,
    weights: str | None,
    engine: str,
    encoder_seq: str | None,
    engine_option: Sequence[str] | None,
    assume: str | None,
    gpu: str | None,
    gpus: str | None,
    instance: str | None,
    tp: str | None,
    pp: str | None,
    dp: str | None,
    dcp: str | None,
    ep: str | None,
    memory_utilization: str | None,
    kv_memory: str | None,
    margin: str | None,
    lora: str | None,
    draft: str | None,
    revision: str | None,
    offline: bool,
    token: str | None,
    endpoint: str | None,
    **output: Any,
) -> tuple[Plan, View]:
    """What the options of :data:`PLANNING` ask for: the plan, and how to show it. A wrong output option comes first."""
    from hwcalc.library.plan import plan

    view = view_of(**output)
    options = engine_options(engine_option or ())
    with reading(model):
        result = plan(
            model,
            seq=seq,
            batch=batch,
            dtype=dtype,
            weights=weights,
            engine=engine,
            encoder_seq=encoder_seq,
            engine_options=options,
            gpu=gpu,
            gpus=gpus,
            instance=instance,
            tp=tp or 1,
            pp=pp or 1,
            dp=dp or 1,
            dcp=dcp or 1,
            ep=ep or 1,
            memory_utilization=memory_utilization,
            kv_memory=kv_memory,
            margin=margin,
            lora=lora,
            draft=draft,
            revision=revision,
            offline=offline,
            token=token,
            endpoint=endpoint,
            assume=assume,
        )
    for note in result.notes:
        if note.code == "hub-unreachable":
            write(sys.stderr, f"kvplan: {note.message}\n")
    return result, view


@contextmanager
def reading(model: str) -> Iterator[None]:
    """While a model is read: what it waits for, on a terminal; a name that no source knows may have been meant as a command."""
    try:
        with progress():
            yield
    except (ModelNotFoundError, HubError) as error:
        error.hint = _command_meant(model) or error.hint
        raise


def progress() -> AbstractContextManager[None]:
    """A block in which a terminal is told what takes long."""
    if sys.stderr is None or not sys.stderr.isatty():
        return nullcontext()
    from hwcalc.cli.progress import shown

    return shown(sys.stderr)


def _command_meant(model: str) -> str:
    """A MODEL that is no model may be a command with a typing error: ``engine`` for ``engines``."""
    from difflib import get_close_matches

    near = get_close_matches(model, COMMANDS, n=1, cutoff=0.75)
    return f"Did you mean the command: kvplan {near[0]}" if near else ""


def engine_options(pairs: Sequence[str]) -> dict[str, str]:
    """``["cache=static", "nbits=4"]`` as a dict; a name without a value or given twice is an error."""
    out: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not (name and sign and value):
            raise UsageError(f"--engine-option {pair[:40]!r} has no name or no value.", hint="Write: --engine-option NAME=VALUE")
        if name in out:
            raise UsageError(f"--engine-option {name[:40]} is given twice.", hint="Give it once.")
        out[name] = value
    return out

"""The nearest plan that an engine accepts, for the hint of an error: the same request with one thing less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from hwcalc.engines import find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError
from hwcalc.model import ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.command import CommandLine
from hwcalc.planner.context import open_request
from hwcalc.planner.policy_options import OF_POLICY
from hwcalc.units import parse_tokens

_DROPPED: Final = (
    "dtype", "weights", "engine_options", "draft", "lora", "dcp", "ep", "policy", "shared_prefix", "samples", "beams",
)  # fmt: skip
"""Options that an engine may refuse, in the order in which they are left out."""
_LAYOUT: Final = ("gpus", "tp", "pp", "dp")
_NODE: Final = 8
_COMMON_WEIGHTS: Final = ("awq", "fp8")
"""Formats that most engines read, the smaller one first."""


def working(model: ModelSpec, options: Mapping[str, Any], line: CommandLine) -> str:
    """A sentence with a command line that is accepted: one option less, or another layout. Empty if none of those tried is.

    The first that also fits is named. If none does, the sentence says so.
    """
    accepted = ""
    for settings in _nearest(options):
        changed = {name: value for name, value in {**options, **settings}.items() if value is not None}
        try:
            opened = open_request(model, **changed)
            _ = opened.evicted  # raises what a policy refuses
            fits = not _has_verdict(opened) or solve.holds(opened)
        except KvplanError:
            continue
        command = line.changed(**settings).text
        if fits:
            return f"This works: {command}"
        accepted = accepted or command
    return f"Accepted, but too large for this hardware: {accepted}" if accepted else ""


def _has_verdict(opened: Occupancy) -> bool:
    hardware = opened.request.hardware
    return hardware.kv_memory is not None or (hardware.gpu is not None and opened.budget is not None)


def _nearest(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    given = [name for name in _DROPPED if options.get(name) not in (None, 1)]
    if {"samples", "beams"} & set(given) and options.get("prompt") is None and options.get("seq") is not None:
        # What they have in common is the prompt, and it was not said how long that is.
        yield {"prompt": max(1, parse_tokens(options["seq"], "seq") // 2)}
    if "weights" in given:
        yield from ({"weights": name} for name in _COMMON_WEIGHTS)
    yield from ({name: None, **(dict.fromkeys(OF_POLICY) if name == "policy" else {})} for name in given)
    if options.keys() & set(_LAYOUT):
        yield from _layouts(options)
    engine, _, version = str(options.get("engine", "reference")).partition("@")
    if version:
        yield {"engine": engine}
    if find_engine(engine)[0].name != "reference":
        own = find_engine(engine)[0].options
        yield {"engine": None, **({"engine_options": None} if own else {}), **({"dtype": None} if "dtype" in given else {})}


def _layouts(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Layouts of so many GPUs as people have, a power of two, and then of exactly as many."""
    dp = options.get("dp") or 1
    count = options.get("gpus") or (options.get("tp") or 1) * (options.get("pp") or 1) * dp
    for gpus in dict.fromkeys((1 << (count.bit_length() - 1), count)):
        for tp in (8, 4, 2, 1):
            rest, odd = divmod(gpus, tp * dp)
            if tp <= min(_NODE, gpus) and not odd and rest:
                yield {"gpus": gpus, "tp": tp, "pp": rest, "dp": dp}

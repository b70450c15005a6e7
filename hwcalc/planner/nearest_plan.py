"""The nearest plan that an engine accepts, for the hint of an error: the same request with one thing less, or in another layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines import AT_HOME, find_engine
from hwcalc.errors import KvplanError, UsageError
from hwcalc.model import ModelSpec
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.planner.options import HOST_MEMORY, OF_POLICY, ROWS
from hwcalc.units import parse_tokens

if TYPE_CHECKING:
    from hwcalc.planner.command_line import CommandLine

_DROPPED: Final = (
    "dtype", "weights", "engine_options", "draft", "lora", "dcp", "ep", "policy", "shared_prefix", "samples", "beams",
)  # fmt: skip
"""Options that an engine may refuse, in the order in which they are left out."""
_NODE: Final = 8
_COMMON_WEIGHTS: Final = ("awq", "fp8")
"""Formats that most engines read, the smaller one first."""


def working(model: ModelSpec, options: Mapping[str, Any], line: CommandLine) -> str:
    """A sentence with an accepted command line: an option less, or another layout. Empty if no such line is accepted.

    The sentence names the first such line whose plan fits too. If no plan fits, the sentence says so.
    """
    accepted = ""
    for settings in _nearest(options):
        changed = {name: value for name, value in {**options, **settings}.items() if value is not None}
        try:
            opened = open_request(model, **changed)
            _ = opened.evicted  # raises what a policy refuses
            hardware = opened.setup.hardware
            judged = hardware.kv_memory is not None or (hardware.gpu is not None and opened.budget is not None)
            fits = not judged or solve.holds(opened)
        except KvplanError:
            continue
        command = line.changed(**settings).text
        if fits:
            return f"This works: {command}"
        accepted = accepted or command
    return (
        f"The engine accepts this line, which does not fit on this hardware and says what to try: {accepted}" if accepted else ""
    )


def _nearest(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    given = [name for name in _DROPPED if options.get(name) not in (None, 1)]
    if {"samples", "beams"} & set(given) and options.get("prompt") is None and options.get("seq") is not None:
        # What they have in common is the prompt, and it was not said how long that is.
        yield {"prompt": max(1, parse_tokens(options["seq"], "seq") // 2)}
    if "weights" in given:
        yield from ({"weights": name} for name in _COMMON_WEIGHTS)
    knobs = options.get("engine_options") or {}
    for knob in knobs:
        changed: dict[str, Any] = {"engine_options": {name: value for name, value in knobs.items() if name != knob} or None}
        if knob == HOST_MEMORY:
            # The engine option wants a unit, and may be refused for the lack of it.
            with suppress(UsageError):
                yield {**changed, "ram": ROWS["ram"].read(knobs[knob])}
        yield changed
    yield from ({name: None, **(dict.fromkeys(OF_POLICY) if name == "policy" else {})} for name in given)
    yield from _layouts(options)
    engine, _, version = str(options.get("engine", "reference")).partition("@")
    if version:
        yield {"engine": engine}
    own = find_engine(engine)[0]
    dropped = {**({"engine_options": None} if own.options else {}), **({"dtype": None} if "dtype" in given else {})}
    # The formulas alone say nothing of an accelerator that no engine runs on, and nothing is left to its host.
    other = None if options.get("gpu") is None else AT_HOME
    if own.name not in ("reference", other) or options.get("ram") is not None:
        yield {"engine": other, **dropped}


def _layouts(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The options with other layouts: first of a power of two of GPUs, as people have them, then of the given number of GPUs."""
    dp = options.get("dp") or 1
    count = options.get("gpus") or (options.get("tp") or 1) * (options.get("pp") or 1) * dp
    for gpus in dict.fromkeys((1 << (count.bit_length() - 1), count)):
        for tp in (8, 4, 2, 1):
            rest, odd = divmod(gpus, tp * dp)
            if tp <= min(_NODE, gpus) and not odd and rest:
                yield {"gpus": gpus, "tp": tp, "pp": rest, "dp": dp}

"""What the command line of a state gives, read as the program reads it, with the names that the page has."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from hwcalc import plan
from hwcalc.cli.options import given_options
from hwcalc.cli.quick import read
from hwcalc.errors import KvplanError

__all__ = ["agree", "planned"]


def planned(command: str) -> dict[str, Any] | str:
    """What the command line gives: the plan's numbers as the page has them, or why there are none."""
    words = shlex.split(command)
    assert words[0] == "kvplan"
    line = read(words[1:])
    assert line is not None, command
    name, values = line
    assert name == "plan"
    try:
        found = plan(values["model"], offline=True, **given_options("plan", values)).to_dict()
    except KvplanError as error:
        return f"{error.message} {error.hint}".strip()
    fit, cache, per_gpu = found["fit"], found["cache"], found["memory"]["per_gpu"]
    if fit is None or None in per_gpu.values():
        return "what this model needs beside its cache is not known to kvplan."
    return {
        "cache": {name: cache[name] for name in ("total_bytes", "per_gpu_bytes")},
        "per_gpu": {name: per_gpu[name] for name in ("weights", "cache", "activations", "overhead", "total")},
        "fit": {
            name: fit[name]
            for name in (
                *("usable_bytes", "needed_bytes", "needed_low_bytes", "needed_high_bytes", "headroom_bytes", "verdict"),
                *("max_seq", "expected_max_seq", "max_batch", "expected_max_batch"),
            )
        },
    }


def agree(answer: Mapping[str, Any], expected: Mapping[str, Any] | str) -> bool:
    """Whether the page says what the plan says. To a refusal the plan adds a command line that works."""
    if isinstance(expected, str):
        return answer.keys() == {"refused"} and answer["refused"] != "" and expected.startswith(answer["refused"])
    return answer == expected

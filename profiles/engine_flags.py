"""The flags of an engine's server, and what kvplan makes of each: ``engines/<engine>/flags.yaml``, read compiled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.profiles.compiled import record

SWITCH: Final = ""
VALUE: Final = "1"
VALUES: Final = "+"
"""How many values follow a flag: none, one, or all words up to the next flag."""
_TAKES: Final = {"switch": SWITCH, "value": VALUE, "values": VALUES}


class EngineFlags(Record):
    """The flags of one engine's server.

    ``options`` has the flags of each option of a plan; ``values`` and ``switches`` are engine options whose flag has the same name;
    ``together`` has flags that say one option in common. ``takes`` says how many values follow a flag that is left out; ``unplanned`` has
    the reason for those that bear on memory in a way that no plan counts. No planned byte depends on the others of ``takes``.
    """

    options: Mapping[str, tuple[str, ...]]
    values: tuple[str, ...]
    switches: tuple[str, ...]
    together: Mapping[str, tuple[str, ...]]
    takes: Mapping[str, str]
    unplanned: Mapping[str, str]


@lru_cache(maxsize=8)
def engine_flags(engine: str) -> EngineFlags:
    """The flags of this engine.

    >>> flags = engine_flags("vllm")
    >>> flags.options["seq"], flags.takes["--host"], flags.unplanned["--hf-overrides"]
    (('--max-model-len',), '1', 'it changes the model')
    """
    data = record("engines", f"{engine}/flags")
    takes: dict[str, str] = {}
    unplanned: dict[str, str] = {}
    for row in (*data["unplanned"], data["without_effect"]):
        for kind, many in _TAKES.items():
            for flag in row.get(kind, ()):
                takes[flag] = many
                if "because" in row:
                    unplanned[flag] = row["because"]
    # A switch has a form that turns it off, unless that means something of its own.
    for flag, many in list(takes.items()):
        off = flag.replace("--", "--no-", 1)
        if many == SWITCH and flag.startswith("--") and not flag.startswith("--no-") and off not in takes:
            takes[off] = SWITCH
            if flag in unplanned:
                unplanned[off] = unplanned[flag]
    return EngineFlags(
        options={name: tuple(flags) for name, flags in data["options"].items()},
        values=tuple(data["engine_options"]["value"]),
        switches=tuple(data["engine_options"]["switch"]),
        together={name: tuple(flags) for name, flags in data["together"].items()},
        takes=takes,
        unplanned=unplanned,
    )

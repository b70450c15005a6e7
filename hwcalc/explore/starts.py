"""The command lines that start an engine as planned, as templates in which the page puts length and number of sequences.

A word of a command line either does not depend on these two, or is one of them, or their product. Which it is, is seen in command lines of
other lengths and numbers; a command line with any other word has no template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines import find_engine
from hwcalc.engines.options import CommandInput
from hwcalc.errors import KvplanError
from hwcalc.explore.runs import AS_PUBLISHED, every, grid_of
from hwcalc.explore.tables import Place
from hwcalc.planner.command_input import command_input, startable
from hwcalc.planner.plan import plan_opened
from hwcalc.text import shell_word

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.explore.runs import Pools, Requests

_SAMPLES: Final = ((10_007, 13), (30_013, 19))
"""Lengths and numbers of sequences that no other number of a command line equals."""
_PUBLISHED: Final = {"catalog", "hub", "hf-cache"}
_NUMBER: Final = re.compile(r"\d+")


def starts_of(requests: Requests, runs: Mapping[str, Any], pools: Pools) -> dict[str, Any] | None:
    """The templates by format of the cache, of the weights and layout, and a remark on them (``Starts`` in ``page/types.d.ts``).

    ``None`` where there is nothing to type.
    """
    model, engine, axes = requests.model, requests.engine, requests.axes
    rules = find_engine(engine)[0].command
    # A server is given a repository of the Hub; of a file or a config here the plan has the command.
    if "curve" not in runs or not rules.known or model.source not in _PUBLISHED or model.gguf is not None or model.assumed:
        return None
    given, remarks = _input(requests.plain), []
    sizes = (len(runs["dtypes"]), len(runs["weights"]), len(axes.layouts))
    stored = []
    for name in runs["weights"]:
        planned = replace(given, weights=None if name == AS_PUBLISHED else name)
        remark = ""
        with suppress(KvplanError):
            planned, remark = startable(rules, planned)
        stored.append(planned)
        remarks.append(pools.text(remark))
    cells: dict[Place, int | None] = {}
    layouts = requests.layouts
    for place in every(sizes):
        dtype, weights, layout = place
        alike = layouts.index(layouts[layout])
        if alike < layout:
            cells[place] = cells[dtype, weights, alike]
            continue
        planned = replace(stored[weights], kv_dtype=runs["dtypes"][dtype], kv_dtype_named=dtype > 0, parallel=layouts[layout])
        template = template_of(engine, planned, given.model)
        cells[place] = None if template is None else pools.text(template)
    grid = grid_of(cells, sizes)
    if grid is None:
        return None
    return {"commands": grid, "remarks": remarks}


def _input(opened: Occupancy) -> CommandInput:
    """The values of which a command line of the model in its usual formats is made."""
    # What a length, a number of sequences or a GPU decides is no part of a template.
    return replace(command_input(plan_opened(opened, limits=False)), requires=(), environment=(), on_host=False)


def template_of(engine: str, planned: CommandInput, model: str) -> str | None:
    """The command line, behind what has to run before, with ``{model}``, ``{seq}``, ``{batch}`` and ``{cells}``, their product, in it; ``None`` if it has no such form, or there is none.

    ``{model}`` stands for ``model``; another is named as it is.
    """
    rules = find_engine(engine)[0].command
    lines = []
    for seq, batch in _SAMPLES:
        try:
            one = replace(planned, seq=seq, batch=batch)
            if rules.file(one) is not None:
                return None
            both = [list(rules.first(one)[0]), rules.words(one)]
        except KvplanError:
            return None
        typed = [["{model}" if word == model else shell_word(word) for word in words] for words in both if words]
        if any("{" in word and word != "{model}" for words in typed for word in words):
            return None
        line = "\n".join(" ".join(words) for words in typed)
        numbers = {str(seq): "{seq}", str(batch): "{batch}", str(seq * batch): "{cells}"}
        lines.append(_NUMBER.sub(lambda found, numbers=numbers: numbers.get(found[0], found[0]), line))  # type: ignore[misc]
    return lines[0] if len(set(lines)) == 1 else None

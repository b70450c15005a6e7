"""A plan as a table for the terminal.

The layers of a model in one line: a letter for each, so that a pattern is seen at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from hwcalc.library.layer_bytes import LayerBytes, layer_bytes
from hwcalc.planner.result import Plan
from hwcalc.report.drawing import BETWEEN, PIPED_WIDTH, SCREEN, Piece, Text, columns, hanging, indented, rendered
from hwcalc.report.glance import ask_line, first_lines, kept_lines, more_notes, notes_of, verdict_color
from hwcalc.report.summary import (
    DEVICE_HEADER,
    advice_command,
    advice_pair,
    definition,
    device_rows,
    figures,
    model_lines,
    request_line,
    start_line,
    verdict,
)
from hwcalc.report.text import abbreviated, exact, layer_words, percent, plural
from hwcalc.text import clean
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.report.summary import LayerShare

Detail = Literal["brief", "usual", "full"]

_USUAL_WIDTH: Final = 100
"""Columns by which the lines of a screen are counted where there is no narrower terminal."""
_BAR: Final = 40
_SHORTEST_BAR: Final = 10


def plan_table(
    plan: Plan,
    *,
    color: bool = False,
    width: int = PIPED_WIDTH,
    quiet: bool = False,
    detail: Detail = "usual",
    command: str = "",
) -> str:
    """The answer on the first screen, then where it comes from: figures, a bar for each group of layers, and notes.

    ``detail`` is ``brief`` for the answer alone, ``full`` for all notes, groups and tensors. ``quiet`` leaves out notes and hints;
    warnings are always shown. ``command`` is the command line of this plan, for the line that says how to go on.
    """
    full = detail == "full"
    parts = _first_screen(plan, width, command, detail=detail, quiet=quiet)
    if detail != "brief":
        parts += _figures(plan, width) if plan.fit is not None else []
        parts += _dropped_and_shared(plan, full=full)
        parts += _details(plan, full=full)
        parts += _devices(plan, width, full=full)
        parts += _layers(plan, width)
        parts += _everything(plan, width) if full else []
        if not quiet:
            texts, more = notes_of(plan, full=full)
            parts += hanging([*(("note", text, "dim") for text in texts), *((*line, "dim") for line in more_notes(more))])
    return rendered(parts, color=color, width=width).rstrip("\n") + "\n"


def _first_screen(plan: Plan, width: int, command: str, *, detail: Detail, quiet: bool) -> list[Piece]:
    """Model, request and answer, and what to change."""
    name, about, _ = model_lines(plan)
    parts: list[Piece] = [
        Text((name, "bold"), ("  " + about, "dim")),
        Text(request_line(plan)),
        Text(),
    ]
    warnings = hanging([("warning", clean(note.message), "yellow") for note in plan.warnings])
    if plan.fit is None:
        parts += _figures(plan, width)
        if detail == "brief":
            parts += hanging([(label, text, "") for label, text in kept_lines(plan)])
        asked = None if quiet else ask_line(plan, command)
        parts += [] if asked is None else [*_command("ask", *asked), Text()]
    else:
        parts.append(Text(verdict(plan), style=f"bold {verdict_color(plan)}"))
        parts += hanging([(label, text, "") for label, text in first_lines(plan).answer])
        start = start_line(plan)
        parts += [] if start is None else _command("start", *start)
        parts += [*_tries(plan, parts, width, detail), Text()]
    return [*parts, *warnings, Text()] if plan.warnings else parts


def _tries(plan: Plan, before: Sequence[Piece], width: int, detail: Detail) -> list[Piece]:
    """What would help: as many as the first screen has room for, at least one; all of them in full."""
    assert plan.fit is not None
    counted = min(width, _USUAL_WIDTH)
    room = SCREEN[0] - _height(before, counted)
    out: list[Piece] = []
    tries = plan.fit.suggestions
    for place, one in enumerate(tries):
        left = len(tries) - place
        need = (1 if left > 1 else 0) if detail != "full" and place else -inf
        # What a change gives takes long to find out: where the command alone has no room, nobody asks.
        lines = _command("try", advice_command(one), "")
        if room - _height(lines, counted) >= need:
            lines = _command("try", *advice_pair(one, plan.request.engine))
        room -= _height(lines, counted)
        if room < need:
            # The two options exclude each other.
            how = "-v in place of --brief" if detail == "brief" else "-v"
            return [*out, Text(f"           {left:,} more: {how}", style="dim")]
        out += lines
    return out


def _height(parts: Sequence[Piece], width: int) -> int:
    """Lines of a screen that the parts take; a terminal wraps a longer line by itself."""
    return sum(max(1, -(-len(line) // width)) for line in rendered(parts, width=width).splitlines()) if parts else 0


def _command(label: str, command: str, remark: str) -> list[Piece]:
    """A command to copy, which no line break cuts, and what it does: beside it, or below if they are longer than a line."""
    words: tuple[str | tuple[str, str], ...] = (f"  {label:<7}  ", (clean(command), "bold cyan"))
    text = Text(*words, whole=True)
    if not remark:
        return [text]
    if text.cell_len + len(remark) + 4 <= SCREEN[1]:
        return [Text(*words, (f"  ({clean(remark)})", "dim"), whole=True)]
    return [text, *hanging([(" " * 7, clean(remark), "dim")])]


def _figures(plan: Plan, width: int) -> list[Piece]:
    """The cache, and the headline numbers one below the other."""
    total = plan.cache.total_bytes
    rows = []
    for figure in figures(plan):
        strong = "bold" if figure.name == "total" else ""
        rows.append(
            [
                Text("  " + figure.name, style=strong),
                Text(exact(figure.bytes), style=strong),
                Text(human_bytes(figure.bytes), style=strong),
                Text(figure.meaning, style="dim"),
            ]
        )
    return [
        Text(
            ("KV cache  ", "bold"), (human_bytes(total), "bold green"), f"  =  {exact(total)}", (f"  {definition(plan)}", "dim")
        ),
        columns(rows, width=width, right=(1, 2)),
        Text(),
    ]


def _dropped_and_shared(plan: Plan, *, full: bool) -> list[Piece]:
    """What the policy of the cache does, and what sequences have in common."""
    out: list[Piece] = []
    if plan.policy is None and plan.sharing is None:
        return out
    from hwcalc.report.policy import policy_lines, sharing_lines

    for lines in (policy_lines(plan, full=full), sharing_lines(plan)):
        if lines:
            (title, first), *others = _unrepeated(lines)
            out += [Text(f"{title} {first}", style="bold"), *hanging([(label, text, "") for label, text in others]), Text()]
    return out


def _unrepeated(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Each label once, beside its first line."""
    before = ""
    for label, text in lines:
        yield "" if label == before else label, text
        before = label


def _details(plan: Plan, *, full: bool) -> list[Piece]:
    """How the budget comes about, and what the engine makes of it."""
    lines = first_lines(plan, full=full).details
    return [Text("each GPU", style="bold"), *hanging([(label, text, "") for label, text in lines]), Text()] if lines else []


def _devices(plan: Plan, width: int, *, full: bool) -> list[Piece]:
    """What each device holds, for engines that place layers."""
    rows = [[Text("  " + first), *map(Text, others)] for first, *others in device_rows(plan, full=full)]
    if not rows:
        return []
    header = [Text(title, style="bold") for title in DEVICE_HEADER]
    return [columns([header, *rows], width=width, right=range(2, len(DEVICE_HEADER))), Text()]


def _layers(plan: Plan, width: int) -> list[Piece]:
    """The shape of the model, and two lines for each group of layers: its description, then its bar and bytes."""
    from hwcalc.report.summary import shares

    groups, total = shares(plan), plan.cache.total_bytes
    exact_width = max(len(exact(group.bytes)) for group in groups)
    human_width = max(len(human_bytes(group.bytes)) for group in groups)
    bar = max(_SHORTEST_BAR, min(_BAR, width - exact_width - human_width - 15))
    lines: list[Piece] = [Text(model_lines(plan)[2], style="bold")]
    if (strip := layer_strip(plan, width - BETWEEN)) is not None:
        pattern, meanings = strip
        if BETWEEN + len(pattern) + BETWEEN + len(meanings) <= width:
            lines.append(indented(Text(pattern, (f"  {meanings}", "dim"))))
        else:
            lines += [indented(Text(pattern)), indented(Text(meanings, style="dim"))]
    for group in groups:
        filled = 0 if total == 0 else max(1 if group.bytes else 0, (2 * bar * group.bytes + total) // (2 * total))
        lines += [
            indented(Text((group.title, "bold"), ("  " + _described(group), "dim"))),
            Text(
                ("  " + "█" * filled, "cyan"),
                ("░" * (bar - filled), "dim"),
                f"  {percent(group.bytes, total):>7}"
                f"  {exact(group.bytes):>{exact_width}}  {human_bytes(group.bytes):>{human_width}}",
            ),
        ]
    return [*lines, Text()]


def _described(group: LayerShare) -> str:
    layers = layer_words(group.count, group.layers, abbreviated(group.layers.text)) if group.count else ""
    return " · ".join(filter(None, (layers, group.rule, group.dtypes)))


def _everything(plan: Plan, width: int) -> list[Piece]:
    """Every tensor, and the parts of weights and overhead."""
    from hwcalc.report.summary import is_room

    out: list[Piece] = []
    tensors = [
        ["  " + tensor.name, tensor.kind, layer_words(tensor.count, tensor.layers) if tensor.layers else "",
         "x".join(map(str, tensor.shape)), "" if is_room(tensor) else tensor.dtype, f"{tensor.positions:,}", exact(tensor.bytes)]
        for tensor in plan.cache.tensors
    ]  # fmt: skip
    sections: list[tuple[tuple[str, ...], list[list[str]], tuple[int, ...]]] = [
        (("  tensor", "of", "layers", "shape", "dtype", "positions", "bytes"), tensors, (5, 6))
    ]
    groups = [
        ["  " + group.kind, layer_words(group.count, group.layers), f"{group.block_size:,}", exact(group.block_bytes),
         f"{group.blocks_per_request:,}"]
        for group in plan.cache.groups
    ]  # fmt: skip
    sections.append((("  group", "layers", "tokens a block", "bytes a block", "blocks a request"), groups, (2, 3, 4)))
    parts = [
        ["  " + part.kind, part.part, plural(part.count, "layer"), f"{part.parameters:,}", exact(part.bytes)]
        for part in plan.memory.weights.parts
    ]
    sections.append((("  weights", "of", "", "parameters", "bytes"), parts, (3, 4)))
    overhead = [] if plan.fit is None or plan.fit.budget is None else plan.fit.budget.parts
    terms = [
        ["  " + part.name, part.definition, exact(part.low), exact(part.expected), exact(part.high), clean(part.source)]
        for part in overhead
    ]
    sections.append((("  each GPU", "is", "low", "expected", "high", "source"), terms, (2, 3, 4)))
    for header, rows, right in sections:
        if rows:
            cells = [[Text(clean(cell)) for cell in row] for row in rows]
            out += [columns([[Text(title, style="bold") for title in header], *cells], width=width, right=right), Text()]
    return out


_NONE: Final = "."
"""A layer without any bytes."""
_MANY: Final = 2
"""A capital says that a layer has at least the largest one's bytes, divided by this."""
_LEAST: Final = 20


def layer_strip(plan: Plan, width: int) -> tuple[str, str] | None:
    """A letter for each layer, and what the letters mean; ``None`` if no layer keeps anything.

    The letter says the kind, a capital that it has many bytes: ``ssssSF`` would be four windowed layers, and a large one, and a full one.
    Where the line is too narrow a letter stands for several layers, the largest of them.
    """
    layers = layer_bytes(plan)
    most = max((layer.bytes for layer in layers), default=0)
    if not most:
        return None
    letters = _letters(layers)

    def sign(layer: LayerBytes) -> str:
        if not layer.bytes:
            return _NONE
        return letters[layer.title] if layer.bytes * _MANY >= most else letters[layer.title].lower()

    each = -(-len(layers) // max(_LEAST, width))
    shown = [max(layers[start : start + each], key=lambda layer: layer.bytes) for start in range(0, len(layers), each)]
    sizes: dict[str, dict[str, list[int]]] = {}
    for layer in layers:
        sizes.setdefault(sign(layer), {}).setdefault(layer.title, []).append(layer.bytes)
    many = f", {each} layers a letter" if each > 1 else ""
    return "".join(map(sign, shown)), ", ".join(_meanings(sizes)) + many


def _letters(layers: Sequence[LayerBytes]) -> dict[str, str]:
    """A capital for each title: its first letter that no other title has."""
    letters: dict[str, str] = {}
    for title in dict.fromkeys(layer.title for layer in layers if layer.bytes):
        free = (letter for letter in (*title.upper(), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ") if letter not in letters.values())
        letters[title] = next(letter for letter in free if letter.isalpha())
    return letters


def _meanings(sizes: Mapping[str, Mapping[str, Sequence[int]]]) -> Iterator[str]:
    for sign, titles in sizes.items():
        if sign == _NONE:
            yield f"{_NONE} nothing of its own"
            continue
        ((title, found),) = titles.items()
        low, high = human_bytes(min(found)), human_bytes(max(found))
        yield f"{sign} {title} {low if low == high else f'{low} to {high}'} each"

"""A plan as a table for the terminal.

The layers of a model in one line: a letter for each, so that a pattern is seen at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from hwcalc.formulas import LayerNumbers
from hwcalc.library.layer_bytes import LayerBytes, layer_bytes
from hwcalc.planner.result import Plan
from hwcalc.report.columns import GAP
from hwcalc.report.drawing import (
    SCREEN,
    Column,
    Grid,
    Piece,
    Text,
    columns,
    hanging,
    height,
    indented,
    longest_word,
    rendered,
)
from hwcalc.report.styles import ACCENT, BAD, CACHE, OF_VERDICT, REST, UNSURE, WEIGHTS
from hwcalc.report.summary import (
    DEVICE_HEADER,
    advice_command,
    advice_pair,
    ask_line,
    definition,
    device_rows,
    figures,
    hints_of,
    is_room,
    model_lines,
    notes_of,
    request_lines,
    shares,
    start_lines,
)
from hwcalc.report.text import PIPED_WIDTH, abbreviated, continued, exact, filled, filled_items, layer_words, percent, plural
from hwcalc.report.verdict import first_lines, kept_lines, verdict
from hwcalc.report.view import Detail
from hwcalc.text import clean
from hwcalc.units import human_bytes

_USUAL_WIDTH: Final = 100
"""Columns by which the lines of a screen are counted where there is no narrower terminal."""
_BAR: Final = 40
_SHORTEST_BAR: Final = 10
_LABEL: Final = 7
"""Characters of the longest label of the first screen."""
_SHORT: Final = frozenset({"brief", "screen"})


def plan_table(
    plan: Plan,
    *,
    color: bool = False,
    width: int = PIPED_WIDTH,
    lines: int = 0,
    quiet: bool = False,
    detail: Detail = "usual",
    command: str = "",
) -> str:
    """The answer on the first screen, then where it comes from: figures, a bar for each group of layers, and notes.

    ``detail`` is ``brief`` for the answer alone, ``screen`` for the same where nobody asked to be brief, ``full`` for all notes, groups
    and tensors. ``quiet`` leaves out notes and hints; warnings are always shown. ``command`` is the command line of this plan, for the
    line that says how to go on. The first screen has so many ``lines``, and at least those of :data:`SCREEN`.
    """
    full = detail == "full"
    parts = _first_screen(plan, width, max(SCREEN[0], lines), command, detail, quiet=quiet)
    if detail not in _SHORT:
        parts += _figures(plan, width) if plan.fit is not None else []
        parts += _dropped_and_shared(plan, full=full)
        if details := first_lines(plan, full=full)[1]:
            parts += [Text("each GPU", style="bold"), *hanging([(label, text, "") for label, text in details]), Text()]
        if devices := device_rows(plan, full=full):
            rows = [[Text("  " + first), *map(Text, others)] for first, *others in devices]
            header = [Text(title, style="bold") for title in DEVICE_HEADER]
            parts += [*columns([header, *rows], width=width, right=range(2, len(header))), Text()]
        parts += _layers(plan, width)
        parts += _everything(plan, width) if full else []
        if not quiet:
            texts, more = notes_of(plan, full=full, hinted=True)
            notes = [("note", text, "dim") for text in texts]
            parts += hanging([*notes, ("", f"{plural(more, 'more note')}: -v", "dim")] if more else notes)
    return rendered(parts, color=color, width=width).rstrip("\n") + "\n"


def _first_screen(plan: Plan, width: int, lines: int, command: str, detail: Detail, *, quiet: bool) -> list[Piece]:
    """Model, request and answer, and what to change. ``command`` is empty where no line says how to go on."""
    name, about, _ = model_lines(plan)
    head = filled(f"{name}  {about}", width)
    titled = Text((head[: len(name)], "bold"), (head[len(name) :], "dim"))
    parts: list[Piece] = [titled, *(Text(filled_items(line, width)) for line in request_lines(plan)), Text()]
    more, spared = 0, list[str]()
    ask = ask_line(plan, "" if quiet else command)
    asked = [] if quiet else hanging([("hint".ljust(_LABEL), text, "") for text in hints_of(plan)])
    asked += [] if ask is None else _command("ask", *ask, width)
    if plan.fit is None:
        parts += _figures(plan, width)
        if detail in _SHORT:
            parts += hanging([(label, text, "") for label, text in kept_lines(plan)])
        parts += [*asked, Text()] if asked else []
    else:
        parts.append(Text(filled(verdict(plan), width), style=_verdict_style(plan)))
        answer, spared = _answer(plan, parts, asked, width, lines, detail)
        parts += answer
        tries, more = _tries(plan, parts, width, lines, detail)
        parts += [*tries, Text()]
    parts += _warnings(plan)
    if detail == "screen" and not quiet:
        parts.append(Text(_rest(spared, more), style="dim"))
    return parts


_SPARE: Final = ("chunk", "fewest", "cache", "host", "longest", "at once", "speed")
"""Lines of the answer that a screen which is too small leaves to ``-v``, in this order: what other lines tell too comes first."""
_SPARE_OF_ONE: Final = ("chunk", "fewest", "cache", "host", "at once", "longest", "speed")
"""The same of a plan for one sequence, of which it matters more how long it may be."""


def _answer(
    plan: Plan, before: Sequence[Piece], asked: Sequence[Piece], width: int, screen: int, detail: Detail
) -> tuple[list[Piece], list[str]]:
    """The lines below the verdict, how to start it and what is ``asked`` at their end; and the names of those that a ``screen`` has no room for.

    Lines of :data:`_SPARE` give way.
    """
    assert plan.fit is not None
    order = _SPARE if plan.request.batch > 1 else _SPARE_OF_ONE
    lines, out, spared = first_lines(plan)[0], list[Piece](), list[str]()
    # A plan that does not fit has one change that helps at least.
    first = () if not plan.refutes else plan.fit.suggestions[:1]
    pairs = (advice_pair(one, plan.request.engine) for one in first)
    others = [*before, *_warnings(plan), *(piece for pair in pairs for piece in _command("try", *pair, width))]
    counted = min(width, _USUAL_WIDTH)
    # Above is the line that was typed; below are a blank line, how to see the rest, and the next line to type.
    room = screen - 4 - height(others, counted)
    ends = [*(piece for line in start_lines(plan) for piece in _command(*line, width)), *asked]
    for spare in range(len(order) + 1):
        gone = order[:spare]
        spared = [label for label in gone if label in dict(lines)]
        out = []
        for label, text in lines:
            if label not in gone:
                out += hanging([(label.ljust(_LABEL), text, "")])
                out += _stack(plan, width) if label == "needs" else []
        out += ends
        if detail != "screen" or height(out, counted) <= room:
            break
    return out, spared


def _verdict_style(plan: Plan) -> str:
    assert plan.fit is not None
    if plan.refutes and plan.fit.fits:
        # It fits, and is too slow: the exit status says no.
        return BAD
    return OF_VERDICT[(plan.overrun.verdict if plan.overrun is not None and plan.serves_users else plan.fit.verdict).text]


def _rest(spared: Sequence[str], more: int) -> str:
    """A line on how to see the rest: what the screen had no room for, and so many more changes that help."""
    return f"-v: {', '.join((*spared, *([f'{more:,} more to try'] if more else []), 'pool, layers, notes'))}"


def _warnings(plan: Plan) -> list[Piece]:
    # What is refused stands among the reasons of a plan that does not fit.
    said = plan.refused_length if plan.reason and not plan.serves_users else ""
    lines = [("warning", clean(note.message), UNSURE) for note in plan.warnings if note.message != said]
    return [*hanging(lines), Text()] if lines else []


def _tries(plan: Plan, before: Sequence[Piece], width: int, screen: int, detail: Detail) -> tuple[list[Piece], int]:
    """Changes that help, as many as the first screen has room for, and the number of others. In full there is room for all.

    At least one is shown where the plan does not fit, or is too slow.
    """
    assert plan.fit is not None
    tries = () if plan.serves_users and not plan.refutes else plan.fit.suggestions
    counted = min(width, _USUAL_WIDTH)
    # On a terminal the line that was typed, a blank line, what is said below, and the next line to type have their places.
    below = 4 + height(_warnings(plan), counted) if detail == "screen" else 0
    room = screen - below - height(before, counted) if tries else 0
    always = plan.refutes
    out: list[Piece] = []
    for place, one in enumerate(tries):
        left = len(tries) - place
        # The first has no limit, nor has any in full; a later one leaves a line for how to see more, if it is not the last.
        lines_for_more = 1 if left > 1 and detail != "screen" else 0
        need = -inf if detail == "full" or (place == 0 and always) else lines_for_more
        # What a change gives takes long to find out: where the command alone has no room, nobody asks.
        lines = _command("try", advice_command(one), "", width)
        if room - height(lines, counted) >= need:
            lines = _command("try", *advice_pair(one, plan.request.engine), width)
        room -= height(lines, counted)
        if room < need:
            # The two options exclude each other.
            how = "-v in place of --brief" if detail == "brief" else "-v"
            return out if detail == "screen" else [*out, Text(f"           {left:,} more to try: {how}", style="dim")], left
        out += lines
    return out, 0


def _command(label: str, command: str, remark: str, width: int) -> list[Piece]:
    """A command to copy, in lines that a shell reads as one, and what it does: beside it, or below if they are longer than a line."""
    shown = f"\n{'':<11}".join(continued(clean(command), width - 11))
    words: tuple[str | tuple[str, str], ...] = (f"  {label:<7}  ", (shown, ACCENT))
    text = Text(*words, whole=True)
    if not command:
        return hanging([(label.ljust(7), clean(remark), "")])
    if not remark:
        return [text]
    if text.cell_len + len(remark) + 4 <= SCREEN[1]:
        return [Text(*words, f"  ({clean(remark)})", whole=True)]
    return [text, *hanging([(" " * 7, clean(remark), "")])]


def _figures(plan: Plan, width: int) -> list[Piece]:
    """The cache, and the headline numbers one below the other."""
    total = plan.cache.total_bytes
    rows = []
    for name, size, meaning in figures(plan):
        strong = "bold" if name == "total" else ""
        cells = [Text(cell, style=strong) for cell in ("  " + name, exact(size), human_bytes(size))]
        rows.append([*cells, Text(meaning, style="dim")])
    whole = (human_bytes(total), "bold")
    said = Text(whole, f"  =  {exact(total)}", (f"  {definition(plan)}", "dim"))
    headline = Grid(
        columns=(Column(width=8), Column(least=longest_word(said))), rows=((Text("KV cache", style="bold"), said),), gap=GAP
    )
    return [headline, *columns(rows, width=width, right=(1, 2), headed=False), Text()]


def _stack(plan: Plan, width: int) -> list[Piece]:
    """One bar of what the fullest GPU holds, with the limit in it, and what its parts are; none where a line has no room for it."""
    fit, parts = plan.fit, plan.memory.per_gpu
    assert fit is not None
    rest = (parts.activations or 0) + (parts.overhead or 0)
    held = [("weights", parts.weights or 0), ("cache", parts.cache), ("rest", rest)]
    if fit.budget is None:
        # The budget is the cache's own, and what else the GPU holds is not known.
        held = [("cache", parts.cache)]
    pieces = [(*_MARKS[name], name, size) for name, size in held if size]
    legend = "  ".join([*(f"{mark} {name}" for mark, _, name, _ in pieces), f"{_LIMIT} limit"])
    bar = min(_BAR, width - _LABEL - len(legend) - 8)
    whole = max(fit.usable_bytes, sum(size for *_, size in pieces))
    if bar < _SHORTEST_BAR or whole <= 0:
        return []
    cells: list[tuple[str, str]] = []
    below = 0
    for mark, style, _, size in pieces:
        below += size
        # Ends are rounded, so that the parts come to the whole.
        cells += [(mark, style)] * ((2 * below * bar + whole) // (2 * whole) - len(cells))
    cells += [("░", "dim")] * (bar - len(cells))
    cells.insert((2 * fit.usable_bytes * bar + whole) // (2 * whole), (_LIMIT, "bold"))
    said: list[tuple[str, str]] = []
    for mark, style, name, _ in pieces:
        said += [("  ", ""), (mark, style), (f" {name}", "dim")]
    return [Text(" " * (_LABEL + 4), *cells, *said, ("  ", ""), (_LIMIT, "bold"), (" limit", "dim"), whole=True)]


_MARKS: Final = {"weights": ("█", WEIGHTS), "cache": ("▓", CACHE), "rest": ("▒", REST)}
"""The character and the colour of each part of the bar."""
_LIMIT: Final = "│"


def _dropped_and_shared(plan: Plan, *, full: bool) -> list[Piece]:
    """Lines on what the policy of the cache does, and what sequences share; each label once, beside its first line."""
    out: list[Piece] = []
    if plan.policy is None and plan.sharing is None:
        return out
    from hwcalc.report.policy import policy_lines, sharing_lines

    for lines in (policy_lines(plan, full=full), sharing_lines(plan)):
        if lines:
            (before, first), *others = lines
            out.append(Text(f"{before} {first}", style="bold"))
            rows = []
            for label, text in others:
                rows.append(("" if label == before else label, text, ""))
                before = label
            out += [*hanging(rows), Text()]
    return out


def _layers(plan: Plan, width: int) -> list[Piece]:
    """The shape of the model, and two lines for each group of layers: its description, then its bar and bytes."""
    groups, total = shares(plan), plan.cache.total_bytes
    exact_width = max(len(exact(group.bytes)) for group in groups)
    human_width = max(len(human_bytes(group.bytes)) for group in groups)
    bar = max(_SHORTEST_BAR, min(_BAR, width - exact_width - human_width - 15))
    lines: list[Piece] = [Text(filled(model_lines(plan)[2], width), style="bold")]
    strip = layer_strip(plan, width - GAP)
    # Letters that are all the same show no pattern.
    if strip is not None and len(set(strip[0])) > 1:
        pattern, meanings = strip
        if GAP + len(pattern) + GAP + len(meanings) <= width:
            lines.append(indented(Text(pattern, (f"  {meanings}", "dim"))))
        else:
            lines += [indented(Text(pattern)), indented(Text(meanings, style="dim"))]
    for group in groups:
        which = layer_words(group.count, group.layers, abbreviated(group.layers.text)) if group.count else ""
        described = " · ".join(filter(None, (which, group.rule, group.dtypes)))
        share = 0 if total == 0 else max(1 if group.bytes else 0, (2 * bar * group.bytes + total) // (2 * total))
        sizes = f"  {exact(group.bytes):>{exact_width}}  {human_bytes(group.bytes):>{human_width}}"
        lines.append(indented(Text((group.title, "bold"), ("  " + described, "dim"))))
        if len(groups) > 1:
            bars = (("  " + "█" * share, CACHE), ("░" * (bar - share), "dim"))
            lines.append(Text(*bars, f"  {percent(group.bytes, total):>7}{sizes}"))
    return [*lines, Text()]


def _everything(plan: Plan, width: int) -> list[Piece]:
    """Every tensor, and the parts of weights and overhead."""
    tensors = [
        ["  " + tensor.name, tensor.kind, _which(tensor.count, tensor.layers) if tensor.layers else "",
         "x".join(map(str, tensor.shape)), "" if is_room(tensor) else tensor.dtype, f"{tensor.positions:,}", f"{tensor.bytes:,}"]
        for tensor in plan.cache.tensors
    ]  # fmt: skip
    groups = [
        ["  " + group.kind, _which(group.count, group.layers), f"{group.block_size:,}", f"{group.block_bytes:,}",
         f"{group.blocks_per_request:,}"]
        for group in plan.cache.groups
    ]  # fmt: skip
    weights = [
        ["  " + part.kind, part.part, plural(part.count, "layer"), f"{part.parameters:,}", f"{part.bytes:,}"]
        for part in plan.memory.weights.parts
    ]
    overhead = [
        ["  " + part.name, part.definition, exact(part.low), exact(part.expected), exact(part.high), part.source]
        for part in (() if plan.fit is None or plan.fit.budget is None else plan.fit.budget.parts)
    ]
    sections = (
        (("  tensor", "of", "layers", "shape", "dtype", "positions", "bytes"), tensors, (5, 6)),
        (("  group", "layers", "tokens a block", "bytes a block", "blocks a request"), groups, (2, 3, 4)),
        (("  weights", "of", "", "parameters", "bytes"), weights, (3, 4)),
        (("  each GPU", "is", "low", "expected", "high", "source"), overhead, (2, 3, 4)),
    )
    out: list[Piece] = []
    for header, rows, right in sections:
        if rows:
            cells = [[Text(clean(cell)) for cell in row] for row in rows]
            out += [*columns([[Text(title, style="bold") for title in header], *cells], width=width, right=right), Text()]
    return out


def _which(count: int, numbers: LayerNumbers) -> str:
    """The number of layers, and all that they are, with blanks at which a line can be broken."""
    return layer_words(count, numbers, numbers.text.replace(",", ", "))


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
    # A capital for each title: its first letter that no other title has.
    letters: dict[str, str] = {}
    for title in dict.fromkeys(layer.title for layer in layers if layer.bytes):
        free = (letter for letter in (*title.upper(), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ") if letter not in letters.values())
        letters[title] = next(letter for letter in free if letter.isalpha())

    def sign(layer: LayerBytes) -> str:
        if not layer.bytes:
            return _NONE
        return letters[layer.title] if layer.bytes * _MANY >= most else letters[layer.title].lower()

    each = -(-len(layers) // max(_LEAST, width))
    shown = [max(layers[start : start + each], key=lambda layer: layer.bytes) for start in range(0, len(layers), each)]
    titles: dict[str, str] = {}
    sizes: dict[str, list[int]] = {}
    for layer in layers:
        titles[sign(layer)] = layer.title
        sizes.setdefault(sign(layer), []).append(layer.bytes)
    meanings = []
    for letter, counts in sizes.items():
        low, high = human_bytes(min(counts)), human_bytes(max(counts))
        many = low if low == high else f"{low} to {high}"
        meanings.append(f"{_NONE} nothing of its own" if letter == _NONE else f"{letter} {titles[letter]} {many} each")
    more = f", {each} layers a letter" if each > 1 else ""
    return "".join(map(sign, shown)), ", ".join(meanings) + more

"""Numbers, counts and rows in reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hwcalc.formulas import LayerNumbers
from hwcalc.text import clean, csv_cell
from hwcalc.units import human_bytes

PIPED_WIDTH: Final = 100_000
"""Columns of piped output. No line is that long: what reads a pipe has no width."""
BOUND: Final = "\ue000"
"""Stands for a blank at which no line is broken, until lines are broken. Names never have it: it is no character of any script."""
_QUOTED: Final = r"\$'(?:[^'\\\n]|\\.)*'|'[^'\n]*'|\"[^\"\n]*\""
"""A part of a word in quotes, as a shell reads it."""
_BOUND: Final = re.compile(
    rf"(?<=\s)--[a-z][a-z0-9-]* (?:{_QUOTED})+"  # an option, and its value in quotes
    r"|(?<![^\s(=,\[])(?:'[^'\n]{1,70}'|\"[^\"\n]{1,70}\")(?!\w)"  # what else stands in quotes, and in a line
    r"|(?<=\s)--[a-z][a-z0-9-]* (?=[^\s-])"  # an option, and its value
    r"|(?<![^\s(])(?:[tpdce]{1,2}p|level) (?=\d)"  # ranks of a layout, and how many; a level of sleep
    r"|(?<=\d,) (?=[tpdce]{1,2}p \d)"  # the ranks of one layout
    r"|(?<![^\s(])\d(?:[\d,.]*\d)?[kM]? (?=(?:[KMGT]?i?B|%|[mb]illion|[A-Za-z]{0,9}s)(?![\w=-]))"  # a number, and its unit or what it counts
)
_TYPED: Final = (
    r"^kvplan (?:\S+ )?--.*"  # a command to type, on a line of its own
    r"|(?<=: )kvplan .*?(?=\. [A-Z]|\? |; |, (?:or )?kvplan |$)"  # one behind a sentence
    r"|\bkvplan check (?:\S*[^\s;:,.] ){1,40}?--.*?(?= \(| or |$)"  # one among other changes
)
_COMMAND: Final = re.compile(rf"{_TYPED}|\bkvplan \S+")  # in other sentences the name with the word after it
_BILLION, _MILLION = 10**9, 10**6
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"})


def escaped(text: str) -> str:
    """Text with Markdown's special characters escaped, so that it can stand in a table too."""
    return clean(text).replace("\n", " ").translate(_SPECIAL)


def with_code(text: str) -> str:
    """Text :func:`escaped` for Markdown, with each command to type as code, which is copied as it stands.

    >>> print(with_code("Add it: kvplan check *.yaml --lock"))
    Add it: `kvplan check *.yaml --lock`
    """
    out, behind = list[str](), 0
    for match in re.finditer(_TYPED, text):
        command = clean(match[0].rstrip(".")).replace("\n", " ")
        # Marks of code are longer than those in it, and stand apart from one at its end.
        marks = "`" * (1 + max(map(len, re.findall("`+", command)), default=0))
        apart = " " if command.endswith("`") else ""
        out += [escaped(text[behind : match.start()]), f"{marks}{apart}{command}{apart}{marks}"]
        behind = match.start() + len(match[0].rstrip("."))
    return "".join((*out, escaped(text[behind:])))


def filled(text: str, width: int) -> str:
    """Lines of at most ``width`` characters with a hanging indent; an id is never cut, nor what is :func:`bound` or :func:`together`."""
    if len(text) <= width and text.isprintable() and text == text.strip():
        return text
    return "\n".join(broken(text, width, 2))


def filled_items(text: str, width: int) -> str:
    """As :func:`filled`, of items with middle dots between them: within an item no line is broken, unless it is long.

    >>> print(filled_items("engine vllm 0.33 · KV dtype bf16 · tp 4", 26))
    engine vllm 0.33 ·
      KV dtype bf16 · tp 4
    """
    if len(text) <= width:
        return filled(text, width)
    dot = " · "
    return filled(dot.join(together(item) if len(item) <= width // 2 else item for item in text.split(dot)), width)


def broken(text: str, width: int, hang: int = 0) -> list[str]:
    """Lines of at most ``width`` characters, the second and further ones behind ``hang`` blanks; broken as :func:`filled` does."""
    from textwrap import wrap

    lines = wrap(bound(text), width, subsequent_indent=" " * hang, break_on_hyphens=False, break_long_words=False)
    return [line.replace(BOUND, " ") for line in lines] or [""]


def together(words: str) -> str:
    """Words between which no line is broken, such as a command to copy."""
    return words.replace(" ", BOUND)


def continued(command: str, width: int) -> list[str]:
    r"""The lines of a command, which a shell reads as one. Where it is longer than ``width`` it is broken before options.

    >>> continued("kvplan gpt2 --seq 32k --layers-of '2*gqa(heads=4) + gqa(heads=8)'", 30)
    ['kvplan gpt2 --seq 32k \\', "  --layers-of '2*gqa(heads=4) + gqa(heads=8)'"]
    """
    if len(command) <= width:
        return [command]
    words = re.findall(rf"(?:{_QUOTED}|[^ ])+", command)
    groups: list[str] = []
    for word in words:
        # What is no option's value may be long.
        long = not (groups and groups[-1].startswith("-")) and len((groups or [""])[-1]) + len(word) + 5 > width
        alone = not groups or word.startswith("-") or long
        groups[-1:] = [*groups[-1:], word] if alone else [f"{groups[-1]} {word}"]
    lines = groups[:1]
    for group in groups[1:]:
        if len(lines[-1]) + len(group) + 3 > width:
            lines.append(f"  {group}")
        else:
            lines[-1] += f" {group}"
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def with_commands(text: str) -> str:
    """The text with each command to type :func:`together`, so that it can be copied."""
    return _COMMAND.sub(lambda match: together(match[0]), text)


def bound(text: str) -> str:
    """The text with options :func:`together` with their values, numbers with their units, and what stands in quotes.

    >>> bound("at most 16 GiB for 2,048 tokens: add --tp 2 --json").split(" ")
    ['at', 'most', '16\ue000GiB', 'for', '2,048\ue000tokens:', 'add', '--tp\ue0002', '--json']
    """
    return _BOUND.sub(lambda words: together(words[0]), text) if " " in text else text


def exact(count: int) -> str:
    """The exact number of bytes: ``exact(73728)`` is ``"73,728 B"``."""
    return f"{count:,} B"


def both(count: int) -> str:
    """The exact number of bytes, and the same in a binary unit.

    >>> both(73728), both(576)
    ('73,728 B (72 KiB)', '576 B')
    """
    human = human_bytes(count)
    return exact(count) if human.endswith(" B") else f"{exact(count)} ({human})"


def plural(count: int, word: str) -> str:
    """``plural(2, "layer")`` is ``"2 layers"``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def how_many(count: int | None) -> str:
    """A solver's answer: empty if it was not planned, ``any`` if nothing limits it.

    >>> how_many(None), how_many(4096), how_many(2**40)
    ('', '4,096', 'any')
    """
    from hwcalc.planner.verdict import UNLIMITED

    return "" if count is None else f"{count:,}" if count < UNLIMITED else "any"


def sure_or_likely(sure: int | None, expected: int | None) -> str:
    """The answer of a solver for certain; where none is, the expected one behind a tilde.

    >>> sure_or_likely(4096, 8192), sure_or_likely(0, 8192), sure_or_likely(0, 0)
    ('4,096', '~8,192', '0')
    """
    return f"~{how_many(expected)}" if not sure and expected else how_many(sure)


def parameters(count: int) -> str:
    """A number of parameters with the unit in words, because B would be read as bytes.

    >>> parameters(8_190_735_360), parameters(130_000_000), parameters(999_885_952)
    ('8.19 billion', '130 million', '1.00 billion')
    """
    # Half a million less rounds up to a thousand million, which is a billion.
    if count >= _BILLION - _MILLION // 2:
        return f"{count / _BILLION:,.2f} billion"
    if count >= _MILLION:
        return f"{count / _MILLION:,.0f} million"
    return f"{count:,}"


def percent(part: int, whole: int) -> str:
    """A share with one decimal, by integer arithmetic so that it is the same everywhere: ``percent(1, 8)`` is ``"12.5 %"``."""
    if whole <= 0:
        return "0.0 %"
    tenths = (2000 * part + whole) // (2 * whole)
    return f"{tenths // 10}.{tenths % 10} %"


def share_text(share: float) -> str:
    """A share in percent with one decimal: ``share_text(0.125)`` is ``"12.5 %"``."""
    return f"{100 * share:.1f} %"


def layer_words(count: int, numbers: LayerNumbers, shown: str | None = None) -> str:
    """Number of layers, and which. ``shown`` replaces the list of layers if it is too long.

    >>> layer_words(4, LayerNumbers(range(4))), layer_words(1, LayerNumbers([5])), layer_words(8, LayerNumbers(range(4)))
    ('4 layers 0-3', '1 layer 5', '8 in 4 layers 0-3')
    """
    layers = f"{plural(len(numbers), 'layer')} {numbers.text if shown is None else shown}"
    return layers if len(numbers) == count else f"{count:,} in {layers}"


_WIDTH_OF_LAYERS: Final = 30


def abbreviated(ranges: str) -> str:
    """Layer numbers cut at a comma to fit 30 columns; JSON and ``explain`` have the whole list.

    >>> abbreviated("3,7,11,15,19,23,27,31,35,39,43,47")
    '3,7,11,15,19,23,27,31,35,39,…'
    """
    if len(ranges) <= _WIDTH_OF_LAYERS:
        return ranges
    return ranges[: ranges.rfind(",", 0, _WIDTH_OF_LAYERS - 1) + 1] + "…"


def records_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Comma-separated values with a column for each name in any of the records."""
    names = tuple(dict.fromkeys(name for record in records for name in record))
    return csv_text(names, ([record.get(name) for name in names] for record in records))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values with a header line, as every command writes them.

    An empty cell is unknown, ``true`` and ``false`` are those of JSON, and text that a spreadsheet would run as a formula stands behind an
    apostrophe.
    """
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        cells = [csv_cell(cell) if isinstance(cell, str) else cell for cell in row]
        writer.writerow([("true" if cell else "false") if isinstance(cell, bool) else cell for cell in cells])
    return out.getvalue()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A pipe table; the columns in ``right`` are aligned right."""
    numbers = set(right)
    rule = ["---:" if column in numbers else "---" for column in range(len(header))]
    lines = [list(header), rule, *([escaped(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

"""Words of shell text, and the pieces that they are made of."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import add, floordiv, mod, mul, sub
from typing import Any, Final

from hwcalc.formulas.record import Record

MOST_VALUE: Final = 32 * 1024
"""Characters of one value: ``A=$A$A`` in a row would fill any memory."""
_LONGEST_TRIMMED: Final = 1024
_DEEPEST: Final = 12
"""Levels of ``${A:-${B:-...}}`` and of scripts in scripts."""
_MOST_BITS: Final = 63
"""Bits of a whole number of a shell, but for its sign."""
_FARTHEST: Final = 400
"""Characters that are skipped at most to find the next word of a text where it stands in its file."""


class Origin(Record):
    """Where the characters of a text stand in its file.

    A run of characters that stand side by side in the file begins at each of ``starts``; ``at`` has its line and column, counted from 1. The
    column is 0 where only the line is known.
    """

    starts: tuple[int, ...] = (0,)
    at: tuple[tuple[int, int], ...] = ((0, 0),)

    @staticmethod
    def whole(text: str) -> Origin:
        """The places of a text that is the whole file."""
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        return Origin(starts=tuple(starts), at=tuple((line, 1) for line in range(1, len(starts) + 1)))

    @staticmethod
    def on_line(line: int) -> Origin:
        """The places of a text of which only the line is known."""
        return Origin(at=((line, 0),))

    def place(self, index: int) -> tuple[int, int]:
        """The line and the column of a character."""
        run = bisect_right(self.starts, index) - 1
        line, column = self.at[run]
        return line, column and column + index - self.starts[run]

    def cut(self, begin: int, end: int) -> Origin:
        """The places of a part of the text."""
        first = bisect_right(self.starts, begin)
        last = max(first, bisect_left(self.starts, end))
        starts = (0, *(start - begin for start in self.starts[first:last]))
        return Origin(starts=starts, at=(self.place(begin), *self.at[first:last]))


class Spot(Record):
    """A piece of a file: how it is ``written`` there, with its quotes, and where. Nothing is written where it is put together from other pieces."""

    written: str = ""
    origin: Origin = Origin()

    @property
    def line(self) -> int:
        """The line of its first character; 0 where that is not known."""
        return self.origin.at[0][0]

    @property
    def column(self) -> int:
        """The column of its first character; 0 where that is not known."""
        return self.origin.at[0][1]

    def inside(self, text: str) -> Origin:
        """The places of a text that stands here in quotes, indented, folded, or with continued lines."""
        whole = self.written.find(text)
        if whole >= 0:
            return self.origin.cut(whole, whole + len(text))
        starts, at, behind = [0], [(self.line, 0)], 0
        for word in re.finditer(r"\S+", text):
            begin = self._next(word[0], behind)
            starts.append(word.start())
            if begin < 0:
                # It has escapes, or comes from elsewhere.
                at.append((at[-1][0], 0))
                continue
            behind = begin + len(word[0])
            at.append(self.origin.place(begin))
        return Origin(starts=tuple(starts), at=tuple(at))

    def _next(self, word: str, behind: int) -> int:
        """Where a word stands next by itself; -1 if nowhere near."""
        end = behind + _FARTHEST + len(word)
        begin = self.written.find(word, behind, end)
        while begin > behind and self.written[begin - 1] not in " \t\r\n'\"":
            begin = self.written.find(word, begin + 1, end)
        return begin


NOWHERE: Final = Spot()
"""The spot of what stands in no file."""


class Word(Record):
    """A word of a command.

    ``text`` has its variables put in; one whose value is not known stands as it was written and is in ``unknown``. ``raw`` is the word as written,
    without quotes. ``taken`` has the variables of which the default was taken, and ``remark`` says what became of one that vanished. ``array`` is
    a word that may stand for several, such as ``"${ARGS[@]}"``.
    """

    text: str
    raw: str = ""
    source: str = ""
    """As written, quotes too."""
    unknown: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    remark: str = ""
    array: bool = False
    quoted: bool = False
    spot: Spot = NOWHERE
    """Where it stands in the file."""

    @property
    def known(self) -> bool:
        """Whether all of its text is known."""
        return not self.unknown

    @property
    def line(self) -> int:
        """The line that it stands in; 0 where that is not known."""
        return self.spot.line


def words_of(texts: Iterable[str], spots: Iterable[Spot] = ()) -> list[Word]:
    """Words that no shell reads, such as those of a list; ``spots`` are where the first of them stand."""
    spots = chain(spots, repeat(NOWHERE))
    return [Word(text=text, raw=text, source=text, quoted=True, spot=spot) for text, spot in zip(texts, spots, strict=False)]


class Pieces:
    """A word while it is read: its parts with what is known of them."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, str, bool]] = []
        """Text, text as written, and whether its blanks part words."""
        self.unknown: list[str] = []
        self.taken: list[str] = []
        self.remark = ""
        self.quoted = False
        self.array = False
        self.items: list[Word] | None = None
        self.ends = False

    def add(self, text: str, *, quoted: bool = False) -> None:
        self.quoted |= quoted
        self.parts.append((text, text, False))

    def script(self, text: str) -> None:
        """A continued line in a quoted script, which is no text of the word."""
        self.parts.append(("", text, False))

    def put(self, value: str, raw: str, *, quoted: bool, taken: str = "") -> None:
        """The value of a variable."""
        self.quoted |= quoted
        self.parts.append((value, raw, not quoted))
        if taken:
            self.taken.append(taken)

    def lost(self, raw: str, *, quoted: bool = False, array: bool = False) -> None:
        """A part whose value is not known."""
        self.quoted |= quoted
        self.array |= array
        self.parts.append((raw, raw, False))
        self.unknown.append(raw)

    def gone(self, raw: str, remark: str, *, holds: bool = False) -> None:
        """A variable that leaves nothing."""
        self.remark = remark
        self.parts.append(("", raw, False))
        self.unknown.append(raw)

    def several(self, words: Sequence[Word], raw: str) -> None:
        """Words in place of one."""
        self.items = [*(self.items or []), *words]
        self.parts.append(("", raw, False))

    def prefix(self, place: int, sign: str) -> None:
        """Put a sign before the text as written of the part at this place."""
        if place < len(self.parts):
            text, raw, splits = self.parts[place]
            shown = f"{sign}{text}" if self.unknown and self.unknown[-1] == text else text
            if shown != text:
                self.unknown[-1] = shown
            self.parts[place] = (shown, f"{sign}{raw}", splits)

    def words(self, source: str, spot: Spot, *, splits: bool) -> list[Word]:
        """The words that were read."""
        raw = "".join(part[1] for part in self.parts)
        if self.items is not None:
            if not any(part[0] for part in self.parts):
                return [*self.items]
            joined = "".join(part[0] for part in self.parts)
            return [*self.items, *([Word(text=joined, raw=joined, source=source, spot=spot)] if joined.strip() else [])]
        text = "".join(part[0] for part in self.parts)[: 2 * MOST_VALUE]
        if not text and not self.unknown and not self.quoted:
            return []
        common: dict[str, Any] = {
            "raw": raw,
            "source": source,
            "unknown": tuple(self.unknown),
            "taken": tuple(self.taken),
            "remark": self.remark,
            "array": self.array,
            "quoted": self.quoted,
            "spot": spot,
        }
        if splits and any(part[2] and re.search(r"\s", part[0]) for part in self.parts):
            return [Word(text=piece, **{**common, "raw": piece}) for piece in text.split()]
        return [Word(text=text, **common)]


def closing_quote(text: str, at: int) -> int:
    """Where a double-quoted part ends; -1 if nowhere."""
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 2
            continue
        if sign == '"':
            return at
        at = balanced(text, at + 1) if text.startswith(("$(", "${"), at) else at + 1
    return -1


def balanced(text: str, at: int) -> int:
    """The place behind the parenthesis or the brace that closes the one at ``at``."""
    opens, depth, limit = text[at], 0, min(len(text), at + MOST_VALUE)
    closes = ")" if opens == "(" else "}"
    while at < limit:
        depth += (text[at] == opens) - (text[at] == closes)
        at += 1
        if depth == 0:
            return at
    return at


def trimmed(value: str, operator: str, pattern: str) -> str:
    """``${A##*/}`` and its like."""
    from fnmatch import translate

    if len(value) > _LONGEST_TRIMMED:
        return value
    match = re.compile(translate(pattern))
    places = range(len(value) + 1)
    if operator.startswith("#"):
        ends = [end for end in places if match.fullmatch(value[:end])]
        return value[(max(ends) if operator == "##" else min(ends)) :] if ends else value
    starts = [start for start in places if match.fullmatch(value[start:])]
    return value[: (min(starts) if operator == "%%" else max(starts))] if starts else value


def holds(words: list[Word]) -> bool | None:
    """Whether a test of a shell holds, as far as its words are known."""
    texts = [word.text for word in words]
    if texts[:1] == ["!"]:
        inner = holds(words[1:])
        return None if inner is None else not inner
    if len(words) == 2 and texts[0] in ("-z", "-n"):
        if words[1].unknown and not words[1].remark:
            # A plain variable that is nowhere set is empty.
            plain = re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?", words[1].text)
            return None if plain is None else texts[0] == "-z"
        return (texts[1] == "") == (texts[0] == "-z")
    if len(words) != 3 or words[0].unknown or words[2].unknown:
        return None
    left, operator, right = texts
    if operator in ("=", "=="):
        return left == right
    if operator == "!=":
        return left != right
    numbers = {"-gt": (1,), "-ge": (0, 1), "-lt": (-1,), "-le": (-1, 0), "-eq": (0,), "-ne": (-1, 1)}
    if operator in numbers and left.lstrip("-").isdigit() and right.lstrip("-").isdigit() and len(left) + len(right) < 40:
        return ((int(left) > int(right)) - (int(left) < int(right))) in numbers[operator]
    return None


def value_of_sum(text: str) -> str | None:
    """The value of a sum of whole numbers, as a shell has it."""
    tokens = re.findall(r"\d{1,18}|<<?|>>?|[+\-*/%()]", text)[::-1]

    def operand(depth: int) -> int:
        if depth > _DEEPEST:
            raise ValueError
        token = tokens.pop()
        if token == "(":
            value = of_level(0, depth + 1)
            tokens.pop()
            return value
        return -operand(depth + 1) if token == "-" else int(token)

    def of_level(level: int, depth: int) -> int:
        """What stands here, up to an operator that binds less than those of this level."""
        if level == len(_OPERATORS):
            return operand(depth)
        value = of_level(level + 1, depth)
        while tokens and tokens[-1] in _OPERATORS[level]:
            operate = _OPERATORS[level][tokens.pop()]
            value = operate(value, of_level(level + 1, depth))
        return value

    try:
        value = of_level(0, 0)
    except (ValueError, IndexError, ZeroDivisionError):
        return None
    return None if tokens or abs(value) >= 10**18 else str(value)


def _bits(value: int, bits: int) -> int:
    """The bits by which a number is shifted. Raises :class:`ValueError` for more than a shell's numbers have."""
    if not 0 <= bits < _MOST_BITS or abs(value) >= 1 << _MOST_BITS:
        raise ValueError
    return bits


_OPERATORS: Final[tuple[Mapping[str, Callable[[int, int], int]], ...]] = (
    {"<<": lambda value, bits: value << _bits(value, bits), ">>": lambda value, bits: value >> _bits(value, bits)},
    {"+": add, "-": sub},
    {"*": mul, "/": floordiv, "%": mod},
)
"""From those that bind least."""

"""Words of shell text: quotes are taken off, and variables put in. What a command would print stays as it is written."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from fnmatch import translate
from itertools import chain, repeat
from typing import Any, Final, Self

from hwcalc.formulas.record import Record
from hwcalc.launch.sums import value_of_sum

MOST_VALUE: Final = 32 * 1024
"""Characters of one value: ``A=$A$A`` in a row would fill any memory."""
LONGEST_TRIMMED: Final = 1024
_DEEPEST: Final = 12
"""Levels of ``${A:-${B:-...}}`` and of scripts in scripts."""
MOST_WORDS: Final = 5_000
_FARTHEST: Final = 400
"""Characters that are skipped at most to find the next word of a text where it stands in its file."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOUBLED: Final = re.compile(r"\$\$(?:\{|[A-Za-z_])")
_SINGLE: Final = re.compile(r"\$\{?[A-Za-z_]")
PLACEHOLDER: Final = re.compile(r"<[A-Za-z][^<>|&;\n$]{0,80}>")
_TEMPLATE: Final = re.compile(r"\{\{.{0,400}?\}\}")
_SUM: Final = re.compile(r"[0-9+\-*/%()<> ]{1,200}")
_COUNTED: Final = re.compile(r"#([A-Za-z_]\w*)(\[[@*]\])?")
_EMPTY: Final = "(empty default)"
_ABSENT: Final = "(absent unless set)"
_PLAIN_CHANGE: Final = re.compile(r"([^/*?\[\]\\$#%\"'(][^/*?\[\]\\$\"'(]*)(?:/([^\\$&\"']*))?")
"""In ``${A/b/c}``: a text without signs of a pattern, and what is put in its place."""


class GivenText(str):
    """The value of a variable that the user gives. It stays where a text sets that variable to what nobody knows, such as ``$(cat model.txt)``."""

    __slots__ = ()


class EnvText(GivenText):
    """The value of a variable of a file of variables. It fills in the text of Compose, and is in no container of it."""

    __slots__ = ()


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
        """The position at which a word stands next by itself; -1 if nowhere near."""
        end = behind + _FARTHEST + len(word)
        begin = self.written.find(word, behind, end)
        while begin > behind and self.written[begin - 1] not in " \t\r\n'\"":
            begin = self.written.find(word, begin + 1, end)
        return begin


NOWHERE: Final = Spot()
"""The spot of what stands in no file."""


class SaidText(str):
    """The value of a variable that the text itself sets, or a word of it, with the ``name`` of the variable and the ``spot`` where it stands.

    One of a ``file`` beside the text stands at the place that names the file.
    """

    __slots__ = ("_begin", "_of", "_origin", "_spot", "file", "name")
    name: str
    file: str
    _spot: Spot
    _origin: Origin | None
    _of: SaidText | None
    _begin: int

    @staticmethod
    def of(name: str, word: Word) -> SaidText:
        """The value of a variable that a word gives; that of another variable stands where that one's does."""
        return word.said if word.said is not None and word.said == word.text else SaidText._at(word.text, name, word.spot)

    @staticmethod
    def of_file(text: str, name: str, file: str, spot: Spot) -> SaidText:
        """The value that a file gives a variable, and the place in the text that names the file."""
        said = SaidText._at(text, name, Spot(origin=spot.origin))
        said.file = file
        return said

    @staticmethod
    def _at(text: str, name: str, spot: Spot, of: SaidText | None = None, begin: int = 0) -> SaidText:
        said = SaidText(text)
        said.name, said.file, said._spot, said._origin, said._of, said._begin = name, "", spot, None, of, begin
        return said

    def piece(self, begin: int, end: int) -> SaidText:
        """One of its words. It may have thousands, so that nobody looks for their places before they are asked for."""
        if self.file:
            return SaidText.of_file(self[begin:end], self.name, self.file, self._spot)
        return self._at(self[begin:end], self.name, self._spot, self, begin)

    @property
    def spot(self) -> Spot:
        """Where it stands."""
        if self._of is None:
            return self._spot
        return Spot(written=str(self), origin=self._of.places.cut(self._begin, self._begin + len(self)))

    @property
    def places(self) -> Origin:
        """Where its characters stand."""
        if self._origin is None:
            self._origin = self._spot.inside(self)
        return self._origin


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
    said: SaidText | None = None
    """The value of the variable that it ends with, where the text sets that. Of a word that is a variable which it sets to what nobody knows, that."""

    @property
    def known(self) -> bool:
        """True if all of its text is known."""
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
        self.said: SaidText | None = None
        self.sought: SaidText | None = None

    def add(self, text: str, *, quoted: bool = False) -> None:
        self.quoted |= quoted
        self.parts.append((text, text, False))

    def script(self, text: str) -> None:
        """A continued line in a quoted script, which is no text of the word."""
        self.parts.append(("", text, False))

    def put(self, value: str, raw: str, *, quoted: bool, taken: str = "") -> None:
        """The value of a variable."""
        self.quoted |= quoted
        self.said = value if isinstance(value, SaidText) else None
        self.parts.append((value, raw, not quoted))
        if taken:
            self.taken.append(taken)

    def lost(self, raw: str, *, quoted: bool = False, array: bool = False, sought: SaidText | None = None) -> None:
        """A part whose value is not known; ``sought`` is what a variable is set to, which a command would print."""
        self.quoted |= quoted
        self.array |= array
        self.sought = sought
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
        # What stands behind the value of a variable is none of it.
        said = self.said if self.parts and self.parts[-1][0] is self.said else None
        said = self.sought if self.sought is not None and self.unknown == [text] else said
        if splits and any(part[2] and re.search(r"\s", part[0]) for part in self.parts):
            pieces = [*re.finditer(r"\S+", text)]
            of_one = said if said is not None and said == text else None
            return [
                Word(text=each[0], **{**common, "raw": each[0]}, said=None if of_one is None else of_one.piece(*each.span()))
                for each in pieces
            ]
        return [Word(text=text, **common, said=said)]


class WordReader:
    """Reads the words of a text. Subclasses read what stands between them."""

    def __init__(self, text: str, variables: dict[str, str], arguments: tuple[Word, ...], origin: Origin, depth: int = 0) -> None:
        self.text, self.at, self.origin, self.depth = text, 0, origin, depth
        self.variables, self.arguments = variables, arguments
        self.outer: Mapping[str, str] | None = None
        """What Compose fills ``${A}`` in with before a shell reads ``$${A}``; ``None`` for a text that nobody fills in before."""
        self.arrays: dict[str, list[Word]] = {}
        self.taken: dict[str, str] = {}
        """Variable -> the expression whose default it has."""
        self.partly: dict[str, str] = {}
        """Variable -> a value of which a part is not known."""
        self.looked_up: dict[str, SaidText] = {}
        """Variable -> a value that is not known."""

    @property
    def line(self) -> int:
        """The line of the next character."""
        return self.origin.place(self.at)[0]

    def within(self, text: str) -> Self:
        """A reader of a text in this one, with the same variables."""
        inner = copy(self)
        inner.text, inner.at, inner.origin, inner.depth = text, 0, Origin.on_line(self.line), self.depth + 1
        return inner

    def word(self, *, splits: bool = True) -> list[Word]:
        """The word that begins here: none where variables leave nothing, several where an unquoted one holds blanks."""
        begun = self.at
        pieces = Pieces()
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign in " \t\r\n;|&()":
                break
            if sign in "<>" and self.text.startswith("(", self.at + 1):
                end = balanced(self.text, self.at + 1)
            else:
                match = {"<": PLACEHOLDER, "{": _TEMPLATE}[sign].match(self.text, self.at) if sign in "<{" else None
                end = match.end() if match is not None else 0
            if end:
                pieces.lost(self.text[self.at : end])
                self.at = end
            elif sign in "<>":
                break
            else:
                self.piece(sign, pieces)
        source = self.text[begun : self.at]
        return pieces.words(source, Spot(written=source, origin=self.origin.cut(begun, self.at)), splits=splits)

    def piece(self, sign: str, pieces: Pieces) -> None:
        """Read a quoted part, an escape, a variable, or a character."""
        if sign == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                self.at += 1
                return
            pieces.add(self.text[self.at + 1 : end], quoted=True)
            self.at = end + 1
        elif sign == '"':
            self.double(pieces)
        elif sign == "\\":
            following = self.text[self.at + 1 : self.at + 2]
            if (
                following == "\n"
                or not following
                or (following in " \t" and re.compile(r"\\[ \t]*(\n|\Z)").match(self.text, self.at))
            ):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end + 1
                pieces.ends = True
                if self.at < len(self.text) and self.text[self.at] not in " \t\n":
                    pieces.ends = False
                return
            pieces.add(following, quoted=True)
            self.at += 2
        elif sign == "$":
            self.variable(pieces, quoted=False)
        elif sign == "`":
            end = self.text.find("`", self.at + 1)
            newline = self.text.find("\n", self.at + 1)
            if end < 0 or (0 <= newline < end):
                self.at += 1
                return
            pieces.lost(self.text[self.at : end + 1])
            self.at = end + 1
        else:
            match = re.compile(r"[^\s'\"\\$`;|&()<>{]+|\{").match(self.text, self.at)
            text = match[0] if match else sign
            pieces.add(text)
            self.at += len(text)

    def double(self, pieces: Pieces) -> None:
        """Read a double-quoted part. One that is never closed is the end of a string around this text."""
        end = closing_quote(self.text, self.at + 1)
        if end < 0:
            self.at += 1
            return
        pieces.add("", quoted=True)
        self.at += 1
        while self.at < end:
            sign = self.text[self.at]
            if sign == "\\" and self.at + 1 < end and self.text[self.at + 1] in '$`"\\\n':
                if self.text[self.at + 1] == "\n":
                    pieces.script("\\\n")
                else:
                    pieces.add(self.text[self.at + 1], quoted=True)
                self.at += 2
            elif sign == "$":
                self.variable(pieces, quoted=True)
            else:
                pieces.add(sign, quoted=True)
                self.at += 1
        self.at = end + 1

    def variable(self, pieces: Pieces, *, quoted: bool) -> None:
        """Read what begins with ``$``."""
        if _DOUBLED.match(self.text, self.at):
            # Compose writes $$ for $.
            self.at += 1
            before = len(pieces.parts)
            self.single(pieces, quoted=quoted)
            pieces.prefix(before, "$")
        elif self.outer is not None and _SINGLE.match(self.text, self.at):
            before_shell = copy(self)
            before_shell.variables, before_shell.outer = dict(self.outer), None
            before_shell.arrays, before_shell.taken, before_shell.partly, before_shell.looked_up = {}, {}, {}, {}
            before_shell.single(pieces, quoted=quoted)
            self.at = before_shell.at
        else:
            self.single(pieces, quoted=quoted)

    def single(self, pieces: Pieces, *, quoted: bool) -> None:
        """Read what begins with one ``$``."""
        text, at = self.text, self.at
        if text.startswith("$((", at):
            end = balanced(text, at + 1)
            raw = text[at:end]
            value = self.summed(raw[3:-2])
            self.at = end
            if value is None:
                pieces.lost(raw, quoted=quoted)
            else:
                pieces.put(value, raw, quoted=quoted, taken=raw)
        elif text.startswith("$(", at):
            end = balanced(text, at + 1)
            raw, name = text[at:end], text[at + 2 : end - 1]
            self.at = end
            if _NAME.fullmatch(name) and name in self.variables:
                # Kubernetes' own variables.
                pieces.put(self.variables[name], raw, quoted=True)
            else:
                pieces.lost(raw, quoted=quoted)
        elif text.startswith("${{", at):
            end = text.find("}}", at)
            end = len(text) if end < 0 else end + 2
            pieces.lost(text[at:end], quoted=quoted)
            self.at = end
        elif text.startswith("${", at):
            end = balanced(text, at + 1)
            raw = text[at:end]
            self.at = end
            self.braces(raw, pieces, quoted=quoted)
        elif text.startswith("$'", at) and not quoted:
            self.at += 1
        else:
            match = re.compile(r"\$(?:[A-Za-z_]\w*|[@*#?0-9!-])").match(text, at)
            if match is None:
                pieces.add("$", quoted=quoted)
                self.at += 1
                return
            self.at = match.end()
            self.named(match[0][1:], match[0], pieces, quoted=quoted)

    def named(self, name: str, raw: str, pieces: Pieces, *, quoted: bool) -> None:
        """A plain variable."""
        if name in "@*" and self.arguments:
            pieces.several(self.arguments, raw)
        elif name.isdigit() and self.argument(name) is not None:
            pieces.put(self.argument(name) or "", raw, quoted=quoted)
        elif name in self.arrays:
            pieces.several(self.arrays[name][:1], raw)
        elif name in self.variables:
            pieces.put(self.variables[name], raw, quoted=quoted, taken=self.taken.get(name, ""))
        else:
            pieces.lost(self.partly.get(name, raw), quoted=quoted, sought=self.looked_up.get(name))

    def argument(self, name: str) -> str | None:
        """The argument of this number, if it is known."""
        place = int(name) - 1
        word = self.arguments[place] if 0 <= place < len(self.arguments) else None
        return word.text if word is not None and word.known else None

    def braces(self, raw: str, pieces: Pieces, *, quoted: bool) -> None:
        """``${A}``, ``${A:-default}``, ``${A:+words}``, ``${A##*/}``, ``${A/b/c}``, ``${A[@]}``, ``${#A[@]}``."""
        inner = raw[2:-1] if raw.endswith("}") else raw[2:]
        counted = _COUNTED.fullmatch(inner)
        if counted is not None:
            self.size(counted[1], raw, pieces, quoted=quoted, items=counted[2] is not None)
            return
        match = re.match(r"([A-Za-z_]\w*|[@*]|\d{1,2})(\[[@*0-9]+\])?(:?[-=+?]|##?|%%?|//?|:)?", inner)
        if match is None or (match[3] is None and match.end() != len(inner)):
            pieces.lost(raw, quoted=quoted)
            return
        name, index, operator, rest = match[1], match[2], match[3] or "", inner[match.end() :]
        if index or name in self.arrays or name in "@*":
            items = list(self.arguments) if name in "@*" else self.arrays.get(name)
            if operator.endswith("+") and items is None:
                pieces.lost(raw, quoted=quoted, array=True)
            elif operator.endswith("-") and items is None:
                pieces.gone(raw, _EMPTY)
            elif items is None:
                pieces.lost(raw, quoted=quoted, array=True)
            else:
                pieces.several(items, raw)
            return
        value = self.argument(name) if name.isdigit() else self.variables.get(name)
        is_set = value is not None and (value != "" or not operator.startswith(":"))
        if operator in (":-", "-", ":=", "="):
            if is_set and value is not None:
                pieces.put(value, raw, quoted=quoted, taken=self.taken.get(name, ""))
                return
            self.defaulted(name, rest, raw, pieces, quoted=quoted, sets=operator.endswith("="))
        elif operator in (":+", "+"):
            if is_set:
                for word in self.inner(rest):
                    pieces.several([word], raw)
            else:
                pieces.gone(raw, _ABSENT)
        elif operator in (":?", "?", ""):
            if value is not None:
                pieces.put(value, raw, quoted=quoted, taken=self.taken.get(name, ""))
            else:
                pieces.lost(self.partly.get(name, raw), quoted=quoted, sought=self.looked_up.get(name))
        elif value is not None and operator in ("##", "#", "%", "%%") and len(rest) < 200:
            pieces.put(trimmed(value, operator, rest), raw, quoted=quoted, taken=self.taken.get(name, ""))
        elif value is not None and operator in ("/", "//") and (change := _PLAIN_CHANGE.fullmatch(rest)) is not None:
            changed = value.replace(change[1], change[2] or "", -1 if operator == "//" else 1)
            pieces.put(changed[:MOST_VALUE], raw, quoted=quoted, taken=self.taken.get(name, ""))
        else:
            pieces.lost(raw, quoted=quoted)

    def size(self, name: str, raw: str, pieces: Pieces, *, quoted: bool, items: bool) -> None:
        """Add the number of items of an array, or of characters of a variable."""
        held: Sequence[Any] | None = self.arrays.get(name) if items else self.variables.get(name)
        if held is None or (items and not all(word.known for word in held)):
            pieces.lost(raw, quoted=quoted)
        else:
            pieces.put(str(len(held)), raw, quoted=quoted)

    def defaulted(self, name: str, rest: str, raw: str, pieces: Pieces, *, quoted: bool, sets: bool) -> None:
        """The default of a variable that is not set."""
        words = self.inner(rest)
        if not words:
            pieces.gone(raw, _EMPTY, holds=quoted)
            return
        value = " ".join(word.text for word in words) if not quoted else self.inner_text(rest)
        unknown = [each for word in words for each in word.unknown]
        if unknown:
            pieces.lost(raw, quoted=quoted)
            return
        if sets and len(value) <= MOST_VALUE:
            self.variables[name] = value
            self.taken[name] = raw
        pieces.put(value, raw, quoted=quoted, taken=raw)

    def inner(self, text: str) -> list[Word]:
        """The words of a default."""
        if self.depth >= _DEEPEST:
            return [Word(text=text, raw=text, unknown=(text[:80],))]
        inner = self.within(text)
        words: list[Word] = []
        while inner.at < len(inner.text) and len(words) < MOST_WORDS:
            before = inner.at
            if inner.text[inner.at] in " \t\r\n":
                inner.at += 1
                continue
            words += inner.word()
            if inner.at == before:
                words.append(Word(text=inner.text[inner.at]))
                inner.at += 1
        if any(sign in text for sign in "|()<>;&*\\"):
            # A pattern or a list of them is no shell text.
            known = not any(word.unknown for word in words)
            return [Word(text=text.strip("\"'"), raw=text)] if known and "$" not in text else words
        return words

    def inner_text(self, text: str) -> str:
        return " ".join(word.text for word in self.inner(text)) if "$" in text else text.strip("\"'")

    def summed(self, text: str) -> str | None:
        """The value of a sum such as ``$A * 2``; ``None`` if a part is not known."""

        def known(match: re.Match[str]) -> str:
            return self.variables.get(match[1] or match[2] or match[3], "?")

        filled = re.sub(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)|([A-Za-z_]\w*)", known, text).strip()
        if not _SUM.fullmatch(filled) or "**" in filled:
            return None
        return value_of_sum(filled)


def filled_word(
    text: str, variables: Mapping[str, Any], spot: Spot = NOWHERE, *, braces: Mapping[str, Any] | None = None
) -> Word:
    """A value of a manifest with the variables in it put in: ``${A:-b}`` of Compose, ``$(A)`` of Kubernetes.

    ``braces`` are those of ``${A}`` where they are others: Kubernetes leaves that to whoever fills in the manifest.
    """
    if "$" not in text and "{{" not in text:
        return Word(text=text, raw=text, source=text, quoted=True, spot=spot)
    known, taken = known_of(variables)
    others = known if braces is None else known_of(braces)[0]
    reader = WordReader(text[:MOST_VALUE], known, (), Origin.on_line(spot.line))
    reader.taken |= taken
    pieces = Pieces()
    while reader.at < len(reader.text):
        sign = reader.text[reader.at]
        template = _TEMPLATE.match(reader.text, reader.at) if sign == "{" else None
        if reader.text.startswith("$$", reader.at) and not _DOUBLED.match(reader.text, reader.at):
            # Compose and Kubernetes write $$ for $.
            pieces.add(sign, quoted=True)
            reader.at += 2
        elif sign == "$":
            reader.variables = known if reader.text.startswith("$(", reader.at) else others
            reader.variable(pieces, quoted=True)
        elif template is not None:
            pieces.lost(template[0])
            reader.at = template.end()
        else:
            end = re.compile(r"[^${]+|[${]").match(reader.text, reader.at)
            piece = end[0] if end else sign
            pieces.add(piece, quoted=True)
            reader.at += len(piece)
    made = pieces.words(text, spot, splits=False)
    return made[0] if made else Word(text="", raw=text, source=text, quoted=True, spot=spot)


def known_of(variables: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that have a value, and the expressions whose default they have."""
    words = {name: value for name, value in variables.items() if isinstance(value, Word) and value.known}
    texts = {name: value for name, value in variables.items() if isinstance(value, str)}
    return texts | {name: SaidText.of(name, word) for name, word in words.items()}, {
        name: word.taken[0] for name, word in words.items() if word.taken
    }


def closing_quote(text: str, at: int) -> int:
    """The position at which a double-quoted part ends; -1 if it does not end."""
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
    for match in re.compile(r"[()]" if opens == "(" else r"[{}]").finditer(text, at, limit):
        depth += 1 if match[0] == opens else -1
        if depth == 0:
            return match.end()
    return limit


def trimmed(value: str, operator: str, pattern: str) -> str:
    """``${A##*/}`` and its like."""
    if len(value) > LONGEST_TRIMMED:
        return value
    match = re.compile(translate(pattern))
    places = range(len(value) + 1)
    if operator.startswith("#"):
        ends = [end for end in places if match.fullmatch(value[:end])]
        return value[(max(ends) if operator == "##" else min(ends)) :] if ends else value
    starts = [start for start in places if match.fullmatch(value[start:])]
    return value[: (min(starts) if operator == "%%" else max(starts))] if starts else value

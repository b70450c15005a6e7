"""Regular expressions from users, searched for in time that grows with the length of the text: an automaton, without going back.

llama.cpp reads the patterns of ``-ot`` as ECMAScript does (``std::regex``). The part that people use is read here: characters, classes,
groups, choices, repetitions and the ends of the text. Looking ahead and references to groups are refused.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple, NoReturn

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown

_LONGEST: Final = 1024
_MOST_STATES: Final = 4096
_MOST_REPEATS: Final = 256
_DIGITS: Final = frozenset("0123456789")
_WORDS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACES: Final = frozenset(" \t\n\r\f\v")
_ESCAPED: Final = {"d": (_DIGITS, False), "D": (_DIGITS, True), "w": (_WORDS, False), "W": (_WORDS, True), "s": (_SPACES, False),
                   "S": (_SPACES, True)}  # fmt: skip
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}

Set = tuple[frozenset[str], bool]
"""Characters, and whether all others are meant."""


class _State(Record):
    """What leads on: a set of characters to one state, or nothing to several. ``end`` is an end of the text that must be here."""

    accepts: Set | None
    to: tuple[int, ...]
    end: str = ""


class _Reader:
    """Reads one pattern from its end to its start of states: each piece is built in front of what follows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.states: list[_State] = [_State(accepts=None, to=())]

    def fail(self, why: str) -> NoReturn:
        raise UsageError(
            f"override_tensor: the pattern {shown(self.text, 60)} {why}.",
            hint=r"Patterns have characters, classes, groups, choices and repetitions: blk\.(1[0-9])\.ffn_.*_exps\.=CPU",
        )

    def add(self, state: _State) -> int:
        if len(self.states) >= _MOST_STATES:
            self.fail("is too large")
        self.states.append(state)
        return len(self.states) - 1

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        found = self.peek()
        self.at += 1
        return found

    def choice(self, depth: int) -> _Piece:
        if depth > 20:
            self.fail("nests too many groups")
        ways = [self.sequence(depth)]
        while self.peek() == "|":
            self.at += 1
            ways.append(self.sequence(depth))
        return ways[0] if len(ways) == 1 else _Piece("choice", tuple(ways))

    def sequence(self, depth: int) -> _Piece:
        parts = []
        while self.peek() and self.peek() not in "|)":
            parts.append(self.repeated(self.single(depth)))
        return _Piece("sequence", tuple(parts))

    def single(self, depth: int) -> _Piece:
        sign = self.take()
        if sign == "(":
            if self.peek() == "?" and self.text[self.at : self.at + 2] != "?:":
                self.fail("looks ahead or back, which kvplan does not read")
            self.at += 2 if self.peek() == "?" else 0
            found = self.choice(depth + 1)
            if self.take() != ")":
                self.fail("opens a group and does not close it")
            return found
        if sign in "*+?":
            self.fail(f"has {sign} with nothing to repeat")
        if sign in "^$":
            return _Piece("end", sign)
        if sign == ".":
            return _Piece("set", (frozenset("\n\r"), True))
        if sign == "[":
            return _Piece("set", self.set())
        if sign == "\\":
            return _Piece("set", self.escaped())
        return _Piece("set", (frozenset(sign), False))

    def escaped(self) -> Set:
        sign = self.take()
        if sign in _ESCAPED:
            return _ESCAPED[sign]
        if sign in _CONTROLS:
            return frozenset(_CONTROLS[sign]), False
        if not sign or sign.isalnum():
            self.fail(rf"has \{sign}, which kvplan does not read" if sign else "ends in a backslash")
        return frozenset(sign), False

    def set(self) -> Set:
        others = self.peek() == "^"
        self.at += others
        found: set[str] = set()
        while (sign := self.take()) != "]":
            if not sign:
                self.fail("opens a class and does not close it")
            if sign == "\\":
                members, inverted = self.escaped()
                if inverted:
                    self.fail("has a class within a class that kvplan does not read")
                found |= members
                continue
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self.take()
                if last == "\\" or ord(last) < ord(sign) or ord(last) > 0x10FF:
                    self.fail("has a range that makes no sense")
                found |= {chr(code) for code in range(ord(sign), ord(last) + 1)}
                continue
            found.add(sign)
        return frozenset(found), others

    def repeated(self, piece: _Piece) -> _Piece:
        sign = self.peek()
        if not sign or sign not in "*+?{":
            return piece
        self.at += 1
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self.counts()
        if self.peek() == "?":
            self.at += 1  # as few as possible: where a pattern is found does not depend on it
        if self.peek() and self.peek() in "*+?{":
            self.fail("repeats a repetition")
        return _Piece("repeat", (piece, low, high))

    def counts(self) -> tuple[int, int | None]:
        inside, closed, _ = self.text[self.at : self.at + 16].partition("}")
        self.at += len(inside) + 1
        low, comma, high = inside.partition(",")
        if not closed or not low.isdecimal() or (high and not high.isdecimal()):
            self.fail("has a count that makes no sense")
        least, most = int(low), (int(high) if high else None) if comma else int(low)
        if least > _MOST_REPEATS or (most is not None and not least <= most <= _MOST_REPEATS):
            self.fail("has a count that makes no sense")
        return least, most

    def built(self, piece: _Piece, after: int) -> int:
        """The state at which a piece starts, when ``after`` is that of what follows."""
        if piece.kind == "set":
            return self.add(_State(accepts=piece.value, to=(after,)))
        if piece.kind == "end":
            return self.add(_State(accepts=None, to=(after,), end=piece.value))
        if piece.kind == "sequence":
            for one in reversed(piece.value):
                after = self.built(one, after)
            return after
        if piece.kind == "choice":
            return self.add(_State(accepts=None, to=tuple(self.built(way, after) for way in piece.value)))
        inner, low, high = piece.value
        if high is None:
            loop = self.add(_State(accepts=None, to=()))
            self.states[loop] = _State(accepts=None, to=(self.built(inner, loop), after))
            after = loop
        else:
            end = after
            for _ in range(high - low):
                after = self.add(_State(accepts=None, to=(self.built(inner, after), end)))
        for _ in range(low):
            after = self.built(inner, after)
        return after


class _Piece(NamedTuple):
    """A part of a pattern."""

    kind: str
    value: Any


class Pattern(Record):
    """A pattern as an automaton, whose first state is ``start`` and whose last is 0."""

    states: tuple[_State, ...]
    start: int

    def found_in(self, text: str) -> bool:
        """True if the pattern is found anywhere in ``text``, as ``std::regex_search`` does."""
        now, last = self._closed(frozenset({self.start}), at_start=True, at_end=not text), len(text) - 1
        for place, sign in enumerate(text):
            if 0 in now:
                return True
            key = (now, sign, place == last)
            if key not in self._steps:
                self._steps[key] = self._step(now, sign, at_end=place == last)
            now = self._steps[key]
        return 0 in now

    @cached_property
    def _steps(self) -> dict[tuple[frozenset[int], str, bool], frozenset[int]]:
        """The steps so far: names of tensors are much alike."""
        return {}

    def _step(self, now: frozenset[int], sign: str, *, at_end: bool) -> frozenset[int]:
        reached = {self.start}
        for number in now:
            state = self.states[number]
            if state.accepts is not None and (sign in state.accepts[0]) != state.accepts[1]:
                reached.update(state.to)
        return self._closed(frozenset(reached), at_start=False, at_end=at_end)

    def _closed(self, numbers: frozenset[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """The states that are reached without a character."""
        found, left = set(numbers), list(numbers)
        while left:
            state = self.states[left.pop()]
            if state.accepts is not None or (state.end == "^" and not at_start) or (state.end == "$" and not at_end):
                continue
            for number in state.to:
                if number not in found:
                    found.add(number)
                    left.append(number)
        return frozenset(found)


def compiled(text: str) -> Pattern:
    r"""Read a pattern. Raises :class:`~hwcalc.errors.UsageError` if it is too long, or has what is not read.

    >>> experts = compiled(r"blk\.(1[0-9]|2)\.ffn_.*_exps")
    >>> [experts.found_in(f"blk.{number}.ffn_up_exps.weight") for number in (2, 3, 12, 22)]
    [True, False, True, False]
    >>> compiled("(a+)+$").found_in("a" * 5000 + "b")
    False
    """
    reader = _Reader(text)
    if len(text) > _LONGEST:
        reader.fail(f"has {len(text)} characters; kvplan reads {_LONGEST}")
    piece = reader.choice(0)
    if reader.at < len(text):
        reader.fail("closes a group that is not open")
    start = reader.built(piece, 0)
    return Pattern(states=tuple(reader.states), start=start)

"""Make text from outside safe for terminals, runners of CI jobs, messages and command lines.

:func:`printable` and :func:`shown` are for values, :func:`clean` for cells and lines, :func:`message` for a whole message, :func:`lines_for`
for a whole output. Each can be applied to its own result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from reprlib import Repr
from typing import Final

from hwcalc.masking import without_tokens

TIMES = "×"  # noqa: RUF001 - a multiplication sign is what is meant
LONGEST_MESSAGE: Final = 2000
"""Characters of a message or a hint; the middle of a longer one is left out."""
LONGEST_WORD: Final = 200
"""Characters without a blank in a message; the middle of a longer word is left out."""
_DOTS: Final = "..."
_LONGEST_BITS: Final = 192
"""Bits of a whole number that is written out."""
_TAIL: Final = 4
"""The part of what is kept that is taken from the end: one in four."""
_FIRST_MARK: Final = 0x300
"""The first combining mark, which is also below every letter of a script that is written from right to left."""
_MOST_MARKS: Final = 2
"""Combining marks on one letter; more would paint over other lines."""

# Letters that are printable for Python but take no ink.
_INVISIBLE: Final = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
# What Azure Pipelines, TeamCity and GitHub's older syntax read as a command, wherever it stands in a line.
_ANYWHERE: Final = r"##(?=\w{0,40}\[)"
# What GitHub Actions reads as a command after blanks, and what Buildkite reads as a heading.
_AT_START: Final = r"(?m)^((?:[^\S\n]|\x1b\[[\d;]*m)*+):(?=:)|^((?:\x1b\[[\d;]*m)*+)[-+~^](?=--|\+\+|~~|\^\^)"
# A formula begins with one of these signs, behind blanks and quotes, and behind a semicolon where a spreadsheet splits there.
_SIGNS: Final = frozenset("=+-@\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b\u2212")
_FORMULA: Final = r"((?:^|;)[\s\"`\u2018-\u201f\u00ab\u00bb?]*)(?=[=+@\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b\u2212-].)"
_NUMBER: Final = r"[+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?(?: ?%)?"
_COLOR: Final = r"\x1b\[[\d;]{0,16}m"


@lru_cache(maxsize=4096)
def unsafe(letter: str) -> bool:
    """True if a character controls a terminal, is invisible, or is written from right to left, which moves what stands around it."""
    if letter.isascii():
        return not letter.isprintable()
    if not letter.isprintable() or re.match(_INVISIBLE, letter):
        return True
    import unicodedata

    return unicodedata.bidirectional(letter) in {"R", "AL", "AN"} or unicodedata.category(letter) == "Me"


def did_you_mean(word: str, known: Iterable[str], most: int = 1, *, alike: float = 0.6) -> str:
    """The question whether a mistyped word is one of those that it resembles so much, with a blank at its end; empty if it resembles none.

    >>> did_you_mean("ollma", ("vllm", "ollama")), did_you_mean("x", ("vllm",))
    ('Did you mean ollama? ', '')
    """
    from difflib import get_close_matches

    written = {each.lower(): each for each in known}
    near = [written[each] for each in get_close_matches(word[:60].lower(), written, most, alike)]
    return f"Did you mean {' or '.join(near)}? " if near else ""


def printable(text: str) -> str:
    """``text`` with escapes for control characters and undecodable bytes, so that every UTF-8 stream accepts it."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def cut(text: str, longest: int) -> str:
    """``text`` without its middle if it is longer than ``longest`` characters.

    >>> cut("a name that is too long", 15)
    'a name th...ong'
    """
    if len(text) <= longest:
        return text
    kept = longest - len(_DOTS)
    tail = kept // _TAIL
    return f"{text[: kept - tail]}{_DOTS}{text[len(text) - tail :]}"


def cut_beside(a: str, b: str, longest: int) -> tuple[str, str]:
    """Two texts side by side, each of at most ``longest`` characters. Where they are longer, what both begin with gives way to where they part.

    >>> cut_beside("18*mamba2(heads=64, head_dim=64)", "18*mamba2(heads=64, head_dim=32)", 20)
    ('...=64, head_dim=64)', '...=64, head_dim=32)')
    """
    room = longest - len(_DOTS)
    same = next((place for place, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
    over = max(len(a), len(b)) - room
    start = min(same - longest // 3, over) if over > len(_DOTS) else 0
    if start > len(_DOTS):
        a, b = f"{_DOTS}{a[start:]}", f"{_DOTS}{b[start:]}"
    first, second = (text if len(text) <= longest else f"{text[:room]}{_DOTS}" for text in (a, b))
    return first, second


def shown(text: str, longest: int = 80) -> str:
    """``text`` in quotes for a message: :func:`brief`."""
    return f"'{brief(text, longest)}'"


def brief(text: str, longest: int = 80) -> str:
    """``text`` for a message: cut to ``longest`` characters, without secrets, with escapes for everything unsafe."""
    # A secret is found before its end is cut off.
    start = without_tokens(text[:LONGEST_MESSAGE])
    short = start if len(start) <= longest and len(text) <= LONGEST_MESSAGE else f"{start[: longest - len(_DOTS)]}{_DOTS}"
    return clean(printable(short))


class _Quoted(Repr):
    """The start of any value's ``repr``. It also ends for values that contain themselves, and for objects whose ``repr`` fails."""

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out an integer of more than 4,300 digits.
        return super().repr_int(x, level) if x.bit_length() <= _LONGEST_BITS else f"a whole number of {x.bit_length():,} bits"

    def repr_str(self, x: str, level: int) -> str:
        # A secret is found before its end is cut off.
        return super().repr_str(without_tokens(x[:LONGEST_MESSAGE]), level)


def quoted(value: object, longest: int = 60) -> str:
    """Any value for a message, as Python writes it, in at most ``longest`` characters.

    >>> quoted("32 k"), quoted([1, None]), quoted(10**5000)
    ("'32 k'", '[1, None]', 'a whole number of 16,610 bits')
    """
    short = _Quoted()
    short.maxstring = short.maxother = short.maxlong = longest
    text = short.repr(value)
    return text if len(text) <= longest else f"{text[: longest - len(_DOTS)]}{_DOTS}"


def clean(text: str) -> str:
    r"""``text`` for one line: ``?`` for every control or formatting character, escapes for letters written from right to left.

    No part of it is a command to a runner wherever it stands, and no token is in it.

    >>> clean("a\x1b[31mb"), clean("##[error]x"), clean("caf\u00e9 \u05d0")
    ('a?[31mb', '#?[error]x', 'café \\u05d0')
    """
    if not (text.isascii() and text.isprintable()):
        text = _harmless(text)
    if "##" in text:
        text = re.sub(_ANYWHERE, "#?", text)
    return without_tokens(text)


def _harmless(text: str) -> str:
    if text.isprintable() and all(letter < chr(_FIRST_MARK) or letter in "…░█" for letter in set(text)):
        return text
    import unicodedata

    out: list[str] = []
    marks = _MOST_MARKS
    for letter in text:
        if unicodedata.category(letter) == "Mn" and not unsafe(letter):
            marks += 1
            out.append(letter if marks <= _MOST_MARKS else "?")
            continue
        odd = unsafe(letter)
        marks = 0 if letter.isalpha() and not odd else _MOST_MARKS
        out.append(_replaced(letter) if odd else letter)
    return "".join(out)


def _replaced(letter: str) -> str:
    """What stands for an unsafe character: a blank for a blank, the escape of a visible letter, a question mark for all others."""
    if letter.isprintable() and not re.match(_INVISIBLE, letter):
        return ascii(letter)[1:-1]
    return " " if letter.isspace() and letter not in "\n\r\t\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029" else "?"


def message(text: str) -> str:
    r"""The text of an error or a remark: each line :func:`clean` and no command to a runner, long words and the whole cut.

    >>> message("no model a\x00b\nsecond line")
    'no model a?b\nsecond line'
    """
    if len(text) > 8 * LONGEST_MESSAGE:
        # Nobody searches megabytes. What this cuts in half is cut out below: it stands far from both ends.
        text = cut(text, 8 * LONGEST_MESSAGE)
    text = "\n".join(clean(line) for line in text.split("\n")) if "\n" in text else clean(text)
    text = _without_commands(text)
    if len(text) > LONGEST_WORD:
        text = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: cut(word[0], LONGEST_WORD), text)
    return cut(text, LONGEST_MESSAGE)


def lines_for(text: str, *, color: bool = False, commands: bool = False) -> str:
    """A whole output: no line of it controls a terminal or a runner, whatever stands where lines were wrapped.

    ``color`` keeps the codes of colours, ``commands`` the lines that are meant for a runner or a program, with their tabs and both kinds of ends.
    """
    if not _is_plain(text):
        # The parts at odd places are kept.
        kept = "|".join((_COLOR,) * color + (r"\t|\r$",) * commands)
        lines = (re.split(f"({kept})", line) if kept else [line] for line in text.split("\n"))
        text = "\n".join("".join(part if place % 2 else _harmless(part) for place, part in enumerate(line)) for line in lines)
    if "##" in text:
        text = re.sub(_ANYWHERE, "#?", text)
    return without_tokens(text if commands else _without_commands(text))


def _without_commands(text: str) -> str:
    """``text`` with ``?`` where a line begins as a command to a runner does."""
    return re.sub(_AT_START, r"\1\2?", text) if any(mark in text for mark in ("::", "---", "+++", "~~~", "^^^")) else text


def json_for(text: str) -> str:
    """JSON text with escapes in its strings for what a terminal or a runner would obey; the values are the same."""
    if not _is_plain(text):
        from unicodedata import category

        escapes: dict[int, str] = {}
        for letter in set(text):
            if letter != "\n" and (unsafe(letter) or category(letter) == "Mn"):
                units = letter.encode("utf-16-be", "surrogatepass")
                escapes[ord(letter)] = "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
        text = text.translate(escapes)
    return re.sub(_ANYWHERE, r"#\\u0023", text) if "##" in text else text


def _is_plain(text: str) -> bool:
    return text.isascii() and text.replace("\n", "").isprintable()


def csv_cell(text: str) -> str:
    """``text`` for a cell of CSV: :func:`clean`, and with an apostrophe before what a spreadsheet would run as a formula. Numbers stay.

    >>> csv_cell("=cmd()"), csv_cell("-1.5"), csv_cell("a;@sum(1)"), csv_cell("-x")
    ("'=cmd()", '-1.5', "a;'@sum(1)", "'-x")
    """
    text = clean(text)
    if _SIGNS.isdisjoint(text) or re.fullmatch(_NUMBER, text):
        return text
    return re.sub(_FORMULA, r"\1'", text)


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")
"""What a shell takes as it stands: most words of a command have nothing else."""


def shell_word(text: str) -> str:
    """``text`` as one word of a POSIX shell.

    >>> shell_word("org/name"), shell_word("my model; $(x)")
    ('org/name', "'my model; $(x)'")
    """
    if text and _PLAIN.issuperset(text):
        return text
    from shlex import quote

    if all(not unsafe(letter) for letter in text):
        return quote(text)
    # bash, zsh, ksh and POSIX since 2024 read escapes in this form.
    escapes = {"\\": "\\\\", "'": "\\'"}
    return "$'" + "".join(escapes.get(letter) or (ascii(letter)[1:-1] if unsafe(letter) else letter) for letter in text) + "'"


def operand(text: str) -> str:
    """``text`` as an argument in a command line of kvplan, which is never taken for an option.

    >>> operand("Qwen/Qwen3-8B"), operand("-x.json")
    ('Qwen/Qwen3-8B', '-- -x.json')
    """
    word = shell_word(text)
    return f"-- {word}" if text.startswith("-") else word


def by_word(rows: Mapping[str, str]) -> dict[str, str]:
    """For each word the key of the row that lists it.

    >>> by_word({"fp16": "half f16", "fp32": "float"})
    {'half': 'fp16', 'f16': 'fp16', 'float': 'fp32'}
    """
    return {word: key for key, words in rows.items() for word in words.split()}


_OPTION: Final = r"""--(?P<name>[a-z][a-z-]*[a-z])(?:[ =](?P<value>'[^']*'|[\w./:+@=-]*[\d=][\w./:+@=-]*\w|\d))?"""
"""An option, and what follows it if that is surely its value: in quotes, or a word with a digit or an equals sign."""


def in_python(text: str, names: Collection[str]) -> str:
    """The same words with the options of these names as keywords. Flags of engines and whole commands stay as they are.

    >>> names = ("gpu", "seq", "memory_utilization", "engine_options")
    >>> in_python("--gpu 'h1000' is not known. Add: --seq 32k, or --memory-utilization", names)
    "gpu='h1000' is not known. Add: seq='32k', or memory_utilization"
    >>> in_python("vLLM: --block-size 32. Write: --engine-option block_size=32. See: kvplan engines --json", names)
    "vLLM: --block-size 32. Write: engine_options={'block_size': '32'}. See: kvplan engines --json"
    """
    said, mark, line = text.partition("kvplan ")
    return re.sub(_OPTION, lambda option: _keyword(option, names), said) + mark + line


def _keyword(option: re.Match[str], names: Collection[str]) -> str:
    """An option, with its value if it has one, as a keyword."""
    name, value = option["name"].replace("-", "_"), option["value"]
    own = "engine_options" if name == "engine_option" else name
    if own not in names:
        return option[0]
    if not value:
        return own
    if own == "engine_options":
        key, _, setting = value.strip("'\"").partition("=")
        return f"engine_options={{{key!r}: {setting!r}}}"
    plain = value.startswith("'") or value.isdigit()
    return f"{name}={value if plain else repr(value)}"


def is_manifest(text: str) -> bool:
    """True if a text of YAML has a key that Kubernetes' or Compose's files of servers begin with.

    >>> is_manifest("apiVersion: v1"), is_manifest("layers: 36")
    (True, False)
    """
    return re.search(r"(?m)^(?:apiVersion|services)\s*:", text) is not None

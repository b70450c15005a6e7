"""Damage done to JSON values, text and bytes. Everything comes from the generator that is handed in, so a seed repeats it."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, Final

SECRET: Final = "hf_" + "kvplanFuzzSecretNeverPrintedXyz012"
"""What the program must never print, wherever it is given."""

STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 8, 64, 127, 10**6, 2**31, 2**63, 10**30, 10**300, 0.5, -0.0, 1.5, 1e308, float("nan"),
    float("inf"), float("-inf"), "", "8", "full_attention", "sliding_attention", "linear_attention", "mamba", "null", "auto", "fp8",
    "float8_e4m3fn", "bfloat16", [], [0], [None], [-1, 2], [[]], ["full_attention"], ["mamba", 3], [1] * 40, [True, False] * 12,
    ["full_attention", "sliding_attention"] * 9, {}, {"model_type": "llama"}, {"": None}, {"a": {"b": [{}]}}, {"0": 1, "1": [2]},
)  # fmt: skip
"""Numbers that files hold by accident, those that break arithmetic, and values of a kind that nobody expects."""

HOSTILE: Final = (
    "::error::owned", "\n::add-mask::x", "  ::stop-commands::x", "##[group]x", "##vso[task.setvariable variable=a]b",
    "##teamcity[buildStop]", "\x1b[2J\x1b]52;c;QQ==\x07", "\x1b]8;;http://x\x1b\\", "a\r\nb", "\u202egnp.exe", "a\u200bb", "\u2028::x::y",
    "\ud800", "\x00", "=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\t=1", "$(touch owned)", "`id`", "; rm -rf x", "a'b\"c",
    "--output=owned", "-x", "../../etc/passwd", "a" * 3000, "é" * 500, "\U0001f600", "%s%n{0}{x}", "<script>", "]]>", "|a|b|", "**x**",
    "٣٢", "1_000", "1,5k", "1e400", "9" * 5000, SECRET,
)  # fmt: skip
"""Text that terminals, spreadsheets, shells, CI runners and parsers may take for more than text."""

_ALPHABET: Final = '{}[]",:\\ \n\t0123456789.eE+-truefalsn#|>&*!%@`\x00\x7f\xc3\xa9\xff:::'


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document that holds a value: its container and its key or index."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict):
            found += [(container, key) for key in container]
            waiting += [item for item in container.values() if isinstance(item, (dict, list))]
        elif isinstance(container, list):
            found += [(container, index) for index in range(min(len(container), 40))]
            waiting += [item for item in container[:40] if isinstance(item, (dict, list))]
    return found


def strange(chance: random.Random) -> Any:
    """A value that does not belong where it is put."""
    return chance.choice(HOSTILE) if chance.random() < 0.15 else copy.deepcopy(chance.choice(STRANGE))


def damaged(document: Any, chance: random.Random, donors: Sequence[Any], times: int) -> Any:
    """A copy with some places dropped, replaced, moved, repeated, or filled from other documents of the kind."""
    document = copy.deepcopy(document)
    for _ in range(times):
        _damage(document, chance, donors)
    return document


def _damage(document: Any, chance: random.Random, donors: Sequence[Any]) -> None:
    spots = places(document)
    if not spots:
        return
    container, key = chance.choice(spots)
    match chance.randrange(9):
        case 0:
            del container[key]
        case 1 | 2:
            container[key] = strange(chance)
        case 3:
            other, where = chance.choice(spots)
            container[key] = copy.deepcopy(other[where])
        case 4 | 5:
            donor = chance.choice(donors)
            found = places(donor)
            if found:
                other, where = chance.choice(found)
                if isinstance(other, dict) and isinstance(container, dict):
                    container[where] = copy.deepcopy(other[where])
                else:
                    container[key] = copy.deepcopy(other[where])
        case 6:
            container[key] = _scaled(container[key], chance)
        case 7:
            container[key] = [container[key]] if chance.random() < 0.5 else {str(key): container[key]}
        case _:
            if isinstance(container, dict):
                name = str(strange(chance))[:200] if chance.random() < 0.2 else f"{key}_{chance.randrange(3)}"
                container[name] = container[key]
            else:
                container.extend(container[: chance.randrange(1, 9)])


def _scaled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return strange(chance)
    if isinstance(value, int):
        return value * chance.choice((-1, 0, 2, 3, 1000)) + chance.choice((-1, 0, 1))
    if isinstance(value, float):
        return value * chance.choice((-1.0, 0.0, 1e300))
    if isinstance(value, str):
        return value + chance.choice(("", "x", " ", "\n", *HOSTILE[:6]))
    if isinstance(value, list):
        return value * chance.choice((0, 2, 5)) if len(value) < 200 else value[:3]
    return value


def damaged_text(text: str, chance: random.Random, times: int) -> str:
    """Text with pieces cut out, repeated, moved, or replaced by letters that grammars care about."""
    for _ in range(times):
        first = chance.randrange(len(text) + 1)
        end = min(len(text), first + chance.choice((0, 1, 1, 2, 8, 40, 400)))
        match chance.randrange(6):
            case 0:
                text = text[:first] + text[end:]
            case 1:
                text = text[:end] + text[first:end] * chance.choice((1, 2, 30)) + text[end:]
            case 2:
                text = text[:first] + "".join(chance.choices(_ALPHABET, k=chance.randrange(1, 9))) + text[end:]
            case 3:
                text = text[:first] + chance.choice(HOSTILE) + text[end:]
            case 4:
                text = text[:first]
            case _:
                text = text[:first] + str(strange(chance)) + text[end:]
    return text


def damaged_bytes(data: bytes, chance: random.Random, times: int) -> bytes:
    """Bytes with bits turned, pieces cut or repeated, and rubbish put in."""
    changed = bytearray(data)
    for _ in range(times):
        first = chance.randrange(len(changed) + 1)
        end = min(len(changed), first + chance.choice((0, 1, 2, 8, 64)))
        match chance.randrange(5):
            case 0:
                del changed[first:end]
            case 1:
                changed[first:end] = chance.randbytes(chance.randrange(9))
            case 2:
                changed[end:end] = changed[first:end] * chance.choice((1, 9))
            case 3 if first < len(changed):
                changed[first] ^= 1 << chance.randrange(8)
            case _:
                del changed[first:]
    return bytes(changed)


def encoded(text: str) -> bytes:
    """Text as a file has it; halves of UTF-16 pairs stay what they are."""
    return text.encode("utf-8", "surrogatepass")

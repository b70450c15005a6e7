"""Hostile text for every place of the interface that takes text, and what no line of the answer may be."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

__all__ = ["HOSTILE", "SECRET", "faults"]

SECRET: Final = "S3cr3tS3cr3tS3cr3tS3cr3tS3cr3tS3"
"""The part of each token below by which it is found."""
TOKENS: Final = (
    f"hf_{SECRET}", f"sk-{SECRET}", f"sk-proj-{SECRET}", f"ghp_{SECRET}", f"github_pat_{SECRET}", f"xoxb-{SECRET}", f"AKIA{SECRET.upper()}",
    f"eyJ{SECRET}.{SECRET}.{SECRET}", f"https://user:{SECRET}@huggingface.co/a/b", f"user:{SECRET}@host.example", f"Bearer {SECRET}",
    f"https://h.example/x?token={SECRET}", f"org/hf_{SECRET}", f"./hf_{SECRET}/config.json",
)  # fmt: skip
TERMINAL: Final = (
    "a\x1b[31mred\x1b[2J\x1b]0;title\x07", "\x1b]8;;http://e.example\x1b\\link\x1b]8;;\x1b\\", "\x1b]52;c;YQ==\x07", "c1\x9b31m\x9d0;x\x9c",
    "back\b\b\brub\x7f", "tab\there", "a\r\nb", "over\rwritten", "v\x0bf\x0cs\x1c\x1d\x1e\x85l\u2028p\u2029",
)  # fmt: skip
UNICODE: Final = (
    "rtl\u202egpj.exe\u202c", "iso\u2066late\u2069 \u200f\u061c", "zero\u200bwidth\u200d\u2060\ufeff\u00ad", "tag\U000e0041\U000e007f",
    "\u05d0\u05d1\u05d2 12", "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662", "z" + "\u0335\u0322\u0489" * 20, "\u0301first", "fill\u3164\u115f\u2800er",
    "half\ud800pair", "\udcff\udcfebytes", "private\ue000use", "\u00a0\u3000wide",
)  # fmt: skip
RUNNERS: Final = (
    "::error file=a,line=1::pwned", "  ::stop-commands::x", "\u3000::set-output name=a::b", "x\n::error::y", "x\r::error::y",
    "##[error]x", "##vso[task.setvariable variable=a]b", "##teamcity[buildStatus]", "x ##[group]y", "--- heading", "+++ heading", "~~~ heading",
    "section_start:1:a\r\x1b[0Kx", " ".join(["word"] * 30 + ["::error::x", "--- y"]), "y" * 97 + "::error::" + "y" * 97, "%0A::error::x",
)  # fmt: skip
SHELL: Final = (
    "a b'c\"d",
    "$(touch pwned)",
    "`touch pwned`",
    "a;b|c&d>e",
    "-x",
    "--output",
    "--",
    "%s%n{0}{x}",
    "[bold]x[/bold]",
    "<b>&amp;</b>",
)
SHEET: Final = ("=cmd|' /C calc'!A0", "+1+cmd", "-2+3+cmd", "@SUM(A1)", "\t=1+1", '"=1+1', "\uff1dcmd()", "x;=cmd()")
LONG: Final = ("n" * 30_000, "many words " * 3_000, "\u05d0" * 5_000, "::" * 5_000, f"hf_{SECRET} " * 400)
HOSTILE: Final = (*TOKENS, *TERMINAL, *UNICODE, *RUNNERS, *SHELL, *SHEET, *LONG)

_START: Final = re.compile(r"\s*::|---|\+\+\+|~~~|\^\^\^")
_ANYWHERE: Final = re.compile(r"##\w*\[")
_LONGEST: Final = 4200
"""Characters of a line: a message and a hint are at most 2,000 each."""


def faults(text: str, *, commands: bool = False, longest: int | None = _LONGEST) -> list[str]:
    """What is wrong with an output, a word for each line at fault. ``commands`` allows lines that are meant for a runner."""
    found = []
    for line in text.split("\n"):
        odd = sorted({hex(ord(letter)) for letter in line if _controls(letter)})
        marks = re.search("[\u0300-\u036f]{3}", line)
        reasons = [
            f"control {odd}" if odd else "",
            "marks" if marks else "",
            "command" if _ANYWHERE.search(line) or (_START.match(line) and not commands) else "",
            "secret" if SECRET in line or SECRET.upper() in line else "",
            f"long {len(line)}" if longest is not None and len(line) > longest else "",
        ]
        found += [f"{reason}: {line[:120]!a}" for reason in reasons if reason]
    return found


def _controls(letter: str) -> bool:
    if letter.isascii():
        return not letter.isprintable()
    return (
        unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Me"}
        or unicodedata.bidirectional(letter) in {"R", "AL", "AN"}
        or letter in "\u3164\u115f\u2800\u034f"
    )

"""Hide secrets in what is kept of a log: :func:`masked`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["masked"]

_STARS: Final = "***"
_LONGEST: Final = 1024
"""Characters that are searched; the rest is dropped. What is kept of a line is shorter."""
_SHORTEST: Final = 6
"""Shorter words behind a name and a blank are prose, as in ``token by token``."""

# Names behind which a secret stands, then what stands between name and value. "per token" is a rate, and "tokens" are counted.
_NAMED: Final = re.compile(
    r"""
    (?:(?P<header> authorization | cookie)
     | (?: (?<!per[ ])(?<!per[_-])token(?!s|iz) | (?:api|auth|access|hf|refresh|bearer)[_-]?tokens
       | secret | passw(?:or)?d | passphrase | \bpwd | _pwd | credential | signature | \bsig(?==)
       | (?:api|access|private|account|shared|master)[_-]?key | [_-]keys?(?![\w-]) | \bbearer | \bbasic
       )
    )
    [\w-]{0,60}
    (?: \\{0,4}['"`] \]? \s* (?:[:=,>]+ \s*)
      | \]? \s* [:=>]+ \s*
      | (?P<blank> \s+ (?:(?:is|was)\b :? \s*)?)
    )
    (?:(?:bearer|basic|digest|negotiate|ntlm|token) \s+)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PARTS: Final = (
    "token", "secret", "passw", "passphrase", "pwd", "credential", "signature", "sig=", "key", "bearer", "basic", "authorization", "cookie",
)  # fmt: skip
"""A text without any of these has no such name. Most lines have none, and this is found fast."""
_NOTHING: Final = re.compile(r"(?:None|null|true|false|''|\"\")(?=[\s,;)}\]]|$)", re.IGNORECASE)
_OPENED: Final = re.compile(r"[bru]{0,2}\\{0,4}['\"`\[({]", re.IGNORECASE)
# What tokens of well-known services look like, and what stands before the host in an address.
_SHAPED: Final = re.compile(
    r"\b(?:hf_|sk-|sk_live_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|gsk_|nvapi-|eyJ)[\w.-]{8,}|(?<=://)[^\s/@]+@"
)


def masked(text: str) -> str:
    """The beginning of a text, with stars in place of what looks like a secret. It hides too much rather than too little.

    >>> masked("api_key='abcdef123456' memory 4 GiB, 'hf_token': ['a b', 'c']")
    "api_key=*** memory 4 GiB, 'hf_token': ***"
    >>> masked("Bearer abc.def.ghi 3 GiB, 131072 bytes per token: 2 GiB")
    'Bearer *** 3 GiB, 131072 bytes per token: 2 GiB'
    >>> masked("hf_abcdefghijkl at https://user:word@host/x")
    '*** at https://***host/x'
    """
    text = text.strip()
    if len(text) > _LONGEST:
        # The last word may be a part of a secret that is not recognized by a part.
        text = text[:_LONGEST]
        text = text.rpartition(" ")[0] or text
    out: list[str] = []
    place = 0
    for start, end in _secrets(text):
        if start >= place:
            out += [text[place:start], _STARS]
        place = max(place, end)
    out.append(text[place:])
    return _SHAPED.sub(_STARS, "".join(out))


def _secrets(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the values behind names. A value may hold a name itself, so that spans may overlap."""
    lowered = text.lower()
    if not any(part in lowered for part in _PARTS):
        return
    end = 0
    found = _NAMED.search(text)
    while found is not None and end < len(text):
        start = found.end()
        if _NOTHING.match(text, start) is None:
            opened = _OPENED.match(text, start) is not None
            end = len(text) if found["header"] and not opened and not found["blank"] else _value_end(text, start)
            prose = found["blank"] and not opened and end - start < _SHORTEST and not _is_flag(text, found.start())
            if not prose and end > start:
                yield start, end
        found = _NAMED.search(text, start)


def _is_flag(text: str, place: int) -> bool:
    """Whether the name at this place is that of an option, such as ``--api-key``."""
    return text[:place].rpartition(" ")[2].lstrip("'\"[(").startswith("-")


def _value_end(text: str, start: int) -> int:
    """The end of the value that starts here: of its quotes and brackets, or of its word. What is not closed ends with the text."""
    depth, quote, place = 0, "", start
    while place < len(text):
        letter = text[place]
        if quote:
            if letter == "\\":
                place += 1
            elif letter == quote:
                quote = ""
                after = text[place + 1 : place + 2]
                if not depth and not after.isalnum() and after not in ("'", '"'):
                    return place + 1
        elif letter in "'\"`":
            quote = letter
        elif letter in "[({":
            depth += 1
        elif letter in "])}" and depth:
            depth -= 1
            if not depth:
                return place + 1
        elif not depth and letter.isspace():
            return place
        place += 1
    return len(text)

"""Hide secrets: in everything that is printed (:func:`without_tokens`), and more strictly in what is kept of a log (:func:`masked`).

Nothing is compiled at import: a plan imports this module, and hardly any text has a secret in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

_STARS: Final = "***"
_LONGEST: Final = 1024
"""Characters that are searched; the rest is dropped. What is kept of a line is shorter."""
_SHORTEST: Final = 6
"""Shorter words behind a name and a blank are prose, as in ``token by token``."""

_PARTS: Final = (
    "token", "secret", "passw", "passphrase", "pwd", "credential", "signature", "sig=", "key", "bearer", "basic", "authorization", "cookie",
)  # fmt: skip
"""A text without any of these has no such name. Most lines have none, and this is found fast."""
# What a token of a well-known service begins with. A name such as hf_transfer or sk-learn is none.
_SERVICES: Final = (
    "hf_", "api_org_", "sk-", "sk_live_", "rk_live_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA",
    "AIza", "gsk_", "nvapi-", "npm_", "pypi-", "eyJ",
)  # fmt: skip
_MARKS: Final = (
    *_SERVICES, "earer ", "EARER ", "@", "token=", "signature=", "secret=", "password=", "credential=", "key=", "sig=",
    "Token=", "Signature=", "Secret=", "Password=", "Credential=", "Key=",
)  # fmt: skip
"""A text without any of these has nothing to hide but the token that is set."""
_TOKEN_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_LEAST_TOKEN: Final = 8


@cache
def _tokens() -> re.Pattern[str]:
    """Tokens by their shape. Every part is bounded or possessive, so that no text takes long."""
    return re.compile(
        r"""
        (?<![A-Za-z0-9]) (?:
            (?:hf_ | api_org_) (?: (?=[A-Za-z0-9]{0,40}[0-9A-Z]) [A-Za-z0-9]{8,}+ | (?!transformers) [a-z]{12,}+ | (?=[\w-]{0,40}[0-9A-Z]) [\w-]{20,}+ )
          | sk- (?:[A-Za-z0-9]{2,8}-){0,3} [A-Za-z0-9_]{16,}+
          | sk-(?:proj|ant|or|svcacct|admin)- [\w-]{16,}+
          | [sr]k_live_ [A-Za-z0-9]{8,}+
          | gh[pousr]_ [A-Za-z0-9]{12,}+ | github_pat_ \w{12,}+ | glpat- [\w-]{12,}+
          | xox[a-z]- [\w-]{8,}+
          | (?:AKIA|ASIA) [A-Z0-9]{12,}+ | AIza [\w-]{20,}+
          | gsk_ [A-Za-z0-9]{16,}+ | nvapi- [\w-]{16,}+ | npm_ [A-Za-z0-9]{16,}+ | pypi- [\w-]{16,}+
          | eyJ [\w-]{10,}+ (?: \.[\w-]*+ ){0,4}
        ) (?:\.\.\.)?
        | hf_ [A-Za-z0-9]{20,}+ (?:\.\.\.)?
        | (?<=[Bb]earer[ ]) [\w.~+/=-]{8,}+ | (?<=BEARER[ ]) [\w.~+/=-]{8,}+
        | (?<=://) [^\s/@]{1,300}@
        | (?<![\w.+-]) [\w.+-]{1,64}:[^\s:/@]{3,300}@ (?=[\w-]{1,64}[.:])
        | (?<=[?&;]) (?P<name>(?:[\w-]{0,32}(?:[Tt]oken|[Ss]ignature|[Ss]ecret|[Pp]assword|[Cc]redential|[Kk]ey)|sig)=) [^\s&"'#]{4,}+
        """,
        re.VERBOSE | re.ASCII,
    )


def without_tokens(text: str) -> str:
    """A text with stars in place of each token of a known shape, of user and password in an address, and of the Hub token that is set.

    >>> without_tokens("no model hf_" + "aB3" * 11 + " at https://user:word@host/x?token=abcd")
    'no model *** at https://***host/x?token=***'
    >>> without_tokens("org/sk-learn-7b, hf_transfer, vllm@0.10.1")
    'org/sk-learn-7b, hf_transfer, vllm@0.10.1'
    """
    if len(text) < _LEAST_TOKEN:
        if "@" not in text:
            # Too short for any token; the shortest is "?key=abcd".
            return text
    else:
        for variable in _TOKEN_VARIABLES:
            token = os.environ.get(variable, "")
            if len(token) >= _LEAST_TOKEN and token in text:
                text = text.replace(token, _STARS)
    for mark in _MARKS:
        if mark in text:
            return _tokens().sub(lambda found: f"{found['name'] or ''}{_STARS}", text)
    return text


# Names behind which a secret stands in a log, then what stands between name and value. "per token" is a rate, and "tokens" are counted.
@cache
def _named() -> re.Pattern[str]:
    return re.compile(
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


_NOTHING: Final = r"(?i)(?:None|null|true|false|''|\"\")(?=[\s,;)}\]]|$)"
_OPENED: Final = r"(?i)[bru]{0,2}\\{0,4}['\"`\[({]"
_SHAPED: Final = rf"\b(?:{'|'.join(map(re.escape, _SERVICES))})[\w.-]{{8,}}|(?<=://)[^\s/@]+@"
"""What tokens look like, more widely than in other output, and what stands before the host in an address."""


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
    return without_tokens(re.sub(_SHAPED, _STARS, "".join(out)))


def _secrets(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the values behind names. A value may hold a name itself, so that spans may overlap."""
    lowered = text.lower()
    if not any(part in lowered for part in _PARTS):
        return
    end = 0
    found = _named().search(text)
    while found is not None and end < len(text):
        start = found.end()
        if re.match(_NOTHING, text[start:]) is None:
            opened = re.match(_OPENED, text[start:]) is not None
            end = len(text) if found["header"] and not opened and not found["blank"] else _value_end(text, start)
            # The name of an option is one, such as --api-key.
            flag = text[: found.start()].rpartition(" ")[2].lstrip("'\"[(").startswith("-")
            prose = found["blank"] and not opened and end - start < _SHORTEST and not flag
            if not prose and end > start:
                yield start, end
        found = _named().search(text, start)


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

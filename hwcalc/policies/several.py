"""A list of policies: ``snapkv:compression_ratio=0.5,window_size=64,knorm,none``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import Chosen
from hwcalc.policies.parse import parse_policy
from hwcalc.policies.written import LONGEST, WRITE, split_at
from hwcalc.text import shown

__all__ = ["policy_list", "policy_texts"]

_SEVERAL: Final = "Write: --policy snapkv:compression_ratio=0.5,window_size=64,knorm:compression_ratio=0.5,none"


def policy_list(given: object) -> tuple[Chosen | None, ...]:
    """The policies of a list, each once; ``None``, and ``none`` in text, keeps everything. Nothing at all is ``()``.

    In Python, an entry is text, which may itself be a list, or a name with a dict of options.

    >>> [one and one.text for one in policy_list("snapkv:compression_ratio=0.5,window_size=32,none")]
    ['snapkv:compression_ratio=0.5,window_size=32', None]
    """
    found: dict[str, Chosen | None] = {}
    for entry in () if given is None else _entries(given):
        for each in policy_texts(entry) if isinstance(entry, str) else (entry,):
            chosen = parse_policy(each)
            found.setdefault("" if chosen is None else chosen.text, chosen)
    return tuple(found.values())


def _entries(given: object) -> Sequence[Any]:
    """A list as it is, and a single policy as a list of one: ``["snapkv", {...}]`` is a policy with its options."""
    if not isinstance(given, (list, tuple)) or (len(given) == 2 and isinstance(given[1], Mapping)):
        return (given,)
    return given


def policy_texts(text: str) -> tuple[str, ...]:
    """The policies of a text, each by itself. Raises :class:`~hwcalc.errors.UsageError` for an entry that is empty.

    What begins with a name, or with a name and a colon, is a policy; ``key=value`` is an option of the policy before.
    """
    if len(text) > LONGEST:
        raise UsageError(f"the list of policies is longer than {LONGEST:,} characters.", hint=WRITE)
    return tuple(_joined(text))


def _joined(text: str) -> Iterator[str]:
    policy = ""
    for word in (part.strip() for part in split_at(text, ",")):
        if not word:
            raise UsageError(f"policy has an empty entry: {shown(text, 60)}", hint=_SEVERAL)
        if not _is_option(word):
            if policy:
                yield policy
            policy = word
        elif not policy:
            raise UsageError(f"{shown(word, 60)} is an option, and stands before any policy.", hint=_SEVERAL)
        else:
            policy += f"{',' if ':' in policy else ':'}{word}"
    yield policy


def _is_option(word: str) -> bool:
    """Whether ``=`` is the first of the signs that end a name."""
    return next((letter for letter in word if letter in ":=(["), "") == "="

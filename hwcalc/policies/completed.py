"""How the text of a policy can go on, for a shell: names, then options of the named policy, and policies in brackets again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hwcalc.errors import UnknownNameError
from hwcalc.policies.base import Policy, PolicyOption
from hwcalc.policies.parse import fitting_inside
from hwcalc.policies.table import find_policy, policies

__all__ = ["completed"]

_FLAGS: Final = ("true", "false")
_LONGEST: Final = 2000


def completed(text: str) -> list[str]:
    """The whole texts that begin with ``text``.

    >>> completed("snap"), completed("snapkv:win")
    (['snapkv'], ['snapkv:window_size='])
    >>> completed("adakv:press=(tova:c")
    ['adakv:press=(tova:compression_ratio=']
    """
    return _of_policy(text, ("none", *policies())) if len(text) <= _LONGEST else []


def _of_policy(text: str, names: Iterable[str]) -> list[str]:
    name, colon, rest = text.partition(":")
    if not colon:
        return [one for one in names if one.startswith(text)]
    try:
        policy = find_policy(name)
    except UnknownNameError:
        return []
    place = _last_part(rest)
    return [f"{name}:{rest[:place]}{one}" for one in _of_option(policy, rest[:place], rest[place:])]


def _of_option(policy: Policy, before: str, text: str) -> list[str]:
    """How the last option goes on; ``before`` are those before it."""
    key, sign, value = text.partition("=")
    if not sign:
        given = {part.partition("=")[0].strip() for part in _parts(before)}
        shown = [option.name for option in policy.options if not option.name.startswith("_")]
        return [f"{name}=" for name in shown if name.startswith(key) and name not in given]
    option = next((one for one in policy.options if one.name == key), None)
    return [] if option is None else [f"{key}={one}" for one in _of_value(option, value)]


def _of_value(option: PolicyOption, value: str) -> list[str]:
    inside = fitting_inside(option)
    if not inside:
        default = () if option.default is None else (f"{option.default}",)
        known = _FLAGS if option.kind == "flag" else default
        return [one for one in known if one.startswith(value)]
    if option.kind == "prefills" and value.startswith("["):
        place = 1 + _last_part(value[1:])
        return [value[:place] + one for one in _bracketed(value[place:], inside)]
    return [f"[{one}" for one in _bracketed("", inside)] if option.kind == "prefills" and not value else _bracketed(value, inside)


def _bracketed(text: str, names: Iterable[str]) -> list[str]:
    """A policy inside another: in brackets, which its options need, unless a bare name was begun."""
    if text and not text.startswith("("):
        return [one for one in names if one.startswith(text)]
    return [f"({one}" for one in _of_policy(text[1:], names)]


def _last_part(text: str) -> int:
    """Where the part begins that is not closed yet."""
    return len(text) - len(_parts(text)[-1])


def _parts(text: str) -> list[str]:
    """The text cut at each comma that stands in no bracket; unlike those of a whole policy, brackets may be open."""
    depth, starts = 0, [0]
    for number, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            starts.append(number + 1)
    return [text[start : end - 1] for start, end in zip(starts, [*starts[1:], len(text) + 1], strict=True)]

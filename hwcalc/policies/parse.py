"""A policy from text (``snapkv:compression_ratio=0.5,window_size=32``) or from a name and its options, which may be policies again.

The text is ``NAME:key=value,key=value``, with a policy inside another in brackets; a list is ``none,snapkv:window_size=64,knorm``. The module
also has the table of policies, and for a shell how the text can go on. A new policy is a module of this folder, or a row of one, and its
name in the table.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.policies.base import Chosen, Policy, PolicyOption, Role
from hwcalc.text import quoted, shown
from hwcalc.units import parse_tokens

LONGEST: Final = 100_000
"""Characters of a policy, or of a list of them."""
WRITE: Final = "Write: snapkv:compression_ratio=0.5,window_size=32, with a policy inside in brackets: adakv:press=(knorm:compression_ratio=0.5)"


def split_at_commas(text: str, *, begun: bool = False) -> Iterator[str]:
    """``text`` cut at each comma that stands in no bracket. Raises an error where brackets do not close, as those of a ``begun`` text may."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth < 0 and not begun:
            break
        if letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    if depth != 0 and not begun:
        raise UsageError(f"brackets do not close: {shown(text, 60)}", hint=WRITE)
    yield text[start:]


_NUMBER: Final = r"(?a)[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3})?"
_MOST_VALUES: Final = 100_000
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _real(value: Any, what: str, allowed: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from ``least`` to ``most``. A string is read as a number is written; a flag is none."""
    written = isinstance(value, str) and re.fullmatch(_NUMBER, value.strip())
    try:
        number = math.nan if isinstance(value, (str, bool)) and not written else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{what} is not a number: {quoted(value)}", hint=f"Allowed: {allowed}.")
    if not least <= number <= most:
        raise UsageError(f"{what} is out of range: {quoted(value)}", hint=f"Allowed: {allowed}.")
    return number


def _several(value: Any, what: str) -> list[Any]:
    """A list, or the text of one: ``[0.1,0.5]``."""
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        value = [word for word in split_at_commas(value.strip()[1:-1]) if word.strip()]
    values = list(value) if isinstance(value, (list, tuple)) else None
    if not values or len(values) > _MOST_VALUES:
        raise UsageError(f"{what} is not a list of values: {quoted(value)}", hint="Write: [0.1,0.5,0.9]")
    return values


def _any(value: Any, what: str) -> Any:
    """A value that bears on quality alone: scalars are taken as they are, and text as it would be written."""
    if not isinstance(value, (str, int, float, bool)):
        raise UsageError(f"{what} takes one value: {quoted(value)}", hint="Give a number or a word.")
    if not isinstance(value, str):
        return value
    word = value.strip()
    if not word.isprintable() or any(sign in word for sign in ",()[]"):
        raise UsageError(f"{what} takes one word: {quoted(value)}", hint="Leave out commas and brackets.")
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    return (float(word) if not word.isdigit() else int(word)) if re.fullmatch(_NUMBER, word) else word


def read_value(option: PolicyOption, value: Any, policy: str) -> Any:
    """The value of an option that is no policy. ``None`` and the text ``none`` are the default, if that is nothing."""
    if option.default is None and not option.required and (value is None or value == "none"):
        return None
    what, least, share = f"{policy}: {option.name}", option.least, "a share from 0 to 1"
    match option.kind:
        case "ratio":
            allowed = "the share that is dropped, from 0 to below 1, such as 0.5"
            return _real(value, what, allowed, 0, math.nextafter(1, 0))
        case "share":
            return _real(value, what, share, 0, 1)
        case "number":
            return _real(value, what, f"a number from {least}", least) if least else _real(value, what, "a number")
        case "count":
            return parse_tokens(value, what, minimum=least)
        case "flag":
            written = str(value).strip().lower() if isinstance(value, (int, str)) else ""
            if written not in _FLAGS:
                raise UsageError(f"{what} is neither true nor false: {quoted(value)}", hint="Allowed: true or false.")
            return _FLAGS[written]
        case "shares":
            return tuple(_real(one, what, share, 0, 1) for one in _several(value, what))
        case "rows":
            return tuple(tuple(_real(one, what, "numbers") for one in _several(row, what)) for row in _several(value, what))
        case "counts":
            return tuple(parse_tokens(one, what, minimum=0) for one in _several(value, what))
        case _:
            return _any(value, what)


TABLES: Final = (
    ("scorers", "STREAMING"),
    ("methods", "METHODS"),
    ("scorers", "SCORERS"),
    ("scorers", "WINDOWED"),
    ("wrappers", "MASKING"),
    ("scorers", "CHUNKED"),
    ("wrappers", "WRAPPERS"),
    ("methods", "DECODING"),
    ("methods", "MERGING"),
)
"""The modules that have policies, and the tuples of them, in the order of the list of policies."""

NOT_COUNTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "kvcompose": "how many tokens a layer keeps follows from the scores of all layers",
        "lukv": "what each head keeps stands in a file of curves for one model",
        "restorekv": "it puts trained tokens of a file into the cache",
    }
)
"""Policies of kvpress whose lengths kvplan does not say, and why."""


def _bare(name: str) -> str:
    """A name without case, signs and ``Press``: ``SnapKVPress``, ``snap_kv`` and ``snapkv`` are one."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return letters.removesuffix("press") or letters


@lru_cache(maxsize=1)
def policies() -> Mapping[str, Policy]:
    """All policies by name."""
    tables = (getattr(import_module(f"hwcalc.policies.{module}"), name) for module, name in TABLES)
    return MappingProxyType({policy.name: policy for table in tables for policy in table})


def find_policy(name: str) -> Policy:
    """The policy of this name, in any case, with ``Press`` or without. Raises :class:`~hwcalc.errors.UnknownNameError`."""
    table, bare = policies().values(), _bare(name[:200])
    known = {_bare(one): policy for policy in table for one in (policy.name, policy.press, *policy.aliases) if one}
    if bare in known:
        return known[bare]
    if bare in NOT_COUNTED:
        message = f"policy {shown(name, 40)} is known, but not what it keeps: {NOT_COUNTED[bare]}."
        raise UnknownNameError(message, option="policy", hint=f"Counted: {', '.join(policies())}.")
    near = get_close_matches(bare, known, n=1, cutoff=0.75)
    hint = f"{f'Did you mean {known[near[0]].name}? ' if near else ''}Known: {', '.join(policies())}."
    raise UnknownNameError(f"policy {shown(name, 40)} is not known.", option="policy", hint=hint)


_DEEPEST: Final = 8
_MOST_PARTS: Final = 32
_NESTED: Final[Mapping[str, tuple[str, tuple[Role, ...]]]] = {
    "scorer": ("a scorer, such as knorm", (Role.SCORER,)),
    "base": ("a scorer, such as knorm, or adakv", (Role.SCORER,)),
    "prefill": ("a policy of the prefill, such as snapkv", (Role.SCORER, Role.PREFILL)),
    "prefills": ("policies of the prefill, such as snapkv", (Role.SCORER, Role.PREFILL)),
    "decoding": ("a policy between decode steps, such as decoding", (Role.DECODING,)),
}
"""Kinds of options that hold policies: what they take, in words and by role."""


def parse_policy(given: object) -> Chosen | None:
    """The policy that was given; ``None`` (and ``none``) keeps everything. Raises :class:`~hwcalc.errors.UsageError`."""
    if given is None or (isinstance(given, str) and given.strip().lower() == "none"):
        return None
    return _policy(given, 0)


def _policy(given: object, depth: int) -> Chosen:
    """The policy with the given options and the defaults of the others."""
    if depth > _DEEPEST:
        raise UsageError(f"policies stand inside each other more than {_DEEPEST} deep.", hint=WRITE)
    if isinstance(given, Chosen):
        return given
    name, options = _split(given) if isinstance(given, str) else _pair(given)
    if not isinstance(options, Mapping):
        raise UsageError(f"that is no policy: {quoted(given)}", hint=f'{WRITE}. In Python also: ["snapkv", {{...}}]')
    policy = find_policy(name)
    known = {option.name: option for option in policy.options}
    unknown = [key for key in options if key not in known]
    if unknown:
        listed = [key for key in known if not key.startswith("_")]
        wrong = unknown[0] if isinstance(unknown[0], str) else ""
        # An option that the word resembles, or whose name has it as a part, such as ``ratio``.
        part = wrong[:40].lower().replace("-", "_").strip("_ ")
        holding = [key for key in listed if len(part) > 2 and part in key]
        meant = [*holding, *get_close_matches(part, listed, n=1, cutoff=0.6)][:1]
        hint = f"{f'Did you mean {meant[0]}? ' if meant else ''}Its options: {', '.join(listed) or 'none'}."
        raise UsageError(f"{policy.name} has no option {shown(wrong, 40) if wrong else quoted(unknown[0], 40)}.", hint=hint)
    values = {key: _value(policy, one, options[key], depth) if key in options else one.default for key, one in known.items()}
    for key, one in known.items():
        if one.required and values[key] is None:
            raise UsageError(f"{policy.name} needs {key}: {one.help}.", hint=_example(policy, one))
    chosen = Chosen(policy=policy, values=values)
    if policy.check_chosen is not None:
        policy.check_chosen(chosen)
    return chosen


def _pair(given: object) -> tuple[str, Any]:
    """The name and the options of a list of them; no options where it is none."""
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= 2 or not isinstance(given[0], str):
        return "", None
    return given[0], given[1] if len(given) > 1 and given[1] is not None else {}


def _example(policy: Policy, option: PolicyOption) -> str:
    """An example of the missing option."""
    inside = {
        "scorer": "(knorm:compression_ratio=0.5)", "base": "knorm", "prefills": "[(snapkv:compression_ratio=0.5),(knorm:compression_ratio=0.5)]",
        "shares": "[0.1,0.5]", "count": "1024", "number": "0.5",
    }  # fmt: skip
    return f"Write: {policy.name}:{option.name}={inside.get(option.kind, '...')}"


def _value(policy: Policy, option: PolicyOption, value: Any, depth: int) -> Any:
    if option.kind not in _NESTED:
        return read_value(option, value, policy.name)
    if value is None:
        return None
    if option.kind != "prefills":
        return _fitting(policy, option, value, depth)
    parts = value
    if isinstance(value, str):
        bare = value.strip()
        parts = list(split_at_commas(bare[1:-1])) if bare.startswith("[") and bare.endswith("]") else [bare]
    if not isinstance(parts, (list, tuple)) or not 1 <= len(parts) <= _MOST_PARTS:
        hint = _example(policy, option)
        raise UsageError(f"{policy.name}: {option.name} is not a list of policies: {quoted(value)}", hint=hint)
    return tuple(_fitting(policy, option, part, depth) for part in parts)


def fitting_inside(option: PolicyOption) -> tuple[str, ...]:
    """The policies that an option takes; none where it takes a value."""
    if option.kind not in _NESTED:
        return ()
    _, roles = _NESTED[option.kind]
    return tuple(one.name for one in policies().values() if one.role in roles or (option.kind == "base" and one.decodes))


def _fitting(policy: Policy, option: PolicyOption, value: Any, depth: int) -> Chosen:
    """The policy inside, which may stand in brackets, if it is of a kind that the one outside takes."""
    if isinstance(value, str):
        value = value.strip()
        value = value[1:-1] if value.startswith("(") and value.endswith(")") else value
    inner = _policy(value, depth + 1)
    names = fitting_inside(option)
    if inner.policy.name not in names:
        message = f"{policy.name}: {option.name} takes {_NESTED[option.kind][0]}, not {inner.policy.name}."
        raise UsageError(message, hint=f"Known: {', '.join(names)}.")
    if inner.policy.has_delimiter:
        message = f"{inner.policy.name} does not work inside {policy.name}: it takes its delimiter out of the prompt."
        raise UsageError(message, hint="Use it alone.")
    for part in (inner, *inner.inner):
        if part.get("budget") is not None:
            raise UsageError(f"{part.policy.name} has no budget inside {policy.name}.", hint="Give it a compression_ratio.")
    return inner


def _split(text: str) -> tuple[str, Any]:
    """The name and the options of ``NAME:key=value,...``; a text in square brackets is JSON."""
    if len(text) > LONGEST:
        raise UsageError(f"the policy is longer than {LONGEST:,} characters.", hint=WRITE)
    if text.strip().startswith("["):
        try:
            found = _pair(json.loads(text, object_pairs_hook=_once))
        except (ValueError, RecursionError):
            found = "", None
        if found[1] is None:
            raise UsageError(f"that is no policy: {shown(text, 60)}", hint=WRITE)
        return found
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for word in split_at_commas(rest) if rest.strip() else ():
        key, sign, value = word.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{shown(word.strip(), 60)} is not KEY=VALUE.", hint=WRITE)
        if key.strip() in options:
            raise UsageError(f"{shown(key.strip(), 40)} is given twice.", hint=WRITE)
        options[key.strip()] = value.strip()
    return name.strip(), options


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises an error where a key is given twice, as the other way to write a policy does."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise UsageError("an option of the policy is given twice.", hint=WRITE)
    return dict(pairs)


_SEVERAL: Final = "Write: --policy snapkv:compression_ratio=0.5,window_size=64,knorm:compression_ratio=0.5,none"


def policy_list(given: object) -> tuple[Chosen | None, ...]:
    """The policies of a list, each once; ``None``, and ``none`` in text, keeps everything. Nothing at all is ``()``.

    In Python, an entry is text, which may itself be a list, or a name with a dict of options.

    >>> [one and one.text for one in policy_list("snapkv:compression_ratio=0.5,window_size=32,none")]
    ['snapkv:compression_ratio=0.5,window_size=32', None]
    """
    entries: Sequence[Any] = () if given is None else (given,)
    # ``["snapkv", {...}]`` is a policy with its options.
    if isinstance(given, (list, tuple)) and not (len(given) == 2 and isinstance(given[1], Mapping)):
        entries = given
    found: dict[str, Chosen | None] = {}
    for entry in entries:
        for each in policy_texts(entry) if isinstance(entry, str) else (entry,):
            chosen = parse_policy(each)
            found.setdefault("" if chosen is None else chosen.text, chosen)
    return tuple(found.values())


def policy_texts(text: str) -> tuple[str, ...]:
    """The policies of a text, each by itself. Raises :class:`~hwcalc.errors.UsageError` for an entry that is empty.

    What begins with a name, or with a name and a colon, is a policy; ``key=value`` is an option of the policy before.
    """
    if len(text) > LONGEST:
        raise UsageError(f"the list of policies is longer than {LONGEST:,} characters.", hint=WRITE)
    found: list[str] = []
    for word in (part.strip() for part in split_at_commas(text)):
        if not word:
            raise UsageError(f"policy has an empty entry: {shown(text, 60)}", hint=_SEVERAL)
        # An option has ``=`` first of the signs that end a name.
        if next((letter for letter in word if letter in ":=(["), "") != "=":
            found.append(word)
        elif not found:
            raise UsageError(f"{shown(word, 60)} is an option, and stands before any policy.", hint=_SEVERAL)
        else:
            found[-1] += f"{',' if ':' in found[-1] else ':'}{word}"
    return tuple(found)


_TRUTH_VALUES: Final = ("true", "false")
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
    *before, last = split_at_commas(rest, begun=True)
    key, sign, value = last.partition("=")
    begun = text[: len(text) - len(last)]
    if not sign:
        given = {part.partition("=")[0].strip() for part in before}
        known = [one.name for one in policy.options if not one.name.startswith("_") and one.name not in given]
        return [f"{begun}{one}=" for one in known if one.startswith(key)]
    option = next((one for one in policy.options if one.name == key), None)
    return [] if option is None else [f"{begun}{key}={one}" for one in _of_value(option, value)]


def _of_value(option: PolicyOption, value: str) -> list[str]:
    """The completions of a begun value: truth values of a flag, the default, or policies that fit inside."""
    inside = fitting_inside(option)
    if not inside:
        default = () if option.default is None else (f"{option.default}",)
        return [one for one in (_TRUTH_VALUES if option.kind == "flag" else default) if one.startswith(value)]
    if option.kind == "prefills" and (not value or value.startswith("[")):
        *_, last = split_at_commas(value[1:], begun=True)
        return [f"{value[: len(value) - len(last)] or '['}{one}" for one in _bracketed(last, inside)]
    return _bracketed(value, inside)


def _bracketed(text: str, names: Iterable[str]) -> list[str]:
    """A policy inside another: in brackets, which its options need, unless a bare name was begun."""
    if text and not text.startswith("("):
        return [name for name in names if name.startswith(text)]
    return [f"({one}" for one in _of_policy(text[1:], names)]

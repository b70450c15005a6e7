"""A policy from text (``snapkv:compression_ratio=0.5,window_size=32``) or from a name and its options, which may be policies again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import Chosen, Policy, PolicyOption, Role
from hwcalc.policies.reading import read_value
from hwcalc.policies.table import find_policy, policies
from hwcalc.policies.written import LONGEST, WRITE, split_at
from hwcalc.text import quoted, shown

__all__ = ["fitting_inside", "parse_policy"]

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
    if depth > _DEEPEST:
        raise UsageError(f"policies stand inside each other more than {_DEEPEST} deep.", hint=WRITE)
    if isinstance(given, Chosen):
        return given
    if isinstance(given, str):
        name, options = _split(given)
    elif isinstance(given, (list, tuple)) and 1 <= len(given) <= 2 and isinstance(given[0], str):
        name, options = given[0], given[1] if len(given) > 1 and given[1] is not None else {}
    else:
        name, options = "", None
    if not isinstance(options, Mapping):
        raise UsageError(f"that is no policy: {quoted(given)}", hint=f'{WRITE}. In Python also: ["snapkv", {{...}}]')
    policy = find_policy(name)
    return _with_values(policy, options, depth)


def _with_values(policy: Policy, given: Mapping[Any, Any], depth: int) -> Chosen:
    """The policy with these options and the defaults of the others."""
    known = {option.name: option for option in policy.options}
    unknown = [name for name in given if name not in known]
    if unknown:
        listed = [name for name in known if not name.startswith("_")]
        wrong = unknown[0] if isinstance(unknown[0], str) else ""
        meant = _meant(wrong[:40], listed)
        near = f"Did you mean {meant}? " if meant else ""
        hint = f"{near}Its options: {', '.join(listed) or 'none'}."
        raise UsageError(f"{policy.name} has no option {shown(wrong, 40) if wrong else quoted(unknown[0], 40)}.", hint=hint)
    values = {
        name: _value(policy, option, given[name], depth) if name in given else option.default for name, option in known.items()
    }
    missing = [name for name, option in known.items() if option.required and values[name] is None]
    if missing:
        raise UsageError(f"{policy.name} needs {missing[0]}: {known[missing[0]].help}.", hint=_example(policy, known[missing[0]]))
    chosen = Chosen(policy=policy, values=values)
    if policy.check_chosen is not None:
        policy.check_chosen(chosen)
    return chosen


def _meant(word: str, known: list[str]) -> str:
    """The option that a word resembles, or whose name has it as a part, such as ``ratio``; else empty."""
    from difflib import get_close_matches

    part = word.lower().replace("-", "_").strip("_ ")
    holding = [name for name in known if len(part) > 2 and part in name]
    near = holding or get_close_matches(part, known, n=1, cutoff=0.6)
    return near[0] if near else ""


def _example(policy: Policy, option: PolicyOption) -> str:
    """How the missing option is given."""
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
        return _fitting(policy, option, _policy(_unbracketed(value), depth + 1))
    parts = _listed(value) if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not 1 <= len(parts) <= _MOST_PARTS:
        raise UsageError(
            f"{policy.name}: {option.name} is not a list of policies: {quoted(value)}", hint=_example(policy, option)
        )
    return tuple(_fitting(policy, option, _policy(_unbracketed(part), depth + 1)) for part in parts)


def fitting_inside(option: PolicyOption) -> tuple[str, ...]:
    """The policies that an option takes; none where it takes a value."""
    if option.kind not in _NESTED:
        return ()
    _, roles = _NESTED[option.kind]
    return tuple(one.name for one in policies().values() if one.role in roles or (option.kind == "base" and one.decodes))


def _fitting(policy: Policy, option: PolicyOption, inner: Chosen) -> Chosen:
    """The policy inside, if it is of a kind that the one outside takes."""
    names = fitting_inside(option)
    if inner.policy.name not in names:
        words, _ = _NESTED[option.kind]
        raise UsageError(
            f"{policy.name}: {option.name} takes {words}, not {inner.policy.name}.", hint=f"Known: {', '.join(names)}."
        )
    if inner.policy.has_delimiter:
        raise UsageError(
            f"{inner.policy.name} does not work inside {policy.name}: it takes its delimiter out of the prompt.",
            hint="Use it alone.",
        )
    for part in (inner, *inner.inner):
        if part.get("budget") is not None:
            raise UsageError(f"{part.policy.name} has no budget inside {policy.name}.", hint="Give it a compression_ratio.")
    return inner


def _unbracketed(value: Any) -> Any:
    """Text without the brackets around it."""
    if isinstance(value, str):
        text = value.strip()
        return text[1:-1] if text.startswith("(") and text.endswith(")") else text
    return value


def _listed(text: str) -> list[str]:
    """The parts of ``[a,b]``."""
    bare = text.strip()
    return list(split_at(bare[1:-1], ",")) if bare.startswith("[") and bare.endswith("]") else [bare]


def _split(text: str) -> tuple[str, Any]:
    """The name and the options of ``NAME:key=value,...``; a text in square brackets is JSON."""
    if len(text) > LONGEST:
        raise UsageError(f"the policy is longer than {LONGEST:,} characters.", hint=WRITE)
    if text.strip().startswith("["):
        return _from_json(text)
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for word in split_at(rest, ",") if rest.strip() else ():
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


def _from_json(text: str) -> tuple[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and 1 <= len(found) <= 2 and isinstance(found[0], str):
        return found[0], found[1] if len(found) > 1 and found[1] is not None else {}
    raise UsageError(f"that is no policy: {shown(text, 60)}", hint=WRITE)

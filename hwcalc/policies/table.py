"""The table of policies. A new one is a file of this room, or a row of one, and its name here."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from hwcalc.errors import UnknownNameError
from hwcalc.policies.base import Policy
from hwcalc.text import shown

__all__ = ["MODULES", "NOT_COUNTED", "find_policy", "policies"]

MODULES: Final = ("streaming", "methods", "scorers", "windowed", "masking", "chunks", "wrappers", "decoding", "cam")
"""The files of this room that have policies, in ``POLICIES``."""

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
    found: dict[str, Policy] = {}
    for module in MODULES:
        for policy in import_module(f"hwcalc.policies.{module}").POLICIES:
            found[policy.name] = policy
    return MappingProxyType(found)


@lru_cache(maxsize=1)
def _by_spelling() -> Mapping[str, Policy]:
    return MappingProxyType(
        {
            _bare(spelling): policy
            for policy in policies().values()
            for spelling in (policy.name, policy.press, *policy.aliases)
            if spelling
        }
    )


def find_policy(name: str) -> Policy:
    """The policy of this name, in any case, with ``Press`` or without. Raises :class:`~hwcalc.errors.UnknownNameError`."""
    bare, known = _bare(name[:200]), _by_spelling()
    if bare in known:
        return known[bare]
    if bare in NOT_COUNTED:
        raise UnknownNameError(
            f"policy {shown(name, 40)} is known, but not what it keeps: {NOT_COUNTED[bare]}.",
            option="policy",
            hint=f"Counted: {', '.join(policies())}.",
        )
    near = get_close_matches(bare, known, n=1, cutoff=0.75)
    meant = f"Did you mean {known[near[0]].name}? " if near else ""
    raise UnknownNameError(
        f"policy {shown(name, 40)} is not known.", option="policy", hint=f"{meant}Known: {', '.join(policies())}."
    )

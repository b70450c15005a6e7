"""Policies at random, nested ones too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from hwcalc.errors import UsageError
from hwcalc.policies.base import Chosen, Policy, PolicyOption
from hwcalc.policies.parse import fitting_inside, parse_policy, policies

__all__ = ["chosen_policies", "given_policies"]

_VALUES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "ratio": st.floats(0, 1, exclude_max=True),
    "share": st.floats(0, 1),
    "number": st.one_of(st.integers(1, 100), st.floats(1, 1e6)),
    "count": st.one_of(st.integers(1, 5000), st.sampled_from(["1k", "2k"])),
    "flag": st.booleans(),
    "shares": st.lists(st.floats(0, 1), min_size=1, max_size=4),
    "counts": st.lists(st.integers(0, 9), min_size=1, max_size=4),
    "rows": st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=3), min_size=1, max_size=3),
    "any": st.one_of(st.integers(0, 99), st.booleans(), st.text("abc xyz:=/\"'$`é", min_size=1, max_size=6)),
}


def given_policies(depth: int = 3) -> st.SearchStrategy[Any]:
    """A name with a dict of options, as Python takes it. Some of them contradict each other."""
    return st.sampled_from(sorted(policies())).flatmap(lambda name: _of(policies()[name], depth))


def _of(policy: Policy, depth: int) -> st.SearchStrategy[Any]:
    needed = {option.name: _value(option, depth) for option in policy.options if option.required}
    others = {option.name: _value(option, depth) for option in policy.options if not option.required}
    return st.fixed_dictionaries(needed, optional=others).map(lambda options: [policy.name, options])


def _value(option: PolicyOption, depth: int) -> st.SearchStrategy[Any]:
    if option.kind in _VALUES:
        return _VALUES[option.kind]
    names = [name for name in fitting_inside(option) if depth > 1 or not any(one.required for one in policies()[name].options)]
    inner = st.sampled_from(names).flatmap(lambda name: _of(policies()[name], depth - 1))
    return st.lists(inner, min_size=1, max_size=3) if option.kind == "prefills" else inner


def _parsed(given: Any) -> Chosen | None:
    try:
        return parse_policy(given)
    except UsageError:
        return None


chosen_policies: Final[st.SearchStrategy[Chosen]] = given_policies().map(_parsed).filter(lambda one: one is not None)  # type: ignore[assignment]
"""Policies whose options go together, parsed."""

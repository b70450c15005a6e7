"""What a policy keeps as arithmetic: a formula, and the numbers of its symbols, for explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.policies.base import Chosen, Setting
from hwcalc.policies.repeated import budgeted

__all__ = ["Worked", "all_stay", "by_chunks", "each_chunk", "share_or_budget", "to_budget", "without_delimiter"]

Worked = tuple[str, Mapping[str, float]]
"""A formula of ``n`` tokens in which ``x`` multiplies, and its numbers. Explanations show it where it gives what the policy keeps."""

_SHARE: Final = "max(1, floor(n x (1 - compression_ratio)))"
_BUDGET: Final = "min(n, policy_budget)"


def share_or_budget(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of the tokens, or a number of them."""
    budget = budgeted(chosen, setting, tokens) if chosen.policy.decode is not None else None
    if budget is not None:
        return _BUDGET, {"n": tokens, "policy_budget": budget}
    if chosen.ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    return _SHARE, {"n": tokens, "compression_ratio": chosen.ratio}


def to_budget(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """At most so many tokens."""
    return _BUDGET, {"n": tokens, "policy_budget": chosen["budget"]}


def all_stay(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """Every token is stored."""
    return "n", {"n": tokens}


def without_delimiter(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of the tokens without the one that parts prompt and question."""
    return _SHARE.replace("n x", "(n - 1) x"), {"n": tokens, "compression_ratio": chosen.ratio}


def by_chunks(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of the chunks, at the most; a prompt below one chunk is left to the scorer."""
    ratio, chunk = chosen.ratio, chosen["chunk_length"]
    inner: Chosen = chosen["press"]
    if ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    if tokens < chunk:
        return inner.policy.worked(inner, tokens, layer, setting) if inner.policy.worked is not None else ("", {})
    formula = "max(1, floor(ceil(n / chunk_length) x (1 - compression_ratio))) x chunk_length"
    return f"min(n, {formula})", {"n": tokens, "chunk_length": chunk, "compression_ratio": ratio}


def each_chunk(chosen: Chosen, tokens: int, layer: int, setting: Setting) -> Worked:
    """A share of each chunk, of the short last one too."""
    ratio, chunk = chosen.ratio, chosen["chunk_length"]
    if ratio == 0:
        return all_stay(chosen, tokens, layer, setting)
    values = {"n": tokens, "chunk_length": chunk, "compression_ratio": ratio}
    whole, rest = (
        f"floor(n / chunk_length) x {_SHARE.replace('n x', 'chunk_length x')}",
        "n - chunk_length x floor(n / chunk_length)",
    )
    if tokens % chunk == 0:
        return whole, values
    return f"{whole} + {_SHARE.replace('n x', f'({rest}) x')}", values

"""Policies that cut again and again while text is generated: to a budget, at each step or at each so many tokens."""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import PAPER, Chosen, Setting, Start, State
from hwcalc.policies.counting import check_attention, each_layer, kept
from hwcalc.policies.walks import CutAtLengths, CutEachStep, Growing, Walk

__all__ = ["budgeted", "check_room", "cut_to", "repeated"]

_RATIO_AND_BUDGET: Final = "Give compression_ratio, which is a share of the prompt, or budget, which is tokens."


def budgeted(chosen: Chosen, setting: Setting, prompt: int) -> int | None:
    """The tokens that a policy keeps by the paper's rules: its budget, or its ratio of the prompt. ``None`` under kvpress's rules."""
    budget: int | None = chosen.get("budget")
    if budget is None and chosen.get("divide_length") is not None:
        raise UsageError(f"{chosen.policy.name}: divide_length needs a budget.", hint=f"Write: {chosen.policy.name}:budget=1024")
    if budget is not None and chosen.get("compression_ratio"):
        raise UsageError(f"{chosen.policy.name} has a ratio and a budget.", hint=_RATIO_AND_BUDGET)
    if budget is not None:
        check_room(chosen, budget)
    if budget is None and setting.rules == PAPER and chosen.get("compression_ratio"):
        return kept(prompt, chosen.ratio)
    return budget


def check_room(chosen: Chosen, budget: int) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the window fills the budget: the authors of SnapKV and R-KV want a token beside it."""
    window = chosen.get("window_size")
    if window is not None and budget <= window:
        raise UsageError(
            f"{chosen.policy.name}: window_size is {window:,}, so a budget of {budget:,} has no place for another token.",
            hint=f"Make the budget more than {window:,}, or window_size smaller.",
        )


def cut_to(chosen: Chosen, state: State, setting: Setting, budget: int) -> State:
    """A prompt above the budget is cut to it."""
    check_attention(chosen, setting.attention)
    return each_layer(state, lambda _, tokens: min(tokens, budget))


def repeated(chosen: Chosen, start: Start) -> Walk:
    """The decode steps of a policy that may have a budget: as often as ``divide_length`` says, as its paper does, or not at all."""
    budget = budgeted(chosen, start.setting, start.prompt)
    if budget is None:
        return Growing(start=start)
    if chosen.get("divide_length") is not None:
        return CutAtLengths(start=start, budget=budget, every=chosen["divide_length"])
    return CutEachStep(start=start, budget=budget) if chosen.policy.cuts_each_step else Growing(start=start)

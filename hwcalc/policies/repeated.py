"""Policies that cut again and again while text is generated: to a budget, at each step or at each so many tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.policies.base import PAPER, Chosen, Setting, Start, State
from hwcalc.policies.counting import check_attention, each_layer, kept

__all__ = ["budgeted", "cut_at_lengths", "cut_each_step", "cut_to", "grow", "repeated"]

_RATIO_AND_BUDGET: Final = "Give compression_ratio, which is a share of the prompt, or budget, which is tokens."


def grow(start: Start) -> Iterator[tuple[int, int]]:
    """One token a step, and nothing is cut."""
    for step in range(1, start.steps + 1):
        yield start.length + step, start.length + step


def cut_each_step(start: Start, budget: int, drop: int = 1) -> Iterator[tuple[int, int]]:
    """Where a step goes over the budget, ``drop`` tokens go, or as many as are over."""
    length = start.length
    for _ in range(start.steps):
        before = length + 1
        length = before if before <= budget else before - max(drop, before - budget)
        yield before, length


def cut_at_lengths(start: Start, budget: int, every: int) -> Iterator[tuple[int, int]]:
    """Cut to the budget in the step behind the one at which the whole text, dropped tokens too, has a multiple of ``every`` tokens.

    With a prompt of 100 and 128, 128: the text has 128 tokens behind step 28, and step 29 goes from 129 to 128.
    Source: Zefan-Cai/R-KV d15c976, CausalLM_forward with step_length.
    """
    length, text = start.length, start.prompt
    for _ in range(start.steps):
        before = length + 1
        length = budget if text % every == 0 and before > budget else before
        text += 1
        yield before, length


def budgeted(chosen: Chosen, setting: Setting, prompt: int) -> int | None:
    """The tokens that a policy keeps by the paper's rules: its budget, or its ratio of the prompt. ``None`` under kvpress's rules."""
    budget: int | None = chosen.get("budget")
    if budget is None and chosen.get("divide_length") is not None:
        raise UsageError(f"{chosen.policy.name}: divide_length needs a budget.", hint=f"Write: {chosen.policy.name}:budget=1024")
    if budget is not None and chosen.get("compression_ratio"):
        raise UsageError(f"{chosen.policy.name} has a ratio and a budget.", hint=_RATIO_AND_BUDGET)
    if budget is None and setting.rules == PAPER and chosen.get("compression_ratio"):
        return kept(prompt, chosen.ratio)
    return budget


def cut_to(chosen: Chosen, state: State, setting: Setting, budget: int) -> State:
    """A prompt above the budget is cut to it."""
    check_attention(chosen, setting.attention)
    return each_layer(state, lambda _, tokens: min(tokens, budget))


def repeated(chosen: Chosen, start: Start) -> Iterator[tuple[int, int]]:
    """The decode steps of a policy that may have a budget: as often as ``divide_length`` says, as its paper does, or not at all."""
    budget = budgeted(chosen, start.setting, start.prompt)
    if budget is None:
        return grow(start)
    if chosen.get("divide_length") is not None:
        return cut_at_lengths(start, budget, chosen["divide_length"])
    return cut_each_step(start, budget) if chosen.policy.cuts_each_step else grow(start)

"""What a policy leaves of a prompt, and of the text that follows: every length."""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.policies.base import EAGER, SDPA, Chosen, Count, Extra, Left, Role, Setting, Start, State
from hwcalc.policies.repeated import budgeted
from hwcalc.policies.scratch import eager_scores

__all__ = ["ATTENTIONS", "MOST_STEPS", "Course", "after_prefill", "course_of", "extras_of", "kernel_for"]

ATTENTIONS: Final = (EAGER, SDPA, "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention kernels by the names of transformers."""
MOST_STEPS: Final = 1_000_000
"""Decode steps that are followed one by one, in all layers that differ together."""


@frozen
class Course:
    """The length of a layer over the decode steps: at the end, the most behind a step and within one, each cut, and each length."""

    last: int
    most: int
    most_within: int
    cuts: tuple[tuple[int, int, int], ...]
    lengths: tuple[int, ...] | range


def kernel_for(chosen: Chosen | None, asked: str | None) -> str:
    """The attention kernel: the one asked for, or the one that the policy and those inside need."""
    if asked is not None:
        return asked
    return EAGER if chosen is not None and any(one.policy.needs == EAGER for one in chosen.whole) else SDPA


def after_prefill(chosen: Chosen | None, prompt: int, setting: Setting) -> State:
    """The cache behind the prefill. Raises :class:`~hwcalc.errors.UsageError` where the policy cannot work."""
    state = State(
        hidden=prompt,
        layers=tuple(Left(stored=Count.of(prompt)) for _ in setting.layers),
        ranges=((0, prompt),) if chosen is None else None,
    )
    return state if chosen is None else chosen.policy.prefill(chosen, state, setting)


def course_of(chosen: Chosen | None, length: int, layer: int, prompt: int, steps: int, setting: Setting) -> Course:
    """The decode steps of one layer."""
    start = Start(length=length, prompt=prompt, steps=steps, layer=layer, setting=setting)
    decode = None if chosen is None else chosen.policy.decode
    if chosen is None or decode is None or (chosen.policy.role is Role.SCORER and budgeted(chosen, setting, prompt) is None):
        return _growing(length, steps)
    if steps > MOST_STEPS:
        raise UsageError(f"decode is {steps:,} steps of a policy that cuts while decoding.", hint=f"At most {MOST_STEPS:,}.")
    within, lengths, cuts = length, [], []
    for number, (before, after) in enumerate(decode(chosen, start), start=1):
        lengths.append(after)
        within = max(within, before)
        if after < before:
            cuts.append((number, before, after))
    last = lengths[-1] if lengths else length
    return Course(last=last, most=max([length, *lengths]), most_within=within, cuts=tuple(cuts), lengths=tuple(lengths))


def _growing(length: int, steps: int) -> Course:
    last = length + steps
    return Course(last=last, most=last, most_within=last, cuts=(), lengths=range(length + 1, last + 1))


def extras_of(chosen: Chosen | None, prompt: int, setting: Setting) -> tuple[Extra, ...]:
    """Memory beside the cache, of the policy and those inside, and of eager attention."""
    found: dict[str, Extra] = {}
    for one in () if chosen is None else chosen.whole:
        for extra in () if one.policy.extra is None else one.policy.extra(one, prompt, setting):
            found.setdefault(extra.name, extra)
    for extra in eager_scores(prompt, setting) if setting.attention == EAGER else ():
        found.setdefault(extra.name, extra)
    return tuple(found.values())

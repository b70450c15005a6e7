"""How many tokens are kept, with the rounding of kvpress 0.5.5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.policies.base import EAGER, Chosen, Count, Masked, Scored, Setting, State
from hwcalc.text import shown

__all__ = [
    "NOTHING_MASKED",
    "check_attention",
    "check_model_scores",
    "check_scores",
    "check_unmasked",
    "each_layer",
    "even_split",
    "kept",
    "mask_layers",
    "scorer_budget",
    "searched_ratio",
]

NOTHING_MASKED: Final = Count(low=0, high=0)
_MOST_HALVINGS: Final = 20


def kept(tokens: int, ratio: float) -> int:
    """The tokens that are kept of so many: the fraction is cut off behind a multiplication of doubles, and one token stays.

    >>> kept(100, 0.5), kept(1000, 0.9), kept(3, 0.5), kept(7, 0.9)
    (50, 99, 1, 1)

    1 - 0.9 is a little less than 0.1 in doubles, so that 99 of 1,000 are kept. Source: kvpress 0.5.5, utils.compute_n_kept.
    """
    return 0 if ratio >= 1.0 else max(1, int(tokens * (1 - ratio)))


def searched_ratio(tokens: int, target: int) -> float:
    """The ratio by which kvpress cuts ``tokens`` to ``target``: 1 - target / tokens, halved towards it where rounding misses by one.

    >>> kept(79, searched_ratio(79, 64)), searched_ratio(64, 64)
    (64, 0.0)

    Source: kvpress 0.5.5, DecodingPress._find_target_compression_ratio.
    """
    if tokens <= target:
        return 0.0
    ratio, low, high = 1.0 - target / tokens, 0.0, 1.0
    for _ in range(_MOST_HALVINGS):
        found = int(tokens * (1 - ratio))
        if found == target:
            break
        if found > target:
            low, ratio = ratio, (ratio + high) / 2
        else:
            high, ratio = ratio, (low + ratio) / 2
    return ratio


def scorer_budget(chosen: Chosen, ratio: float, tokens: int, layer: int, layers: int) -> int:
    """What a scorer keeps by itself: all of it at ratio 0, which it takes for "leave everything"."""
    if ratio == 0:
        return tokens
    rule = chosen.policy.budget
    return kept(tokens, ratio) if rule is None else rule(chosen, ratio, tokens, layer, layers)


def check_attention(chosen: Chosen, attention: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy does not work with this attention kernel."""
    policy = chosen.policy
    if policy.needs is not None and attention != policy.needs:
        raise UsageError(
            f"{policy.name} reads the scores of every query, which {shown(attention, 40)} attention does not give.",
            hint=f"Use attention {policy.needs}, or leave it out; its scores grow with the square of the prompt.",
        )
    if attention == policy.forbids:
        raise UsageError(f"{policy.name} does not work with {attention} attention.", hint="Use attention sdpa, or leave it out.")


def check_scores(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy cannot score so many keys."""
    check_attention(chosen, scored.attention)
    if chosen.policy.check is not None:
        chosen.policy.check(chosen, scored)
    for inner in chosen.inner:
        check_scores(inner, scored)


def check_model_scores(chosen: Chosen, scored: Scored) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if the policy would read scores of eager attention for keys that are gone.

    A single key is no trouble where they are summed over queries; the rules that read the last queries cannot have it anyway.
    """
    if scored.attention == EAGER and not scored.decoding and scored.keys not in (scored.queries, 1):
        raise UsageError(
            f"{chosen.policy.name} reads the scores of eager attention, which has seen {scored.queries:,} tokens and not {scored.keys:,}.",
            hint=f"Put {chosen.policy.name} first, or use attention sdpa.",
        )


def check_unmasked(state: State) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` if pairs may be masked: where tokens go, the places of the others move."""
    if any(layer.masked is not None and layer.masked.total.high for layer in state.layers):
        raise UsageError("a policy that masks must come last: the places of what it masked move.", hint="Put it at the end.")


def each_layer(state: State, rule: Callable[[int, int], int]) -> State:
    """Each layer cut by a rule of its number and its length. No policy can cut where pairs are masked: their places would be others."""
    counts = tuple(
        layer.stored.each(lambda tokens, number=number: rule(number, tokens))  # type: ignore[misc]
        for number, layer in enumerate(state.layers)
    )
    if all(new == layer.stored for new, layer in zip(counts, state.layers, strict=True)):
        return state
    check_unmasked(state)
    return state.with_stored(counts)


def even_split(total: int, heads: int) -> tuple[int, ...]:
    """A total over heads as evenly as whole numbers go.

    >>> even_split(7, 3)
    (3, 2, 2)
    """
    share, rest = divmod(total, heads)
    return tuple(share + (head < rest) for head in range(heads))


def mask_layers(state: State, setting: Setting, rule: Callable[[int, int], Masked]) -> State:
    """Pairs masked in each layer by a rule of its number and its length, in place of those masked before; nothing is freed."""
    layers = tuple(replace(left, masked=_either(rule, number, left.stored)) for number, left in enumerate(state.layers))
    return replace(state, layers=layers, masked_total=None)


def _either(rule: Callable[[int, int], Masked], number: int, stored: Count) -> Masked:
    """What is masked of a layer whose length the text decides: at both ends, and between them."""
    most = rule(number, stored.high)
    if stored.is_exact:
        return most
    least = rule(number, stored.low)
    ends = zip((least.total, *least.heads), (most.total, *most.heads), strict=True)
    total, *heads = (Count(low=min(one.low, other.low), high=max(one.high, other.high)) for one, other in ends)
    return Masked(total=total, heads=tuple(heads), split=most.split)

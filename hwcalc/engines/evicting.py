"""What a cache policy leaves of a request: every layer's tokens, behind the prompt and at the most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.formulas import LayerKind, Stack
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.formulas.kind import BY_TOKEN
from hwcalc.policies.base import EAGER, KVPRESS, Chosen, LayerShape, Setting, State
from hwcalc.policies.outcome import MOST_STEPS, Course, after_prefill, course_of

__all__ = ["Evicted", "acted_on", "courses_of", "evicted_of", "setting_of"]

_NO_MASK: Final = "Use one that frees in the prefill, such as snapkv."


def acted_on(stack: Stack) -> dict[int, LayerKind]:
    """The layers on which a policy acts, by number, with the kind on which it acts."""
    return {number: kind for number, layer in enumerate(stack) for kind in layer if kind.acts_by_token}


def setting_of(stack: Stack, *, rules: str, attention: str, element_bytes: int, batch: int, hidden_size: int | None) -> Setting:
    """What a policy is told of a model with these layers, and of the request."""
    shapes = []
    for number, kind in acted_on(stack).items():
        dims = kind.dims()
        key = next(tensor for tensor in kind.tensors() if tensor.role in BY_TOKEN)
        shapes.append(
            LayerShape(
                index=number,
                heads=dims.get("num_attention_heads", 1),
                kv_heads=dims.get("num_key_value_heads", 1),
                head_dim=key.shape[-1],
            )
        )
    return Setting(
        layers=tuple(shapes),
        depth=len(stack),
        attention=attention,
        rules=rules,
        element_bytes=element_bytes,
        batch=batch,
        hidden_size=hidden_size,
    )


def courses_of(chosen: Chosen | None, state: State, prompt: int, steps: int, setting: Setting) -> list[Course]:
    """The decode steps of each layer. Layers that start alike go alike, unless the policy looks at their number."""
    by_layer = chosen is not None and any(one.policy.by_layer for one in chosen.whole)
    keys = [(left.stored.high, number if by_layer else 0) for number, left in enumerate(state.layers)]
    unlike = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    if len(unlike) * steps > MOST_STEPS and chosen is not None and chosen.policy.decode is not None:
        raise UsageError(
            f"decode is {steps:,} steps of {len(unlike):,} layers that differ.",
            hint=f"At most {MOST_STEPS:,} in all are followed.",
        )
    known = {key: course_of(chosen, key[0], number, prompt, steps, setting) for key, number in unlike.items()}
    if steps and setting.attention == EAGER and setting.rules == KVPRESS:
        _check_one_mask(state, known)
    if any(left.masked is not None and left.masked.total.high for left in state.layers) and any(
        course.cuts for course in known.values()
    ):
        raise UsageError(
            "a policy that masks cannot come before one that cuts: the places of what it masked move.", hint=_NO_MASK
        )
    return [known[key] for key in keys]


def _check_one_mask(state: State, courses: Mapping[tuple[int, int], Course]) -> None:
    """Eager attention adds one mask to the scores of all layers, as long as the first: a step fails where another has more or fewer.

    Source: transformers 5.2.0 under kvpress 0.5.5, run.
    """
    if not all(left.stored.is_exact for left in state.layers):
        return
    before = {(start, tuple(course.lengths[:-1])) for (start, _), course in courses.items()}
    if len(before) > 1:
        raise UsageError(
            "eager attention has one mask for all layers, and this policy leaves them unlike lengths: no token can follow.",
            hint="Use attention sdpa, or leave it out.",
        )


@frozen
class Evicted:
    """A policy at work on one request. ``most`` is the length of each layer that it acts on, by number, at its longest; a step counts
    before it cuts.
    """

    setting: Setting
    state: State
    courses: Mapping[int, Course]
    most: Mapping[int, int]
    stack: Stack
    """The layers, each with the tokens that it has at the most."""
    alike: Mapping[int, int]
    """Of layers that keep so many tokens, how many of them all branches of a request have in common at that time."""


def evicted_of(chosen: Chosen, tokens: int, prompt: int, setting: Setting, plain: Stack, ahead: int = 0) -> Evicted:
    """What a policy leaves of a sequence of ``tokens`` tokens, ``prompt`` of which are the prompt. ``plain`` are the layers without it.

    ``ahead`` are the tokens before them that it does not touch, since other sequences have them too.
    """
    state = after_prefill(chosen, prompt, setting)
    courses = dict(zip(acted_on(plain), courses_of(chosen, state, prompt, tokens - prompt, setting), strict=True))
    most = {
        number: max(left.stored.high, course.most_within)
        for (number, course), left in zip(courses.items(), state.layers, strict=True)
    }
    layers = tuple(
        tuple(replace(kind, kept=ahead + most[number]) if number in most and kind.acts_by_token else kind for kind in layer)
        for number, layer in enumerate(plain)
    )
    alike: dict[int, int] = {}
    for (number, course), left in zip(courses.items(), state.layers, strict=True):
        # Once a branch has cut its own cache, it need not have the same tokens as the others.
        common = ahead + (0 if course.cuts else left.stored.low)
        alike[ahead + most[number]] = min(common, alike.get(ahead + most[number], common))
    return Evicted(setting=setting, state=state, courses=courses, most=most, stack=Stack(layers), alike=alike)

"""What a cache policy leaves of a request: every layer's tokens, behind the prompt and at the most."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas import Layer, LayerKind, Stack
from hwcalc.formulas.kind import BY_TOKEN
from hwcalc.formulas.record import Record
from hwcalc.policies.base import EAGER, KVPRESS, Chosen, Count, LayerShape, Setting, State
from hwcalc.policies.outcome import MOST_STEPS, Course, after_prefill, course_of, ends_of

if TYPE_CHECKING:
    from hwcalc.policies.counting import Ends

_NO_MASK: Final = "Use one that frees in the prefill, such as snapkv."
_Start: TypeAlias = tuple[int, int]


def acted_on(stack: Stack) -> dict[int, LayerKind]:
    """The layers on which a policy acts, by number, with the kind on which it acts."""
    return {number: kind for number, layer in enumerate(stack) for kind in layer if kind.acts_by_token}


def shapes_of(stack: Stack) -> tuple[LayerShape, ...]:
    """The shapes of the layers on which a policy acts: heads, key/value heads and head width."""
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
    return tuple(shapes)


def courses_of(chosen: Chosen | None, state: State, prompt: int, steps: int, setting: Setting) -> list[Course]:
    """The decode steps of each layer. Layers that start alike go alike, unless the policy looks at their number."""
    keys = _starts(chosen, state)
    unlike = _first_of(keys)
    if len(unlike) * steps > MOST_STEPS and chosen is not None and chosen.policy.decode is not None:
        raise UsageError(
            f"decode is {steps:,} steps of {len(unlike):,} layers that differ.",
            hint=f"At most {MOST_STEPS:,} in all are followed.",
        )
    known = {key: course_of(chosen, key[0], number, prompt, steps, setting) for key, number in unlike.items()}
    if steps and setting.attention == EAGER and setting.rules == KVPRESS:
        _check_one_mask(state, {(start, tuple(course.lengths[:-1])) for (start, _), course in known.items()})
    _check_masks(state, cuts=any(course.cuts for course in known.values()))
    return [known[key] for key in keys]


def ends_by_layer(chosen: Chosen, state: State, prompt: int, steps: int, setting: Setting) -> list[Ends]:
    """What the decode steps of each layer come to: as :func:`courses_of`, without following them."""
    keys = _starts(chosen, state)
    unlike = _first_of(keys)

    def behind(more: int) -> dict[_Start, Ends]:
        return {key: ends_of(chosen, key[0], number, prompt, more, setting) for key, number in unlike.items()}

    known = behind(steps)
    if steps and setting.attention == EAGER and setting.rules == KVPRESS:
        # Layers that start alike end unlike only under a policy that looks at their number.
        before = behind(steps - 1) if _looks_at_layers(chosen) else dict.fromkeys(known)
        _check_one_mask(state, {(start, ends) for (start, _), ends in before.items()})
    _check_masks(state, cuts=any(ends.cut for ends in known.values()))
    return [known[key] for key in keys]


def _looks_at_layers(chosen: Chosen | None) -> bool:
    """Whether the policy does not do the same in every layer."""
    return chosen is not None and any(one.policy.by_layer for one in chosen.whole)


def _starts(chosen: Chosen | None, state: State) -> list[_Start]:
    """What tells layers apart when decoding begins: their tokens, and their number if the policy looks at it."""
    by_layer = _looks_at_layers(chosen)
    return [(left.stored.high, number if by_layer else 0) for number, left in enumerate(state.layers)]


def _first_of(keys: list[_Start]) -> dict[_Start, int]:
    """The first layer with each start."""
    return dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))


def _check_masks(state: State, *, cuts: bool) -> None:
    """Raise an error if anything may be masked before the policy cuts."""
    if cuts and any(left.masked is not None and left.masked.total.high for left in state.layers):
        raise UsageError(
            "a policy that masks cannot come before one that cuts: the places of what it masked move.", hint=_NO_MASK
        )


def _check_one_mask(state: State, unlike: AbstractSet[object]) -> None:
    """Eager attention adds one mask to the scores of all layers, as long as the first: a step fails where another has more or fewer.

    Source: transformers 5.2.0 under kvpress 0.5.5, run.
    """
    if len(unlike) > 1 and all(left.stored.is_exact for left in state.layers):
        raise UsageError(
            "eager attention has one mask for all layers, and this policy leaves them unlike lengths: no token can follow.",
            hint="Use attention sdpa, or leave it out.",
        )


class Evicted(Record):
    """A policy at work on one request. Numbers of tokens are those of each layer that it acts on, by number.

    ``most`` is the length of a layer at its longest, behind the prompt and while text is generated; a step counts before it cuts.
    ``plain`` are the layers without the policy.
    """

    chosen: Chosen
    prompt: int
    steps: int
    setting: Setting
    state: State
    ends: Mapping[int, Ends]
    most: Mapping[int, int]
    plain: Stack
    ahead: int = 0
    """Tokens before all these that the policy does not touch, since other sequences have them too."""

    @cached_property
    def stack(self) -> Stack:
        """The layers, each with the tokens that it has at the most. A search for a length may need none of them."""
        return _with_tokens(self.plain, self.most, self.ahead)

    @property
    def behind_prompt(self) -> dict[int, int]:
        """Tokens behind the prompt."""
        return {number: left.stored.high for number, left in zip(self.ends, self.state.layers, strict=True)}

    @property
    def kv_heads(self) -> dict[int, int]:
        """Key/value heads: as many may choose tokens on their own."""
        return {shape.index: shape.kv_heads for shape in self.setting.layers}

    @property
    def last(self) -> dict[int, int]:
        """Tokens at the end."""
        return {number: ends.last for number, ends in self.ends.items()}

    @property
    def is_exact(self) -> bool:
        """Whether the text does not matter."""
        return all(left.stored.is_exact for left in self.state.layers)

    @property
    def cuts(self) -> bool:
        """Whether anything is cut while text is generated."""
        return any(ends.cut for ends in self.ends.values())

    @property
    def drops(self) -> bool:
        """Whether any token may go, of the prompt or while text is generated."""
        return self.cuts or any(left.stored.low < self.prompt for left in self.state.layers)

    @cached_property
    def courses(self) -> Mapping[int, Course]:
        """The decode steps of each layer, one by one. Raises :class:`~hwcalc.errors.UsageError` for very many."""
        return dict(zip(self.ends, courses_of(self.chosen, self.state, self.prompt, self.steps, self.setting), strict=True))

    @cached_property
    def lows(self) -> Evicted:
        """The same where the text leaves as little as it can."""
        if self.is_exact:
            return self
        state = self.state.with_stored(tuple(Count.of(left.stored.low) for left in self.state.layers), self.state.ranges)
        return _evicted(self.chosen, state, self.prompt, self.steps, self.setting, self.plain, self.ahead)

    @cached_property
    def alike(self) -> Mapping[int, int]:
        """Of layers that hold so many tokens, how many of them all branches of a request have in common."""
        found: dict[int, int] = {}
        for (number, ends), left in zip(self.ends.items(), self.state.layers, strict=True):
            # Once a branch has cut its own cache, it need not have the same tokens as the others.
            held, common = self.ahead + self.most[number], self.ahead + (0 if ends.cut else left.stored.low)
            found[held] = min(common, found.get(held, common))
        return found

    @cached_property
    def read(self) -> Mapping[int, int]:
        """Tokens that a decode step reads: all that are stored, or the pages that are chosen."""
        if all(left.read is None for left in self.state.layers):
            return self.most
        reads = after_prefill(self.chosen, self.prompt + self.steps, self.setting).layers
        pairs = zip(self.ends, reads, strict=True)
        return {number: self.most[number] if left.read is None else left.read.high for number, left in pairs}

    @property
    def read_stack(self) -> Stack:
        """The layers with the tokens that a decode step reads."""
        return self.stack if self.read is self.most else self.holding(self.read).stack

    @property
    def grown(self) -> Evicted:
        """What the policy leaves after one more generated token."""
        return _evicted(self.chosen, self.state, self.prompt, self.steps + 1, self.setting, self.plain, self.ahead)

    def holding(self, counts: Mapping[int, int]) -> Evicted:
        """What the policy leaves, with ``counts`` as the most tokens of each layer."""
        return replace(self, most=counts)

    def with_setting(self, setting: Setting) -> Evicted:
        """The same for another batch, with what is known of it."""
        if setting == self.setting:
            return self
        other = replace(self, setting=setting)
        vars(other).update({name: value for name, value in vars(self).items() if name in ("stack", "read", "alike")})
        return other


def _with_tokens(plain: Stack, counts: Mapping[int, int], ahead: int) -> Stack:
    made: dict[tuple[Layer, int], Layer] = {}
    layers = list(plain.layers)
    for number, tokens in counts.items():
        key = (layers[number], ahead + tokens)
        if key not in made:
            made[key] = tuple(replace(kind, kept=ahead + tokens) if kind.acts_by_token else kind for kind in key[0])
        layers[number] = made[key]
    return Stack(tuple(layers))


def evicted_of(chosen: Chosen, tokens: int, prompt: int, setting: Setting, plain: Stack, ahead: int = 0) -> Evicted:
    """What a policy leaves of a sequence of ``tokens`` tokens, ``prompt`` of which are the prompt. ``plain`` are the layers without it.

    ``ahead`` are tokens before all these that it does not touch, since other sequences have them too.
    """
    return _evicted(chosen, after_prefill(chosen, prompt, setting), prompt, tokens - prompt, setting, plain, ahead)


def _evicted(chosen: Chosen, state: State, prompt: int, steps: int, setting: Setting, plain: Stack, ahead: int) -> Evicted:
    lengths = [left.stored.high for left in state.layers]
    each = ends_by_layer(chosen, state, prompt, steps, setting)
    ends = {shape.index: one for shape, one in zip(setting.layers, each, strict=True)}
    most = {number: max(length, one.most_within) for (number, one), length in zip(ends.items(), lengths, strict=True)}
    return Evicted(
        chosen=chosen,
        prompt=prompt,
        steps=steps,
        setting=setting,
        state=state,
        ends=ends,
        most=most,
        plain=plain,
        ahead=ahead,
    )

"""Policies that act between decode steps: a cut every so many steps, to a number of tokens or a share of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.model import Definition
from hwcalc.policies.base import Chosen, Effect, Extra, Policy, PolicyOption, Role, Scored, Setting, Start, State
from hwcalc.policies.counting import check_attention, check_scores, kept, scorer_budget, searched_ratio
from hwcalc.policies.repeated import grow
from hwcalc.policies.worked import all_stay

__all__ = ["POLICIES"]

_BASE: Final = PolicyOption(name="base_press", kind="base", default=None, help="the scorer, or adakv, that cuts", required=True)
_INTERVAL: Final = PolicyOption(name="compression_interval", kind="count", default=512, help="decode steps between cuts", least=1)
_BUFFER: Final = PolicyOption(
    name="hidden_states_buffer_size", kind="count", default=256, help="hidden states that are kept for scoring, of each layer"
)


def _untouched(chosen: Chosen, state: State, setting: Setting) -> State:
    return state


def _both(chosen: Chosen, state: State, setting: Setting) -> State:
    """The policy of the prefill, if there is one."""
    first = chosen["prefilling_press"]
    return state if first is None else first.policy.prefill(first, state, setting)


def _cut(base: Chosen, length: int, target: int, buffered: int, start: Start) -> int:
    """The length behind a cut towards ``target``. Ada-KV masks, so nothing goes."""
    ratio = searched_ratio(length, target)
    if ratio == 0:
        return length
    scored = Scored(keys=length, queries=buffered, attention=start.setting.attention, decoding=True)
    check_scores(base, scored)
    if base.policy.role is not Role.SCORER:
        check_attention(base, start.setting.attention)
        return length
    return scorer_budget(base, ratio, length, start.setting.layers[start.layer].index, start.setting.depth)


def _cuts(chosen: Chosen, start: Start, target_of: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """A token a step; every ``compression_interval`` steps a cut to the target of that step. With a target of one token each step cuts."""
    length, waited, buffered = start.length, 0, 0
    for step in range(1, start.steps + 1):
        before = length = length + 1
        waited, buffered = waited + 1, buffered + 1
        target = target_of(step)
        if waited >= chosen["compression_interval"] or target <= 1:
            length = _cut(chosen["base_press"], length, target, buffered, start)
            waited = buffered = 0
        buffered = min(buffered, chosen["hidden_states_buffer_size"])
        yield before, length


def _to_target(chosen: Chosen, start: Start) -> Iterator[tuple[int, int]]:
    return _cuts(chosen, start, lambda _: chosen["target_size"])


def _to_share(chosen: Chosen, start: Start) -> Iterator[tuple[int, int]]:
    """The target is a share of the whole text so far, dropped tokens too."""
    ratio = chosen["target_compression_ratio"]
    return _cuts(chosen, start, lambda step: kept(start.prompt + step, ratio))


def _second(chosen: Chosen, start: Start) -> Iterator[tuple[int, int]]:
    second: Chosen | None = chosen["decoding_press"]
    if second is None:
        return grow(start)
    assert second.policy.decode is not None
    return second.policy.decode(second, start)


def _buffers(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Hidden states that wait for the next cut."""
    if setting.hidden_size is None:
        return ()
    rows = min(chosen["compression_interval"], chosen["hidden_states_buffer_size"] + 1)
    return (
        Extra(
            name="buffered hidden states",
            bytes=setting.batch * len(setting.layers) * rows * setting.hidden_size * setting.element_bytes,
            formula=f"batch x layers x {rows:,} x hidden_size x {setting.element_bytes}",
            when="between cuts, all layers",
            definition=Definition.ENGINE,
            source="kvpress 0.5.5, DecodingPress",
        ),
    )


def _second_buffers(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    second = chosen["decoding_press"]
    return () if second is None else _buffers(second, tokens, setting)


def check_parts(chosen: Chosen) -> None:
    """A policy of two parts needs one."""
    if chosen["prefilling_press"] is None and chosen["decoding_press"] is None:
        raise UsageError("prefilldecoding has neither part.", hint="Give prefilling_press, decoding_press, or both.")


POLICIES: Final = (
    Policy(
        name="decoding", press="DecodingPress", title="a cut every so many steps, to a target", role=Role.DECODING, effect=Effect.FREES,
        keeps="all of the prompt at first; then, every compression_interval steps, target_size tokens",
        formula="grows to target_size + compression_interval - 1, then target_size again; before the first cut n + compression_interval - 1",
        kernel="as the policy inside", source="kvpress 0.5.5", prefill=_untouched, worked=all_stay, decode=_to_target, extra=_buffers,
        memory="hidden states: layers x min(compression_interval, hidden_states_buffer_size + 1) x hidden_size",
        options=(
            _BASE,
            _INTERVAL,
            PolicyOption(name="target_size", kind="count", default=2048, help="tokens behind a cut", least=1),
            _BUFFER,
        ),
    ),
    Policy(
        name="compressionratiodecoding", press="CompressionRatioDecodingPress", title="a cut every so many steps, to a share of the text",
        role=Role.DECODING, effect=Effect.FREES, kernel="as the policy inside", source="kvpress 0.5.5", prefill=_untouched, worked=all_stay,
        keeps="all of the prompt at first; then, every compression_interval steps, a share of the text so far",
        formula="every compression_interval steps max(1, int(text x (1 - target_compression_ratio)))", decode=_to_share, extra=_buffers,
        memory="hidden states: layers x min(compression_interval, hidden_states_buffer_size + 1) x hidden_size",
        options=(
            _BASE,
            _INTERVAL,
            PolicyOption(name="target_compression_ratio", kind="ratio", default=0.5, help="share of the text that is dropped"),
            _BUFFER,
        ),
    ),
    Policy(
        name="prefilldecoding", press="PrefillDecodingPress", title="one policy in the prefill, one while decoding", role=Role.DECODING,
        effect=Effect.DEPENDS, keeps="what the first leaves of the prompt, then what the second leaves", formula="as its parts",
        kernel="as its parts", source="kvpress 0.5.5", prefill=_both, decode=_second, extra=_second_buffers,
        options=(
            PolicyOption(name="prefilling_press", kind="prefill", default=None, help="acts on the prompt"),
            PolicyOption(name="decoding_press", kind="decoding", default=None, help="acts between decode steps"),
        ),
    ),
)  # fmt: skip

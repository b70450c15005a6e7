"""Policies that act between decode steps: a cut every so many steps, to a number of tokens or a share of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import Chosen, Effect, Extra, Policy, PolicyOption, Role, Scored, Setting, Start, State
from hwcalc.policies.counting import check_attention, check_scores, kept, scorer_budget, searched_ratio
from hwcalc.policies.scratch import SMALL
from hwcalc.policies.walks import Ends, Growing, Walk, larger
from hwcalc.policies.worked import all_stay

__all__ = ["POLICIES"]

_BASE: Final = PolicyOption(name="base_press", kind="base", default=None, help="the scorer, or adakv, that cuts", required=True)
_INTERVAL: Final = PolicyOption(name="compression_interval", kind="count", default=512, help="decode steps between cuts", least=1)
_BUFFER: Final = PolicyOption(
    name="hidden_states_buffer_size", kind="count", default=256, help="hidden states that are kept for scoring, of each layer"
)
_MOST_CUTS: Final = 20_000
"""Cuts of all layers together that are followed where each depends on the one before: about a tenth of a second."""
_DEEPEST: Final = 1 << 20
"""Tokens of a cut up to which twenty halvings of its ratio find the target."""


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


class _Cuts(Walk, Record):
    """A token a step; every ``interval`` steps a cut to the target of that step. With a target of one token each step cuts.

    ``target_of`` never falls. ``share`` says that it is a share of the text, which grows.
    """

    start: Start
    base: Chosen
    interval: int
    buffer: int
    target_of: Callable[[int], int]
    share: bool

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length, waited, buffered = self.start.length, 0, 0
        for step in range(1, self.start.steps + 1):
            before = length = length + 1
            waited, buffered = waited + 1, buffered + 1
            target = self.target_of(step)
            if waited >= self.interval or target <= 1:
                length = _cut(self.base, length, target, buffered, self.start)
                waited = buffered = 0
            buffered = min(buffered, self.buffer)
            yield before, length

    def ends(self) -> Ends:
        """From cut to cut; cuts that find the cache as the one before left it are passed over."""
        steps, length, step = self.start.steps, self.start.length, 0
        self._check_steps()
        most = within = length
        largest: tuple[int, int] | None = None
        while step < steps:
            gap = 1 if self.target_of(step + 1) <= 1 else self.interval
            waits = _first(lambda k: length + k * gap > self.target_of(step + k * gap), (steps - step) // gap)  # noqa: B023
            if waits is None:
                break
            step, before = step + waits * gap, length + waits * gap
            target = self.target_of(step)
            after = _cut(self.base, before, target, min(gap - 1, self.buffer) + 1, self.start)
            most, within = max(most, before - 1, after), max(within, before)
            if after == before:
                # Ada-KV masks: nothing ever goes.
                length = after
                break
            settled = after == length and waits == 1
            length, largest = after, larger(largest, (before, after))
            if settled and not self.share:
                step += (steps - step) // gap * gap
            elif settled and target <= 1:
                grows = _first(lambda k: self.target_of(step + k) > 1, steps - step)  # noqa: B023
                step = steps if grows is None else step + grows - 1
            elif after == target > 1 and self._hits:
                step += max(0, (steps - step) // gap - 1) * gap
                length = self.target_of(step)
        last = length + steps - step
        return Ends(last=last, most=max(most, last), most_within=max(within, last), largest=largest)

    def _check_steps(self) -> None:
        """Cuts to a share by budgets of a layer's own are followed one by one."""
        cuts = self.start.steps // self.interval * len(self.start.setting.layers)
        if self.share and self.base.policy.budget is not None and cuts > _MOST_CUTS:
            raise UsageError(
                f"{self.start.steps:,} decode steps are {cuts:,} cuts of layers that differ.",
                hint=f"At most {_MOST_CUTS:,} are followed: make compression_interval longer, or the prompt more of --seq.",
            )

    @property
    def _hits(self) -> bool:
        """Whether each cut to a share hits its target: a scorer without budgets of its own, and no cut so deep that the search misses."""
        ratio_falls = self.share and self.target_of(self.start.steps) < self.start.prompt + self.start.steps
        return ratio_falls and self.base.policy.budget is None and self.interval < _DEEPEST


def _first(good: Callable[[int], bool], bound: int) -> int | None:
    """The least number from 1 to ``bound`` for which ``good`` is true, as for all above it; ``None`` if there is none."""
    if bound < 1 or good(1):
        return 1 if bound >= 1 else None
    if not good(bound):
        return None
    low, high = 1, bound
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle
    return high


def _cuts(chosen: Chosen, start: Start, target_of: Callable[[int], int], *, share: bool) -> Walk:
    return _Cuts(
        start=start,
        base=chosen["base_press"],
        interval=chosen["compression_interval"],
        buffer=chosen["hidden_states_buffer_size"],
        target_of=target_of,
        share=share,
    )


def _to_target(chosen: Chosen, start: Start) -> Walk:
    return _cuts(chosen, start, lambda _: chosen["target_size"], share=False)


def _to_share(chosen: Chosen, start: Start) -> Walk:
    """The target is a share of the whole text so far, dropped tokens too."""
    ratio = chosen["target_compression_ratio"]
    return _cuts(chosen, start, lambda step: kept(start.prompt + step, ratio), share=True)


def _second(chosen: Chosen, start: Start) -> Iterable[tuple[int, int]]:
    second: Chosen | None = chosen["decoding_press"]
    if second is None:
        return Growing(start=start)
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
            lasting=True,
        ),
    )


def _second_buffers(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    second = chosen["decoding_press"]
    return () if second is None else _buffers(second, tokens, setting)


def _check_parts(chosen: Chosen) -> None:
    """A policy of two parts needs one."""
    if chosen["prefilling_press"] is None and chosen["decoding_press"] is None:
        raise UsageError("prefilldecoding has neither part.", hint="Give prefilling_press, decoding_press, or both.")


POLICIES: Final = (
    Policy(
        name="decoding", press="DecodingPress", title="a cut every so many steps, to a target", role=Role.DECODING, effect=Effect.FREES,
        keeps="all of the prompt at first; then, every compression_interval steps, target_size tokens",
        formula="grows to target_size + compression_interval - 1, then target_size again; before the first cut n + compression_interval - 1",
        kernel="as the policy inside", source="kvpress 0.5.5", prefill=_untouched, worked=all_stay, decode=_to_target, extra=_buffers, in_prefill=SMALL,
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
        formula="every compression_interval steps max(1, int(text x (1 - target_compression_ratio)))", decode=_to_share, extra=_buffers, in_prefill=SMALL,
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
        check_chosen=_check_parts, in_prefill=SMALL,
        options=(
            PolicyOption(name="prefilling_press", kind="prefill", default=None, help="acts on the prompt"),
            PolicyOption(name="decoding_press", kind="decoding", default=None, help="acts between decode steps"),
        ),
    ),
)  # fmt: skip

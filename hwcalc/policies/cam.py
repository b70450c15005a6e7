"""CaM: values of tokens that go are added to those of others, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import Chosen, Effect, Extra, Policy, PolicyOption, Role, Scored, Setting, Start, State
from hwcalc.policies.counting import check_scores
from hwcalc.policies.options import quality
from hwcalc.policies.walks import Ends, Growing, Walk, sawtooth
from hwcalc.policies.worked import all_stay

__all__ = ["POLICIES"]

_SOURCE: Final = "kvpress 0.5.5, CAMPress"


def _untouched(chosen: Chosen, state: State, setting: Setting) -> State:
    return state


class _Merges(Walk, Record):
    """A cut to the target, just so many tokens, in the first step that is above it and ``interval`` steps behind the last cut.

    Steps count on while the cache is not above the target. A target of one token cuts in each step.
    """

    chosen: Chosen
    start: Start

    @property
    def target(self) -> int:
        tokens: int = self.chosen["target_size"]
        return tokens

    @property
    def interval(self) -> int:
        steps: int = self.chosen["compression_interval"]
        return 1 if self.target == 1 else steps

    @property
    def first(self) -> int:
        """The step of the first cut."""
        return max(self.interval, self.target - self.start.length + 1)

    def _check(self, keys: int, waited: int) -> None:
        """The scorer sees the hidden states of the steps since the last cut, as far as they are kept, and no scores of eager attention."""
        buffered = min(waited - 1, self.chosen["hidden_states_buffer_size"]) + 1
        check_scores(self.chosen["base_press"], Scored(keys=keys, queries=buffered, attention="", decoding=True))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        length, due, last = self.start.length, self.first, 0
        for step in range(1, self.start.steps + 1):
            before = length = length + 1
            if step == due:
                self._check(before, step - last)
                length, last, due = self.target, step, step + self.interval
            yield before, length

    def ends(self) -> Ends:
        first, steps = self.first, self.start.steps
        if first > steps:
            return Growing(start=self.start).ends()
        self._check(self.start.length + first, first)
        if first + self.interval <= steps:
            self._check(self.target + self.interval, self.interval)
        return sawtooth(self.start, first, self.target, self.interval)


def _steps(chosen: Chosen, start: Start) -> Walk:
    return _Merges(chosen=chosen, start=start)


def _sums(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The attention that each key has got so far, in each head."""
    heads = sum(shape.kv_heads for shape in setting.layers)
    longest = max(tokens, chosen["target_size"]) + chosen["compression_interval"]
    return (
        Extra(
            name="sums of attention",
            bytes=setting.batch * heads * longest * setting.element_bytes,
            formula=f"batch x layers x kv_heads x (max(n, target_size) + compression_interval) x {setting.element_bytes}",
            when="while decoding, all layers",
            definition=Definition.ENGINE,
            source=_SOURCE,
            lasting=True,
        ),
    )


POLICIES: Final = (
    Policy(
        name="cam", press="CAMPress", title="CaM: merged values while decoding", role=Role.DECODING, effect=Effect.FREES,
        keeps="all of the prompt at first; then, every compression_interval steps, target_size tokens, with values of dropped ones added",
        formula="grows to target_size + compression_interval - 1, then target_size again; before the first cut n + compression_interval - 1",
        kernel="as the scorer inside", source="openreview.net LCTmppB165", prefill=_untouched, worked=all_stay, decode=_steps, extra=_sums,
        memory="a sum of attention for each key: layers x kv_heads x n",
        options=(
            PolicyOption(name="base_press", kind="scorer", default=None, help="the scorer that cuts", required=True),
            PolicyOption(name="compression_interval", kind="count", default=512, help="decode steps between cuts", least=1),
            PolicyOption(name="target_size", kind="count", default=2048, help="tokens behind a cut", least=1),
            PolicyOption(
                name="hidden_states_buffer_size", kind="count", default=256, help="hidden states that are kept for scoring, of each layer"
            ),
            quality("merge_budget", 32),
        ),
    ),
)  # fmt: skip

"""A request in SGLang's scheduler, a batch of them, and the running batch: those that decode, of which each is looked at with its last token alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hwcalc.replay.decoding import Decoding, State

if TYPE_CHECKING:
    from hwcalc.replay.content import Content
    from hwcalc.replay.sglang.tree import Node

KINDS = ("P", "D", "M")
"""Prefill, decode, and both in one batch (mixed chunk)."""
PREFILL, DECODE, MIXED = range(3)


class Live:
    """A request that has arrived and not finished."""

    __slots__ = (
        "asked_at",
        "branch",
        "cancelled",
        "chunks",
        "content",
        "counted",
        "end",
        "entry",
        "finish_step",
        "found",
        "joined",
        "known",
        "later",
        "mark",
        "max_new",
        "node",
        "number",
        "offset",
        "output",
        "outputs",
        "paused_at",
        "place",
        "prefix",
        "priority",
        "prompt",
        "protected",
        "refused",
        "since",
        "slot",
        "state",
        "stops",
        "stored",
        "window_start",
    )

    def __init__(
        self, content: Content, number: int, *, prompt: int, output: int, max_new: int, stops: bool, priority: int
    ) -> None:
        self.content = content
        self.number = number
        self.prompt = prompt
        self.output = output
        """Tokens that it will have."""
        self.max_new = max_new
        """The most tokens that it may have, as far as the scheduler knows."""
        self.stops = stops
        """True if its last token is a stop token, which the scheduler does not foresee."""
        self.priority = priority
        self.refused = False
        """True if its prompt was too long, so that one token stands for it."""
        self.cancelled = False
        self.state = State.WAITING
        self.entry = 0
        """Its place in the order of entries into the queue."""
        self.asked_at = 0
        """Prefill tokens that were computed before it entered the queue."""
        self.outputs = 0
        """Output tokens that are there. While it decodes, they follow from the count of steps."""
        self.offset = 0
        """While it decodes: its stored tokens less the scheduler's count of decode steps."""
        self.joined = -1
        """The turn in which it began to decode."""
        self.paused_at = -1
        """The turn of its last token before it was retracted; -1 if it had none, or goes on."""
        self.place = 0
        """Its place in the order of the running batch."""
        self.finish_step = -1
        """The decode step, by the scheduler's count, that computes its last token."""
        self.later = False
        """True if another that waits has the same beginning, and goes first."""
        self.known = 0
        """Tokens to compute, the outputs before a retraction among them; 0 before it was looked up."""
        self.forget()

    def forget(self) -> None:
        """It has nothing in the pool."""
        self.prefix = 0
        """Tokens that are there before its next chunk."""
        self.end = 0
        """Where that chunk ends."""
        self.stored = 0
        self.protected = 0
        """Tokens of it that the tree has."""
        self.counted = 0
        """Tokens that it has published."""
        self.found = 0
        """Tokens that its last look-up found."""
        self.node: Node | None = None
        """The node that it pins."""
        self.mark: int | None = None
        """The mark that the tree gave for that pin."""
        self.chunks = 0
        """Batches in which its prompt was computed."""
        self.since = 0
        """The count of decode steps when it began to decode."""
        self.window_start = 0
        """Where its tokens in the pool of windows begin."""
        self.branch: int | None = None
        """Up to where its tokens are cached, but not its window."""
        self.slot = False
        """True if it has a slot for states."""

    @property
    def is_foreseen(self) -> bool:
        """True if it ends because it may have no more tokens."""
        return self.output >= self.max_new

    @property
    def left(self) -> int:
        """The most tokens that are still to come of one whose outputs are known."""
        return self.max_new - self.outputs


class Batch:
    """The batch that was launched in a turn."""

    __slots__ = ("chunk", "decoding", "kind", "requests", "step", "tokens")

    def __init__(self, kind: int, requests: list[Live], *, tokens: int, step: int, chunk: Live | None = None) -> None:
        self.kind = kind
        self.requests = requests
        """Those of a prefill, or of a mixed batch, those that decode last."""
        self.decoding: set[int] = set()
        """The numbers of those that decode in a mixed batch."""
        self.tokens = tokens
        """Tokens that a prefill or mixed batch computes."""
        self.step = step
        """The count of decode steps with it."""
        self.chunk = chunk
        """The request whose prompt it does not finish."""


class Running(Decoding[Live]):
    """Requests that decode, in their order."""

    def __init__(self, page: int) -> None:
        super().__init__(page)
        self._requests: dict[int, Live] = {}
        self._places = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Live]:
        return iter(self._requests.values())

    def __contains__(self, live: Live) -> bool:
        return live.number in self._requests

    def stored(self, live: Live) -> int:
        """Tokens that one of them has stored."""
        return live.offset + self.steps

    def line_up(self, requests: Iterable[Live]) -> None:
        """Put requests at the end of the order."""
        for live in requests:
            self._requests[live.number] = live
            live.place = self._places
            self._places += 1

    def step_aside(self) -> None:
        """Take all out of the order, until they line up again."""
        self._requests = {}

    def begin(self, live: Live) -> None:
        """A request whose prompt is computed decodes from now on."""
        live.state = State.DECODE
        live.since = self.steps
        live.offset = live.stored - self.steps
        self.enter(live.offset)
        step = live.output + live.prompt - 1 - live.offset
        live.finish_step = step if step > self.steps else -1
        # Otherwise the result of its prompt is its last token.
        if live.finish_step > 0:
            self.look_at(live, step)

    def stop(self, live: Live, state: State) -> None:
        """A request decodes no longer."""
        live.stored = self.stored(live)
        self._requests.pop(live.number, None)
        self.leave(live.offset)
        live.state = state

    def foreseen(self, step: int) -> list[Live]:
        """Those that have their last token with a step, unless they were retracted since, in their order."""
        alive = (State.DECODE, State.ENDING)
        return sorted([live for live in self.due(step) if live.finish_step == step and live.state in alive], key=_place)

    def ended(self, step: int) -> list[Live]:
        """The same, when the results of the step are there."""
        requests = self.foreseen(step)
        self.pass_by(step)
        return requests


def _place(live: Live) -> int:
    return live.place

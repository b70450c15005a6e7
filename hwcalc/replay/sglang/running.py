"""The running batch: those that decode, in their order. A request is looked at only with the step that computes its last token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hwcalc.replay.decoding import Decoding, State
from hwcalc.replay.sglang.live import Live


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

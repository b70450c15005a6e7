"""A request in vLLM's scheduler, and a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.replay.decoding import State
from hwcalc.replay.vllm.cache import Held

if TYPE_CHECKING:
    from hwcalc.replay.content import Content
    from hwcalc.workload.request import Request


class Live(Held):
    """A request that has arrived and not finished."""

    __slots__ = (
        "chunk",
        "chunk_at",
        "counted",
        "event_at",
        "forced",
        "hit",
        "idle_at",
        "last",
        "number",
        "offset",
        "order",
        "paused_at",
        "preemptions",
        "priority",
        "remote",
        "seq",
        "state",
        "unforeseen",
    )

    def __init__(self, content: Content, request: Request, order: int, last: int, *, unforeseen: bool) -> None:
        super().__init__(content, request.prompt_tokens)
        self.number = request.number
        self.priority = request.priority or 0
        self.order = order
        """Its place in the order of arrival."""
        self.seq = -1
        """Its place in the order of admission."""
        self.state = State.WAITING
        self.last = last
        """The tokens that are computed when its last token is sampled."""
        self.unforeseen = unforeseen
        """True if it stops before the most tokens that it may have, so that the scheduler learns of its end from its last token."""
        self.remote = False
        """True if another server has computed its prompt, whose cache is still there."""
        self.preemptions = 0
        self.paused_at = -1
        """The iteration of its last token before it was preempted; -1 if it had none, or goes on."""
        self.hit = 0
        """Tokens that it found when it was first admitted."""
        self.offset = 0
        """While it decodes: its computed tokens less the scheduler's count of steps."""
        self.counted = False
        """True if the blocks that it takes while it decodes are counted, so that its table is behind."""
        self.event_at = -1
        """The step, by that count, in which it is looked at next."""
        self.forced = 0
        """In how many steps from then on it is looked at whatever happens."""
        self.chunk = 0
        self.chunk_at = -2
        """The tokens of its last chunk of a prompt, and the iteration in which it was scheduled."""
        self.idle_at = -2
        """The last iteration in which it decoded and got no token."""


class Batch:
    """The part of a step that its results depend on."""

    __slots__ = ("ending", "firsts", "sampled")

    def __init__(self) -> None:
        self.firsts: list[Live] = []
        """Requests that have got their first token."""
        self.ending: list[Live] = []
        """Requests that have got their last token."""
        self.sampled = False

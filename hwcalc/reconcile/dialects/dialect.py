"""What reads a log: its lines, what they state, and how that compares with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hwcalc.reconcile.facts import Facts

if TYPE_CHECKING:
    from hwcalc.model import Note
    from hwcalc.reconcile.facts import Row


class Dialect:
    """Reads a log of one program line by line, and compares its figures with a plan.

    ``sought`` lists lines by which a log is recognised, ``states_version`` says whether it names the engine's version. ``facts`` is what
    the lines state, ``starts`` how often the engine started. Rules of an engine ask for more of the plan than any engine has, so that
    their parameter is that engine's class.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    engine: ClassVar[str]
    sought: ClassVar[tuple[str, ...]]
    states_version: ClassVar[bool] = False

    def __init__(self) -> None:
        self.facts = Facts()
        self.starts = 1

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        raise NotImplementedError

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        raise NotImplementedError

    def online_format(self) -> str | None:
        """The weight format into which the engine converts unquantized weights."""
        return None

    def compare(self, occupancy: Any, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        raise NotImplementedError

    def overheads(self, occupancy: Any) -> dict[str, int]:
        """The overheads that the log measured and a calibration saves: bytes by name; empty if it measures none."""
        return {}

    def batch_shape(self, occupancy: Any) -> tuple[int, int]:
        """Tokens of one forward pass and rows of logits, for which the overheads hold."""
        return occupancy.forward_tokens()[1], occupancy.request.replica_batch

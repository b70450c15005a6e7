"""The result of ``kvplan reconcile``: one frozen object whose fields are the JSON document."""

from __future__ import annotations

from typing import Any

from hwcalc.documents import document_of
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.reconcile.facts import Fact
from hwcalc.reconcile.rows import Row
from hwcalc.reconcile.unread import UnreadLine

__all__ = ["Input", "Reconciliation", "Saved"]


class Input(Record):
    """What was planned with, and who said so: ``log`` with its line, ``option``, ``default``, or ``assumed`` if nobody named a GPU."""

    name: str
    value: str
    source: str
    line: int | None


class Saved(Record):
    """Where ``--calibrate`` wrote what it took from the log: bytes by name."""

    path: str
    values: dict[str, int]


class Reconciliation(Record):
    """A log beside a plan of the same thing.

    ``rows`` are the figures that both have, ``facts`` everything that the log states, ``within`` whether no row lies further apart than
    ``tolerance`` (a share). ``dialect`` is how the log was read. ``unread_lines`` counts the lines about memory that were not understood,
    and ``unread`` holds the first of them if the user asks for them.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    dialect: str
    log: str
    lines: int
    tolerance: float
    within: bool
    inputs: tuple[Input, ...]
    rows: tuple[Row, ...]
    facts: tuple[Fact, ...]
    saved: Saved | None
    unread: tuple[UnreadLine, ...]
    unread_lines: int
    notes: tuple[Note, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document, as plain dicts and lists."""
        document: dict[str, Any] = document_of(self)
        return document

"""The result of ``kvplan reconcile``: one frozen object whose fields are the JSON document.

Lines about memory that no rule understood. Their number and length are bounded, and what looks like a secret is masked.
"""

from __future__ import annotations

import re
from typing import Any, Final

from hwcalc.documents import document_of
from hwcalc.formulas.record import Record
from hwcalc.masking import masked
from hwcalc.model import Note
from hwcalc.reconcile.facts import Fact, Row
from hwcalc.text import printable

MOST_UNREAD: Final = 100
"""Lines that are kept. All are counted."""
_LONGEST: Final = 200
_SEARCHED: Final = 4096
_ABOUT_MEMORY: Final = re.compile(
    r"(?i)[KMG]i?B\b|\bmemory\b|kv.?cache|\bblocks?\b|graph|mamba|prefill kernel|max.model.len|max.seq.len|\boom\b"
)
_PARTS: Final = ("memory", "cache", "block", "graph", "mamba", "kernel", "max", "oom", "ib", "kb", "mb", "gb")
"""A text without any of these is not about memory. Most lines have none, and this is found fast."""


_NO_SIZE: Final = re.compile(
    r"^[0-9]+\.[0-9.]{4,20} D |token to piece cache|: n_rot_[kv] =|resolve_fused_ops:|: graph: nodes =|creating +(?:non-)?SWA KV cache"
    r"|common_param: |memory breakdown \[MiB\]|init engine \(profile, create kv cache"
)
"""What llama.cpp says for its developers (its level D), lines whose sizes other lines give as well, and how long vLLM took to start."""


def about_memory(text: str) -> bool:
    """True if a line is about memory, so that a user should see it if no rule understands it."""
    lowered = text[:_SEARCHED].lower()
    if not any(part in lowered for part in _PARTS) or _ABOUT_MEMORY.search(text, 0, _SEARCHED) is None:
        return False
    return _NO_SIZE.search(text, 0, _SEARCHED) is None


class UnreadLine(Record):
    """A line that was not understood, cut and without secrets."""

    line: int
    text: str


class Unread:
    """Collects the lines about memory that were not understood."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[UnreadLine] = []

    def add(self, number: int, text: str) -> None:
        """Count this line, and keep it if it is one of the first."""
        self.count += 1
        if len(self._kept) < MOST_UNREAD:
            self._kept.append(UnreadLine(line=number, text=printable(masked(text))[:_LONGEST]))

    @property
    def lines(self) -> tuple[UnreadLine, ...]:
        """The first of them."""
        return tuple(self._kept)


class Input(Record):
    """What was planned with, and who said so: ``log`` with its line, ``server``, ``option``, ``default``, or ``assumed`` if nobody named a GPU."""

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

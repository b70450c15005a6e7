"""The output of scripts that run transformers, and torch's messages about memory.

transformers itself prints nothing about memory. This module reads what scripts usually print: ``get_memory_footprint()``, the bytes of
``past_key_values``, ``torch.cuda.memory_allocated()`` and similar counters, ``torch.cuda.memory_summary()``, and torch's message when
memory runs out (``c10/cuda/CUDACachingAllocator.cpp``). A size in GB may mean 10^9 or 2^30 bytes, because scripts divide by either.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import CONTEXT, NON_TORCH, Section
from hwcalc.model import Note
from hwcalc.reconcile.facts import (
    BINARY,
    Dialect,
    Fact,
    Facts,
    PrintedNumber,
    Range,
    Row,
    byte_range,
    compared,
    device_memory,
    named_budget,
    number_after,
    number_at,
    spread,
    total,
)

_DECIMAL: Final = {"GB": 10**9, "MB": 10**6, "KB": 10**3}
_NAMED: Final = (
    ("footprint_bytes", ("memory footprint", "memory_footprint", "get_memory_footprint()")),
    (
        "cache_bytes",
        ("kv cache bytes", "kv_cache_bytes", "kv cache size", "kv cache", "past_key_values", "cache bytes", "cache_bytes"),
    ),
    ("peak_bytes", ("max_memory_allocated()", "max_memory_allocated", "peak memory", "peak_memory")),
    ("peak_reserved_bytes", ("max_memory_reserved()", "max_memory_reserved")),
    ("reserved_bytes", ("memory_reserved()", "memory_reserved")),
    ("allocated_bytes", ("memory_allocated()", "memory_allocated")),
)
_SUMMARY: Final = {
    "allocated memory": ("allocated_bytes", "peak_bytes"),
    "gpu reserved memory": ("reserved_bytes", "peak_reserved_bytes"),
}
"""A row of the table -> facts of its first two columns."""
_OUT_OF_MEMORY: Final = (
    ("tried_bytes", "Tried to allocate"), ("total_bytes", "total capacity of"), ("total_bytes", "total capacty of"),
    ("free_bytes", "of which"), ("process_bytes", "this process has"), ("allocated_bytes", "Of the allocated memory"),
)  # fmt: skip
_OLD_OUT_OF_MEMORY: Final = {
    "total capacity": "total_bytes", "already allocated": "allocated_bytes", "free": "free_bytes",
    "reserved in total": "reserved_bytes",
}  # fmt: skip
_LEAST_PLAIN: Final = 100_000
"""A number without a unit counts as bytes only from here on; a smaller one may be gigabytes."""


class TransformersLog(Dialect):
    """Reads the output line by line."""

    name = "transformers"
    engine = "transformers"
    sought = ("memory footprint: 15.01 GB", "KV cache: 4294967296 bytes", "max_memory_allocated: 17.06 GiB", "CUDA out of memory")

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        if "out of memory" in text or "Tried to allocate" in text:
            self._out_of_memory(text)
            return
        lowered = text.lower()
        if text.lstrip().startswith("|"):
            # ``| Allocated memory | 14957 MiB | 17060 MiB | ...``: current and peak usage, rounded down.
            cells = [cell.strip() for cell in text[:400].split("|")[1:4]]
            name = " ".join(lowered[:400].split("|")[1].split()) if len(cells) == 3 else ""
            for fact, cell in zip(_SUMMARY.get(name, ()), cells[1:], strict=False):
                printed = number_at(cell, 0)
                if printed is not None and printed.unit in BINARY and printed.decimals == 0 and printed.digits >= 0:
                    self.facts.add_floor(fact, printed.digits, BINARY[printed.unit])
            return
        for name, wordings in _NAMED:
            for wording in wordings:
                if wording in lowered and number_after(lowered, wording) is not None:
                    # The original text is read again, because units differ by case.
                    self._size(name, number_at(text, lowered.find(wording) + len(wording)))
                    return

    def _size(self, name: str, printed: PrintedNumber | None) -> None:
        """Add a size. GB may be decimal or binary; a large whole number without a unit is bytes."""
        if printed is None or printed.digits < 0:
            return
        unit = printed.unit
        if not unit and printed.decimals == 0 and printed.digits >= _LEAST_PLAIN:
            unit = "bytes"
        if unit in BINARY:
            value, low, high = byte_range(printed, BINARY[unit])
            low = byte_range(printed, _DECIMAL[unit])[1] if unit in _DECIMAL else low
            self.facts.add(name, value, "bytes", low=low, high=high)

    def _out_of_memory(self, text: str) -> None:
        """Read both forms of torch's message: ``GPU 0 has a total capacity of`` (2.1 writes "capacty"), and the older ``(GPU 0; ...)``."""
        for name, wording in _OUT_OF_MEMORY:
            self.facts.add_bytes(name, number_after(text, wording))
        place = text.find("is allocated by PyTorch, and")
        self.facts.add_bytes("unallocated_bytes", None if place < 0 else number_after(text, "and", place))
        opening = text.find("(GPU ")
        for piece in text[opening : opening + 300].split(";")[1:] if opening >= 0 else ():
            for wording, name in _OLD_OUT_OF_MEMORY.items():
                if wording in piece:
                    self.facts.add_bytes(name, number_at(piece, 0))
                    break

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """Nothing: a script's output does not state its settings."""
        return {}, {}

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        facts, budget = self.facts, named_budget(occupancy)
        parts = (occupancy.told(occupancy.weights) if budget is None else budget.parts) or ()
        held = total(part for part in parts if part.section is Section.WEIGHTS)
        meaning = "weights of the model; its buffers are not planned"
        rows = compared("weights", facts.last("footprint_bytes"), held, tolerance, "exact", meaning)
        need, meaning = occupancy.needed_bytes, f"{occupancy.batch:,} x {occupancy.tokens:,} tokens"
        rows += compared("cache", facts.last("cache_bytes"), need, tolerance, occupancy.engine.definition, meaning)
        if budget is None:
            message = "Name the GPU with --gpu to compare the peak and what lies outside of torch."
            unread = "peak_bytes" in facts or "total_bytes" in facts
            return rows, [Note(code="no-gpu", message=message)] if unread else []
        memory, meaning = device_memory(occupancy), "memory of the GPU that programs see"
        rows += compared("device memory", facts.last("total_bytes"), memory, tolerance, "profile", meaning)
        inside = total(part for part in parts if part.name not in (*CONTEXT, *NON_TORCH)) or spread(0)
        peak = Range(low=need + inside.low, expected=need + inside.expected, high=need + inside.high)
        meaning = "weights, cache, activations and workspaces: what torch allocates at most"
        rows += compared("peak allocated", facts.last("peak_bytes"), peak, tolerance, "estimate", meaning)
        others = [part for part in parts if part.name in (*CONTEXT, *NON_TORCH) and part.section is Section.OVERHEAD]
        meaning = "context, kernels and communication: what is not torch's"
        rows += compared("outside torch", _outside(facts), total(others), tolerance, "estimate", meaning)
        return rows, []

    def batch_shape(self, occupancy: Occupancy) -> tuple[int, int]:
        """Tokens of one forward pass and rows of logits, as in the general memory equation."""
        from hwcalc.engines import find_engine

        general = find_engine(self.engine)[0].unchecked(occupancy.model, occupancy.request)
        return general.forward_tokens()[1], occupancy.request.replica_batch

    def overheads(self, occupancy: Occupancy) -> dict[str, int]:
        """The bytes outside torch. torch's peak is no overhead: it includes weights and cache beside the activations."""
        outside = _outside(self.facts)
        return {} if outside is None else {"context_bytes": int(outside.value)}


def _outside(facts: Facts) -> Fact | None:
    """Memory of the process outside torch. ``None`` unless one line states all three figures."""
    stated = [facts.last(name) for name in ("process_bytes", "allocated_bytes", "unallocated_bytes")]
    sizes = []
    for fact in stated:
        if fact is None or stated[0] is None or fact.line != stated[0].line or isinstance(fact.value, str):
            return None
        low, high = (fact.value if end is None else end for end in (fact.low, fact.high))
        sizes.append((int(fact.value), int(low), int(high)))
    (value, least, most), allocated, unused = sizes
    low, high = least - allocated[2] - unused[2], most - allocated[1] - unused[1]
    assert stated[0] is not None
    return replace(stated[0], name="outside", value=value - allocated[0] - unused[0], low=low, high=high) if low >= 0 else None

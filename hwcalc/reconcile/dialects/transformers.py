"""What a script that runs transformers prints, and what torch says of its memory.

transformers prints nothing about memory itself, so these are what scripts print by themselves: ``get_memory_footprint()``, the bytes of
``past_key_values``, ``torch.cuda.memory_allocated()`` and its kin, ``torch.cuda.memory_summary()``, and torch's text when memory ran
out (``c10/cuda/CUDACachingAllocator.cpp``). A size in GB is taken to be 10^9 bytes or 2^30: scripts divide by either.
"""

from __future__ import annotations

from typing import Final

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.budget import Budget, Section
from hwcalc.engines.calibration import CONTEXT, NON_TORCH
from hwcalc.model import Note
from hwcalc.reconcile.facts import BINARY, Facts, Found, byte_range, number_after, number_at
from hwcalc.reconcile.rows import Range, Row, compared, spread

__all__ = ["NAME", "SOUGHT", "TITLE", "TransformersParser", "batch_shape", "compare", "overheads", "plan_inputs"]

NAME: Final = "transformers"
TITLE: Final = "a script that runs transformers"
SOUGHT: Final = (
    "memory footprint: 15.01 GB",
    "KV cache: 4294967296 bytes",
    "max_memory_allocated: 17.06 GiB",
    "CUDA out of memory",
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
_SUMMARY: Final = {"allocated memory": "allocated_bytes", "gpu reserved memory": "reserved_bytes"}
_SUMMARY_PEAK: Final = {"allocated memory": "peak_bytes", "gpu reserved memory": "peak_reserved_bytes"}
_LEAST_PLAIN: Final = 100_000
"""A bare number below this is no size in bytes: it may count gigabytes."""
_LONGEST: Final = 4096


class TransformersParser:
    """Takes the output line by line."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.starts = 1

    def feed(self, number: int, text: str) -> None:
        """One line."""
        text = text[:_LONGEST]
        if "out of memory" in text or "Tried to allocate" in text:
            self._out_of_memory(number, text)
            return
        lowered = text.lower()
        if text.lstrip().startswith("|"):
            self._summary(number, text, lowered)
            return
        for name, wordings in _NAMED:
            for wording in wordings:
                found = number_after(lowered, wording) if wording in lowered else None
                if found is not None:
                    # Units are told apart by their case.
                    place = lowered.find(wording) + len(wording)
                    self._size(name, number_at(text, place), number, text)
                    break
            else:
                continue
            break

    def _size(self, name: str, found: Found | None, number: int, text: str) -> None:
        """A size whose GB may be either; a bare whole number that is large enough is bytes."""
        if found is None or found.digits < 0:
            return
        unit = found.unit
        if not unit and found.decimals == 0 and found.digits >= _LEAST_PLAIN:
            unit = "bytes"
        if unit not in BINARY:
            return
        value, low, high = byte_range(found, BINARY[unit])
        if unit in _DECIMAL:
            low = byte_range(found, _DECIMAL[unit])[1]
        self.facts.add(name, value, line=number, text=text, unit="bytes", low=low, high=high)

    def _summary(self, number: int, text: str, lowered: str) -> None:
        """``| Allocated memory | 14957 MiB | 17060 MiB | ...``: now and at the peak, rounded down."""
        cells = [cell.strip() for cell in text[:400].split("|")[1:4]]
        name = " ".join(lowered[:400].split("|")[1].split()) if len(cells) == 3 else ""
        for names, cell in ((_SUMMARY, cells[1:2]), (_SUMMARY_PEAK, cells[2:3])):
            found = number_at(cell[0], 0) if name in names and cell else None
            if found is not None and found.unit in BINARY and found.decimals == 0 and found.digits >= 0:
                low = found.digits * BINARY[found.unit]
                high = low + BINARY[found.unit] - 1
                self.facts.add(names[name], low, line=number, text=text, unit="bytes", low=low, high=high)

    def _out_of_memory(self, number: int, text: str) -> None:
        """Both of torch's forms: ``GPU 0 has a total capacity of`` (2.1 has "capacty"), and the one in brackets before it."""
        facts = self.facts

        def size(name: str, found: Found | None) -> None:
            if found is not None and found.unit:
                facts.add_bytes(name, found, line=number, text=text)

        size("tried_bytes", number_after(text, "Tried to allocate"))
        for wording in ("total capacity of", "total capacty of"):
            size("total_bytes", number_after(text, wording))
        size("free_bytes", number_after(text, "of which"))
        size("process_bytes", number_after(text, "this process has"))
        size("allocated_bytes", number_after(text, "Of the allocated memory"))
        place = text.find("is allocated by PyTorch, and")
        size("unallocated_bytes", None if place < 0 else number_after(text, "and", place))
        opening = text.find("(GPU ")
        if opening >= 0:
            pieces = text[opening : opening + 300].split(";")
            names = {"total capacity": "total_bytes", "already allocated": "allocated_bytes", "free": "free_bytes"}
            names["reserved in total"] = "reserved_bytes"
            for piece in pieces[1:]:
                for wording, name in names.items():
                    if wording in piece:
                        size(name, number_at(piece, 0))
                        break


def plan_inputs(facts: Facts) -> tuple[dict[str, object], dict[str, str]]:
    """A script's output does not say how it was called."""
    return {}, {}


def compare(facts: Facts, engine: Engine, context: Opened, tolerance: float) -> tuple[list[Row], list[Note]]:
    """Every figure that both sides have, and what could not be compared."""
    rows: list[Row] = []
    notes: list[Note] = []
    budget = context.budget if context.request.hardware.gpu is not None else None
    parts = context.told(context.weights) if budget is None else budget.parts
    held = _sum(parts, Section.WEIGHTS)
    meaning = "weights of the model; its buffers are not planned"
    rows += compared("weights", facts.last("footprint_bytes"), held, tolerance, definition="exact", meaning=meaning)
    need = spread(context.needed_bytes)
    meaning = f"{context.batch:,} x {context.tokens:,} tokens"
    rows += compared("cache", facts.last("cache_bytes"), need, tolerance, definition=engine.definition, meaning=meaning)
    if budget is None:
        if "peak_bytes" in facts or "total_bytes" in facts:
            notes.append(
                Note(code="no-gpu", message="Name the GPU with --gpu to compare the peak and what lies outside of torch.")
            )
        return rows, notes
    from hwcalc.profiles.gpus import visible_memory

    assert context.request.hardware.gpu is not None
    visible = visible_memory(context.request.hardware.gpu)
    total = None if visible is None else Range(low=visible.low_bytes, expected=visible.expected_bytes, high=visible.high_bytes)
    meaning = "memory of the GPU that programs see"
    rows += compared("device memory", facts.last("total_bytes"), total, tolerance, definition="profile", meaning=meaning)
    meaning = "weights, cache, activations and workspaces: what torch allocates at most"
    peak = _peak(budget, need)
    rows += compared("peak allocated", facts.last("peak_bytes"), peak, tolerance, definition="estimate", meaning=meaning)
    outside = _outside(facts)
    if outside is not None:
        process = facts.last("process_bytes")
        assert process is not None
        value, low, high = outside
        gathered = Facts()
        gathered.add("outside", value, line=process.line, text=process.text, unit="bytes", low=low, high=high)
        meaning = "context, kernels and communication: what is not torch's"
        estimate = _sum(tuple(part for part in budget.parts if part.name in (*CONTEXT, *NON_TORCH)), Section.OVERHEAD)
        rows += compared("outside torch", gathered.last("outside"), estimate, tolerance, definition="estimate", meaning=meaning)
    return rows, notes


def _sum(parts: tuple[object, ...] | None, section: Section) -> Range | None:
    found = [part for part in parts or () if getattr(part, "section", None) is section]
    if not found:
        return None
    low, expected, high = (sum(getattr(part, end) for part in found) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _peak(budget: Budget, need: Range) -> Range:
    parts = [part for part in budget.parts if part.name not in (*CONTEXT, *NON_TORCH)]
    low, expected, high = (need.expected + sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _outside(facts: Facts) -> tuple[int, int, int] | None:
    """What the process has of the device beside torch's: expected, low and high; all three figures must be of one line."""
    found = [facts.last(name) for name in ("process_bytes", "allocated_bytes", "unallocated_bytes")]
    sizes = []
    for fact in found:
        if fact is None or found[0] is None or fact.line != found[0].line or isinstance(fact.value, str):
            return None
        low, high = (fact.value if end is None else end for end in (fact.low, fact.high))
        sizes.append((int(fact.value), int(low), int(high)))
    process, allocated, unused = sizes
    low = process[1] - allocated[2] - unused[2]
    high = process[2] - allocated[1] - unused[1]
    return (process[0] - allocated[0] - unused[0], low, high) if low >= 0 else None


def batch_shape(context: Opened) -> tuple[int, int]:
    """Tokens of one forward pass and rows of logits: as the general equation takes them."""
    from hwcalc.engines import find_engine

    return find_engine(NAME)[0].forward_tokens(context)[1], context.request.replica_batch


def overheads(facts: Facts, context: Opened) -> dict[str, int]:
    """What was measured outside of torch. A peak of torch's own holds weights and cache too, so it says nothing of activations alone."""
    outside = _outside(facts)
    return {} if outside is None else {"context_bytes": outside[0]}

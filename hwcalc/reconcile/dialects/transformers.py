"""The output of scripts that run transformers, and torch's messages about memory.

transformers itself prints nothing about memory. This module reads what scripts usually print: ``get_memory_footprint()``, the bytes of
``past_key_values``, ``torch.cuda.memory_allocated()`` and similar counters, ``torch.cuda.memory_summary()``, and torch's message when
memory runs out (``c10/cuda/CUDACachingAllocator.cpp``). A size in GB may mean 10^9 or 2^30 bytes, because scripts divide by either.
"""

from __future__ import annotations

from typing import Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import CONTEXT, NON_TORCH, Budget, Section
from hwcalc.model import Note
from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import BINARY, Facts, PrintedNumber, Range, Row, byte_range, compared, number_after, number_at, spread

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
"""A number without a unit counts as bytes only from here on; a smaller one may be gigabytes."""
_LONGEST: Final = 4096


class TransformersLog(Dialect):
    """Reads the output line by line."""

    name = "transformers"
    title = "a script that runs transformers"
    engine = "transformers"
    sought = ("memory footprint: 15.01 GB", "KV cache: 4294967296 bytes", "max_memory_allocated: 17.06 GiB", "CUDA out of memory")

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
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
                printed = number_after(lowered, wording) if wording in lowered else None
                if printed is not None:
                    # The original text is read again, because units differ by case.
                    place = lowered.find(wording) + len(wording)
                    self._size(name, number_at(text, place), number, text)
                    break
            else:
                continue
            break

    def _size(self, name: str, printed: PrintedNumber | None, number: int, text: str) -> None:
        """Add a size. GB may be decimal or binary; a large whole number without a unit is bytes."""
        if printed is None or printed.digits < 0:
            return
        unit = printed.unit
        if not unit and printed.decimals == 0 and printed.digits >= _LEAST_PLAIN:
            unit = "bytes"
        if unit not in BINARY:
            return
        value, low, high = byte_range(printed, BINARY[unit])
        if unit in _DECIMAL:
            low = byte_range(printed, _DECIMAL[unit])[1]
        self.facts.add(name, value, line=number, text=text, unit="bytes", low=low, high=high)

    def _summary(self, number: int, text: str, lowered: str) -> None:
        """Read ``| Allocated memory | 14957 MiB | 17060 MiB | ...``: current and peak usage, rounded down."""
        cells = [cell.strip() for cell in text[:400].split("|")[1:4]]
        name = " ".join(lowered[:400].split("|")[1].split()) if len(cells) == 3 else ""
        for names, cell in ((_SUMMARY, cells[1:2]), (_SUMMARY_PEAK, cells[2:3])):
            printed = number_at(cell[0], 0) if name in names and cell else None
            if printed is not None and printed.unit in BINARY and printed.decimals == 0 and printed.digits >= 0:
                low = printed.digits * BINARY[printed.unit]
                high = low + BINARY[printed.unit] - 1
                self.facts.add(names[name], low, line=number, text=text, unit="bytes", low=low, high=high)

    def _out_of_memory(self, number: int, text: str) -> None:
        """Read both forms of torch's message: ``GPU 0 has a total capacity of`` (2.1 writes "capacty"), and the older ``(GPU 0; ...)``."""
        facts = self.facts

        def size(name: str, printed: PrintedNumber | None) -> None:
            if printed is not None and printed.unit:
                facts.add_bytes(name, printed, line=number, text=text)

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

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """Nothing: a script's output does not state its settings."""
        return {}, {}

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        rows: list[Row] = []
        notes: list[Note] = []
        budget = occupancy.budget if occupancy.setup.hardware.gpu is not None else None
        parts = occupancy.told(occupancy.weights) if budget is None else budget.parts
        held = _sum(parts, Section.WEIGHTS)
        meaning = "weights of the model; its buffers are not planned"
        rows += compared("weights", self.facts.last("footprint_bytes"), held, tolerance, definition="exact", meaning=meaning)
        need = spread(occupancy.needed_bytes)
        meaning = f"{occupancy.batch:,} x {occupancy.tokens:,} tokens"
        rows += compared(
            "cache", self.facts.last("cache_bytes"), need, tolerance, definition=occupancy.engine.definition, meaning=meaning
        )
        if budget is None:
            if "peak_bytes" in self.facts or "total_bytes" in self.facts:
                notes.append(
                    Note(code="no-gpu", message="Name the GPU with --gpu to compare the peak and what lies outside of torch.")
                )
            return rows, notes
        from hwcalc.profiles.gpus import visible_memory

        assert occupancy.setup.hardware.gpu is not None
        visible = visible_memory(occupancy.setup.hardware.gpu)
        total = (
            None if visible is None else Range(low=visible.low_bytes, expected=visible.expected_bytes, high=visible.high_bytes)
        )
        meaning = "memory of the GPU that programs see"
        rows += compared("device memory", self.facts.last("total_bytes"), total, tolerance, definition="profile", meaning=meaning)
        meaning = "weights, cache, activations and workspaces: what torch allocates at most"
        peak = _peak(budget, need)
        rows += compared("peak allocated", self.facts.last("peak_bytes"), peak, tolerance, definition="estimate", meaning=meaning)
        outside = _outside(self.facts)
        if outside is not None:
            process = self.facts.last("process_bytes")
            assert process is not None
            value, low, high = outside
            gathered = Facts()
            gathered.add("outside", value, line=process.line, text=process.text, unit="bytes", low=low, high=high)
            meaning = "context, kernels and communication: what is not torch's"
            estimate = _sum(tuple(part for part in budget.parts if part.name in (*CONTEXT, *NON_TORCH)), Section.OVERHEAD)
            rows += compared(
                "outside torch", gathered.last("outside"), estimate, tolerance, definition="estimate", meaning=meaning
            )
        return rows, notes

    def batch_shape(self, occupancy: Occupancy) -> tuple[int, int]:
        """Tokens of one forward pass and rows of logits, as in the general memory equation."""
        from hwcalc.engines import find_engine

        return find_engine(self.engine)[0].unchecked(occupancy.model, occupancy.request).forward_tokens()[
            1
        ], occupancy.request.replica_batch

    def overheads(self, occupancy: Occupancy) -> dict[str, int]:
        """The bytes outside torch. torch's peak is no overhead: it includes weights and cache beside the activations."""
        outside = _outside(self.facts)
        return {} if outside is None else {"context_bytes": outside[0]}


def _sum(parts: tuple[object, ...] | None, section: Section) -> Range | None:
    counted = [part for part in parts or () if getattr(part, "section", None) is section]
    if not counted:
        return None
    low, expected, high = (sum(getattr(part, end) for part in counted) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _peak(budget: Budget, need: Range) -> Range:
    parts = [part for part in budget.parts if part.name not in (*CONTEXT, *NON_TORCH)]
    low, expected, high = (need.expected + sum(getattr(part, end) for part in parts) for end in ("low", "expected", "high"))
    return Range(low=low, expected=expected, high=high)


def _outside(facts: Facts) -> tuple[int, int, int] | None:
    """Memory of the process outside torch: expected, low and high. ``None`` unless one line states all three figures."""
    stated = [facts.last(name) for name in ("process_bytes", "allocated_bytes", "unallocated_bytes")]
    sizes = []
    for fact in stated:
        if fact is None or stated[0] is None or fact.line != stated[0].line or isinstance(fact.value, str):
            return None
        low, high = (fact.value if end is None else end for end in (fact.low, fact.high))
        sizes.append((int(fact.value), int(low), int(high)))
    process, allocated, unused = sizes
    low = process[1] - allocated[2] - unused[2]
    high = process[2] - allocated[1] - unused[1]
    return (process[0] - allocated[0] - unused[0], low, high) if low >= 0 else None

"""The start-up log of mistral.rs: the pool of PagedAttention.

Read in ``mistralrs-core/src/paged_attention/mod.rs`` of 0.9.2: its MB are 2^20 bytes, whole ones, and its counts are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import Facts, Row, budget_rows, compared, number_after, number_before, spread
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.mistral_rs.deployment import MistralOccupancy
    from hwcalc.model import Note

_LONGEST: Final = 4096
_TYPES: Final = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8E4M3": "fp8"}


class MistralRsLog(Dialect):
    """Reads a log line by line."""

    name = "mistral-rs"
    title = "mistral.rs's start-up log"
    engine = "mistral-rs"
    sought = (
        "for PagedAttention KV cache per GPU",
        "PagedAttention KV cache type is",
        "Using PagedAttention with block size",
        "Recurrent state pool grew to capacity",
        "for activations (predicted)",
    )

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        text = text[:_LONGEST]
        if "for PagedAttention KV cache per GPU" in text:
            if "pool_mb" in self.facts:
                self.facts.clear()
                self.starts += 1
            self._count("pool_mb", number_before(text, " for PagedAttention KV cache per GPU"), "MB", number, text)
        if "PagedAttention KV cache type is" in text:
            word = text.partition("KV cache type is ")[2].split(" ")[0].strip(".")
            if word in _TYPES:
                self.facts.add("kv_cache_dtype", _TYPES[word], line=number, text=text)
        if "Using PagedAttention with block size" in text:
            self._count("pa_block_size", number_after(text, "with block size"), "tokens", number, text)
            self._count("blocks", number_before(text, " GPU blocks"), "blocks", number, text)
            self._tokens(number, text)
        if "Metal: capping KV cache from" in text:
            self._count("uncapped_mb", number_after(text, "capping KV cache from"), "MB", number, text)
        if "for activations (predicted)" in text:
            self._count("predicted_mb", number_after(text, "Reserving"), "MB", number, text)
        if "Recurrent state pool grew to capacity" in text:
            self._count("state_slots", number_after(text, "grew to capacity"), "slots", number, text)

    def _tokens(self, number: int, text: str) -> None:
        """The tokens of all blocks; releases after 0.9.2 print them without those of the null block."""
        printed = number_after(text, "available context length is")
        blocks, size = self.facts.number("blocks"), self.facts.number("pa_block_size")
        if blocks is not None and size is not None and getattr(printed, "digits", -1) == (int(blocks) - 1) * int(size):
            self.facts.add("tokens", int(blocks) * int(size), line=number, text=text, unit="tokens")
        else:
            self._count("tokens", printed, "tokens", number, text)

    def _count(self, name: str, printed: object, unit: str, number: int, text: str) -> None:
        digits, decimals = getattr(printed, "digits", -1), getattr(printed, "decimals", 0)
        if digits > 0 and not decimals:
            self.facts.add(name, digits, line=number, text=text, unit=unit)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The pool's size, block and format."""
        stated: dict[str, object] = {}
        size, word, block = self.facts.number("pool_mb"), self.facts.word("kv_cache_dtype"), self.facts.number("pa_block_size")
        if size is not None:
            stated["kv_memory"] = int(size) * MIB
        if word is not None:
            stated["dtype"] = word
        return stated, {} if block not in (8, 16, 32) else {"pa_block_size": str(block)}

    def compare(self, occupancy: MistralOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have."""
        from hwcalc.engines.mistral_rs.pool import predicted as predicted_scores

        rows, pool, notes = budget_rows(
            self.facts, occupancy, tolerance, size=None if "pool_mb" not in self.facts else _size(self.facts)
        )
        if pool is not None and pool.state_slots is not None:
            meaning = "slots of every layer with a state"
            predicted = spread(pool.state_slots)
            rows += compared("state slots", self.facts.last("state_slots"), predicted, 0.0, definition="engine", meaning=meaning)
        scores = predicted_scores(occupancy)
        if scores is not None:
            predicted_bytes = scores.at(occupancy.tokens, occupancy.request.replica_batch)
            meaning = "what the loader predicts for activations, in whole MB"
            predicted = spread(predicted_bytes // MIB)
            rows += compared(
                "predicted MB", self.facts.last("predicted_mb"), predicted, 0.0, definition="engine", meaning=meaning
            )
        return rows, notes


def _size(facts: Facts) -> int:
    return int(facts.number("pool_mb") or 0) * MIB

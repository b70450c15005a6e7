"""The start-up log of mistral.rs: the pool of PagedAttention.

Read in ``mistralrs-core/src/paged_attention/mod.rs`` of 0.9.2: its MB are 2^20 bytes, whole ones, and its counts are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.reconcile.facts import Dialect, Row, budget_rows, compared, number_after, number_before, without_none
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.mistral_rs.engine import MistralOccupancy
    from hwcalc.model import Note

_TYPES: Final = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8E4M3": "fp8"}


class MistralRsLog(Dialect):
    """Reads a log line by line."""

    name = "mistral-rs"
    engine = "mistral-rs"
    sought = (
        "for PagedAttention KV cache per GPU",
        "PagedAttention KV cache type is",
        "Using PagedAttention with block size",
        "Recurrent state pool grew to capacity",
        "for activations (predicted)",
    )

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        facts = self.facts
        if "for PagedAttention KV cache per GPU" in text:
            if "pool_mb" in facts:
                self.restart()
            facts.add_count("pool_mb", number_before(text, " for PagedAttention KV cache per GPU"), "MB")
        if "PagedAttention KV cache type is" in text:
            word = text.partition("KV cache type is ")[2].split(" ")[0].strip(".")
            if word in _TYPES:
                facts.add("kv_cache_dtype", _TYPES[word])
        if "Using PagedAttention with block size" in text:
            facts.add_count("pa_block_size", number_after(text, "with block size"), "tokens")
            facts.add_count("blocks", number_before(text, " GPU blocks"), "blocks")
            printed = number_after(text, "available context length is")
            blocks, size = facts.number("blocks"), facts.number("pa_block_size")
            if (
                printed is not None
                and blocks is not None
                and size is not None
                and printed.digits == (int(blocks) - 1) * int(size)
            ):
                # Releases after 0.9.2 print the tokens without those of the null block.
                facts.add("tokens", int(blocks) * int(size), "tokens")
            else:
                facts.add_count("tokens", printed, "tokens")
        if "Metal: capping KV cache from" in text:
            facts.add_count("uncapped_mb", number_after(text, "capping KV cache from"), "MB")
        if "for activations (predicted)" in text:
            facts.add_count("predicted_mb", number_after(text, "Reserving"), "MB")
        if "Recurrent state pool grew to capacity" in text:
            facts.add_count("state_slots", number_after(text, "grew to capacity"), "slots")

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The pool's size, block and format."""
        size, block = self.facts.whole("pool_mb"), self.facts.number("pa_block_size")
        said: dict[str, object] = without_none(
            kv_memory=None if size is None else size * MIB, dtype=self.facts.word("kv_cache_dtype")
        )
        return said, {} if block not in (8, 16, 32) else {"pa_block_size": str(block)}

    def compare(self, occupancy: MistralOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have."""
        from hwcalc.engines.mistral_rs.pool import predicted as predicted_scores

        size = self.facts.whole("pool_mb")
        rows, pool, notes = budget_rows(self, occupancy, tolerance, None if size is None else size * MIB)
        if pool is not None:
            slots, meaning = self.facts.last("state_slots"), "slots of every layer with a state"
            rows += compared("state slots", slots, pool.state_slots, 0.0, "engine", meaning)
        scores = predicted_scores(occupancy)
        peak = None if scores is None else scores.at(occupancy.tokens, occupancy.request.replica_batch)
        predicted, meaning = None if peak is None else peak // MIB, "what the loader predicts for activations, in whole MB"
        rows += compared("predicted MB", self.facts.last("predicted_mb"), predicted, 0.0, "engine", meaning)
        return rows, notes

"""The start-up log of TGI: the launcher's choice of attention, the blocks of the shards, the router's tokens.

Read in ``launcher/src/main.rs``, ``models/flash_causal_lm.py`` and ``backends/v3/src/lib.rs`` of 3.3.6-dev0; the counts are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.reconcile.facts import Dialect, budget_rows, number_after

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.model import Note
    from hwcalc.reconcile.facts import Row

_ATTENTIONS: Final = ("flashinfer", "flashdecoding-ipex", "flashdecoding", "paged")
_BLOCKS: Final = {1: "flashinfer", 16: "paged", 64: "flashdecoding-ipex", 256: "flashdecoding"}
"""Tokens of a block -> the back end that has such blocks."""


class TgiLog(Dialect):
    """Reads a log line by line."""

    name = "tgi"
    engine = "tgi"
    sought = ("KV-cache blocks", "Setting max batch total tokens to", "Using attention", "Default `max_batch_prefill_tokens` to")

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        facts, lowered = self.facts, text.lower()
        if "using attention" in lowered:
            if "blocks" in facts:
                self.restart()
            after = lowered.partition("using attention")[2].lstrip(" =")
            name = next((one for one in _ATTENTIONS if after.startswith(one)), None)
            if name is not None:
                facts.add("attention", name)
        if "KV-cache blocks" in text:
            facts.add_count("blocks", number_after(text, "KV-cache blocks"), "blocks")
            facts.add_count("block_size", number_after(text, ", size"), "tokens")
            blocks, size = facts.number("blocks"), facts.number("block_size")
            if blocks is not None and size is not None:
                facts.add("tokens", int(blocks) * int(size), "tokens")
        if "max batch total tokens to" in lowered:
            facts.add_count("batch_tokens", number_after(text, "batch total tokens to"), "tokens")
        if "max_batch_prefill_tokens` to" in text:
            facts.add_count("max_batch_prefill_tokens", number_after(text, "max_batch_prefill_tokens` to"), "tokens")

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The back end of attention and the tokens of the warm-up."""
        stated: dict[str, str] = {}
        name, tokens = self.facts.word("attention"), self.facts.number("max_batch_prefill_tokens")
        name = name or _BLOCKS.get(int(self.facts.number("block_size") or 0))
        if name is not None:
            stated["attention"] = name
        if tokens is not None:
            stated["max_batch_prefill_tokens"] = str(int(tokens))
        return {}, stated

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have."""
        rows, _, notes = budget_rows(self.facts, occupancy, tolerance)
        return rows, notes

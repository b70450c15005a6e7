"""The start-up log of TGI: the launcher's choice of attention, the blocks of the shards, the router's tokens.

Read in ``launcher/src/main.rs``, ``models/flash_causal_lm.py`` and ``backends/v3/src/lib.rs`` of 3.3.6-dev0; the counts are exact.
What a running server says: ``router/src/lib.rs`` (Info), ``backends/v3/src/backend.rs``; a request has its longest answer reserved.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.reconcile.facts import Dialect, budget_rows, number_after, without_none

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
    endpoints = ("/info", "/metrics")
    metrics = "tgi_"
    gauges = MappingProxyType({
        "tgi_batch_current_size": "running_requests", "tgi_queue_size": "waiting_requests",
        "tgi_batch_current_max_tokens": "used_tokens", "tgi_batch_max_total_tokens": "tokens",
    })  # fmt: skip
    limit = ("max_concurrent_requests", "max_concurrent_requests")

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

    def answered(self, path: str, document: Any) -> None:
        """Add the model, the version and the limits; releases before 3.0 state the tokens of a batch here."""
        match path, document:
            case "/info", {"model_id": str(model), "router": str(), "version": str(version)}:
                self.facts.add("model", model)
                self.facts.add_release(version)
                for name in ("max_total_tokens", "max_concurrent_requests"):
                    self.facts.add_whole(name, document.get(name))
                self.facts.add_whole("tokens", document.get("max_batch_total_tokens"), "tokens")

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The longest request, the back end of attention and the tokens of the warm-up."""
        facts, tokens = self.facts, self.facts.whole("max_batch_prefill_tokens")
        return without_none(seq=facts.whole("max_total_tokens")), without_none(
            attention=facts.word("attention") or _BLOCKS.get(facts.whole("block_size") or 0),
            max_batch_prefill_tokens=None if tokens is None else str(tokens),
        )

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have."""
        rows, _, notes = budget_rows(self, occupancy, tolerance)
        return rows, notes

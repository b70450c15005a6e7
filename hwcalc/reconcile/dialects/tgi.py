"""The start-up log of TGI: the launcher's choice of attention, the blocks of the shards, the router's tokens.

Read in ``launcher/src/main.rs``, ``models/flash_causal_lm.py`` and ``backends/v3/src/lib.rs`` of 3.3.6-dev0; the counts are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import budget_rows, number_after

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.model import Note
    from hwcalc.reconcile.facts import Row

_LONGEST: Final = 4096
_ATTENTIONS: Final = ("flashinfer", "flashdecoding-ipex", "flashdecoding", "paged")


class TgiLog(Dialect):
    """Reads a log line by line."""

    name = "tgi"
    title = "TGI's start-up log"
    engine = "tgi"
    sought = ("KV-cache blocks", "Setting max batch total tokens to", "Using attention", "Default `max_batch_prefill_tokens` to")

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        text = text[:_LONGEST]
        lowered = text.lower()
        if "using attention" in lowered:
            if "blocks" in self.facts:
                self.facts.clear()
                self.starts += 1
            self._attention(number, text, lowered)
        if "KV-cache blocks" in text:
            self._count("blocks", number_after(text, "KV-cache blocks"), "blocks", number, text)
            self._count("block_size", number_after(text, ", size"), "tokens", number, text)
            blocks, size = self.facts.number("blocks"), self.facts.number("block_size")
            if blocks is not None and size is not None:
                self.facts.add("tokens", int(blocks) * int(size), line=number, text=text, unit="tokens")
        if "max batch total tokens to" in lowered:
            self._count("batch_tokens", number_after(text, "batch total tokens to"), "tokens", number, text)
        if "max_batch_prefill_tokens` to" in text:
            self._count("max_batch_prefill_tokens", number_after(text, "max_batch_prefill_tokens` to"), "tokens", number, text)

    def _attention(self, number: int, text: str, lowered: str) -> None:
        after = lowered.partition("using attention")[2].lstrip(" =")
        name = next((one for one in _ATTENTIONS if after.startswith(one)), None)
        if name is not None:
            self.facts.add("attention", name, line=number, text=text)

    def _count(self, name: str, printed: object, unit: str, number: int, text: str) -> None:
        digits, decimals = getattr(printed, "digits", -1), getattr(printed, "decimals", 0)
        if digits > 0 and not decimals:
            self.facts.add(name, digits, line=number, text=text, unit=unit)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The back end of attention and the tokens of the warm-up."""
        stated: dict[str, str] = {}
        name, tokens = self.facts.word("attention"), self.facts.number("max_batch_prefill_tokens")
        if name is None and self.facts.number("block_size") in (1, 16, 64, 256):
            name = {1: "flashinfer", 16: "paged", 64: "flashdecoding-ipex", 256: "flashdecoding"}[
                int(self.facts.number("block_size") or 0)
            ]
        if name is not None:
            stated["attention"] = name
        if tokens is not None:
            stated["max_batch_prefill_tokens"] = str(int(tokens))
        return {}, stated

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have."""
        rows, _, notes = budget_rows(self.facts, occupancy, tolerance, size=None)
        return rows, notes

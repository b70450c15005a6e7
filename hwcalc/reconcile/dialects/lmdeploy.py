"""The log of LMDeploy: of its PyTorch back end, and of TurboMind.

PyTorch states the memory in whole MiB, rounded down (``minimal free gpu memory: 61440 mb``, at level DEBUG), and all settings of its cache in
one line (``CacheConfig(max_batches=1024, block_size=64, ... num_gpu_blocks=5893, ...)``, INFO). TurboMind of 0.14 states the bytes of a
block, blocks and slots of states (``[SeqMgr]``); later releases their budget (``Object cache budget: ... MB from free ... MB``).
Sources: pytorch/engine/executor/base.py; src/turbomind/models/llama/BlockManager.cc and SequenceManager.cc of 0.14.0, src/turbomind/turbomind.cc
of 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy
from hwcalc.model import Note
from hwcalc.reconcile.facts import Dialect, Range, Row, compared, named_budget, number_after, spread, without_none
from hwcalc.units import MIB

_WHOLE: Final[Mapping[str, str]] = {"minimal free gpu memory:": "free_bytes", "estimated max runtime memory:": "runtime_bytes"}
"""What stands before a size in whole MiB -> the name of the fact."""
_SETTING: Final = re.compile(
    r"\b(max_batches|block_size|num_gpu_blocks|max_prefill_token_num|kernel_block_size|prefix_cache_state_budget|num_state_caches)=([0-9]{1,15})\b"
)
_RATIO: Final = re.compile(r"\bcache_max_entry_count=(0\.[0-9]{1,18})\b")
_POLICY: Final = re.compile(r"\bquant_policy=(?:<QuantPolicy\.[A-Z0-9_]{1,20}: )?([0-9]{1,3})\b")
_CACHING: Final = re.compile(r"\benable_prefix_caching=(True|False)\b")
_COUNTS: Final[Mapping[str, str]] = {"max_block_count =": "num_gpu_blocks", "max cached tokens:": "cached_tokens"}
_SIZES: Final[Mapping[str, str]] = {
    "Object cache budget:": "cache_bytes", " from free": "free_bytes", "free_before": "free_bytes",
    "linear-state combined total:": "state_bytes",
}  # fmt: skip
_TURBOMIND: Final = re.compile(r"\b(session_len|max_batch_size|tp|quant_policy|cache_block_seq_len)=([0-9]{1,12})\b")
_RENAMED: Final = {"max_batch_size": "max_batches", "cache_block_seq_len": "block_size"}
_OPTIONS: Final[Mapping[str, str]] = {
    "max_batches": "max_batch_size",
    "block_size": "cache_block_seq_len",
    "kernel_block_size": "kernel_block_size",
    "max_prefill_token_num": "max_prefill_token_num",
    "quant_policy": "quant_policy",
    "prefix_cache_state_budget": "prefix_cache_state_budget",
}
"""Fact -> engine option."""
_BEFORE_OBJECTS: Final = "0.14"
"""The newest release with a manager of sequences, whose lines begin with its name."""
_PYTORCH_ALONE: Final = frozenset({"kernel_block_size", "prefix_cache_state_budget"})


class LmdeployLog(Dialect):
    """Reads the log line by line."""

    name = "lmdeploy"
    engine = "lmdeploy"
    states_version = True
    sought = (
        "minimal free gpu memory: 61440 mb",
        "estimated max runtime memory: 2505 mb",
        "CacheConfig(max_batches=1024, block_size=64, num_cpu_blocks=0, num_gpu_blocks=5893",
        "max_block_count = 6142",
        "Object cache budget: 49152.00 MB from free 61440.00 MB and ratio 0.800",
    )

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        facts = self.facts
        for wording, name in _WHOLE.items():
            printed = number_after(text, wording) if wording in text else None
            if printed is not None and not printed.decimals and printed.digits >= 0:
                facts.add_floor(name, printed.digits, MIB)
        if "CacheConfig(" in text:
            self._config(text)
        elif "turbomind engine config" in text or "cache_block_seq_len=" in text:
            facts.add("backend", "turbomind")
            for found in _TURBOMIND.finditer(text):
                facts.add(_RENAMED.get(found[1], found[1]), int(found[2]))
            ratio = _RATIO.search(text)
            if ratio is not None:
                facts.add("cache_max_entry_count", ratio[1])
        elif "block_size = " in text and " MB" in text:
            facts.add("backend", "turbomind")
            facts.add_bytes("block_bytes", number_after(text, "block_size ="))
        elif "SeqMgr]" in text or "Object cache budget" in text:
            facts.add("backend", "turbomind")
            if "SeqMgr]" in text:
                facts.add("version", _BEFORE_OBJECTS)
            for wording, name in _SIZES.items():
                if wording in text:
                    facts.add_bytes(name, number_after(text, wording))
        for wording, name in _COUNTS.items():
            printed = number_after(text, wording) if wording in text else None
            if printed is not None and not printed.decimals and printed.digits >= 0:
                facts.add("backend", "turbomind")
                facts.add(name, printed.digits)

    def _config(self, text: str) -> None:
        """Read PyTorch's settings. The first config counts: that of a draft comes behind it."""
        if "num_gpu_blocks" in self.facts:
            return
        self.facts.add("backend", "pytorch")
        for found in _SETTING.finditer(text):
            self.facts.add(found[1], int(found[2]))
        words = {"cache_max_entry_count": _RATIO, "enable_prefix_caching": _CACHING, "quant_policy": _POLICY}
        for name, expression in words.items():
            one = expression.search(text)
            if one is not None:
                self.facts.add(name, one[1].lower())

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        facts, caching = self.facts, self.facts.word("enable_prefix_caching")
        options = without_none(
            backend=facts.word("backend"),
            cache_max_entry_count=facts.word("cache_max_entry_count"),
            enable_prefix_caching=caching if caching == "true" else None,
        )
        for name, option in _OPTIONS.items():
            fact = facts.last(name)
            if fact is not None and not (options.get("backend") == "turbomind" and name in _PYTORCH_ALONE):
                options[option] = str(fact.value)
        return without_none(seq=facts.whole("session_len") or None, tp=facts.whole("tp") or None), options

    def compare(self, occupancy: LmdeployOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """The pool by the log's own free memory, which is exact up to its rounding; and what is free by the memory equation."""
        from hwcalc.engines.lmdeploy.deployment import shares_of

        facts, pool, rows = self.facts, occupancy.block_pool, []

        def row(name: str, fact: str, predicted: Range | int, meaning: str) -> None:
            rows.extend(compared(name, facts.last(fact), predicted, 0.0, "engine", meaning))

        free = facts.smallest("free_bytes")
        row("block", "block_bytes", pool.block_bytes, "bytes of a block of all layers, on a rank")
        row("state slots", "num_state_caches", pool.settings.slots, "slots of recurrent states")
        row("states", "state_bytes", pool.state_bytes, "recurrent states of all slots")
        if free is not None:
            ends = (int(end) for end in (free.value, free.low or 0, free.high or 0))
            shares = [shares_of(pool, occupancy.model.vocab_size or 0, size) for size in ends]
            runtime = spread(*(share.runtime for share in shares))
            row("forward pass", "runtime_bytes", runtime, "(prefill tokens + 2 x max_batches) x vocabulary x 2")
            row("cache", "cache_bytes", spread(*(share.cache for share in shares)), "the share of what is free")
            blocks = spread(*(pool.blocks(max(0, share.cache)) for share in shares))
            row("blocks", "num_gpu_blocks", blocks, "blocks of the share of what the log says is free")
        counted = facts.number("num_gpu_blocks")
        if counted is not None:
            row("tokens", "cached_tokens", int(counted) * pool.block_size, "blocks x tokens of a block")
        budget = named_budget(occupancy)
        if budget is None:
            message = "Name the GPU with --gpu to compare what is free once the weights are loaded."
            return rows, [Note(code="no-gpu", message=message)]
        outside = [part for part in budget.parts if part.name != "forward pass"]
        left = Range(
            low=budget.total_low_bytes - sum(part.high for part in outside),
            expected=budget.total_bytes - sum(part.expected for part in outside),
            high=budget.total_high_bytes - sum(part.low for part in outside),
        )
        rows += compared("free", free, left, tolerance, "estimate", "what weights and the context leave of the GPU")
        if free is None:
            room = spread(*(pool.blocks(max(0, size)) for size in (budget.expected, budget.low, budget.high)))
            meaning = "blocks of the memory equation"
            rows += compared("blocks", facts.last("num_gpu_blocks"), room, tolerance, "estimate", meaning)
        return rows, []

    def batch_shape(self, occupancy: LmdeployOccupancy) -> tuple[int, int]:
        """Tokens of one forward pass, and rows of logits."""
        settings = occupancy.deployment.settings
        return settings.prefill_tokens, settings.max_batch_size

"""The start-up log of TensorRT-LLM's PyTorch back end, and the rows that compare it with a plan.

The pool is made twice: a small one for the measurement, and then the real one, so that the last line counts. "GiB" is 2^30 bytes. Sources of
the wordings: pyexecutor/_util.py configure_kv_cache_capacity, kv_cache_manager_v2.py, batch_manager/kvCacheManager.cpp of the sources of
1.4, and logs in public repositories. A running server: serve/openai_server.py, metrics/collector.py, and the iteration statistics of
executor/types.h, which ``/metrics`` gives as a list, and only those since it was asked last.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.memory import Section
from hwcalc.model import Note
from hwcalc.reconcile.facts import (
    Dialect,
    Fact,
    Range,
    Row,
    budget_rows,
    compared,
    named_budget,
    number_after,
    served_model,
    spread,
    total,
    without_none,
)
from hwcalc.reconcile.prometheus import Sample

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

_PROFILED: Final = " in memory usage profiling"
_POOL: Final = "max tokens in paged KV cache ("
_SIZES: Final = (
    ("weights_bytes", f"Memory used after loading model weights (inside torch){_PROFILED}"),
    ("outside_bytes", f"Memory used after loading model weights (outside torch){_PROFILED}"),
    ("activation_bytes", f"Memory dynamically allocated during inference (inside torch){_PROFILED}"),
    ("non_torch_bytes", f"Memory used outside torch (e.g., NCCL and CUDA graphs){_PROFILED}"),
    ("peak_bytes", "Peak memory during memory usage profiling (torch + non-torch)"),
    ("available_bytes", "available KV cache memory when calculating max tokens"),
    ("total_bytes", "device total memory"),
    ("temporary_bytes", "temporary kv cache memory during profiling"),
    ("estimated_bytes", "Estimated max memory in KV cache"),
    ("quota_bytes", "KV cache manager v2 device quota set to"),
    ("pool_bytes", "[MemUsageChange] Allocated"),
)
"""Fact -> the text before its number."""
_COUNTS: Final = (
    ("token_bytes", "kv size per token is", "bytes"),
    ("fixed_bytes", "bytes/token +", "bytes"),
    ("block_tokens", "Number of tokens per block", "tokens"),
    ("estimated_tokens", "Estimated max tokens in KV cache", "tokens"),
    ("tokens", _POOL, "tokens"),
)
_GRAPHS: Final = ("context", "workspaces", "communication", "expert exchange", "CUDA graphs")
"""Parts of the plan that the log has outside torch."""


class TensorrtLog(Dialect):
    """Reads a log line by line."""

    name = "tensorrt-llm"
    engine = "tensorrt-llm"
    sought = (
        "available KV cache memory when calculating max tokens",
        "for max tokens in paged KV cache",
        "KV cache manager v2 device quota set to",
        "Memory used after loading model weights (inside torch)",
    )
    endpoints = ("/prometheus/metrics", "/metrics", "/v1/models", "/version")
    metrics = "trtllm_"
    gauges = MappingProxyType({
        "trtllm_num_requests_running": "running_requests", "trtllm_num_requests_waiting": "waiting_requests",
        "trtllm_kv_cache_utilization": "usage_share", "trtllm_kv_cache_max_blocks": "blocks",
        "trtllm_kv_cache_tokens_per_block": "block_tokens",
    })  # fmt: skip
    limit = ("max_batch_size", "max_batch_size")

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        facts = self.facts
        if _SIZES[0][1] in text and "weights_bytes" in facts and "pool_bytes" in facts:
            self.restart()
        for name, wording in _SIZES:
            if name != "pool_bytes" or _POOL in text:
                facts.add_bytes(name, number_after(text, wording))
        for name, wording, unit in _COUNTS:
            facts.add_count(name, number_after(text, wording), unit)
        share = number_after(text, "fraction is set")
        if share is not None and 0 < share.value < 1:
            facts.add("fraction", float(share.value), "share")

    def sampled(self, sample: Sample) -> None:
        """Add the fact of a gauge, and the tokens of all blocks."""
        super().sampled(sample)
        self._count_tokens()

    def answered(self, path: str, document: Any) -> None:
        """Add the model, the version, and the last iteration: its requests, and the blocks of the pool."""
        facts = self.facts
        match path, document:
            case "/version", {"version": str(version)}:
                facts.add_release(version)
            case "/v1/models", _:
                if isinstance(model := served_model(document, "tensorrt_llm").get("id"), str):
                    facts.add("model", model)
            case "/metrics", [*_, {"kvCacheStats": {"maxNumBlocks": int(most), "usedNumBlocks": int(used)} as cache} as last]:
                facts.add_whole("blocks", most, "blocks")
                facts.add_whole("block_tokens", cache.get("tokensPerBlock"), "tokens")
                facts.add("usage_share", min(1.0, max(0, used) / max(1, most)), "share")
                for fact, key in (("running_requests", "numActiveRequests"), ("waiting_requests", "numQueuedRequests")):
                    facts.add_whole(fact, last.get(key), least=0)
                facts.add_whole("max_batch_size", last.get("maxNumActiveRequests"))
                self._count_tokens()

    def _count_tokens(self) -> None:
        blocks, size = self.facts.number("blocks"), self.facts.number("block_tokens")
        if blocks is not None and size is not None:
            self.facts.add_whole("tokens", int(blocks) * int(size), "tokens")

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The options that the log states."""
        block, share = self.facts.whole("block_tokens"), self.facts.number("fraction")
        return {}, without_none(
            tokens_per_block=None if block is None else str(block),
            free_gpu_memory_fraction=None if share is None else f"{share:.6f}".rstrip("0"),
            manager="v2" if "quota_bytes" in self.facts else "v1" if "tokens" in self.facts else None,
        )

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        facts, budget = self.facts, named_budget(occupancy)
        loaded = total(occupancy.weights.value or ())
        rows = compared("weights", facts.last("weights_bytes"), loaded, tolerance, "estimate", "weights of a rank")
        if budget is not None:
            peak = total(part for part in budget.parts if part.section is Section.ACTIVATIONS)
            meaning = "peak of a batch of dummy prompts"
            rows += compared("activation peak", facts.last("activation_bytes"), peak, tolerance, "estimate", meaning)
            outside, meaning = total(part for part in budget.parts if part.name in _GRAPHS), "context, communication, CUDA graphs"
            rows += compared("outside torch", facts.last("non_torch_bytes"), outside, tolerance, "estimate", meaning)
            left = Range(low=max(0, budget.low), expected=max(0, budget.expected), high=max(0, budget.high))
            meaning = "the share of what is left"
            rows += compared("available", facts.last("available_bytes"), left, tolerance, "estimate", meaning)
        pool, tokens = occupancy.told(occupancy.pool(0)), facts.number("tokens")
        slope = None if pool is None else pool.bytes_per_token
        if slope:
            meaning = "what a token takes on a rank"
            rows += compared("bytes per token", facts.last("token_bytes"), slope, tolerance, "engine", meaning)
            size, meaning = None if tokens is None else int(tokens) * slope, "max tokens of the pool x bytes of a token"
            rows += compared("pool", facts.last("pool_bytes"), size, tolerance, "engine", meaning)
        held = _tokens(facts.last("estimated_bytes") or facts.last("available_bytes"), occupancy)
        meaning = "max tokens of the pool that the available memory holds"
        rows += compared("tokens", facts.last("tokens"), held, tolerance, "engine", meaning)
        if held is not None or tokens is None:
            return rows, []
        more, _, notes = budget_rows(self, occupancy, tolerance)
        return [*rows, *more], notes

    def batch_shape(self, occupancy: Occupancy) -> tuple[int, int]:
        """Tokens and rows of the dummy batch."""
        tokens = occupancy.forward_tokens()[1]
        return tokens, -(-tokens // min(tokens, max(1, occupancy.tokens - 1)))

    def overheads(self, occupancy: Occupancy) -> dict[str, int]:
        """The bytes that a calibration keeps: the peak of the dummy batch."""
        activation = self.facts.number("activation_bytes")
        return {} if activation is None else {"activation_bytes": int(activation)}


def _tokens(stated: Fact | None, occupancy: Occupancy) -> Range | None:
    """The tokens of the pool at both ends of a size that was rounded."""
    if stated is None or isinstance(stated.value, str):
        return None
    ends = (stated.value, *(stated.value if end is None else end for end in (stated.low, stated.high)))
    counts = [pool.tokens for pool in (occupancy.told(occupancy.pool(int(end))) for end in ends) if pool is not None]
    expected, low, high = counts
    return None if expected is None or low is None or high is None else spread(expected, low, high)

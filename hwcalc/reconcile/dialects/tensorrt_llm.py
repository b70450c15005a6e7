"""The start-up log of TensorRT-LLM's PyTorch back end, and the rows that compare it with a plan.

The pool is made twice: a small one for the measurement, and then the real one, so that the last line counts. "GiB" is 2^30 bytes. Sources of
the wordings: pyexecutor/_util.py configure_kv_cache_capacity, kv_cache_manager_v2.py, batch_manager/kvCacheManager.cpp of the sources of
1.4, and logs in public repositories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.memory import Budget, Section
from hwcalc.model import Note
from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import Fact, Range, Row, compared, number_after, spread

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

_LONGEST: Final = 4096
_PROFILED: Final = " in memory usage profiling"
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
)
_POOL: Final = "max tokens in paged KV cache ("
_GRAPHS: Final = ("context", "workspaces", "communication", "expert exchange", "CUDA graphs")
"""Parts of the plan that the log has outside torch."""


class TensorrtLog(Dialect):
    """Reads a log line by line. ``facts`` is what the last start of the engine stated; ``starts`` counts the starts."""

    name = "tensorrt-llm"
    title = "TensorRT-LLM's start-up log"
    engine = "tensorrt-llm"
    sought = (
        "available KV cache memory when calculating max tokens",
        "for max tokens in paged KV cache",
        "KV cache manager v2 device quota set to",
        "Memory used after loading model weights (inside torch)",
    )

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        text = text[:_LONGEST]
        if _SIZES[0][1] in text and "weights_bytes" in self.facts and "pool_bytes" in self.facts:
            self.facts.clear()
            self.starts += 1
        for name, wording in _SIZES:
            if name == "pool_bytes" and _POOL not in text:
                continue
            printed = number_after(text, wording)
            if printed is not None and printed.unit:
                self.facts.add_bytes(name, printed, line=number, text=text)
        for name, wording, unit in _COUNTS:
            printed = number_after(text, wording)
            if printed is not None and printed.decimals == 0 and printed.digits > 0:
                self.facts.add(name, printed.digits, line=number, text=text, unit=unit)
        tokens = number_after(text, _POOL)
        if tokens is not None and tokens.decimals == 0 and tokens.digits > 0:
            self.facts.add("tokens", tokens.digits, line=number, text=text, unit="tokens")
        share = number_after(text, "fraction is set")
        if share is not None and 0 < share.value < 1:
            self.facts.add("fraction", float(share.value), line=number, text=text, unit="share")

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The options that the log states."""
        options: dict[str, str] = {}
        block, share = self.facts.number("block_tokens"), self.facts.number("fraction")
        if block is not None:
            options["tokens_per_block"] = str(int(block))
        if share is not None:
            options["free_gpu_memory_fraction"] = f"{share:.6f}".rstrip("0")
        if "quota_bytes" in self.facts:
            options["manager"] = "v2"
        elif "tokens" in self.facts:
            options["manager"] = "v1"
        return {}, options

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        budget = occupancy.budget if occupancy.setup.hardware.gpu is not None else None
        rows: list[Row] = []

        def row(name: str, fact: Fact | None, predicted: Range | None, definition: str, meaning: str) -> None:
            rows.extend(compared(name, fact, predicted, tolerance, definition=definition, meaning=meaning))

        weights = occupancy.weights.value
        loaded = None if weights is None else _ends([(part.low, part.expected, part.high) for part in weights])
        row("weights", self.facts.last("weights_bytes"), loaded, "estimate", "weights of a rank")
        if budget is not None:
            row(
                "activation peak",
                self.facts.last("activation_bytes"),
                _section(budget),
                "estimate",
                "peak of a batch of dummy prompts",
            )
            outside = [(part.low, part.expected, part.high) for part in budget.parts if part.name in _GRAPHS]
            row(
                "outside torch",
                self.facts.last("non_torch_bytes"),
                _ends(outside),
                "estimate",
                "context, communication, CUDA graphs",
            )
            left = Range(low=max(0, budget.low), expected=max(0, budget.expected), high=max(0, budget.high))
            row("available", self.facts.last("available_bytes"), left, "estimate", "the share of what is left")
        each = occupancy.told(occupancy.pool(0))
        slope = None if each is None or each.bytes_per_token is None else each.bytes_per_token
        if slope:
            row("bytes per token", self.facts.last("token_bytes"), spread(slope), "engine", "what a token takes on a rank")
            tokens = self.facts.number("tokens")
            if tokens is not None:
                meaning = "max tokens of the pool x bytes of a token"
                row("pool", self.facts.last("pool_bytes"), spread(int(tokens) * slope), "engine", meaning)
        stated = self.facts.last("estimated_bytes") or self.facts.last("available_bytes")
        tokens_row = _tokens(stated, occupancy)
        row("tokens", self.facts.last("tokens"), tokens_row, "engine", "max tokens of the pool that the available memory holds")
        notes = []
        if tokens_row is None and "tokens" in self.facts and budget is None:
            message = "The log does not say how many bytes the cache has: name the GPU with --gpu."
            notes.append(Note(code="budget-unknown", message=message))
        return rows, notes

    def batch_shape(self, occupancy: Occupancy) -> tuple[int, int]:
        """Tokens and rows of the dummy batch."""
        tokens = occupancy.forward_tokens()[1]
        return tokens, -(-tokens // min(tokens, max(1, occupancy.tokens - 1)))

    def overheads(self, occupancy: Occupancy) -> dict[str, int]:
        """What a calibration keeps: the peak of the dummy batch."""
        found: dict[str, int] = {}
        activation = self.facts.number("activation_bytes")
        if activation is not None:
            found["activation_bytes"] = int(activation)
        return found


def _tokens(stated: Fact | None, occupancy: Occupancy) -> Range | None:
    """The tokens of the pool at both ends of a size that was rounded."""
    if stated is None or isinstance(stated.value, str):
        return None
    ends = [stated.value if end is None else end for end in (stated.low, stated.value, stated.high)]
    found = [pool.tokens for pool in (occupancy.told(occupancy.pool(int(end))) for end in ends) if pool is not None]
    low, expected, high = found
    if low is None or expected is None or high is None:
        return None
    return Range(low=low, expected=expected, high=high)


def _ends(parts: list[tuple[int, int, int]]) -> Range | None:
    if not parts:
        return None
    low, expected, high = (sum(part[end] for part in parts) for end in range(3))
    return Range(low=low, expected=expected, high=high)


def _section(budget: Budget) -> Range | None:
    return _ends([(part.low, part.expected, part.high) for part in budget.parts if part.section is Section.ACTIVATIONS])

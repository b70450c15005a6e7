"""The start-up log of vLLM: the V0 and V1 engines from 0.6 to 0.33, worker processes, and refusals to start.

Both "GB" and "GiB" are 2^30 bytes. Sources of the wordings: vLLM ``worker/worker.py``, ``executor/executor_base.py``,
``v1/worker/gpu_worker.py``, ``v1/core/kv_cache_utils.py``, ``v1/core/kv_cache_planning.py``, ``platforms/interface.py``, and the pull
requests and issues named in ``tests/logs/SOURCES.md``.
"""

from __future__ import annotations

from typing import Final

from hwcalc.reconcile.dialects.vllm_settings import read_arguments
from hwcalc.reconcile.facts import Facts, PrintedNumber, number_after, number_before

__all__ = ["NAME", "SOUGHT", "TITLE", "VllmParser"]

NAME: Final = "vllm"
TITLE: Final = "vLLM's start-up log"
SOUGHT: Final = (
    "Model loading took",
    "Available KV cache memory",
    "# GPU blocks",
    "GPU KV cache size",
    "Maximum concurrency for",
    "KV cache is needed",
)

# Texts before a number. If a fact has several wordings, the first one with a number counts.
_SIZES: Final = (
    ("weights_bytes", ("Model loading took", "Loading model weights took", "model weights take", "; weights memory:")),
    ("non_torch_bytes", ("non_torch_memory takes", "non_torch_memory", "non-torch forward increase memory")),
    (
        "activation_bytes",
        ("PyTorch activation peak memory takes", "PyTorch activation peak memory", "torch peak memory increase"),
    ),
    ("consumed_bytes", ("total consumed (from mem_get_info)",)),
    ("sleep_freed_bytes", ("Sleep mode freed", "sleep freed")),
    ("sleep_discarded_bytes", ("backed up in CPU and the rest",)),
    (
        "available_bytes",
        (
            "Available KV cache memory",
            "the rest of the memory reserved for KV Cache is",
            "available_kv_cache_memory",
            "kv_cache_size",
        ),
    ),
    ("total_bytes", ("total_gpu_memory",)),
    ("torch_peak_bytes", ("peak_torch_memory",)),
    ("requested_bytes", ("the current vLLM instance can use",)),
    ("graphs_estimated_bytes", ("Estimated CUDA graph memory",)),
    ("graphs_bytes", ("CUDA graph pool memory",)),
    ("pool_bytes", ("Current kv cache memory in use is",)),
)
# Texts after a number, as in "Actual usage is 8.8 GiB for weight, ...".
_SIZES_BEFORE: Final = (
    ("weights_bytes", " for weight"),
    ("consumed_bytes", " for consumed memory"),
    ("activation_bytes", " for peak activation"),
    ("sleep_kept_bytes", " memory is still in use"),
    ("sleep_backup_bytes", " is backed up in CPU"),
    ("non_torch_bytes", " for non-torch memory"),
    ("graphs_bytes", " for CUDAGraph memory"),
    ("graphs_bytes", " for NPU graph memory"),
)
_COUNTS: Final = (
    ("tokens", "GPU KV cache size", "tokens"),
    ("max_model_len", "Using max model len", "tokens"),
    ("attention_block_tokens", "Setting attention block size to", "tokens"),
    ("longest_tokens", "estimated maximum model length is", "tokens"),
    ("longest_tokens", "Estimated maximum model length is", "tokens"),
    ("stored_tokens", "maximum number of tokens that can be stored in KV cache", "tokens"),
    ("blocks", "exceeds available Mamba cache blocks", "blocks"),
    ("max_num_batched_tokens", "Chunked prefill is enabled with max_num_batched_tokens", "tokens"),
    ("num_gpu_blocks_override", "num_gpu_blocks_override", "blocks"),
)
_SHARES: Final = (
    ("Desired GPU memory utilization is", False),
    ("desired GPU memory utilization", False),
    ("gpu_memory_utilization", True),
)
"""Wordings of the requested share of memory, and whether it is rounded to two decimals."""
_DEVICES: Final = frozenset({"gpu", "cuda", "rocm", "hip", "xpu", "npu", "hpu"})
_POOL: Final = ("available_bytes", "blocks", "tokens", "needed_bytes", "stored_tokens", "no_memory", "total_bytes")
_LONGEST_MESSAGE: Final = 8192
"""Only lines with a configuration are longer."""
_WORDS: Final = (
    *(name for _, names in _SIZES for name in names),
    *(word for _, word in _SIZES_BEFORE),
    *(word for _, word, _ in _COUNTS),
    "blocks:",
    "Maximum concurrency for",
    "Padding mamba page size by",
    "Graph capturing finished",
    "Free memory on device",
    "esired GPU memory utilization",
    "gpu_memory_utilization",
    "KV cache is needed",
    "No available memory for the cache blocks",
    "max seq len",
    "synchronous scheduling is",
    "num_gpu_blocks is:",
    "GDN prefill kernel",
)
_GDN_KERNELS: Final = {"triton": "triton", "flashinfer": "flashinfer", "cutedsl": "cutedsl"}
"""A word of the name that vLLM prints -> the value of its option for the kernel."""


class VllmParser:
    """Reads a log line by line. ``facts`` is what the last start of the engine stated; ``starts`` counts the starts."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.starts = 1

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        begins = "non-default args" in text or ("Initializing a" in text and " engine (v" in text)
        if begins or "API server version" in text or " args: Namespace(" in text:
            rank = _rank(text, len(text))
            restarts = "non-default args" in text and any(name in self.facts for name in _POOL)
            if restarts or (begins and self.facts.has_of(_POOL, rank)):
                self._restart()
            read_arguments(self.facts, number, text)
            return
        text = text[:_LONGEST_MESSAGE]
        first = min((place for word in _WORDS if (place := text.find(word)) >= 0), default=-1)
        if first >= 0:
            self._message(number, text, _rank(text, first))

    def _restart(self) -> None:
        self.facts.clear()
        self.starts += 1

    def _message(self, number: int, text: str, rank: str | None) -> None:
        facts = self.facts
        for name, wordings in _SIZES:
            for wording in wordings:
                printed = number_after(text, wording)
                if printed is not None and printed.unit:
                    facts.add_bytes(name, printed, line=number, text=text, rank=rank)
                    break
        for name, wording in _SIZES_BEFORE:
            if wording in text:
                facts.add_bytes(name, number_before(text, wording), line=number, text=text, rank=rank)
        for name, wording, unit in _COUNTS:
            printed = number_after(text, wording)
            if printed is not None and printed.decimals == 0 and printed.digits > 0:
                facts.add(name, printed.digits, line=number, text=text, unit=unit, rank=rank)
        self._blocks(number, text, rank)
        self._kernel(number, text)
        self._concurrency(number, text, rank)
        self._device(number, text, rank)
        self._refusal(number, text, rank)
        if "Padding mamba page size by" in text:
            self._decimal("mamba_padding_percent", number_after(text, "Padding mamba page size by"), "%", number, text, rank)
        if "for consumed memory" in text and "activation_bytes" in facts:
            # From 0.27 on this line counts the estimate of graphs as activations, and what stays allocated as consumed.
            facts.add("activation_with_graphs", 1, line=number, text=text, rank=rank)
        if "CUDA graph pool memory" in text:
            facts.add_bytes("graphs_estimated_bytes", number_before(text, " (estimated)"), line=number, text=text, rank=rank)
        if "Graph capturing finished" in text:
            facts.add_bytes("graphs_bytes", number_after(text, ", took"), line=number, text=text, rank=rank)
        if "synchronous scheduling is" in text:
            facts.add("async_scheduling", "true" if "scheduling is enabled" in text else "false", line=number, text=text)

    def _decimal(self, name: str, printed: PrintedNumber | None, unit: str, number: int, text: str, rank: str | None) -> None:
        """Add a number that is rounded to at least two decimals."""
        if printed is not None:
            half = 0.5 / 10 ** max(2, printed.decimals)
            low, high = printed.value - half, printed.value + half
            self.facts.add(name, float(printed.value), line=number, text=text, unit=unit, low=low, high=high, rank=rank)

    def _blocks(self, number: int, text: str, rank: str | None) -> None:
        """Read ``# GPU blocks: 1952, # CPU blocks: 2048``; the name of the device varies."""
        place = text.find("blocks:")
        words = text[max(0, place - 20) : max(0, place)].replace("#", " ").split()
        printed = number_after(text, "blocks:") if place >= 0 else None
        if printed is not None and words and words[-1].lower() in _DEVICES and printed.decimals == 0 and printed.digits >= 0:
            self.facts.add("blocks", printed.digits, line=number, text=text, unit="blocks", rank=rank)
        # Several engines print one number for all of them together.
        stated = None if " Engines: vllm cache_config_info" in text else number_after(text, "num_gpu_blocks is")
        if stated is not None and stated.decimals == 0 and stated.digits > 0:
            self.facts.add("blocks", stated.digits, line=number, text=text, unit="blocks", rank=rank)

    def _kernel(self, number: int, text: str) -> None:
        """Read ``Using Triton/FLA GDN prefill kernel``: which kernel runs the prefill of gated delta nets."""
        before, found, _ = text.partition(" GDN prefill kernel")
        name = before.rpartition("Using ")[2].lower() if found else ""
        for word, value in _GDN_KERNELS.items():
            if name.startswith(word):
                self.facts.add("gdn_prefill_backend", value, line=number, text=text)

    def _concurrency(self, number: int, text: str, rank: str | None) -> None:
        """Read ``Maximum concurrency for 8,192 tokens per request: 4.61x``."""
        length = number_after(text, "Maximum concurrency for")
        if length is None or length.decimals or length.digits <= 0:
            return
        printed = number_after(text, "tokens per request", length.end - len(" tokens") if length.unit else length.end)
        if printed is not None and printed.unit == "x":
            self._decimal("concurrency", printed, "x", number, text, rank)
            self.facts.add("concurrency_tokens", length.digits, line=number, text=text, unit="tokens", rank=rank)

    def _device(self, number: int, text: str, rank: str | None) -> None:
        """Read ``Free memory on device (23.08/23.53 GiB) on startup``, and the requested share."""
        place = text.find("Free memory on device")
        if place >= 0:
            opening = text.find("(", place, place + 60)
            free = number_after(text, "(", opening) if opening >= 0 else None
            total = None if free is None else number_after(text, "/", free.end)
            if free is not None and total is not None and text[free.end : free.end + 1] == "/":
                sized = PrintedNumber(digits=free.digits, decimals=free.decimals, unit=total.unit, end=free.end)
                self.facts.add_bytes("free_bytes", sized, line=number, text=text, rank=rank)
                self.facts.add_bytes("total_bytes", total, line=number, text=text, rank=rank)
        for wording, rounded in _SHARES:
            share = number_after(text, wording)
            if share is None or not 0 < share.value <= 1:
                continue
            half = 0.005 if rounded else 0.0
            known = self.facts.last("gpu_memory_utilization")
            if known is None or known.low != known.high:
                value = float(share.value)
                self.facts.add(
                    "gpu_memory_utilization", value, line=number, text=text, unit="share", low=value - half, high=value + half
                )
            asked = number_after(text, "=" if rounded else ",", share.end)
            self.facts.add_bytes("requested_bytes", asked, line=number, text=text, rank=rank)

    def _refusal(self, number: int, text: str, rank: str | None) -> None:
        """Read why vLLM does not start: how much memory one request needs, and how much is available."""
        if "No available memory for the cache blocks" in text:
            self.facts.add("no_memory", 1, line=number, text=text, rank=rank)
        if "max seq len" in text:
            length = number_after(text, "max seq len")
            if length is not None and length.digits > 0:
                self.facts.add("max_model_len", length.digits, line=number, text=text, unit="tokens")
        if "KV cache is needed" in text:
            self.facts.add_bytes("needed_bytes", number_before(text, " KV cache is needed"), line=number, text=text, rank=rank)
            available = number_after(text, "available KV cache memory")
            self.facts.add_bytes("refused_bytes", available, line=number, text=text, rank=rank)


def _rank(text: str, before: int) -> str | None:
    """The process that wrote a line: the name in the last ``(Worker_TP1 pid=448)`` before the message."""
    place = text.rfind("pid=", 0, min(before, 400))
    opening = text.rfind("(", 0, place) if place >= 0 else -1
    if opening < 0 or place - opening > 60:
        return None
    name = text[opening + 1 : place].strip()
    if not name or name in ("APIServer", "EngineCore"):
        return None
    if any(letter.isdigit() for letter in name):
        return name
    digits = ""
    for letter in text[place + 4 : place + 16]:
        if not letter.isdecimal():
            break
        digits += letter
    return f"{name} {digits}"

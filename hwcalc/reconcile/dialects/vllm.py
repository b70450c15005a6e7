"""The start-up log of vLLM: the V0 and V1 engines from 0.6 to 0.33, worker processes, refusals to start.

The configuration stands in one line: as a dict, as a Namespace, or in the engine's own form. Both "GB" and "GiB" are 2^30 bytes. Sources of
the wordings: vLLM ``worker/worker.py``, ``executor/executor_base.py``, ``v1/worker/gpu_worker.py``, ``v1/core/kv_cache_utils.py``,
``v1/core/kv_cache_planning.py``, ``platforms/interface.py``, and the pull requests and issues named in ``tests/logs/SOURCES.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.model import Note
from hwcalc.reconcile.dialects.vllm_rows import Pools, clipped, equation_rows, layout_rows, pool_rows, pools_of
from hwcalc.reconcile.facts import (
    Dialect,
    Facts,
    PrintedNumber,
    Row,
    add_device,
    compared,
    named_budget,
    number_after,
    number_at,
    number_before,
)

NUMBERS: Final[Mapping[str, str]] = {
    "max_model_len": "max_model_len", "max_seq_len": "max_model_len", "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size", "data_parallel_size": "data_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size", "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs", "block_size": "block_size", "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
}  # fmt: skip
"""Name in the line -> fact, for whole numbers."""
WORDS: Final[Mapping[str, str]] = {
    "model": "model", "model_tag": "model", "kv_cache_dtype": "kv_cache_dtype", "dtype": "dtype", "quantization": "quantization",
    "enable_prefix_caching": "enable_prefix_caching", "async_scheduling": "async_scheduling",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager", "enable_expert_parallel": "enable_expert_parallel",
    "chunked_prefill_enabled": "chunked_prefill_enabled", "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype", "enforce_eager": "enforce_eager", "all2all_backend": "all2all_backend",
    "gdn_prefill_backend": "gdn_prefill_backend", "language_model_only": "language_model_only",
}  # fmt: skip
"""Name in the line -> fact, for words."""
_FLOAT_DTYPES: Final = frozenset({"float16", "bfloat16", "float32"})
_OPTIONS: Final = (
    "block_size", "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override", "enable_prefix_caching",
    "async_scheduling", "disable_hybrid_kv_cache_manager", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "dtype", "speculative",
    "gdn_prefill_backend",
)  # fmt: skip
_KEYWORDS: Final = {
    "seq": ("max_model_len", "concurrency_tokens"), "tp": ("tensor_parallel_size",), "pp": ("pipeline_parallel_size",),
    "dp": ("data_parallel_size",), "dcp": ("decode_context_parallel_size",), "memory_utilization": ("gpu_memory_utilization",),
}  # fmt: skip
"""Keyword of a plan -> facts that state it, the best first."""
_ONLINE: Final = {"fp8": "fp8", "bitsandbytes": "bnb4"}
"""``quantization`` -> weight format, for formats into which vLLM can convert unquantized weights while it loads them."""
_LONGEST_WORD: Final = 300
_VERSION: Final = re.compile(
    r"(?: engine \(v|API server version v?)([0-9]{1,3}(?![0-9])(?:\.[0-9]{1,3}(?![0-9])){1,3})", re.ASCII
)
"""The release, such as 0.11.1 in ``engine (v0.11.1rc2.dev141+g38f225c2a)`` or ``API server version 0.8.5``."""


def read_arguments(facts: Facts, text: str) -> None:
    """Add a fact for every setting in this line that a plan depends on."""
    for name, fact in NUMBERS.items():
        place = _place(text, name)
        facts.add_count(fact, None if place < 0 else number_at(text, place))
    place = _place(text, "gpu_memory_utilization")
    share = None if place < 0 else number_at(text, place)
    if share is not None and 0 < share.value <= 1:
        facts.add("gpu_memory_utilization", float(share.value), "share")
    for name, fact in WORDS.items():
        set_word(facts, fact, _word(text, name))
    _speculation(facts, text)
    _limits(facts, text)
    if "pooler_config=PoolerConfig(" in text or "runner_type='pooling'" in text:
        facts.add("pooling", 1)
    version = _VERSION.search(text)
    # A build from a clone without tags calls itself 0.1.dev1.
    if version is not None and not text.startswith(".dev", version.end(1)):
        facts.add("version", ".".join(str(int(part)) for part in version[1].split(".")))
    if "Initializing an LLM engine" in text or "Initializing a V0 LLM engine" in text:
        facts.add("engine_core", "v0")


def set_word(facts: Facts, name: str, word: str) -> None:
    """Add a word in the spelling of options; ``None`` and the like are left out."""
    short = word.removeprefix("torch.")
    if short.lower() not in ("none", "null", ""):
        facts.add(name, short if name == "model" else short.lower())


def _place(text: str, name: str) -> int:
    """The position of the value after ``name=``, ``'name':`` or ``"name":``; -1 if the text has none of them."""
    for written in (f"{name}=", f"'{name}':", f'"{name}":'):
        place = text.find(written)
        while place >= 0:
            before = text[place - 1] if place else " "
            if not (before.isalnum() or before in "_."):
                return place + len(written)
            place = text.find(written, place + 1)
    return -1


def _word(text: str, name: str) -> str:
    """The word after ``name``, with or without quotes; empty if there is none."""
    place = _place(text, name)
    rest = text[place : place + _LONGEST_WORD].lstrip() if place >= 0 else ""
    if rest[:1] in ("'", '"'):
        return rest[1:].partition(rest[0])[0]
    return _END_OF_WORD.split(rest, maxsplit=1)[0]


def _limits(facts: Facts, text: str) -> None:
    """Read ``limit_mm_per_prompt`` where it takes nothing of some kind: ``{'image': 0, 'audio': 0}``."""
    place = _place(text, "limit_mm_per_prompt")
    written = _LIMITS.match(text, place) if place >= 0 else None
    if written is not None and any(word.strip(" '\"").endswith(("0", "0}")) for word in written[1].split(",")):
        facts.add("limit_mm_per_prompt", written[1])


_LIMITS: Final = re.compile(r"\s{0,9}(\{(?:\s{0,9}['\"][a-z_]{1,20}['\"]: {0,9}[0-9]{1,9},?){1,9}\})")


def _speculation(facts: Facts, text: str) -> None:
    """Read ``speculative_config``: the method and the number of draft tokens, as the engine option spells them."""
    place = _place(text, "speculative_config")
    if place < 0 or text[place : place + 6].strip().startswith("None"):
        return
    part = text[place : place + 2000]
    method, draft = _word(part, "method").lower(), _word(part, "model")
    places = (_place(part, name) for name in ("num_speculative_tokens", "num_spec_tokens"))
    printed = (number_at(part, place) for place in places if place >= 0)
    count = next((one.digits for one in printed if one is not None and not one.decimals and one.digits > 0), None)
    if count is None or not method:
        return
    if method == "ngram" or method.endswith("mtp"):
        facts.add("speculative", f"{'ngram' if method == 'ngram' else 'mtp'}:{count}")
    elif draft and draft.lower() != "none":
        facts.add("speculative", f"{'eagle' if method.startswith('eagle') else 'draft'}:{draft}:{count}")


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
    ("weights_bytes", " for weight"), ("consumed_bytes", " for consumed memory"), ("activation_bytes", " for peak activation"),
    ("sleep_kept_bytes", " memory is still in use"), ("sleep_backup_bytes", " is backed up in CPU"),
    ("non_torch_bytes", " for non-torch memory"), ("graphs_bytes", " for CUDAGraph memory"),
    ("graphs_bytes", " for NPU graph memory"),
)  # fmt: skip
_COUNTS: Final = (
    ("tokens", "GPU KV cache size", "tokens"),
    ("max_model_len", "Using max model len", "tokens"),
    ("attention_block_tokens", "Setting attention block size to", "tokens"),
    ("longest_tokens", "estimated maximum model length is", "tokens"),
    ("longest_tokens", "Estimated maximum model length is", "tokens"),
    ("stored_tokens", "maximum number of tokens that can be stored in KV cache", "tokens"),
    ("blocks", "exceeds available Mamba cache blocks", "blocks"),
    ("max_num_batched_tokens", "Chunked prefill is enabled with max_num_batched_tokens", "tokens"),
)
_SIZES_OF_POOL: Final = "Available KV cache memory"
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
    *(name for _, names in _SIZES for name in names), *(word for _, word in _SIZES_BEFORE), *(word for _, word, _ in _COUNTS), "num_gpu_blocks_override",
    "blocks:", "Maximum concurrency for", "Padding mamba page size by", "Graph capturing finished", "Free memory on device",
    "esired GPU memory utilization", "gpu_memory_utilization", "KV cache is needed", "No available memory for the cache blocks",
    "max seq len", "synchronous scheduling is", "num_gpu_blocks is:", "GDN prefill kernel",
)  # fmt: skip
_GDN_KERNELS: Final = ("triton", "flashinfer", "cutedsl")
"""Words with which the name begins that vLLM prints: values of its option for the kernel."""
_END_OF_WORD: Final = re.compile(r"[,)}\] ;]")
_PID: Final = re.compile(r"\d{1,12}")


class VllmLog(Dialect):
    """Reads a log line by line."""

    name = "vllm"
    engine = "vllm"
    longest = 256 * 1024
    sought: ClassVar[tuple[str, ...]] = (
        "Model loading took",
        "Available KV cache memory",
        "# GPU blocks",
        "GPU KV cache size",
        "Maximum concurrency for",
        "KV cache is needed",
    )
    states_version = True

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        begins = "non-default args" in text or ("Initializing a" in text and " engine (v" in text)
        if begins or "API server version" in text or " args: Namespace(" in text:
            restarts = "non-default args" in text and any(name in self.facts for name in _POOL)
            if restarts or (begins and any(self.facts.of(name, _rank(text, len(text))) for name in _POOL)):
                self.restart()
            read_arguments(self.facts, text)
            return
        self.facts.text = text = text[:_LONGEST_MESSAGE]
        if "device_name=" in text:
            add_device(self.facts, text)
        if "WSL is detected" in text:
            self.facts.add("wsl", 1)
        if "[rocm.py:" in text:
            self.facts.add("rocm", 1)
        first = min((place for word in _WORDS if (place := text.find(word)) >= 0), default=-1)
        if first >= 0:
            self._message(text, _rank(text, first))

    def _message(self, text: str, rank: str | None) -> None:
        facts = self.facts
        for name, wordings in _SIZES:
            sizes = (number_after(text, wording) for wording in wordings)
            facts.add_bytes(name, next((size for size in sizes if size is not None and size.unit), None), rank=rank)
        for name, wording in _SIZES_BEFORE:
            facts.add_bytes(name, number_before(text, wording), rank=rank)
        if _SIZES_OF_POOL in text:
            # What follows is counted anew.
            facts.forget(("tokens", "concurrency"), rank)
        for name, wording, unit in _COUNTS:
            if name != "tokens":
                facts.add_count(name, number_after(text, wording), unit, rank=rank)
        self._override(text)
        self._tokens(text, rank)
        self._blocks(text, rank)
        self._concurrency(text, rank)
        self._device(text, rank)
        # Which kernel runs the prefill of gated delta nets: ``Using Triton/FLA GDN prefill kernel``.
        before, kernel, _ = text.partition(" GDN prefill kernel")
        for word in _GDN_KERNELS if kernel else ():
            if before.rpartition("Using ")[2].lower().startswith(word):
                facts.add("gdn_prefill_backend", word)
        # Why vLLM does not start: how much memory one request needs, and how much is available.
        if "No available memory for the cache blocks" in text:
            facts.add("no_memory", 1, rank=rank)
        length = number_after(text, "max seq len")
        if length is not None and length.digits > 0:
            facts.add("max_model_len", length.digits, "tokens")
        if "KV cache is needed" in text:
            facts.add_bytes("needed_bytes", number_before(text, " KV cache is needed"), rank=rank)
            facts.add_bytes("refused_bytes", number_after(text, "available KV cache memory"), rank=rank)
        self._decimal("mamba_padding_percent", number_after(text, "Padding mamba page size by"), "%", rank)
        if "for consumed memory" in text and "activation_bytes" in facts:
            # From 0.27 on this line counts the estimate of graphs as activations, and what stays allocated as consumed.
            facts.add("activation_with_graphs", 1, rank=rank)
        if "CUDA graph pool memory" in text:
            facts.add_bytes("graphs_estimated_bytes", number_before(text, " (estimated)"), rank=rank)
        if "Graph capturing finished" in text:
            facts.add_bytes("graphs_bytes", number_after(text, ", took"), rank=rank)
        if "synchronous scheduling is" in text:
            facts.add("async_scheduling", "true" if "scheduling is enabled" in text else "false")

    def _decimal(self, name: str, printed: PrintedNumber | None, unit: str, rank: str | None) -> None:
        """Add a number that is rounded to at least two decimals."""
        if printed is not None:
            half = 0.5 / 10 ** max(2, printed.decimals)
            self.facts.add(name, float(printed.value), unit, low=printed.value - half, high=printed.value + half, rank=rank)

    def _override(self, text: str) -> None:
        """Read the number of blocks with which a user replaces the planned one.

        ``Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512`` is vLLM's own: it profiles CUDA graphs with so few blocks.
        """
        replaced = number_after(text, "Overriding num_gpu_blocks=")
        if replaced is None or replaced.digits > 0:
            self.facts.add_count("num_gpu_blocks_override", number_after(text, "num_gpu_blocks_override"), "blocks")

    def _tokens(self, text: str, rank: str | None) -> None:
        """Read ``GPU KV cache size: 3,644,816 tokens``. One process may print a line for each rank: the least counts."""
        printed, old = number_after(text, "GPU KV cache size"), self.facts.of("tokens", rank)
        if printed is not None and (old is None or isinstance(old.value, str) or printed.digits <= old.value):
            self.facts.add_count("tokens", printed, "tokens", rank=rank)

    def _blocks(self, text: str, rank: str | None) -> None:
        """Read ``# GPU blocks: 1952, # CPU blocks: 2048``; the name of the device varies."""
        place = text.find("blocks:")
        words = text[max(0, place - 20) : max(0, place)].replace("#", " ").split()
        if words and words[-1].lower() in _DEVICES:
            self.facts.add_count("blocks", number_after(text, "blocks:"), "blocks", least=0, rank=rank)
        # Several engines print one number for all of them together.
        if " Engines: vllm cache_config_info" not in text:
            self.facts.add_count("blocks", number_after(text, "num_gpu_blocks is"), "blocks", rank=rank)

    def _concurrency(self, text: str, rank: str | None) -> None:
        """Read ``Maximum concurrency for 8,192 tokens per request: 4.61x``."""
        length = number_after(text, "Maximum concurrency for")
        if length is None or length.decimals or length.digits <= 0:
            return
        printed = number_after(text, "tokens per request", length.end - len(" tokens") if length.unit else length.end)
        old = self.facts.of("concurrency", rank)
        least = old is None or isinstance(old.value, str) or (printed is not None and printed.value <= old.value)
        if printed is not None and printed.unit == "x" and least:
            self._decimal("concurrency", printed, "x", rank)
            self.facts.add("concurrency_tokens", length.digits, "tokens", rank=rank)

    def _device(self, text: str, rank: str | None) -> None:
        """Read ``Free memory on device (23.08/23.53 GiB) on startup``, and the requested share."""
        facts, place = self.facts, text.find("Free memory on device")
        opening = text.find("(", place, place + 60) if place >= 0 else -1
        free = number_after(text, "(", opening) if opening >= 0 else None
        total = None if free is None else number_after(text, "/", free.end)
        if free is not None and total is not None and text[free.end : free.end + 1] == "/":
            facts.add_bytes("free_bytes", replace(free, unit=total.unit), rank=rank)
            facts.add_bytes("total_bytes", total, rank=rank)
        for wording, rounded in _SHARES:
            share = number_after(text, wording)
            if share is None or not 0 < share.value <= 1:
                continue
            known = facts.last("gpu_memory_utilization")
            if known is None or known.low != known.high:
                value, half = float(share.value), 0.005 if rounded else 0.0
                facts.add("gpu_memory_utilization", value, "share", low=value - half, high=value + half)
            facts.add_bytes("requested_bytes", number_after(text, "=" if rounded else ",", share.end), rank=rank)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        from hwcalc.engines.vllm.engine import BACK_ENDS

        facts = self.facts
        stated: dict[str, object] = {}
        for keyword, names in _KEYWORDS.items():
            value = next((number for name in names if (number := facts.number(name)) is not None), None)
            if value is not None:
                stated[keyword] = value
        word = facts.word("kv_cache_dtype")
        if word is not None and word != "auto":
            stated["dtype"] = word
        if facts.word("enable_expert_parallel") == "true":
            ranks = int(facts.number("tensor_parallel_size") or 1) * int(facts.number("data_parallel_size") or 1)
            if ranks > 1:
                stated["ep"] = ranks
        options: dict[str, str] = {}
        for name in _OPTIONS:
            fact = facts.last(name)
            if fact is not None and (name != "dtype" or fact.value in _FLOAT_DTYPES):
                options[name] = str(fact.value)
        # These are off by default, and stated to the plan only if they are on.
        options |= {name: "true" for name in ("enforce_eager", "language_model_only") if facts.word(name) == "true"}
        limits = facts.word("limit_mm_per_prompt")
        if limits is not None:
            options["limit_mm_per_prompt"] = limits
        back_end = facts.word("all2all_backend")
        if back_end in BACK_ENDS:
            options["all2all_backend"] = back_end
        self._batches(stated, options)
        return stated, options

    def _batches(self, stated: Mapping[str, object], options: dict[str, str]) -> None:
        """Add batches that do not depend on the GPU: those of V0, and those of prompts that are not cut into chunks."""
        from hwcalc.engines.vllm.settings import V0_SEQUENCES, v0_batch

        v0 = self.facts.word("engine_core") == "v0"
        if v0:
            options.setdefault("max_num_seqs", str(V0_SEQUENCES))
        if "max_num_batched_tokens" in options or "seq" not in stated:
            return
        seq = int(str(stated["seq"]))
        if self.facts.word("chunked_prefill_enabled") == "false":
            # Without chunks a prompt is one batch, so the batch must hold the longest prompt.
            options["max_num_batched_tokens"] = str(max(v0_batch(0, "0.7"), seq))
        elif v0:
            options["max_num_batched_tokens"] = str(v0_batch(seq, self.facts.word("version") or "0.7"))

    def online_format(self) -> str | None:
        """The format into which vLLM converts unquantized weights, if the log states one."""
        return _ONLINE.get(self.facts.word("quantization") or "")

    def compare(self, occupancy: VllmOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        facts, budget = self.facts, named_budget(occupancy)
        equation, notes = equation_rows(facts, occupancy, budget, tolerance), list[Note]()
        if "pooling" in facts:
            equation = [row for row in equation if row.definition == "profile"]
            message = "The log is of a model that embeds, without head and sampler: kvplan plans models that generate, so only the pool is compared."
            notes.append(Note(code="other-task", message=message))
        rows = [*equation, *layout_rows(facts, occupancy)]
        if facts.word("engine_core") == "v0" and occupancy.settings.rules.engine != "V0":
            message = (
                "The log is of the older engine (V0), whose rules kvplan knows for releases before 0.8: what follows is V1's."
            )
            notes.append(Note(code="other-engine", message=message))
        pools = pools_of(facts, occupancy, budget)
        if pools is None:
            if any(name in facts for name in ("tokens", "blocks", "concurrency", "needed_bytes")):
                notes.append(self.without_budget)
            return rows, notes
        rows += pool_rows(facts, occupancy, pools, tolerance)
        if pools.base == "blocks" and budget is not None:
            # The pool was planned from the log's blocks, so these are compared with the blocks that the GPU has room for.
            room = Pools.of(occupancy, clipped(budget), "equation").range(lambda pool: pool.blocks)
            meaning = "what the equation leaves for the cache / bytes of a block"
            rows += compared("blocks", facts.smallest("blocks"), room, tolerance, "estimate", meaning)
        if occupancy.setup.hardware.gpu is None and "available_bytes" in facts:
            message = (
                "Without a GPU only weights and pool are compared: name it with --gpu for activations, overheads and the budget."
            )
            notes.append(Note(code="no-gpu", message=message))
        if occupancy.setup.parallel.pp > 1:
            message = (
                "The pool is that of the rank with the smallest budget; the pipeline stage with the widest blocks is planned."
            )
            notes.append(Note(code="smallest-rank", message=message))
        return rows, notes

    def overheads(self, occupancy: VllmOccupancy) -> dict[str, int]:
        """The overheads that the log measured, as a calibration saves them: bytes of the fullest rank."""
        from hwcalc.engines.vllm.settings import graphs_subtracted

        facts = self.facts
        out: dict[str, int] = {}
        estimated = graphs_subtracted(occupancy.deployment.version) and "graphs_estimated_bytes" in facts
        graphs = "graphs_estimated_bytes" if estimated else "graphs_bytes"
        stated = {"non_torch_bytes": "non_torch_bytes", "activation_bytes": "activation_bytes", "graphs_bytes": graphs}
        for value, name in stated.items():
            fact = facts.largest(name)
            if fact is not None and not isinstance(fact.value, str) and fact.value >= 0:
                out[value] = int(fact.value)
        consumed, weights = facts.largest("consumed_bytes"), facts.largest("weights_bytes")
        if "non_torch_bytes" not in out and consumed is not None and weights is not None:
            rest = int(consumed.value) - int(weights.value)
            if rest >= 0:
                out["non_torch_bytes"] = rest
        total, free = facts.last("total_bytes"), facts.last("free_bytes")
        if total is not None and free is not None and total.rank == free.rank and int(total.value) >= int(free.value):
            out["context_bytes"] = int(total.value) - int(free.value)
        return out

    def batch_shape(self, occupancy: VllmOccupancy) -> tuple[int, int]:
        """Tokens of one forward pass and rows of logits of the profile run."""
        from hwcalc.engines.vllm.memory import profile_run

        settings = occupancy.settings
        run = profile_run(occupancy, settings.sequences, settings.batched_tokens)
        return run.tokens, run.rows


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
    digits = _PID.match(text, place + 4)
    return f"{name} {'' if digits is None else digits[0]}"

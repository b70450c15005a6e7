"""The start-up log of vLLM: the V0 and V1 engines from 0.6 to 0.33, worker processes, refusals to start.

The configuration stands in one line: as a dict, as a Namespace, or in the engine's own form. Both "GB" and "GiB" are 2^30 bytes. Sources of
the wordings: vLLM ``worker/worker.py``, ``executor/executor_base.py``, ``v1/worker/gpu_worker.py``, ``v1/core/kv_cache_utils.py``,
``v1/core/kv_cache_planning.py``, ``platforms/interface.py``, and the pull requests and issues named in ``tests/logs/SOURCES.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.reconcile.dialects import vllm_rows
from hwcalc.reconcile.dialects.dialect import Dialect
from hwcalc.reconcile.facts import Facts, PrintedNumber, number_after, number_at, number_before

if TYPE_CHECKING:
    from hwcalc.engines.vllm.deployment import VllmOccupancy
    from hwcalc.model import Note
    from hwcalc.reconcile.facts import Row

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
    "gdn_prefill_backend": "gdn_prefill_backend",
}  # fmt: skip
"""Name in the line -> fact, for words."""
_FLOAT_DTYPES: Final = frozenset({"float16", "bfloat16", "float32"})
_OPTIONS: Final = (
    "block_size", "max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override", "enable_prefix_caching",
    "async_scheduling", "disable_hybrid_kv_cache_manager", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "dtype", "speculative",
    "gdn_prefill_backend",
)  # fmt: skip
_SWITCHED_ON: Final = ("enforce_eager",)
"""Switches that are off by default, and are stated to the plan only if they are on."""
_ONLINE: Final = {"fp8": "fp8", "bitsandbytes": "bnb4"}
"""``quantization`` -> weight format, for formats into which vLLM can convert unquantized weights while it loads them."""
_LONGEST_WORD: Final = 300
_LONGEST_VERSION: Final = 4
"""Numbers of a version such as 0.9.0.1."""


def read_arguments(facts: Facts, number: int, text: str) -> None:
    """Add a fact for every setting in this line that a plan depends on."""
    for name, fact in NUMBERS.items():
        printed = None if (place := _place(text, name)) < 0 else number_at(text, place)
        if printed is not None and printed.decimals == 0 and printed.digits > 0:
            facts.add(fact, printed.digits, line=number, text=text)
    place = _place(text, "gpu_memory_utilization")
    share = None if place < 0 else number_at(text, place)
    if share is not None and 0 < share.value <= 1:
        facts.add("gpu_memory_utilization", float(share.value), line=number, text=text, unit="share")
    for name, fact in WORDS.items():
        word = _word(text, name)
        if word:
            set_word(facts, fact, word, number, text)
    _speculation(facts, number, text)
    version = _version(text)
    if version:
        facts.add("version", version, line=number, text=text)
    if "Initializing an LLM engine" in text or "Initializing a V0 LLM engine" in text:
        facts.add("engine_core", "v0", line=number, text=text)


def set_word(facts: Facts, name: str, word: str, line: int, text: str) -> None:
    """Add a word in the spelling of options; ``None`` and the like are left out."""
    short = word.removeprefix("torch.")
    lowered = short.lower()
    if lowered in ("none", "null", ""):
        return
    value = short if name == "model" else lowered
    facts.add(name, value, line=line, text=text)


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
    place = _place(text, name)
    if place < 0:
        return ""
    rest = text[place : place + _LONGEST_WORD].lstrip()
    if rest[:1] in ("'", '"'):
        return rest[1:].partition(rest[0])[0]
    for index, letter in enumerate(rest):
        if letter in ",)}] ;":
            return rest[:index]
    return rest


def _version(text: str) -> str:
    """The release, such as ``0.11.1``, in ``engine (v0.11.1rc2.dev141+g38f225c2a)`` or ``API server version 0.8.5``."""
    for written in (" engine (v", "API server version v", "API server version "):
        place = text.find(written)
        if place < 0:
            continue
        parts: list[str] = []
        for part in text[place + len(written) : place + len(written) + 40].split("."):
            digits = _leading_digits(part)
            if not digits or len(digits) > 3 or len(parts) == _LONGEST_VERSION:
                break
            parts.append(str(int(digits)))
            after = part[len(digits) :]
            if after:
                break
        if len(parts) > 1:
            return ".".join(parts)
    return ""


def _leading_digits(text: str) -> str:
    out = ""
    for letter in text:
        if not letter.isascii() or not letter.isdecimal():
            break
        out += letter
    return out


def _speculation(facts: Facts, number: int, text: str) -> None:
    """Read ``speculative_config``: the method and the number of draft tokens, as the engine option spells them."""
    place = _place(text, "speculative_config")
    if place < 0 or text[place : place + 6].strip().startswith("None"):
        return
    part = text[place : place + 2000]
    method = _word(part, "method").lower()
    count = -1
    for name in ("num_speculative_tokens", "num_spec_tokens"):
        where = _place(part, name)
        printed = None if where < 0 else number_at(part, where)
        if printed is not None and not printed.decimals and printed.digits > 0:
            count = printed.digits
            break
    if count < 0 or not method:
        return
    draft = _word(part, "model")
    if method == "ngram" or method.endswith("mtp"):
        facts.add("speculative", f"{'ngram' if method == 'ngram' else 'mtp'}:{count}", line=number, text=text)
    elif draft and draft.lower() != "none":
        facts.add("speculative", f"{'eagle' if method.startswith('eagle') else 'draft'}:{draft}:{count}", line=number, text=text)


def _batches(facts: Facts, stated: Mapping[str, object], options: dict[str, str]) -> None:
    """Batches that do not depend on the GPU: those of V0, and those of prompts that are not cut into chunks."""
    from hwcalc.engines.vllm.settings import V0_SEQUENCES, v0_batch

    v0 = facts.word("engine_core") == "v0"
    if v0:
        options.setdefault("max_num_seqs", str(V0_SEQUENCES))
    if "max_num_batched_tokens" in options or "seq" not in stated:
        return
    seq = int(str(stated["seq"]))
    if facts.word("chunked_prefill_enabled") == "false":
        # Without chunks a prompt is one batch, so the batch must hold the longest prompt.
        options["max_num_batched_tokens"] = str(max(v0_batch(0, "0.7"), seq))
    elif v0:
        options["max_num_batched_tokens"] = str(v0_batch(seq, facts.word("version") or "0.7"))


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
    *(name for _, names in _SIZES for name in names), *(word for _, word in _SIZES_BEFORE), *(word for _, word, _ in _COUNTS),
    "blocks:", "Maximum concurrency for", "Padding mamba page size by", "Graph capturing finished", "Free memory on device",
    "esired GPU memory utilization", "gpu_memory_utilization", "KV cache is needed", "No available memory for the cache blocks",
    "max seq len", "synchronous scheduling is", "num_gpu_blocks is:", "GDN prefill kernel",
)  # fmt: skip
_GDN_KERNELS: Final = {"triton": "triton", "flashinfer": "flashinfer", "cutedsl": "cutedsl"}
"""A word of the name that vLLM prints -> the value of its option for the kernel."""


class VllmLog(Dialect):
    """Reads a log line by line. ``facts`` is what the last start of the engine stated; ``starts`` counts the starts."""

    name = "vllm"
    title = "vLLM's start-up log"
    engine = "vllm"
    sought: ClassVar[tuple[str, ...]] = (
        "Model loading took",
        "Available KV cache memory",
        "# GPU blocks",
        "GPU KV cache size",
        "Maximum concurrency for",
        "KV cache is needed",
    )
    states_version = True

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

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The keywords of a plan and the engine options that the log states."""
        from hwcalc.engines.vllm.engine import BACK_ENDS

        names = {
            "seq": "max_model_len",
            "tp": "tensor_parallel_size",
            "pp": "pipeline_parallel_size",
            "dp": "data_parallel_size",
            "dcp": "decode_context_parallel_size",
            "memory_utilization": "gpu_memory_utilization",
        }
        stated: dict[str, object] = {}
        for keyword, name in names.items():
            value = self.facts.number(name)
            if value is None and name == "max_model_len":
                value = self.facts.number("concurrency_tokens")
            if value is not None:
                stated[keyword] = value
        word = self.facts.word("kv_cache_dtype")
        if word is not None and word != "auto":
            stated["dtype"] = word
        if self.facts.word("enable_expert_parallel") == "true":
            ranks = int(self.facts.number("tensor_parallel_size") or 1) * int(self.facts.number("data_parallel_size") or 1)
            if ranks > 1:
                stated["ep"] = ranks
        options: dict[str, str] = {}
        for name in _OPTIONS:
            fact = self.facts.last(name)
            if fact is None or (name == "dtype" and fact.value not in _FLOAT_DTYPES):
                continue
            options[name] = str(fact.value)
        options |= {name: "true" for name in _SWITCHED_ON if self.facts.word(name) == "true"}
        back_end = self.facts.word("all2all_backend")
        if back_end in BACK_ENDS:
            options["all2all_backend"] = back_end
        _batches(self.facts, stated, options)
        return stated, options

    def online_format(self) -> str | None:
        """The format into which vLLM converts unquantized weights, if the log states one."""
        return _ONLINE.get(self.facts.word("quantization") or "")

    def compare(self, occupancy: VllmOccupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the log and the plan have, and notes about what could not be compared."""
        return vllm_rows.compare(self.facts, occupancy, tolerance)

    def overheads(self, occupancy: VllmOccupancy) -> dict[str, int]:
        """The overheads that the log measured, as a calibration saves them: bytes of the fullest rank."""
        return vllm_rows.overheads(self.facts, occupancy)

    def batch_shape(self, occupancy: VllmOccupancy) -> tuple[int, int]:
        """Tokens of one forward pass and rows of logits of the profile run."""
        return vllm_rows.batch_shape(occupancy)


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

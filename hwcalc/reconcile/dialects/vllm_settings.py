"""The configuration that vLLM prints in one line: as a dict, as a Namespace, or in the engine's own form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hwcalc.reconcile.facts import Facts, number_at

__all__ = ["NUMBERS", "WORDS", "plan_inputs", "read_arguments", "set_word"]

NUMBERS: Final[Mapping[str, str]] = {
    "max_model_len": "max_model_len",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "block_size": "block_size",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
}
"""Name in the line -> fact, for whole numbers."""
WORDS: Final[Mapping[str, str]] = {
    "model": "model",
    "model_tag": "model",
    "kv_cache_dtype": "kv_cache_dtype",
    "dtype": "dtype",
    "quantization": "quantization",
    "enable_prefix_caching": "enable_prefix_caching",
    "async_scheduling": "async_scheduling",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
    "enable_expert_parallel": "enable_expert_parallel",
    "chunked_prefill_enabled": "chunked_prefill_enabled",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    "enforce_eager": "enforce_eager",
    "all2all_backend": "all2all_backend",
    "gdn_prefill_backend": "gdn_prefill_backend",
}
"""Name in the line -> fact, for words."""
_FLOAT_DTYPES: Final = frozenset({"float16", "bfloat16", "float32"})
_OPTIONS: Final = (
    "block_size",
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "dtype",
    "speculative",
    "gdn_prefill_backend",
)
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


def plan_inputs(facts: Facts) -> tuple[dict[str, object], dict[str, str]]:
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
        value = facts.number(name)
        if value is None and name == "max_model_len":
            value = facts.number("concurrency_tokens")
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
        if fact is None or (name == "dtype" and fact.value not in _FLOAT_DTYPES):
            continue
        options[name] = str(fact.value)
    options |= {name: "true" for name in _SWITCHED_ON if facts.word(name) == "true"}
    back_end = facts.word("all2all_backend")
    if back_end in BACK_ENDS:
        options["all2all_backend"] = back_end
    _batches(facts, stated, options)
    return stated, options


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


def online_format(facts: Facts) -> str | None:
    """The format into which vLLM converts unquantized weights, if the log states one."""
    return _ONLINE.get(facts.word("quantization") or "")

"""The formats of traces: what each is, whose, how a file of it is known by its content, and how it is read."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from msgspec import Struct

from hwcalc.errors import TraceError, UsageError
from hwcalc.text import quoted, shown
from hwcalc.workload.columns import Rules, simple
from hwcalc.workload.reading import START_BYTES, read_start


class TraceFormat(Struct, frozen=True):
    """A format of traces. ``kind`` says how a file is read: csv, jsonl, parquet, runs (results of a benchmark) or conversations."""

    name: str
    kind: str
    label: str
    source: str = ""
    licence: str = ""
    rules: Rules = Rules()


FORMATS: Final = (
    TraceFormat(
        "azure", "csv", "Azure LLM inference traces of 2023 and 2024", "github.com/Azure/AzurePublicDataset", "CC-BY 4.0"
    ),
    TraceFormat(
        "burstgpt", "csv", "BurstGPT", "github.com/HPMLL/BurstGPT", "CC-BY 4.0", Rules(leaves_failures_out=True)
    ),
    TraceFormat(
        "mooncake", "jsonl", "Mooncake (FAST 2025)", "github.com/kvcache-ai/Mooncake", "Apache-2.0",
        Rules(arrival_unit_s=0.001, hash_block_tokens=512),
    ),
    TraceFormat(
        "qwen-bailian", "jsonl", "Qwen-Bailian (ATC 2025)", "github.com/alibaba-edu/qwen-bailian-usagetraces-anon", "Apache-2.0",
        Rules(hash_block_tokens=16),
    ),
    TraceFormat(
        "sharegpt", "conversations", "ShareGPT conversations", "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        "Apache-2.0, as its page says",
    ),
    TraceFormat("vllm-bench", "runs", "a result of vllm bench serve", "github.com/vllm-project/vllm: vllm/benchmarks/serve.py"),
    TraceFormat("sglang-bench", "runs", "a result of sglang.bench_serving", "github.com/sgl-project/sglang: bench_serving"),
    TraceFormat("csv", "csv", "CSV with named columns"),
    TraceFormat("jsonl", "jsonl", "JSON lines with named values"),
    TraceFormat("parquet", "parquet", "Parquet with named columns"),
)  # fmt: skip
"""All formats: those that are published, and plain tables."""
BY_NAME: Final = {one.name: one for one in FORMATS}
_AZURE: Final = {"timestamp", "contexttokens", "generatedtokens"}
_BURSTGPT: Final = {"timestamp", "model", "request_tokens", "response_tokens"}
_KEYS: Final = r'"((?:[^"\\]|\\.){1,64})"\s*:'


def format_named(name: str) -> TraceFormat:
    """The format of this name. Raises :class:`~hwcalc.errors.UsageError` if there is none."""
    known = BY_NAME.get(name.strip().lower())
    if known is None:
        raise UsageError(f"trace format {shown(name, 40)} is not known.", hint=f"Known: {', '.join(BY_NAME)}.")
    return known


def detect(path: str | os.PathLike[str]) -> TraceFormat:
    """The format of a file, by its first bytes. Raises :class:`~hwcalc.errors.TraceError` for one that is no trace."""
    start, name = read_start(path), quoted(os.fspath(path), 60)
    if start.startswith(b"PAR1"):
        return BY_NAME["parquet"]
    text = start.decode("utf-8-sig", errors="ignore").lstrip()
    if not start.strip():
        raise TraceError(f"{name} is empty.", hint="A trace has a line for each request.")
    if b"\0" in start or len(text.encode()) < 0.9 * len(start.strip()):
        raise TraceError(f"{name} is no text.", hint=_hint())
    if text.startswith("["):
        return BY_NAME["sharegpt"]
    if text.startswith("{"):
        return _by_keys(_first_keys(text))
    columns = set(map(simple, re.split(r"[,;\t]", text.partition("\n")[0])))
    if columns >= _AZURE:
        return BY_NAME["azure"]
    return BY_NAME["burstgpt" if columns >= _BURSTGPT else "csv"]


def _first_keys(text: str) -> set[str]:
    """The keys of the first JSON object, or of as much of it as is there."""
    import msgspec

    line = text.partition("\n")[0]
    try:
        first: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return set(re.findall(_KEYS, text[:START_BYTES]))
    return set(first) if isinstance(first, dict) else set()


def _by_keys(keys: set[str]) -> TraceFormat:
    if "hash_ids" in keys:
        return BY_NAME["qwen-bailian" if "chat_id" in keys else "mooncake"]
    if keys & {"conversations", "messages"}:
        return BY_NAME["sharegpt"]
    if "input_lens" in keys or {"completed", "total_input_tokens"} <= keys:
        return BY_NAME["sglang-bench" if keys & {"total_output_tokens_retokenized", "server_info"} else "vllm-bench"]
    return BY_NAME["jsonl"]


def _hint() -> str:
    return f"A trace is one of: {', '.join(BY_NAME)}. See: kvplan help workload"

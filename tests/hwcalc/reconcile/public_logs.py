"""Public logs by their figures alone, written out again in the wording of their engine."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.paths import TESTS

ROWS: Final[list[dict[str, Any]]] = [
    json.loads(line) for line in (TESTS / "logs" / "public.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Settings of a start and what its log prints. ``source`` says where the log is, ``named`` how it calls the model."""

GEMMA_12B: Final = {
    "model_type": "gemma4_unified_text", "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 48, "hidden_size": 3840,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
    "sliding_window": 1024, "intermediate_size": 15_360, "vocab_size": 262_144, "max_position_embeddings": 262_144,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8, "attention_k_eq_v": True, "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}  # fmt: skip


def rows(engine: str) -> list[dict[str, Any]]:
    """The rows of one engine."""
    return [row for row in ROWS if row["engine"] == engine]


def vllm_text(row: dict[str, Any]) -> str:
    """The lines of vLLM, each rank with its own."""
    logged, version = row["logged"], row["version"]
    flags = {name: value for name, value in row.get("flags", {}).items() if name != "flags_not_printed"}
    config = (
        f"model='{row['named']}', speculative_config=None, dtype=torch.{row['dtype']}, max_seq_len={row['max_model_len']}, "
        f"tensor_parallel_size={row['tp']}, pipeline_parallel_size={row['pp']}, quantization={row.get('quantization')}, "
        f"enforce_eager={row.get('eager')}, kv_cache_dtype={row['kv_dtype']}, enable_prefix_caching={row.get('prefix_caching')}, "
        f"pooler_config={'PoolerConfig()' if row.get('pooling') else None}"
    )
    lines = [
        f"(APIServer pid=1) INFO [utils.py:1] non-default args: {json.dumps(flags)}",
        f"(EngineCore pid=2) INFO [core.py:1] Initializing a V1 LLM engine (v{version}) with config: {config}",
    ]
    lines += ["WARNING [interface.py:1] Using 'pin_memory=False' as WSL is detected."] if row.get("wsl") else []
    lines += ["(EngineCore pid=2) INFO [rocm.py:1] Using Triton Attention backend."] if row.get("rocm") else []
    lines += [
        f"(EngineCore pid=2) INFO [interface.py:1] Setting attention block size to {size} tokens to ensure that attention page size is >= mamba page size."
        for size in logged.get("attn_block", ())
    ]
    for name, wording in (
        ("weights_gib", "Model loading took {} GiB memory and 3 seconds"),
        ("available_kv_gib", "Available KV cache memory: {} GiB"),
    ):
        sizes = logged.get(name, [])
        for rank, size in enumerate(sizes):
            lines.append(f"(Worker_TP{rank} pid={3 + rank}) INFO [gpu_worker.py:1] {wording.format(size)}")
    lines.append(f"(EngineCore pid=2) INFO [kv_cache_utils.py:1] GPU KV cache size: {logged['kv_tokens']:,} tokens")
    for tokens, times in logged.get("concurrency", ()):
        lines.append(
            f"(EngineCore pid=2) INFO [kv_cache_utils.py:2] Maximum concurrency for {tokens:,} tokens per request: {times:.2f}x"
        )
    return "\n".join(lines)


def sglang_text(row: dict[str, Any]) -> str:
    """The lines of SGLang."""
    logged, lines = row["logged"], []
    arguments = {"tp_size": str(row["tp"]), "dp_size": str(row["dp"]), **row["args"], "device": row["device"]}
    shown = ", ".join(f"{name}={_quoted(value)}" for name, value in arguments.items())
    lines.append(f"[2026-01-01 00:00:00] server_args=ServerArgs(model_path='{row['named']}', {shown}, end=None)")
    ends = (row.get("allbegin", ()), row.get("allend", ()))
    for rank, (begin, end) in enumerate(zip(*ends, strict=True)):
        # The least and the most of all ranks.
        usage = next((line.partition("mem usage=")[2] for line in logged["load"] if "mem usage=" in line), "")
        lines.append(f"[2026-01-01 00:00:00 TP{rank}] Load weight begin. avail mem={begin} GB")
        stored = "quant=awq, bits=4, " if any("quant=awq" in line for line in logged["load"]) else ""
        lines.append(f"[2026-01-01 00:00:09 TP{rank}] Load weight end. type=X, {stored}avail mem={end} GB, mem usage={usage}")
    lines += [f"[2026-01-01 00:00:09 TP0] {line}" for line in logged.get("swa", ())]
    if "mamba" in logged:
        lines.append(f"[2026-01-01 00:00:09 TP0] Mamba Cache is allocated. {logged['mamba']}")
    for tokens, keys, values in logged["pools"]:
        sizes = f"K size: {keys:.2f} GB, V size: {values:.2f} GB" if values else f"KV size: {keys:.2f} GB"
        lines.append(f"[2026-01-01 00:00:09 TP0] KV Cache is allocated. dtype: x, #tokens: {tokens}, {sizes}")
    lines.append("[2026-01-01 00:00:09 TP0] Memory pool end. avail mem=1.00 GB")
    if "tokens" in logged:
        final = logged.get("line", "")
        if "max_total" not in final:
            final = f"max_total_num_tokens={logged['tokens']}, {final}"
        lines.append(f"[2026-01-01 00:00:19 TP0] {final}")
    return "\n".join(lines)


def _quoted(value: str) -> str:
    plain = value in ("True", "False") or value.lstrip("-").replace(".", "", 1).isdigit()
    return value if plain else f"'{value}'"

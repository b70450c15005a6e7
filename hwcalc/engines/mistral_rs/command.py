"""The command line of ``mistralrs serve`` for a plan (mistralrs-cli/src/args, 0.9.2)."""

from __future__ import annotations

from typing import Final

from hwcalc.engines.command import CommandInput
from hwcalc.errors import UsageError
from hwcalc.units import MIB

__all__ = ["ISQ", "flag_text", "serve"]

_FLAGS: Final = {
    "paged_attn": "--paged-attn",
    "pa_context_len": "--pa-context-len",
    "pa_memory_mb": "--pa-memory-mb",
    "pa_memory_fraction": "--pa-memory-fraction",
    "pa_block_size": "--pa-block-size",
    "pa_cache_type": "--pa-cache-type",
    "max_seqs": "--max-seqs",
    "prefix_cache_n": "--prefix-cache-n",
    "pa_gpu_mem": "--pa-memory-mb",
    "pa_gpu_mem_usage": "--pa-memory-fraction",
    "pa_ctxt_len": "--pa-context-len",
    "pa_blk_size": "--pa-block-size",
}
ISQ: Final = {
    "q8_0": "q8_0",
    "q4_0": "q4_0",
    "q4_k": "q4k",
    "q4_k_m": "q4k",
    "q5_k": "q5k",
    "q6_k": "q6k",
    "q3_k": "q3k",
    "q2_k": "q2k",
    "fp8": "fp8",
}
"""A format of kvplan -> what ``--isq`` calls it; the weights are made so while they are loaded."""
_FLOATS: Final = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}


def serve(planned: CommandInput) -> list[str]:
    """The words of ``mistralrs serve`` for a plan. Raises :class:`~hwcalc.errors.UsageError` for what it cannot be told."""
    for name in ("lora", "draft"):
        if getattr(planned, name) is not None:
            raise UsageError(f"--{name} names no files that mistral.rs could load.", hint=f"Leave out --{name}.")
    if planned.parallel.dp > 1:
        raise UsageError("mistral.rs runs one replica.", hint="Start one for each: leave out --dp.")
    words = ["mistralrs", "serve", "-m", planned.path or planned.model]
    words += ["--max-seq-len", str(planned.seq), "--max-batch-size", str(planned.batch)]
    if planned.kv_dtype_named:
        words += _kv_dtype(planned.kv_dtype)
    if planned.weights is not None:
        words += _weights(planned.weights)
    if planned.memory_utilization is not None and not any("fraction" in name or "usage" in name for name in planned.options):
        words += ["--pa-memory-fraction", str(planned.memory_utilization)]
    if planned.kv_memory is not None:
        words += ["--pa-memory-mb", str(planned.kv_memory // MIB)]
    for name, value in planned.options.items():
        words += [_FLAGS[name], value]
    return [*words, *(word for required in planned.requires for word in required.flag.split()), *planned.flags]


def flag_text(name: str, value: object) -> str:
    """How mistral.rs spells one option of kvplan or one engine option; empty if it has no flag for it."""
    if name == "dtype":
        return " ".join(_kv_dtype(str(value)))
    if name == "memory_utilization":
        return f"--pa-memory-fraction {value}"
    if name == "seq":
        return f"--max-seq-len {value}"
    if name == "weights":
        return f"--isq {ISQ[str(value)]}" if str(value) in ISQ else ""
    return f"{_FLAGS[name]} {value}" if name in _FLAGS else ""


def _kv_dtype(name: str) -> list[str]:
    if name in _FLOATS:
        return ["--dtype", _FLOATS[name]]
    return ["--pa-cache-type", "f8e4m3"]


def _weights(requested: str) -> list[str]:
    from hwcalc.quantization.planned import format_name

    name = format_name(requested) or ""
    if name in _FLOATS:
        return ["--dtype", _FLOATS[name]]
    if name not in ISQ:
        raise UsageError(
            f"mistral.rs does not make {name} weights of the published ones.",
            hint=f"Leave out --weights, or use one of {', '.join(ISQ)}.",
        )
    return ["--isq", ISQ[name]]

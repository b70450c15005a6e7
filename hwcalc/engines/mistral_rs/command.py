"""The command line of ``mistralrs serve`` for a plan (mistralrs-cli/src/args, 0.9.2)."""

from __future__ import annotations

from typing import Final

from hwcalc.engines.command import CommandInput, check_one_replica
from hwcalc.errors import UsageError
from hwcalc.formulas.hybrid import pipeline_stages
from hwcalc.units import MIB

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
_SIZES: Final = frozenset(
    name for name, flag in _FLAGS.items() if flag in {"--pa-context-len", "--pa-memory-mb", "--pa-memory-fraction"}
)
_SPARE_TOKENS: Final = 2048
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
    check_one_replica(planned, "mistral.rs")
    words = [*_devices(planned), "mistralrs", "serve", "-m", planned.path or planned.model]
    tokens = mapped_tokens(planned.seq, paged=planned.options.get("paged_attn") == "on")
    words += ["--max-seq-len", str(tokens), "--max-batch-size", str(planned.batch), *_mapped(planned)]
    if planned.kv_dtype_named:
        words += _kv_dtype(planned.kv_dtype)
    if planned.weights is not None:
        words += _weights(planned.weights)
    # The three flags for the size of the pool exclude each other; that of an option is the nearest to the user's wish.
    if _SIZES.isdisjoint(planned.options):
        if planned.kv_memory is not None:
            words += ["--pa-memory-mb", str(planned.kv_memory // MIB)]
        elif planned.memory_utilization is not None:
            words += ["--pa-memory-fraction", str(planned.memory_utilization)]
    for name, value in planned.options.items():
        words += [_FLAGS[name], value]
    return [*words, *(word for required in planned.requires for word in required.flag.split()), *planned.flags]


def mapped_tokens(seq: int, *, paged: bool) -> int:
    """``--max-seq-len``, by which layers are placed.

    On Metal, where pages must be asked for, the pool has no more tokens: the null block and a part of a MB are needed besides.
    """
    return seq + _SPARE_TOKENS if paged else seq


def _devices(planned: CommandInput) -> list[str]:
    """NCCL takes all GPUs that it sees; without it, layers are mapped to them."""
    parallel = planned.parallel
    if parallel.gpus == 1:
        return []
    seen = f"CUDA_VISIBLE_DEVICES={','.join(str(number) for number in range(parallel.gpus))}"
    return ["env", seen] if parallel.pp == 1 else ["env", seen, "MISTRALRS_NO_NCCL=1"]


def _mapped(planned: CommandInput) -> list[str]:
    if planned.parallel.pp == 1:
        return []
    stages = pipeline_stages(planned.layers, planned.parallel.pp)
    return ["--device-layers", ";".join(f"{number}:{len(stage)}" for number, stage in enumerate(stages))]


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
    """What the engine has not refused."""
    from hwcalc.quantization.planned import format_name

    name = format_name(requested) or ""
    return ["--dtype", _FLOATS[name]] if name in _FLOATS else ["--isq", ISQ[name]]

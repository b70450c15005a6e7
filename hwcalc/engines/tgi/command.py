"""The command line of ``text-generation-launcher`` for a plan (launcher/src/main.rs, 3.3.6-dev0)."""

from __future__ import annotations

from typing import Final

from hwcalc.engines.command import CommandInput, check_one_replica
from hwcalc.errors import UsageError

_FLAGS: Final = {
    "cuda_memory_fraction": "--cuda-memory-fraction",
    "max_batch_prefill_tokens": "--max-batch-prefill-tokens",
    "max_concurrent_requests": "--max-concurrent-requests",
}
VARIABLES: Final = {"attention": "ATTENTION", "prefix_caching": "PREFIX_CACHING", "wiggle_room": "TGI_WIGGLE_ROOM"}
"""Engine option -> the variable of the environment that it is."""
KV_NAMES: Final = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}
"""A format of kvplan -> a value of ``--kv-cache-dtype``."""
QUANTIZED: Final = {"fp8": "fp8", "bnb8": "bitsandbytes", "bnb4": "bitsandbytes-nf4"}
"""A format into which TGI converts while loading -> a value of ``--quantize``."""
_FLOATS: Final = {"bf16": "bfloat16", "fp16": "float16"}


def launch(planned: CommandInput) -> list[str]:
    """The words for a plan. Raises :class:`~hwcalc.errors.UsageError` for what the launcher cannot be told."""
    for name in ("draft", "kv_memory"):
        if getattr(planned, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"text-generation-launcher has no flag for --{option}.", hint=f"Leave out --{option}.")
    if planned.lora is not None:
        raise UsageError("--lora names no adapter that TGI could load.", hint="Leave out --lora.")
    check_one_replica(planned, "TGI")
    words = ["text-generation-launcher", "--model-id", planned.path or planned.model]
    words += ["--revision", planned.revision] if planned.revision is not None else []
    words += ["--sharded", "true", "--num-shard", str(planned.parallel.tp)] if planned.parallel.tp > 1 else []
    words += ["--max-total-tokens", str(planned.seq), "--max-input-tokens", str(max(1, planned.seq - 1))]
    words += _kv_dtype(planned.kv_dtype) if planned.kv_dtype_named else []
    words += _weights(planned.weights) if planned.weights is not None else []
    if planned.memory_utilization is not None and "cuda_memory_fraction" not in planned.options:
        words += ["--cuda-memory-fraction", str(planned.memory_utilization)]
    for name, value in planned.options.items():
        words += [_FLAGS[name], value] if name in _FLAGS else []
    variables = [f"{VARIABLES[name]}={value}" for name, value in planned.options.items() if name in VARIABLES and value != "auto"]
    return [*(["env", *variables] if variables else []), *words, *planned.flags]


def flag_text(name: str, value: object) -> str:
    """How TGI spells one option of kvplan or one engine option; empty if it has no flag for it."""
    if name in VARIABLES:
        return f"{VARIABLES[name]}={value}"
    names = {"seq": "--max-total-tokens", "tp": "--num-shard", "memory_utilization": "--cuda-memory-fraction", **_FLAGS}
    if name == "dtype":
        return " ".join(_kv_dtype(str(value)))
    if name == "weights":
        return f"--quantize {QUANTIZED[str(value)]}" if str(value) in QUANTIZED else ""
    return f"{names[name]} {value}" if name in names else ""


def _kv_dtype(name: str) -> list[str]:
    return ["--kv-cache-dtype", KV_NAMES[name]] if name in KV_NAMES else ["--dtype", _FLOATS[name]]


def _weights(requested: str) -> list[str]:
    """What the engine has not refused."""
    from hwcalc.quantization.planned import format_name

    name = format_name(requested) or ""
    return ["--dtype", _FLOATS[name]] if name in _FLOATS else ["--quantize", QUANTIZED[name]]

"""The flags of vLLM, and the command line that serves a plan."""

from __future__ import annotations

from typing import Final

from hwcalc.engines.command import CommandInput
from hwcalc.engines.vllm.speculation import DRAFTED, model_and_tokens
from hwcalc.errors import UsageError

__all__ = ["FLAGS", "serve"]

FLAGS: Final = {
    "seq": "--max-model-len",
    "dtype": "--kv-cache-dtype",
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "dp": "--data-parallel-size",
    "dcp": "--decode-context-parallel-size",
    "batch": "--max-num-seqs",
}
"""Option of kvplan -> flag of ``vllm serve`` with another name."""
_PARALLEL: Final = ("tp", "pp", "dp", "dcp")
_WEIGHT_FLAGS: Final = {
    "fp32": ("--dtype", "float32"),
    "fp16": ("--dtype", "float16"),
    "bf16": ("--dtype", "bfloat16"),
    "fp8": ("--quantization", "fp8"),
}
_SWITCHES: Final = {
    "enable_prefix_caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "async_scheduling": ("--async-scheduling", "--no-async-scheduling"),
    "disable_hybrid_kv_cache_manager": ("--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager"),
    "enforce_eager": ("--enforce-eager", "--no-enforce-eager"),
}


def serve(planned: CommandInput) -> list[str]:
    """The words of ``vllm serve`` for a plan, with the further flags that its pool requires."""
    words = ["vllm", "serve", planned.model, FLAGS["seq"], str(planned.seq)]
    if planned.revision is not None:
        words += ["--revision", planned.revision]
    if planned.kv_dtype not in ("auto", planned.model_dtype):
        words += [FLAGS["dtype"], planned.kv_dtype]
    for name in _PARALLEL:
        size = getattr(planned.parallel, name)
        if size > 1:
            words += [FLAGS[name], str(size)]
    if planned.parallel.ep > 1:
        words.append("--enable-expert-parallel")
    if planned.memory_utilization is not None:
        words += ["--gpu-memory-utilization", str(planned.memory_utilization)]
    if planned.kv_memory is not None:
        words += ["--kv-cache-memory-bytes", str(planned.kv_memory)]
    if planned.weights is not None:
        words += _weights(planned.weights)
    if planned.lora is not None:
        words += _lora(planned.lora)
    if planned.draft is not None:
        words += _option("speculative", f"draft:{planned.draft}")
    for name, value in planned.options.items():
        words += _option(name, value)
    for required in planned.requires:
        words += required.flag.split()
    return words


def _weights(requested: str) -> list[str]:
    """The flag for a weight format to which vLLM converts while loading. Raises an error for formats that must be published."""
    from hwcalc.quantization.planned import format_name

    name = format_name(requested) or ""
    if name in _WEIGHT_FLAGS:
        return list(_WEIGHT_FLAGS[name])
    raise UsageError(
        f"vLLM does not make {name} weights of the published ones.",
        hint="Leave out --weights, or name a model that is published so.",
    )


def _lora(text: str) -> list[str]:
    from hwcalc.engines.lora import parse_lora
    from hwcalc.engines.vllm.lora import slot_rank

    lora = parse_lora(text)
    return ["--enable-lora", "--max-loras", str(lora.count), "--max-lora-rank", str(slot_rank(lora.rank))]


def _option(name: str, value: str) -> list[str]:
    if name in _SWITCHES:
        on, off = _SWITCHES[name]
        return [on if value.lower() in ("1", "true", "on", "yes") else off]
    if name == "speculative":
        method, _, rest = value.partition(":")
        import json

        document: dict[str, object] = {"method": "draft_model" if method == "draft" else method}
        if method in DRAFTED:
            document["model"], document["num_speculative_tokens"] = model_and_tokens(rest)
        else:
            document["num_speculative_tokens"] = int(rest)
        return ["--speculative-config", json.dumps(document)]
    return [f"--{name.replace('_', '-')}", value]

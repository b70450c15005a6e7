"""The options of TensorRT-LLM under the names of ``KvCacheConfig`` and of ``trtllm-serve``, and the command line of ``trtllm-serve`` for a plan.

What has no flag stands in a YAML file. Flags: commands/serve.py; the file: llmapi/llm_args.py (``KvCacheConfig``) of the sources of 1.4; read,
not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.options import EngineOption, check_one_replica, choice_option, integer_option, is_on
from hwcalc.errors import UsageError
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.options import CommandInput

_FLAG: Final = choice_option("true", "false", "on", "off")
_STATES: Final = choice_option("auto", "float16", "bfloat16", "float32", "fp16", "bf16", "fp32")
_MOST_WINDOWS: Final = 1024


def read_fraction(name: str, value: str) -> float:
    """A share above 0 and below 1, as ``calculate_max_num_blocks`` asserts."""
    whole, _, part = value.partition(".")
    if whole in ("", "0") and part.isascii() and part.isdecimal() and len(part) < 20 and int(part):
        return float(f"0.{part}")
    raise UsageError(f"engine option {name}={brief(value, 40)} is no share.", hint="Allowed: above 0 and below 1, such as 0.9.")


def read_windows(name: str, value: str) -> tuple[int, ...]:
    """Windows in tokens, one for each layer in turn: ``512,512,32768``. They are repeated for further layers."""
    words = value.split(",")
    if len(words) > _MOST_WINDOWS:
        raise UsageError(f"engine option {name} has {len(words):,} windows.", hint=f"At most {_MOST_WINDOWS:,}.")
    return tuple(integer_option(1)(name, word.strip()) for word in words)


def _block(name: str, value: str) -> int:
    size = integer_option(2, 4096)(name, value)
    if size & (size - 1):
        raise UsageError(f"engine option {name}={size:,} is no power of two.", hint="Use 32, 64 or 128.")
    return size


def is_attention_dp(options: Mapping[str, str]) -> bool:
    """Whether every rank keeps requests of its own, with all heads."""
    return is_on(options.get("enable_attention_dp"))


OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            ("tokens_per_block", "tokens in a block", "32, 64 for sparse latents and on SM90, 128 for DeepSeek-V4", _block),
            ("free_gpu_memory_fraction", "share of what is left after loading", "0.9", read_fraction),
            ("max_batch_size", "requests at once", "2048", integer_option(1, 2**20)),
            ("max_num_tokens", "tokens in a batch", "8192", integer_option(1, 2**30)),
            ("max_tokens", "tokens of the pool, if the memory holds as many", "by memory", integer_option(1, 2**40)),
            ("max_attention_window", "windows of the layers in turn, such as 512,512,32768", "by manager", read_windows),
            ("avg_seq_len", "tokens of a usual sequence, by which V2 divides its pools", "by model", integer_option(1, 2**40)),
            ("manager", "cache manager: v1 or v2 (use_kv_cache_manager_v2)", "by model", choice_option("v1", "v2")),
            ("max_beam_width", "beams of a request", "1", integer_option(1, 1024)),
            ("enable_attention_dp", "every rank of tp keeps requests of its own", "false", _FLAG),
            ("enable_block_reuse", "keep blocks of finished requests", "true, false for some models", _FLAG),
            ("host_cache_size", "bytes of host memory for blocks that left the GPU", "0", integer_option(0, 2**50)),
            ("mamba_ssm_cache_dtype", "dtype of recurrent states", "auto", _STATES),
            ("periodic_snapshot_interval", "tokens between kept recurrent states", "none", integer_option(1, 2**30)),
            ("indexer_k_dtype", "format of sparse attention's indexer keys", "fp8", choice_option("fp8", "fp4")),
        )
    }
)

_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seq": "--max_seq_len",
        "tp": "--tp_size",
        "pp": "--pp_size",
        "ep": "--ep_size",
        "memory_utilization": "--kv_cache_free_gpu_memory_fraction",
        "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_batch_size": "--max_batch_size",
        "max_num_tokens": "--max_num_tokens",
        "max_beam_width": "--max_beam_width",
        "dtype": "--kv_cache_dtype",
        "revision": "--hf_revision",
    }
)
_OF_CACHE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tokens_per_block": "tokens_per_block",
        "max_tokens": "max_tokens",
        "avg_seq_len": "avg_seq_len",
        "host_cache_size": "host_cache_size",
        "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    }
)
_LONG: Final = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
SETTINGS_FILE: Final = "kvplan.yaml"


def flag_text(name: str, value: object) -> str:
    """How TensorRT-LLM spells one option; as an entry of the settings file where it has no flag."""
    if name in ("enable_attention_dp", "enable_block_reuse"):
        return f"{name}: {str(is_on(str(value))).lower()}"
    if name in _OF_CACHE:
        return f"{_OF_CACHE[name]}: {value}"
    return f"{_FLAGS[name]} {value}" if name in _FLAGS else ""


def serve(planned: CommandInput) -> list[str]:
    """The words of ``trtllm-serve``. What has no flag stands in the settings file, which is named last."""
    for name in ("weights", "lora", "draft"):
        if getattr(planned, name) is not None:
            raise UsageError(
                f"kvplan cannot write {name} on the command line of trtllm-serve.",
                hint=f"Leave out --{name}, or name a model that is published so.",
            )
    parallel, options = planned.parallel, dict(planned.options)
    tp = parallel.tp
    if is_attention_dp(options):
        tp *= parallel.dp
    else:
        check_one_replica(planned, "TensorRT-LLM")
    words = ["trtllm-serve", planned.model, _FLAGS["seq"], str(planned.seq)]
    for name, ranks in (("tp", tp), ("pp", parallel.pp), ("ep", parallel.ep)):
        if ranks > 1:
            words += [_FLAGS[name], str(ranks)]
    if planned.revision is not None:
        words += [_FLAGS["revision"], planned.revision]
    if planned.kv_dtype_named and planned.kv_dtype in ("fp8", "nvfp4"):
        words += [_FLAGS["dtype"], planned.kv_dtype]
    if planned.memory_utilization is not None and "free_gpu_memory_fraction" not in options:
        words += [_FLAGS["memory_utilization"], str(planned.memory_utilization)]
    for name, value in options.items():
        if name in _FLAGS:
            words += [_FLAGS[name], value]
    return [*words, *(["--config", SETTINGS_FILE] if settings_file(planned) else [])]


def settings_file(planned: CommandInput) -> str:
    """The entries of the settings file, as YAML; empty if every option has a flag."""
    options, cache = planned.options, {}
    if planned.kv_memory is not None:
        cache["max_gpu_total_bytes"] = str(planned.kv_memory)
    if planned.kv_dtype_named and planned.kv_dtype == "fp8_ds_mla":
        cache["dtype"] = planned.kv_dtype
    for name, value in options.items():
        if name in _OF_CACHE:
            cache[_OF_CACHE[name]] = _LONG.get(value, value)
        elif name == "enable_block_reuse":
            cache[name] = str(is_on(value)).lower()
        elif name == "max_attention_window":
            cache[name] = f"[{value}]"
        elif name == "manager":
            cache["use_kv_cache_manager_v2"] = str(value == "v2").lower()
    entries = "".join(f"  {name}: {value}\n" for name, value in cache.items())
    if "periodic_snapshot_interval" in options:
        entries += f"  mamba_state_config:\n    periodic_snapshot_interval: {options['periodic_snapshot_interval']}\n"
    lines = [f"kv_cache_config:\n{entries}"] if entries else []
    if is_attention_dp(options):
        lines.append("enable_attention_dp: true\n")
    if "indexer_k_dtype" in options:
        lines.append(f"sparse_attention_config:\n  algorithm: dsa\n  indexer_k_dtype: {options['indexer_k_dtype']}\n")
    return "".join(lines)

"""The options of TensorRT-LLM that kvplan takes, under the names of ``KvCacheConfig`` and of ``trtllm-serve``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.engines.options import EngineOption, choice_option, integer_option, is_on
from hwcalc.errors import UsageError
from hwcalc.text import brief

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

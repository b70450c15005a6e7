"""The options of SGLang, by its own names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.engines.options import EngineOption, choice_option, integer_option, number_option
from hwcalc.engines.sglang.backends import ATTENTION_BACKENDS
from hwcalc.errors import UsageError
from hwcalc.text import brief

ARGUMENTS: Final = (
    *(
        "page_size",
        "mem_fraction_static",
        "chunked_prefill_size",
        "max_running_requests",
        "max_total_tokens",
        "swa_full_tokens_ratio",
    ),
    *("mamba_full_memory_ratio", "max_mamba_cache_size", "mamba_ssm_dtype"),
)
"""Options that have the name of a server argument, whose value stands in the log of a start."""
SWITCHES: Final = ("disable_radix_cache", "disable_overlap_schedule", "enable_dp_attention")
"""The same, without a value."""

STRATEGIES: Final = ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy")
DSA_BACKENDS: Final = (
    "auto",
    "flashmla_sparse",
    "flashmla_kv",
    "flashmla_auto",
    "flashinfer_sparse_mla",
    "fa3",
    "trtllm",
    "tilelang",
)
_FLAG: Final = choice_option("true", "false", "on", "off")
_STATE_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
_MOST_LAYERS: Final = 64


def share(name: str, value: str) -> float:
    """A number above 0 and up to 1."""
    number = number_option(1)(name, value)
    if not number:
        raise UsageError(f"engine option {name}={brief(value, 40)} is not in range.", hint="Allowed: above 0, up to 1.")
    return number


def _mamba_ratio(name: str, value: str) -> float:
    number = number_option(1_000)(name, value)
    if not number:
        raise UsageError(f"engine option {name}={brief(value, 40)} is not in range.", hint="Allowed: above 0.")
    return number


def eagle_of(name: str, value: str) -> tuple[int, int]:
    """Layers of the draft and tokens that it proposes, of ``eagle:1:4``."""
    words = value.lower().split(":")
    counts = words[1:]
    if (
        words[0] not in ("eagle", "mtp", "nextn")
        or len(counts) > 2
        or not all(one.isascii() and one.isdecimal() for one in counts)
    ):
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is not known.",
            hint="Allowed: eagle:DRAFT_LAYERS:DRAFT_TOKENS, such as eagle:1:4.",
        )
    layers, tokens = (int(one[:9]) for one in (*counts, *("1", "4")[len(counts) :]))
    if not 1 <= layers <= _MOST_LAYERS or not 1 <= tokens <= _MOST_LAYERS:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is out of range.", hint=f"Allowed: 1 to {_MOST_LAYERS} layers and tokens."
        )
    return layers, tokens


OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            ("page_size", "tokens in a page", "1, or what the attention backend needs", integer_option(1, 2**20)),
            ("mem_fraction_static", "share of the GPU for weights and pools", "by GPU", share),
            ("chunked_prefill_size", "tokens of a prompt in a batch", "by GPU: 2048 to 16384", integer_option(1, 2**30)),
            ("max_running_requests", "requests at once", "2048 to 4096, by the pool", integer_option(1, 2**30)),
            ("max_total_tokens", "most tokens of the pool", "by memory", integer_option(1, 2**50)),
            ("swa_full_tokens_ratio", "window tokens for each token", "0.8, DeepSeek-V4 0.1", share),
            ("disable_radix_cache", "keep nothing of finished requests", "false", _FLAG),
            ("disable_overlap_schedule", "wait for each batch before the next one", "false", _FLAG),
            ("mamba_full_memory_ratio", "bytes of states for each byte of attention", "0.9", _mamba_ratio),
            ("max_mamba_cache_size", "slots for states", "by memory", integer_option(1, 2**30)),
            ("mamba_scheduler_strategy", "how the prefix cache copies states", "auto", choice_option(*STRATEGIES)),
            ("mamba_ssm_dtype", "dtype of recurrent states", "auto", choice_option(*_STATE_DTYPES)),
            ("attention_backend", "kernel of attention", "by model and GPU", choice_option(*ATTENTION_BACKENDS)),
            ("dsa_backend", "kernel of sparse latent attention", "auto", choice_option(*DSA_BACKENDS)),
            ("enable_dp_attention", "replicas divide attention alone", "false", _FLAG),
            ("speculative", "eagle:DRAFT_LAYERS:DRAFT_TOKENS", "none", eagle_of),
        )
    }
)

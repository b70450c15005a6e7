"""The options of SGLang by its own names, and the command line that serves a plan (flags of ``server_args.py``, 0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.options import AUTO, EngineOption, choice_option, integer_option, is_on, number_option, parse_lora
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.options import CommandInput

ATTENTION_BACKENDS: Final = (
    *("auto", "fa3", "fa4", "flashinfer", "flashmla", "triton", "torch_native", "flex_attention"),
    *("trtllm_mha", "trtllm_mla", "cutedsl_mla"),
)
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

_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "seq": "--context-length",
        "dtype": "--kv-cache-dtype",
        "tp": "--tp-size",
        "pp": "--pp-size",
        "dp": "--dp-size",
        "ep": "--ep-size",
        "dcp": "--dcp-size",
        "memory_utilization": "--mem-fraction-static",
        "mamba_scheduler_strategy": "--mamba-radix-cache-strategy",
    }
)
_OWN: Final = (*ARGUMENTS, "attention_backend")
"""Options whose flag is their own name with dashes."""
_AS_LOADED: Final = {"fp8": "--quantization fp8", "bf16": "--dtype bfloat16", "fp16": "--dtype float16"}
"""Formats that SGLang makes of any model as it loads it."""
_TARGETS: Final = {
    "all": ("all",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
"""What ``--lora`` calls a group of layers -> the layers, which SGLang must be told where no adapter is there from the start."""
_LONG_NAMES: Final = {"fp8": "fp8_e4m3", "fp16": AUTO}


def serve(planned: CommandInput) -> list[str]:
    """The words of ``python -m sglang.launch_server`` for a plan, with the further flags that its pools require."""
    parallel, replicated = planned.parallel, is_on(planned.options.get("enable_dp_attention"))
    words = ["python", "-m", "sglang.launch_server", "--model-path", planned.model, "--context-length", str(planned.seq)]
    if planned.revision is not None:
        words += ["--revision", planned.revision]
    if planned.kv_dtype_named:
        words += ["--kv-cache-dtype", _LONG_NAMES.get(planned.kv_dtype, planned.kv_dtype)]
    # Replicas that divide attention alone are ranks of one group.
    sizes = {
        "tp": parallel.tp * parallel.dp if replicated else parallel.tp,
        "pp": parallel.pp,
        "dp": parallel.dp,
        "ep": parallel.ep,
    }
    for name, size in sizes.items():
        if size > 1:
            words += [_FLAGS[name], str(size)]
    if planned.memory_utilization is not None and "mem_fraction_static" not in planned.options:
        words += [_FLAGS["memory_utilization"], str(planned.memory_utilization)]
    if planned.kv_memory is not None and "max_total_tokens" not in planned.options:
        raise UnsupportedError(
            "SGLang has no flag for the bytes of its pools.",
            hint="Leave out --kv-memory, or name the tokens: --engine-option max_total_tokens=N",
        )
    words += _weights(planned.weights)
    if planned.lora is not None:
        lora = parse_lora(planned.lora)
        words += ["--enable-lora", "--max-loras-per-batch", str(lora.count), "--max-lora-rank", str(lora.rank)]
        words += ["--lora-target-modules", *_TARGETS[lora.targets]]
    if planned.draft is not None:
        words += ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", planned.draft]
    for name, value in planned.options.items():
        words += flag_text(name, value).split()
    for required in planned.requires:
        words += required.flag.split()
    return [*words, *planned.flags]


def flag_text(name: str, value: object) -> str:
    """How SGLang spells one option of kvplan or one engine option; empty if it has no flag for it, or takes it without one."""
    text = str(value)
    if name in SWITCHES:
        return f"--{name.replace('_', '-')}" if is_on(text) else ""
    if name == "weights":
        return _AS_LOADED.get(text, "")
    if name == "speculative":
        tokens = eagle_of(name, text)[1]
        steps = max(1, tokens - 1)
        return (
            f"--speculative-algorithm EAGLE --speculative-num-steps {steps} --speculative-eagle-topk 1 "
            f"--speculative-num-draft-tokens {tokens}"
        )
    if text == AUTO:
        return ""
    if name == "dsa_backend":
        return f"--dsa-prefill-backend {text} --dsa-decode-backend {text}"
    if name == "dtype":
        return f"{_FLAGS[name]} {_LONG_NAMES.get(text, text)}"
    flag = _FLAGS.get(name) or (f"--{name.replace('_', '-')}" if name in _OWN else "")
    return f"{flag} {text}" if flag else ""


def _weights(weights: str | None) -> list[str]:
    if weights is None:
        return []
    if weights not in _AS_LOADED:
        raise UnsupportedError(
            f"--weights {brief(weights, 20)}: SGLang makes no such weights when it loads a model.",
            hint=f"Name a model that is published so, or use: {', '.join(_AS_LOADED)}",
        )
    return _AS_LOADED[weights].split()

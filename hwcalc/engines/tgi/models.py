"""The models that TGI runs in its pool: those of its own flash classes, and those of its transformers back end.

Read, not run: ``get_model`` in ``server/text_generation_server/models/__init__.py`` of 3.3.6-dev0 (commit db931fcf42da), and which classes
of transformers 4.51, that its image has, are ``is_backend_compatible``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnsupportedError
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_NATIVE: Final = frozenset(
    {
        *("baichuan", "cohere", "dbrx", "deepseek_v2", "deepseek_v3", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text"),
        *(
            "gpt2",
            "gpt_bigcode",
            "gpt_neox",
            "gptj",
            "granite",
            "idefics2",
            "idefics3",
            "llama",
            "llava_next",
            "mamba",
            "mistral",
        ),
        *("mixtral", "paligemma", "phi", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_vl", "RefinedWeb", "RefinedWebModel"),
        "starcoder2",
    }
)
"""Model types with a class of TGI's own."""
_TRANSFORMERS: Final = frozenset({"cohere2", "glm", "helium", "llama4", "llama4_text", "olmo", "olmo2", "qwen3", "qwen3_moe"})
"""Further model types whose class in transformers 4.51 can do with the attention of TGI."""
_PADDED: Final = frozenset(
    {
        *("aria_text", "bamba", "biogpt", "bloom", "codegen", "diffllama", "falcon_mamba", "fuyu", "galactica", "gpt_neo"),
        *(
            "gpt_neox_japanese",
            "granitemoe",
            "granitemoeshared",
            "idefics",
            "jamba",
            "jetmoe",
            "mamba2",
            "mpt",
            "nemotron",
            "olmoe",
        ),
        *("opt", "persimmon", "qwen2_moe", "recurrent_gemma", "rwkv", "stablelm", "t5", "xglm", "zamba", "zamba2"),
    }
)
"""Model types that run by plain transformers: their caches are padded, and no pool is made."""
_BF16: Final = frozenset(
    {
        *("dbrx", "deepseek_v2", "deepseek_v3", "gemma", "gemma2", "gemma3", "gemma3_text", "idefics3", "llama4", "mamba"),
        *("paligemma", "qwen2_5_vl", "qwen2_vl"),
    }
)
_WHOLE_HEADS: Final = frozenset({"olmo2"})
_FP16_METHODS: Final = frozenset({"awq", "exl2", "gptq", "marlin"})
_NOT_FOR_AUTO: Final = frozenset({"awq", "gptq", "exl2"})
_FOUR_BITS: Final = "bnb4"


def is_native(model: ModelSpec) -> bool:
    """Whether TGI has a class of its own; also for dimensions by hand, which are of no model type."""
    return model.model_type in _NATIVE or "model_type" not in model.config


def is_bf16(model: ModelSpec) -> bool:
    """Whether TGI loads the model in bf16 where neither ``--dtype`` nor its format says otherwise; else in fp16."""
    return model.model_type in _BF16 and _method(model) not in _FP16_METHODS


def keeps_whole_heads(model: ModelSpec) -> bool:
    """Whether the transformers back end does not divide the heads (``REPLICATED_ATTENTION_MODELS``)."""
    return model.model_type in _WHOLE_HEADS


def published_format(model: ModelSpec) -> str | None:
    """The format of the cache that a checkpoint of compressed-tensors names: an fp8 ``kv_cache_scheme``."""
    scheme = (model.quantization or {}).get("kv_cache_scheme")
    if _method(model) != "compressed-tensors" or not isinstance(scheme, dict):
        return None
    return "fp8_e4m3" if (scheme.get("type"), scheme.get("num_bits")) == ("float", 8) else None


def check_class(model: ModelSpec) -> None:
    """Refuse a model that has no pool. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    name = brief(model.model_type, 60)
    if model.model_type in _PADDED:
        raise UnsupportedError(
            f"TGI runs {name} by plain transformers, in a padded cache that is not planned.", hint="Use: --engine transformers"
        )
    if not is_native(model) and model.model_type not in _TRANSFORMERS:
        raise UnsupportedError(f"TGI: Unsupported model type {name}", hint="Use: --engine transformers, or --engine reference")


def check_weights(model: ModelSpec, weights: str | None) -> None:
    """Refuse formats that the transformers back end does not load. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    if is_native(model):
        return
    method = _method(model)
    if method in _NOT_FOR_AUTO:
        raise UnsupportedError(f"TGI: {method} quantization is not supported for AutoModel", hint="Use: --engine transformers")
    if weights == _FOUR_BITS:
        raise UnsupportedError("TGI: 4bit quantization is not supported for AutoModel", hint="Leave out --weights, or use: bnb8")
    if weights == "fp8":
        raise UnsupportedError(
            f"TGI runs {model.model_type} by its transformers back end, which takes no --quantize fp8.",
            hint="Leave out --weights.",
        )


def _method(model: ModelSpec) -> str:
    return str((model.quantization or {}).get("quant_method", "")).lower()

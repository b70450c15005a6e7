"""The models that mistral.rs builds, and in what their caches differ from the rule.

Read, not run: ``mistralrs-core/src/pipeline/loaders/{normal,multimodal}_loaders.rs`` and ``mistralrs-core/src/{models,vision_models}``
of 0.9.2 (commit 9e922623f24b).
"""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import AttentionKind, LatentAttention
from hwcalc.model import ModelSpec
from hwcalc.text import brief

__all__ = [
    "EXACT_WIDTHS",
    "MTP_LAYERS",
    "STATE_COPIES",
    "check_class",
    "check_model",
    "counts_states_as_attention",
    "keeps_all_heads",
]

_TEXT: Final = frozenset(
    f"{name}ForCausalLM"
    for name in (
        *(
            "Mistral",
            "Gemma",
            "Mixtral",
            "Llama",
            "Phi",
            "Phi3",
            "Qwen2",
            "Gemma2",
            "Starcoder2",
            "PhiMoE",
            "DeepseekV2",
            "DeepseekV3",
        ),
        *("Qwen3", "Glm4", "Glm4MoeLite", "Glm4Moe", "Qwen3Moe", "SmolLM3", "GraniteMoeHybrid", "GptOss", "HunYuanDenseV1"),
        *("HunYuanMoEV1", "Qwen3Next", "Qwen3_5", "Lfm2", "Lfm2Moe"),
    )
)
_MULTIMODAL: Final = frozenset(
    (
        *(
            "Phi3VForCausalLM",
            "Phi4MMForCausalLM",
            "MiniCPMO",
            "Gemma3ForCausalLM",
            "Gemma4ForCausalLM",
            "Gemma4UnifiedForCausalLM",
        ),
        *("DiffusionGemmaForBlockDiffusion",),
        *(
            f"{name}ForConditionalGeneration"
            for name in (
                *(
                    "Idefics2",
                    "LlavaNext",
                    "Llava",
                    "Lfm2Vl",
                    "Mllama",
                    "Qwen2VL",
                    "Idefics3",
                    "Qwen2_5_VL",
                    "Gemma3",
                    "Mistral3",
                ),
                *(
                    "Llama4",
                    "Gemma3n",
                    "Gemma4",
                    "Gemma4Unified",
                    "MuseGlimmer",
                    "Qwen3VL",
                    "Qwen3VLMoe",
                    "Qwen3_5",
                    "Qwen3_5Moe",
                ),
                *("VoxtralRealtime",),
            )
        ),
    )
)
_ALL_HEADS: Final = frozenset(
    {"GptOssForCausalLM", "Phi3ForCausalLM", "Phi4MMForCausalLM", "VoxtralRealtimeForConditionalGeneration"}
)
_LATENT: Final = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"})
_ATTENTION_ALONE: Final = frozenset(
    {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"}
)
EXACT_WIDTHS: Final = frozenset(
    {
        *("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
        *("Gemma4UnifiedForCausalLM", "DiffusionGemmaForBlockDiffusion"),
    }
)
"""Classes whose pool is counted by the heads and widths of each layer; all others have the model's for every layer."""
MTP_LAYERS: Final = _ATTENTION_ALONE
STATE_COPIES: Final = {"GraniteMoeHybridForCausalLM": 1}
"""Class -> slots of a second set of states, which the model keeps beside the pool of slots (``GraniteHybridCache``)."""


def check_class(model: ModelSpec) -> None:
    """Raise an error for a class that mistral.rs does not have."""
    name = model.architecture
    if name is not None and name not in _TEXT | _MULTIMODAL:
        raise UnsupportedError(
            f"mistral.rs 0.9.2: unsupported model class `{brief(name, 60)}`.",
            hint="Use: --engine reference. Its classes: mistral.rs, pipeline/loaders.",
        )


def check_model(model: ModelSpec) -> None:
    """Refuse layers that mistral.rs does not build. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    name = model.architecture
    kinds = {type(group.kind) for group in model.stack.groups}
    if name is not None and LatentAttention in kinds and name not in _LATENT:
        raise UnsupportedError(f"mistral.rs has no latent attention in {brief(name, 60)}.", hint="Use: --engine reference")
    if not any(issubclass(kind, (AttentionKind, LatentAttention)) for kind in kinds):
        raise UnsupportedError("mistral.rs has no model without attention.", hint="Use: --engine reference")


def keeps_all_heads(model: ModelSpec) -> bool:
    """Whether every tensor-parallel rank has room for all key/value heads: their number is not divided in the class's metadata."""
    return model.architecture in _ALL_HEADS


def counts_states_as_attention(model: ModelSpec) -> bool:
    """Whether layers with a state have blocks of the pool as well, which nothing uses.

    Only Qwen3.5 says which of its layers have pages (``HybridPagedKvCacheConfig``); a hybrid of another class has them in every layer.
    """
    return model.architecture is not None and model.architecture not in _ATTENTION_ALONE

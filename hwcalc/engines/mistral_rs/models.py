"""The models that mistral.rs builds, and in what their caches differ from the rule.

Read, not run: ``mistralrs-core/src/pipeline/loaders/{normal,multimodal}_loaders.rs`` and ``mistralrs-core/src/{models,vision_models}``
of 0.9.2 (commit 9e922623f24b).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import (
    AttentionKind,
    FullAttention,
    LatentAttention,
    LayerKind,
    SharedCache,
    SlidingAttention,
    Stack,
)
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

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
_HIDDEN_OVER_HEADS: Final = frozenset(
    {
        *("LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM", "SmolLM3ForCausalLM", "Starcoder2ForCausalLM"),
        *("Llama4ForConditionalGeneration", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    }
)
"""Classes that take ``hidden_size / num_attention_heads`` for the width of a head, whatever ``head_dim`` says."""
STATE_COPIES: Final = {"GraniteMoeHybridForCausalLM": 1}
"""Class -> slots of a second set of states, which the model keeps beside the pool of slots (``GraniteHybridCache``)."""


def check_class(model: ModelSpec) -> None:
    """Raise an error for a class that mistral.rs does not have."""
    name = model.architecture
    if name is not None and name not in _TEXT | _MULTIMODAL:
        raise UnsupportedError(
            f"mistral.rs: Unsupported Hugging Face Transformers -CausalLM model class `{brief(name, 60)}`.",
            hint="Use: --engine reference",
        )


def check_model(model: ModelSpec) -> None:
    """Refuse layers that mistral.rs does not build. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    name = model.architecture
    kinds = {type(group.kind) for group in model.stack.groups}
    if name is not None and LatentAttention in kinds and name not in _LATENT:
        raise UnsupportedError(f"mistral.rs has no latent attention in {brief(name, 60)}.", hint="Use: --engine reference")
    if name in _HIDDEN_OVER_HEADS and model.hidden_size is not None:
        for group in model.stack.groups:
            if (
                isinstance(group.kind, AttentionKind)
                and group.kind.head_dim * group.kind.num_attention_heads != model.hidden_size
            ):
                raise UnsupportedError(
                    f"mistral.rs takes hidden_size / num_attention_heads for the head width of {name}, which is not head_dim here.",
                    hint="Use: --engine reference",
                )
    if not any(issubclass(kind, (AttentionKind, LatentAttention)) for kind in kinds):
        raise UnsupportedError("mistral.rs has no model without attention.", hint="Use: --engine reference")


def is_text(model: ModelSpec) -> bool:
    """Whether one of the loaders of text models takes it, which all predict the same activations."""
    return model.architecture in _TEXT and model.architecture not in _MULTIMODAL


def layer_types(model: ModelSpec) -> tuple[str, ...]:
    """What the config calls each layer; empty where it does not say."""
    text = model.config.get("text_config")
    named = (text if isinstance(text, Mapping) else model.config).get("layer_types")
    return tuple(map(str, named)) if isinstance(named, (list, tuple)) else ()


def as_built(stack: Stack, types: Sequence[str], *, paged: bool) -> Stack:
    """Layers of which later ones read the cache of the last earlier one of their type, as mistral.rs allocates them.

    In pages each later one has as much as the one that it reads, and nothing uses it. Without pages it has nothing, and the one that
    it reads keeps every token, whatever its window (``donor_layers`` in ``vision_models/gemma4/text.rs``).
    """
    layers = list(stack)
    shared = [number for number, layer in enumerate(layers) if any(isinstance(kind, SharedCache) for kind in layer)]
    last = {types[number]: number for number in range(len(layers)) if number not in shared}
    for number in shared:
        read = last.get(types[number])
        if read is not None and paged:
            layers[number] = layers[read]
        elif read is not None:
            layers[read] = tuple(_unwindowed(kind) for kind in layers[read])
    return Stack(tuple(layers))


def _unwindowed(kind: LayerKind) -> LayerKind:
    if not isinstance(kind, SlidingAttention):
        return kind
    return FullAttention(
        num_attention_heads=kind.num_attention_heads,
        num_key_value_heads=kind.num_key_value_heads,
        head_dim=kind.head_dim,
        v_head_dim=kind.v_head_dim,
    )


def keeps_all_heads(model: ModelSpec) -> bool:
    """Whether every tensor-parallel rank has room for all key/value heads: their number is not divided in the class's metadata."""
    return model.architecture in _ALL_HEADS


def counts_states_as_attention(model: ModelSpec) -> bool:
    """Whether layers with a state have blocks of the pool as well, which nothing uses.

    Only Qwen3.5 says which of its layers have pages (``HybridPagedKvCacheConfig``); a hybrid of another class has them in every layer.
    """
    return model.architecture is not None and model.architecture not in _ATTENTION_ALONE

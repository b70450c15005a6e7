"""What SGLang asks of the class of a model: tables of ``configs/model_config.py``, ``arg_groups/`` and ``models/`` of 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas import CompressedAttention, LatentAttention, SparseIndexer

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_SPLITS_WINDOWS: Final = frozenset(
    {
        *(
            "BeamForCausalLM",
            "Llama4ForConditionalGeneration",
            "GptOssForCausalLM",
            "GraniteSWAForCausalLM",
            "GraniteMoeSWAForCausalLM",
        ),
        *(
            "IQuestQ1ForCausalLM",
            "MiMoV2ForCausalLM",
            "MiMoV2FlashForCausalLM",
            "Step3p5ForCausalLM",
            "Step3p7ForConditionalGeneration",
        ),
        *("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "EmbeddingGemma2Model", "Gemma4UnifiedForConditionalGeneration"),
        *("DiffusionGemmaForBlockDiffusion", "LagunaForCausalLM", "MellumForCausalLM", "MuseGlimmerForCausalLM"),
        *("MuseGlimmerForConditionalGeneration", "InklingForConditionalGeneration", "UnlimitedOCRForCausalLM"),
    }
)
"""Classes whose windows have a pool of their own (``is_hybrid_swa_model``). All others keep every token in every layer."""
MINIMAX_SPARSE: Final = frozenset({"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"})
WINDOW_LESS_ONE: Final = frozenset(
    {
        *("BeamForCausalLM", "GptOssForCausalLM", "MellumForCausalLM", "MuseGlimmerForCausalLM"),
        *("MuseGlimmerForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        *("Gemma4UnifiedForConditionalGeneration", "DiffusionGemmaForBlockDiffusion"),
    }
)
"""Classes that count the window without the token itself (``get_attention_sliding_window_size``); others as the config has it."""
COPIES_STATES: Final = frozenset(
    {
        *("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration", "Qwen3NextForCausalLM", "Qwen4ExpForConditionalGeneration"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", "Qwen3_5ForCausalLM"),
        *(
            "InternS2PreviewForConditionalGeneration",
            "MiniCPMV4_6ForConditionalGeneration",
            "MiniCPMV4_7ForConditionalGeneration",
        ),
        *(
            "BailingMoeV2_5ForCausalLM",
            "BailingMoeV3ForCausalLM",
            "BailingMoeV3VLForConditionalGeneration",
            "FalconH1ForCausalLM",
        ),
        *(
            "GraniteMoeHybridForCausalLM",
            "Glm5NextForConditionalGeneration",
            "NemotronHForCausalLM",
            "NemotronHPuzzleForCausalLM",
        ),
        *("NemotronH_Omni_Reasoning_V3",),
    }
)
"""Classes whose states the prefix cache copies while a batch runs (``_MAMBA_EXTRA_BUFFER_ARCHS``)."""
SCALED_ON_CONSUMER: Final = "GlmMoeDsaForCausalLM"
"""The class whose kernel on consumer GPUs reads latents in fp8 with scales."""
WHOLE_GROUP_STATES: Final = frozenset({"MambaForCausalLM", "FalconMambaForCausalLM", "Mamba2ForCausalLM"})
"""Classes that divide states by all ranks, also where replicas divide attention alone (``configs/mamba.py``)."""
GRAPHS_WITH_IMAGES: Final = frozenset(
    {
        *(
            "MiniMaxM3SparseForConditionalGeneration",
            "Cohere2VisionForConditionalGeneration",
            "PaddleOCRVLForConditionalGeneration",
        ),
        *("InternS2MobiusForConditionalGeneration", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        *("MuseGlimmerForConditionalGeneration", "MuseSparkForConditionalGeneration", "KimiK3ForConditionalGeneration"),
        *("KimiK25ForConditionalGeneration", "MiniMaxM3SparseForCausalLM"),
    }
)
"""Classes with towers whose prompts run in graphs (``multimodal_breakable_cuda_graph_supported_model_archs``)."""


_TEXT_ALONE: Final = frozenset(
    {"Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Step3VLForConditionalGeneration"}
)
"""Classes of which SGLang loads the text alone unless it is told otherwise."""

_LENGTHS: Final = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Keys of the longest sequence; the first that the text part has counts (``CONTEXT_LENGTH_KEYS``)."""
_NO_LENGTH: Final = 2048
_CLASS_LENGTHS: Final = {"step3p5": 128_000, "step3p7": 128_000}
"""``max_seq_len`` of classes of SGLang's own, whatever ``max_position_embeddings`` says (``Step3p5Config``)."""
_TEXT_ONLY_READ: Final = frozenset({"step3p7"})
"""Model types whose class reads the text part alone, and has defaults where there is none."""
_STRETCHED: Final = frozenset({"linear", "dynamic"})
"""Kinds of rotary embeddings whose factor counts; those of the others stand beside the length before it."""


def context_tokens(model: ModelSpec) -> int:
    """The longest sequence as SGLang reads it (``get_context_length``); requests at once follow from it."""
    text, top = model.config.get("text_config"), model.config.get("model_type")
    own: Mapping[str, Any] = text if isinstance(text, Mapping) else {} if top in _TEXT_ONLY_READ else model.config
    defaults = {"max_seq_len": _CLASS_LENGTHS.get(str(top)), "max_position_embeddings": model.max_position_embeddings}
    lengths = {**defaults, **own}
    longest = next((length for key in _LENGTHS if isinstance(length := lengths.get(key), int) and length > 0), _NO_LENGTH)
    scalings = model.facts.rope_scalings
    # A factor for one kind of layer (Gemma 3) is none of the model.
    factor = scalings[0].factor if len(scalings) == 1 and "gemma3" not in model.model_type else None
    return int(longest * factor) if factor and scalings[0].kind in _STRETCHED and not scalings[0].original_tokens else longest


def is_compressed(model: ModelSpec) -> bool:
    """DeepSeek-V4: a window, and one entry for every group of tokens."""
    return any(isinstance(group.kind, CompressedAttention) for group in model.stack.groups)


def is_sparse_latent(model: ModelSpec) -> bool:
    """DeepSeek-V3.2 and its kin: latents with an indexer (``is_deepseek_dsa``)."""
    kinds = {type(group.kind) for group in model.stack.groups}
    return kinds >= {LatentAttention, SparseIndexer}


def splits_windows(model: ModelSpec) -> bool:
    """Whether windows have a pool of their own."""
    return model.architecture in _SPLITS_WINDOWS or is_compressed(model)


def shows_images(model: ModelSpec) -> bool:
    """Whether SGLang loads the towers of a model, so that it reserves memory for images (``enable_multimodal``)."""
    parts = model.facts.part_types
    return bool(parts.keys() & {"vision", "audio"}) and model.architecture not in _TEXT_ALONE

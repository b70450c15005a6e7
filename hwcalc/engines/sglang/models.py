"""What SGLang asks of the class of a model: tables of ``configs/model_config.py``, ``arg_groups/`` and ``models/`` of 0.5.23."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import CompressedAttention, LatentAttention, SparseIndexer
from hwcalc.model import ModelSpec

__all__ = [
    "COPIES_STATES",
    "MINIMAX_SPARSE",
    "ON_TRITON",
    "TRTLLM_LATENT",
    "WINDOW_OF_CONFIG",
    "is_compressed",
    "is_sparse_latent",
    "shows_images",
    "splits_windows",
]

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
WINDOW_OF_CONFIG: Final = frozenset({"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Llama4ForConditionalGeneration"})
"""Classes whose window is counted as the config has it; that of all others is one less, without the token itself."""
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
ON_TRITON: Final = frozenset({"FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM"})
"""Classes that keep pages of one token on every accelerator."""
TRTLLM_LATENT: Final = frozenset(
    {"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "MistralLarge3ForCausalLM", "KimiK25ForConditionalGeneration"}
)
"""Classes whose latents are read by TensorRT-LLM's kernel on Blackwell."""


_TEXT_ALONE: Final = frozenset(
    {"Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Step3VLForConditionalGeneration"}
)
"""Classes of which SGLang loads the text alone unless it is told otherwise."""


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

"""The model classes that LMDeploy 0.14 runs, by back end.

Sources: lmdeploy/pytorch/models/module_map.py (without drafts and reward models), lmdeploy/turbomind/supported_models.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnsupportedError
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

PYTORCH: Final = "pytorch"
TURBOMIND: Final = "turbomind"
BACKENDS: Final = (PYTORCH, TURBOMIND)

_BOTH: Final = frozenset(
    [
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "InternVLChatModel",
        "InternVLForConditionalGeneration",
        "InternS1ForConditionalGeneration",
        "LlamaForCausalLM",
        "InternLM2ForCausalLM",
        "InternLM3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GptOssForCausalLM",
        "MixtralForCausalLM",
    ]
)
_PYTORCH_ALONE: Final = frozenset(
    [
        "Llama4ForConditionalGeneration",
        "BaichuanForCausalLM",
        "ChatGLMForConditionalGeneration",
        "Glm4ForCausalLM",
        "Glm4vForConditionalGeneration",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "InternLMForCausalLM",
        "MistralForCausalLM",
        "GemmaForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekVLV2ForCausalLM",
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "QWenLMHeadModel",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "InternS2PreviewForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration",
        "Starcoder2ForCausalLM",
        "Phi3ForCausalLM",
        "CogVLMForCausalLM",
        "InternS1ProForConditionalGeneration",
        "InternS1_1_ForConditionalGeneration",
        "InternLM2VEForCausalLM",
        "Phi3VForCausalLM",
        "PhiMoEForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniCPMV",
        "Qwen3NextForCausalLM",
        "SDARForCausalLM",
        "SDARMoeForCausalLM",
    ]
)
_ALIASES: Final = {"ChatGLMModel": "ChatGLMForConditionalGeneration"}
"""Classes that configs name otherwise."""
_WINDOW_OFF: Final = frozenset({"GptOssForCausalLM", "Gemma3ForConditionalGeneration", "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"})  # fmt: skip
"""Classes whose window LMDeploy's configurations set to -1: only some layers have one."""


def runs(architecture: str | None, backend: str) -> bool:
    """Whether a back end has this class."""
    name = _ALIASES.get(architecture or "", architecture)
    return name in _BOTH or (backend == PYTORCH and name in _PYTORCH_ALONE)


def check_architecture(model: ModelSpec, backend: str) -> None:
    """Raise an error for a model that the back end does not have."""
    name = model.architecture
    if name is None or runs(name, backend):
        return
    if runs(name, PYTORCH):
        raise UnsupportedError(f"LMDeploy's TurboMind has no {brief(name, 60)}.", hint=f"Use: --engine-option backend={PYTORCH}")
    raise UnsupportedError(f"LMDeploy 0.14 has no {brief(name, 60)}.", hint="Use: --engine vllm, or --engine reference")


def frees_window(model: ModelSpec) -> bool:
    """Whether blocks outside the window are freed: where the config names a window and its use is not switched off."""
    return model.architecture not in _WINDOW_OFF and bool(model.config.get("use_sliding_window", True))

"""Which models and requests TensorRT-LLM's PyTorch back end takes.

Read, not run: docs/source/models/supported-models.md (00b6d5a), ``register_auto_model`` in _torch/models, and
_torch/pyexecutor/_util.py of the sources of 1.4. A model that is there for AutoDeploy alone has a cache manager of another back end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.capability import check_generation
from hwcalc.errors import UnsupportedError
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.engines.setup import Request
    from hwcalc.model import ModelSpec

_RUN: Final = frozenset(
    {
        *("AfmoeForCausalLM", "Cohere2ForCausalLM", "DeciLMForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
        *("DeepseekV4ForCausalLM", "Exaone4ForCausalLM", "Exaone4_5_ForConditionalGeneration", "ExaoneMoEForCausalLM"),
        *("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
        *("Gemma4UnifiedForConditionalGeneration", "Glm4MoeForCausalLM", "GlmMoeDsaForCausalLM", "GptOssForCausalLM"),
        *("HCXVisionForCausalLM", "HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM", "InklingForConditionalGeneration"),
        *("KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration", "KimiLinearForCausalLM", "Kolibri1ForCausalLM"),
        *("LagunaForCausalLM", "LlamaForCausalLM", "Llama4ForConditionalGeneration", "LlavaNextForConditionalGeneration"),
        *("MiniCPMV4_6ForConditionalGeneration", "MiniMaxM2ForCausalLM", "MiniMaxM3SparseForCausalLM"),
        *("MiniMaxM3SparseForConditionalGeneration", "Mistral3ForConditionalGeneration", "MistralForCausalLM"),
        *("MistralLarge3ForCausalLM", "MixtralForCausalLM", "MllamaForConditionalGeneration", "NemotronForCausalLM"),
        *("NemotronHForCausalLM", "NemotronH_Nano_VL_V2", "NemotronNASForCausalLM", "PaliGemmaForConditionalGeneration"),
        *("Phi3ForCausalLM", "Phi4MMForCausalLM", "PixtralForConditionalGeneration", "Qwen2ForCausalLM"),
        *("Qwen2MoeForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3ForCausalLM"),
        *("Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen3VLForConditionalGeneration"),
        *("Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        *("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration", "SeedOssForCausalLM", "Starcoder2ForCausalLM"),
        *("Step3p5ForCausalLM", "Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration"),
    }
)
_AUTO_DEPLOY: Final = frozenset(
    {
        *("DeepseekV2ForCausalLM", "ExaoneForCausalLM", "Gemma3nForConditionalGeneration", "Glm4MoeLiteForCausalLM"),
        *("GraniteForCausalLM", "GraniteMoeHybridForCausalLM", "InternLM3ForCausalLM", "Olmo3ForCausalLM"),
        *("OpenELMForCausalLM", "SkyworkR1V2ForConditionalGeneration", "SmolLM3ForCausalLM"),
    }
)
_V2: Final = (
    *("NemotronH", "Qwen3Next", "Qwen3_5", "KimiLinear", "KimiK3", "DeepseekV4", "GptOss", "Gemma3", "Gemma4"),
    *("LlamaFor", "Llama4", "Inkling"),
)
"""Architectures whose own default is the V2 manager (docs/source/features/kvcache.md, 0076e93: Selecting the KV Cache Manager)."""
_STATES: Final = ("NemotronH", "Qwen3Next", "Qwen3_5", "KimiLinear", "KimiK3", "MiniCPMV4_6")
"""Architectures that ``is_hybrid_linear`` knows (_torch/pyexecutor/config_utils.py)."""
_WITHOUT_REUSE: Final = ("Inkling", "KimiLinear", "KimiK3", "NemotronH", "Qwen3Next", "Qwen3_5")
"""Architectures that turn block reuse off by ``get_model_defaults``."""
_KIMI: Final = ("KimiLinear", "KimiK3")
_HOPPER_ROWS: Final = ("DeepseekV4",)
"""Architectures whose cache on SM90 has rows of its own (sparse/deepseek_v4/cache_manager.py)."""
_OLDEST_GPU: Final = 80


def _named(model: ModelSpec, names: tuple[str, ...]) -> bool:
    return (model.architecture or "").startswith(names)


def takes_v2(model: ModelSpec) -> bool:
    """Whether the model's own default is the V2 manager."""
    return _named(model, _V2)


def runs_states(model: ModelSpec) -> bool:
    """Whether the back end has a manager for the recurrent states of this model; one without a named class may be any."""
    return model.architecture is None or _named(model, _STATES)


def reuses_blocks(model: ModelSpec) -> bool:
    """Whether blocks of finished requests are kept where nobody says so."""
    return not _named(model, _WITHOUT_REUSE)


def is_kimi(model: ModelSpec) -> bool:
    """Whether the states are Kimi's, which are fp32 and whose convolution keeps a column more."""
    return _named(model, _KIMI)


def check_class(model: ModelSpec) -> None:
    """Raise an error for a model that the PyTorch back end has no class for."""
    name = model.architecture
    if name in _AUTO_DEPLOY:
        raise UnsupportedError(
            f"TensorRT-LLM runs {name} on its AutoDeploy back end alone, whose cache has rules of its own.",
            hint="Plan it with --engine vllm or --engine reference.",
        )
    if name is not None and name not in _RUN:
        raise UnsupportedError(
            f"TensorRT-LLM's PyTorch back end has no model class {shown(name, 60)}.",
            hint="Plan it with --engine vllm or --engine reference.",
        )


def check_supported(model: ModelSpec, request: Request) -> None:
    """Raise an error for a model or a request that the back end refuses."""
    gpu, parallel = request.hardware.gpu, request.parallel
    if gpu is not None and gpu.vendor.lower() != "nvidia":
        raise UnsupportedError(
            f"TensorRT-LLM runs on NVIDIA GPUs, not on {gpu.id}.", hint="Name one of NVIDIA's: kvplan gpus, or another engine."
        )
    check_generation(gpu, _OLDEST_GPU, "TensorRT-LLM runs on Ampere and later.")
    if gpu is not None and _named(model, _HOPPER_ROWS) and (gpu.compute_capability or "").startswith("9."):
        raise UnsupportedError(
            "DeepSeek-V4 on Hopper requires kv_cache_config.dtype='fp8_ds_mla', whose pages kvplan does not know.",
            hint="Name a Blackwell GPU, such as b200-180gb, or use --engine vllm.",
        )
    if parallel.dcp > 1:
        raise UnsupportedError(
            "TensorRT-LLM's estimate of its pool does not know context parallelism.",
            hint="Leave out --dcp, or use --engine vllm.",
        )

"""The attention backend that SGLang takes by itself for a model on an accelerator, and the pages that it needs.

Source: SGLang 0.5.23, ``arg_groups/model_override_base.py`` (``get_default_attn_backend``), ``arg_groups/model_overrides/`` and the page
constraints of ``arg_groups/overrides.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.sglang.models import MINIMAX_SPARSE, is_compressed, is_sparse_latent
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.attention import AttentionKind

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

ATTENTION_BACKENDS: Final = (
    *("auto", "fa3", "fa4", "flashinfer", "flashmla", "triton", "torch_native", "flex_attention"),
    *("trtllm_mha", "trtllm_mla", "cutedsl_mla"),
)
BLACKWELL: Final = 10
"""Compute capability of B200 and its kin, for which kernels of TensorRT-LLM are built; consumer GPUs of that generation have 12."""
_CONSUMER: Final = 12
HOPPER: Final = 9
_DEEPSEEK: Final = frozenset(
    {
        *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM"),
        *("PixtralForConditionalGeneration", "GlmMoeDsaForCausalLM", "HYV4ForCausalLM", "LongcatFlashForCausalLM"),
        "KimiK3ForConditionalGeneration",
    }
)
"""Classes whose latents are read by TensorRT-LLM's kernel on Blackwell (``_deepseek_family_overrides``, ``kimi_k3.py``)."""
_ON_FLASHINFER: Final = frozenset({"Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "GraniteMoeHybridForCausalLM"})
_ON_TRITON: Final = frozenset(
    {
        *("FalconH1ForCausalLM", "JetNemotronForCausalLM", "JetVLMForConditionalGeneration", "DiffusionGemmaForBlockDiffusion"),
        *("MiniCPMV4_6ForConditionalGeneration", "MiniCPMV4_7ForConditionalGeneration", "EmbeddingGemma2Model"),
    }
)
_ON_TRITON_IF_CACHED: Final = frozenset(
    {
        *("Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"),
        *("InternS2PreviewForConditionalGeneration", "InternS2MobiusForConditionalGeneration"),
    }
)
"""Classes that keep pages of one token on Blackwell with a prefix cache, unless they draft or their strategy was named."""
_ON_FA4: Final = frozenset(
    {"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}
)
_NEMOTRON: Final = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Omni_Reasoning_V3")
_ON_TRTLLM: Final = frozenset(
    {
        *("GptOssForCausalLM", "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
        *("Llama4ForConditionalGeneration", "Llama4ForCausalLM", "Olmo2ForCausalLM", "BeamForCausalLM", "Exaone4ForCausalLM"),
        *("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", *_NEMOTRON),
    }
)
_SMALL_PAGES: Final = (32, 64)
_TRTLLM_PAGES: Final = (16, 32, 64, 128)
_USUAL_PAGE: Final = 64
_FA4_PAGE: Final = 128
_DSV4_PAGE: Final = 256
_MINIMAX_PAGE: Final = 128


def is_blackwell(major: int) -> bool:
    """Whether an accelerator is of the generation that computes in four bits."""
    return major in (BLACKWELL, _CONSUMER)


def attention_backend(model: ModelSpec, major: int, *, named: str, kv_dtype: str, cached: bool, tree: bool) -> str:
    """The backend of decoding.

    ``cached`` says that a prefix cache keeps states with a strategy that nobody named, and nothing drafts; ``tree`` that drafts are checked
    in pages of more than one token, which kernels that are taken by default do not.
    """
    if is_compressed(model):
        return "dsv4"
    if is_sparse_latent(model):
        return "dsa"
    if named != "auto":
        return named
    latent = any(isinstance(group.kind, LatentAttention) for group in model.stack.groups)
    if major == HOPPER:
        return "flashinfer" if tree and not latent else "fa3"
    if major != BLACKWELL:
        return "triton" if latent else "flashinfer"
    if latent:
        return "trtllm_mla" if model.architecture in _DEEPSEEK else "flashinfer"
    return _on_blackwell(model, kv_dtype, cached=cached, tree=tree)


def _on_blackwell(model: ModelSpec, kv_dtype: str, *, cached: bool, tree: bool) -> str:
    name = model.architecture
    if name in _ON_FLASHINFER:
        return "flashinfer"
    if name in _ON_TRITON or (name in _ON_TRITON_IF_CACHED and (cached or tree)):
        return "triton"
    if name in MINIMAX_SPARSE:
        return "trtllm_mha" if kv_dtype == "fp8_e4m3" else "fa4"
    kinds = [group.kind for group in model.stack.groups]
    if tree and name not in (*_ON_FA4, *_ON_TRTLLM):
        return "flashinfer"
    unlike = any(isinstance(kind, AttentionKind) and kind.head_dim != kind.v_head_dim for kind in kinds)
    return "fa4" if unlike or name in _ON_FA4 else "trtllm_mha"


def pages_states(model: ModelSpec, backend: str, *, drafts: bool) -> bool:
    """Whether SGLang sets pages before it settles how states are copied, which they allow."""
    return backend == "trtllm_mha" and (
        model.architecture in _ON_TRITON_IF_CACHED or (drafts and model.architecture in _NEMOTRON)
    )


def page_size(model: ModelSpec, major: int, backend: str, named: int | None, *, settled: bool, chosen: bool) -> int:
    """Tokens in a page. A server that knows its accelerator corrects what is named; without one it is taken as it is.

    ``chosen`` says that SGLang chose the backend.
    """
    if backend == "dsv4":
        return named if named is not None and not settled else _DSV4_PAGE
    if backend == "dsa":
        return named if named is not None and not settled else _USUAL_PAGE
    if named is None and model.architecture in MINIMAX_SPARSE and (major in (HOPPER, BLACKWELL) or not settled):
        named = _MINIMAX_PAGE
    if not settled:
        return named or 1
    if chosen and backend == "triton" and major == BLACKWELL and model.architecture in _ON_TRITON_IF_CACHED:
        return 1
    if backend == "flashmla":
        return _USUAL_PAGE
    if backend in ("trtllm_mla", "cutedsl_mla"):
        return named if named in _SMALL_PAGES else _USUAL_PAGE
    if backend == "trtllm_mha":
        return named if named in _TRTLLM_PAGES else _USUAL_PAGE
    if backend == "fa4" and major == BLACKWELL:
        return _FA4_PAGE
    return named or 1

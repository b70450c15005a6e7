"""Dense models in the manner of Llama: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import Block, Weight, linear, parameter, rms_norm
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.decoder import Decoder, build

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model type in the table."""
    spec = _TABLE[config.model_type or ""]
    return build(config, top, spec if isinstance(spec, Decoder) else spec(config))


def _xielu(config: Config) -> tuple[Weight, ...]:
    """Apertus' activation has two learned numbers in each layer."""
    if config.get("hidden_act", "xielu") != "xielu":
        return ()
    return parameter("mlp.act_fn.alpha_p", 1) + parameter("mlp.act_fn.alpha_n", 1)


def _sub_norms(config: Config) -> tuple[Weight, ...]:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    return rms_norm("self_attn.attn_sub_norm", hidden) + rms_norm("mlp.ffn_sub_norm", width)


def _lambdas(config: Config) -> tuple[Weight, ...]:
    """DiffLlama's two pairs of vectors, as wide as a head, whose products weigh the second attention map."""
    head_dim = config.maybe_integer("head_dim") or config.integer("hidden_size") // config.integer("num_attention_heads")
    return tuple(weight for name in ("q1", "k1", "q2", "k2") for weight in parameter(f"self_attn.lambda_{name}", head_dim))


def _adaptive_norm(config: Config) -> tuple[Weight, ...]:
    """Voxtral Realtime's norm that depends on the delay, through a rank of 32."""
    hidden = config.integer("hidden_size")
    return linear("ada_rms_norm.linear1", hidden, 32) + linear("ada_rms_norm.linear2", 32, hidden)


def _molmo2(config: Config) -> Decoder:
    return replace(_MOLMO2, qk_norm="head" if config.text("qk_norm_type") == "qwen3" else "full")


_ATTENTION_BIAS: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias")
_LLAMA: Final = replace(_ATTENTION_BIAS, mlp_bias="mlp_bias")
_PLAIN: Final = Decoder()
_QWEN2: Final = Decoder(qkv_bias=True)
_QWEN3: Final = replace(_ATTENTION_BIAS, qk_norm="head")
_COHERE: Final = replace(_ATTENTION_BIAS, norm="scale", norms=1)
_HUNYUAN: Final = _QWEN3
_OLMO2: Final = replace(_ATTENTION_BIAS, qk_norm="full")
_USE_BIAS: Final = Decoder(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias")
_GLM: Final = Decoder(qkv_bias="attention_bias", fused_gate="gate_up_proj")
_PHI3: Final = Decoder(fused_qkv="qkv_proj", fused_gate="gate_up_proj")
_MOLMO2: Final = Decoder(
    qkv_bias="attention_bias",
    ties=False,
    rows=lambda config: config.integer("vocab_size") + config.integer("additional_vocab_size", minimum=0),
)
_TABLE: Final[dict[str, Decoder | Callable[[Config], Decoder]]] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "granite4_vision_text": _LLAMA,
    "granite_docling_text": _LLAMA,
    "granite_swa": replace(_LLAMA, sinks=True),
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "smollm3": _LLAMA,
    "hyperclovax": replace(_LLAMA, norms=lambda config: 4 if config.flag("use_post_norm") else 2),
    "mistral": _PLAIN,
    "ministral": _PLAIN,
    "ministral3": _PLAIN,
    "emu3_text_model": _LLAMA,
    "cwm": replace(_PLAIN, mlp_bias="mlp_bias"),
    "helium": Decoder(qkv_bias="attention_bias", mlp_bias="mlp_bias"),
    "seed_oss": Decoder(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "voxtral_realtime_text": replace(_PLAIN, extra=_adaptive_norm),
    "diffllama": replace(_ATTENTION_BIAS, extra=_lambdas),
    "bitnet": replace(_ATTENTION_BIAS, extra=_sub_norms),
    "apertus": replace(_ATTENTION_BIAS, qk_norm="head", gated=False, extra=_xielu),
    "arcee": replace(_LLAMA, gated=False),
    "cosmos3_edge_text": replace(_LLAMA, gated=False, names=("fc1", "fc2"), ties=False),
    "jais2": replace(_LLAMA, norm="layer", gated=False),
    "nemotron": replace(_LLAMA, norm="layer", gated=False),
    "nanochat": replace(_ATTENTION_BIAS, norms=0, final_norm=False, gated=False, names=("fc1", "fc2")),
    "gemma": _ATTENTION_BIAS,
    "gemma2": replace(_ATTENTION_BIAS, norms=4),
    "gemma3_text": replace(_ATTENTION_BIAS, norms=4, qk_norm="head"),
    "vaultgemma": _ATTENTION_BIAS,
    "muse_glimmer_text": replace(_ATTENTION_BIAS, norms=4, gate="full"),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_vl_text": _HUNYUAN,
    "exaone4": Decoder(qk_norm="head"),
    "olmo": replace(_ATTENTION_BIAS, norm="none"),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "cohere": replace(_COHERE, qk_norm="full", qk_norm_if="use_qk_norm"),
    "cohere2": _COHERE,
    "cohere_compass_text": _COHERE,
    "ernie4_5": _USE_BIAS,
    "paddleocr_vl_text": _USE_BIAS,
    "glm": _GLM,
    "glm4": replace(_GLM, norms=4),
    "glm4v_text": replace(_GLM, norms=4, qkv_bias=True),
    "glm_ocr_text": replace(_GLM, norms=4, qkv_bias=False),
    "phi3": _PHI3,
    "phi4_multimodal": _PHI3,
    "chameleon": replace(_LLAMA, qk_norm="full_layer"),
    "molmo2_text": _molmo2,
}

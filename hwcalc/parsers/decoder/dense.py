"""Dense models that resemble Llama."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder, untied
from hwcalc.parsers.decoder.layer_types import (
    FULL,
    SLIDING,
    by_window,
    first_of,
    from_a_layer_on,
    full,
    last_of,
    nullable_window,
    with_positions,
)
from hwcalc.parsers.reading import Readers, dims_of


def _smollm3_types(config: Config, count: int) -> list[str]:
    """Layers without rotary positions slide, if ``use_sliding_window``."""
    positions = with_positions(config, count)
    config.ignore("max_window_layers")
    window = config.maybe_integer("sliding_window", minimum=0)
    use = config.flag("use_sliding_window") and window
    return [SLIDING if use and not positions[i] else FULL for i in range(count)]


def all_or_none(config: Config, count: int) -> list[str]:
    """Every layer slides, and none does if the window is null."""
    return [FULL if config.maybe_integer("sliding_window") is None else SLIDING] * count


def every_fourth_from_the_end(_config: Config, count: int) -> list[str]:
    """Full attention on the last layer and on every fourth before it."""
    return [FULL if (count - 1 - i) % 4 == 0 else SLIDING for i in range(count)]


def _xielu(config: Config, _layer: Layer) -> Weighed:
    """The activation of Apertus has two learned numbers in each layer."""
    if config.get("hidden_act", "xielu") != "xielu":
        return ()
    return parameter("mlp.act_fn.alpha_p", 1) + parameter("mlp.act_fn.alpha_n", 1)


def _sub_norms(config: Config, _layer: Layer) -> Weighed:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    return rms_norm("self_attn.attn_sub_norm", hidden) + rms_norm("mlp.ffn_sub_norm", width)


def _lambdas(_config: Config, layer: Layer) -> Weighed:
    """DiffLlama has two pairs of vectors, as wide as a head, whose products weigh the second attention map."""
    head_dim = dims_of(layer).head_dim
    return tuple(weight for name in ("q1", "k1", "q2", "k2") for weight in parameter(f"self_attn.lambda_{name}", head_dim))


def _adaptive_norm(config: Config, _layer: Layer) -> Weighed:
    """Voxtral Realtime has a norm that depends on the delay, through two matrices of rank 32."""
    hidden = config.integer("hidden_size")
    return linear("ada_rms_norm.linear1", hidden, 32) + linear("ada_rms_norm.linear2", 32, hidden)


PLAIN: Final = Decoder()
MINISTRAL: Final = Decoder(types=all_or_none)
ATTENTION_BIAS: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias")

# Llama, and models that differ from it mostly in biases.
LLAMA: Final = replace(ATTENTION_BIAS, mlp_bias="mlp_bias")
GRANITE_SWA: Final = replace(LLAMA, types=first_of(4), sinks=True)
SMOLLM3: Final = replace(LLAMA, types=_smollm3_types)
HYPERCLOVAX: Final = replace(LLAMA, adapt=lambda config, spec: replace(spec, norms=4 if config.flag("use_post_norm") else 2))
CWM: Final = Decoder(types=first_of(4), mlp_bias="mlp_bias")
HELIUM: Final = Decoder(qkv_bias="attention_bias", mlp_bias="mlp_bias")
SEED_OSS: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias")
ERNIE: Final = Decoder(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias")
CHAMELEON: Final = replace(LLAMA, qk_norm="full_layer")
VOXTRAL_REALTIME: Final = Decoder(extra=_adaptive_norm)
DIFFLLAMA: Final = replace(ATTENTION_BIAS, extra=_lambdas)
BITNET: Final = replace(ATTENTION_BIAS, extra=_sub_norms)

# Without a gate in the MLP.
ARCEE: Final = replace(LLAMA, gated=False)
NEMOTRON: Final = replace(ARCEE, norm="layer")
COSMOS3_EDGE: Final = replace(ARCEE, names=("fc1", "fc2"), tied=untied)
APERTUS: Final = replace(ATTENTION_BIAS, qk_norm="head", gated=False, extra=_xielu)
NANOCHAT: Final = replace(ATTENTION_BIAS, norms=0, final_norm=False, gated=False, names=("fc1", "fc2"))

GEMMA: Final = ATTENTION_BIAS
VAULTGEMMA: Final = replace(GEMMA, types=last_of(2))
GEMMA2: Final = replace(VAULTGEMMA, norms=4)
GEMMA3: Final = replace(GEMMA, types=last_of(6, "sliding_window_pattern"), norms=4, qk_norm="head")
MUSE_GLIMMER: Final = replace(ATTENTION_BIAS, types=every_fourth_from_the_end, norms=4, gate="full")

QWEN2: Final = Decoder(types=from_a_layer_on, qkv_bias=True)
HEAD_NORM: Final = replace(ATTENTION_BIAS, qk_norm="head")
QWEN3: Final = replace(HEAD_NORM, types=from_a_layer_on)
EXAONE4: Final = Decoder(types=nullable_window, qk_norm="head")

OLMO: Final = replace(ATTENTION_BIAS, norm="none")
OLMO2: Final = replace(ATTENTION_BIAS, qk_norm="full")
OLMO3: Final = replace(OLMO2, types=last_of(4))

COHERE: Final = replace(ATTENTION_BIAS, norm="scale", norms=1, qk_norm="full", qk_norm_if="use_qk_norm")
COHERE2: Final = replace(COHERE, types=last_of(4, "sliding_window_pattern"), qk_norm="")
COHERE_COMPASS: Final = replace(COHERE2, types=full("sliding_window_pattern"))

GLM: Final = Decoder(qkv_bias="attention_bias", fused_gate="gate_up_proj")
GLM4: Final = replace(GLM, norms=4)
GLM4V: Final = replace(GLM4, qkv_bias=True)
GLM_OCR: Final = replace(GLM4, qkv_bias=False)
PHI3: Final = Decoder(fused_qkv="qkv_proj", fused_gate="gate_up_proj")
MOLMO2: Final = Decoder(
    adapt=lambda config, spec: replace(spec, qk_norm="head" if config.text("qk_norm_type") == "qwen3" else "full"),
    qkv_bias="attention_bias",
    tied=untied,
    rows=lambda config: config.integer("vocab_size") + config.integer("additional_vocab_size", minimum=0),
)

# Nobody has counted the weights of these two.
EVOLLA: Final = Readers(layers=Decoder(types=by_window("resampler_heads", "resampler_dim_head")).read)
IDEFICS: Final = Readers(layers=Decoder(types=by_window("cross_layer_interval")).read)
"""The image layers cache nothing: they get the image's states anew at every step."""

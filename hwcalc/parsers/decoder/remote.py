"""Decoders whose code lives with the model and whose layers are alike: Llama or GPT under other key names.

Where each rule comes from (the model's own modeling file unless another is named):

- Llama-like, keys as transformers names them: aquila, arctic, bailing_moe (Ling, Ring), deepseek (the first), grok-1, internlm,
  internlm2, minicpm, orion, skywork, stablelm_epoch, xverse, Yi. ``head_dim`` absent is hidden_size // heads,
  ``num_key_value_heads`` absent is all heads.
- baichuan, qwen (the first): no key/value head key at all, every head has its own; qwen's width is ``kv_channels``.
- chatglm: ``multi_query_attention`` says whether ``multi_query_group_num`` counts (ChatGLM2 and later, GLM-4); the first
  ChatGLM has neither key. vLLM's ``configs/chatglm.py`` has the same pair with defaults false and 1.
- exaone (3.x), telechat: ``num_layers`` / ``n_layer``, ``n_head``; else as Llama.
- mimo: Qwen2's rule: ``use_sliding_window`` makes layers from ``max_window_layers`` on slide; published files say false.
- phi-msft: ``n_head_kv`` null is all heads. mixformer-sequential (its older name): all heads.
- phi3small: half of its layers are block-sparse. That is a pattern of what is *read* (16 local blocks and every eighth other
  one, a different eighth for each head): some head needs each block, so all are kept.
- plamo: ``n_shared_head`` query heads share one: heads / n_shared_head, rounded up. Its default is the class's 8.
- step1, step3_text: ``num_attention_groups`` key/value heads. Step-3's factorised queries (``share_q_dim``) are not cached:
  vLLM's ``step3_text.py`` keeps one key and one value of ``head_dim`` 256 (1,024 bytes a layer and token).
- RefinedWeb (Falcon-40B before its class) has ``n_head_kv``; RefinedWebModel (7B) and gpt_refact have ``multi_query``: one
  head. codeshell: ``num_query_groups`` heads. jais: GPT-2's names, every head its own.

Multi-token-prediction layers (``num_nextn_predict_layers``) follow the stack and are no part of it. Weights are counted by each
model's own modeling file; where a catalog gives a published size, it is met to the parameter (buffers apart).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import attention, gated_mlp, linear, rms_norm
from hwcalc.parsers.blocks import Weighed, rms_norms, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import (
    AFTER_PREFIX,
    Decoder,
    Experts,
    alike,
    attention_weights,
    mlp_weights,
    sparse_after,
    sparse_in_list,
    times,
    width,
)
from hwcalc.parsers.decoder.gpt import PHI
from hwcalc.parsers.decoder.layer_types import from_a_layer_on
from hwcalc.parsers.reading import AttentionDims, Readers, Reading, attention_dims, dims_of

# Heads and layers.


def _grouped(flag: str, key: str = "", *, default: bool = True) -> Callable[[Config], AttentionDims]:
    """If ``flag`` is set, ``key`` gives the number of key/value heads (1 without a key). If not, every head has its own."""

    def dims(config: Config) -> AttentionDims:
        own, groups = attention_dims(config), (config.maybe_integer(key) if key else None) or 1
        return replace(own, num_key_value_heads=groups if config.flag(flag, default=default) else own.num_attention_heads)

    return dims


def _plamo_dims(config: Config) -> AttentionDims:
    dims, sharing = attention_dims(config), config.maybe_integer("n_shared_head") or 8
    return replace(dims, num_key_value_heads=-(-dims.num_attention_heads // sharing))


def _minicpm_layers(config: Config) -> Reading:
    reading = alike()(config)
    # InfLLM-V2 also keeps a key for each block of tokens. No key of its config is read, so such a file is refused by name.
    config.sub("sparse_config")
    return reading


# What the config changes in the weights.


def _tied_unless_said(config: Config, top: Config) -> bool:
    """The head is tied unless the file says otherwise."""
    return config.get("tie_word_embeddings") is None or tied_head(config, top)


def _minicpm(config: Config, spec: Decoder) -> Decoder:
    """If ``num_experts`` is set, each layer has that many experts, each as wide as the MLP of a model without experts."""
    routed = config.maybe_integer("num_experts", minimum=0)
    return replace(spec, experts=Experts(width="intermediate_size")) if routed else spec


def _chatglm(config: Config, spec: Decoder) -> Decoder | None:
    """ChatGLM2, 3 and GLM-4; the first ChatGLM, which has no ``ffn_hidden_size``, is another model."""
    if not config.has("ffn_hidden_size"):
        return None
    biased = config.flag("add_bias_linear")
    return replace(
        spec,
        norm="rms" if config.flag("rmsnorm", default=True) else "layer",
        final_norm=config.flag("post_layer_norm", default=True),
        qkv_bias=biased or config.flag("add_qkv_bias"),
        o_bias=biased,
        mlp_bias=biased,
    )


def _qwen(config: Config, spec: Decoder) -> Decoder:
    biased = not config.flag("no_bias", default=True)
    return replace(spec, o_bias=biased, mlp_bias=biased)


def _arctic(config: Config, spec: Decoder) -> Decoder | None:
    """No model with dense layers between the experts is known that a count could be checked against."""
    return spec if (config.maybe_integer("moe_layer_frequency") or 1) == 1 else None


def _arctic_residual(config: Config, _layer: Layer) -> Weighed:
    """A dense MLP beside the experts, as wide as the hidden size, with a norm."""
    if not config.flag("use_residual", default=True):
        return ()
    hidden = config.integer("hidden_size")
    return gated_mlp(hidden, hidden, path="residual_mlp") + rms_norm("residual_layernorm", hidden)


def _step3(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """Step-3: queries pass through a low rank; all heads share one key and one value."""
    hidden, rank, dims = config.integer("hidden_size"), config.integer("share_q_dim"), dims_of(layer)
    own = attention(hidden, dims.num_attention_heads, dims.num_key_value_heads, dims.head_dim)
    return (
        *linear("self_attn.q_proj", hidden, rank),
        *rms_norm("self_attn.inter_norm", rank),
        *linear("self_attn.wq", rank, dims.num_attention_heads * dims.head_dim),
        *own[1:],
    )


def _mimo_mtp(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """MiMo: a projection and norms before a whole layer, and a norm after it."""
    hidden = config.integer("hidden_size")
    norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm", "final_layernorm")
    projection = linear("input_proj", 2 * hidden, hidden) + rms_norms(hidden, *norms)
    return projection + attention_weights(config, spec, layer) + mlp_weights(config, spec)


PLAIN: Final = Decoder(layers=alike())
_LLAMA: Final = replace(PLAIN, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
BAICHUAN: Final = replace(PLAIN, fused_qkv="W_pack")
EXAONE: Final = replace(PLAIN, attn="attn.attention", output="out_proj")
INTERNLM: Final = replace(PLAIN, qkv_bias="bias", o_bias="bias")
INTERNLM2: Final = replace(INTERNLM, attn="attention", fused_qkv="wqkv", output="wo", mlp="feed_forward")
ORION: Final = replace(PLAIN, norm="layer")
MINICPM: Final = replace(_LLAMA, layers=_minicpm_layers, adapt=_minicpm, tied=_tied_unless_said)
CHATGLM: Final = Decoder(
    layers=alike(_grouped("multi_query_attention", "multi_query_group_num", default=False)),
    adapt=_chatglm,
    attn="self_attention",
    fused_qkv="query_key_value",
    output="dense",
    fused_gate="dense_h_to_4h",
)
QWEN: Final = replace(
    PLAIN,
    adapt=_qwen,
    attn="attn",
    fused_qkv="c_attn",
    qkv_bias=True,
    output="c_proj",
    # intermediate_size is the width of gate and up together.
    width=lambda config: max(1, config.integer("intermediate_size") // 2),
)
DEEPSEEK: Final = replace(
    _LLAMA,
    mlp_bias=False,
    experts=AFTER_PREFIX,
)
BAILING: Final = Decoder(
    layers=alike(attention_dims, "max_window_layers", "sliding_window", "use_sliding_window"),
    attn="attention",
    fused_qkv="query_key_value",
    output="dense",
    qkv_bias="use_qkv_bias",
    o_bias="use_bias",
    qk_norm="head",
    qk_norm_if="use_qk_norm",
    experts=Experts(shared=times("num_shared_experts"), sparse=sparse_after("first_k_dense_replace")),
)
GROK: Final = Decoder(
    layers=alike(attention_dims, "attn_output_multiplier", "max_attn_value"), norms=4, experts=Experts(width="intermediate_size")
)
ARCTIC: Final = Decoder(
    layers=alike(attention_dims, "parallel_attn_mlp_res"),
    adapt=_arctic,
    extra=_arctic_residual,
    experts=Experts(count="num_local_experts", width="intermediate_size", path="block_sparse_moe"),
)
PHI_MSFT: Final = replace(
    PHI,
    layers=alike(),
    attn="mixer",
    fused_qkv="Wqkv",
    output="out_proj",
    qk_norm="",
    width=lambda config: config.maybe_integer("intermediate_size") or 4 * config.integer("hidden_size"),
)
PHI3_SMALL: Final = Decoder(
    layers=alike(
        attention_dims,
        "blocksparse_block_size",
        "blocksparse_homo_head_pattern",
        "blocksparse_num_local_blocks",
        "blocksparse_triton_kernel_block_size",
        "blocksparse_vert_stride",
        "dense_attention_every_n_layers",
    ),
    norm="layer",
    fused_qkv="query_key_value",
    output="dense",
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    fused_gate="up_proj",
    width="ff_intermediate_size",
    tied=_tied_unless_said,
)
MIMO: Final = Decoder(types=from_a_layer_on, qkv_bias="attention_bias", mtp=_mimo_mtp)
STEP3: Final = Decoder(
    layers=alike(attention_dims, "share_q_dim"),
    attention=_step3,
    experts=Experts(
        count="moe_num_experts",
        per_token="moe_top_k",
        shared=width("share_expert_dim"),
        shared_path="share_expert",
        sparse=sparse_in_list(1),
    ),
)

# Nobody has counted the weights of these.
ALIKE: Final = Readers(layers=alike())
CODESHELL: Final = Readers(layers=alike(_grouped("group_query_attention", "num_query_groups")))
MULTI_QUERY: Final = Readers(layers=alike(_grouped("multi_query")))
PLAMO: Final = Readers(layers=alike(_plamo_dims))

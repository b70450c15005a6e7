"""Models in the manner of GPT: layer norms, biases, fused projections, learned positions. One line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import (
    Block,
    Weight,
    WeightRole,
    attention,
    embedding,
    experts,
    gated_mlp,
    layer_norm,
    linear,
    rms_norm,
)
from hwcalc.parsers.blocks import head_block, norm, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, attention_dims
from hwcalc.parsers.weights.decoder import Decoder, Layers, attention_weights, build, grouped

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model type in the table."""
    return _TABLE[config.model_type or ""](config, top)


def _line(spec: Decoder) -> Callable[[Config, Config], tuple[Block, ...]]:
    return lambda config, top: build(config, top, spec)


def _equal_dims(config: Config) -> AttentionDims:
    """Every head has its own keys and values, and heads make up the hidden size."""
    heads = config.integer("num_attention_heads")
    head_dim = max(1, config.integer("hidden_size") // heads)
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=heads, head_dim=head_dim, v_head_dim=head_dim)


def _falcon_dims(config: Config) -> AttentionDims:
    """``multi_query`` is one key/value head, unless the new decoder architecture counts them in ``num_kv_heads``."""
    dims = _equal_dims(config)
    if config.flag("new_decoder_architecture"):
        return replace(dims, num_key_value_heads=config.maybe_integer("num_kv_heads") or dims.num_attention_heads)
    return replace(dims, num_key_value_heads=1) if config.flag("multi_query") else dims


def _falcon_norms(config: Config) -> int:
    """Two, but one where attention and MLP run in parallel on one normalised input."""
    if not config.flag("parallel_attn"):
        return 2
    number = config.maybe_integer("num_ln_in_parallel_attn")
    return 2 if number == 2 or (number is None and config.flag("new_decoder_architecture")) else 1


def _multi_query_dims(config: Config) -> AttentionDims:
    dims = _equal_dims(config)
    return replace(dims, num_key_value_heads=1) if config.flag("multi_query") else dims


def _inner(key: str) -> Callable[[Config], int]:
    """``key``, or four times the hidden size."""
    return lambda config: config.maybe_integer(key) or 4 * config.integer("hidden_size")


def _cross_attention(config: Config) -> tuple[Weight, ...]:
    """GPT-2 as the decoder of an encoder-decoder: attention to the encoder, with a norm of its own."""
    if not config.flag("add_cross_attention"):
        return ()
    hidden = config.integer("hidden_size")
    return (
        *layer_norm("ln_cross_attn", hidden),
        *linear("crossattention.q_attn", hidden, hidden, bias=True),
        *linear("crossattention.c_attn", hidden, 2 * hidden, bias=True),
        *linear("crossattention.c_proj", hidden, hidden, bias=True),
    )


def _encoder_attention(config: Config) -> tuple[Weight, ...]:
    """The same of the BART kind."""
    if not config.flag("add_cross_attention"):
        return ()
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    cross = attention(hidden, heads, heads, hidden // heads, qkv_bias=True, o_bias=True, path="encoder_attn", output="out_proj")
    return cross + layer_norm("encoder_attn_layer_norm", hidden)


def _kosmos_norms(config: Config) -> tuple[Weight, ...]:
    """Kosmos: a norm in the middle of the MLP, and in Kosmos-2 one before the attention's output."""
    inner = layer_norm("ffn.ffn_layernorm", config.integer("ffn_dim"))
    if config.model_type == "kosmos_2_text_model":
        inner += layer_norm("self_attn.inner_attn_ln", config.integer("hidden_size"))
    return inner + _encoder_attention(config)


def _segments(config: Config) -> tuple[Weight, ...]:
    return embedding("segment_emb", 2, config.integer("hidden_size"))


def _embedding_norm(config: Config) -> tuple[Weight, ...]:
    return layer_norm("word_embeddings_layernorm", config.integer("hidden_size"))


def _last_bias(config: Config) -> tuple[Weight, ...]:
    """Only the last layer of the Japanese GPT-NeoX adds a bias to its attention's output."""
    return (Weight(path="attention.dense_bias", shape=(config.integer("hidden_size"),), role=WeightRole.BIAS),)


def _opt(config: Config, top: Config) -> tuple[Block, ...]:
    """OPT: embeddings may be narrower than the layers (350M), with projections between; norms may stand after (350M)."""
    hidden = config.integer("hidden_size")
    embedded = config.maybe_integer("word_embed_proj_dim") or hidden
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    after = not config.flag("do_layer_norm_before", default=True) or config.flag("_remove_final_layer_norm")
    spec = replace(_OPT, norm="layer" if affine else "none", final_norm=not after)
    out = [block for block in build(config, top, spec) if block.kind != "head"]
    out[0] = Block(kind="embedding", weights=embedding("model.decoder.embed_tokens", config.integer("vocab_size"), embedded))
    if embedded != hidden:
        projections = linear("project_in", embedded, hidden) + linear("project_out", hidden, embedded)
        out.append(Block(kind="extra", weights=projections))
    return (*out, *head_block(config, tied=tied_head(config, top), width=embedded))


def _stablelm(config: Config, top: Config) -> tuple[Block, ...]:
    """StableLM: with ``use_parallel_residual`` attention and MLP share a norm."""
    return build(config, top, replace(_STABLELM, norms=1 if config.flag("use_parallel_residual") else 2))


def _dbrx(config: Config, top: Config) -> tuple[Block, ...]:
    """DBRX keeps its dimensions in ``attn_config`` and ``ffn_config``, with defaults of 1, 3,584, 4 and 1."""
    attn, ffn = (config.sub(key) or Config({}, None, key) for key in ("attn_config", "ffn_config"))
    hidden = config.integer("hidden_size")
    count, active = (ffn.maybe_integer("moe_num_experts") or 4, ffn.maybe_integer("moe_top_k") or 1)
    expert = gated_mlp(hidden, ffn.maybe_integer("ffn_hidden_size") or 3584, path="ffn.experts.mlp")
    router = linear("ffn.router.layer", hidden, count, role=WeightRole.ROUTER)
    groups = attn.maybe_integer("kv_n_heads") or 1
    spec = replace(
        _DBRX,
        dims=lambda config: replace(_equal_dims(config), num_key_value_heads=groups),
        mlps=lambda _config, _spec, layers: [(experts(expert, count, active) + router, layers)],
    )
    return build(config, top, spec)


def _jetmoe(config: Config, top: Config) -> tuple[Block, ...]:
    """JetMoE: the attention's query and output projections are experts too; keys and values are shared."""
    hidden, count = config.integer("hidden_size"), config.integer("num_local_experts")
    active, inner = config.integer("num_experts_per_tok"), config.integer("head_dim") * config.integer("num_key_value_heads")

    def mixture(path: str, up: int, down: int) -> tuple[Weight, ...]:
        expert = linear(f"{path}.input_linear", hidden, up) + linear(f"{path}.output_linear", down, hidden)
        return (
            *experts(expert, count, active),
            *linear(f"{path}.router.layer", hidden, count, role=WeightRole.ROUTER),
            Weight(path=f"{path}.bias", shape=(hidden,), role=WeightRole.BIAS),
        )

    width = config.integer("intermediate_size")
    mixed = mixture("self_attention.experts", inner, inner) + linear("self_attention.kv_proj", hidden, 2 * inner)
    spec = Decoder(
        attentions=lambda _config, _spec, layers: [(mixed, layers)],
        mlps=lambda _config, _spec, layers: [(mixture("mlp", 2 * width, width), layers)],
    )
    return build(config, top, spec)


def _hrm(config: Config, top: Config) -> tuple[Block, ...]:
    """HRM: two stacks of the same shape, each run several times; no norm has weights.

    ``num_hidden_layers`` is a stack's depth, or where ``num_layers_per_stack`` stands beside it the number of runs.
    """
    depth = config.maybe_integer("num_layers_per_stack") or config.number_of_layers()
    spec = replace(_HRM, layers=lambda _config: 2 * depth)
    return build(config, top, spec)


def _modernbert(config: Config, top: Config) -> tuple[Block, ...]:
    """ModernBERT as a decoder: no norm before the first attention, one after the embedding, and a head of two layers."""
    hidden = config.integer("hidden_size")
    kind = "layer" if config.flag("norm_bias") else "scale"

    def attentions(config: Config, spec: Decoder, layers: int) -> Layers:
        bare = attention_weights(config, spec)
        normed = bare + norm(kind, "attn_norm", hidden)
        return grouped([bare, *[normed] * (layers - 1)])

    def outer(config: Config) -> tuple[Weight, ...]:
        dense = linear("lm_head.dense", hidden, hidden, bias=config.flag("classifier_bias"))
        return norm(kind, "embeddings.norm", hidden) + dense + norm(kind, "lm_head.norm", hidden)

    return build(config, top, replace(_MODERNBERT, norm=kind, attentions=attentions, outer=outer))


def _moshi(config: Config, top: Config) -> tuple[Block, ...]:
    """Moshi's language model on its own; the whole model, with codec and depth decoder, is not counted."""
    names = top.get("architectures")
    if not isinstance(names, list) or names[:1] != ["MoshiForCausalLM"]:
        return ()
    return build(config, top, _MOSHI)


def _gated_halves(config: Config, spec: Decoder, count: int) -> Layers:
    """``ffn_dim`` is the width of gate and value together: one matrix in, half of it out."""
    hidden, both = config.integer("hidden_size"), config.integer("ffn_dim")
    return [(linear("mlp.fc1", hidden, both) + linear("mlp.fc2", both // 2, hidden), count)]


_GPT2: Final = Decoder(
    norm="layer",
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    attn="attn",
    fused_qkv="c_attn",
    output="c_proj",
    gated=False,
    names=("c_fc", "c_proj"),
    width=_inner("n_inner"),
    dims=_equal_dims,
    positions=0,
    extra=_cross_attention,
)
_GPTJ: Final = Decoder(
    norm="layer",
    norms=1,
    attn="attn",
    output="out_proj",
    mlp_bias=True,
    gated=False,
    names=("fc_in", "fc_out"),
    width=_inner("n_inner"),
    dims=_equal_dims,
    head_bias=True,
)
_NEOX: Final = Decoder(
    norm="layer",
    attn="attention",
    fused_qkv="query_key_value",
    output="dense",
    gated=False,
    names=("dense_h_to_4h", "dense_4h_to_h"),
    dims=_equal_dims,
)
_BIASED_NEOX: Final = replace(_NEOX, qkv_bias=True, o_bias=True, mlp_bias=True)
_BART: Final = Decoder(
    norm="layer",
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    output="out_proj",
    mlp="layer",
    gated=False,
    names=("fc1", "fc2"),
    dims=_equal_dims,
)
_OPT: Final = replace(_BART, qkv_bias="enable_bias", o_bias="enable_bias", mlp_bias="enable_bias", width="ffn_dim", positions=2)
_STABLELM: Final = Decoder(norm="layer", qkv_bias="use_qkv_bias", qk_norm="full", qk_norm_if="qk_layernorm")
_DBRX: Final = Decoder(norm="scale", attn="norm_attn_norm.attn", fused_qkv="Wqkv", output="out_proj")
_HRM: Final = Decoder(
    norms=0,
    final_norm=False,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    dims=lambda config: replace(attention_dims(config), num_key_value_heads=config.integer("num_attention_heads")),
    extra=lambda config: linear(
        "self_attn.gate_proj",
        config.integer("hidden_size"),
        config.integer("num_attention_heads") * attention_dims(config).head_dim,
        bias=config.flag("attention_bias"),
    ),
    outer=lambda config: rms_norm("z_L_init", config.integer("hidden_size")),
)
_MODERNBERT: Final = Decoder(
    norms=1,
    attn="attn",
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    output="Wo",
    mlp_bias="mlp_bias",
    fused_gate="Wi",
    dims=_equal_dims,
    head_bias="decoder_bias",
)


def _codebook_rows(config: Config) -> int:
    """A row for each text token, each code of each codebook, and one for what is absent."""
    codes = config.integer("num_codebooks") * config.integer("codebook_vocab_size")
    return config.integer("vocab_size") + codes + 1


_KYUTAI: Final = Decoder(ties=False, rows=_codebook_rows, mlps=_gated_halves)
_MOSHI: Final = Decoder(ties=False, rows=lambda config: config.integer("vocab_size") + 1, mlps=_gated_halves)
_TABLE: Final[dict[str, Callable[[Config, Config], tuple[Block, ...]]]] = {
    "gpt2": _line(_GPT2),
    "gpt-sw3": _line(_GPT2),
    "gpt_bigcode": _line(replace(_GPT2, dims=_multi_query_dims)),
    "gpt_neo": _line(
        replace(
            _GPT2,
            attn="attn.attention",
            fused_qkv="",
            output="out_proj",
            qkv_bias=False,
            width=_inner("intermediate_size"),
            extra=None,
        )
    ),
    "gptj": _line(_GPTJ),
    "codegen": _line(replace(_GPTJ, fused_qkv="qkv_proj")),
    "ctrl": _line(
        replace(
            _GPT2,
            attn="multi_head_attention",
            output="dense",
            fused_qkv="",
            width="dff",
            positions=None,
            extra=None,
            head_bias=True,
        )
    ),
    "gpt_neox": _line(replace(_BIASED_NEOX, qkv_bias="attention_bias", o_bias="attention_bias")),
    "gpt_neox_japanese": _line(
        replace(
            _NEOX,
            width=lambda config: config.integer("intermediate_multiple_size") * config.integer("hidden_size"),
            outer=_last_bias,
        )
    ),
    "bloom": _line(replace(_BIASED_NEOX, attn="self_attention", width=_inner("n_inner"), outer=_embedding_norm)),
    "falcon": _line(
        replace(
            _NEOX,
            attn="self_attention",
            qkv_bias="bias",
            o_bias="bias",
            mlp_bias="bias",
            norms=_falcon_norms,
            dims=_falcon_dims,
            width=_inner("ffn_hidden_size"),
        )
    ),
    "persimmon": _line(replace(_BIASED_NEOX, attn="self_attn", qk_norm="head_layer", qk_norm_if="qk_layernorm")),
    "phi": _line(
        replace(
            _BIASED_NEOX,
            attn="self_attn",
            fused_qkv="",
            names=("fc1", "fc2"),
            norms=1,
            dims=attention_dims,
            qk_norm="head_layer",
            qk_norm_if="qk_layernorm",
            head_bias=True,
        )
    ),
    "mpt": _line(
        replace(
            _NEOX,
            norm="scale",
            attn="attn",
            fused_qkv="Wqkv",
            output="out_proj",
            mlp="ffn",
            names=("up_proj", "down_proj"),
            width=_inner("n_inner"),
        )
    ),
    "biogpt": _line(replace(_BART, positions=2)),
    "xglm": _line(replace(_BART, width="ffn_dim", extra=_encoder_attention)),
    "kosmos_2_text_model": _line(replace(_BART, mlp="ffn", width="ffn_dim", extra=_kosmos_norms)),
    "kosmos_2_5_text_model": _line(replace(_BART, mlp="ffn", width="ffn_dim", extra=_kosmos_norms, outer=_segments)),
    "opt": _opt,
    "starcoder2": _line(
        Decoder(norm="layer", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", gated=False, names=("c_fc", "c_proj"))
    ),
    "stablelm": _stablelm,
    "dbrx": _dbrx,
    "jetmoe": _jetmoe,
    "hrm_text": _hrm,
    "modernbert-decoder": _modernbert,
    "moshi": _moshi,
    "kyutai_speech_to_text": _line(_KYUTAI),
}

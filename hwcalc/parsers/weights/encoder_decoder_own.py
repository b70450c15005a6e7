"""Encoder-decoder models of a build of their own: ProphetNet, MusicGen's decoder, Moonshine, Dia, Canary, Cohere's ASR.

Mirrors ``modeling_*.py`` of those names in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, gated_mlp, layer_norm, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import AttentionDims, attention_dims
from hwcalc.parsers.weights.encoder_decoder import form
from hwcalc.parsers.weights.speech import parakeet

__all__ = ["blocks"]

_ENCODER: Final = Part.ENCODER


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks of one of the models above, or ``None`` for a class of another form."""
    found = _RULES[config.model_type or ""](config, top)
    return None if found is None else tuple(found)


def _head(path: str, width: int, vocab: int, *, bias: bool = False) -> Block:
    return Block(kind="head", weights=linear(path, width, vocab, bias=bias, role=WeightRole.HEAD))


def _chain(
    path: str, width: int, inner: int, names: tuple[str, str] = ("fc1", "fc2"), *, bias: bool = True
) -> tuple[Weight, ...]:
    prefix = f"{path}." if path else ""
    return linear(f"{prefix}{names[0]}", width, inner, bias=bias) + linear(f"{prefix}{names[1]}", inner, width, bias=bias)


def _mha(path: str, width: int, names: tuple[str, str, str, str], *, bias: bool = True) -> tuple[Weight, ...]:
    return tuple(weight for name in names for weight in linear(f"{path}.{name}", width, width, bias=bias))


def _projections(
    path: str, width: int, dims: AttentionDims, *, source: int | None = None, bias: bool = False, o_bias: bool = False
) -> tuple[Weight, ...]:
    queries, keys = dims.num_attention_heads * dims.head_dim, dims.num_key_value_heads * dims.head_dim
    return (
        *linear(f"{path}.q_proj", width, queries, bias=bias),
        *linear(f"{path}.k_proj", source or width, keys, bias=bias),
        *linear(f"{path}.v_proj", source or width, keys, bias=bias),
        *linear(f"{path}.o_proj", queries, width, bias=o_bias),
    )


def _prophetnet(config: Config, top: Config) -> list[Block] | None:
    """ProphetNet: the decoder's self attention predicts n-grams, from relative positions by a matrix of its own."""
    kind = form(config)
    if kind not in ("both", "body", "decoder"):
        return None
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    names = ("key_proj", "value_proj", "query_proj", "out_proj")
    rows = config.integer("max_position_embeddings")
    out = [Block(kind="embedding", weights=embedding("word_embeddings", vocab, width))]
    for side, part in (("encoder", _ENCODER), ("decoder", Part.LANGUAGE)):
        decoder = side == "decoder"
        if not decoder and kind == "decoder":
            continue
        count = config.integer(f"num_{side}_layers", maximum=MAX_LAYERS)
        outside = embedding(f"{side}.position_embeddings", rows, width) + layer_norm(f"{side}.embeddings_layer_norm", width)
        own = _mha("self_attn", width, names) + layer_norm("self_attn_layer_norm", width)
        if decoder:
            outside += embedding("decoder.ngram_embeddings", config.integer("ngram"), width)
            buckets = config.integer("num_buckets") * config.integer("num_decoder_attention_heads")
            own += linear("self_attn.relative_pos_embeddings", width, buckets, bias=True)
            cross = _mha("cross_attn", width, names) + layer_norm("cross_attn_layer_norm", width)
            if config.flag("add_cross_attention"):
                out.append(Block(kind="cross_attention", weights=cross, count=count))
        mlp = _chain("feed_forward", width, config.integer(f"{side}_ffn_dim"), ("intermediate", "output"))
        out += [
            Block(kind="embedding", weights=outside, part=part),
            Block(kind="attention", weights=own, part=part, count=count),
            Block(kind="mlp", weights=mlp + layer_norm("feed_forward_layer_norm", width), part=part, count=count),
        ]
    if not tied_head(config, top):
        # Both sides then have the table once more.
        own_tables = 0 if kind == "body" else 1
        tables = {"decoder": ("decoder",), "both": ("encoder", "decoder"), "body": ("encoder", "decoder")}[kind]
        out += [Block(kind="embedding", weights=embedding(f"{side}.word_embeddings", vocab, width)) for side in tables]
        out += [_head("lm_head", width, vocab)] * own_tables
    return out


def _musicgen(config: Config, top: Config) -> list[Block] | None:
    """MusicGen's decoder alone: a table and a head for each codebook. The melody model has no cross attention."""
    if form(config) != "decoder" or not (config.model_type or "").endswith("_decoder"):
        return None
    width, vocab, books = config.integer("hidden_size"), config.integer("vocab_size"), config.integer("num_codebooks")
    count, names = config.number_of_layers(), ("k_proj", "v_proj", "q_proj", "out_proj")
    layer = _mha("self_attn", width, names, bias=False) + layer_norm("self_attn_layer_norm", width)
    mlp = _chain("", width, config.integer("ffn_dim"), bias=False) + layer_norm("final_layer_norm", width)
    out = [
        Block(kind="embedding", weights=embedding("decoder.embed_tokens", vocab + 1, width), count=books),
        Block(kind="norm", weights=layer_norm("decoder.layer_norm", width)),
        Block(kind="attention", weights=layer, count=count),
        Block(kind="mlp", weights=mlp, count=count),
        Block(kind="head", weights=linear("lm_heads", width, vocab, role=WeightRole.HEAD), count=books),
    ]
    if config.model_type == "musicgen_decoder":
        cross = _mha("encoder_attn", width, names, bias=False) + layer_norm("encoder_attn_layer_norm", width)
        out.append(Block(kind="cross_attention", weights=cross, count=count))
    return out


def _moonshine(config: Config, top: Config) -> list[Block] | None:
    """Moonshine: three convolutions over the samples themselves; the decoder's MLP is gated, norms have no shift."""
    if form(config) != "both":
        return None
    width, inner, vocab = config.integer("hidden_size"), config.integer("intermediate_size"), config.integer("vocab_size")
    bias = config.flag("attention_bias")
    front = convolution("encoder.conv1", width, 127) + convolution("encoder.conv2", 2 * width, 7, inputs=width, bias=True)
    front += convolution("encoder.conv3", width, 3, inputs=2 * width, bias=True) + layer_norm("encoder.groupnorm", width)
    out = [Block(kind="convolution", weights=front + rms_norm("encoder.layer_norm", width), part=_ENCODER)]
    for side, part in (("encoder", _ENCODER), ("decoder", Part.LANGUAGE)):
        heads = config.integer(f"{side}_num_attention_heads")
        kv_heads = config.maybe_integer(f"{side}_num_key_value_heads") or heads
        size = config.maybe_integer("head_dim") or max(1, width // heads)
        dims = AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=size, v_head_dim=size)
        count = config.integer(f"{side}_num_hidden_layers", maximum=MAX_LAYERS)
        norms = rms_norm("input_layernorm", width) + rms_norm("post_attention_layernorm", width)
        mlp = _chain("mlp", width, inner)
        if side == "decoder":
            norms += rms_norm("final_layernorm", width)
            mlp = linear("mlp.fc1", width, 2 * inner, bias=True) + linear("mlp.fc2", inner, width, bias=True)
            cross = _projections("encoder_attn", width, dims, bias=bias)
            out.append(Block(kind="cross_attention", weights=cross, count=count))
        out += [
            Block(kind="attention", weights=_projections("self_attn", width, dims, bias=bias), part=part, count=count),
            Block(kind="mlp", weights=mlp, part=part, count=count),
            Block(kind="norm", weights=norms, part=part, count=count),
        ]
    table = embedding("decoder.embed_tokens", vocab, width) + rms_norm("decoder.norm", width)
    out.append(Block(kind="embedding", weights=table))
    return out if tied_head(config, top) else [*out, _head("proj_out", width, vocab)]


def _dia(config: Config, top: Config) -> list[Block] | None:
    """Dia: bytes in, one table and one head over all audio channels out."""
    encoder = config.part("encoder_config")
    decoder = config.sub("decoder_config", "dia_decoder") or config.retyped("dia_decoder")
    if form(config) != "both" or encoder is None:
        return None
    width, vocab = encoder.integer("hidden_size"), encoder.integer("vocab_size")
    count, part = encoder.number_of_layers(), _ENCODER
    own = _projections("self_attention", width, attention_dims(encoder))
    out = [
        Block(kind="embedding", weights=embedding("encoder.embedding", vocab, width), part=part),
        Block(kind="attention", weights=own, part=part, count=count),
        Block(kind="mlp", weights=_fused_mlp(encoder, width), part=part, count=count),
        Block(kind="norm", weights=rms_norm("pre_sa_norm", width) + rms_norm("post_sa_norm", width), part=part, count=count),
        Block(kind="norm", weights=rms_norm("encoder.norm", width), part=part),
    ]
    wide, channels = decoder.integer("hidden_size"), decoder.integer("num_channels") * decoder.integer("vocab_size")
    heads = decoder.integer("cross_num_attention_heads")
    size = decoder.integer("cross_head_dim")
    kv_heads = decoder.maybe_integer("cross_num_key_value_heads") or heads
    dims = AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=size, v_head_dim=size)
    cross = _projections("cross_attention", wide, dims, source=decoder.integer("cross_hidden_size"))
    count = decoder.number_of_layers()
    norms = tuple(weight for name in ("sa", "ca", "mlp") for weight in rms_norm(f"pre_{name}_norm", wide))
    return [
        *out,
        Block(kind="embedding", weights=embedding("decoder.embeddings.embed", channels, wide)),
        Block(kind="attention", weights=_projections("self_attention", wide, attention_dims(decoder)), count=count),
        Block(kind="cross_attention", weights=cross, count=count),
        Block(kind="mlp", weights=_fused_mlp(decoder, wide), count=count),
        Block(kind="norm", weights=norms, count=count),
        Block(kind="norm", weights=rms_norm("decoder.norm", wide)),
        _head("logits_dense", wide, channels),
    ]


def _fused_mlp(config: Config, width: int) -> tuple[Weight, ...]:
    return gated_mlp(width, config.integer("intermediate_size"), fused="gate_up_proj")


def _transcriber(config: Config, top: Config) -> list[Block] | None:
    """Canary and Cohere's ASR: a plain decoder over a Parakeet encoder. The head has a bias, tied or not."""
    cohere = config.model_type == "cohere_asr"
    encoder = config.part("encoder_config")
    decoder = config if cohere else config.sub("decoder_config", "canary_decoder") or config.retyped("canary_decoder")
    if form(config) != "both" or encoder is None:
        return None
    width, vocab, bias = decoder.integer("hidden_size"), decoder.integer("vocab_size"), decoder.flag("attention_bias")
    dims, count = attention_dims(decoder), decoder.number_of_layers()
    norms = ("input_layernorm", "post_attention_layernorm", "final_layernorm")
    outside = embedding("decoder.embed_tokens", vocab, width)
    outside += layer_norm("decoder.norm", width) + layer_norm("decoder.embedding_layernorm", width)
    if cohere:
        outside += embedding("decoder.pos_emb", decoder.integer("max_position_embeddings"), width)
        outside += linear("decoder.proj", encoder.integer("hidden_size"), width, bias=True)
    out = [
        *parakeet(encoder, "encoder"),
        Block(kind="embedding", weights=outside),
        Block(kind="attention", weights=_projections("self_attn", width, dims, bias=bias, o_bias=bias), count=count),
        Block(kind="cross_attention", weights=_projections("encoder_attn", width, dims, bias=bias, o_bias=bias), count=count),
        Block(kind="mlp", weights=_chain("mlp", width, decoder.integer("intermediate_size")), count=count),
        Block(kind="norm", weights=tuple(weight for name in norms for weight in layer_norm(name, width)), count=count),
    ]
    if tied_head(decoder, top):
        return [*out, Block(kind="head", weights=parameter("proj_out.bias", vocab, role=WeightRole.BIAS))]
    return [*out, _head("proj_out", width, vocab, bias=True)]


_RULES: Final[dict[str, Callable[[Config, Config], list[Block] | None]]] = {
    "canary": _transcriber,
    "cohere_asr": _transcriber,
    "dia": _dia,
    "moonshine": _moonshine,
    "musicgen_decoder": _musicgen,
    "musicgen_melody_decoder": _musicgen,
    "prophetnet": _prophetnet,
}

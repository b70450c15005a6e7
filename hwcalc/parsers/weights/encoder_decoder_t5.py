"""T5 and what descends from it: mT5, UMT5, LongT5, Switch, UDOP, Pop2Piano, Pix2Struct, and T5Gemma.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Files of T5 1.1, Flan and mT5 say that the head is not tied:
there the library ties it all the same, until it meets a checkpoint whose two tables differ, as theirs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas.weights import (
    Block,
    Part,
    Weight,
    WeightRole,
    attention,
    embedding,
    experts,
    gated_mlp,
    linear,
    parameter,
    rms_norm,
)
from hwcalc.parsers.blocks import Named, repeated, tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import attention_dims
from hwcalc.parsers.weights.encoder_decoder import form
from hwcalc.parsers.weights.towers import UnknownTowerError, patch_conv, tower

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks of one of the models above, or ``None`` for a class that is neither the whole model nor its encoder."""
    kind = form(config)
    if kind not in ("both", "body", "encoder"):
        return None
    found = _RULES[config.model_type or ""](config, top, kind)
    return None if found is None else tuple(found)


def _t5(config: Config, top: Config, kind: str) -> list[Block] | None:
    width, vocab = config.integer("d_model"), config.integer("vocab_size")
    name = config.model_type
    out = [Block(kind="embedding", weights=embedding("shared", vocab, width))]
    head = Block(kind="head", weights=linear("lm_head", width, vocab, role=WeightRole.HEAD))
    untied = not tied_head(config, top) if name == "switch_transformers" else config.get("tie_word_embeddings") is False
    if name == "switch_transformers" and untied:
        sides = ("encoder",) if kind == "encoder" else ("encoder", "decoder")
        out += [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
    if kind == "both" and name != "udop" and (untied or name == "pop2piano"):
        out.append(head)
    if name == "pop2piano":
        composers = config.integer("composer_vocab_size")
        out.append(Block(kind="embedding", weights=embedding("mel_conditioner.embedding", composers, width), part=Part.AUDIO))
    out += _side(config, "encoder")
    if kind != "encoder":
        out += _side(config, "decoder")
    if name == "udop":
        return out + _udop(config, width) if kind == "both" else None
    return out


def _side(config: Config, side: str) -> list[Block]:
    """Layers and final norm of one side."""
    width, encoder = config.integer("d_model"), side == "encoder"
    part = Part.ENCODER if encoder else Part.LANGUAGE
    count = config.integer("num_layers", maximum=MAX_LAYERS)
    if not encoder:
        count = config.maybe_integer("num_decoder_layers", maximum=MAX_LAYERS) or count
    every = config.model_type == "umt5"
    step = _sparse_step(config, count, side) if config.model_type == "switch_transformers" else 0
    layers = [(i == 0 or every, step > 0 and (step == 1 or i % step == 1)) for i in range(count)]
    out = repeated(layers, lambda key: _layer(config, encoder=encoder, biased=key[0], routed=key[1]), part)
    return [*out, Block(kind="norm", weights=rms_norm(f"{side}.final_layer_norm", width), part=part)]


def _sparse_step(config: Config, count: int, side: str) -> int:
    """Every how many layers experts stand; a class that is told of none puts them nowhere but on its second layer's multiple."""
    sparse = config.maybe_integer(f"num_sparse_{side}_layers", minimum=0) or 0
    return count // sparse if sparse > 0 else count


def _projections(width: int, inner: int, path: str) -> tuple[Weight, ...]:
    own = tuple(weight for name in "qkv" for weight in linear(f"{path}.{name}", width, inner))
    return own + linear(f"{path}.o", inner, width)


def _layer(config: Config, *, encoder: bool, biased: bool, routed: bool) -> Iterator[Named]:
    width, heads = config.integer("d_model"), config.integer("num_heads")
    inner, buckets = heads * config.integer("d_kv"), config.integer("relative_attention_num_buckets")
    spread = encoder and config.model_type == "longt5" and config.text("encoder_attention_type") == "transient-global"
    path = "layer.0.SelfAttention"
    own = _projections(width, inner, path)
    if spread:
        own += rms_norm(f"{path}.global_input_layer_norm", width)
    yield "attention", own + rms_norm("layer.0.layer_norm", width)
    if biased:
        names = ("relative_attention_bias", "global_relative_attention_bias") if spread else ("relative_attention_bias",)
        yield "positions", tuple(weight for name in names for weight in embedding(f"{path}.{name}", buckets, heads))
    if not encoder:
        yield "cross_attention", _projections(width, inner, "layer.1.EncDecAttention") + rms_norm("layer.1.layer_norm", width)
    yield "moe" if routed else "mlp", _feed_forward(config, width, routed=routed)
    yield "norm", rms_norm("layer.2.layer_norm", width)


def _feed_forward(config: Config, width: int, *, routed: bool) -> tuple[Weight, ...]:
    """One matrix up and one down, or gate, up and down where ``feed_forward_proj`` says gated."""
    inner = config.integer("d_ff")
    path = "layer.2.mlp.experts" if routed else "layer.2.DenseReluDense"
    gated = config.model_type != "switch_transformers" and (config.text("feed_forward_proj") or "").startswith("gated")
    up = (
        linear(f"{path}.wi_0", width, inner) + linear(f"{path}.wi_1", width, inner)
        if gated
        else linear(f"{path}.wi", width, inner)
    )
    mlp = up + linear(f"{path}.wo", inner, width)
    if not routed:
        return mlp
    count, bias = config.integer("num_experts"), config.flag("router_bias")
    return experts(mlp, count, 1) + linear("layer.2.mlp.router.classifier", width, count, bias=bias, role=WeightRole.ROUTER)


def _udop(config: Config, width: int) -> list[Block]:
    """UDOP: patches of the page for each side, where on the page a word stands, and biases by distance on the page."""
    args = config.sequence("relative_bias_args")
    types = ["1d", "horizontal", "vertical"] if args is None else [arg.get("type") for arg in args if isinstance(arg, dict)]
    buckets, heads = config.integer("relative_attention_num_buckets"), config.integer("num_heads")
    cells = config.integer("max_2d_position_embeddings")
    places: tuple[Weight, ...] = ()
    for axis in "xy":
        places += embedding(f"encoder.cell_2d_embedding.{axis}_position_embeddings", cells, width)
    out = [Block(kind="embedding", weights=places, part=Part.ENCODER)]
    for side, path in (("encoder", "patch_embed.proj"), ("decoder", "decoder.embed_patches.proj")):
        # The first bias is the layers' own.
        biases: tuple[Weight, ...] = ()
        for i, name in enumerate(types):
            if name != "1d":
                biases += embedding(f"{side}.relative_bias.biases.{i}.relative_attention_bias", buckets, heads)
        part = Part.ENCODER if side == "encoder" else Part.LANGUAGE
        out.append(Block(kind="positions", weights=biases, part=part))
        out.append(Block(kind="patches", weights=patch_conv(config, path, width), part=Part.VISION))
    return out


def _pix2struct(config: Config, top: Config, kind: str) -> list[Block] | None:
    """A T5 decoder over an encoder of image patches, which numbers rows and columns."""
    text = config.sub("text_config", "pix2struct_text_model") or config.retyped("pix2struct_text_model")
    vision = config.part("vision_config")
    if vision is None or kind != "both":
        return None
    width, inner = vision.integer("hidden_size"), vision.integer("num_attention_heads") * vision.integer("d_kv")
    path = "encoder.encoder.layer"
    layer = tuple(weight for name in ("query", "key", "value") for weight in linear(f"{path}.attention.{name}", width, inner))
    layer += linear(f"{path}.attention.output", inner, width) + _gated(width, vision.integer("d_ff"), f"{path}.mlp")
    layer += rms_norm(f"{path}.pre_mlp_layer_norm", width) + rms_norm(f"{path}.pre_attention_layer_norm", width)
    patches = linear("encoder.embeddings.patch_projection", vision.integer("patch_embed_hidden_size"), width, bias=True)
    for name in ("row", "column"):
        patches += embedding(f"encoder.embeddings.{name}_embedder", vision.integer("seq_len"), width)
    count = vision.integer("num_hidden_layers", maximum=MAX_LAYERS)
    return [
        Block(kind="patches", weights=patches + rms_norm("encoder.layernorm", width), part=Part.VISION),
        Block(kind="vision_layer", weights=layer, part=Part.VISION, count=count),
        *_pix2struct_decoder(text, tied=tied_head(text, top)),
    ]


def _gated(width: int, inner: int, path: str) -> tuple[Weight, ...]:
    return linear(f"{path}.wi_0", width, inner) + linear(f"{path}.wi_1", width, inner) + linear(f"{path}.wo", inner, width)


def _pix2struct_decoder(text: Config, *, tied: bool) -> list[Block]:
    width, vocab, heads = text.integer("hidden_size"), text.integer("vocab_size"), text.integer("num_heads")
    inner = heads * text.integer("d_kv")
    layer: tuple[Weight, ...] = ()
    for place in ("self_attention", "encoder_decoder_attention"):
        for name in ("query", "key", "value"):
            layer += linear(f"{place}.attention.{name}", width, inner)
        layer += linear(f"{place}.attention.output", inner, width) + rms_norm(f"{place}.layer_norm", width)
    mlp = _gated(width, text.integer("d_ff"), "mlp.DenseReluDense") + rms_norm("mlp.layer_norm", width)
    outside = embedding("decoder.embed_tokens", vocab, width) + rms_norm("decoder.final_layer_norm", width)
    buckets = text.integer("relative_attention_num_buckets")
    outside += embedding("layer.0.self_attention.attention.relative_attention_bias", buckets, heads)
    out = [
        Block(kind="embedding", weights=outside),
        Block(kind="attention", weights=layer, count=text.integer("num_layers", maximum=MAX_LAYERS)),
        Block(kind="mlp", weights=mlp, count=text.integer("num_layers", maximum=MAX_LAYERS)),
    ]
    return out if tied else [*out, Block(kind="head", weights=linear("decoder.lm_head", width, vocab, role=WeightRole.HEAD))]


def _t5gemma(config: Config, top: Config, kind: str) -> list[Block] | None:
    """Two stacks of Gemma 2, each with embeddings; the decoder's layers attend to the encoder as well."""
    encoder = config.part("encoder")
    decoder = config.sub("decoder", "t5_gemma_module") or config.retyped("t5_gemma_module")
    if encoder is None:
        return None
    out = _gemma_table(encoder, "encoder", Part.ENCODER) + _gemma_stack(encoder, "encoder", Part.ENCODER)
    if kind == "encoder":
        return out
    out += _gemma_table(decoder, "decoder", Part.LANGUAGE)
    out += _gemma_stack(decoder, "decoder", Part.LANGUAGE, cross=encoder.integer("hidden_size"))
    if kind == "both" and not tied_head(decoder, top):
        head = linear("lm_head.out_proj", decoder.integer("hidden_size"), decoder.integer("vocab_size"), role=WeightRole.HEAD)
        out.append(Block(kind="head", weights=head))
    return out


def _gemma_table(config: Config, path: str, part: Part) -> list[Block]:
    table = embedding(f"{path}.embed_tokens", config.integer("vocab_size"), config.integer("hidden_size"))
    return [Block(kind="embedding", weights=table, part=part)]


def _gemma_stack(config: Config, path: str, part: Part, *, cross: int | None = None, qk_norm: bool = False) -> list[Block]:
    """Layers of Gemma 2 or 3, with four norms each and two more around cross attention, and the final norm."""
    width, count = config.integer("hidden_size"), config.number_of_layers()
    bias, dims = config.flag("attention_bias"), attention_dims(config)
    own = attention(
        width, dims.num_attention_heads, dims.num_key_value_heads, dims.head_dim, qkv_bias=bias, o_bias=bias, path="self_attn"
    )
    if qk_norm:
        own += rms_norm("self_attn.q_norm", dims.head_dim) + rms_norm("self_attn.k_norm", dims.head_dim)
    names = ["self_attn", "feedforward", *(["cross_attn"] if cross is not None else [])]
    norms = tuple(weight for name in names for when in ("pre", "post") for weight in rms_norm(f"{when}_{name}_layernorm", width))
    out = [
        Block(kind="attention", weights=own, part=part, count=count),
        Block(kind="mlp", weights=gated_mlp(width, config.integer("intermediate_size")), part=part, count=count),
        Block(kind="norm", weights=norms, part=part, count=count),
        Block(kind="norm", weights=rms_norm(f"{path}.norm", width), part=part),
    ]
    if cross is not None:
        keys = dims.num_key_value_heads * dims.head_dim
        other = linear("cross_attn.q_proj", width, dims.num_attention_heads * dims.head_dim, bias=bias)
        other += linear("cross_attn.k_proj", cross, keys, bias=bias) + linear("cross_attn.v_proj", cross, keys, bias=bias)
        other += linear("cross_attn.o_proj", dims.num_attention_heads * dims.head_dim, width, bias=bias)
        out.append(Block(kind="cross_attention", weights=other, part=part, count=count))
    return out


def _t5gemma2(config: Config, top: Config, kind: str) -> list[Block] | None:
    """T5Gemma 2: one table for all, an encoder that sees images, a decoder that attends to itself and to it at once."""
    encoder = config.part("encoder")
    decoder = config.sub("decoder", "t5gemma2_decoder") or config.retyped("t5gemma2_decoder")
    text = encoder.part("text_config") if encoder is not None else None
    vision = encoder.part("vision_config") if encoder is not None else None
    if text is None or vision is None or kind not in ("both", "body"):
        return None
    width = text.integer("hidden_size")
    out = _gemma_table(text, "encoder.text_model", Part.LANGUAGE)
    out.append(Block(kind="embedding", weights=parameter("encoder.text_model.embed_tokens.eoi_embedding", width)))
    out += _gemma_stack(text, "encoder.text_model", Part.ENCODER, qk_norm=True)
    try:
        out += tower(vision, "encoder.vision_tower")
    except UnknownTowerError:
        return None
    seen = vision.integer("hidden_size")
    projector = parameter("encoder.multi_modal_projector.mm_input_projection_weight", seen, width, role=WeightRole.LINEAR)
    projector += rms_norm("encoder.multi_modal_projector.mm_soft_emb_norm", seen)
    out.append(Block(kind="projector", weights=projector, part=Part.PROJECTOR))
    out += _gemma_stack(decoder, "decoder", Part.LANGUAGE, qk_norm=True)
    if not tied_head(decoder, top):
        return None
    return out


_RULES: Final[dict[str, Callable[[Config, Config, str], list[Block] | None]]] = {
    **dict.fromkeys(("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5"), _t5),
    "pix2struct": _pix2struct,
    "t5gemma": _t5gemma,
    "t5gemma2": _t5gemma2,
}

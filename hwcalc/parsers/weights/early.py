"""Early language models with a build of their own, and GIT: GPT-1, XLM, XLNet, Reformer, CPM-Ant.

Mirrors ``modeling_*.py`` of those names in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas.weights import (
    Block,
    Part,
    WeightRole,
    embedding,
    gated_mlp,
    layer_norm,
    linear,
    parameter,
    plain_mlp,
    rms_norm,
)
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.weights.bert import bert_blocks, predicts_words
from hwcalc.parsers.weights.towers import Style, encoder_layer, grid, patch_conv

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks of one of the models above, or ``None`` for a class that neither predicts words nor is bare."""
    headed = predicts_words(config)
    if headed is None:
        return None
    found = _RULES[config.model_type or ""](config, top, headed)
    return None if found is None else tuple(found)


def _git(config: Config, top: Config, headed: bool) -> list[Block] | None:
    """GIT: BERT's layers over image patches and words; the image encoder is CLIP's."""
    vision = config.part("vision_config")
    if vision is None:
        return None
    width, seen = config.integer("hidden_size"), vision.integer("hidden_size")
    path = "image_encoder.vision_model"
    patches = parameter(f"{path}.embeddings.class_embedding", seen)
    patches += patch_conv(vision, f"{path}.embeddings.patch_embedding", seen, bias=False)
    patches += embedding(f"{path}.embeddings.position_embedding", grid(vision, 1), seen)
    patches += layer_norm(f"{path}.pre_layrnorm", seen) + layer_norm(f"{path}.post_layernorm", seen)
    layer = encoder_layer(vision, Style(), f"{path}.encoder.layers", seen, vision.integer("intermediate_size"))
    frames = config.maybe_integer("num_image_with_embedding", minimum=0) or 0
    projection = linear("visual_projection.visual_projection.0", seen, width, bias=True)
    projection += layer_norm("visual_projection.visual_projection.1", width)
    projection += tuple(parameter("img_temporal_embedding", 1, 1, seen)[0] for _ in range(min(frames, MAX_LAYERS)))
    out = [
        *bert_blocks(config, top, headed=False, cross=False, pooler=False),
        Block(kind="patches", weights=patches, part=Part.VISION),
        Block(kind="vision_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers()),
        Block(kind="projector", weights=projection, part=Part.PROJECTOR),
    ]
    if headed:
        vocab, tied = config.integer("vocab_size"), tied_head(config, top)
        bias = parameter("output.bias", vocab, role=WeightRole.BIAS)
        head = bias if tied else linear("output", width, vocab, bias=True, role=WeightRole.HEAD)
        out.append(Block(kind="head", weights=head))
    return out


def _cpmant(config: Config, top: Config, headed: bool) -> list[Block] | None:
    """CPM-Ant: a T5-like stack with gated MLPs; its table also holds the prompts, so that the head is a tensor of its own."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    heads, segments = config.integer("num_attention_heads"), config.integer("segment_types")
    inner, count = heads * config.integer("dim_head"), config.number_of_layers()
    own = rms_norm("self_att.layernorm_before_attention", width)
    for name in "qkv":
        own += linear(f"self_att.self_attention.project_{name}", width, inner)
    own += linear("self_att.self_attention.attention_out", inner, width)
    mlp = gated_mlp(width, config.integer("dim_ff"), path="ffn.ffn") + rms_norm("ffn.layernorm_before_ffn", width)
    rows = vocab + config.integer("prompt_types") * config.integer("prompt_length", minimum=0)
    buckets = segments * segments + config.integer("position_bias_num_buckets")
    outside = embedding("input_embedding", rows, width) + embedding("segment_embedding", segments, width)
    outside += parameter("position_bias.relative_attention_bias", buckets, heads) + rms_norm("encoder.output_layernorm", width)
    out = [
        Block(kind="embedding", weights=outside),
        Block(kind="attention", weights=own, count=count),
        Block(kind="mlp", weights=mlp, count=count),
    ]
    return [*out, Block(kind="head", weights=linear("lm_head", width, vocab, role=WeightRole.HEAD))] if headed else out


def _plain_head(path: str, width: int, vocab: int, *, tied: bool, bias: bool) -> list[Block]:
    if not tied:
        return [Block(kind="head", weights=linear(path, width, vocab, bias=bias, role=WeightRole.HEAD))]
    return [Block(kind="head", weights=parameter(f"{path}.bias", vocab, role=WeightRole.BIAS))] if bias else []


def _openai_gpt(config: Config, top: Config, headed: bool) -> list[Block] | None:
    """GPT-1: two layer norms a layer and none at the end."""
    width, vocab, count = config.integer("hidden_size"), config.integer("vocab_size"), config.number_of_layers()
    own = linear("attn.c_attn", width, 3 * width, bias=True) + linear("attn.c_proj", width, width, bias=True)
    mlp = plain_mlp(width, 4 * width, names=("c_fc", "c_proj"))
    table = embedding("tokens_embed", vocab, width)
    table += embedding("positions_embed", config.integer("max_position_embeddings"), width)
    out = [
        Block(kind="embedding", weights=table),
        Block(kind="attention", weights=own, count=count),
        Block(kind="mlp", weights=mlp, count=count),
        Block(kind="norm", weights=layer_norm("ln_1", width) + layer_norm("ln_2", width), count=count),
    ]
    return out + (_plain_head("lm_head", width, vocab, tied=tied_head(config, top), bias=False) if headed else [])


def _xlm(config: Config, top: Config, headed: bool) -> list[Block] | None:
    """XLM: a table of languages where there is more than one. An adaptive softmax is not weighed."""
    if config.flag("asm"):
        return None
    width, vocab, count = config.integer("hidden_size"), config.integer("vocab_size"), config.number_of_layers()
    outside = embedding("embeddings", vocab, width)
    outside += embedding("position_embeddings", config.integer("max_position_embeddings"), width)
    languages = config.integer("n_langs")
    if languages > 1 and config.flag("use_lang_emb"):
        outside += embedding("lang_embeddings", languages, width)
    own = tuple(weight for name in "qkv" for weight in linear(f"attentions.{name}_lin", width, width, bias=True))
    own += linear("attentions.out_lin", width, width, bias=True)
    mlp = plain_mlp(width, 4 * width, path="ffns", names=("lin1", "lin2"))
    out = [
        Block(kind="embedding", weights=outside + layer_norm("layer_norm_emb", width)),
        Block(kind="attention", weights=own, count=count),
        Block(kind="mlp", weights=mlp, count=count),
        Block(kind="norm", weights=layer_norm("layer_norm1", width) + layer_norm("layer_norm2", width), count=count),
    ]
    return out + (_plain_head("pred_layer.proj", width, vocab, tied=tied_head(config, top), bias=True) if headed else [])


def _xlnet(config: Config, top: Config, headed: bool) -> list[Block] | None:
    """XLNet: queries, keys, values, output and relative positions as tensors by head, with four biases a layer."""
    width, vocab, heads = config.integer("d_model"), config.integer("vocab_size"), config.integer("n_head")
    size, count = max(1, width // heads), config.number_of_layers("n_layer")
    own = tuple(parameter(f"rel_attn.{name}", width, heads, size, role=WeightRole.LINEAR)[0] for name in "qkvor")
    own += tuple(parameter(f"rel_attn.r_{name}_bias", heads, size, role=WeightRole.BIAS)[0] for name in "rsw")
    own += parameter("rel_attn.seg_embed", 2, heads, size) + layer_norm("rel_attn.layer_norm", width)
    mlp = plain_mlp(width, config.integer("d_inner"), path="ff", names=("layer_1", "layer_2")) + layer_norm(
        "ff.layer_norm", width
    )
    out = [
        Block(kind="embedding", weights=embedding("word_embedding", vocab, width) + parameter("mask_emb", 1, 1, width)),
        Block(kind="attention", weights=own, count=count),
        Block(kind="mlp", weights=mlp, count=count),
    ]
    return out + (_plain_head("lm_loss", width, vocab, tied=tied_head(config, top), bias=True) if headed else [])


def _reformer(config: Config, top: Config, headed: bool) -> list[Block] | None:
    """Reformer: hashed layers share queries and keys; reversible layers put out two streams; positions by two axes."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    inner = config.integer("num_attention_heads") * config.integer("attention_head_size")
    table = embedding("embeddings.word_embeddings", vocab, width)
    if config.flag("axial_pos_embds"):
        shape, widths = (
            config.integers("axial_pos_shape", minimum=1) or [],
            config.integers("axial_pos_embds_dim", minimum=1) or [],
        )
        if len(shape) != len(widths):
            raise config.error("axial_pos_shape", shape, f"a list of {len(widths)} numbers, one for each axis")
        for axis, (rows, part) in enumerate(zip(shape, widths, strict=True)):
            table += parameter(f"embeddings.position_embeddings.weights.{axis}", rows, part)
    else:
        rows = config.integer("max_position_embeddings")
        table += embedding("embeddings.position_embeddings.embedding", rows, width)
    out = [Block(kind="embedding", weights=table)]
    types = config.strings("attn_layers") or []
    feed = config.integer("feed_forward_size")
    mlp = linear("feed_forward.dense.dense", width, feed, bias=True) + linear("feed_forward.output.dense", feed, width, bias=True)
    mlp += layer_norm("feed_forward.layer_norm", width)
    for kind, names in (("local", ("query", "key", "value")), ("lsh", ("query_key", "value"))):
        own = tuple(weight for name in names for weight in linear(f"attention.self_attention.{name}", width, inner))
        own += linear("attention.output.dense", inner, width) + layer_norm("attention.layer_norm", width)
        if kind in types:
            out.append(Block(kind="attention", weights=own, count=types.count(kind)))
    out += [
        Block(kind="mlp", weights=mlp, count=len(types)),
        Block(kind="norm", weights=layer_norm("encoder.layer_norm", 2 * width)),
    ]
    if headed:
        head = linear("lm_head.decoder", 2 * width, vocab, role=WeightRole.HEAD)
        out.append(Block(kind="head", weights=head + parameter("lm_head.bias", vocab, role=WeightRole.BIAS)))
    return out


_RULES: Final[dict[str, Callable[[Config, Config, bool], list[Block] | None]]] = {
    "cpmant": _cpmant,
    "git": _git,
    "openai-gpt": _openai_gpt,
    "reformer": _reformer,
    "xlm": _xlm,
    "xlnet": _xlnet,
}

"""Early decoders, each built in its own way: GPT-1, XLM and CPM-Ant; and GIT, which is BERT with images.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Reformer and XLNet keep no keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import UnsupportedError
from hwcalc.formulas import NoCache
from hwcalc.formulas.weights import Block, Part, embedding, gated_mlp, layer_norm, linear, parameter, plain_mlp, rms_norm
from hwcalc.model import Note
from hwcalc.parsers.bert import GIT_TEXT, no_cache, shared_heads
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.classes import predicts_words
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.projections import Attends, output_head, own_dims, projections, stack
from hwcalc.parsers.reading import Readers, Reading
from hwcalc.parsers.towers.build import Style, encoder_layer, grid, needed, patch_conv


def _early(
    layers: Callable[[Config], Reading],
    body: Callable[[Config, Reading], list[Block] | None],
    head: str,
    *,
    bias: bool = False,
    may_tie: bool = True,
) -> Readers:
    """One of these models. ``body`` weighs all but the head, which only a class that predicts words has."""

    def weigh(config: Config, top: Config, reading: Reading) -> list[Block] | None:
        headed = predicts_words(config)
        blocks = None if headed is None else body(config, reading)
        if blocks is None or not headed:
            return blocks
        width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
        return blocks + output_head(head, width, vocab, tied=may_tie and tied_head(config, top), bias=bias)

    return Readers(layers=layers, weights=weigh)


def _read(config: Config) -> Reading:
    """Full attention on all layers."""
    return Reading(layers=((shared_heads(config).full(),),) * config.number_of_layers(), config=config)


def _git(config: Config, reading: Reading) -> list[Block]:
    """GIT: BERT's layers, always causal, over one sequence of image patches and words. The image encoder is that of CLIP."""
    vision = needed(config, "vision_config")
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
    projection += parameter("img_temporal_embedding", 1, 1, seen) * min(frames, MAX_LAYERS)
    return [
        *GIT_TEXT.blocks(config, config, reading.layers, headed=False, cross=False),
        Block(kind="patches", weights=patches, part=Part.VISION),
        Block(kind="vision_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers()),
        Block(kind="projector", weights=projection, part=Part.PROJECTOR),
    ]


def _read_cpmant(config: Config) -> Reading:
    """CPM-Ant has a key for the width of a head, and puts ``prompt_length`` learned tokens before every sequence."""
    dims = shared_heads(config)
    size = config.integer("dim_head")
    layer = replace(dims, head_dim=size, v_head_dim=size).full()
    count, prompt = config.number_of_layers(), config.maybe_integer("prompt_length", minimum=0)
    notes: tuple[Note, ...] = ()
    if prompt:
        message = f"The model puts {prompt:,} tokens of its own before every sequence and keeps them: count them in --seq."
        notes = (Note(code="own-prompt", message=message),)
    return Reading(layers=((layer,),) * count, config=config, notes=notes)


def _cpmant(config: Config, reading: Reading) -> list[Block]:
    """CPM-Ant: a stack like T5's with gated MLPs. Its table also holds the prompts, so the head is a tensor of its own."""
    width, path = config.integer("hidden_size"), "self_att.self_attention"
    names = {"q": "project_q", "k": "project_k", "v": "project_v", "o": "attention_out"}
    rows = config.integer("vocab_size") + config.integer("prompt_types") * config.integer("prompt_length", minimum=0)
    segments = config.integer("segment_types")
    buckets = segments * segments + config.integer("position_bias_num_buckets")
    outside = embedding("input_embedding", rows, width) + embedding("segment_embedding", segments, width)
    outside += parameter("position_bias.relative_attention_bias", buckets, config.integer("num_attention_heads"))

    attention = rms_norm("self_att.layernorm_before_attention", width)
    attention += projections(path, width, own_dims(reading.layers[0], width), names)
    mlp = gated_mlp(width, config.integer("dim_ff"), path="ffn.ffn") + rms_norm("ffn.layernorm_before_ffn", width)
    return [
        Block(kind="embedding", weights=outside + rms_norm("encoder.output_layernorm", width)),
        *stack(reading.layers, width, attention=attention, mlp=mlp),
    ]


def _read_gpt1(config: Config) -> Reading:
    """GPT-1 could keep keys and values, but its class in transformers computes the whole sequence again at each step."""
    reading = _read(config)
    return replace(reading, readings={"transformers": ((NoCache(),),) * len(reading.layers)})


def _gpt1(config: Config, reading: Reading) -> list[Block]:
    """GPT-1: two layer norms in each layer and none after the last."""
    width = config.integer("hidden_size")
    table = embedding("tokens_embed", config.integer("vocab_size"), width)
    table += embedding("positions_embed", config.integer("max_position_embeddings"), width)

    dims = own_dims(reading.layers[0], width)
    rows = (dims.num_attention_heads + 2 * dims.num_key_value_heads) * dims.head_dim
    attention = linear("attn.c_attn", width, rows, bias=True) + linear("attn.c_proj", width, width, bias=True)
    mlp = plain_mlp(width, 4 * width, names=("c_fc", "c_proj"))
    norms = layer_norm("ln_1", width) + layer_norm("ln_2", width)
    return [
        Block(kind="embedding", weights=table),
        *stack(reading.layers, width, attention=attention, mlp=mlp, norm=norms),
    ]


def _read_xlm(config: Config) -> Reading:
    """XLM, trained causally or not. Its class in transformers keeps no cache from one call to the next."""
    config.ignore("bos_index", "eos_index", "pad_index", "unk_index", "mask_index")
    return _read_gpt1(config) if config.flag("causal") else no_cache(config, "causal")


def _xlm(config: Config, reading: Reading) -> list[Block] | None:
    """XLM: a table of languages if there is more than one. The weights of a model with an adaptive softmax are not counted."""
    if config.flag("asm"):
        return None
    width = config.integer("hidden_size")
    outside = embedding("embeddings", config.integer("vocab_size"), width)
    outside += embedding("position_embeddings", config.integer("max_position_embeddings"), width)
    languages = config.integer("n_langs")
    if languages > 1 and config.flag("use_lang_emb"):
        outside += embedding("lang_embeddings", languages, width)
    names = {"q": "q_lin", "k": "k_lin", "v": "v_lin", "o": "out_lin"}
    attention = Attends(path="attentions", names=names, biased="qkvo")
    mlp = plain_mlp(width, 4 * width, path="ffns", names=("lin1", "lin2"))
    norms = layer_norm("layer_norm1", width) + layer_norm("layer_norm2", width)
    table = Block(kind="embedding", weights=outside + layer_norm("layer_norm_emb", width))
    return [table, *stack(reading.layers, width, attention=attention, mlp=mlp, norm=norms)]


def _other_memory(what: str) -> Callable[[Config], Reading]:
    def refuse(config: Config) -> Reading:
        raise UnsupportedError(
            f"A model of type {config.model_type} keeps {what}, not keys and values: kvplan has no formula for that.",
            hint="Plan another model. See: kvplan models",
        )

    return refuse


CPMANT: Final = _early(_read_cpmant, _cpmant, "lm_head", may_tie=False)
GIT: Final = _early(_read, _git, "output", bias=True)
GPT1: Final = _early(_read_gpt1, _gpt1, "lm_head")
REFORMER: Final = Readers(layers=_other_memory("hidden states and hash buckets"))
XLM: Final = _early(_read_xlm, _xlm, "pred_layer.proj", bias=True)
XLNET: Final = Readers(layers=_other_memory("the hidden states of earlier tokens"))

"""ProphetNet, whose decoder predicts several next words at once.

Mirrors ``modeling_prophetnet.py`` of transformers 5.23.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import Block, Part, embedding, layer_norm, linear, plain_mlp
from hwcalc.parsers.blocks import tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder, Keys, encoder_layers
from hwcalc.parsers.projections import Attends, output_head, stack
from hwcalc.parsers.reading import Reading

__all__ = ["PROPHETNET"]

_NAMES: Final = {"k": "key_proj", "v": "value_proj", "q": "query_proj", "o": "out_proj"}


def _weights(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    sides = ("decoder",) if kind == "decoder" else ("encoder", "decoder")
    out = [Block(kind="embedding", weights=embedding("word_embeddings", vocab, width))]
    if kind != "decoder":
        out += _side(config, width, "encoder", encoder_layers(config, "num_encoder_layers"))
    out += _side(config, width, "decoder", reading.layers)
    if tied_head(config, top):
        return out
    # Both sides then have the table once more.
    out += [Block(kind="embedding", weights=embedding(f"{side}.word_embeddings", vocab, width)) for side in sides]
    return out if kind == "body" else out + output_head("lm_head", width, vocab)


def _side(config: Config, width: int, side: str, layers: tuple[Layer, ...]) -> list[Block]:
    """Layers and positions. The decoder's n-grams have positions of their own, by a matrix of each layer."""
    part = Part.ENCODER if side == "encoder" else Part.LANGUAGE
    outside = embedding(f"{side}.position_embeddings", config.integer("max_position_embeddings"), width)
    outside += layer_norm(f"{side}.embeddings_layer_norm", width)
    norm = layer_norm("self_attn_layer_norm", width)
    mlp = plain_mlp(width, config.integer(f"{side}_ffn_dim"), path="feed_forward", names=("intermediate", "output"))
    out: list[Block] = []
    if side == "decoder":
        outside += embedding("decoder.ngram_embeddings", config.integer("ngram"), width)
        buckets = config.integer("num_buckets") * config.integer("num_decoder_attention_heads")
        norm += linear("self_attn.relative_pos_embeddings", width, buckets, bias=True)
        after = layer_norm("cross_attn_layer_norm", width)
        cross = Attends(path="cross_attn", names=_NAMES, cross=True, biased="kvqo", norms=after)
        out += stack(layers, width, cross_attention=cross) if config.flag("add_cross_attention") else []
    own = Attends(path="self_attn", names=_NAMES, biased="kvqo", norms=norm)
    out.append(Block(kind="embedding", weights=outside, part=part))
    return out + stack(layers, width, part, attention=own, mlp=mlp + layer_norm("feed_forward_layer_norm", width))


PROPHETNET: Final = EncoderDecoder(
    keys=Keys(count=("num_decoder_layers",), heads="num_decoder_attention_heads"),
    weights=_weights,
    forms=("both", "body", "decoder"),
)

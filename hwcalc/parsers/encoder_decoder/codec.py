"""Decoders whose output is the codes of an audio codec: Dia and MusicGen.

Mirrors ``modeling_*.py`` of those names in transformers 5.23.
"""

from __future__ import annotations

from typing import Final

from hwcalc.formulas import CrossAttention, Layer
from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, gated_mlp, layer_norm, linear, rms_norm
from hwcalc.model import Note
from hwcalc.parsers.blocks import Weighed, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder, Keys
from hwcalc.parsers.projections import Attends, bart_attention, output_head, stack
from hwcalc.parsers.reading import Reading, attention_dims
from hwcalc.parsers.towers.build import needed

__all__ = ["DIA", "DIA_DECODER", "MELODY", "MELODY_DECODER", "MUSICGEN", "MUSICGEN_DECODER"]


def _dia_layers(config: Config, cross: bool) -> tuple[Layer, ...]:
    """Self attention has grouped queries. Cross attention has its own number of heads."""
    count = config.number_of_layers()
    own = attention_dims(config).full()
    heads, kv_heads = config.integer("cross_num_attention_heads"), config.integer("cross_num_key_value_heads")
    width = config.integer("cross_head_dim")
    config.ignore("cross_hidden_size")
    over = CrossAttention(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, v_head_dim=width)
    return ((own, over) if cross else (own,),) * count


def _dia(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """Dia: bytes go in. The decoder has one table and one head for all audio channels together."""
    encoder, decoder = needed(config, "encoder_config"), reading.config
    width, wide = encoder.integer("hidden_size"), decoder.integer("hidden_size")
    channels = decoder.integer("num_channels") * decoder.integer("vocab_size")

    def mlp(side: Config, width: int) -> Weighed:
        return gated_mlp(width, side.integer("intermediate_size"), fused="gate_up_proj")

    own = Attends(path="self_attention")
    norms = rms_norms(width, "pre_sa_norm", "post_sa_norm")
    layers: tuple[Layer, ...] = ((attention_dims(encoder).full(),),) * encoder.number_of_layers()
    table = embedding("encoder.embedding", encoder.integer("vocab_size"), width)
    return [
        Block(kind="embedding", weights=table, part=Part.ENCODER),
        *stack(layers, width, Part.ENCODER, attention=own, mlp=mlp(encoder, width), norm=norms),
        Block(kind="norm", weights=rms_norm("encoder.norm", width), part=Part.ENCODER),
        Block(kind="embedding", weights=embedding("decoder.embeddings.embed", channels, wide)),
        *stack(
            reading.layers,
            wide,
            attention=own,
            cross_attention=Attends(path="cross_attention", cross=True, source=decoder.integer("cross_hidden_size")),
            mlp=mlp(decoder, wide),
            norm=rms_norms(wide, "pre_sa_norm", "pre_ca_norm", "pre_mlp_norm"),
        ),
        Block(kind="norm", weights=rms_norm("decoder.norm", wide)),
        *output_head("logits_dense", wide, channels),
    ]


def _musicgen(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """The decoder of MusicGen: a table and a head for each codebook. The melody model has no cross attention."""
    width, vocab, books = config.integer("hidden_size"), config.integer("vocab_size"), config.integer("num_codebooks")
    own = bart_attention("self_attn", width, biased="")
    cross = bart_attention("encoder_attn", width, cross=True, biased="")
    inner = config.integer("ffn_dim")
    mlp = linear("fc1", width, inner) + linear("fc2", inner, width) + layer_norm("final_layer_norm", width)
    return [
        Block(kind="embedding", weights=embedding("decoder.embed_tokens", vocab + 1, width), count=books),
        Block(kind="norm", weights=layer_norm("decoder.layer_norm", width)),
        *stack(reading.layers, width, attention=own, mlp=mlp),
        Block(kind="head", weights=linear("lm_heads", width, vocab, role=WeightRole.HEAD), count=books),
        *(stack(reading.layers, width, cross_attention=cross) if config.model_type == "musicgen_decoder" else ()),
    ]


_KEYS: Final = Keys()
_AS_PREFIX: Final = Note(
    code="encoder-as-prefix",
    message="The text and melody that condition this model stand before its own tokens: --seq counts them too.",
)

DIA_DECODER: Final = EncoderDecoder(special=_dia_layers)
DIA: Final = EncoderDecoder(special=_dia_layers, weights=_dia, part="decoder_config")
MUSICGEN_DECODER: Final = EncoderDecoder(keys=_KEYS, weights=_musicgen, forms=("decoder",))
MUSICGEN: Final = EncoderDecoder(keys=_KEYS, part="decoder")
MELODY_DECODER: Final = EncoderDecoder(keys=_KEYS, weights=_musicgen, forms=("decoder",), crosses=False, notes=(_AS_PREFIX,))
MELODY: Final = EncoderDecoder(keys=_KEYS, part="decoder", crosses=False, notes=(_AS_PREFIX,))

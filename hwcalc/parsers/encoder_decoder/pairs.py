"""Any encoder with any decoder of text: the three classes of transformers for such pairs.

Mirrors ``modeling_*_encoder_decoder.py`` of transformers 5.23. Every layer of the decoder gets cross attention to the encoder.
The parameters of a pair are not counted if the type of either side has no weights here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import asdict

from hwcalc.errors import ConfigError, UnknownArchitectureError
from hwcalc.formulas import CrossAttention, FullAttention, Layer, SlidingAttention
from hwcalc.formulas.weights import Block, Part, linear
from hwcalc.parsers.bert import Bert
from hwcalc.parsers.config import Config
from hwcalc.parsers.encoder_decoder.bart import Bart
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder
from hwcalc.parsers.encoder_decoder.images import image_tokens, vit
from hwcalc.parsers.encoder_decoder.sound import wav2vec2
from hwcalc.parsers.reading import Readers, Reading, dims_of
from hwcalc.parsers.registry import find_family
from hwcalc.parsers.towers.build import needed
from hwcalc.text import quoted

_TYPES: Final = ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder")
_DEEPEST: Final = 4

Weigh = Callable[[Config, str], Sequence[Block] | None]

_ENCODERS: Final[Mapping[str, Weigh]] = {"vit": vit, "wav2vec2": wav2vec2}


def _read(config: Config) -> Reading:
    if config.where.count(".") >= _DEEPEST:
        raise ConfigError(f"{config.where} is nested too deep for a {config.model_type} model.")
    decoder = config.sub("decoder") or config.retyped(config.nested_type("decoder"))
    decoder.ignore("add_cross_attention", "cross_attention_hidden_size", "is_decoder")
    family = find_family(decoder.model_type)
    if family is None or decoder.model_type in _TYPES or (isinstance(family, EncoderDecoder) and family.part):
        raise UnknownArchitectureError(
            f"No parser knows the decoder of this {config.model_type} model: {quoted(decoder.model_type)}.",
            hint="Plan the decoder by itself, or see: kvplan models",
        )
    alone = family.decode(decoder) if isinstance(family, EncoderDecoder) else family.read(_as_decoder(decoder))
    return Reading(
        layers=tuple(_with_cross(layer) for layer in alone.layers),
        config=decoder,
        types=alone.types,
        encoder_tokens=image_tokens(config.sub("encoder")) if config.model_type == "vision-encoder-decoder" else None,
        notes=alone.notes,
    )


def _as_decoder(config: Config) -> Config:
    """The same config with ``is_decoder`` set, because these models always set it, whatever the file says."""
    child = Config({**config.raw, "is_decoder": True}, config.model_type, config.where)
    child.read = config.read
    config.children.append(child)
    return child


def _with_cross(layer: Layer) -> Layer:
    if any(isinstance(kind, CrossAttention) for kind in layer):
        return layer
    own = tuple(kind for kind in layer if isinstance(kind, (FullAttention, SlidingAttention)))
    return (*layer, CrossAttention(**asdict(dims_of(own)))) if own else layer


def _weigh(config: Config, top: Config, reading: Reading) -> list[Block] | None:
    """Both sides, and a matrix between them if their widths differ."""
    encoder, decoder = needed(config, "encoder"), reading.config
    weigh = _encoder(encoder)
    if weigh is None:
        return None
    after, before = _decoder(decoder, reading), weigh(encoder, "encoder")
    if after is None or before is None:
        return None
    width, wide = decoder.integer("hidden_size"), encoder.integer("hidden_size")
    if wide != width and decoder.maybe_integer("cross_attention_hidden_size") is None:
        between = linear("enc_to_dec_proj", wide, width, bias=True)
        before = [*before, Block(kind="projector", weights=between, part=Part.PROJECTOR)]
    return [*before, *after]


def _encoder(config: Config) -> Weigh | None:
    """The function that weighs an encoder of this type: it takes the encoder's config and its path."""
    family = find_family(config.model_type)
    return family.encoder if isinstance(family, Bert) else _ENCODERS.get(config.model_type or "")


def _decoder(config: Config, reading: Reading) -> Sequence[Block] | None:
    family = find_family(config.model_type)
    if isinstance(family, Bert):
        return family.blocks(config, config, reading.layers, headed=True, cross=family.crosses(config))
    if isinstance(family, Bart):
        return family.blocks(config, config, reading, "decoder")
    return family.weigh(config, config, reading) if family is not None and config.model_type == "gpt2" else None


PAIR: Final = Readers(layers=_read, weights=_weigh)

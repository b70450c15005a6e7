"""How a document with an encoder and a decoder is read. Each decoder layer keeps self attention, and cross attention over the
encoder's output.

Most of these classes map ``num_hidden_layers`` and ``num_attention_heads`` to their *encoder*, so the decoder's own keys are read
here. A class named ``...ForCausalLM`` is the decoder alone, which has no encoder output to attend to. A class named
``...EncoderModel`` is the encoder alone, which keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from hwcalc.formulas import CrossAttention, Layer, NoCache
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block
from hwcalc.model import Note
from hwcalc.parsers.classes import architecture, form
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import AttentionDims, Reading
from hwcalc.text import brief

__all__ = ["COMMON", "EncoderDecoder", "Keys", "encoder_layers"]


class Keys(Record):
    """The keys by which a class describes its decoder. The keys in ``count`` are tried in turn until one is not null."""

    count: tuple[str, ...] = ("num_hidden_layers",)
    heads: str = "num_attention_heads"
    kv_heads: str = ""
    head_dim: str = ""

    def number_of_layers(self, config: Config) -> int:
        """How many layers the decoder has."""
        *optional, last = self.count
        for key in optional:
            count = config.maybe_integer(key, maximum=MAX_LAYERS)
            if count is not None:
                return count
        return config.number_of_layers(last)

    def dims(self, config: Config) -> AttentionDims:
        """Heads and widths of its attention. Unless given, there are as many key/value heads as heads, together as wide as the model."""
        heads = config.integer(self.heads)
        kv_heads = config.maybe_integer(self.kv_heads) if self.kv_heads else None
        head_dim = config.maybe_integer(self.head_dim) if self.head_dim else None
        if head_dim is None:
            width = config.integer("hidden_size")
            head_dim = width // heads
            if head_dim == 0:
                raise config.error("hidden_size", width, f"at least the number of attention heads ({heads})")
        return AttentionDims(
            num_attention_heads=heads, num_key_value_heads=kv_heads or heads, head_dim=head_dim, v_head_dim=head_dim
        )

    def layers(self, config: Config, cross: bool) -> tuple[Layer, ...]:
        """Equal layers, whose cross attention has the dims of their self attention."""
        dims = self.dims(config)
        layer: Layer = (dims.full(), CrossAttention(**asdict(dims))) if cross else (dims.full(),)
        return (layer,) * self.number_of_layers(config)


COMMON: Final = Keys(kv_heads="num_key_value_heads", head_dim="head_dim")

Weigher = Callable[[Config, Config, Reading, str], Sequence[Block] | None]
"""``weights(config, top, reading, form)``: what a model of this form weighs, ``None`` where the file does not say enough."""

# Keys of what is not the decoder: encoders of text and speech, the convolutions before them, the unit decoder after the decoder.
_OUTSIDE: Final = ("encoder_", "speech_encoder_", "t2u_", "conv_", "num_conv_", "num_encoder_", "adaptor_")
_WITHOUT_EFFECT: Final = (
    "num_attention_heads", "num_key_value_heads", "add_cross_attention", "cross_attention_hidden_size", "attention_window",
    "delay_pattern", "pad_head_dim_to_multiple_of", "share_encoder_decoder_embeddings",
)  # fmt: skip


class EncoderDecoder(Record):
    """A family whose documents describe an encoder and a decoder. Without ``weights`` its parameters are not counted."""

    keys: Keys = COMMON
    special: Callable[[Config, bool], tuple[Layer, ...]] | None = None
    """Reads the decoder's layers (with or without cross attention) if ``keys`` are not enough."""
    weights: Weigher | None = None
    forms: tuple[str, ...] = ("both",)
    """The forms of the class (:func:`hwcalc.parsers.classes.form`) whose weights are known."""
    part: str = ""
    """The key of the decoder's own config. Empty if the document describes the decoder at its top level."""
    crosses: bool = True
    """False if the only class with this config is the decoder alone, or if the encoder's output precedes the decoder's tokens."""
    tokens: Callable[[Config], int | None] | None = None
    """The number of tokens that the encoder puts out, if the model fixes it."""
    notes: tuple[Note, ...] = ()

    def read(self, config: Config) -> Reading:
        """The layers of the decoder, or layers that keep nothing for a class that is the encoder alone."""
        decoder = self._decoder(config)
        _set_aside(config)
        name = architecture(config)
        if name.endswith("EncoderModel"):
            return self._encoder_alone(decoder, name)
        cross = self.crosses and not name.endswith("ForCausalLM")
        reading = self.decode(decoder, cross)
        return replace(reading, encoder_tokens=self.tokens(config) if cross and self.tokens else None, notes=self.notes)

    def decode(self, config: Config, cross: bool = True) -> Reading:
        """The layers of a decoder whose config this is."""
        _set_aside(config)
        layers = self.keys.layers(config, cross) if self.special is None else self.special(config, cross)
        return Reading(layers=layers, config=config)

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """All blocks, ``None`` for a class of another form."""
        kind = self.form(config)
        return None if kind is None or kind not in self.forms else self.blocks(config, top, reading, kind)

    def form(self, config: Config) -> str | None:
        """The form of the class that the document names."""
        return form(config)

    def blocks(self, config: Config, top: Config, reading: Reading, kind: str) -> Sequence[Block] | None:
        """All blocks of a class of one of :attr:`forms`."""
        return None if self.weights is None else self.weights(config, top, reading, kind)

    def _decoder(self, config: Config) -> Config:
        """The decoder's config. If it is absent or names another type, it is read as the type that the class builds."""
        if not self.part:
            return config
        usual, child = config.nested_type(self.part), config.sub(self.part)
        if child is None:
            return config.retyped(usual)
        return child if child.model_type == usual else child.retyped(usual)

    def _encoder_alone(self, config: Config, name: str) -> Reading:
        config.ignore(*config.raw)
        return Reading(
            layers=((NoCache(),),) * self.keys.number_of_layers(config),
            config=config,
            notes=(Note(code="encoder-only", message=f"{brief(name, 60)} is an encoder alone: it keeps nothing between steps."),),
        )


def _set_aside(config: Config) -> None:
    """Mark all keys that describe other parts than the decoder as known."""
    config.ignore(*_WITHOUT_EFFECT, *(key for key in config.raw if str(key).startswith(_OUTSIDE)))


def encoder_layers(config: Config, key: str = "encoder_layers", *, minimum: int = 1) -> tuple[Layer, ...]:
    """The layers of an encoder, which keep nothing."""
    return ((NoCache(),),) * config.integer(key, minimum=minimum, maximum=MAX_LAYERS)

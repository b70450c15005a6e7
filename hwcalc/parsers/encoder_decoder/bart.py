"""How a document with an encoder and a decoder is read; BART and models built like it, each an object that says how it differs;
ProphetNet.

Each mirrors the model's ``modeling_*.py`` in transformers 5.23. Each decoder layer keeps self attention, and cross attention
over the encoder's output. Most of these classes map ``num_hidden_layers`` and ``num_attention_heads`` to their *encoder*, so the
decoder's own keys are read here. A class named ``...ForCausalLM`` is the decoder alone, with its matrices of cross attention but
nothing to attend to; one named ``...EncoderModel`` is the encoder alone, which keeps nothing. With ``tie_word_embeddings`` there
is one table of embeddings. Without it encoder, decoder and head have one each, and the shared table exists as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import Layer, NoCache
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole, convolution, embedding, experts, layer_norm, linear, plain_mlp
from hwcalc.model import Note
from hwcalc.parsers import blocks
from hwcalc.parsers.blocks import Attends, Dims, Named, Switch, Weighed
from hwcalc.parsers.config import MAX_LAYERS, Config, architecture_of, form
from hwcalc.parsers.reading import AttentionDims, Reading, equal_dims, shared_width
from hwcalc.parsers.towers.sound import mel_convolutions
from hwcalc.text import brief


class Keys(Record):
    """The keys by which a class describes its decoder. The keys in ``count`` are tried in turn until one is not null."""

    count: tuple[str, ...] = ("num_hidden_layers",)
    heads: str = "num_attention_heads"
    kv_heads: str = ""
    head_dim: str = ""

    def number_of_layers(self, config: Config) -> int:
        """The number of layers that the decoder has."""
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
        return equal_dims(heads, kv_heads, head_dim or shared_width(config, heads))

    def layers(self, config: Config, cross: bool) -> tuple[Layer, ...]:
        """Equal layers, whose cross attention has the dims of their self attention."""
        dims = self.dims(config)
        layer: Layer = (dims.full(), dims.cross()) if cross else (dims.full(),)
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
    """The forms of the class (:func:`hwcalc.parsers.config.form`) whose weights are known."""
    part: str = ""
    """The key of the decoder's own config. Empty if the document describes the decoder at its top level."""
    crosses: bool = True
    """False if the only class with this config is the decoder alone, or if the encoder's output precedes the decoder's tokens."""
    tokens: Callable[[Config], int | None] | None = None
    """The number of tokens that the encoder puts out, if the model fixes it."""
    notes: tuple[Note, ...] = ()

    def read(self, config: Config) -> Reading:
        """The layers of the decoder, or layers that keep nothing for a class that is the encoder alone."""
        decoder = config
        if self.part:
            # If the decoder's config is absent or names another type, it is read as the type that the class builds.
            usual, child = config.nested_type(self.part), config.sub(self.part)
            decoder = child if child is not None and child.model_type == usual else (child or config).retyped(usual)
        _set_aside(config)
        name = architecture_of(config.raw) or ""
        if name.endswith("EncoderModel"):
            decoder.ignore(*decoder.raw)
            layers: tuple[Layer, ...] = ((NoCache(),),) * self.keys.number_of_layers(decoder)
            message = f"{brief(name, 60)} is an encoder alone: it keeps nothing between steps."
            return Reading(layers=layers, config=decoder, notes=(Note(code="encoder-only", message=message),))
        cross = self.crosses and not name.endswith("ForCausalLM")
        tokens = self.tokens(config) if cross and self.tokens else None
        return replace(self.decode(decoder, cross), encoder_tokens=tokens, notes=self.notes)

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


def _set_aside(config: Config) -> None:
    """Mark all keys that describe other parts than the decoder as known."""
    config.ignore(*_WITHOUT_EFFECT, *(key for key in config.raw if str(key).startswith(_OUTSIDE)))


def encoder_layers(config: Config, key: str = "encoder_layers", *, minimum: int = 1) -> tuple[Layer, ...]:
    """The layers of an encoder, which keep nothing."""
    return ((NoCache(),),) * config.integer(key, minimum=minimum, maximum=MAX_LAYERS)


BART_KEYS: Final = Keys(count=("decoder_layers",), heads="decoder_attention_heads")

Tables = Callable[[Config, int, str, bool], list[Block]]
"""``tables(config, width, form, tied)`` gives embeddings and head."""


class Bart(EncoderDecoder):
    """How a model type differs from BART."""

    keys: Keys = BART_KEYS
    forms: tuple[str, ...] = ("both", "decoder", "encoder", "body")
    positions: int | None = 2
    """How many more rows the table of learned positions has than its key says; ``None`` if positions are computed."""
    encoder_positions: str = "max_position_embeddings"
    decoder_positions: str = "max_position_embeddings"
    embedding_norm: Switch = True
    final_norm: bool = False
    bias: Switch = True
    key_bias: bool = True
    own_tables: bool = True
    """True if encoder and decoder have tables of their own when embeddings are not tied."""
    tables: Tables | None = None
    decoder_is_tied: bool = True
    """False if the class of the decoder alone always has a head of its own."""
    decoder_only: bool = False
    """True if this is the decoder of an image model, whose cross attention may read vectors of another width."""
    encoder_attention: Callable[[Config, int], Weighed] | None = None
    front: Callable[[Config, int], Weighed] | None = None
    """The weights before the encoder's layers."""
    sparse: bool = False
    uncounted_with: str = ""
    """A config key. If it is set, the model has weights that nobody counts."""

    def form(self, config: Config) -> str | None:
        """The form of the class; ``None`` if it is unknown, or if the config has weights that nobody counts."""
        kind = "decoder" if self.decoder_only else form(config)
        return None if self.uncounted_with and config.flag(self.uncounted_with) else kind

    def blocks(self, config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
        """All blocks of a class of this form."""
        width, tied = config.integer("hidden_size"), blocks.tied_head(config, top)
        out = (self.tables or self.shared_tables)(config, width, kind, tied)
        if kind != "decoder":
            out += self._stack(config, width, "encoder", encoder_layers(config, minimum=0))
        if kind != "encoder":
            out += self._stack(config, width, "decoder", reading.layers)
        return out

    def shared_tables(self, config: Config, width: int, kind: str, tied: bool) -> list[Block]:
        """Embeddings and head."""
        vocab = config.integer("vocab_size")
        tables = [Block(kind="embedding", weights=embedding("shared", vocab, width))]
        # In a model of several parts the part's own key ties its tables, and the whole model's key the head.
        if not blocks.tied_head(config, config) and self.own_tables and kind != "decoder":
            sides = ("encoder",) if kind == "encoder" else ("encoder", "decoder")
            tables += [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
        headed = kind in {"both", "decoder"}
        own_head = not tied or (kind == "decoder" and not self.decoder_is_tied)
        return tables + (blocks.output_head("lm_head", width, vocab) if headed and own_head else [])

    def _stack(self, config: Config, width: int, side: str, layers: tuple[Layer, ...]) -> list[Block]:
        """Positions, norms and layers of one side."""
        encoder, part = side == "encoder", Part.ENCODER if side == "encoder" else Part.LANGUAGE
        outside: Weighed = ()
        if self.positions is not None and config.flag("use_learned_position_embeddings", default=True):
            rows = config.integer(self.encoder_positions if encoder else self.decoder_positions) + self.positions
            outside += embedding(f"{side}.embed_positions", rows, width)
        if blocks.switched(config, self.embedding_norm):
            outside += layer_norm(f"{side}.layernorm_embedding", width)
        if self.final_norm:
            outside += layer_norm(f"{side}.layer_norm", width)
        if encoder and self.front is not None:
            outside += self.front(config, width)
        step = (config.maybe_integer(f"{side}_sparse_step", minimum=0) or 0) if self.sparse else 0
        places = [(layer, step > 0 and (i + 1) % step == 0) for i, layer in enumerate(layers)]
        out = [Block(kind="embedding", weights=outside, part=part)] if outside else []
        return out + blocks.repeated(places, lambda place: self._layer(config, width, side, *place), part)

    def _layer(self, config: Config, width: int, side: str, layer: Layer, routed: bool) -> Iterator[Named]:
        encoder = side == "encoder"
        own = self.encoder_attention(config, width) if encoder and self.encoder_attention else None
        own = own or self._attention(config, "self_attn", width, blocks.own_dims(layer, width))
        yield "attention", own + layer_norm("self_attn_layer_norm", width)
        if not encoder:
            source = config.maybe_integer("cross_attention_hidden_size") if self.decoder_only else None
            cross = self._attention(config, "encoder_attn", width, blocks.cross_dims(layer, width), source)
            yield "cross_attention", cross + layer_norm("encoder_attn_layer_norm", width)
        inner = config.integer(f"{side}_ffn_dim")
        mlp = linear("fc1", width, inner, bias=True) + linear("fc2", inner, width, bias=True)
        if routed:
            count = config.integer("num_experts")
            # Each token goes to two experts.
            router = linear("ffn.router.classifier", width, count, bias=config.flag("router_bias"), role=WeightRole.ROUTER)
            yield "moe", experts(mlp, count, 2) + router
        else:
            yield "mlp", mlp
        yield "norm", layer_norm("final_layer_norm", width)

    def _attention(self, config: Config, path: str, width: int, dims: Dims, source: int | None = None) -> Weighed:
        biased = ("kvqo" if self.key_bias else "vqo") if blocks.switched(config, self.bias) else ""
        return blocks.projections(path, width, dims, blocks.KVQO, source=source, biased=biased)


def _two_vocabularies(config: Config, width: int, kind: str, tied: bool) -> list[Block]:
    """FSMT has a vocabulary for each side. If the head shares the decoder's table, all three share one table."""
    out = [Block(kind="embedding", weights=embedding("encoder.embed_tokens", config.integer("src_vocab_size"), width))]
    if tied:
        return out
    vocab = config.integer("tgt_vocab_size")
    out.append(Block(kind="embedding", weights=embedding("decoder.embed_tokens", vocab, width)))
    return out + blocks.output_head("output_projection", width, vocab)


def _own_vocabularies(config: Config, width: int, kind: str, tied: bool) -> list[Block]:
    """Marian: each side has a table, and the head has the decoder's vocabulary, unless the sides share one table as in BART."""
    if config.flag("share_encoder_decoder_embeddings"):
        return BART.shared_tables(config, width, kind, tied)
    target = config.maybe_integer("decoder_vocab_size") or config.integer("vocab_size")
    sizes = {"encoder": config.integer("vocab_size"), "decoder": target}
    out = [
        Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", size, width))
        for side, size in sizes.items()
        if kind in ("both", "body", side)
    ]
    return out + (blocks.output_head("lm_head", width, target) if not tied and kind in ("both", "decoder") else [])


def _bigbird(config: Config, width: int) -> Weighed:
    names, biased = {"q": "query", "k": "key", "v": "value"}, "qkvo" if config.flag("use_bias") else ""
    own = blocks.projections("self_attn.self", width, blocks.square(width), names, biased=biased)
    return own + linear("self_attn.output", width, width, bias=bool(biased))


def _longformer(config: Config, width: int) -> Weighed:
    """The encoder of LED has a second set of queries, keys and values for global tokens."""
    path = "self_attn.longformer_self_attn"
    own: Weighed = ()
    for end in ("", "_global"):
        names = {"q": f"query{end}", "k": f"key{end}", "v": f"value{end}"}
        own += blocks.projections(path, width, blocks.square(width), names, biased="qkv")
    return own + linear("self_attn.output", width, width, bias=True)


def _global_norm(config: Config, width: int) -> Weighed:
    """Pegasus-X has a second norm for the global tokens."""
    own = blocks.projections("self_attn", width, blocks.square(width), blocks.KVQO)
    return own + layer_norm("global_self_attn_layer_norm", width)


def _subsampler(config: Config, width: int) -> Weighed:
    """Speech2Text: convolutions, each followed by a gate that halves the channels."""
    kernels = config.integers("conv_kernel_sizes", minimum=1) or []
    count = config.integer("num_conv_layers", maximum=MAX_LAYERS)
    if len(kernels) < count:
        raise config.error("conv_kernel_sizes", kernels, f"a list of {count} numbers, one for each convolution")
    middle = config.integer("conv_channels")
    features = config.integer("input_feat_per_channel") * config.integer("input_channels")
    out: Weighed = ()
    for i, kernel in enumerate(kernels[:count]):
        inputs = features if i == 0 else middle // 2
        outputs = 2 * width if i == count - 1 else middle
        out += convolution(f"encoder.conv.conv_layers.{i}", outputs, kernel, inputs=inputs, bias=True)
    return out


_PROPHETNET_NAMES: Final = {"k": "key_proj", "v": "value_proj", "q": "query_proj", "o": "out_proj"}


def _prophetnet(config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
    """ProphetNet, whose decoder predicts several next words at once."""
    width, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    sides = ("decoder",) if kind == "decoder" else ("encoder", "decoder")
    out = [Block(kind="embedding", weights=embedding("word_embeddings", vocab, width))]
    if kind != "decoder":
        out += _prophetnet_side(config, width, "encoder", encoder_layers(config, "num_encoder_layers"))
    out += _prophetnet_side(config, width, "decoder", reading.layers)
    if blocks.tied_head(config, top):
        return out
    # Without tying, each side has the table once more.
    out += [Block(kind="embedding", weights=embedding(f"{side}.word_embeddings", vocab, width)) for side in sides]
    return out if kind == "body" else out + blocks.output_head("lm_head", width, vocab)


def _prophetnet_side(config: Config, width: int, side: str, layers: tuple[Layer, ...]) -> list[Block]:
    """Layers and positions of one side. In the decoder each layer has a matrix for the relative positions of n-grams."""
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
        cross = Attends(path="cross_attn", names=_PROPHETNET_NAMES, cross=True, biased="kvqo", norms=after)
        out += blocks.stack(layers, width, cross_attention=cross) if config.flag("add_cross_attention") else []
    own = Attends(path="self_attn", names=_PROPHETNET_NAMES, biased="kvqo", norms=norm)
    out.append(Block(kind="embedding", weights=outside, part=part))
    return out + blocks.stack(layers, width, part, attention=own, mlp=mlp + layer_norm("feed_forward_layer_norm", width))


BART: Final = Bart()
BIGBIRD: Final = Bart(positions=0, bias="use_bias", decoder_is_tied=False, encoder_attention=_bigbird)
BLENDERBOT: Final = Bart(positions=0, embedding_norm=False, final_norm=True)
"""Blenderbot and Pegasus."""
BLENDERBOT_SMALL: Final = Bart(positions=0)
# The two rows more are the padding row and the one after it.
FSMT: Final = Bart(embedding_norm=False, tables=_two_vocabularies)
LED: Final = Bart(
    positions=0, encoder_positions="max_encoder_position_embeddings", decoder_positions="max_decoder_position_embeddings",
    encoder_attention=_longformer,
)  # fmt: skip
M2M: Final = Bart(positions=None, embedding_norm=False, final_norm=True)
MARIAN: Final = Bart(positions=0, embedding_norm=False, tables=_own_vocabularies)
MBART: Final = Bart(final_norm=True)
MVP: Final = Bart(uncounted_with="use_prompt")
NLLB_MOE: Final = Bart(positions=None, embedding_norm=False, final_norm=True, sparse=True)
PEGASUS_X: Final = Bart(
    positions=None, embedding_norm=False, final_norm=True, bias=False, encoder_attention=_global_norm,
    front=lambda config, width: embedding("encoder.embed_global", config.integer("num_global_tokens"), width),
)  # fmt: skip
SPEECH2TEXT: Final = Bart(positions=None, embedding_norm=False, final_norm=True, own_tables=False, front=_subsampler)
# A document of this type alone has no weights here: PP_FORMULANET in pairs.py counts them.
FORMULANET: Final = Bart(final_norm=True, own_tables=False, decoder_only=True)
TROCR: Final = Bart(embedding_norm="layernorm_embedding", own_tables=False, crosses=False, decoder_only=True)
WHISPER: Final = Bart(
    positions=0, encoder_positions="max_source_positions", decoder_positions="max_target_positions", embedding_norm=False,
    final_norm=True, key_bias=False, own_tables=False, front=lambda config, width: mel_convolutions(config, "encoder", width),
    # Every recording is padded to this length.
    tokens=lambda config: config.maybe_integer("max_source_positions"),
)  # fmt: skip
PROPHETNET: Final = EncoderDecoder(
    keys=Keys(count=("num_decoder_layers",), heads="num_decoder_attention_heads"), weights=_prophetnet,
    forms=("both", "body", "decoder"),
)  # fmt: skip

"""Models of BART's build: one object each that says what they add to it.

Each mirrors the model's ``modeling_*.py`` in transformers 5.23. A class named ``...ForCausalLM`` is the decoder alone (its
matrices of cross attention included), one named ``...EncoderModel`` the encoder alone. Embeddings are one table while
``tie_word_embeddings`` holds, and else one for each of encoder, decoder and head, with the one that they would share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hwcalc.formulas import Layer
from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, experts, layer_norm, linear
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, Switch, Weighed, repeated, switched, tied_head
from hwcalc.parsers.classes import form
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.encoder_decoder.common import EncoderDecoder, Keys, encoder_layers
from hwcalc.parsers.projections import KVQO, Dims, cross_dims, output_head, own_dims, projections, square
from hwcalc.parsers.reading import Reading

__all__ = [
    "BART",
    "BART_KEYS",
    "BIGBIRD",
    "BLENDERBOT",
    "BLENDERBOT_SMALL",
    "FORMULANET",
    "FSMT",
    "LED",
    "M2M",
    "MARIAN",
    "MBART",
    "MVP",
    "NLLB_MOE",
    "PEGASUS_X",
    "SPEECH2TEXT",
    "TROCR",
    "WHISPER",
    "Bart",
]

BART_KEYS: Final = Keys(count=("decoder_layers",), heads="decoder_attention_heads")

Tables = Callable[[Config, int, str, bool], list[Block]]
"""``tables(config, width, form, tied)``: embeddings and head."""


@frozen
class Bart(EncoderDecoder):
    """What a model type adds to BART, or takes from it."""

    keys: Keys = BART_KEYS
    forms: tuple[str, ...] = ("both", "decoder", "encoder", "body")
    positions: int | None = 2
    """Learned positions: this many rows more than the key says; ``None`` where they are computed."""
    encoder_positions: str = "max_position_embeddings"
    decoder_positions: str = "max_position_embeddings"
    embedding_norm: Switch = True
    final_norm: bool = False
    bias: Switch = True
    key_bias: bool = True
    own_tables: bool = True
    """Whether encoder and decoder share their embeddings; otherwise the encoder has none, or one of its own vocabulary."""
    tables: Tables | None = None
    decoder_is_tied: bool = True
    """False where the class of the decoder alone always has a head of its own."""
    decoder_only: bool = False
    """The type of the decoder of an image model, which may attend to a width that is not its own."""
    encoder_attention: Callable[[Config, int], Weighed] | None = None
    front: Callable[[Config, int], Weighed] | None = None
    """What stands before the encoder's layers."""
    sparse: bool = False
    uncounted_with: str = ""
    """A key that adds what nobody weighs."""

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """All blocks, or ``None`` for a class of another form."""
        kind = "decoder" if self.decoder_only else form(config)
        if kind not in self.forms or (self.uncounted_with and config.flag(self.uncounted_with)):
            return None
        return self.blocks(config, top, reading, kind)

    def blocks(self, config: Config, top: Config, reading: Reading, kind: str) -> list[Block]:
        """All blocks of one form of this model."""
        width = config.integer("hidden_size")
        tied = tied_head(config, top)
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
        if not tied and self.own_tables and kind != "decoder":
            sides = ("encoder",) if kind == "encoder" else ("encoder", "decoder")
            tables += [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
        headed = kind in {"both", "decoder"}
        own_head = not tied or (kind == "decoder" and not self.decoder_is_tied)
        return tables + (output_head("lm_head", width, vocab) if headed and own_head else [])

    def _stack(self, config: Config, width: int, side: str, layers: tuple[Layer, ...]) -> list[Block]:
        """Positions, norms and layers of one side."""
        encoder = side == "encoder"
        part = Part.ENCODER if encoder else Part.LANGUAGE
        outside: Weighed = ()
        if self.positions is not None and config.flag("use_learned_position_embeddings", default=True):
            rows = config.integer(self.encoder_positions if encoder else self.decoder_positions) + self.positions
            outside += embedding(f"{side}.embed_positions", rows, width)
        if switched(config, self.embedding_norm):
            outside += layer_norm(f"{side}.layernorm_embedding", width)
        if self.final_norm:
            outside += layer_norm(f"{side}.layer_norm", width)
        if encoder and self.front is not None:
            outside += self.front(config, width)
        step = (config.maybe_integer(f"{side}_sparse_step", minimum=0) or 0) if self.sparse else 0
        places = [(layer, step > 0 and (i + 1) % step == 0) for i, layer in enumerate(layers)]
        out = [Block(kind="embedding", weights=outside, part=part)] if outside else []
        return out + repeated(places, lambda place: self._layer(config, width, side, *place), part)

    def _layer(self, config: Config, width: int, side: str, layer: Layer, routed: bool) -> Iterator[Named]:
        encoder = side == "encoder"
        own = self.encoder_attention(config, width) if encoder and self.encoder_attention else None
        own = own or self._attention(config, "self_attn", width, own_dims(layer, width))
        yield "attention", own + layer_norm("self_attn_layer_norm", width)
        if not encoder:
            source = config.maybe_integer("cross_attention_hidden_size") if self.decoder_only else None
            cross = self._attention(config, "encoder_attn", width, cross_dims(layer, width), source)
            yield "cross_attention", cross + layer_norm("encoder_attn_layer_norm", width)
        inner = config.integer(f"{side}_ffn_dim")
        mlp = linear("fc1", width, inner, bias=True) + linear("fc2", inner, width, bias=True)
        if routed:
            count = config.integer("num_experts")
            # Each token goes to its two best experts.
            router = linear("ffn.router.classifier", width, count, bias=config.flag("router_bias"), role=WeightRole.ROUTER)
            yield "moe", experts(mlp, count, 2) + router
        else:
            yield "mlp", mlp
        yield "norm", layer_norm("final_layer_norm", width)

    def _attention(self, config: Config, path: str, width: int, dims: Dims, source: int | None = None) -> Weighed:
        biased = ("kvqo" if self.key_bias else "vqo") if switched(config, self.bias) else ""
        return projections(path, width, dims, KVQO, source=source, biased=biased)


def _two_vocabularies(config: Config, width: int, kind: str, tied: bool) -> list[Block]:
    """FSMT has a vocabulary for each side; the head may share the decoder's table, and then both sides share one."""
    out = [Block(kind="embedding", weights=embedding("encoder.embed_tokens", config.integer("src_vocab_size"), width))]
    if tied:
        return out
    vocab = config.integer("tgt_vocab_size")
    out.append(Block(kind="embedding", weights=embedding("decoder.embed_tokens", vocab, width)))
    return out + output_head("output_projection", width, vocab)


def _own_vocabularies(config: Config, width: int, kind: str, tied: bool) -> list[Block]:
    """Marian: a table for each side, and the head with the decoder's, unless the sides share them as BART's do."""
    if config.flag("share_encoder_decoder_embeddings"):
        return BART.shared_tables(config, width, kind, tied)
    target = config.maybe_integer("decoder_vocab_size") or config.integer("vocab_size")
    sizes = {"encoder": config.integer("vocab_size"), "decoder": target}
    out = [
        Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", size, width))
        for side, size in sizes.items()
        if kind in ("both", "body", side)
    ]
    return out + (output_head("lm_head", width, target) if not tied and kind in ("both", "decoder") else [])


def _bigbird(config: Config, width: int) -> Weighed:
    names = {"q": "query", "k": "key", "v": "value"}
    biased = "qkvo" if config.flag("use_bias") else ""
    path = "self_attn"
    own = projections(f"{path}.self", width, square(width), names, biased=biased)
    return own + linear(f"{path}.output", width, width, bias=bool(biased))


def _longformer(config: Config, width: int) -> Weighed:
    """LED's encoder: a second set of queries, keys and values for global tokens."""
    path = "self_attn.longformer_self_attn"
    own: Weighed = ()
    for end in ("", "_global"):
        names = {"q": f"query{end}", "k": f"key{end}", "v": f"value{end}"}
        own += projections(path, width, square(width), names, biased="qkv")
    return own + linear("self_attn.output", width, width, bias=True)


def _global_norm(config: Config, width: int) -> Weighed:
    """Pegasus-X: a second norm, for the global tokens."""
    return projections("self_attn", width, square(width), KVQO) + layer_norm("global_self_attn_layer_norm", width)


def _global_tokens(config: Config, width: int) -> Weighed:
    return embedding("encoder.embed_global", config.integer("num_global_tokens"), width)


def _two_convolutions(config: Config, width: int) -> Weighed:
    """Whisper: two convolutions of three taps over the mel bins."""
    first = convolution("encoder.conv1", width, 3, inputs=config.integer("num_mel_bins"), bias=True)
    return first + convolution("encoder.conv2", width, 3, inputs=width, bias=True)


def _subsampler(config: Config, width: int) -> Weighed:
    """Speech2Text: gated convolutions, each of which halves its channels afterwards."""
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


BART: Final = Bart()
BIGBIRD: Final = Bart(positions=0, bias="use_bias", decoder_is_tied=False, encoder_attention=_bigbird)
BLENDERBOT: Final = Bart(positions=0, embedding_norm=False, final_norm=True)
"""Pegasus too."""
BLENDERBOT_SMALL: Final = Bart(positions=0)
# The padding row and the one after it.
FSMT: Final = Bart(embedding_norm=False, tables=_two_vocabularies)
LED: Final = Bart(
    positions=0,
    encoder_positions="max_encoder_position_embeddings",
    decoder_positions="max_decoder_position_embeddings",
    encoder_attention=_longformer,
)
M2M: Final = Bart(positions=None, embedding_norm=False, final_norm=True)
MARIAN: Final = Bart(positions=0, embedding_norm=False, tables=_own_vocabularies)
MBART: Final = Bart(final_norm=True)
MVP: Final = Bart(uncounted_with="use_prompt")
NLLB_MOE: Final = Bart(positions=None, embedding_norm=False, final_norm=True, sparse=True)
PEGASUS_X: Final = Bart(
    positions=None, embedding_norm=False, final_norm=True, bias=False, encoder_attention=_global_norm, front=_global_tokens
)
SPEECH2TEXT: Final = Bart(positions=None, embedding_norm=False, final_norm=True, own_tables=False, front=_subsampler)
# Without weights where its document is of this type alone.
FORMULANET: Final = Bart(final_norm=True, own_tables=False, decoder_only=True)
TROCR: Final = Bart(embedding_norm="layernorm_embedding", own_tables=False, crosses=False, decoder_only=True)
WHISPER: Final = Bart(
    positions=0,
    encoder_positions="max_source_positions",
    decoder_positions="max_target_positions",
    embedding_norm=False,
    final_norm=True,
    key_bias=False,
    own_tables=False,
    front=_two_convolutions,
    # Every recording is padded to this length.
    tokens=lambda config: config.maybe_integer("max_source_positions"),
)

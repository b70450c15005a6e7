"""Encoder-decoder models of BART's build: one line each in a table of what they add to it.

Each line mirrors the model's ``modeling_*.py`` in transformers 5.23. A class named ``...ForCausalLM`` is the decoder alone
(its cross attention included), one named ``...EncoderModel`` the encoder alone; a class that none of the forms fits is not
weighed. Embeddings are one table while ``tie_word_embeddings`` holds, and else one for each of encoder, decoder and head, with
the one that they would share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, experts, layer_norm, linear
from hwcalc.formulas.weights_state import convolution
from hwcalc.parsers.blocks import Named, repeated, tied_head
from hwcalc.parsers.config import MAX_LAYERS, Config

__all__ = ["BART_TYPES", "bart_blocks", "blocks", "form"]

Switch = bool | str
"""Yes, no, or the config key that says so."""


@frozen
class _Bart:
    """What a model type adds to, or takes from, BART."""

    positions: int | None = 2
    """Learned positions: this many rows more than the key says; ``None`` where they are computed."""
    encoder_positions: str = "max_position_embeddings"
    decoder_positions: str = "max_position_embeddings"
    embedding_norm: Switch = True
    final_norm: bool = False
    bias: Switch = True
    key_bias: Switch = True
    own_tables: bool = True
    """Whether encoder and decoder share their embeddings; otherwise the encoder has none, or one of its own vocabulary."""
    encoder_attention: Callable[[Config, int], tuple[Weight, ...]] | None = None
    front: Callable[[Config, int], tuple[Weight, ...]] | None = None
    """What stands before the encoder's layers."""
    sparse: bool = False


def form(config: Config) -> str | None:
    """``both``, ``decoder``, ``encoder``, ``body`` (both, without a head), or ``None`` for a class of another form."""
    names = config.raw.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    if not isinstance(first, str) or first.endswith(("ForConditionalGeneration", "MTModel", "ForSpeechToText")):
        return "both"
    if first.endswith("ForCausalLM"):
        return "decoder"
    if first.endswith("EncoderModel"):
        return "encoder"
    return "body" if first.endswith("Model") else None


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks of a model type in the table, or ``None`` for a class of another form."""
    kind = "decoder" if config.model_type in _DECODERS_ONLY else form(config)
    if kind is None or (config.model_type == "mvp" and config.flag("use_prompt")):
        return None
    return bart_blocks(config, top, kind)


def bart_blocks(config: Config, top: Config, kind: str) -> tuple[Block, ...]:
    """The blocks of one :func:`form` of a model type in the table."""
    spec = _TABLE[config.model_type or ""]
    out = _tables(config, top, spec, kind)
    if kind != "decoder":
        out += _stack(config, spec, "encoder")
    if kind != "encoder":
        out += _stack(config, spec, "decoder")
    return tuple(out)


def _switched(config: Config, switch: Switch) -> bool:
    return config.flag(switch) if isinstance(switch, str) else switch


def _tables(config: Config, top: Config, spec: _Bart, kind: str) -> list[Block]:
    """Embeddings and head."""
    width = config.integer("hidden_size")
    tied = tied_head(config, top)
    if config.model_type == "fsmt":
        return _two_vocabularies(config, width, tied=tied)
    vocab = config.integer("vocab_size")
    if config.model_type == "marian" and not config.flag("share_encoder_decoder_embeddings"):
        return _own_vocabularies(config, width, kind, tied=tied)
    shared = Block(kind="embedding", weights=embedding("shared", vocab, width))
    head = Block(kind="head", weights=linear("lm_head", width, vocab, role=WeightRole.HEAD))
    heads = [head] if kind in ("both", "decoder") and not tied else []
    if kind == "decoder" and config.model_type == "bigbird_pegasus":
        heads = [head]
    if tied or kind == "decoder" or not spec.own_tables:
        return [shared, *heads]
    sides = ("encoder",) if kind == "encoder" else ("encoder", "decoder")
    tables = [Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", vocab, width)) for side in sides]
    return [shared, *tables, *heads]


def _two_vocabularies(config: Config, width: int, *, tied: bool) -> list[Block]:
    """FSMT has a vocabulary for each side; the head may share the decoder's table, and then both sides share one."""
    out = [Block(kind="embedding", weights=embedding("encoder.embed_tokens", config.integer("src_vocab_size"), width))]
    if not tied:
        vocab = config.integer("tgt_vocab_size")
        out.append(Block(kind="embedding", weights=embedding("decoder.embed_tokens", vocab, width)))
        out.append(Block(kind="head", weights=linear("output_projection", width, vocab, role=WeightRole.HEAD)))
    return out


def _own_vocabularies(config: Config, width: int, kind: str, *, tied: bool) -> list[Block]:
    """Marian without shared embeddings: a table for each side, and the head with the decoder's."""
    target = config.maybe_integer("decoder_vocab_size") or config.integer("vocab_size")
    sizes = {"encoder": config.integer("vocab_size"), "decoder": target}
    out = [
        Block(kind="embedding", weights=embedding(f"{side}.embed_tokens", size, width))
        for side, size in sizes.items()
        if kind in ("both", "body", side)
    ]
    if not tied and kind in ("both", "decoder"):
        out.append(Block(kind="head", weights=linear("lm_head", width, target, role=WeightRole.HEAD)))
    return out


def _stack(config: Config, spec: _Bart, side: str) -> list[Block]:
    """Positions, norms and layers of one side."""
    width, encoder = config.integer("hidden_size"), side == "encoder"
    part = Part.ENCODER if encoder else Part.LANGUAGE
    outside: tuple[Weight, ...] = ()
    if spec.positions is not None and config.flag("use_learned_position_embeddings", default=True):
        rows = config.integer(spec.encoder_positions if encoder else spec.decoder_positions) + spec.positions
        outside += embedding(f"{side}.embed_positions", rows, width)
    if _switched(config, spec.embedding_norm):
        outside += layer_norm(f"{side}.layernorm_embedding", width)
    if spec.final_norm:
        outside += layer_norm(f"{side}.layer_norm", width)
    if encoder and spec.front is not None:
        outside += spec.front(config, width)
    count = config.maybe_integer(f"{side}_layers", minimum=0, maximum=MAX_LAYERS) or 0
    step = (config.maybe_integer(f"{side}_sparse_step", minimum=0) or 0) if spec.sparse else 0
    sparse = [step > 0 and (i + 1) % step == 0 for i in range(count)]
    out = [Block(kind="embedding", weights=outside, part=part)] if outside else []
    return out + repeated(sparse, lambda routed: _layer(config, spec, encoder=encoder, routed=routed), part)


def _layer(config: Config, spec: _Bart, *, encoder: bool, routed: bool) -> Iterator[Named]:
    width = config.integer("hidden_size")
    if encoder and spec.encoder_attention is not None:
        own = spec.encoder_attention(config, width)
    else:
        own = _attention(config, spec, width, width, "self_attn")
    yield "attention", own + layer_norm("self_attn_layer_norm", width)
    if not encoder:
        source = config.maybe_integer("cross_attention_hidden_size") if config.model_type in _DECODERS_ONLY else None
        cross = _attention(config, spec, width, source or width, "encoder_attn")
        yield "cross_attention", cross + layer_norm("encoder_attn_layer_norm", width)
    mlp_width = config.integer("encoder_ffn_dim" if encoder else "decoder_ffn_dim")
    mlp = linear("fc1", width, mlp_width, bias=True) + linear("fc2", mlp_width, width, bias=True)
    if routed:
        count = config.integer("num_experts")
        # Each token goes to its two best experts.
        router = linear("ffn.router.classifier", width, count, bias=config.flag("router_bias"), role=WeightRole.ROUTER)
        yield "moe", experts(mlp, count, 2) + router
    else:
        yield "mlp", mlp
    yield "norm", layer_norm("final_layer_norm", width)


def _attention(config: Config, spec: _Bart, width: int, source: int, path: str) -> tuple[Weight, ...]:
    bias = _switched(config, spec.bias)
    key = bias and _switched(config, spec.key_bias)
    return (
        *linear(f"{path}.k_proj", source, width, bias=key),
        *linear(f"{path}.v_proj", source, width, bias=bias),
        *linear(f"{path}.q_proj", width, width, bias=bias),
        *linear(f"{path}.out_proj", width, width, bias=bias),
    )


def _longformer(config: Config, width: int) -> tuple[Weight, ...]:
    """LED's encoder: a second set of queries, keys and values for global tokens."""
    path = "self_attn.longformer_self_attn"
    names = ("query", "key", "value", "query_global", "key_global", "value_global")
    own = tuple(weight for name in names for weight in linear(f"{path}.{name}", width, width, bias=True))
    return own + linear("self_attn.output", width, width, bias=True)


def _global_norm(config: Config, width: int) -> tuple[Weight, ...]:
    """Pegasus-X: a second norm, for the global tokens."""
    plain = _attention(config, _TABLE["pegasus_x"], width, width, "self_attn")
    return plain + layer_norm("global_self_attn_layer_norm", width)


def _global_tokens(config: Config, width: int) -> tuple[Weight, ...]:
    return embedding("encoder.embed_global", config.integer("num_global_tokens"), width)


def _two_convolutions(config: Config, width: int) -> tuple[Weight, ...]:
    """Whisper: two convolutions of three taps over the mel bins."""
    bins = config.integer("num_mel_bins")
    first = convolution("encoder.conv1", width, 3, inputs=bins, bias=True)
    return first + convolution("encoder.conv2", width, 3, inputs=width, bias=True)


def _subsampler(config: Config, width: int) -> tuple[Weight, ...]:
    """Speech2Text: gated convolutions, each of which halves its channels afterwards."""
    kernels = config.integers("conv_kernel_sizes", minimum=1) or []
    count = config.integer("num_conv_layers", maximum=MAX_LAYERS)
    if len(kernels) < count:
        raise config.error("conv_kernel_sizes", kernels, f"a list of {count} numbers, one for each convolution")
    middle = config.integer("conv_channels")
    features = config.integer("input_feat_per_channel") * config.integer("input_channels")
    out: tuple[Weight, ...] = ()
    for i, kernel in enumerate(kernels[:count]):
        inputs = features if i == 0 else middle // 2
        outputs = 2 * width if i == count - 1 else middle
        out += convolution(f"encoder.conv.conv_layers.{i}", outputs, kernel, inputs=inputs, bias=True)
    return out


# Only the decoder of an image or music model has this config.
_DECODERS_ONLY: Final = frozenset({"pp_formulanet_text", "trocr"})

_TABLE: Final[dict[str, _Bart]] = {
    "bart": _Bart(),
    "bigbird_pegasus": _Bart(
        positions=0,
        bias="use_bias",
        encoder_attention=lambda config, width: tuple(
            weight
            for name in ("self.query", "self.key", "self.value", "output")
            for weight in linear(f"self_attn.{name}", width, width, bias=config.flag("use_bias"))
        ),
    ),
    "blenderbot": _Bart(positions=0, embedding_norm=False, final_norm=True),
    "blenderbot-small": _Bart(positions=0),
    # The padding row and the one after it.
    "fsmt": _Bart(embedding_norm=False),
    "led": _Bart(
        positions=0,
        encoder_positions="max_encoder_position_embeddings",
        decoder_positions="max_decoder_position_embeddings",
        encoder_attention=_longformer,
    ),
    "m2m_100": _Bart(positions=None, embedding_norm=False, final_norm=True),
    "marian": _Bart(positions=0, embedding_norm=False),
    "mbart": _Bart(final_norm=True),
    "mvp": _Bart(),
    "nllb-moe": _Bart(positions=None, embedding_norm=False, final_norm=True, sparse=True),
    "pegasus": _Bart(positions=0, embedding_norm=False, final_norm=True),
    "pegasus_x": _Bart(
        positions=None, embedding_norm=False, final_norm=True, bias=False, encoder_attention=_global_norm, front=_global_tokens
    ),
    "plbart": _Bart(),
    "pp_formulanet_text": _Bart(final_norm=True, own_tables=False),
    "speech_to_text": _Bart(positions=None, embedding_norm=False, final_norm=True, own_tables=False, front=_subsampler),
    "trocr": _Bart(embedding_norm="layernorm_embedding", own_tables=False),
    "whisper": _Bart(
        positions=0,
        encoder_positions="max_source_positions",
        decoder_positions="max_target_positions",
        embedding_norm=False,
        final_norm=True,
        key_bias=False,
        own_tables=False,
        front=_two_convolutions,
    ),
}

BART_TYPES: Final = frozenset(_TABLE)
"""The model types in the table."""

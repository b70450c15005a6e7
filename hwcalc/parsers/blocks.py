"""Blocks of weights that many families have: those of a stack of layers, of both ends of the model, of attention, experts and
hyper-connections.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec import field

from hwcalc.formulas import weights as w
from hwcalc.formulas.attention import AttentionKind, CrossAttention
from hwcalc.formulas.hybrid import Layer
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims

Switch = bool | str
"""Yes, no, or the config key that says so."""
Weighed = tuple[Weight, ...]
Named = tuple[str, Weighed]
"""A block's kind and its tensors."""
Dims = AttentionDims | AttentionKind
K = TypeVar("K", bound=Hashable)


def switched(config: Config, switch: Switch) -> bool:
    """The value of a switch for this config."""
    return config.flag(switch) if isinstance(switch, str) else switch


def norm(kind: str, path: str, width: int) -> Weighed:
    """One norm of the given kind."""
    if kind == "none":
        return ()
    if kind == "layer":
        return w.layer_norm(path, width)
    return w.rms_norm(path, width)


def rms_norms(width: int, *paths: str) -> Weighed:
    """Several RMS norms of one width."""
    return tuple(weight for path in paths for weight in w.rms_norm(path, width))


def tied_head(config: Config, top: Config) -> bool:
    """True if input and output embeddings are one tensor, as the document's class in transformers ties them.

    That may be by the key of the whole document, by the language model's, by either, or never, whatever the keys say; a class without a
    head always shares the embedding (``ties`` in ``class_defaults.json``). Where no class is known the document's key decides, else the language model's.
    """
    rule = top.ties or ("never" if config.ties == "never" else None)
    own, whole = bool(config.get("tie_word_embeddings")), top.get("tie_word_embeddings")
    if rule is None:
        return own if whole is None else bool(whole)
    return {"never": False, "always": True, "text": own, "either": own or bool(whole), "whole": bool(whole)}[rule]


def repeated(layers: Iterable[K], weigh: Callable[[K], Iterable[Named]], part: Part = Part.LANGUAGE) -> list[Block]:
    """The blocks of a stack of layers. Equal layers are weighed once. Equal blocks of different layers are counted together.

    Two Mamba layers and one of attention, each with an MLP: Mamba x 2, MLP x 3, attention x 1.
    """
    places: dict[K, list[int]] = {}
    for number, layer in enumerate(layers):
        places.setdefault(layer, []).append(number)
    found: dict[Named, list[int]] = {}
    for layer, numbers in places.items():
        for kind, weights in weigh(layer):
            if weights:
                found.setdefault((kind, weights), []).extend(numbers)
    return [
        Block(kind=kind, weights=weights, part=part, count=len(numbers), layers=tuple(sorted(numbers)))
        for (kind, weights), numbers in found.items()
    ]


def ends(
    config: Config,
    top: Config,
    *,
    embed: str = "model.embed_tokens",
    norm: str | Weighed = "model.norm",
    head: str = "lm_head",
    head_rows: int | None = None,
) -> list[Block]:
    """The blocks around the layers: embedding, last norm (the name of an RMS norm, or weights), and a head that is not tied.

    The head has a row for each word of the vocabulary, or ``head_rows``.
    """
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    out = [
        Block(kind="embedding", weights=w.embedding(embed, vocab, hidden)),
        Block(kind="norm", weights=w.rms_norm(norm, hidden) if isinstance(norm, str) else norm),
    ]
    return out + output_head(head, hidden, head_rows or vocab, tied=tied_head(config, top))


def attention_of(
    dims: Dims,
    hidden_size: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: bool = False,
    path: str = "self_attn",
    fused: str = "",
    output: str = "o_proj",
) -> Weighed:
    """The weights of an attention layer with these dims. ``qk_norm`` is one scale per channel of a head."""
    sizes = (dims.num_attention_heads, dims.num_key_value_heads, dims.head_dim, dims.v_head_dim)
    weights = w.attention(hidden_size, *sizes, qkv_bias=qkv_bias, o_bias=o_bias, path=path, fused=fused, output=output)
    if qk_norm:
        weights += rms_norms(dims.head_dim, f"{path}.q_norm", f"{path}.k_norm")
    return weights


def gated_experts(hidden_size: int, width: int, count: int, active: int, *, path: str = "mlp", router: str = "gate") -> Weighed:
    """Gated experts and the linear router that chooses among them."""
    return (
        *w.experts(w.gated_mlp(hidden_size, width, path=f"{path}.experts"), count, active),
        *w.linear(f"{path}.{router}", hidden_size, count, role=WeightRole.ROUTER),
    )


QKVO: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
"""The names of queries, keys, values and output, in the order in which they are listed."""

KVQO: Final = {"k": "k_proj", "v": "v_proj", "q": "q_proj", "o": "out_proj"}
"""The same as BART names and orders them."""


def square(width: int) -> AttentionDims:
    """Dims of attention as wide as the model. The number of heads is left out, since the matrices do not depend on it."""
    return AttentionDims(num_attention_heads=1, num_key_value_heads=1, head_dim=width, v_head_dim=width)


def own_dims(layer: Layer, width: int) -> Dims:
    """Dims of a layer's self attention. A layer that keeps nothing has no dims: its attention is as wide as the model."""
    return next((kind for kind in layer if isinstance(kind, AttentionKind)), None) or square(width)


def cross_dims(layer: Layer, width: int) -> Dims:
    """Dims of a layer's cross attention. If the model is the decoder alone, they are those of its self attention."""
    return next((kind for kind in layer if isinstance(kind, CrossAttention)), None) or own_dims(layer, width)


def projections(
    path: str, width: int, dims: Dims, names: Mapping[str, str] = QKVO, *, source: int | None = None, biased: str = ""
) -> Weighed:
    """Queries, keys, values and output.

    ``source`` is the width of the vectors that attention reads, by default ``width``. ``biased`` are the keys of those with a bias.

    >>> [weight.shape for weight in projections("attn", 4, square(4), source=6)]
    [(4, 4), (4, 6), (4, 6), (4, 4)]
    """
    seen = source or width
    queries, values = dims.num_attention_heads * dims.head_dim, dims.num_key_value_heads * dims.v_head_dim
    shapes = {
        "q": (width, queries),
        "k": (seen, dims.num_key_value_heads * dims.head_dim),
        "v": (seen, values),
        "o": (dims.num_attention_heads * dims.v_head_dim, width),
    }
    return tuple(weight for key, name in names.items() for weight in w.linear(f"{path}.{name}", *shapes[key], bias=key in biased))


class Attends(Record):
    """The matrices of a layer's attention: the names of their tensors. Their dims are those of the layer's cache."""

    path: str
    names: Mapping[str, str] = field(default_factory=lambda: QKVO)
    cross: bool = False
    biased: str = ""
    source: int | None = None
    """The width of the vectors that cross attention reads, by default the model's own."""
    head_norms: bool = False
    """True if each head's queries and keys have a norm."""
    norms: Weighed = ()
    """Norms before or after attention, and whatever else belongs to it."""

    def weights(self, layer: Layer, width: int) -> Weighed:
        """The tensors of one layer."""
        dims = cross_dims(layer, width) if self.cross else own_dims(layer, width)
        weights = projections(self.path, width, dims, self.names, source=self.source, biased=self.biased)
        for name in ("q_norm", "k_norm") if self.head_norms else ():
            weights += w.rms_norm(f"{self.path}.{name}", dims.head_dim)
        return weights + self.norms


def bart_attention(path: str, width: int, *, norm: str = "", cross: bool = False, biased: str = "kvqo") -> Attends:
    """Attention with the names of BART, followed by a layer norm. The norm is named after the path unless ``norm`` is given."""
    return Attends(path=path, names=KVQO, cross=cross, biased=biased, norms=w.layer_norm(f"{norm or path}_layer_norm", width))


def stack(layers: Iterable[Layer], width: int, part: Part = Part.LANGUAGE, **slots: Attends | Weighed) -> list[Block]:
    """The blocks of layers that all have these slots. The name of a slot is the kind of its blocks, listed in this order."""

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind, slot in slots.items():
            yield kind, slot.weights(layer, width) if isinstance(slot, Attends) else slot

    return repeated(layers, weigh, part)


def output_head(path: str, width: int, vocab: int, *, tied: bool = False, bias: bool = False) -> list[Block]:
    """The head that predicts words. If it is tied to the embedding, only its bias is counted."""
    if not tied:
        return [Block(kind="head", weights=w.linear(path, width, vocab, bias=bias, role=WeightRole.HEAD))]
    return [Block(kind="head", weights=w.parameter(f"{path}.bias", vocab, role=WeightRole.BIAS))] if bias else []


def hyper_connection(path: str, streams: int, hidden_size: int, outputs: int) -> Weighed:
    """The weights that mix ``streams`` residual streams around an attention or MLP: into it and out of it.

    With three outputs the streams are also mixed with each other, which takes streams x streams rows more.

    >>> sum(weight.elements for weight in hyper_connection("hc", 4, 2, 3))
    219

    (2 x 4 + 4 x 4) x (4 x 2) = 192 weights, 24 biases and 3 scales.
    """
    rows = 2 * streams + (streams * streams if outputs == 3 else 0)
    weights = w.parameter(f"{path}.fn", rows, streams * hidden_size) + w.parameter(f"{path}.base", rows)
    return weights + w.parameter(f"{path}.scale", outputs)


def hyper_connections(config: Config, outputs: int) -> Weighed:
    """The weights that mix the streams around the attention and around the MLP of a layer."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return hyper_connection("attn_hc", streams, hidden, outputs) + hyper_connection("ffn_hc", streams, hidden, outputs)


def hyper_head(config: Config) -> Weighed:
    """The weights that mix the streams before the last norm."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    weights = w.parameter("hc_head.hc_fn", streams, streams * hidden) + w.parameter("hc_head.hc_base", streams)
    return weights + w.parameter("hc_head.hc_scale", 1)

"""The matrices of attention, and the heads, of models that are not decoders like Llama. Dims come from the layer's cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import field

from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.cross import CrossAttention
from hwcalc.formulas.hybrid import Layer
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, WeightRole, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Named, Weighed, repeated
from hwcalc.parsers.reading import AttentionDims

__all__ = [
    "KVQO",
    "QKVO",
    "Attends",
    "Dims",
    "bart_attention",
    "cross_dims",
    "output_head",
    "own_dims",
    "projections",
    "square",
    "stack",
]

Dims = AttentionDims | AttentionKind

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
    return tuple(weight for key, name in names.items() for weight in linear(f"{path}.{name}", *shapes[key], bias=key in biased))


class Attends(Record):
    """The matrices of a layer's attention: the names of their tensors. Their dims are those of the layer's cache."""

    path: str
    names: Mapping[str, str] = field(default_factory=lambda: QKVO)
    cross: bool = False
    biased: str = ""
    source: int | None = None
    """The width of the vectors that cross attention reads, by default the model's own."""
    head_norms: bool = False
    """Whether each head's queries and keys have a norm."""
    norms: Weighed = ()
    """Norms before or after attention, and whatever else belongs to it."""

    def weights(self, layer: Layer, width: int) -> Weighed:
        """The tensors of one layer."""
        dims = cross_dims(layer, width) if self.cross else own_dims(layer, width)
        weights = projections(self.path, width, dims, self.names, source=self.source, biased=self.biased)
        for name in ("q_norm", "k_norm") if self.head_norms else ():
            weights += rms_norm(f"{self.path}.{name}", dims.head_dim)
        return weights + self.norms


def bart_attention(path: str, width: int, *, norm: str = "", cross: bool = False, biased: str = "kvqo") -> Attends:
    """Attention with the names of BART, followed by a layer norm. The norm is named after the path unless ``norm`` is given."""
    return Attends(path=path, names=KVQO, cross=cross, biased=biased, norms=layer_norm(f"{norm or path}_layer_norm", width))


def stack(layers: Iterable[Layer], width: int, part: Part = Part.LANGUAGE, **slots: Attends | Weighed) -> list[Block]:
    """The blocks of layers that all have these slots. The name of a slot is the kind of its blocks, listed in this order."""

    def weigh(layer: Layer) -> Iterator[Named]:
        for kind, slot in slots.items():
            yield kind, slot.weights(layer, width) if isinstance(slot, Attends) else slot

    return repeated(layers, weigh, part)


def output_head(path: str, width: int, vocab: int, *, tied: bool = False, bias: bool = False) -> list[Block]:
    """The head that predicts words. If it is tied to the embedding, only its bias is counted."""
    if not tied:
        return [Block(kind="head", weights=linear(path, width, vocab, bias=bias, role=WeightRole.HEAD))]
    return [Block(kind="head", weights=parameter(f"{path}.bias", vocab, role=WeightRole.BIAS))] if bias else []

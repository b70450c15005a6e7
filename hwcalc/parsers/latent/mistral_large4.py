"""Mistral Large 4: queries without a latent, a learned softmax scale, and layers that read the latent of an earlier one.

Every fourth layer has no rotary positions: there the rotary part of the keys comes from the latent, as the rest does.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import LatentAttention, Layer, LayerKind, SharedCache, SparseIndexer
from hwcalc.formulas.weights import layer_norm, parameter
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Decoder
from hwcalc.parsers.decoder.layer_types import with_positions
from hwcalc.parsers.latent.deepseek import SPARSE
from hwcalc.parsers.latent.layers import kind_weights
from hwcalc.parsers.reading import Reading


def _read(config: Config) -> Reading:
    """A layer that reads the latent of an earlier one keeps nothing, or the keys of an indexer of its own.

    Its weights are those of its attention, with a shared cache before it.
    """
    layers = SPARSE.read(config).layers
    count = len(layers)
    positions = with_positions(config, count)
    sources = config.integers("kv_source_layers", length=count) or range(count)
    own = [layer if positions[i] else tuple(map(_without_positions, layer)) for i, layer in enumerate(layers)]
    shares = [source != i for i, source in enumerate(sources)]
    return Reading(
        layers=tuple(_without_latent(layer) if share else layer for layer, share in zip(own, shares, strict=True)),
        config=config,
        weighed=tuple((SharedCache(), *layer) if share else layer for layer, share in zip(own, shares, strict=True)),
    )


def _without_latent(layer: Layer) -> Layer:
    return (SharedCache(), *(kind for kind in layer if not isinstance(kind, LatentAttention)))


def _without_positions(kind: LayerKind) -> LayerKind:
    if not isinstance(kind, LatentAttention):
        return kind
    return replace(kind, qk_nope_head_dim=kind.qk_nope_head_dim + kind.qk_rope_head_dim, qk_rope_head_dim=0)


def _attention(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    hidden = config.integer("hidden_size")
    weights: Weighed = ()
    for kind in layer:
        own = kind_weights(config, kind, None)
        if isinstance(kind, LatentAttention):
            shared = isinstance(layer[0], SharedCache)
            weights += tuple(weight for weight in own if not (shared and ".kv_a_" in weight.path))
            weights += parameter("self_attn.softmax_scaling", 2, kind.num_attention_heads)
        elif isinstance(kind, SparseIndexer):
            weights += own + layer_norm("self_attn.indexer.q_input_norm", hidden)
            weights += parameter("self_attn.indexer.softmax_scaling", 2, kind.index_n_heads)
    return weights


MISTRAL_LARGE4: Final = replace(SPARSE, layers=_read, attention=_attention)

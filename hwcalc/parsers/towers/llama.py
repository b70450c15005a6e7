"""Llama's vision towers: a class vector beside the patches, and tiles of large images."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.weights import Block, embedding, linear, parameter
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import LLAMA, Encoder, block, grid, patch_conv, patch_linear

_ENDS: Final = ("layernorm_pre", "layernorm_post")


def _stem4(config: Config, path: str, width: int) -> Weighed:
    return (
        *parameter(f"{path}.class_embedding", width),
        *embedding(f"{path}.positional_embedding_vlm", grid(config, 1), width),
        *patch_linear(config, f"{path}.patch_embedding.linear", width, bias=False),
    )


def _adapter(config: Config, path: str, width: int) -> Weighed:
    """An MLP over shuffled pixels, which are as wide as the tower's own MLP."""
    base, out = f"{path}.vision_adapter.mlp", config.integer("projector_output_dim")
    first = linear(f"{base}.fc1", config.integer("intermediate_size"), config.integer("projector_input_dim"))
    return first + linear(f"{base}.fc2", out, out)


LLAMA4: Final = Encoder(style=LLAMA, stem=_stem4, layers="model.layers", norms=_ENDS, joint=_adapter, joint_kind="adapter")


def _tiled_stem(config: Config, path: str, width: int) -> Weighed:
    """Positions per tile and per aspect ratio, each behind a gate."""
    patches, tiles = grid(config, 1), config.integer("max_num_tiles")
    ratios = config.sequence("supported_aspect_ratios")
    rows, gated = 1 + (8 if ratios is None else len(ratios)), f"{path}.gated_positional_embedding"
    weights = (
        *parameter(f"{path}.class_embedding", width),
        *patch_conv(config, f"{path}.patch_embedding", width, bias=False),
        *parameter(f"{gated}.gate", 1),
        *parameter(f"{gated}.embedding", patches, width),
        *embedding(f"{gated}.tile_embedding", rows, tiles * patches * width),
    )
    for name in ("pre", "post"):
        base = f"{path}.{name}_tile_positional_embedding"
        weights += (*parameter(f"{base}.gate", 1), *embedding(f"{base}.embedding", rows, tiles * width))
    return weights


_TILED: Final = Encoder(style=replace(LLAMA, bias=4 * (False,)), stem=_tiled_stem, layers="transformer.layers", norms=_ENDS)


def mllama(config: Config, path: str) -> tuple[Block, ...]:
    """Llama 3.2 Vision: after its layers some more of the same shape, each with two gates."""
    embeddings, layer, norms = _TILED(config, path)
    gates = parameter(f"{path}.global_transformer.layers.gates", 2)
    more = block("global layer", layer.weights + gates, count=config.number_of_layers("num_global_layers"))
    return (embeddings, layer, *more, norms)

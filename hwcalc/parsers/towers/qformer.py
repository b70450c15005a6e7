"""BLIP-2's query transformer: learned queries read a tower, and text beside them where the model lets it."""

from __future__ import annotations

from hwcalc.formulas.weights import Block, Part, layer_norm, linear
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import block, integers, linears

__all__ = ["instructed", "qformer"]


def qformer(config: Config, path: str) -> tuple[Block, ...]:
    """The query transformer of BLIP-2, which reads text where its config says so."""
    return _qformer(config, path, reads_text=config.flag("use_qformer_text_input"))


def instructed(config: Config, path: str) -> tuple[Block, ...]:
    """InstructBLIP's, which always reads the instruction."""
    return _qformer(config, path, reads_text=True)


def _qformer(config: Config, path: str, *, reads_text: bool) -> tuple[Block, ...]:
    """Some layers attend to the tower, and text has an MLP of its own where it is read."""
    (width, middle), count, base = (
        integers(config, "hidden_size", "intermediate_size"),
        config.number_of_layers(),
        f"{path}.encoder.layer",
    )
    layer = _attention(f"{base}.attention", width, width) + _mlp(base, width, middle, "_query")
    if reads_text:
        layer += _mlp(base, width, middle, "")
    crossing = -(-count // config.integer("cross_attention_frequency"))
    cross = _attention(f"{base}.crossattention", width, config.integer("encoder_hidden_size"))
    return (
        *block("norm", layer_norm(f"{path}.layernorm", width), Part.PROJECTOR),
        *block("layer", layer, Part.PROJECTOR, count),
        *block("cross attention", cross, Part.PROJECTOR, crossing),
    )


def _attention(path: str, width: int, source: int) -> Weighed:
    return (
        *linear(f"{path}.attention.query", width, width, bias=True),
        *linears(f"{path}.attention", ("key", "value"), source, width, bias=True),
        *linear(f"{path}.output.dense", width, width, bias=True),
        *layer_norm(f"{path}.output.LayerNorm", width),
    )


def _mlp(path: str, width: int, middle: int, suffix: str) -> Weighed:
    return (
        *linear(f"{path}.intermediate{suffix}.dense", width, middle, bias=True),
        *linear(f"{path}.output{suffix}.dense", middle, width, bias=True),
        *layer_norm(f"{path}.output{suffix}.LayerNorm", width),
    )

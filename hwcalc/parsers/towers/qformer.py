"""BLIP-2's query transformer: learned queries attend to a tower's output, and in some models to text as well."""

from __future__ import annotations

from hwcalc.formulas.weights import Block, Part, layer_norm, plain_mlp
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.projections import projections, square
from hwcalc.parsers.towers.build import block, integers


def qformer(config: Config, path: str) -> tuple[Block, ...]:
    """The query transformer of BLIP-2, which reads text if its config says so."""
    return _qformer(config, path, reads_text=config.flag("use_qformer_text_input"))


def instructed(config: Config, path: str) -> tuple[Block, ...]:
    """The query transformer of InstructBLIP, which always reads the instruction."""
    return _qformer(config, path, reads_text=True)


def _qformer(config: Config, path: str, *, reads_text: bool) -> tuple[Block, ...]:
    """Some layers have cross attention to the tower. If the model reads text, each layer has a second MLP for it."""
    width, middle = integers(config, "hidden_size", "intermediate_size")
    count, base = config.number_of_layers(), f"{path}.encoder.layer"
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
    names = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "output.dense"}
    weights = projections(path, width, square(width), names, source=source, biased="qkvo")
    return weights + layer_norm(f"{path}.output.LayerNorm", width)


def _mlp(path: str, width: int, middle: int, suffix: str) -> Weighed:
    weights = plain_mlp(width, middle, path=path, names=(f"intermediate{suffix}.dense", f"output{suffix}.dense"))
    return weights + layer_norm(f"{path}.output{suffix}.LayerNorm", width)

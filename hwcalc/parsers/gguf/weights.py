"""The tensors of a GGUF file as blocks of weights, under their names without the number of the layer: ``attn_q.weight``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import GgufTensor
from hwcalc.parsers.gguf.hparams import Hparams
from hwcalc.quantization.tensor_names import ROTARY, TABLES, part_of_layer, placed, without_prefix

__all__ = ["counted_weights"]

_PARTS: Final = {"v.": Part.VISION, "a.": Part.AUDIO, "mm.": Part.PROJECTOR, "enc.": Part.ENCODER}
_HEADS: Final = frozenset({"output.weight", "output.bias", "cls.output.weight"})
_CONVS: Final = frozenset({"conv1d", "shortconv", "conv"})
_NORM: Final = re.compile(r"norm|(^|_)ln(_|$)")

_Key = tuple[str, Part, tuple[Weight, ...]]


def counted_weights(read: Hparams, tensors: Sequence[GgufTensor]) -> Weights | None:
    """All weights of the file; ``None`` if its tensors are not known. Layers with equal tensors are one block."""
    if not tensors:
        return None
    drafts_from = read.n_layer // read.loops
    outside: dict[tuple[str, Part], list[Weight]] = {}
    layers: dict[tuple[str, Part, int], list[Weight]] = {}
    for tensor in tensors:
        path, number = placed(tensor.name)
        if path.startswith(ROTARY):
            continue
        part = next((part for prefix, part in _PARTS.items() if path.startswith(prefix)), Part.LANGUAGE)
        weight = _weight(read, path, tensor.shape or (1,))
        if number < 0:
            outside.setdefault((_kind_outside(weight), part), []).append(weight)
            continue
        part = Part.MTP if part is Part.LANGUAGE and number >= drafts_from else part
        layers.setdefault((_kind(path), part, number), []).append(weight)
    blocks = [Block(kind=kind, weights=_sorted(weights), part=part) for (kind, part), weights in outside.items()]
    return Weights(blocks=(*blocks, *_blocks(layers)))


def _blocks(layers: Mapping[tuple[str, Part, int], list[Weight]]) -> Iterable[Block]:
    grouped: dict[_Key, list[int]] = {}
    for (kind, part, number), weights in sorted(layers.items()):
        grouped.setdefault((kind, part, _sorted(weights)), []).append(number)
    for (kind, part, same), numbers in grouped.items():
        yield Block(kind=kind, weights=same, part=part, count=len(numbers), layers=tuple(numbers))


def _sorted(weights: Iterable[Weight]) -> tuple[Weight, ...]:
    return tuple(sorted(weights, key=lambda weight: weight.path))


def _kind_outside(weight: Weight) -> str:
    kinds = {WeightRole.EMBEDDING: "embedding", WeightRole.HEAD: "head", WeightRole.NORM: "norm"}
    return kinds.get(weight.role, "outside")


def _kind(path: str) -> str:
    return "mtp" if without_prefix(path).startswith("nextn.") else part_of_layer(path)


def _weight(read: Hparams, path: str, shape: tuple[int, ...]) -> Weight:
    """A tensor as a weight: ggml counts the row length first. The experts of a layer lie side by side in one tensor."""
    whole = tuple(reversed(shape))
    module, _, last = path.removesuffix(".weight").rpartition(".")
    stem = module if last == "bias" else last
    experts = stem.endswith("_exps")
    role = _role(path, stem, whole)
    if not experts or len(whole) < 2:
        return Weight(path=path, shape=whole, role=role)
    copies, one = whole[0], whole[1:]
    role = WeightRole.EXPERT if len(one) > 1 else role
    return Weight(path=path, shape=one, role=role, copies=copies, active=min(copies, read.n_expert_used or copies))


def _role(path: str, stem: str, shape: tuple[int, ...]) -> WeightRole:
    if path in TABLES:
        return WeightRole.EMBEDDING
    if path in _HEADS:
        return WeightRole.HEAD
    if _NORM.search(stem):
        return WeightRole.NORM
    if path.endswith(".bias"):
        return WeightRole.BIAS
    if stem.startswith("ffn_gate_inp"):
        return WeightRole.ROUTER
    if stem.rpartition("_")[2] in _CONVS:
        return WeightRole.CONV
    return WeightRole.LINEAR if len(shape) == 2 and path.endswith(".weight") else WeightRole.OTHER

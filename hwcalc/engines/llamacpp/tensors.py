"""The tensors of a file as llama.cpp loads them, alike ones together: each with its bytes, its layers, and where it may lie.

:mod:`~hwcalc.engines.llamacpp.weights` makes them of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hwcalc.engines.devices import TensorGroup
from hwcalc.formulas.record import Record
from hwcalc.quantization.ggml import GGML, part_of_layer, whole_name


class WeightTensor(Record):
    """One tensor. ``role`` is ``input``, ``output`` or ``layer``; ``layer`` is -1 for the first two."""

    name: str
    layer: int
    type: str
    bytes: int
    elements: int
    role: str
    expert: bool = False
    columns: int = 0
    """Numbers in a row."""
    tower: bool = False
    """Whether it belongs to a tower, which lies in a file of its own (``--mmproj``)."""
    mtp: bool = False
    """Whether it is for multi-token prediction: loaded only for that."""
    lazy: bool = False
    """Whether its rows are read from the file as they are needed, so that it takes no memory."""
    copy: bool = False
    """Whether it is the second copy of a table, which a tied output needs."""
    buffer: str | None = None
    """The buffer type that an override names; ``None`` without one."""


class WeightGroup(Record):
    """Tensors that differ in their layer alone. ``layers`` is empty for a tensor outside the layers of the file."""

    stem: str
    first: WeightTensor
    layers: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """The layers that they are loaded with."""
        return self.layers or (self.first.layer,)


def in_file_order(groups: Iterable[WeightGroup]) -> Iterator[tuple[int, WeightGroup]]:
    """Each tensor of a file by its number, which is -1 outside the layers, and its group; copies of tables stand last."""
    given = tuple(groups)
    outside = sorted((one for one in given if not one.layers and not one.first.copy), key=lambda one: one.first.name)
    yield from ((-1, one) for one in outside)
    layers: dict[int, list[WeightGroup]] = {}
    # In every layer the names follow each other as they do in the first.
    for one in sorted((one for one in given if one.layers and not one.first.copy), key=lambda one: whole_name(one.stem, 0)):
        for number in one.layers:
            layers.setdefault(number, []).append(one)
    for number in sorted(layers):
        yield from ((number, one) for one in layers[number])
    yield from ((-1, one) for one in given if one.first.copy)


def _as_they_begin(groups: Iterable[WeightGroup]) -> list[WeightGroup]:
    """Groups by their first tensor in the order of :func:`in_file_order`, without copies."""
    given = [one for one in groups if not one.first.copy]
    outside = sorted((one for one in given if not one.layers), key=lambda one: one.first.name)
    inside = sorted((one for one in given if one.layers), key=lambda one: (min(one.layers), whole_name(one.stem, 0)))
    return [*outside, *inside]


def loaded(tensors: Iterable[WeightTensor], *, mtp: bool = False) -> tuple[WeightTensor, ...]:
    """What takes memory: without prediction layers unless ``mtp`` (``load_mtp``), and without tables that are read row by row."""
    return tuple(one for one in tensors if (mtp or not one.mtp) and not one.lazy)


def loaded_groups(groups: Iterable[WeightGroup], *, mtp: bool = False) -> tuple[WeightGroup, ...]:
    """The same of groups."""
    return tuple(one for one in groups if (mtp or not one.first.mtp) and not one.first.lazy)


def grouped(groups: Iterable[WeightGroup], *, mtp: bool = False) -> tuple[TensorGroup, ...]:
    """The tensors by kind, each once. Those for prediction are apart unless they are loaded (``mtp``)."""
    layers: dict[tuple[str, bool], set[int]] = {}
    types: dict[tuple[str, bool], dict[str, tuple[int, int]]] = {}
    for group in _as_they_begin(groups):
        one, count = group.first, len(group.blocks)
        key = (_kind(one, group.stem), one.mtp and not mtp)
        layers.setdefault(key, set()).update(group.blocks)
        stored = types.setdefault(key, {})
        elements, size = stored.get(one.type, (0, 0))
        stored[one.type] = (elements + count * one.elements, size + count * one.bytes)
    return tuple(
        TensorGroup(
            kind=kind,
            layers=len(layers[kind, apart]),
            types=tuple((name, GGML[name].bits, *sums) for name, sums in stored.items()),
            mtp=apart,
        )
        for (kind, apart), stored in types.items()
    )


def _kind(one: WeightTensor, stem: str) -> str:
    if one.role == "input":
        return "embedding"
    if "norm" in stem:
        return "norm"
    if one.role == "output":
        return "head"
    return "experts" if one.expert else part_of_layer(stem)

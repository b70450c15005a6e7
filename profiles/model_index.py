"""The index of the catalog: what lists need of every model, in two files that ``scripts/build_model_index.py`` writes.

To read all configs and to count all weights takes seconds. The index holds the results: of each model a few facts, and of each shape,
which many models share, its layers and its weights in the formats that people publish. What only a model that is looked at more closely
needs stands in another file: a line of details for each shape, and behind these a line for each way to place a model's layers. A test
compares both with the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.json import decode

from hwcalc.data import reading_data
from hwcalc.profiles.catalog import built_in

INDEX: Final = built_in("model_index.json")
DETAILS: Final = built_in("model_details.jsonl")
SEPARATOR: Final = "\t"
"""Divides the line of a shape: its details, and its weights in each format."""
ENGINE: Final = "llamacpp"
"""The engine by whose rules the index was worked out."""


class IndexedModel(NamedTuple):
    """One model of the catalog. ``shape`` is the number of its shape; ``None`` if it must be planned.

    ``refused``: the engine of the index does not run it. ``None`` is unknown otherwise. ``naming`` is what its name says
    (:class:`hwcalc.library.candidates.Naming`), so that a list need not compile the expressions that read it. ``placed`` is
    the number of its :func:`placing`.
    """

    id: str
    model_type: str
    parameters: int | None
    active: int | None
    released: str | None
    modality: str
    max_position_embeddings: int | None
    architecture: str | None
    shape: int | None
    refused: bool
    naming: Sequence[Any]
    placed: int | None


class _Index(Struct):
    """The rows of models, the names of formats, and the shapes."""

    models: list[IndexedModel]
    formats: list[list[str]]
    shapes: list[dict[str, Any]]


@lru_cache(maxsize=1)
def _index() -> _Index:
    with reading_data(INDEX), open(INDEX, "rb") as file:
        return decode(file.read(), type=_Index)


@lru_cache(maxsize=1)
def model_index() -> Mapping[str, IndexedModel]:
    """The models of the built-in catalog, by id."""
    return MappingProxyType({row.id: row for row in _index().models})


def shapes() -> Sequence[Mapping[str, Any]]:
    """The layers of each shape, and its formats with their bytes: enough for a list to say whether it fits."""
    return _index().shapes


def format_names(number: int) -> Sequence[str]:
    """The formats of a shape, the largest first. Most shapes have the same."""
    return _index().formats[shapes()[number]["formats"]]


@lru_cache(maxsize=64)
def details(number: int) -> Mapping[str, Any]:
    """The rest of a shape but its weights: the kinds of its layers, dimensions, and at most the bytes of a layer in each format."""
    return decode(_parts(number)[0], type=dict[str, Any])


def weights(number: int, name: str) -> Sequence[Any]:
    """The weights of a shape in the format ``name``, by their use."""
    return decode(_parts(number)[1 + format_names(number).index(name)], type=list[Any])


def placing(number: int) -> Mapping[str, Any]:
    """The hyperparameters of a model, and the tensors of the formats in which a part lies on the host: they place its layers."""
    return decode(_details()[len(shapes()) + number], type=dict[str, Any])


def _parts(number: int) -> Sequence[bytes]:
    """The details of a shape and its weights in each format, of which one is read."""
    return _details()[number].split(SEPARATOR.encode())


@lru_cache(maxsize=1)
def _details() -> Sequence[bytes]:
    """The lines of the file of details."""
    with reading_data(DETAILS), open(DETAILS, "rb") as file:
        return file.read().splitlines()


def packed(values: Iterable[int]) -> list[int]:
    """Numbers with their repetitions.

    >>> packed([8, 8, 8, 0, 8])
    [8, 3, 0, 1, 8, 1]
    """
    return [number for value, same in groupby(values) for number in (value, len(list(same)))]


def unpacked(numbers: Sequence[int]) -> list[int]:
    """The inverse of :func:`packed`.

    >>> unpacked([8, 3, 0, 1])
    [8, 8, 8, 0]
    """
    return [value for value, count in zip(numbers[::2], numbers[1::2], strict=True) for _ in range(count)]

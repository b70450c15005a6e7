"""The index of the catalog: what lists need of every model, in two files that ``scripts/build_model_index.py`` writes.

To read all configs and to count all weights takes seconds. The index holds the results: of each model a few facts, and of each shape,
which many models share, its layers, what its context takes by :data:`ENGINE`, and its weights in the formats that people publish. What
only a model that is listed needs are its details, in a file of which a line is read alone. A test compares both with the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from hwcalc.formulas.named import NamedTuple
from hwcalc.profiles.places import built_in

__all__ = ["DETAILS", "ENGINE", "INDEX", "IndexedModel", "details", "model_index", "packed", "placing", "shape", "unpacked"]

INDEX: Final = built_in("model_index.json")
DETAILS: Final = built_in("model_details.jsonl")
ENGINE: Final = "llamacpp"
"""The engine by whose rules the index was worked out."""


class IndexedModel(NamedTuple):
    """One model of the catalog. ``shape`` is the number of its shape; ``None`` if it must be planned.

    ``refused``: the engine of the index does not run it. ``None`` is unknown otherwise. ``naming`` is what its name says
    (:class:`hwcalc.library.families.Naming`), so that a list need not compile the expressions that read it. ``placed`` is
    where its :func:`placing` stands.
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
    placed: tuple[int, int] | None


@lru_cache(maxsize=1)
def _parts() -> tuple[Sequence[str], Sequence[str]]:
    """The lines of models and of shapes, of which each is read where it is needed."""
    with open(INDEX, encoding="utf-8") as file:
        models, _, shapes = file.read().partition('\n],"shapes":[\n')
    return models.splitlines()[1:], shapes.splitlines()


@lru_cache(maxsize=1)
def model_index() -> Mapping[str, IndexedModel]:
    """The models of the built-in catalog, by id."""
    rows = json.loads(f"[{''.join(_parts()[0])}]")
    return MappingProxyType({row[0]: IndexedModel(*row) for row in rows})


def shape(number: int) -> Mapping[str, Any]:
    """What a list needs of one shape to say whether it fits: its layers, its points, and the sizes of its formats."""
    found: dict[str, Any] = json.loads(_parts()[1][number].rstrip(","))
    return found


@lru_cache(maxsize=64)
def details(number: int) -> Mapping[str, Any]:
    """The rest of it: the weights of each format by their use, the kinds of its layers, and dimensions."""
    return _line(*shape(number)["details"])


def placing(row: IndexedModel) -> Mapping[str, Any]:
    """What it takes to place the layers of a model that has a shape: its hyperparameters, and the tensors of its smallest format."""
    assert row.placed is not None
    return _line(*row.placed)


def _line(start: int, length: int) -> Mapping[str, Any]:
    with open(DETAILS, "rb") as file:
        file.seek(start)
        found: dict[str, Any] = json.loads(file.read(length))
    return found


def packed(values: Iterable[int]) -> list[int]:
    """Numbers with their repetitions.

    >>> packed([8, 8, 8, 0, 8])
    [8, 3, 0, 1, 8, 1]
    """
    out: list[int] = []
    for value in values:
        if out and out[-2] == value:
            out[-1] += 1
        else:
            out += (value, 1)
    return out


def unpacked(numbers: Sequence[int]) -> list[int]:
    """The inverse of :func:`packed`.

    >>> unpacked([8, 3, 0, 1])
    [8, 8, 8, 0]
    """
    out: list[int] = []
    for value, count in zip(numbers[::2], numbers[1::2], strict=True):
        out += [value] * count
    return out

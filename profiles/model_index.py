"""The index of the catalog: what lists need of every model, in one file that ``scripts/build_model_index.py`` writes.

To read all configs and to count all weights takes seconds. The index holds the results: of each model a few facts, and of each shape,
which many models share, its layers, what its context takes by :data:`ENGINE`, and its weights in the formats that people publish. A test compares it
with the catalog.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hwcalc.formulas.named import NamedTuple

__all__ = ["ENGINE", "INDEX", "IndexedModel", "details", "model_index", "packed", "shape", "unpacked"]

INDEX: Final = Path(__file__).with_name("model_index.json")
ENGINE: Final = "llamacpp"
"""The engine by whose rules the index was worked out."""


class IndexedModel(NamedTuple):
    """One model of the catalog. ``shape`` is the number of its shape; ``None`` if it must be planned.

    ``refused``: the engine of the index does not run it. ``None`` is unknown otherwise. ``naming`` is what its name says
    (:class:`hwcalc.sources.families.Naming`), so that a list need not compile the expressions that read it.
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


@lru_cache(maxsize=1)
def _parts() -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The lines of models and of shapes, which are read one by one where they are needed, and the details as they stand."""
    models, _, rest = INDEX.read_text(encoding="utf-8").partition('\n],"shapes":[\n')
    shapes, _, details = rest.partition('\n],"details":[\n')
    return tuple(models.splitlines()[1:]), tuple(shapes.splitlines()), details


@lru_cache(maxsize=1)
def _details() -> tuple[str, ...]:
    return tuple(_parts()[2].splitlines()[:-1])


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
    found: dict[str, Any] = json.loads(_details()[number].rstrip(","))
    return found


def packed(values: Iterable[int]) -> list[int]:
    """Numbers with their repetitions.

    >>> packed([8, 8, 8, 0, 8])
    [8, 3, 0, 1, 8, 1]
    """
    out: list[int] = []
    for value in map(int, values):
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

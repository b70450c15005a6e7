"""Models of the catalog as the index has them: what their contexts and weights take under llama.cpp, worked out before.

:mod:`~hwcalc.library.indexing` writes a shape; these functions read one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hwcalc import formulas
from hwcalc.engines.llamacpp.curves import Curves, Point
from hwcalc.formulas import Stack
from hwcalc.formulas.kind import KINDS, LayerKind
from hwcalc.model import ModelSpec
from hwcalc.planner.weight_use import Use, WeightShare
from hwcalc.profiles.model_index import IndexedModel, details, shape, unpacked

if TYPE_CHECKING:
    from hwcalc.formulas.hybrid import Layer

__all__ = ["curves_at", "formats_at", "indexed_model", "layers_at", "shares_at"]


@lru_cache(maxsize=4)
def _shape(number: int) -> Mapping[str, Any]:
    """A shape as the index has it. What is made of it is kept longer."""
    return shape(number)


@lru_cache(maxsize=4096)
def curves_at(number: int) -> Curves:
    """The curves of a shape."""
    return Curves(points=tuple((place, Point(*sizes)) for place, *sizes in _shape(number)["points"]))


@lru_cache(maxsize=4096)
def formats_at(number: int) -> Mapping[str, Sequence[int]]:
    """The formats of a shape, the largest first, with the numbers of their :class:`~hwcalc.engines.llamacpp.curves.Sizes`."""
    found: Mapping[str, Sequence[int]] = _shape(number)["sizes"]
    return found


def layers_at(number: int) -> int:
    """The layers of a shape, as llama.cpp counts them: its blocks and the output."""
    return int(_shape(number)["layers"])


def shares_at(number: int, name: str) -> tuple[WeightShare, ...]:
    """The weights of a shape in the format ``name``, by their use."""
    return tuple(
        WeightShare(format=form, use=Use(use), parameters=parameters, bytes=size, copies=copies, active=active)
        for form, use, parameters, size, copies, active in details(number)["weights"][name]
    )


def indexed_model(row: IndexedModel) -> ModelSpec:
    """The model of a row that has a shape, as far as its speed depends on it."""
    assert row.shape is not None
    made = details(row.shape)
    return ModelSpec(
        id=row.id,
        source="catalog",
        location="built-in catalog",
        revision=None,
        model_type=row.model_type,
        architecture=row.architecture,
        stack=_read_stack(made["stack"]),
        max_position_embeddings=row.max_position_embeddings,
        **made["spec"],
    )


def _kind(name: str) -> type[LayerKind]:
    """The class of a kind of layer; all families are imported only for one that nobody has imported yet."""
    return KINDS.get(name) or formulas.KINDS[name]


def _read_stack(made: Mapping[str, Any]) -> Stack:
    kinds = [_kind(name)(**dims) for name, dims in made["kinds"]]
    different: list[Layer] = [tuple(kinds[place] for place in places) for places in made["different"]]
    return Stack(tuple(different[place] for place in unpacked(made["layers"])))

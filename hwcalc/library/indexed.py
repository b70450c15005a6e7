"""Models of the catalog as the index has them: what their contexts and weights take under llama.cpp, worked out before.

:func:`shape_of` writes a shape; the other functions read one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.assignment import weigh
from hwcalc.engines.llamacpp.curves import Curves, Point, Sizes, curves_of
from hwcalc.engines.llamacpp.weights import loaded_groups, weight_groups
from hwcalc.formulas import Stack
from hwcalc.formulas.kind import KINDS
from hwcalc.model import ModelSpec
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.planner.weight_use import Use, WeightShare, weight_shares
from hwcalc.profiles.model_index import IndexedModel, details, packed, shape, unpacked
from hwcalc.quantization.published_mixes import published_formats

if TYPE_CHECKING:
    from hwcalc.formulas.hybrid import Layer

__all__ = ["curves_at", "indexed_model", "layers_at", "shape_of", "shares_at", "sizes_at"]

_MOST_POINTS: Final = 64
"""A model whose cache grows in more steps is planned like any other."""
_SPEC: Final = ("dtype", "state_dtype", "hidden_size", "vocab_size", "encoder_tokens")


def shape_of(model: ModelSpec) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The shape of a model and its details; ``None`` if its weights are not known in any format, or its cache grows too unevenly.

    Raises the error of llama.cpp's reader for a model that it does not know.
    """
    blocks, curves = hparams_of(model).n_layer_all, curves_of(model)
    sizes, used = dict[str, Any](), dict[str, Any]()
    for name in published_formats(model):
        if name is None:
            return None
        groups, shares = weight_groups(model, name), weight_shares(model, name)
        if groups is not None and shares is not None:
            sizes[name] = [*Sizes.of(weigh(((one.first, one.blocks) for one in loaded_groups(groups)), blocks))]
            used[name] = _shares(shares)
    points = [[place, *point.sizes, point.step] for place, point in curves.points]
    if not sizes or len(points) > _MOST_POINTS:
        return None
    spec = {name: getattr(model, name) for name in _SPEC}
    return {"layers": blocks + 1, "points": points, "sizes": sizes}, {"weights": used, "spec": spec, "stack": _stack(model.stack)}


@lru_cache(maxsize=4)
def _shape(number: int) -> Mapping[str, Any]:
    """A shape as the index has it. What is made of it is kept longer."""
    return shape(number)


@lru_cache(maxsize=4096)
def curves_at(number: int) -> Curves:
    """The curves of a shape."""
    return Curves(points=tuple((place, Point(*sizes)) for place, *sizes in _shape(number)["points"]))


@lru_cache(maxsize=4096)
def sizes_at(number: int) -> tuple[tuple[str, Sizes], ...]:
    """The formats of a shape, the largest first."""
    found = ((name, Sizes(*sizes)) for name, sizes in _shape(number)["sizes"].items())
    return tuple(sorted(found, key=lambda one: -one[1].gpu))


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


def _stack(stack: Stack) -> dict[str, Any]:
    """Kinds, layers as lists of kinds, and which layers follow each other."""
    kinds = [group.kind for group in stack.groups]
    different = list(dict.fromkeys(stack.layers))
    return {
        "kinds": [[kind.name, kind.dims()] for kind in kinds],
        "different": [[kinds.index(kind) for kind in layer] for layer in different],
        "layers": packed(map(different.index, stack.layers)),
    }


def _read_stack(made: Mapping[str, Any]) -> Stack:
    kinds = [KINDS[name](**dims) for name, dims in made["kinds"]]
    different: list[Layer] = [tuple(kinds[place] for place in places) for places in made["different"]]
    return Stack(tuple(different[place] for place in unpacked(made["layers"])))


def _shares(shares: Iterable[WeightShare]) -> list[list[Any]]:
    return [[one.format, one.use.value, one.parameters, one.bytes, one.copies, one.active] for one in shares]

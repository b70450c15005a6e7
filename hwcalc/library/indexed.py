"""Models of the catalog as the index has them: what llama.cpp's rules ask of a model, without reading its config or counting its weights.

:func:`shape_of` writes a shape, and :func:`indexed_model` makes a model of it again, whose figures are those of the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.assignment import Weighed, weigh
from hwcalc.engines.llamacpp.curves import Curves, Point, Sizes, curves_of
from hwcalc.engines.llamacpp.weights import loaded, model_tensors
from hwcalc.formulas import Stack
from hwcalc.formulas.frozen import fields
from hwcalc.formulas.kind import KINDS
from hwcalc.model import ModelSpec, Parameters
from hwcalc.parsers.gguf.hparams import Hparams, hparams_of
from hwcalc.planner.weight_use import Use, WeightShare, weight_shares
from hwcalc.profiles.model_index import IndexedModel, packed, shape, unpacked
from hwcalc.quantization.published_mixes import PUBLISHED_MIXES

if TYPE_CHECKING:
    from hwcalc.formulas.hybrid import Layer

__all__ = ["curves_at", "indexed_model", "layers_at", "shape_of", "sizes_at"]

_MOST_POINTS: Final = 64
"""A model whose cache grows in more steps is planned like any other."""
_SPEC: Final = ("dtype", "state_dtype", "hidden_size", "vocab_size", "encoder_tokens")


def shape_of(model: ModelSpec) -> dict[str, Any] | None:
    """The shape of a model; ``None`` if its weights are not known in any format, or its cache grows too unevenly.

    Raises the error of llama.cpp's reader for a model that it does not know.
    """
    read = hparams_of(model)
    curves = curves_of(model)
    weights: dict[str, Any] = {}
    for name in PUBLISHED_MIXES:
        tensors, shares = model_tensors(model, name), weight_shares(model, name)
        if tensors is not None and shares is not None:
            weighed = weigh(loaded(tensors), read.n_layer_all)
            weights[name] = [*Sizes.of(weighed), _weighed(weighed), _shares(shares)]
    if not weights:
        return None
    spec = {name: getattr(model, name) for name in _SPEC}
    points = [[place, *point.sizes, point.moment] for place, point in curves.points]
    if len(points) > _MOST_POINTS:
        return None
    return {
        "points": points,
        "output": curves.output,
        "weights": weights,
        "spec": spec,
        "stack": _stack(model.stack),
        "hparams": _hparams(read),
    }


@lru_cache(maxsize=4096)
def curves_at(number: int) -> Curves:
    """The curves of a shape."""
    made = shape(number)
    points = tuple(
        (place, Point(cache=cache, compute=compute, host=host, moment=moment))
        for place, cache, compute, host, moment in made["points"]
    )
    low, expected, high = made["output"]
    return Curves(points=points, output=(low, expected, high))


@lru_cache(maxsize=4096)
def sizes_at(number: int) -> tuple[tuple[str, Sizes], ...]:
    """The formats of a shape, the largest first."""
    found = ((name, Sizes(gpu=one[0], host=one[1])) for name, one in shape(number)["weights"].items())
    return tuple(sorted(found, key=lambda one: -one[1].gpu))


def layers_at(number: int) -> int:
    """The layers of a shape, as llama.cpp counts them: its blocks and the output."""
    return 1 + int(shape(number)["hparams"]["n_layer_all"])


def indexed_model(row: IndexedModel, name: str) -> ModelSpec:
    """The model of a row that has a shape, with its weights in the format ``name``."""
    assert row.shape is not None
    made = shape(row.shape)
    model = ModelSpec(
        id=row.id,
        source="catalog",
        location="built-in catalog",
        revision=None,
        model_type=row.model_type,
        architecture=row.architecture,
        stack=_read_stack(made["stack"]),
        max_position_embeddings=row.max_position_embeddings,
        parameters=Parameters(total=row.parameters, active=row.active),
        **made["spec"],
    )
    _, _, weighed, shares = made["weights"][name]
    known = model.worked_out
    known["gguf hparams"] = _read_hparams(made["hparams"])
    known["llama.cpp tensors", name] = ()
    known["llamacpp weighed", name, False, ()] = _read_weighed(weighed)
    known["weight shares", name, model.dtype] = _read_shares(shares)
    return model


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


def _hparams(read: Hparams) -> dict[str, Any]:
    """The fields that are not as they are without a word."""
    out: dict[str, Any] = {}
    for one in fields(Hparams):
        value = getattr(read, one.name)
        if one.is_required or value != one.default:
            out[one.name] = packed(value) if isinstance(value, tuple) else value
    return out


def _read_hparams(made: Mapping[str, Any]) -> Hparams:
    types = {one.name: one.type for one in fields(Hparams)}
    return Hparams(**{name: _value(types[name], value) for name, value in made.items()})


def _value(type_: str, value: Any) -> Any:
    if type_.startswith("tuple[bool"):
        return tuple(map(bool, unpacked(value)))
    return tuple(unpacked(value)) if type_.startswith("tuple") else value


def _weighed(one: Weighed) -> list[Any]:
    different = list(dict.fromkeys(one.blocks))
    return [one.input, one.output, one.tied, one.copied, different, packed(map(different.index, one.blocks))]


def _read_weighed(made: Sequence[Any]) -> Weighed:
    different = [(experts, rest) for experts, rest in made[4]]
    blocks = tuple(different[place] for place in unpacked(made[5]))
    return Weighed(input=made[0], output=made[1], tied=made[2], copied=made[3], blocks=blocks)


def _shares(shares: Iterable[WeightShare]) -> list[list[Any]]:
    return [[one.format, one.use.value, one.parameters, one.bytes, one.copies, one.active] for one in shares]


def _read_shares(made: Iterable[Sequence[Any]]) -> tuple[WeightShare, ...]:
    return tuple(
        WeightShare(format=form, use=Use(use), parameters=parameters, bytes=size, copies=copies, active=active)
        for form, use, parameters, size, copies, active in made
    )

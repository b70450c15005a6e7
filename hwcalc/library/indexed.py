"""Models of the catalog as the index has them: what llama.cpp's rules ask of a model, without reading its config or counting its weights.

:func:`shape_of` writes a shape, and :func:`indexed_model` makes a model of it again, whose figures are those of the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.assignment import Weighed, weigh
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

__all__ = ["indexed_model", "shape_of"]

_SPEC: Final = ("dtype", "state_dtype", "hidden_size", "vocab_size", "encoder_tokens")


def shape_of(model: ModelSpec) -> dict[str, Any] | None:
    """The shape of a model; ``None`` if llama.cpp does not run it or its weights are not known in some format.

    Raises the error of llama.cpp's reader for a model that it does not know.
    """
    read = hparams_of(model)
    weights: dict[str, Any] = {}
    for name in PUBLISHED_MIXES:
        tensors, shares = model_tensors(model, name), weight_shares(model, name)
        if tensors is None or shares is None:
            continue
        weights[name] = {"tensors": _weighed(weigh(loaded(tensors), read.n_layer_all)), "shares": _shares(shares)}
    if not weights:
        return None
    spec = {name: getattr(model, name) for name in _SPEC}
    return {"spec": spec, "stack": _stack(model.stack), "hparams": _hparams(read), "weights": weights}


def indexed_model(row: IndexedModel) -> ModelSpec:
    """The model of a row that has a shape."""
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
    known = model.worked_out
    known["gguf hparams"] = _read_hparams(made["hparams"])
    for name, one in made["weights"].items():
        known["llama.cpp tensors", name] = ()
        known["llamacpp weighed", name, False, ()] = _read_weighed(one["tensors"])
        known["weight shares", name, model.dtype] = _read_shares(one["shares"])
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

"""Models of the catalog as the index has them: what their contexts and weights take under llama.cpp, worked out before.

``scripts/build_model_index.py`` writes the index with the functions of this module, and ``kvplan fit`` reads it with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import asdict, fields

from hwcalc import formulas
from hwcalc.engines.llamacpp.deployment import LlamacppDeployment
from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.engines.llamacpp.layers import weigh
from hwcalc.engines.llamacpp.tensors import groups_key, loaded_groups, weight_groups
from hwcalc.engines.setup import Request
from hwcalc.formulas import Stack
from hwcalc.model import ModelSpec
from hwcalc.parsers.gguf.hparams import HPARAMS, Hparams, hparams_of
from hwcalc.planner.speed_work import Use, WeightShare, weight_shares
from hwcalc.profiles.model_index import (
    IndexedModel,
    details,
    format_names,
    packed,
    placing,
    shapes,
    unpacked,
    weights,
)
from hwcalc.quantization.gguf import published_formats

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.layers import Weighed
    from hwcalc.engines.llamacpp.tensors import WeightGroup
    from hwcalc.engines.setup import Setup
    from hwcalc.formulas.hybrid import Layer

WORDS: Final = ("expert", "mtp", "lazy", "copy")
"""What the index says of a tensor beside its role, by the fields that say it."""


class Sizes(NamedTuple):
    """Bytes of a model's tensors with all layers on one GPU: those there, and those that stay on the host."""

    gpu: int
    host: int


class Formats(NamedTuple):
    """The formats of a shape, the largest first: their names, and the :class:`Sizes` of each."""

    names: Sequence[str]
    gpu: Sequence[int]
    host: Sequence[int]

    def sizes(self, name: str) -> Sizes:
        """What a format takes."""
        place = self.names.index(name)
        return Sizes(self.gpu[place], self.host[place])


@lru_cache(maxsize=4096)
def _model_at(start: int, length: int) -> ModelSpec:
    """A model with what llama.cpp needs to lay out a context, and without tensors."""
    model = ModelSpec(
        id="", source="catalog", location="built-in catalog", revision=None, model_type="", architecture=None, stack=Stack(())
    )
    read = _indexed_hparams(placing(start, length))
    model.once(HPARAMS, lambda: read)
    model.once(groups_key(None), lambda: None)
    return model


def deployment_at(row: IndexedModel, setup: Setup) -> LlamacppDeployment:
    """The deployment of a model that has a shape. The bytes of its file are in :func:`formats_at`."""
    assert row.placed is not None
    return LlamacppDeployment(Llamacpp(), _model_at(*row.placed), setup)


def formats_at(number: int) -> Formats:
    """The formats of a shape."""
    shape = shapes()[number]
    return Formats(format_names(number), shape["gpu"], shape["host"])


def step_at(number: int, name: str) -> int:
    """At most the bytes of one layer of a shape in the format ``name``."""
    return int(details(number)["steps"][format_names(number).index(name)])


def layers_at(number: int) -> int:
    """The layers of a shape, as llama.cpp counts them: its blocks and the output."""
    return int(shapes()[number]["layers"])


def shares_at(number: int, name: str) -> tuple[WeightShare, ...]:
    """The weights of a shape in the format ``name``, by their use."""
    return tuple(
        WeightShare(format=form, use=Use(use), parameters=parameters, bytes=size, copies=copies, active=active)
        for form, use, parameters, size, copies, active in weights(number, name)
    )


def stack_at(number: int) -> Stack:
    """The layers of a shape."""
    made = details(number)["stack"]
    kinds = [getattr(formulas, name)(**dims) for name, dims in made["kinds"]]
    different: list[Layer] = [tuple(kinds[place] for place in places) for places in made["different"]]
    return Stack(tuple(different[place] for place in unpacked(made["layers"])))


def placed_model(row: IndexedModel, name: str | None) -> ModelSpec | None:
    """The model of a row with what llama.cpp needs to place its layers, in its smallest format; ``None`` in any other format."""
    assert row.placed is not None
    made = placing(*row.placed)
    if name != made["format"]:
        return None
    assert row.shape is not None
    model = ModelSpec(
        id=row.id,
        source="catalog",
        location="built-in catalog",
        revision=None,
        model_type=row.model_type,
        architecture=row.architecture,
        stack=stack_at(row.shape),
        max_position_embeddings=row.max_position_embeddings,
        **details(row.shape)["spec"],
    )
    read = _indexed_hparams(made)
    model.once(HPARAMS, lambda: read)
    groups = tuple(_indexed_group(*group) for group in made["groups"])
    model.once(groups_key(name), lambda: groups)
    return model


def _indexed_hparams(made: Mapping[str, Any]) -> Hparams:
    read: dict[str, Any] = {
        key: tuple(unpacked(value)) if isinstance(value, list) else value for key, value in made["hparams"].items()
    }
    return Hparams(**read)


def _indexed_group(stem: str, runs: Sequence[int], type_: str, size: int, elements: int, columns: int, words: str) -> WeightGroup:
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor
    from hwcalc.quantization.ggml import whole_name

    role, *said = words.split()
    flags: dict[str, Any] = dict.fromkeys(said, True)
    first = WeightTensor(
        name=whole_name(stem, runs[0] if runs else -1),
        # What stands outside the layers is loaded with the first, unless it is for input or output.
        layer=runs[0] if runs else 0 if role == "layer" else -1,
        type=type_,
        bytes=size,
        elements=elements,
        role=role,
        columns=columns,
        **flags,
    )
    layers = chain.from_iterable(map(range, runs[::2], runs[1::2]))
    return WeightGroup(stem=stem, first=first, layers=tuple(layers))


_SPEC: Final = ("dtype", "state_dtype", "hidden_size", "vocab_size", "encoder_tokens")


def shape_of(model: ModelSpec) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
    """The shape of a model, its details, and what it takes to place its layers; ``None`` if its weights are not known in any format.

    Raises the error of llama.cpp for a model that it refuses.
    """
    Llamacpp().open(model, Request.of(seq=2048))
    blocks = hparams_of(model).n_layer_all
    sizes, steps, used = dict[str, Sizes](), dict[str, int](), dict[str, Any]()
    for name in published_formats(model):
        if name is None:
            return None
        groups, shares = weight_groups(model, name), weight_shares(model, name)
        if groups is not None and shares is not None:
            weighed = weigh(((one.first, one.blocks) for one in loaded_groups(groups)), blocks)
            sizes[name], steps[name] = _sizes_of(weighed)
            used[name] = _shares(shares)
    if not sizes:
        return None
    spec = {name: getattr(model, name) for name in _SPEC}
    largest_first = sorted(sizes, key=lambda name: -sizes[name].gpu)
    gpu, host = ([sizes[name][end] for name in largest_first] for end in (0, 1))
    head = {"layers": blocks + 1, "formats": largest_first, "gpu": gpu, "host": host}
    smallest = largest_first[-1]
    placed = {"format": smallest, "hparams": _hparams(model), "groups": [*map(_group, weight_groups(model, smallest) or ())]}
    about = {"spec": spec, "stack": _stack(model.stack), "steps": [steps[name] for name in largest_first]}
    details = {"about": about, "weights": [used[name] for name in largest_first]}
    return head, details, placed


def _sizes_of(weights: Weighed) -> tuple[Sizes, int]:
    """The bytes with all layers on one GPU, and at most the bytes of one layer."""
    blocks = [experts + rest for experts, rest in weights.blocks]
    on_gpu = weights.output + weights.tied + weights.copied + sum(blocks)
    return Sizes(on_gpu, weights.input), max(weights.output + weights.tied, weights.copied + max(blocks, default=0))


def _hparams(model: ModelSpec) -> dict[str, Any]:
    """The hyperparameters that are not as their defaults. Those by layer are packed."""
    read = hparams_of(model)
    defaults = {each.name: each.default for each in fields(read)}
    given = {name: value for name, value in asdict(read).items() if value != defaults[name]}
    return {name: packed(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _group(group: WeightGroup) -> list[Any]:
    """The name of a group, where its layers start and end, the format, bytes, numbers and columns of each tensor, and in words what it is."""
    runs = list[int]()
    for number in group.layers:
        if runs and number == runs[-1]:
            runs[-1] += 1
        else:
            runs += (number, number + 1)
    one = group.first
    words = [one.role, *(name for name in WORDS if getattr(one, name))]
    return [group.stem, runs, one.type, one.bytes, one.elements, one.columns, " ".join(words)]


def _stack(stack: Stack) -> dict[str, Any]:
    """Kinds, layers as lists of kinds, and which layers follow each other."""
    kinds = [group.kind for group in stack.groups]
    different = list(dict.fromkeys(stack.layers))
    return {
        "kinds": [[type(kind).__name__, kind.dims()] for kind in kinds],
        "different": [[kinds.index(kind) for kind in layer] for layer in different],
        "layers": packed(map(different.index, stack.layers)),
    }


def _shares(shares: Iterable[WeightShare]) -> list[list[Any]]:
    return [[one.format, one.use.value, one.parameters, one.bytes, one.copies, one.active] for one in shares]

"""Models of the catalog as the index has them: what their contexts and weights take under llama.cpp, worked out before.

:mod:`~hwcalc.library.indexing` writes a shape; these functions read one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc import formulas
from hwcalc.engines.llamacpp.one_gpu import Context, Sizes
from hwcalc.formulas import Stack
from hwcalc.model import ModelSpec
from hwcalc.parsers.gguf.hparams import HPARAMS, Hparams
from hwcalc.planner.speed_work import Use, WeightShare
from hwcalc.profiles.model_index import IndexedModel, details, format_names, placing, placing_at, shapes, unpacked, weights

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.deployment import LlamacppDeployment
    from hwcalc.engines.llamacpp.tensors import WeightGroup
    from hwcalc.formulas.hybrid import Layer

__all__ = ["WORDS", "Formats", "context_at", "formats_at", "layers_at", "placed_model", "shares_at", "stack_at", "step_at"]

WORDS: Final = ("expert", "mtp", "lazy", "copy")
"""What the index says of a tensor beside its role, by the fields that say it."""


class Formats(NamedTuple):
    """The formats of a shape, the largest first: their names, and the numbers of the :class:`~hwcalc.engines.llamacpp.one_gpu.Sizes` of each."""

    names: Sequence[str]
    gpu: Sequence[int]
    host: Sequence[int]

    def sizes(self, name: str) -> Sizes:
        """What a format takes."""
        place = self.names.index(name)
        return Sizes(self.gpu[place], self.host[place])


@lru_cache(maxsize=4096)
def _deployment_at(start: int, length: int) -> LlamacppDeployment:
    from hwcalc.engines.llamacpp.groups import groups_key
    from hwcalc.engines.llamacpp.one_gpu import on_one_gpu

    model = ModelSpec(
        id="", source="catalog", location="built-in catalog", revision=None, model_type="", architecture=None, stack=Stack(())
    )
    read = _hparams(placing_at(start, length))
    model.once(HPARAMS, lambda: read)
    model.once(groups_key(None), lambda: None)
    return on_one_gpu(model)


def context_at(row: IndexedModel, tokens: int) -> Context:
    """What a context of one sequence takes of a model that has a shape."""
    assert row.placed is not None
    return Context(_deployment_at(*row.placed), tokens)


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
    made = placing(row)
    if name != made["format"]:
        return None
    from hwcalc.engines.llamacpp.groups import groups_key

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
    read = _hparams(made)
    model.once(HPARAMS, lambda: read)
    groups = tuple(_group(*group) for group in made["groups"])
    model.once(groups_key(name), lambda: groups)
    return model


def _hparams(made: Mapping[str, Any]) -> Hparams:
    read: dict[str, Any] = {
        key: tuple(unpacked(value)) if isinstance(value, list) else value for key, value in made["hparams"].items()
    }
    return Hparams(**read)


def _group(stem: str, runs: Sequence[int], type_: str, size: int, elements: int, columns: int, words: str) -> WeightGroup:
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

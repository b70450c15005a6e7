"""A model as the index of the catalog has it: ``scripts/build_model_index.py`` writes what :mod:`~hwcalc.library.indexed` reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, fields

from hwcalc.engines.llamacpp.engine import Llamacpp
from hwcalc.engines.llamacpp.groups import weight_groups
from hwcalc.engines.llamacpp.layers import weigh
from hwcalc.engines.llamacpp.one_gpu import Sizes, step_of
from hwcalc.engines.llamacpp.tensors import loaded_groups
from hwcalc.engines.setup import Request
from hwcalc.library.indexed import WORDS
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.planner.speed_work import WeightShare, weight_shares
from hwcalc.profiles.model_index import packed
from hwcalc.quantization.gguf import published_formats

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import WeightGroup
    from hwcalc.formulas import Stack
    from hwcalc.model import ModelSpec

__all__ = ["shape_of"]

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
            sizes[name], steps[name] = Sizes.of(weighed), step_of(weighed)
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

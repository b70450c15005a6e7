"""What a plan stores, by groups of layers, and the title of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from hwcalc import formulas
from hwcalc.formulas import kind as families

if TYPE_CHECKING:
    from hwcalc.planner.result import LayerInfo, Plan, TensorInfo

__all__ = ["beside_title", "kind_title", "stored"]

_MODEL: Final = "model"
"""The kind of tensors that an engine keeps once, beside the layers."""


def kind_title(kind: str) -> str:
    """The title of a kind; ``model`` stands for tensors that an engine keeps once, beside the layers."""
    # Those of a plan's layers are imported by then. To import all families takes longer than to print the plan.
    known = families.KINDS if kind == _MODEL or kind in families.KINDS else formulas.KINDS
    return known[kind].title if kind in known else "kept once for the model"


def beside_title(tensors: Iterable[TensorInfo]) -> str:
    """The title of tensors that belong to no layer."""
    titles = dict.fromkeys(_BESIDE.get(tensor.name, kind_title(_MODEL)) for tensor in tensors)
    return ", ".join(titles)


_BESIDE: Final = {"prompt_blocks": "blocks of a prompt before it is cut"}


def stored(plan: Plan) -> list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]]:
    """Each layer group with its tensors, in the plan's order; ``None`` stands for tensors that belong to no layer.

    Two groups may have the same kind and layers with different dimensions. A tensor name that occurs again starts the next group.
    """
    waiting = list(plan.cache.tensors)
    out: list[tuple[LayerInfo | None, tuple[TensorInfo, ...]]] = []
    for layer in plan.model.layers:
        own: dict[str, TensorInfo] = {}
        while waiting and (waiting[0].kind, waiting[0].layers) == (layer.kind, layer.layers) and waiting[0].name not in own:
            tensor = waiting.pop(0)
            own[tensor.name] = tensor
        out.append((layer, tuple(own.values())))
    if waiting:
        out.append((None, tuple(waiting)))
    return out

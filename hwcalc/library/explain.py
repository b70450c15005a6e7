"""Where every byte comes from: for each kind of layer the formula, the model's numbers, and the result.

The numbers multiply to the planned bytes. If the bytes of a tensor are not a product of its dimensions, the engine's own rule is shown
instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from hwcalc.documents import document_of
from hwcalc.formulas import KINDS, DType, LayerNumbers
from hwcalc.formulas.frozen import frozen
from hwcalc.library.plan import plan
from hwcalc.planner.result import LayerInfo, Plan, TensorInfo
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import TIMES

__all__ = ["Explanation", "KindExplanation", "TensorExplanation", "explain", "explained", "kind_title", "stored"]

if TYPE_CHECKING:
    from typing import Unpack

    from hwcalc.library.keywords import PlanOptions
    from hwcalc.library.load import ModelLike

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_BRACKETS = re.compile(r"\([^()]*\)")


@frozen
class TensorExplanation:
    """One tensor: ``formula`` = ``numbers`` = ``bytes_per_layer``, for the whole batch; times the layers, ``bytes``."""

    name: str
    dtype: str
    dtype_meaning: str
    formula: str
    numbers: str
    bytes_per_layer: int
    count: int
    bytes: int


@frozen
class KindExplanation:
    """One kind of layer: what it keeps and why, its numbers, its tensors and their sum."""

    kind: str
    title: str
    why: str
    layers: LayerNumbers
    count: int
    dims: dict[str, int | bool]
    tensors: tuple[TensorExplanation, ...]
    bytes: int
    source: str


@frozen
class Explanation:
    """A plan, and an explanation of each kind of its layers."""

    plan: Plan
    kinds: tuple[KindExplanation, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan's JSON document with one more key, ``explain``."""
        return {**self.plan.to_dict(), "explain": [document_of(part) for part in self.kinds]}


def explain(model: ModelLike | None = None, **options: Unpack[PlanOptions]) -> Explanation:
    """Plan a model and explain where every byte comes from; ``options`` are the keywords of :func:`hwcalc.plan`."""
    return explained(plan(model, **options))


def explained(plan: Plan) -> Explanation:
    """An explanation of every layer group of a plan, in the plan's order."""
    return Explanation(plan=plan, kinds=tuple(_kind(layer, tensors, plan) for layer, tensors in stored(plan)))


def kind_title(kind: str) -> str:
    """The title of a kind; ``model`` stands for tensors that an engine keeps once, beside the layers."""
    return KINDS[kind].title if kind in KINDS else "kept once for the model"


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


def _kind(layer: LayerInfo | None, tensors: tuple[TensorInfo, ...], plan: Plan) -> KindExplanation:
    kind = KINDS.get(layer.kind) if layer is not None else None
    dims = layer.dims if layer is not None else {}
    why = "What the engine keeps beside the layers."
    if kind is not None:
        why = kind.keeps.format_map({name: f"{size:,}" for name, size in dims.items()})
    return KindExplanation(
        kind=layer.kind if layer is not None else "model",
        title=kind_title(layer.kind if layer is not None else "model"),
        why=why,
        layers=layer.layers if layer is not None else LayerNumbers(),
        count=layer.count if layer is not None else 1,
        dims=dims,
        tensors=tuple(_tensor(tensor, dims, plan) for tensor in tensors),
        bytes=sum(tensor.bytes for tensor in tensors),
        source=kind.source if kind is not None else plan.request.engine,
    )


def _tensor(tensor: TensorInfo, dims: Mapping[str, int | bool], plan: Plan) -> TensorExplanation:
    per_layer = tensor.bytes // tensor.count
    formula, numbers = (tensor.rule or "").replace(" x ", f" {TIMES} "), ""
    if tensor.rule is None:
        formula, numbers = _product(tensor, dims, plan, per_layer)
    dtype = find_dtype(tensor.dtype)
    return TensorExplanation(
        name=tensor.name,
        dtype=tensor.dtype,
        dtype_meaning=_meaning(dtype),
        formula=formula,
        numbers=numbers,
        bytes_per_layer=per_layer,
        count=tensor.count,
        bytes=tensor.bytes,
    )


def _meaning(dtype: DType | None) -> str:
    if dtype is None:
        return ""
    if dtype.block_elements == 1:
        return f"{dtype.block_bytes} B per element"
    return f"{dtype.block_bytes} B per {dtype.block_elements} elements"


def _product(tensor: TensorInfo, dims: Mapping[str, int | bool], plan: Plan, per_layer: int) -> tuple[str, str]:
    """The formula with names and with numbers: batch, positions, axes, bytes of an element or of a block."""
    batch = plan.request.batch
    dtype = find_dtype(tensor.dtype) or DType(name=tensor.dtype, block_elements=1, block_bytes=_element_bytes(tensor, batch))
    once = tensor.positions * prod(tensor.shape[:-1]) * dtype.row_bytes(tensor.shape[-1])
    if per_layer not in {once, batch * once}:
        # The product does not give the planned bytes, so no equation is shown.
        return f"{plan.request.engine}'s own layout", ""
    names, numbers = [], []
    if batch > 1 and once != per_layer:
        names.append("batch")
        numbers.append(f"{batch:,}")
    if tensor.positions != 1 or tensor.span.text != "1":
        names.append(_factor(tensor.span.text))
        numbers.append(f"{tensor.positions:,}")
    for axis, size in zip(tensor.axes[:-1], tensor.shape[:-1], strict=True):
        names.append(_factor(axis))
        numbers.append(_factor(_substituted(axis, size, dims)))
    row, elements = tensor.axes[-1], tensor.shape[-1]
    row_numbers = _substituted(row, elements, dims)
    if dtype.block_elements == 1:
        names.append(_factor(row))
        numbers.append(_factor(row_numbers))
    else:
        whole = elements % dtype.block_elements == 0
        for parts, text in ((names, row), (numbers, row_numbers)):
            parts.append(f"{_factor(text)} / {dtype.block_elements}" if whole else f"ceil({text} / {dtype.block_elements})")
    times = f" {TIMES} "
    unit = f"{dtype.block_bytes} B"
    return times.join([*names, unit]), times.join([*numbers, unit])


def _element_bytes(tensor: TensorInfo, batch: int) -> int:
    """Bytes of an element in a dtype without a profile, such as an engine's int64 counter."""
    elements = tensor.count * tensor.positions * prod(tensor.shape)
    for divisor in (elements * batch, elements):
        if divisor and tensor.bytes % divisor == 0 and tensor.bytes:
            return tensor.bytes // divisor
    return 0


def _substituted(axis: str, size: int, dims: Mapping[str, int | bool]) -> str:
    """The axis with numbers in place of names: ``2 x num_heads + 1`` becomes ``2 x 16 + 1``. Its size, if a name is unknown."""
    names = _NAME.findall(axis.replace(" x ", " * "))
    if all(name in dims for name in names) and names:
        text = _NAME.sub(lambda match: f"{dims[match[0]]:,}", axis.replace(" x ", " * "))
        return text.replace(" * ", f" {TIMES} ")
    return f"{size:,}"


def _factor(text: str) -> str:
    """Put a sum or quotient in brackets, so that it can stand in a product, unless it has them already."""
    text = text.replace(" x ", f" {TIMES} ")
    outside = _BRACKETS.sub("", text)
    return f"({text})" if any(sign in outside for sign in (" + ", " - ", " // ", " % ")) else text

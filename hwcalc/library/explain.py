"""The origin of every byte: formula, numbers and result of each part of a plan.

For each kind of layer the numbers multiply to the planned bytes. If the bytes of a tensor are not a product of its dimensions, the
engine's own rule is shown instead. The other parts are in :mod:`hwcalc.library.explain_memory` and :mod:`hwcalc.library.explain_policy`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod
from typing import Any, Unpack

from msgspec.structs import replace

from hwcalc.documents import Answer, document_of
from hwcalc.engines.deployment import Occupancy
from hwcalc.formulas import KINDS, DType, LayerKind, LayerNumbers
from hwcalc.formulas.record import Record
from hwcalc.library.explained import ExplainedLimit, ExplainedSection, QuotedFormula, Symbol, numbers_in, shown
from hwcalc.library.layer_bytes import beside_title, kind_title, stored
from hwcalc.model import Definition, ModelLike
from hwcalc.planner.options import PlanOptions, takes
from hwcalc.planner.result import LayerInfo, Plan, TensorInfo
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import TIMES

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_BRACKETS = re.compile(r"\([^()]*\)")


class TensorExplanation(Record):
    """One tensor: ``formula`` = ``numbers`` = ``bytes_per_layer``, for the whole batch; times the layers, ``bytes``.

    Where an engine keeps blocks, ``block_formula`` = ``block_numbers`` says what one block of one layer takes on a GPU. Both are empty if
    the engine pads it. ``count_formula`` = ``count_numbers`` = ``blocks`` says how many blocks a sequence takes.
    """

    name: str
    dtype: str
    dtype_meaning: str
    formula: str
    numbers: str
    bytes_per_layer: int
    count: int
    bytes: int
    block_formula: str = ""
    block_numbers: str = ""
    count_formula: str = ""
    count_numbers: str = ""
    blocks: int | None = None


class KindExplanation(Record):
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


class Explanation(Answer, Record):
    """A plan, an explanation of each kind of its layers, and one of everything else.

    ``sections`` are those of :data:`~hwcalc.library.explained.SECTIONS` that are known: without hardware there are only weights.
    ``group_reasons`` are sentences on why blocks are as large and as many as they are. ``limits`` are the answers of the solvers, ``quoted`` the formulas that are often quoted and wrong for this model, and ``symbols`` says
    what every symbol means.
    """

    plan: Plan
    kinds: tuple[KindExplanation, ...]
    group_reasons: tuple[str, ...] = ()
    sections: tuple[ExplainedSection, ...]
    limits: tuple[ExplainedLimit, ...]
    quoted: tuple[QuotedFormula, ...]
    symbols: tuple[Symbol, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan's JSON document with further keys: ``explain`` for the kinds, and ``group_reasons``, ``sections``, ``limits``, ``quoted``, ``symbols``."""
        more = {name: document_of(getattr(self, name)) for name in ("group_reasons", "sections", "limits", "quoted", "symbols")}
        return {**self.plan.to_dict(), "explain": [document_of(part) for part in self.kinds], **more}

    def headline(self) -> str:
        return f"{self.plan.headline()}; {len(self.records()):,} figures"

    def records(self) -> list[dict[str, Any]]:
        """A row for each figure: ``formula`` = ``numbers`` = ``result``, for all layers of its kind; then one for each limit."""
        measured = self.plan.fit is not None and self.plan.fit.budget is not None
        known = str(Definition.ESTIMATE if measured else self.plan.cache.definition)
        names = (
            "section",
            "name",
            "formula",
            "numbers",
            "per_layer",
            "layers",
            "result",
            "low",
            "high",
            "unit",
            "definition",
            "source",
        )
        rows: list[tuple[Any, ...]] = []
        for kind in self.kinds:
            source, definition = kind.source, self.plan.cache.definition.value
            for one in kind.tensors:
                told = (f"{kind.title}: {one.name}", one.formula, one.numbers, one.bytes_per_layer, one.count, one.bytes)
                rows.append(("cache", *told, None, None, "bytes", definition, source))
        for section in self.sections:
            for figure in section.figures:
                answer = (figure.result, figure.low, figure.high, figure.unit, figure.definition, figure.source)
                rows.append((section.name, figure.name, figure.formula, figure.numbers, None, None, *answer))
        for limit in self.limits:
            # Null where nothing bounds it.
            value = None if limit.value >= UNLIMITED else limit.value
            rows.append(("limits", limit.name, "", "", None, None, value, None, None, limit.what, known, ""))
        return [dict(zip(names, row, strict=True)) for row in rows]

    __repr__ = Answer.__repr__

    def only(self, names: Collection[str]) -> Explanation:
        """The explanation with these sections alone."""
        from hwcalc.library.explained import symbols_in

        kept = replace(
            self,
            kinds=self.kinds if "cache" in names else (),
            group_reasons=self.group_reasons if "cache" in names else (),
            sections=tuple(section for section in self.sections if section.name in names),
            limits=self.limits if "limits" in names else (),
            quoted=self.quoted if "quoted" in names else (),
        )
        return replace(kept, symbols=symbols_in(_formulas(kept.kinds, kept.sections, kept.quoted)))


@takes(PlanOptions)
def explain(model: ModelLike | None = None, **options: Unpack[PlanOptions]) -> Explanation:
    """Plan a model and explain where every byte comes from; ``options`` are the keywords of :func:`hwcalc.plan`."""
    from hwcalc.library.plan import load_request
    from hwcalc.planner.asked import take_options
    from hwcalc.planner.context import open_request
    from hwcalc.planner.plan import plan_opened, without_effect

    _, asked = take_options("explain", options)
    spec, request = load_request(model, asked)
    opened = open_request(spec, **request)
    return explained(plan_opened(opened, without_effect(request)), opened)


def explained(plan: Plan, opened: Occupancy) -> Explanation:
    """An explanation of a plan. ``opened`` is the request that was planned."""
    from hwcalc.library import explain_memory
    from hwcalc.library.explain_policy import policy, sharing
    from hwcalc.library.explained import symbols_in
    from hwcalc.library.often_quoted import often_quoted

    found = (
        policy(plan, opened),
        sharing(plan, opened),
        explain_memory.weights(plan, opened),
        explain_memory.estimated(plan, "activations"),
        explain_memory.estimated(plan, "overhead"),
        explain_memory.devices(plan),
        explain_memory.pool(plan),
        explain_memory.verdict(plan, opened),
        explain_memory.speed(plan),
    )
    objects = [*(group.kind for group in opened.stack.groups), None]
    kinds = tuple(_kind(layer, tensors, plan, opened, one) for (layer, tensors), one in zip(stored(plan), objects, strict=False))
    sections, quoted = tuple(section for section in found if section is not None), often_quoted(plan, opened)
    return Explanation(
        plan=plan,
        kinds=kinds,
        group_reasons=opened.group_reasons,
        sections=sections,
        limits=explain_memory.limits(plan, opened),
        quoted=quoted,
        symbols=symbols_in(_formulas(kinds, sections, quoted)),
    )


def _formulas(
    kinds: Iterable[KindExplanation], sections: Iterable[ExplainedSection], quoted: Iterable[QuotedFormula]
) -> Iterator[str]:
    """Every formula and every dimension, in the order in which a reader meets them."""
    for kind in kinds:
        yield from kind.dims
        for tensor in kind.tensors:
            yield from (tensor.formula, tensor.block_formula, tensor.count_formula)
    yield from (figure.formula for section in sections for figure in section.figures)
    yield from (one.formula for one in quoted)


def _kind(
    layer: LayerInfo | None, tensors: tuple[TensorInfo, ...], plan: Plan, opened: Occupancy, layer_kind: LayerKind | None
) -> KindExplanation:
    shown_tensors = tuple(_tensor(tensor, layer, plan, opened, layer_kind) for tensor in tensors)
    kind = None if layer is None else KINDS.get(layer.kind)
    dims = {} if layer is None else layer.dims
    keeps = "What the engine keeps beside the layers."
    source = f"the code of {opened.engine.label} {opened.deployment.version}".rstrip()
    return KindExplanation(
        kind="model" if layer is None else layer.kind,
        title=beside_title(tensors) if layer is None else kind_title(layer.kind),
        why=keeps if kind is None else kind.keeps.format_map({name: f"{size:,}" for name, size in dims.items()}),
        layers=LayerNumbers() if layer is None else layer.layers,
        count=1 if layer is None else layer.count,
        dims=dims,
        tensors=shown_tensors,
        bytes=sum(tensor.bytes for tensor in tensors),
        source=source if kind is None else kind.source,
    )


def _tensor(
    tensor: TensorInfo, layer: LayerInfo | None, plan: Plan, opened: Occupancy, kind: LayerKind | None
) -> TensorExplanation:
    """A tensor; if its layers lie in blocks, with what a block of one layer takes, and with how many of them a sequence takes."""
    per_layer, dtype, meaning = tensor.bytes // tensor.count, find_dtype(tensor.dtype), ""
    formula, numbers = (tensor.rule or "").replace(" x ", f" {TIMES} "), ""
    if tensor.rule is None:
        formula, numbers = _product(tensor, {} if layer is None else layer.dims, plan, per_layer)
    if dtype is not None:
        per = "element" if dtype.block_elements == 1 else f"{dtype.block_elements} elements"
        meaning = f"{dtype.block_bytes} B per {per}"
    page, layers = tensor.shape[-1], set(tensor.layers)
    groups = [group for group in plan.cache.groups if kind is not None and tensor.rule is not None and layers & set(group.layers)]
    group = next((group for group in groups if group.page_bytes == page), None)
    block = ("", "") if kind is None or group is None else _block(page, group.block_size, opened, kind)
    counted = next((one for group in groups for one in group.steps if one.expected == tensor.positions), None)
    values = {} if counted is None else {term.name: term.expected for term in counted.terms}
    return TensorExplanation(
        name=tensor.name,
        # What lies beside the layers is bytes of any kind.
        dtype="" if layer is None else tensor.dtype,
        dtype_meaning=meaning,
        formula=formula,
        numbers=numbers,
        bytes_per_layer=per_layer,
        count=tensor.count,
        bytes=tensor.bytes,
        block_formula=block[0],
        block_numbers=block[1],
        count_formula="" if counted is None else shown(counted.formula),
        count_numbers="" if counted is None else numbers_in(counted.formula, values),
        blocks=None if counted is None else tensor.positions,
    )


def _block(page: int, block_size: int, opened: Occupancy, kind: LayerKind) -> tuple[str, str]:
    """Formula and numbers of a block of one layer on a GPU, if it is tokens x the bytes of each; otherwise empty."""
    roles, tp = opened.dtypes.roles, opened.setup.parallel.tp
    whole, kept = kind.tensors(), kind.shard(tp).tensors()
    row = sum(one.bytes_per_position(roles[one.role]) for one in kept)
    if block_size * row != page or any(roles[one.role].block_elements != 1 for one in kept) or len(whole) != len(kept):
        return "", ""
    products: list[tuple[str, str]] = []
    for full, one in zip(whole, kept, strict=True):
        factors: list[tuple[str, str]] = []
        for axis, size, own in zip(one.axes, full.shape, one.shape, strict=True):
            # An axis on a GPU is a part of it if the GPUs share it.
            if own < size == own * tp:
                factors.append((f"{_factor(axis)} / tp", f"{size:,} / {tp:,}"))
            elif own < size and -(-size // tp) == own:
                factors.append((f"ceil({axis} / tp)", f"ceil({size:,} / {tp:,})"))
            else:
                factors.append((_factor(axis), f"{own:,}"))
        factors.append((f"{roles[one.role].block_bytes} B",) * 2)
        products.append((f" {TIMES} ".join(name for name, _ in factors), f" {TIMES} ".join(number for _, number in factors)))
    formula, values = (parts[0] if len(parts) == 1 else f"({' + '.join(parts)})" for parts in zip(*products, strict=True))
    return f"block_size {TIMES} {formula}", f"{block_size:,} {TIMES} {values}"


def _product(tensor: TensorInfo, dims: Mapping[str, int | bool], plan: Plan, per_layer: int) -> tuple[str, str]:
    """The formula with names and with numbers: batch, positions, axes, bytes of an element or of a block."""
    batch = plan.request.batch
    dtype = find_dtype(tensor.dtype)
    if dtype is None:
        # One without a profile, such as an engine's int64 counter.
        elements = tensor.count * tensor.positions * prod(tensor.shape)
        sizes = (tensor.bytes // count for count in (elements * batch, elements) if count and tensor.bytes % count == 0)
        dtype = DType(name=tensor.dtype, block_elements=1, block_bytes=next(sizes, 0))
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

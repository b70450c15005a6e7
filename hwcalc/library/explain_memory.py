"""The memory of a plan, explained: weights, activations, overhead, devices, the pool, the verdict, the limits; and the bound on speed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.formulas.formats import FLOATS
from hwcalc.formulas.weights import Part, WeightRole
from hwcalc.library.explained import ExplainedFigure, ExplainedLimit, ExplainedSection, figure_of, plain_figure
from hwcalc.model import Definition
from hwcalc.planner.result import BudgetInfo, Plan
from hwcalc.planner.verdict import UNLIMITED
from hwcalc.units import human_bytes

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.result import OverheadInfo, Share

_POOL_FIGURES: Final = ("blocks", "max_requests", "max_concurrency", "tokens")
"""The steps of a pool whose results are fields of the pool."""


def weights(plan: Plan, opened: Occupancy) -> ExplainedSection:
    """The blocks of the model in their formats, their sum, and what one GPU holds of them."""
    found, files, figures = plan.memory.weights, opened.model.weights, list[ExplainedFigure]()
    if found.bytes is not None:
        if files is not None and opened.setup.weights is None:
            # What the headers of the files say.
            for dtype, size in files.bytes_by_dtype.items():
                figures.append(plain_figure(f"files, {dtype}", "", size, definition=files.definition, source=files.source))
        for number, part in enumerate(found.parts):
            layers = f"{part.count:,} layers" if part.count > 1 else ""
            tower = "" if part.part in (Part.LANGUAGE, part.kind) else part.part
            for place, stored in enumerate(part.formats):
                name = f"{', '.join(filter(None, (part.kind, tower, layers)))} ({stored.format})"
                formula = "ceil(parameters x bits / 8)" if stored.parameters * stored.bits % 8 else "parameters x bits / 8"
                values = {"parameters": stored.parameters, "bits": stored.bits}
                if stored.scale_bytes:
                    formula, values = f"{formula} + scales", values | {"scales": stored.scale_bytes}
                where = f"memory.weights.parts.{number}.formats.{place}.bytes"
                figures.append(plain_figure(name, where, stored.bytes, formula, values, definition=found.definition))
        counted = [(part.kind, part.bytes) for part in found.parts if part.part != Part.MTP]
        counted = counted or [(one.name, int(one.result)) for one in figures]
        total = plain_figure("weights", "memory.weights.bytes", found.bytes, definition=found.definition, source=found.source)
        formula, numbers = " + ".join(name for name, _ in counted), " + ".join(f"{size:,}" for _, size in counted)
        figures.append(replace(total, formula=formula, numbers=numbers))
    figures += _of_budget(plan, "weights")
    if plan.fit is None and plan.memory.per_gpu.weights not in (None, found.bytes):
        size = plan.memory.per_gpu.weights or 0
        figures.append(plain_figure("weights of a GPU", "memory.per_gpu.weights", size, definition=found.definition))
    return ExplainedSection(
        name="weights",
        title="weights",
        about="What the model itself takes: every parameter in the format that it is stored in.",
        figures=tuple(figures),
        remarks=tuple(_on_weights(plan, opened)),
    )


def _on_weights(plan: Plan, opened: Occupancy) -> Iterator[str]:
    found, counted = plan.memory.weights, opened.model.counted
    if found.bytes is not None and not found.parts and counted is not None:
        blocks = [f"{block.kind} {block.elements:,}" for block in counted.blocks if block.part is not Part.MTP]
        yield f"Parameters by the config: {', '.join(blocks)}; together {counted.total:,}."
    stored = [(part, one) for part in found.parts for one in part.formats]
    quantised = {one.format for _, one in stored} - FLOATS.keys()
    if quantised:
        kept = [(part, one) for part, one in stored if one.format in FLOATS]
        names = ", ".join(dict.fromkeys(part.kind for part, _ in kept if part.part != Part.MTP))
        formats, others = " and ".join(sorted(quantised)), " and ".join(dict.fromkeys(one.format for _, one in kept))
        left = human_bytes(sum(one.bytes for part, one in kept if part.part != Part.MTP))
        yield f"Not in {formats} but in {others}: {left} of {names}." if names else f"Everything is in {formats}."
    for part in found.parts:
        if part.part == Part.MTP:
            yield (
                f"{part.kind} ({human_bytes(part.bytes)}) is in the files for multi-token prediction, and not in the sum: it is loaded "
                "for speculative decoding alone."
            )
    roles = {weight.role for block in (() if counted is None else counted.blocks) for weight in block.weights}
    if counted is not None and WeightRole.HEAD not in roles and WeightRole.EMBEDDING in roles:
        yield "The output head is the embedding (tied): it is counted once."
    if found.bytes is None:
        yield "The weights are not known; the notes say why."
    gpus = 0 if plan.fit is None or plan.fit.budget is None else plan.fit.gpus
    size = plan.memory.per_gpu.weights
    if gpus > 1 and size is not None and found.bytes is not None:
        copies = plan.request.dp
        even = found.bytes * copies // gpus
        more = f"{human_bytes(size - even)} more" if size >= even else f"{human_bytes(even - size)} less"
        yield (
            f"An even share of {f'{copies} copies' if copies > 1 else 'them'} on {gpus:,} GPUs would be {human_bytes(even)}; the fullest "
            f"GPU holds {more}: matrices are divided, norms and the like are whole on every GPU, and stages differ."
        )


_ESTIMATED: Final = {
    "activations": "What one forward pass holds beside weights and cache: an estimate, from the code that runs and from measurements.",
    "overhead": "What else the process takes on each GPU. Each part names the measurement or the code that it comes from.",
}
"""Sections of estimates, and what they are."""


def estimated(plan: Plan, name: str) -> ExplainedSection | None:
    """The activations or the overhead, part by part, and their sum on all GPUs of the plan if that is more than a single part on a single GPU.

    ``None`` without hardware.
    """
    found: Share | OverheadInfo | None = getattr(plan.memory, name)
    if found is None:
        return None
    assert plan.fit is not None
    figures, budget, gpus, place = _of_budget(plan, name), plan.fit.budget, plan.fit.gpus, f"memory.{name}.bytes"
    if plan.memory.devices:
        values = {one.device: getattr(one, name) for one in plan.memory.devices if getattr(one, name)}
        together, alone = f"{name}, all devices", len(values) == gpus == len(figures) == 1 and budget is not None
        formula = " + ".join(values) or "0"
    else:
        parts = () if budget is None else [part for part in budget.parts if part.section == name]
        # The name of a part as a symbol: non-torch is non_torch.
        values = {re.sub(r"[^A-Za-z0-9]+", "_", part.name): part.expected for part in parts}
        together, alone = f"{name}, {'all GPUs' if gpus > 1 else 'together'}", len(values) == gpus == 1
        formula = " + ".join(values) or "0"
        if gpus > 1:
            formula = f"({formula}) x gpus" if len(values) > 1 else f"{formula} x gpus"
        values |= {"gpus": gpus}
    if not alone:
        ends = found.low, found.high
        figures.append(plain_figure(together, place, found.bytes, formula, values, ends=ends, definition=found.definition))
    return ExplainedSection(name=name, title=name, about=_ESTIMATED[name], figures=tuple(figures), remarks=())


def _of_budget(plan: Plan, section: str) -> list[ExplainedFigure]:
    """The parts of the budget in this section, each with its steps."""
    budget = None if plan.fit is None else plan.fit.budget
    out: list[ExplainedFigure] = []
    for number, part in enumerate(() if budget is None else budget.parts):
        place, known, source = f"fit.budget.parts.{number}", str(part.definition), part.source
        if part.section != section:
            continue
        if not part.steps:
            name, ends = f"{part.name} of a GPU" if part.section == "weights" else part.name, (part.low, part.high)
            out.append(plain_figure(name, f"{place}.expected", part.expected, ends=ends, definition=known, source=source))
            continue
        *before, last = part.steps
        out += [figure_of(one, f"{place}.steps.{at}.expected", definition=known) for at, one in enumerate(before)]
        out.append(figure_of(last, f"{place}.expected", definition=known, source=source, name=part.name))
    return out


def pool(plan: Plan) -> ExplainedSection | None:
    """Bytes left for the cache and what the engine makes of them; ``None`` without hardware or a budget."""
    fit = plan.fit
    if fit is None:
        return None
    budget, figures, remarks = fit.budget, list[ExplainedFigure](), list[str]()
    if budget is None:
        left = fit.usable_bytes
        figures.append(plain_figure("left for the cache", "fit.usable_bytes", left, "kv_memory", {"kv_memory": left}))
    else:
        formula = "visible" if budget.utilization == 1 else "ceil(visible x utilization)"
        formula += " - margin" if budget.margin_bytes else ""
        usable, place = budget.requested_bytes, "fit.budget.requested_bytes"
        values = {"visible": budget.total_bytes, "utilization": budget.utilization, "margin": budget.margin_bytes}
        known = Definition.EXACT if budget.total_low_bytes == budget.total_high_bytes else Definition.ESTIMATE
        formula = formula if usable else f"max(0, {formula})"
        figures.append(plain_figure("usable", place, usable, formula, values, ends=_usable_ends(budget), definition=known))
        formula, ends = "usable - weights - activations - overhead", (budget.low, budget.high)
        sums = {name: sum(part.expected for part in budget.parts if part.section == name) for name in _SECTIONS}
        values, place, known = {"usable": usable, **sums}, "fit.budget.expected", Definition.ESTIMATE
        figures.append(plain_figure("left for the cache", place, budget.expected, formula, values, ends=ends, definition=known))
        remarks.append(
            "The low end of the pool has every estimate at its high end, and the high end has every one at its low end."
        )
        if budget.total_low_bytes != budget.total_high_bytes:
            remarks.append(_on_visible(budget))
    for number, one in enumerate(() if plan.pool is None else plan.pool.steps):
        place = f"pool.{one.name}" if one.name in _POOL_FIGURES else f"pool.steps.{number}.expected"
        figures.append(figure_of(one, place, definition=str("" if plan.pool is None else plan.pool.definition)))
    cut = "" if plan.pool is None or plan.memory.devices else ", cut into blocks"
    about = f"What is left for the cache on each GPU{cut}."
    return ExplainedSection(name="pool", title="pool", about=about, figures=tuple(figures), remarks=tuple(remarks))


_SECTIONS: Final = ("weights", "activations", "overhead")


def _on_visible(budget: BudgetInfo) -> str:
    low, high = _usable_ends(budget)
    return (
        f"The memory that programs see is itself an estimate, {human_bytes(budget.total_low_bytes)} to "
        f"{human_bytes(budget.total_high_bytes)}: {human_bytes(low)} to {human_bytes(high)} of it may be used."
    )


def verdict(plan: Plan, opened: Occupancy) -> ExplainedSection | None:
    """Need of the fullest GPU and what may be used, at both ends of the estimate; ``None`` without hardware or a budget."""
    from hwcalc.planner.solve import holds_in

    fit, share = plan.fit, plan.memory.per_gpu
    if fit is None:
        return None
    values = {"cache": plan.cache.per_gpu_bytes}
    if fit.budget is not None:
        values |= {name: getattr(share, name) for name in _SECTIONS}
    ends = fit.needed_low_bytes, fit.needed_high_bytes
    known, formula = plan.memory.cache.definition if fit.budget is None else Definition.ESTIMATE, " + ".join(values)
    needs = plain_figure("needs", "fit.needed_bytes", fit.needed_bytes, formula, values, ends=ends, definition=known)
    left_of, place = {"usable": fit.usable_bytes, "needs": fit.needed_bytes}, "fit.headroom_bytes"
    room = plain_figure("headroom", place, fit.headroom_bytes, "usable - needs", left_of, definition=known)
    remarks = [
        f"The verdict is: {fit.verdict.text}.",
        f"{_compared('By the expected values', fit.needed_bytes, fit.usable_bytes, holds=fit.fits)}.",
    ]
    if fit.budget is not None:
        if fit.budget.total_low_bytes != fit.budget.total_high_bytes:
            remarks.append(_on_visible(fit.budget))
        for words, end in (("With every estimate at its high end", "low"), ("With every estimate at its low end", "high")):
            left = int(getattr(fit.budget, end))
            needed = fit.usable_bytes - left + plan.cache.per_gpu_bytes
            remarks.append(f"{_compared(words, needed, fit.usable_bytes, holds=holds_in(opened, left, end))}.")
    if plan.reason:
        # The engine's own words stay as they are.
        remarks.append(f"Why not: {plan.reason}{'.' if plan.reason == fit.message else ''}")
    return ExplainedSection(
        name="verdict",
        title="verdict",
        about="Does the fullest GPU hold its part of the cache, beside everything else?",
        figures=(needs, *_ends_of_needs(plan), room),
        remarks=tuple(remarks),
    )


def _usable_ends(budget: BudgetInfo) -> tuple[int, int]:
    """Usable bytes at the low and the high end of the memory that programs see."""
    return budget.low + sum(part.high for part in budget.parts), budget.high + sum(part.low for part in budget.parts)


def _ends_of_needs(plan: Plan) -> Iterator[ExplainedFigure]:
    """The ends of what the fullest GPU needs. Memory that programs may see or not see counts as needed."""
    fit = plan.fit
    if fit is None or fit.budget is None or fit.needed_low_bytes == fit.needed_high_bytes:
        return
    budget = fit.budget
    low, high = _usable_ends(budget)
    rows = (
        ("needs, at least", "low", fit.needed_low_bytes, "more_memory", "-", high - budget.requested_bytes),
        ("needs, at most", "high", fit.needed_high_bytes, "less_memory", "+", budget.requested_bytes - low),
    )
    for name, end, result, memory, sign, size in rows:
        sums = {section: sum(getattr(part, end) for part in budget.parts if part.section == section) for section in _SECTIONS}
        values = {"cache": plan.cache.per_gpu_bytes, **sums}
        formula = " + ".join(values) + (f" {sign} {memory}" if size else "")
        if sign == "-" and sum(values.values()) < size:
            formula = f"max(0, {formula})"
        place = f"fit.needed_{end}_bytes"
        yield plain_figure(name, place, result, formula, values | {memory: size}, definition=Definition.ESTIMATE)


def _compared(words: str, needed: int, usable: int, *, holds: bool) -> str:
    """Words for need and usable bytes, and whether it fits. Blocks and options of the engine may decide otherwise than the bytes."""
    size, whole, fits = human_bytes(max(0, needed)), human_bytes(usable), "it fits" if holds else "it does not fit"
    if (needed <= usable) is holds:
        return f"{words} it needs {size} of {whole}: {fits}" if holds else f"{words} it needs {size}, more than {whole}: {fits}"
    return f"{words} it needs {size} of {whole}, and yet {fits}, as the engine counts whole blocks and has limits of its own"


def devices(plan: Plan) -> ExplainedSection | None:
    """The bytes of each device, and their sum; ``None`` if the engine places nothing."""
    held = plan.memory.devices
    if not held or plan.memory.total_bytes is None:
        return None
    figures, remarks = [], []
    for number, one in enumerate(held):
        layers = f"layers {one.layers.text}" if one.layers else "no layer"
        experts = f", and the experts of layers {one.experts.text}" if one.experts else ""
        remarks.append(f"{one.device} has {layers}{' and the output' if one.output else ''}{experts}.")
        # "cache" is the symbol of the fullest GPU's.
        terms = {"weights": one.weights, "kv_cache": one.cache, "activations": one.activations, "overhead": one.overhead}
        values = {term: size for term, size in terms.items() if size}
        ends = one.total_low, one.total_high
        known = Definition.ESTIMATE if one.total_low != one.total_high else plan.memory.cache.definition
        formula = " + ".join(values) or "0"
        place = f"memory.devices.{number}.total"
        figures.append(plain_figure(one.device, place, one.total, formula, values, ends=ends, definition=known))
    together, whole = {one.device: one.total for one in held}, plan.memory.total_bytes
    formula, known = " + ".join(together), Definition.ESTIMATE
    figures.append(plain_figure("all devices", "memory.total_bytes", whole, formula, together, definition=known))
    copies = sum(one.weights for one in held) - (plan.memory.weights.bytes or 0)
    if copies > 0:
        twice = "a table that is input and output at once has a copy on each."
        remarks.append(f"{human_bytes(copies)} of the weights lie on two devices: {twice}")
    return ExplainedSection(
        name="devices",
        title="devices",
        about="Where the layers lie, and what that takes there. The input is always on the host; the last layers go to GPUs first.",
        figures=tuple(figures),
        remarks=tuple(remarks),
    )


ANSWERS: Final = (
    ("max_seq", "longest", "seq", "tokens", "low", "limiting_seq"),
    ("expected_max_seq", "longest, expected", "seq", "tokens", "expected", "expected_limiting_seq"),
    ("max_batch", "at once", "batch", "sequences", "low", "limiting"),
    ("expected_max_batch", "at once, expected", "batch", "sequences", "expected", "expected_limiting"),
)
"""Fields of the verdict that a solver found: name, what it varies, what it counts, the end of the budget that it goes by, and what limits it."""
_SPEED: Final = {
    "weight_bytes": "weight_bytes_per_step",
    "cache_bytes": "cache_bytes_per_step",
    "step_s": "decode_step_s_bound",
    "decode_tokens_per_s": "decode_tokens_per_s_bound",
}
"""Steps of the bound whose results are fields of it."""


def limits(plan: Plan, opened: Occupancy) -> tuple[ExplainedLimit, ...]:
    """The longest, the most at once and the fewest GPUs, each with what it needs and what the next would need."""
    fit, own, out = plan.fit, opened.most_sequences(), list[ExplainedLimit]()
    if fit is None:
        return ()
    for field, name, varies, what, end, limited_by in ANSWERS:
        sure, found = field.removeprefix("expected_"), getattr(fit, field, None)
        # An expected answer that is the sure one says nothing more.
        if found is None or (sure != field and found == getattr(fit, sure)):
            continue
        value, limiting = int(found), getattr(fit, limited_by)
        needs, of, unit = _needs(opened, end, **{varies: value}) if 0 < value < UNLIMITED else _UNKNOWN
        more, more_of, more_unit = _needs(opened, end, **{varies: value + 1}) if value < UNLIMITED else _UNKNOWN
        by_memory = more is not None and more_of is not None and more > more_of and (needs is None or more_unit == unit)
        by_memory = by_memory and (own is None or limiting != own[1])
        out.append(
            ExplainedLimit(
                name=name,
                figure=f"fit.{field}",
                value=value,
                what=what,
                end=end,
                needs=needs,
                of=of,
                next_value=value + 1 if by_memory else None,
                next_needs=more if by_memory else None,
                next_of=more_of if by_memory else None,
                unit=more_unit if by_memory else unit,
                limiting=limiting,
            )
        )
    if fit.min_gpus is not None:
        layout: Any = getattr(fit, "min_layout", None)
        needs, of, unit = _UNKNOWN
        if layout is not None:
            sizes = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "ep")}
            needs, of, unit = _needs(opened, "expected", **sizes, dcp=1)
        elif fit.min_gpus == fit.gpus:
            needs, of, unit = _needs(opened, "expected")
        unlimited: dict[str, Any] = dict.fromkeys(("next_value", "next_needs", "next_of", "limiting"))
        known: dict[str, Any] = {"value": fit.min_gpus, "what": "GPUs", "end": "expected", "needs": needs, "of": of, "unit": unit}
        out.append(ExplainedLimit(name="fewest", figure="fit.min_gpus", **known, **unlimited))
    return tuple(out)


_Needs = tuple[int | None, int | None, str]
_UNKNOWN: Final[_Needs] = (None, None, "bytes")


def _needs(opened: Occupancy, end: str, **change: int) -> _Needs:
    """Need of the planned sequences and what there is for them, with this change; nothing if the engine refuses it."""
    from hwcalc.planner.solve import budget_bytes

    try:
        changed = opened.changed(**change) if change else opened
        size = budget_bytes(changed, end)
        if size is None:
            return _UNKNOWN
        pool = changed.pool(max(0, size)).value
        held = next((one for one in (() if pool is None else pool.steps) if one.name == "max_requests"), None)
        if held is None:
            return changed.needed_bytes, max(0, size), "bytes"
        terms = {term.name: int(term.expected) for term in held.terms}
        # Each scheduler has its share of the blocks and of the requests.
        schedulers = terms.get("schedulers", 1)
        requests = -(-changed.request.replica_batch // schedulers)
        # Under a cache policy the prompts that are read have more blocks.
        peak = terms.get("prompt_blocks", 0)
        each = terms.get("blocks_per_request", peak)
        blocks = requests * each + min(requests, terms.get("prompts", 0)) * (peak - each)
        return blocks, terms["usable_blocks"] // schedulers, "blocks"
    except KvplanError:
        return _UNKNOWN


def speed(plan: Plan) -> ExplainedSection | None:
    """The bound on speed; ``None`` without a GPU, or if nothing is known of it."""
    found = plan.speed
    if found is None or not found.steps:
        return None
    bounds = [one.name for one in found.steps if not one.name.startswith("expected_")]
    places = _SPEED | ({bounds[-1]: "prefill_s_bound"} if bounds and bounds[-1] in ("prompt_s", "prefill_s") else {})
    figures: list[ExplainedFigure] = []
    for number, one in enumerate(found.steps):
        place = f"speed.{places[one.name]}" if one.name in places else f"speed.steps.{number}.expected"
        source = found.source if one.name == "decode_tokens_per_s" else ""
        definition = str(found.definition)
        if one.name.startswith("expected_"):
            definition, source = str(Definition.ESTIMATE), found.expected_source or ""
        figures.append(figure_of(one, place, definition=definition, source=source))
    words = [f"{what} is bound by {by}." for what, by in (("A step", found.bound_by), ("A prompt", found.prefill_bound_by)) if by]
    return ExplainedSection(
        name="speed",
        title="speed",
        about="The bound is the fastest that any engine could be: a step must read its weights and caches once, and compute its operations."
        + (
            " The expected time is the sum of a step's terms, fitted to measurements of such engines."
            if found.speed_class
            else ""
        ),
        figures=tuple(figures),
        remarks=tuple(words),
    )

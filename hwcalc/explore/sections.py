"""The sections of the page beside the memory equation of its engines.

They are: the same model with another kind of attention, well-known cache policies, ways of allocating a cache, what a cache saves in
operations, and the exact figures at some lengths of what the normal form of an engine's memory does not cover.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.explore.runs import (
    LARGEST,
    LEAST_TOKENS,
    MOST_TOKENS,
    Pools,
    cell_of,
    drawn_form,
    grid_of,
    sentence,
    usual_request,
)
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.tensor import Full, Window
from hwcalc.model import Definition
from hwcalc.planner.context import open_request
from hwcalc.planner.strategies import GROWTH, RECOMPUTE, setting_of, strategies_of
from hwcalc.planner.strategies_cost import head_what_ifs, with_kinds
from hwcalc.policies.base import AskedPolicy, Effect
from hwcalc.policies.parse import parse_policy

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.memory import Budget
    from hwcalc.explore.runs import PageAxes, Requests
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.model import ModelSpec
    from hwcalc.planner.strategies_result import Strategy
    from hwcalc.policies.base import Chosen

_LATENT, _ROPE = 512, 64
_AS_DEEPSEEK: Final = f"a latent of {_LATENT} and a rotary key of {_ROPE}, as DeepSeek-V3 has them"


def variants_of(
    model: ModelSpec, axes: PageAxes, pools: Pools, runs: Mapping[str, Mapping[str, Any]], requests: Mapping[str, Requests]
) -> list[dict[str, Any]]:
    """Each kind of attention (``Variant`` in ``page/types.d.ts``), by engine. ``runs`` and ``requests`` are those of the model as it is."""
    variants: list[tuple[str, str, Callable[[LayerKind], LayerKind]]] = []
    for one in head_what_ifs(model.stack):
        heads = one.num_key_value_heads
        note = "" if heads is None else f"{heads:,} key/value {'head' if heads == 1 else 'heads'}"
        told = f"{note}; as published".strip("; ") if one.own else note or "a key and a value for each head"
        variants.append((one.name, told, one.change))
    if any(isinstance(group.kind, AttentionKind) for group in model.stack.groups):
        variants.append(("MLA", _AS_DEEPSEEK, _with_latent))
    changed = {name: changed_model(model, change) for name, _, change in variants}
    alike = {
        engine: _alike(next(iter(changed.values()), model), requests[engine], pools, runs[engine]) for engine in axes.engines
    }
    rows = []
    for name, told, _ in variants:
        curves = {}
        for engine in axes.engines:
            cells: dict[tuple[int, ...], int | None] = {}
            for numbers in (
                alike[engine] if _kinds(changed[name]) == _kinds(model) else [[number] for number in range(len(axes.gpus))]
            ):
                place = (0, 0, 0, numbers[0])
                own = (
                    changed[name].stack == model.stack
                    and "curve" in runs[engine]
                    and cell_of(runs[engine]["refused"], place) is None
                )
                curve = (
                    cell_of(runs[engine]["curve"], place)
                    if own
                    else _curve(changed[name], requests[engine], numbers[0], pools, runs[engine])
                )
                cells |= {(number,): curve for number in numbers}
            curves[engine] = grid_of(cells, (len(axes.gpus),))
        rows.append({"name": name, "note": told, "engines": curves})
    return rows


def _kinds(model: ModelSpec) -> set[type[LayerKind]]:
    return {type(group.kind) for group in model.stack.groups}


def _alike(other: ModelSpec, requests: Requests, pools: Pools, runs: Mapping[str, Any]) -> list[list[int]]:
    """The numbers of GPUs that are alike: the model has the same cache there, or is refused alike, and so is it with other heads.

    Attention of another kind may have other kernels on each.
    """
    groups: dict[tuple[Any, Any], list[int]] = {}
    for number in range(len(requests.axes.gpus)):
        place = (0, 0, 0, number)
        groups.setdefault((cell_of(runs["refused"], place), cell_of(runs.get("curve"), place)), []).append(number)
    alike = []
    for numbers in groups.values():
        same = (
            len(numbers) == 1 or len({_curve(other, requests, number, pools, runs) for number in (numbers[0], numbers[-1])}) == 1
        )
        alike += [numbers] if same else [[number] for number in numbers]
    return alike


def changed_model(model: ModelSpec, change: Callable[[LayerKind], LayerKind]) -> ModelSpec:
    """The model with other kinds of layers. Its weights stay as they are: only its cache is looked at."""
    return replace(
        model,
        stack=with_kinds(model.stack, change),
        readings={name: with_kinds(stack, change) for name, stack in model.readings.items()},
        variants={name: changed_model(variant, change) for name, variant in model.variants.items()},
    )


def _with_latent(kind: LayerKind) -> LayerKind:
    """Attention with a latent in the place of its keys and values, in the same window."""
    if not isinstance(kind, AttentionKind) or not isinstance(kind.span, (Full, Window)):
        return kind
    return LatentAttention(
        num_attention_heads=kind.num_attention_heads,
        kv_lora_rank=_LATENT,
        qk_rope_head_dim=_ROPE,
        qk_nope_head_dim=kind.head_dim,
        v_head_dim=kind.v_head_dim,
        window=kind.span.numbers[0] if isinstance(kind.span, Window) else None,
    )


def _has_latents(stack: Stack) -> bool:
    return any(isinstance(group.kind, LatentAttention) for group in stack.groups)


def _curve(model: ModelSpec, requests: Requests, gpu: int, pools: Pools, runs: Mapping[str, Any]) -> int:
    """The place of a curve on one GPU, or -1 less the place of why there is none."""
    name = requests.axes.gpus[gpu]
    try:
        if "curve" in runs:
            opened = requests.of(model, requests.request(name, kv_memory=requests.cache_budget))
        else:
            opened = usual_request(model, requests.engine, requests.axes, gpu=name)
        if _has_latents(model.stack) and not _has_latents(opened.stack):
            return -1 - pools.text(f"{opened.engine.label} has latent attention for models that are made with it.")
        form = drawn_form(opened)
        if form is None:
            return -1 - pools.text("What this model needs beside its cache follows no rule that the page can draw.")
        return pools.curve(form)
    except KvplanError as error:
        return -1 - pools.text(sentence(error))


_USUAL: Final = 2**17
"""The longest length of a model that does not say its own."""


def sampled_lengths(model: ModelSpec, factor: int = 2, least: int = LEAST_TOKENS) -> tuple[int, ...]:
    """Lengths from ``least`` tokens on, each ``factor`` times the one before, up to the model's own."""
    most = min(MOST_TOKENS, model.max_position_embeddings or _USUAL)
    lengths = [least]
    while lengths[-1] * factor <= most:
        lengths.append(lengths[-1] * factor)
    return tuple(lengths)


POLICIES: Final = (
    "streamingllm:compression_ratio=0.5",
    "h2o:budget=1024",
    "snapkv:compression_ratio=0.5",
    "pyramidkv:compression_ratio=0.5",
    "expectedattention:compression_ratio=0.5",
    "quest",
    "rkv:budget=1024",
    "triattention",
)
"""As ``--policy`` takes them. A ratio is the share of the tokens that goes."""
BATCHES: Final = (1, 8)
_FACTOR: Final = 4
_LEAST: Final = 512
_OTHERS: Final = ("weights", "overhead")
"""The sections that a policy leaves as they are: those of the engine's form on each GPU."""
_COLUMNS: Final = ("total_bytes", "per_gpu_bytes", "low", "expected", "high")
"""The numbers of an answer: the cache, and the ends of what the activations take under the policy."""
_UNKNOWN: Final = "What the model needs beside its cache is not known: no verdict."


def policy_rows(
    model: ModelSpec, pools: Pools, runs: Mapping[str, Mapping[str, Any]], requests: Mapping[str, Requests]
) -> dict[str, Any] | None:
    """Each policy by each engine (``PolicyRows`` in ``page/types.d.ts``); ``None`` for a model on which no policy acts.

    An engine that lacks the policy is not planned as if it had it: a text says what it would take.
    """
    if not any(kind.acts_by_token for layer in model.stack for kind in layer):
        return None
    lengths = sampled_lengths(model, _FACTOR, _LEAST)
    plain: _Plain = {}
    alike = {engine: _alike_under_policies(runs[engine], each.axes, pools) for engine, each in requests.items()}
    rows = []
    for policy in POLICIES:
        chosen = parse_policy(policy)
        assert chosen is not None
        effect = chosen.policy.effect
        answers = {engine: _answers(each, lengths, chosen, pools, alike[engine], plain) for engine, each in requests.items()}
        memory = "frees memory" if effect is Effect.FREES else f"{effect.text}, frees nothing"
        rows.append({"policy": policy, "title": chosen.policy.title, "memory": memory, "engines": answers})
    return {"lengths": list(lengths), "batches": list(BATCHES), "rows": rows}


def _alike_under_policies(runs: Mapping[str, Any], axes: PageAxes, pools: Pools) -> list[list[str]]:
    """The GPUs on which cache and activations are the same without a policy: then they are under one, which the first and the last show."""
    groups: dict[Any, list[str]] = {}
    for number, gpu in enumerate(axes.gpus):
        place = (0, 0, 0, number)
        cells = [cell_of(grid, place) for grid in runs.get("parts", ())]
        parts = [pools.pieces["parts"][cell] for cell in cells if cell is not None]
        taken = [json.dumps(part) for part in parts if part["section"] not in _OTHERS]
        groups.setdefault((cell_of(runs["refused"], place), cell_of(runs.get("curve"), place), *taken), []).append(gpu)
    return list(groups.values())


def _answers(
    requests: Requests, lengths: Sequence[int], policy: Chosen, pools: Pools, alike: Sequence[Sequence[str]], plain: _Plain
) -> dict[str, Any] | int:
    """The numbers of one engine on every GPU of the page, or the text that says why there are none."""
    opened: dict[str, Occupancy] = {}
    refusals: dict[str, int] = {}
    gpus, asked = requests.axes.gpus, AskedPolicy(chosen=policy)
    for gpu in sorted({gpu for group in alike for gpu in (group[0], group[-1])}, key=gpus.index):
        try:
            opened[gpu] = requests.of(requests.model, requests.request(gpu, seq=lengths[-1], policy=asked))
        except KvplanError as error:
            refusals[gpu] = pools.text(sentence(error))
            continue
        support = opened[gpu].policies.support(policy)
        if not support.offered:
            return pools.text(support.how or f"{opened[gpu].engine.label} has no cache policy {policy.policy.name}.")
    if not opened:
        return next(iter(refusals.values()))
    usual, *others = opened.items()
    columns: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, "refused")}
    for seq, batch in product(lengths, BATCHES):
        try:
            point = _point(usual[1].sized(seq=seq, batch=batch).checked(), plain) or {"refused": pools.text(_UNKNOWN)}
        except KvplanError as error:
            point = {"refused": pools.text(sentence(error))}
        for name, column in columns.items():
            column.append(point.get(name))
    # What a policy takes is the same on each GPU, unless an engine works through a prompt in other steps there.
    last = {name: column[-1] for name, column in columns.items()}
    for gpu, one in others:
        with suppress(KvplanError):
            if {**dict.fromkeys(columns), **_point(one.sized(seq=lengths[-1], batch=BATCHES[-1]).checked(), plain)} != last:
                refusals[gpu] = pools.text(
                    f"Under a policy {one.engine.label} takes other bytes on this GPU: the command line below plans it."
                )
    for group in alike:
        if refusals.get(group[0]) != refusals.get(group[-1]):
            return _answers(requests, lengths, policy, pools, [[gpu] for gpu in gpus], plain)
        refusals |= {gpu: refusals[group[0]] for gpu in group if group[0] in refusals}
    # One value where all are equal.
    packed = {name: column[0] if all(value == column[0] for value in column) else column for name, column in columns.items()}
    return {**packed, **({"gpus": refusals} if refusals else {})}


_Plain: TypeAlias = dict[Any, "Budget | None"]
"""Budgets without a policy, by engine, accelerator, tokens and sequences: they are the same beside every policy."""


def _point(opened: Occupancy, plain: _Plain) -> dict[str, Any]:
    """The numbers of a plan; none without a verdict, or if the policy changes other parts of the memory than cache and activations."""
    budget, gpu = opened.budget, opened.setup.hardware.gpu
    if budget is None or gpu is None:
        return {}
    key = (opened.engine.name, gpu.id, opened.tokens, opened.batch)
    if key not in plain:
        plain[key] = opened.changed(policy=None).budget
    without = plain[key]
    if without is None:
        return {}
    kept, usual = (
        [(part.name, part.low, part.expected, part.high) for part in one.parts if part.section in _OTHERS]
        for one in (budget, without)
    )
    if kept != usual or budget.usable != without.usable:
        return {}
    taken = [part for part in budget.parts if part.section == "activations"]
    ends = {end: sum(getattr(part, end) for part in taken) for end in ("low", "expected", "high")}
    return {"total_bytes": opened.stored_bytes, "per_gpu_bytes": opened.needed_bytes, **ends}


_SOURCE: Final = "kvplan strategies: a multiplication is an operation, and so is an addition; a causal prompt is counted exactly"
_SIZES: Final = {"bytes": "full_bytes", "held": "held_bytes", "peak": "peak_bytes", "host": "host_bytes"}
"""A figure of the page -> that of :class:`~hwcalc.planner.strategies_result.Strategy`."""


def sections_of(
    model: ModelSpec, axes: PageAxes, pools: Pools, runs: Mapping[str, Mapping[str, Any]], requests: Mapping[str, Requests]
) -> dict[str, Any]:
    """The further fields of ``Model`` in ``page/types.d.ts``. What the planner refuses for this model is left out.

    ``runs`` and ``requests`` are its own, by engine.
    """
    lengths, encoder_seq = sampled_lengths(model), axes.fixed.get("encoder_seq")
    saved: dict[str, Any] | None = None
    of_strategies: dict[str, Any] | None = None
    with suppress(KvplanError):
        found = {}
        for seq in lengths:
            opened = open_request(model, engine="reference", seq=seq, encoder_seq=encoder_seq)
            found[seq] = strategies_of(setting_of(opened, ((seq // 2, 1),)))
        saved, of_strategies = _saved(found), _strategy_rows(found)
    return {
        "variants": variants_of(model, axes, pools, runs, requests),
        "saved": saved,
        "policies": policy_rows(model, pools, runs, requests),
        "strategies": of_strategies,
    }


def _saved(found: Mapping[int, Sequence[Strategy]]) -> dict[str, Any]:
    """Operations at each sampled length (``Saved`` in ``page/types.d.ts``); those of attention alone where the weights are not counted."""
    cached, recomputed = (
        [next(one for one in each if one.name == name) for each in found.values()] for name in (GROWTH, RECOMPUTE)
    )
    weights = all(one.flops_per_step is not None for one in (*cached, *recomputed))
    each, whole = ("flops_per_step", "total_flops") if weights else ("attention_flops_per_step", "attention_total_flops")

    def numbers(rows: Iterable[Strategy], name: str) -> list[int | str]:
        # What JavaScript would round is given as its digits.
        values = [int(getattr(row, name)) for row in rows]
        return [value if value <= LARGEST else str(value) for value in values]

    return {
        "lengths": list(found),
        "with_cache": numbers(cached, each),
        "without_cache": numbers(recomputed, each),
        "total_with_cache": numbers(cached, whole),
        "total_without_cache": numbers(recomputed, whole),
        "weights": weights,
        "source": _SOURCE,
    }


def _strategy_rows(found: Mapping[int, Sequence[Strategy]]) -> dict[str, Any]:
    """What each strategy takes at each sampled length (``StrategyRows`` in ``page/types.d.ts``)."""
    rows = [
        {
            "name": first.name,
            "title": first.title,
            "note": first.trades,
            "used_by": first.used_by,
            "peak_is_bound": first.peak_definition is Definition.BOUND,
            **{name: [getattr(answer[number], figure) for answer in found.values()] for name, figure in _SIZES.items()},
        }
        for number, first in enumerate(next(iter(found.values())))
    ]
    return {"lengths": list(found), "rows": rows}

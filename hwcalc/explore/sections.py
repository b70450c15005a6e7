"""The sections of the page beside the memory equation of its engines.

They are: the same model with another kind of attention, well-known cache policies, ways of allocating a cache, what a cache saves in
operations, and the exact figures at some lengths of what the normal form of an engine's memory does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.explore.runs import (
    LARGEST,
    LEAST_TOKENS,
    MOST_TOKENS,
    Pools,
    drawn_form,
    grid_of,
    plan_options,
    sentence,
    usual_request,
)
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.tensor import Full, Window
from hwcalc.library.strategies import strategies
from hwcalc.model import Definition
from hwcalc.planner.context import open_request
from hwcalc.planner.fit import Search, plan_fit
from hwcalc.planner.plan import plan_memory
from hwcalc.planner.strategies import GROWTH, RECOMPUTE
from hwcalc.planner.strategies_cost import head_what_ifs, with_kinds
from hwcalc.policies.base import Effect
from hwcalc.policies.parse import parse_policy

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.explore.runs import PageAxes
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.model import ModelSpec
    from hwcalc.planner.solve import Most
    from hwcalc.planner.strategies_result import Strategies, Strategy
    from hwcalc.planner.verdict import Verdict

_LATENT, _ROPE = 512, 64
_AS_DEEPSEEK: Final = f"a latent of {_LATENT} and a rotary key of {_ROPE}, as DeepSeek-V3 has them"


def variants_of(model: ModelSpec, axes: PageAxes, pools: Pools) -> list[dict[str, Any]]:
    """Each kind of attention (``Variant`` in ``page/types.d.ts``), by engine."""
    variants: list[tuple[str, str, Callable[[LayerKind], LayerKind]]] = []
    for one in head_what_ifs(model.stack):
        heads = one.num_key_value_heads
        note = "" if heads is None else f"{heads:,} key/value {'head' if heads == 1 else 'heads'}"
        told = f"{note}; as published".strip("; ") if one.own else note or "a key and a value for each head"
        variants.append((one.name, told, one.change))
    if any(isinstance(group.kind, AttentionKind) for group in model.stack.groups):
        variants.append(("MLA", _AS_DEEPSEEK, _with_latent))
    rows = []
    for name, told, change in variants:
        changed = changed_model(model, change)
        curves = {
            engine: grid_of(
                {(number,): _curve(changed, engine, gpu, axes, pools) for number, gpu in enumerate(axes.gpus)}, (len(axes.gpus),)
            )
            for engine in axes.engines
        }
        rows.append({"name": name, "note": told, "engines": curves})
    return rows


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


def _curve(model: ModelSpec, engine: str, gpu: str, axes: PageAxes, pools: Pools) -> int:
    """The place of a curve on one GPU, or -1 less the place of why there is none."""
    try:
        opened = usual_request(model, engine, axes, gpu=gpu)
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
_SECTIONS: Final = ("weights", "activations", "overhead")
_VERDICT: Final = (
    *("usable_bytes", "needed_bytes", "needed_low_bytes", "needed_high_bytes", "verdict"),
    *("max_seq", "expected_max_seq", "max_batch", "expected_max_batch"),
)
_COLUMNS: Final = ("total_bytes", "per_gpu_bytes", *_SECTIONS, *_VERDICT)
"""The numbers of an answer."""
_UNKNOWN: Final = "What the model needs beside its cache is not known: no verdict."


def policy_rows(
    model: ModelSpec, engines: Sequence[str], text: Callable[[str], int], fixed: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Each policy by each engine (``PolicyRows`` in ``page/types.d.ts``); ``None`` for a model on which no policy acts.

    ``text`` gives the place of a text in the payload, and ``fixed`` are a GPU and other options that all plans have, parsed. An engine that lacks the policy is not planned as if it had it: a text says what it would take.
    """
    if not any(kind.acts_by_token for layer in model.stack for kind in layer):
        return None
    lengths = sampled_lengths(model, _FACTOR, _LEAST)
    rows = []
    for policy in POLICIES:
        chosen = parse_policy(policy)
        assert chosen is not None
        effect = chosen.policy.effect
        answers = {
            engine: _answers(model, lengths, {**fixed, **plan_options(engine), "policy": chosen}, text) for engine in engines
        }
        memory = "frees memory" if effect is Effect.FREES else f"{effect.text}, frees nothing"
        rows.append({"policy": policy, "title": chosen.policy.title, "memory": memory, "engines": answers})
    return {"gpu": fixed["gpu"], "lengths": list(lengths), "batches": list(BATCHES), "rows": rows}


def _answers(
    model: ModelSpec, lengths: Sequence[int], given: Mapping[str, Any], text: Callable[[str], int]
) -> dict[str, Any] | int:
    """The numbers of one engine, or the text that says why there are none."""
    try:
        opened = open_request(model, seq=lengths[-1], **given)
    except KvplanError as error:
        return text(sentence(error))
    support = opened.policies.support(given["policy"])
    if not support.offered:
        return text(support.how or f"{opened.engine.label} has no cache policy {given['policy'].policy.name}.")
    columns: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, "refused")}
    search = _Once()
    for seq, batch in product(lengths, BATCHES):
        try:
            point = _point(opened.sized(seq=seq, batch=batch).checked(), search) or {"refused": text(_UNKNOWN)}
        except KvplanError as error:
            point = {"refused": text(sentence(error))}
        for name, column in columns.items():
            column.append(point.get(name))
    # One value where all are equal.
    return {name: column[0] if all(value == column[0] for value in column) else column for name, column in columns.items()}


def _point(opened: Occupancy, search: Search) -> dict[str, Any]:
    """The numbers of a plan; none without a verdict."""
    total, needed, definition = opened.stored_bytes, opened.needed_bytes, opened.engine.definition
    _, fit = plan_fit(opened, None, search)
    if fit is None:
        return {}
    memory = plan_memory(opened, cache_bytes=total, rank_bytes=needed, definition=definition, budget=fit.budget)
    sections = {name: getattr(memory.per_gpu, name) for name in _SECTIONS}
    return {"total_bytes": total, "per_gpu_bytes": needed, **sections, **{name: getattr(fit, name) for name in _VERDICT}}


class _Once(Search):
    """How many sequences fit depends on their length alone, and how long they may be on their number: each is searched for once."""

    def __init__(self) -> None:
        self._most: dict[int, tuple[Most, Most]] = {}
        self._longest: dict[int, tuple[Most, Most]] = {}

    def most(self, opened: Occupancy) -> tuple[Most, Most]:
        if opened.tokens not in self._most:
            self._most[opened.tokens] = super().most(opened)
        return self._most[opened.tokens]

    def longest(self, opened: Occupancy) -> tuple[Most, Most]:
        if opened.batch not in self._longest:
            self._longest[opened.batch] = super().longest(opened)
        return self._longest[opened.batch]

    def fewest(self, opened: Occupancy, verdict: Verdict) -> tuple[None, None]:
        """The page does not show it."""
        return None, None


_SOURCE: Final = "kvplan strategies: a multiplication is an operation, and so is an addition; a causal prompt is counted exactly"
_SIZES: Final = {"bytes": "full_bytes", "held": "held_bytes", "peak": "peak_bytes", "host": "host_bytes"}
"""A figure of the page -> that of :class:`~hwcalc.planner.strategies_result.Strategy`."""


def sections_of(model: ModelSpec, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    """The further fields of ``Model`` in ``page/types.d.ts``. What the planner refuses for this model is left out."""
    lengths, encoder_seq = sampled_lengths(model), axes.fixed.get("encoder_seq")
    saved: dict[str, Any] | None = None
    of_strategies: dict[str, Any] | None = None
    with suppress(KvplanError):
        found = [strategies(model, engine="reference", seq=seq, encoder_seq=encoder_seq) for seq in lengths]
        saved, of_strategies = _saved(found), _strategy_rows(found)
    return {
        "variants": variants_of(model, axes, pools),
        "saved": saved,
        "policies": policy_rows(model, axes.engines, pools.text, {"gpu": axes.gpus[0], **axes.fixed}),
        "strategies": of_strategies,
    }


def _saved(found: Sequence[Strategies]) -> dict[str, Any]:
    """Operations at each sampled length (``Saved`` in ``page/types.d.ts``); those of attention alone where the weights are not counted."""
    cached, recomputed = (
        [next(one for one in each.strategies if one.name == name) for each in found] for name in (GROWTH, RECOMPUTE)
    )
    weights = all(one.flops_per_step is not None for one in (*cached, *recomputed))
    each, whole = ("flops_per_step", "total_flops") if weights else ("attention_flops_per_step", "attention_total_flops")

    def numbers(rows: Iterable[Strategy], name: str) -> list[int | str]:
        # What JavaScript would round is given as its digits.
        values = [int(getattr(row, name)) for row in rows]
        return [value if value <= LARGEST else str(value) for value in values]

    return {
        "lengths": [one.seq for one in found],
        "with_cache": numbers(cached, each),
        "without_cache": numbers(recomputed, each),
        "total_with_cache": numbers(cached, whole),
        "total_without_cache": numbers(recomputed, whole),
        "weights": weights,
        "source": _SOURCE,
    }


def _strategy_rows(found: Sequence[Strategies]) -> dict[str, Any]:
    """What each strategy takes at each sampled length (``StrategyRows`` in ``page/types.d.ts``)."""
    rows = [
        {
            "name": first.name,
            "title": first.title,
            "note": first.trades,
            "used_by": first.used_by,
            "peak_is_bound": first.peak_definition is Definition.BOUND,
            **{name: [getattr(answer.strategies[number], figure) for answer in found] for name, figure in _SIZES.items()},
        }
        for number, first in enumerate(found[0].strategies)
    ]
    return {"lengths": [one.seq for one in found], "rows": rows}

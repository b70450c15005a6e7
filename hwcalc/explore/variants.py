"""The same model with another kind of attention: what its cache would take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.explore.encode import Pools, drawn_form
from hwcalc.explore.runs import accepted, sentence
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.tensor import Full, Window
from hwcalc.planner.strategies_cost import head_what_ifs, with_kinds

if TYPE_CHECKING:
    from hwcalc.explore.axes import PageAxes
    from hwcalc.formulas import LayerKind, Stack
    from hwcalc.model import ModelSpec

__all__ = ["changed_model", "variants_of"]

_LATENT, _ROPE = 512, 64
_AS_DEEPSEEK: Final = f"a latent of {_LATENT} and a rotary key of {_ROPE}, as DeepSeek-V3 has them"
_NO_FORM: Final = "What this model needs beside its cache follows no rule that the page can draw."


def variants_of(model: ModelSpec, axes: PageAxes, pools: Pools) -> list[dict[str, Any]]:
    """Each kind of attention (``Variant`` in ``page/types.d.ts``), by engine."""
    rows = []
    for one in head_what_ifs(model.stack):
        heads = one.num_key_value_heads
        note = "" if heads is None else f"{heads:,} key/value {'head' if heads == 1 else 'heads'}"
        told = f"{note}; as published".strip("; ") if one.own else note or "a key and a value for each head"
        rows.append(_variant(one.name, told, changed_model(model, one.change), axes, pools))
    if any(isinstance(group.kind, AttentionKind) for group in model.stack.groups):
        rows.append(_variant("MLA", _AS_DEEPSEEK, changed_model(model, _with_latent), axes, pools))
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


def _variant(name: str, note: str, model: ModelSpec, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    return {"name": name, "note": note, "engines": {engine: _curve(model, engine, axes, pools) for engine in axes.engines}}


def _curve(model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> int:
    """The place of a curve, or -1 less the place of why there is none."""
    try:
        opened = accepted(model, engine, axes)
        if _has_latents(model.stack) and not _has_latents(opened.stack):
            return -1 - pools.text(f"{opened.engine.label} has latent attention for models that are made with it.")
        form = drawn_form(opened)
        return -1 - pools.text(_NO_FORM) if form is None else pools.curve(form)
    except KvplanError as error:
        return -1 - pools.text(sentence(error))

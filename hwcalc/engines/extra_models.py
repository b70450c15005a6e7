"""What is loaded beside the planned model: LoRA adapters, and the draft whose guesses it checks."""

from __future__ import annotations

from dataclasses import replace

from hwcalc.engines.base import Engine
from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.costs import exact, ranked
from hwcalc.engines.draft_weights import draft_bytes_rank
from hwcalc.engines.stored import Context
from hwcalc.model import Note

__all__ = ["adapters", "beside"]


def beside(engine: Engine, context: Context) -> tuple[BudgetPart, ...]:
    """Adapters, and the draft with its cache: it sees every token that the planned model sees."""
    return (*adapters(engine, context), *_draft(engine, context))


def adapters(engine: Engine, context: Context) -> tuple[BudgetPart, ...]:
    """Adapters of ``--lora`` on the fullest rank; none without, and none where nobody counts the layers that they stand beside."""
    lora = context.request.lora
    if lora is None:
        return ()
    found = engine.lora_bytes(context, lora)
    if found is None:
        message = f"--lora is not counted: the layers of {context.model.id} are not known."
        context.notes.append(Note(code="lora-unknown", message=message))
        return ()
    return (ranked("adapters", Section.WEIGHTS, found),)


def _draft(engine: Engine, context: Context) -> tuple[BudgetPart, ...]:
    from hwcalc.quantization.planned import planned_scheme

    request, draft = context.request, context.request.draft
    if draft is None:
        return ()
    scheme, known = planned_scheme(draft, None)
    weights = draft_bytes_rank(draft, tp=request.tp, scheme=scheme, rules=engine.weight_rules()) if known else None
    if weights is None:
        context.notes.append(
            Note(code="draft-unknown", message=f"The weights of the draft {draft.id} are not known, and not counted.")
        )
    own = replace(request, pp=1, ep=1, draft=None, lora=None, dtype=None, weights=None, options={})
    local = replace(context, model=draft, request=own, dtypes=engine.dtypes(draft, own, []), notes=[])
    cache = exact("draft cache", Section.OVERHEAD, engine.needed_bytes(local), f"the cache of {draft.id} by {engine.name}'s rule")
    return (cache,) if weights is None else (ranked("draft weights", Section.WEIGHTS, weights), cache)

"""Memory for what is loaded besides the planned model: LoRA adapters and a draft model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from hwcalc.engines.budget import BudgetPart, Section
from hwcalc.engines.costs import exact, ranked
from hwcalc.engines.noted import Noted
from hwcalc.engines.setup import Parallel
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy


def beside(opened: Occupancy) -> Noted[tuple[BudgetPart, ...]]:
    """The adapters, and the draft with its cache. The draft caches every token that the planned model caches."""
    adapters, draft = _adapters(opened), _draft(opened)
    return Noted((*adapters.value, *draft.value), (*adapters.notes, *draft.notes))


def _adapters(opened: Occupancy) -> Noted[tuple[BudgetPart, ...]]:
    """Adapters of ``--lora`` on the fullest rank. If the layers of the model are not counted, a note says that adapters are missing."""
    model, lora = opened.model, opened.request.lora
    if lora is None:
        return Noted(())
    from hwcalc.engines.lora_weights import lora_bytes_rank

    size = lora_bytes_rank(model, lora, opened.parallel, rules=opened.weight_rules())
    if size is None:
        message = f"--lora is not counted: the layers of {model.id} are not known."
        return Noted((), (Note(code="lora-unknown", message=message),))
    return Noted((ranked("adapters", Section.WEIGHTS, size),))


def _draft(opened: Occupancy) -> Noted[tuple[BudgetPart, ...]]:
    engine, request, draft = opened.engine, opened.request, opened.request.draft
    if draft is None:
        return Noted(())
    from hwcalc.engines.draft_weights import draft_bytes_rank
    from hwcalc.quantization.planned import planned_scheme

    scheme, known = planned_scheme(draft, None)
    rules = opened.weight_rules()
    weights = draft_bytes_rank(draft, request.parallel, scheme=scheme, rules=rules) if known else None
    draft_request = request.changed(
        parallel=Parallel(**{**asdict(request.parallel), "pp": 1, "ep": 1}),
        draft=None,
        lora=None,
        dtype=None,
        weights=None,
        options={},
    )
    opened_draft = engine.unchecked(draft, draft_request)
    cache = exact("draft cache", Section.OVERHEAD, opened_draft.needed_bytes, f"the cache of {draft.id} by {engine.name}'s rule")
    if weights is None:
        message = f"The weights of the draft {draft.id} are not known, and not counted."
        return Noted((cache,), (Note(code="draft-unknown", message=message),))
    return Noted((ranked("draft weights", Section.WEIGHTS, weights), cache))

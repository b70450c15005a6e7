"""Notes on given options that have no effect on a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.encoder import has_cross
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.options import OPTIONS

if TYPE_CHECKING:
    from hwcalc.planner.policy_result import PolicyInfo

_CODES: Final = ("no-gpu", "kv-memory", "no-encoder", "no-policy", "no-blocks")
"""Codes of the notes on options without effect."""
_BY_PROMPT: Final = ("policy", "shared_prefix", "samples", "beams", "gpu", "instance")
"""Options for which it matters how much of a sequence is its prompt: for its memory, or for the time until the first token."""


def without_effect(keywords: Mapping[str, Any], tps: Sequence[int | None] = ()) -> list[Note]:
    """Notes on options about the memory of a GPU that have no effect without a GPU, or beside ``kv_memory``, and on a prompt where
    nothing is dropped, shared or timed.

    ``keywords`` are those of :func:`~hwcalc.planner.context.open_request`; ``None`` counts as not given. With
    ``tps``, several plans differ in ``tp``, and the notes hold for all of them; their order does not matter.
    """
    given = {name for name, value in keywords.items() if value is not None}
    engine = str(keywords.get("engine", "")).partition("@")[0].strip().lower()
    of_budget = [row.spellings[0] for row in OPTIONS if row.of_budget and row.name in given and not _has(engine, row.in_cache_if)]
    notes: list[Note] = []
    if (
        "prompt" in given
        and all(keywords.get(name) in (None, 1) for name in _BY_PROMPT)
        and not _has(engine, "stores_prompts_apart")
    ):
        message = "--prompt: no effect without --policy, --shared-prefix, --samples, --beams or --gpu."
        notes.append(Note(code="no-policy", message=message))
    if "kv_memory" in given and of_budget:
        message = f"{', '.join(of_budget)}: no effect beside --kv-memory, which gives the cache its bytes directly."
        notes.append(Note(code="kv-memory", message=message))
        of_budget = []
    if given & {"gpu", "instance"}:
        return notes
    gpus, others = keywords.get("gpus"), prod(keywords.get(name) or 1 for name in ("pp", "dp"))
    ranks = {others * (tp or 1) for tp in tps or (keywords.get("tp"),)}
    becomes_tp = gpus != 1 and 1 in ranks
    if gpus in ranks and not becomes_tp:
        of_budget.insert(0, "--gpus")
    elif gpus is not None and becomes_tp and "kv_memory" not in given:
        message = f"--gpus {gpus:,} is planned as --tp {gpus:,}; without a GPU there is no verdict. Name one with --gpu."
        notes.append(Note(code="no-gpu", message=message))
    if of_budget:
        notes.append(Note(code="no-gpu", message=f"{', '.join(of_budget)}: no effect without a GPU. Name one with --gpu."))
    return notes


def _has(engine: str, trait: str | None) -> bool:
    """Whether this engine has a trait; what is no engine is another's error."""
    from hwcalc.engines import ENGINES, find_engine, spelled

    return trait is not None and spelled(engine) in ENGINES and bool(getattr(find_engine(engine)[0], trait))


def no_blocks(opened: Occupancy, policy: PolicyInfo) -> tuple[Note, ...]:
    """A note on ``compaction`` where the engine's cache has no blocks that it could free. What it is without being given is said nowhere."""
    from hwcalc.policies.base import REPACK

    asked = opened.request.policy
    if asked is None or asked.compaction == REPACK or policy.blocks is not None:
        return ()
    return (Note(code="no-blocks", message=f"--compaction: no effect, as the cache of {opened.engine.label} has no blocks."),)


def common_notes(plans: Iterable[Iterable[Note]]) -> tuple[Note, ...]:
    """The notes on options that have no effect in any of several plans."""
    per_plan = [[note for note in notes if note.code in _CODES] for notes in plans]
    return tuple(note for note in per_plan[0] if all(note in notes for notes in per_plan)) if per_plan else ()


def no_encoder(models: Iterable[ModelSpec], encoder_seq: int | None) -> tuple[Note, ...]:
    """A note on ``encoder_seq`` if none of the models has cross attention."""
    if encoder_seq is None or any(has_cross(model) for model in models):
        return ()
    return (Note(code="no-encoder", message="No model has cross attention: --encoder-seq has no effect."),)

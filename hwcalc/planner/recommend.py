"""Recommends hardware: for each accelerator or cloud instance the fewest GPUs that hold the planned sequences, smallest first.

The search tries every layout with the rules of the engine (:mod:`hwcalc.planner.solve`). Each listed offer is then planned again, as
``kvplan plan`` would, so that its row shows the verdict of a plan and not of the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines.base import Opened
from hwcalc.engines.pool import Try
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec, Note
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import plan_model
from hwcalc.planner.result import Plan, Verdict
from hwcalc.text import operand

if TYPE_CHECKING:
    from hwcalc.hardware.candidates import Candidate

__all__ = ["DEFAULT_LIMIT", "DEFAULT_MOST", "LARGEST_MOST", "Offer", "Recommendation", "recommend_model"]

DEFAULT_MOST: Final = 8
DEFAULT_LIMIT: Final = 20
LARGEST_MOST: Final = 64


@frozen
class Offer:
    """Hardware that would do, planned. Bytes are those of the fullest GPU; null is unknown.

    ``total_bytes`` is what programs see of all its GPUs together. ``verdict`` is ``tight`` where the estimate's low and high ends
    disagree; ``needed_low_bytes`` and ``needed_high_bytes`` are those ends. ``max_batch`` and ``max_seq`` are the most sequences of the
    planned length and the longest of the planned number. ``notes`` are those that not every offer has.
    """

    gpu: str
    name: str
    vendor: str
    category: str | None
    instance: str | None
    gpus: int
    tp: int
    pp: int
    dp: int
    verdict: Verdict
    total_bytes: int
    usable_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    headroom_bytes: int
    max_batch: int | None
    max_seq: int | None
    decode_tokens_per_s_bound: float | None
    prefill_s_bound: float | None
    bound_by: str | None
    notes: tuple[Note, ...]


@frozen
class Recommendation:
    """What would do, smallest first, and what was left out.

    ``considered`` kinds of hardware: ``refused`` the engine does not run on, ``unknown`` have no known memory, ``too_small`` do not hold
    the sequences with up to ``max_gpus``, ``one_at_a_time`` of those because a laptop or a machine with unified memory is not joined to
    others unless it is named. ``more`` offers are beyond the limit. Where nothing does, ``nearest`` comes closest, and
    ``message`` and ``suggestions`` are its plan's.
    """

    schema_version: str
    kvplan_version: str
    model: str
    revision: str | None
    engine: str
    engine_version: str | None
    seq: int
    batch: int
    kv_dtype: str
    weights: str
    max_gpus: int
    considered: int
    refused: int
    unknown: int
    too_small: int
    one_at_a_time: int
    tight_left_out: int
    offers: tuple[Offer, ...]
    more: int
    nearest: Offer | None
    message: str
    suggestions: tuple[Try, ...]
    notes: tuple[Note, ...]


@frozen
class _Match:
    """A candidate in one layout, before it is planned again."""

    candidate: Candidate
    layout: solve.GpuLayout
    total_bytes: int

    @property
    def rank(self) -> tuple[bool, int, float, str, int]:
        """The sort key: certain matches first, then by least memory, then by most bandwidth."""
        bandwidth = self.candidate.gpu.memory_bandwidth_gbps or 0.0
        return not self.layout.certain, self.total_bytes, -bandwidth * self.layout.gpus, self.candidate.name, self.layout.gpus


def recommend_model(
    model: ModelSpec,
    candidates: Sequence[Candidate],
    *,
    max_gpus: int = DEFAULT_MOST,
    strict: bool = False,
    limit: int = DEFAULT_LIMIT,
    **options: Any,
) -> Recommendation:
    """Search the candidates for hardware that holds the request.

    ``options`` are those of :func:`~hwcalc.planner.context.open_request` without hardware. ``strict`` leaves out tight offers. A
    ``limit`` of 0 lists every offer. Raises a :class:`~hwcalc.errors.KvplanError` subclass if the request is wrong on any hardware.
    """
    if not 1 <= max_gpus <= LARGEST_MOST:
        raise UsageError(f"max-gpus is {max_gpus:,}.", hint=f"Allowed: a whole number from 1 to {LARGEST_MOST}.")
    if limit < 0:
        raise UsageError(f"limit is {limit:,}.", hint="Allowed: a whole number; 0 lists all.")
    opened = open_request(model, **options)
    search = _Search(opened, max_gpus)
    matches = sorted(search.all(candidates), key=lambda match: match.rank)
    _check_known(model, search, len(candidates))
    kept = [match for match in matches if match.layout.certain or not strict]
    plans = _planned(model, kept, limit, options)
    nearest = None
    if not plans:
        near = matches[0] if matches else search.nearest(candidates)
        nearest = None if near is None else (near, _replan(model, near, options, advise=True))
    shown = [plan for _, plan in plans] or ([] if nearest is None else [nearest[1]])
    common = _common(shown)
    first = shown[0].request if shown else None
    return Recommendation(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=model.id,
        revision=model.revision,
        engine=opened.engine.name,
        engine_version=opened.version or None,
        seq=opened.tokens,
        batch=opened.batch,
        kv_dtype=opened.dtypes.kv if first is None else first.kv_dtype,
        weights=opened.request.weights or "as published",
        max_gpus=max_gpus,
        considered=len(candidates),
        refused=search.refused,
        unknown=search.unknown,
        too_small=search.too_small,
        one_at_a_time=search.alone,
        tight_left_out=len(matches) - len(kept),
        offers=tuple(_offer(match, plan, common) for match, plan in plans),
        more=len(kept) - len(plans),
        nearest=None if nearest is None else _offer(*nearest, common),
        message="" if nearest is None or nearest[1].fit is None else nearest[1].fit.message,
        suggestions=() if nearest is None or nearest[1].fit is None else nearest[1].fit.suggestions,
        notes=(*model.warnings, *common) if common else tuple(dict.fromkeys((*model.notes, *opened.notes))),
    )


class _Search:
    """Tries candidates one by one, and counts those that it rejects."""

    def __init__(self, opened: Opened, most: int) -> None:
        self.opened, self.most = opened, most
        self.refused = self.unknown = self.too_small = self.alone = 0
        self.message = ""
        self._seen: dict[tuple[object, ...], list[solve.GpuLayout]] = {}

    def all(self, candidates: Iterable[Candidate]) -> Iterator[_Match]:
        """The matches: the fewest GPUs that hold the sequences for certain, in their best layout, and fewer that hold them tightly."""
        for candidate in candidates:
            opened = self._opened(candidate)
            total = None if opened is None else self._total(opened)
            if opened is None or total is None:
                continue
            layouts = self._layouts(candidate, opened)
            if not layouts:
                self.too_small += 1
                self.alone += candidate.alone
            for layout in layouts:
                yield _Match(candidate=candidate, layout=layout, total_bytes=total * layout.gpus)

    def _opened(self, candidate: Candidate) -> Opened | None:
        try:
            return self.opened.changed(gpu=candidate.gpu)
        except KvplanError as error:
            self.refused += 1
            self.message = self.message or error.message
            return None

    def _total(self, opened: Opened) -> int | None:
        budget = opened.budget
        if budget is None:
            self.unknown += 1
            self.message = next((note.message for note in opened.notes if note.code in _REASONS), self.message)
            return None
        return budget.total_bytes

    def _layouts(self, candidate: Candidate, opened: Opened) -> list[solve.GpuLayout]:
        gpu = candidate.gpu
        key = (gpu.id, gpu.torch_total_mib, gpu.memory_total_mib, gpu.memory_marketing_gb, candidate.count)
        if key not in self._seen:
            self._seen[key] = self._search(opened, candidate)
        return self._seen[key]

    def _search(self, opened: Opened, candidate: Candidate) -> list[solve.GpuLayout]:
        if candidate.count is not None:
            whole = solve.best_layout(opened, candidate.count) if candidate.count <= self.most else None
            return [] if whole is None else [whole]
        out: list[solve.GpuLayout] = []
        for gpus in range(self._at_least(opened), self._most(candidate) + 1):
            layout = solve.best_layout(opened, gpus)
            if layout is not None and (layout.certain or not out):
                out.append(layout)
                if layout.certain:
                    break
        return out

    def _at_least(self, opened: Opened) -> int:
        """A lower bound on the number of GPUs: they must have memory for one copy of the weights and the cache."""
        budget = opened.budget
        if budget is None or budget.requested_bytes <= 0:
            return 1
        weights = sum(part.low for part in budget.parts if part.name == "weights")
        # Take the smaller of the formulas and the engine's rule for one GPU, since several GPUs may round blocks differently.
        cache = min(_formula_bytes(opened), opened.needed_bytes)
        return max(1, -(-(weights + cache) // budget.requested_bytes))

    def _most(self, candidate: Candidate) -> int:
        return 1 if candidate.alone else min(candidate.count or self.most, self.most)

    def nearest(self, candidates: Iterable[Candidate]) -> _Match | None:
        """The candidate and layout that come closest: those that need the smallest multiple of their memory."""
        best: tuple[float, _Match] | None = None
        for candidate in candidates:
            try:
                opened = self.opened.changed(gpu=candidate.gpu)
            except KvplanError:
                continue
            for tp, pp, dp in solve.layouts(opened, self._most(candidate)):
                try:
                    changed = opened.changed(tp=tp, pp=pp, dp=dp)
                    budget = changed.budget
                    if budget is None or budget.requested_bytes <= 0:
                        break
                    needed = budget.requested_bytes - budget.expected + changed.needed_bytes
                except KvplanError:
                    continue
                share = needed / budget.requested_bytes
                if best is None or share < best[0]:
                    layout = solve.GpuLayout(tp=tp, pp=pp, dp=dp, sequences=0, certain=False)
                    best = share, _Match(candidate=candidate, layout=layout, total_bytes=budget.total_bytes * layout.gpus)
        return None if best is None else best[1]


def _formula_bytes(opened: Opened) -> int:
    """Bytes of cache of the planned sequences by the formulas alone."""
    roles, tokens, encoder = opened.dtypes.roles, opened.tokens, opened.encoder_tokens
    groups = opened.model.stack_for("reference").groups
    one = sum(
        group.count * tensor.bytes(roles[tensor.role], tokens, encoder) for group in groups for tensor in group.kind.tensors()
    )
    return opened.batch * one


_REASONS: Final = ("weights-unknown", "gpu-memory-unknown")


def _check_known(model: ModelSpec, search: _Search, considered: int) -> None:
    """Raise an error if the engine refuses every candidate, or if the memory of all others is unknown."""
    if search.refused == considered:
        raise UnsupportedError(
            f"{search.opened.engine.name} runs {model.id} on none of the {considered:,} candidates: {search.message}",
            hint="Choose others, or another --engine. See: kvplan gpus",
        )
    if search.refused + search.unknown == considered:
        hint = (
            "Give a weight format: --weights bf16"
            if model.counted is not None
            else f"Plan one accelerator with a budget: kvplan --gpu l4 --kv-memory 8GiB {operand(model.address)}"
        )
        raise UnsupportedError(search.message or f"The memory that {model.id} takes is not known.", hint=hint)


def _planned(model: ModelSpec, kept: Sequence[_Match], limit: int, options: dict[str, Any]) -> list[tuple[_Match, Plan]]:
    """Plan the first matches again, and drop those that do not fit by their plan."""
    out: list[tuple[_Match, Plan]] = []
    for match in kept:
        if limit and len(out) == limit:
            break
        plan = _replan(model, match, options)
        if plan.fit is not None and plan.fit.fits:
            out.append((match, plan))
    return out


def _replan(model: ModelSpec, match: _Match, options: dict[str, Any], *, advise: bool = False) -> Plan:
    layout, candidate = match.layout, match.candidate
    hardware = {"gpu": candidate.name} if candidate.instance is None else {"instance": candidate.instance, "gpus": layout.gpus}
    return plan_model(model, advise=advise, **options, **hardware, tp=layout.tp, pp=layout.pp, dp=layout.dp)


def _common(plans: Sequence[Plan]) -> tuple[Note, ...]:
    """The notes that all plans share."""
    if not plans:
        return ()
    shared = set.intersection(*({(note.code, note.message) for note in plan.notes} for plan in plans))
    return tuple(note for note in plans[0].notes if (note.code, note.message) in shared)


def _offer(match: _Match, plan: Plan, common: Sequence[Note]) -> Offer:
    fit, speed, gpu = plan.fit, plan.speed, match.candidate.gpu
    assert fit is not None
    return Offer(
        gpu=match.candidate.name if match.candidate.instance is None else gpu.id,
        name=gpu.name,
        vendor=gpu.vendor,
        category=gpu.category,
        instance=match.candidate.instance,
        gpus=match.layout.gpus,
        tp=match.layout.tp,
        pp=match.layout.pp,
        dp=match.layout.dp,
        verdict=fit.verdict,
        total_bytes=match.total_bytes,
        usable_bytes=fit.usable_bytes,
        needed_bytes=fit.needed_bytes,
        needed_low_bytes=fit.needed_low_bytes,
        needed_high_bytes=fit.needed_high_bytes,
        headroom_bytes=fit.headroom_bytes,
        max_batch=fit.max_batch,
        max_seq=fit.max_seq,
        decode_tokens_per_s_bound=None if speed is None else speed.decode_tokens_per_s_bound,
        prefill_s_bound=None if speed is None else speed.prefill_s_bound,
        bound_by=None if speed is None else speed.bound_by,
        notes=tuple(note for note in plan.notes if note not in common),
    )

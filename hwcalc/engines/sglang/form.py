"""The memory of a GPU under SGLang in the normal form: pools of tokens, of windows and of requests, all made of one budget.

Nothing beside the pools follows from length and batch. What sequences need is the least budget whose pools hold them, which is no sum of
terms: :class:`PoolCurve` finds it by the rules of the pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hwcalc.engines.forms import Curve, MemoryForm, Pools, Term
from hwcalc.engines.general_form import form_with
from hwcalc.engines.request import is_plain
from hwcalc.engines.sglang.held import page_rows
from hwcalc.engines.sglang.layout import SWA, stage_spans
from hwcalc.engines.sglang.opened import SglangOpened
from hwcalc.engines.sglang.room import Demand, Room
from hwcalc.formulas import CompressedAttention, LayerKind, LayerNumbers
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.hybrid import Group
from hwcalc.formulas.stairs import Stair

__all__ = ["PoolCurve", "plan_curve", "plan_form"]


class PoolCurve(Curve):
    """The cache: the smallest pools that hold the sequences, on as many ``ranks`` as all ``dp`` replicas have.

    ``pages`` are those of a sequence in the pool of tokens and in that of windows. The terms are what the sequences themselves take.
    """

    room: Room
    pages: tuple[Stair, Stair]
    dp: int
    ranks: int

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on the fullest GPU, for so many sequences of a replica."""
        # It is a search, and one is asked for the same arrays several times in a row.
        known: tuple[int, int, int] | None = vars(self).get("_known")
        if known is None or known[0] is not tokens or known[1] is not sequences:
            known = vars(self)["_known"] = tokens, sequences, self._search(tokens, sequences)
        return known[2]

    def _search(self, tokens: int, sequences: int) -> int:
        page = self.room.settings.page_size
        whole, windows = (sequences * page * pages.at(tokens) for pages in self.pages)
        return self.room.least(Demand(sequences, whole, windows), Curve.needed_bytes(self, tokens, sequences))

    def total_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on all GPUs, for all sequences: those of the pools, or of the sequences where no pools hold them."""
        needed = self.needed_bytes(tokens, sequences if self.dp == 1 else -(-sequences // self.dp))
        total: int = larger(self.ranks * needed, Curve.total_bytes(self, tokens, sequences))
        return total


def plan_form(opened: SglangOpened) -> MemoryForm | None:
    """The form of the family; ``None`` where the sequences are unlike, or the budget is unknown."""
    return form_with(opened, pools=_pools(opened.room, opened.pages))


def plan_curve(opened: SglangOpened) -> PoolCurve | None:
    """The cache of the family; ``None`` where the sequences are of unlike lengths, or have something in common."""
    request, own = opened.request, opened.settings
    if not is_plain(request):
        return None
    stack = opened.plain_stack
    stages = (stack.groups,) if own.pp == 1 else map(stack.groups_of, stage_spans(len(stack), own.pp))
    return PoolCurve(
        gpus=tuple(dict.fromkeys(_terms(opened, groups) for groups in stages)),
        total=_terms(opened, stack.groups, own.tp),
        room=opened.room,
        pages=opened.pages,
        dp=request.parallel.dp,
        ranks=own.pp * own.tp * request.parallel.dp,
    )


def _terms(opened: SglangOpened, groups: Iterable[Group], ranks: int = 1) -> tuple[Term, ...]:
    """What one sequence has in the pools, on so many tensor-parallel ranks together, by kinds of layers."""
    return tuple(
        Term(
            kind=group.kind.name,
            layers=group.layers,
            count=group.count,
            unit_bytes=ranks * size,
            stairs=((stair,),),
            rule=rule,
            unit_tokens=stair.per,
        )
        for group in groups
        for rule, stair, size in _units(opened, group.kind)
        if size
    )


def _units(opened: SglangOpened, kind: LayerKind) -> Iterator[tuple[str, Stair, int]]:
    """The pages of a sequence in one layer and its slots for states, in words and numbers, and the bytes of one page or of all slots."""
    if opened.compressed is not None:
        assert isinstance(kind, CompressedAttention)
        for row in page_rows(kind, opened.compressed):
            yield "pages", opened.pages[row.windows], row.bytes
        return
    layout = opened.layout
    rows = sum(row.bytes for row in layout.rows[kind])
    yield "pages", opened.pages[layout.pools[kind] == SWA], opened.settings.page_size * rows
    yield "slots", Stair(most=1), opened.slots * sum(layout.state_bytes.get(kind, ()))


def _pools(room: Room, pages: tuple[Stair, Stair]) -> Pools:
    """The pools of a replica: places for requests, for their tokens, and for their windows."""
    page = room.settings.page_size
    asked = [("requests", Stair(most=1), 1)]
    if room.keeps_tokens:
        asked.append(("tokens", pages[0], page))
    if room.has_windows:
        asked.append(("windows", pages[1], page))

    def capacities(budget_bytes: int) -> tuple[int, ...]:
        sizes = room.sizes(budget_bytes)
        of = {"requests": sizes.running, "tokens": sizes.tokens, "windows": sizes.swa_tokens or 0}
        return tuple(of[name] if sizes.error is None else 0 for name, *_ in asked)

    def demand(name: str, stair: Stair, places: int) -> tuple[Term]:
        return (Term(kind=name, layers=LayerNumbers(), count=1, unit_bytes=places, stairs=((stair,),), rule=name),)

    return Pools(demands=tuple(demand(*one) for one in asked), capacities=capacities)

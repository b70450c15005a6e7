"""The cache of SGLang for sequences that are all alike, at every length and for every number of them.

Only the pools depend on length and batch. What sequences need is the least budget whose pools hold them, which is no sum of
terms: :class:`PoolCurve` finds it by the rules of the pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hwcalc.engines.forms import Curve, Term
from hwcalc.engines.sglang.layout import SWA, stage_spans
from hwcalc.engines.sglang.tensors import page_rows
from hwcalc.formulas import CompressedAttention, LayerKind
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.stairs import Stair

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangDeployment
    from hwcalc.formulas.hybrid import Group


class PoolCurve(Curve):
    """The cache: the smallest pools that hold the sequences, on as many ``ranks`` as all ``dp`` replicas have.

    The terms are what the sequences themselves take.
    """

    deployment: SglangDeployment
    dp: int
    ranks: int

    def needed_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes of the pools on the fullest GPU, for ``sequences`` sequences of a replica with ``tokens`` tokens each."""
        # A sweep asks for the bytes of one GPU and then of all with the same arrays; a search takes most of its time.
        known: tuple[int, int, int] | None = vars(self).get("_known")
        if known is None or known[0] is not tokens or known[1] is not sequences:
            demand, own_bytes = self.deployment.demand(tokens, sequences), Curve.needed_bytes(self, tokens, sequences)
            known = vars(self)["_known"] = tokens, sequences, self.deployment.pool_rules.least(demand, own_bytes)
        return known[2]

    def total_bytes(self, tokens: int, sequences: int) -> int:
        """Bytes on all GPUs, for all sequences: those of the pools, or of the sequences where no pools hold them."""
        needed = self.needed_bytes(tokens, sequences if self.dp == 1 else -(-sequences // self.dp))
        total: int = larger(self.ranks * needed, Curve.total_bytes(self, tokens, sequences))
        return total


def pool_curve(deployment: SglangDeployment) -> PoolCurve:
    """The cache of a deployment."""
    stack, settings, dp = deployment.plain_stack, deployment.settings, deployment.setup.parallel.dp
    stages = (stack.groups,) if settings.pp == 1 else map(stack.groups_of, stage_spans(len(stack), settings.pp))
    return PoolCurve(
        gpus=tuple(dict.fromkeys(_terms(deployment, groups) for groups in stages)),
        total=_terms(deployment, stack.groups, settings.tp),
        deployment=deployment,
        dp=dp,
        ranks=settings.pp * settings.tp * dp,
    )


def _terms(deployment: SglangDeployment, groups: Iterable[Group], ranks: int = 1) -> tuple[Term, ...]:
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
        for rule, stair, size in _units(deployment, group.kind)
        if size
    )


def _units(deployment: SglangDeployment, kind: LayerKind) -> Iterator[tuple[str, Stair, int]]:
    """The pages of a sequence in one layer and its slots for states, in words and numbers, and the bytes of one page or of all slots."""
    pages = deployment.pages
    if deployment.compressed is not None:
        assert isinstance(kind, CompressedAttention)
        for row in page_rows(kind, deployment.compressed):
            yield "pages", pages[row.windows], row.bytes
        return
    layout = deployment.layout
    rows = sum(row.bytes for row in layout.rows[kind])
    yield "pages", pages[layout.pools[kind] == SWA], deployment.settings.page_size * rows
    yield "slots", Stair(most=1), deployment.slots * sum(layout.state_bytes.get(kind, ()))

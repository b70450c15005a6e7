"""What sequences take of the pools: the pages and slots of each layer, as terms, and the bytes of the smallest pools that hold them.

The smallest pools are those of the least budget that holds the sequences, which is no sum of terms: the rules of the pools are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.forms import Curve, Term
from hwcalc.engines.pool import ITEM_BYTES, Allocation
from hwcalc.engines.sglang.layout import SWA, stage_spans
from hwcalc.formulas import CompressedAttention, LayerKind, Role
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.stairs import Stair

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout
    from hwcalc.engines.sglang.engine import SglangDeployment
    from hwcalc.formulas.hybrid import Group

_RATIOS: Final = (4, 128)


class PageRow(NamedTuple):
    """What a layer of DeepSeek-V4 takes of a page of one of its pools, with its share of the padding."""

    name: str
    role: Role
    bytes: int
    windows: bool


def page_rows(kind: CompressedAttention, layout: CompressedLayout) -> Iterator[PageRow]:
    """The rows of a layer of DeepSeek-V4; its states belong to no layer."""

    def row(name: str, role: Role, size: float, ratio: int = 1) -> PageRow:
        return PageRow(name, role, round(layout.page_size // ratio * size), windows=ratio == 1)

    yield row("window_latent", Role.LATENT, layout.row_bytes())
    ratio = kind.compress_ratio
    if ratio in _RATIOS:
        yield row("compressed_latent", Role.LATENT, layout.row_bytes(ratio), ratio)
    if kind.index_head_dim is not None and ratio is not None:
        yield row("indexer_keys", Role.INDEX, layout.index_bytes, ratio)


def buffer_of(name: str, layer: int, dtype: str, rows: int, size: int) -> Allocation:
    """A buffer of so many rows of ``size`` bytes; in bytes where these are no whole numbers of its dtype."""
    item = ITEM_BYTES.get(dtype)
    if item is None or size % item:
        dtype, item = "uint8", 1
    return Allocation(name=name, layer=layer, dtype=dtype, shape=(rows, size // item), bytes=rows * size, blocks=rows)


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
    """The bytes of one sequence in the pools, as terms by kinds of layers, on ``ranks`` tensor-parallel ranks together."""
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

"""What sequences have in SGLang's pools, layer by layer, at every length and number of them; and the buffers that a rank allocates.

A buffer is one row of one layer, in pages, of which it has one more than the pool's tokens take, and one slot more. What sequences need is
the least budget whose pools hold them, which is no sum of terms: :class:`PoolCurve` asks the rules of the pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.forms import Curve, Term
from hwcalc.engines.pool import ITEM_BYTES, Allocation
from hwcalc.engines.sglang.layout import SWA, stage_spans
from hwcalc.engines.stored import OwnRule, StoredTensor, beside_layers, bytes_of
from hwcalc.formulas import CompressedAttention, LayerKind, Role
from hwcalc.formulas.arithmetic import larger
from hwcalc.formulas.stairs import Stair

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout
    from hwcalc.engines.sglang.deployment import SglangDeployment, SglangOccupancy
    from hwcalc.formulas.hybrid import Group

_FLOAT8: Final = "fp8_e4m3"
_RATIOS: Final = (4, 128)


def layer_tensors(kind: LayerKind, occupancy: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """The rows of all sequences in one layer of this kind, and both states in every slot of a request, on all tensor-parallel ranks."""
    deployment, settings, held = occupancy.deployment, occupancy.settings, occupancy.held
    tp, page = settings.tp, settings.page_size
    ranks = f" x {tp} ranks" if tp > 1 else ""
    if deployment.compressed is not None:
        assert isinstance(kind, CompressedAttention)
        return tuple(
            _paged(row, (held.window_places if row.windows else held.places) // page, page, tp, ranks)
            for row in page_rows(kind, deployment.compressed)
        )
    sequences = f"{occupancy.batch:,} sequences x " if occupancy.batch > 1 else ""
    layout, one, tensors = deployment.layout, deployment.demand(occupancy.tokens, 1), list[StoredTensor]()
    windows = layout.pools[kind] == SWA
    places, total = (one.window_places, held.window_places) if windows else (one.places, held.places)
    each = f"{total:,} tokens in pages of {page:,}" if occupancy.together.unlike else f"{sequences}{places:,} tokens"
    for row in layout.rows[kind]:
        tensors.append(
            StoredTensor(
                name=row.name,
                role=row.role,
                axes=("numbers of a token on a rank",),
                shape=(row.elements,),
                dtype=row.dtype,
                positions=places,
                span=OwnRule(f"{places:,} tokens", places),
                bytes=total * row.bytes * tp,
                rule=f"{each} x {row.bytes:,} B{ranks}",
            )
        )
    names = (("conv_state", Role.CONV, "bf16"), ("recurrent_state", Role.STATE, occupancy.dtypes.state))
    slots = deployment.slots
    for (name, role, dtype), size in zip(names, layout.state_bytes.get(kind, (0, 0)), strict=True):
        if size:
            tensors.append(
                StoredTensor(
                    name=name,
                    role=role,
                    axes=("bytes of a slot on a rank",),
                    shape=(size,),
                    dtype=dtype,
                    positions=slots,
                    span=OwnRule(f"{slots:,} slots", slots),
                    bytes=occupancy.batch * slots * size * tp,
                    rule=f"{sequences}{slots:,} slots x {size:,} B{ranks}",
                    why=f"state x {slots:,} slots" if slots > 1 else None,
                )
            )
    return tuple(tensors)


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


def _paged(row: PageRow, pages: int, page: int, tp: int, ranks: str) -> StoredTensor:
    return StoredTensor(
        name=row.name,
        role=row.role,
        axes=("bytes of a page",),
        shape=(row.bytes,),
        dtype=_FLOAT8,
        positions=pages,
        span=OwnRule(f"{pages:,} pages of {page:,} tokens", pages),
        bytes=pages * row.bytes * tp,
        rule=f"{pages:,} pages of {page:,} tokens x {row.bytes:,} B{ranks}",
    )


def extras(occupancy: SglangOccupancy) -> tuple[StoredTensor, ...]:
    """The rest of the smallest pools that hold the sequences: one pool is full before the other ones are, and each has a share."""
    ranks = occupancy.settings.tp * occupancy.setup.parallel.dp
    stored = sum(group.count * bytes_of(occupancy.kind_tensors[group.kind]) for group in occupancy.stack.groups)
    rest = occupancy.needed_bytes * occupancy.settings.pp * ranks - stored
    states, requests, deployment = 0, 0, occupancy.deployment
    if deployment.compressed is not None:
        from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

        # The compressors of 128 tokens. Where no pools hold the sequences there are none.
        rules, stages = deployment.pool_rules, deployment.compressed.stages
        assert isinstance(rules, CompressedPools)
        counts = [rules.requests_with_states(place, occupancy.needed_bytes) for place in range(len(stages))]
        states, requests = min(ranks * sum(map(rules.states_bytes, stages, counts)), max(0, rest)), max(counts)
    ratio, unfilled = deployment.settings.swa_ratio, "states have a fixed share of the memory"
    if deployment.window is not None:
        unfilled = f"window pool for {'all running requests' if ratio is None else f'{ratio:g} of the tokens'}"
    extras = (
        ("compressor_states", states, f"compressors of {requests:,} requests", f"compressors for {requests:,} requests"),
        ("unfilled_pools", rest - states, "pools have fixed shares of the memory, and one is full before the others", unfilled),
    )
    return tuple(beside_layers(name, size, f"{size:,} B: {rule}", why) for name, size, rule, why in extras if size > 0)


def allocations(occupancy: SglangOccupancy, stage: int) -> tuple[Allocation, ...]:
    """The buffers of a rank of pipeline stage ``stage``; none is empty."""
    deployment, hardware, page = occupancy.deployment, occupancy.setup.hardware, occupancy.settings.page_size
    size = hardware.kv_memory
    if size is None and hardware.gpu is not None and occupancy.budget is not None:
        size = max(0, occupancy.budget.expected)
    # Without a budget, the smallest pools that hold the planned sequences.
    sizes = occupancy.sizes(occupancy.needed_bytes if size is None else size)
    if deployment.compressed is not None:
        from hwcalc.engines.sglang.deepseek_v4 import CompressedPools

        # The pools of DeepSeek-V4, each of all layers of the stage together.
        rules, compressed = deployment.pool_rules, deployment.compressed
        assert isinstance(rules, CompressedPools)
        kept = compressed.stages[stage]
        pages, swa, states = (
            sizes.tokens // page + 1,
            (sizes.swa_tokens or 0) // page + 1,
            rules.states_bytes(kept, sizes.running),
        )
        buffers = (
            _buffer("windows", -1, "uint8", swa, round(page * compressed.swa_bytes(kept))),
            _buffer("compressed", -1, "uint8", pages, round(page * compressed.compressed_bytes(kept))),
            Allocation(name="compressor_states", layer=-1, dtype="uint8", shape=(states,), bytes=states),
        )
        return tuple(buffer for buffer in buffers if buffer.bytes)
    layout, layers = deployment.layout, occupancy.plain_stack.layers
    out: list[Allocation] = []
    for number in stage_spans(len(layers), occupancy.settings.pp)[stage]:
        for kind in layers[number]:
            places = (sizes.swa_tokens or 0) if layout.pools[kind] == SWA else sizes.tokens
            name = f"layers.{number}."
            out += [
                _buffer(name + row.name, number, row.dtype, places // page + 1, page * row.bytes) for row in layout.rows[kind]
            ]
            conv, state = layout.state_bytes.get(kind, (0, 0))
            slots = (sizes.slots or 0) + 1
            out.append(_buffer(name + "conv_state", number, "bf16", slots, conv))
            out.append(_buffer(name + "recurrent_state", number, occupancy.dtypes.state, slots, state))
    return tuple(buffer for buffer in out if buffer.bytes)


def _buffer(name: str, layer: int, dtype: str, rows: int, size: int) -> Allocation:
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

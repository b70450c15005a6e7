"""The layers of LMDeploy that share a block table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.pool import PoolGroup
from hwcalc.engines.steps import step
from hwcalc.formulas import GatedDeltaNet, LayerNumbers, NoCache, SparseIndexer

if TYPE_CHECKING:
    from hwcalc.engines.lmdeploy.deployment import LmdeployOccupancy


def group_infos(opened: LmdeployOccupancy) -> tuple[PoolGroup, ...]:
    """The layers with keys and values, which share one block table."""
    settings, layout = opened.settings, opened.layout
    groups = [group for group in opened.stack.groups if not isinstance(group.kind, (GatedDeltaNet, SparseIndexer, NoCache))]
    numbers = sorted({number for group in groups for number in group.layers})
    counted = step(
        "blocks_per_request",
        "ceil(tokens / block_size)" if not settings.window else "blocks",
        opened.blocks,
        unit="blocks",
        **({"tokens": opened.tokens, "block_size": settings.block_size} if not settings.window else {"blocks": opened.blocks}),
    )
    return (
        PoolGroup(
            kind="+".join(dict.fromkeys(group.kind.name for group in groups)),
            count=layout.layers,
            layers=LayerNumbers(numbers),
            block_size=settings.block_size,
            page_bytes=layout.layer_bytes,
            block_bytes=layout.block_bytes,
            blocks_per_request=opened.blocks,
            steps=(counted,),
        ),
    )

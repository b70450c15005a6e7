"""The memory of a GPU under LMDeploy in the normal form: blocks of one pool, behind slots of states that are there whatever is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.engines.forms import Curve, MemoryForm, Pools, Term
from hwcalc.engines.general_form import form_with
from hwcalc.engines.lmdeploy.layout import kept_by
from hwcalc.engines.lmdeploy.opened import LmdeployOpened
from hwcalc.engines.lmdeploy.pool import most_tokens, pool_blocks, refusal
from hwcalc.engines.request import is_plain
from hwcalc.formulas import GatedDeltaNet, LayerNumbers
from hwcalc.formulas.arithmetic import mapped

__all__ = ["SessionPools", "plan_curve", "plan_form"]

_NO_LAYERS: Final = LayerNumbers()


class SessionPools(Pools):
    """A pool of blocks, and the tokens of the ``longest`` session that it is good for, by the bytes that are left for the cache."""

    longest: Callable[[int], int]

    def hold(self, budget_bytes: int, tokens: int, sequences: int) -> bool:
        """Whether so many sequences of a replica fit, and each is a session."""
        held: bool = tokens <= mapped(self.longest, budget_bytes)
        return held & Pools.hold(self, budget_bytes, tokens, sequences)


def plan_form(opened: LmdeployOpened) -> MemoryForm | None:
    """The form of the family; ``None`` where the sequences are unlike, or the budget is unknown."""
    return form_with(opened, pools=_pools(opened))


def plan_curve(opened: LmdeployOpened) -> Curve | None:
    """The cache of the family; ``None`` where the sequences are of unlike lengths, or have something in common."""
    request, layout = opened.request, opened.layout
    if not is_plain(request):
        return None
    tp, states = request.parallel.tp, opened.state_bytes
    kept = [group for group in opened.stack.groups if not isinstance(group.kind, GatedDeltaNet)]
    sizes = ((group, sum(piece.bytes for piece in kept_by(layout, group.kind))) for group in kept)
    return Curve(
        gpus=((_blocks(opened, "blocks", layout.block_bytes),),),
        total=tuple(_blocks(opened, group.kind.name, tp * size, group.count, group.layers) for group, size in sizes if size),
        once_bytes=states,
        total_once_bytes=tp * request.parallel.dp * states,
    )


def _blocks(opened: LmdeployOpened, kind: str, size: int, count: int = 1, layers: LayerNumbers = _NO_LAYERS) -> Term:
    """The blocks of a sequence, of so many bytes in each layer."""
    return Term(
        kind=kind,
        layers=layers,
        count=count,
        unit_bytes=size,
        stairs=((opened.block_stair,),),
        rule="blocks",
        unit_tokens=opened.settings.block_size,
    )


def _pools(opened: LmdeployOpened) -> Pools:
    """The blocks that requests may have of a budget; none where LMDeploy does not start."""
    settings, demands = opened.settings, ((_blocks(opened, "blocks", 1),),)

    def capacities(budget_bytes: int) -> tuple[int]:
        blocks = pool_blocks(opened, budget_bytes)
        refused = budget_bytes < 0 or refusal(opened, budget_bytes, blocks) is not None
        return (0 if refused else blocks - settings.reserved_blocks,)

    def longest(budget_bytes: int) -> int:
        return most_tokens(opened, pool_blocks(opened, budget_bytes))

    # With a window a session has no end.
    if settings.window:
        return Pools(demands=demands, capacities=capacities)
    return SessionPools(demands=demands, capacities=capacities, longest=longest)

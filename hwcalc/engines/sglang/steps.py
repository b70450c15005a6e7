"""How the figures of SGLang's pools come about, in steps."""

from __future__ import annotations

from hwcalc.engines.sglang.opened import SglangOpened
from hwcalc.engines.sglang.sizes import Sizes
from hwcalc.engines.steps import Step

__all__ = ["pool_steps"]


def pool_steps(opened: SglangOpened, sizes: Sizes, budget: int, held: int) -> tuple[Step, ...]:
    """The slots, the tokens, the requests that run at once, and those of the planned length."""
    return ()

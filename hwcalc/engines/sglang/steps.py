"""How the figures of SGLang's pools come about, in steps."""

from __future__ import annotations

from hwcalc.engines.sglang.opened import SglangOpened
from hwcalc.engines.sglang.sizes import Sizes
from hwcalc.engines.steps import Step, step

__all__ = ["pool_steps"]


def pool_steps(opened: SglangOpened, sizes: Sizes, budget: int, held: int) -> tuple[Step, ...]:
    """The slots, the tokens, and how many requests of the planned length they hold; nothing where SGLang does not start."""
    if sizes.error is not None or not sizes.tokens or not sizes.cell or opened.own.pp > 1:
        return ()
    own, out = opened.own, []
    plain = opened.compressed is None and own.swa_ratio is not None and own.total_tokens is None
    if sizes.slots is not None:
        out.append(
            step(
                "state_requests",
                "floor(state_slots / slots_per_request)",
                sizes.slots // opened.slots,
                unit="requests",
                state_slots=sizes.slots,
                slots_per_request=opened.slots,
            )
        )
    if plain:
        # A token takes a fraction of a byte where windows have a share; the product is rounded down to whole pages.
        out.append(
            step(
                "tokens",
                "floor(floor(budget_of_tokens / cell_size) / page_size) x page_size",
                sizes.tokens,
                unit="tokens",
                budget_of_tokens=sizes.after_states_bytes,
                cell_size=sizes.cell,
                page_size=own.page_size,
            )
        )
    places = opened.paged(opened.tokens)
    if not opened.together.unlike:
        out.append(
            step(
                "requests_by_tokens",
                "floor(tokens / places_per_request)",
                sizes.tokens // places,
                unit="requests",
                tokens=sizes.tokens,
                places_per_request=places,
            )
        )
    return tuple(out)

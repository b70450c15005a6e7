"""How the figures of SGLang's pools come about, in steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hwcalc.engines.sglang.deepseek_v4 import CompressedLayout, state_rows_bytes
from hwcalc.engines.sglang.memory import fraction_steps
from hwcalc.engines.sglang.sizes import LEAST_REQUESTS, MOST_REQUESTS, Sizes, cell_size, most_running
from hwcalc.engines.steps import Step, step

if TYPE_CHECKING:
    from hwcalc.engines.sglang.deployment import SglangOccupancy


def pool_steps(opened: SglangOccupancy, sizes: Sizes, budget: int, held: int) -> tuple[Step, ...]:
    """The slots, the tokens, and how many requests of the planned length they hold; nothing where SGLang does not start."""
    if sizes.error is not None or not sizes.tokens or not sizes.cell:
        return ()
    room = _states(opened, sizes, budget) if opened.compressed is None else _compressors(opened, opened.compressed, budget, sizes)
    return (*fraction_steps(opened), *room, *_tokens(opened, sizes), *_windows(opened, sizes), *_requests(opened, sizes, held))


def _states(opened: SglangOccupancy, sizes: Sizes, budget: int) -> Iterator[Step]:
    """The slots for states, and what they leave. What drafts copy of states has no step."""
    own, slots, slot = opened.settings, sizes.slots, opened.layout.slot_bytes
    if slots is None:
        return
    if own.mamba_slots is not None:
        yield step(
            "state_slots",
            "floor(max_mamba_cache_size / dp)",
            slots,
            unit="slots",
            max_mamba_cache_size=own.mamba_slots,
            dp=own.dp,
        )
    elif own.radix or own.requests is None:
        if not own.drafts:
            yield step(
                "state_slots",
                "floor((pool_bytes x mamba_full_memory_ratio / (1 + mamba_full_memory_ratio) - slot_bytes) / slot_bytes)",
                slots,
                unit="slots",
                pool_bytes=budget,
                mamba_full_memory_ratio=own.mamba_ratio,
                slot_bytes=slot,
            )
    else:
        yield step("state_slots", "max_running_requests", slots, unit="slots", max_running_requests=slots)
    if not own.drafts:
        yield step(
            "budget_of_tokens",
            "pool_bytes - (state_slots + 1) x slot_bytes",
            sizes.after_states_bytes,
            pool_bytes=budget,
            state_slots=slots,
            slot_bytes=slot,
        )
    yield step(
        "state_requests",
        "floor(state_slots / slots_per_request)",
        slots // opened.slots,
        unit="requests",
        state_slots=slots,
        slots_per_request=opened.slots,
    )


def _compressors(opened: SglangOccupancy, layout: CompressedLayout, budget: int, sizes: Sizes) -> Iterator[Step]:
    """What the compressors of 128 tokens take for all requests, of the stage that has fewest tokens."""
    own = opened.settings
    if own.swa_ratio is None or own.total_tokens is not None:
        return
    requests = most_running(own, int(budget / sizes.cell), None) if own.own_requests is None else own.own_requests
    stages = (stage for stage in layout.stages if layout.token_bytes(stage, own.swa_ratio) == sizes.cell)
    fixed = next(
        (size for stage in stages if budget - (size := state_rows_bytes(layout, stage, requests)) == sizes.after_states_bytes),
        None,
    )
    if fixed is not None:
        yield step(
            "budget_of_tokens",
            "pool_bytes - compressor_states",
            sizes.after_states_bytes,
            pool_bytes=budget,
            compressor_states=fixed,
        )


def _cell(opened: SglangOccupancy, sizes: Sizes) -> Iterator[Step]:
    """The bytes of a token with those of its share of the windows."""
    own = opened.settings
    if opened.compressed is not None or own.swa_ratio is None or own.drafts:
        return
    for stage in opened.layout.stages:
        if stage.swa_layers and stage.full_layers and cell_size(stage, own) == sizes.cell:
            yield step(
                "cell_size",
                "full_token_bytes + swa_full_tokens_ratio x window_token_bytes",
                sizes.cell,
                full_token_bytes=stage.full_bytes // stage.full_layers * stage.full_layers,
                swa_full_tokens_ratio=own.swa_ratio,
                window_token_bytes=stage.swa_bytes,
            )
            return


def _tokens(opened: SglangOccupancy, sizes: Sizes) -> Iterator[Step]:
    own = opened.settings
    if own.total_tokens is not None and own.total_tokens // own.page_size * own.page_size == sizes.tokens:
        yield step(
            "tokens",
            "floor(max_total_tokens / page_size) x page_size",
            sizes.tokens,
            unit="tokens",
            max_total_tokens=own.total_tokens,
            page_size=own.page_size,
        )
    elif own.swa_ratio is not None or sizes.swa_tokens is None:
        yield from _cell(opened, sizes)
        # A token takes a fraction of a byte where windows have a share; the product is rounded down to whole pages.
        yield step(
            "tokens",
            "floor(floor(budget_of_tokens / cell_size) / page_size) x page_size",
            sizes.tokens,
            unit="tokens",
            budget_of_tokens=sizes.after_states_bytes,
            cell_size=sizes.cell,
            page_size=own.page_size,
        )


def _windows(opened: SglangOccupancy, sizes: Sizes) -> Iterator[Step]:
    """The tokens of the pool of windows where it has a share."""
    own, tokens = opened.settings, sizes.swa_tokens
    if not tokens or own.swa_ratio is None or tokens == sizes.tokens:
        return
    yield step(
        "window_tokens",
        "floor(floor(tokens x swa_full_tokens_ratio) / page_size) x page_size",
        tokens,
        unit="tokens",
        tokens=sizes.tokens,
        swa_full_tokens_ratio=own.swa_ratio,
        page_size=own.page_size,
    )


def _requests(opened: SglangOccupancy, sizes: Sizes, held: int) -> Iterator[Step]:
    """``max_running_requests`` of the log, and how many requests of the planned length there are at once."""
    own, slots = opened.settings, sizes.slots
    most = most_running(own, sizes.tokens, None)
    asked = {"max_running_requests": own.own_requests} if own.own_requests is not None else {"context_length": own.context}
    usual = (
        "max_running_requests"
        if asked.keys() == {"max_running_requests"}
        else (f"max(min(floor(tokens / context_length x 512), {MOST_REQUESTS}), {LEAST_REQUESTS})")
    )
    yield step("running_by_tokens", f"min({usual}, floor(tokens / 2))", most, unit="requests", tokens=sizes.tokens, **asked)
    if slots is not None:
        yield step(
            "running",
            "min(running_by_tokens, state_requests)",
            sizes.running,
            unit="requests",
            running_by_tokens=most,
            state_requests=slots // opened.slots,
        )
    if opened.together.unlike:
        return
    by = {"running": sizes.running} if slots is not None else {"running_by_tokens": most}
    for name, tokens, places in (
        ("requests_by_tokens", sizes.tokens, opened.paged(opened.tokens)),
        ("requests_by_windows", sizes.swa_tokens, opened.window_tokens(opened.tokens)),
    ):
        if not tokens or not places:
            continue
        of = "tokens" if name == "requests_by_tokens" else "window_tokens"
        each = "places_per_request" if of == "tokens" else "window_places_per_request"
        by[name] = tokens // places
        yield step(name, f"floor({of} / {each})", tokens // places, unit="requests", **{of: tokens, each: places})
    yield step("at_once", f"min({', '.join(by)})", held, unit="requests", **by)

"""The pools that SGLang makes of a byte budget on each rank, to the token.

Source: SGLang 0.5.23, ``pool_configurator.py`` (``calculate_pool_sizes``) and ``kv_cache_configurator.py``
(``_handle_max_mamba_cache``, ``resolve_max_num_reqs``). The budget of states is computed in floating point of GiB, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hwcalc.engines.sglang.layout import PoolLayout, StageCells
from hwcalc.engines.sglang.settings import SglangSettings
from hwcalc.formulas.arithmetic import either, floored, larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.units import GIB

__all__ = [
    "EVICTION_INTERVAL",
    "LEAST_REQUESTS",
    "LOADED",
    "MOST_REQUESTS",
    "Figures",
    "Sizes",
    "capped_windows",
    "cell_size",
    "checks",
    "most_running",
    "plan_figures",
    "plan_sizes",
    "request_cap",
    "slots_of_budget",
    "slots_per_request",
    "token_stages",
    "window_tokens",
]

EVICTION_INTERVAL: Final = 128
"""Tokens between two clearings of a window (``SGLANG_SWA_EVICTION_INTERVAL``)."""
LEAST_REQUESTS: Final = 2048
MOST_REQUESTS: Final = 4096
LOADED: Final = "Loaded weights leave no GPU memory for the KV cache."
"""The beginning of what SGLang says where nothing is left (``_profile_available_bytes``)."""
_STATE_COPIES: Final = 3
"""Slots for a request with a prefix cache; each of two that may run adds what its copies take."""
_COPIES: Final = {"no_buffer": 0, "extra_buffer": 2, "extra_buffer_lazy": 1}


class Sizes(Record):
    """Pools on one rank: tokens, those of windows, slots for states, and the requests that run at once.

    ``after_states_bytes`` are left for tokens. ``error`` is what SGLang says where it does not start.
    """

    tokens: int
    swa_tokens: int | None
    slots: int | None
    running: int
    after_states_bytes: int
    cell: float
    error: str | None = None


def slots_per_request(settings: SglangSettings) -> int:
    """Slots for states that each running request may need (``_calculate_mamba_ratio``).

    With a prefix cache that copies states while another batch is computed, that is 3 + 2.
    """
    if not settings.radix:
        return 1
    copies = _COPIES[settings.strategy]
    if settings.strategy == "extra_buffer" and not settings.overlap:
        copies = 1
    return _STATE_COPIES + copies


def cell_size(stage: StageCells, settings: SglangSettings) -> float:
    """Bytes of a token of the log's figure on one stage: with those of its share of the windows, and of a draft."""
    if not stage.swa_layers:
        return stage.token_bytes + _draft_bytes(stage, settings)
    each = stage.full_bytes // stage.full_layers if stage.full_layers else 0
    if not stage.full_layers:
        return stage.swa_bytes + settings.draft_layers * (stage.swa_bytes // stage.swa_layers)
    full = each * (stage.full_layers + settings.draft_layers)
    return full if settings.swa_ratio is None else full + settings.swa_ratio * stage.swa_bytes


def _draft_bytes(stage: StageCells, settings: SglangSettings) -> int:
    """A draft has layers like those of the model, and an indexer in each."""
    if not settings.drafts or not stage.full_layers:
        return 0
    kept = int((stage.token_bytes - stage.index_bytes) * settings.draft_layers / stage.full_layers)
    if not stage.index_layers:
        return kept
    return kept + stage.index_bytes // stage.index_layers * settings.draft_layers


def request_cap(settings: SglangSettings, window: int) -> int:
    """Window tokens that the most requests hold at the worst (``compute_swa_request_cap``)."""
    page, drafts = settings.page_size, max(1, settings.draft_tokens)
    # Without overlap drafts take whole pages, with it twice their number.
    taken = 2 * drafts if settings.overlap else -(-drafts // page) * page
    if not settings.drafts:
        taken = page
    each = window + EVICTION_INTERVAL * drafts + page + taken
    chunks = (2 if settings.overlap else 1) * settings.chunk
    return each * (settings.own_requests or 1) + chunks + page


def slots_of_budget(layout: PoolLayout, settings: SglangSettings, budget: int) -> tuple[int, int]:
    """Slots for states, and the bytes that they leave (``_handle_max_mamba_cache``)."""
    left, slot = budget / GIB, layout.slot_bytes
    drafted, requests = settings.draft_tokens, settings.own_requests or 1
    each = slots_per_request(settings)
    if settings.mamba_slots is not None:
        slots = settings.mamba_slots // settings.dp
        if settings.drafts:
            left = left - slot * (min(requests, slots // each) + 1) * drafted / GIB
    elif not settings.radix and settings.requests is not None:
        slots = requests
        if settings.drafts:
            left = left - slot * (slots + 1) * drafted / GIB
    else:
        share = left * settings.mamba_ratio / (1 + settings.mamba_ratio) * GIB
        if settings.drafts:
            slots = floored((share - slot * (1 + drafted)) // (slot * (1 + drafted / each)))
            left = left - slot * (smaller(slots // each, requests) + 1) * drafted / GIB
        else:
            slots = floored((share - slot) // slot)
    left = left - (slots + 1) * slot / GIB
    return slots, floored(left * GIB)


def most_running(settings: SglangSettings, tokens: int, slots: int | None) -> int:
    """Requests that run at once (``resolve_max_num_reqs``)."""
    usual = settings.own_requests
    if usual is None:
        usual = larger(floored(smaller(tokens / settings.context * 512, MOST_REQUESTS)), LEAST_REQUESTS)
    most = smaller(tokens // 2, usual)
    running: int = most if slots is None else smaller(slots // slots_per_request(settings), most)
    return running


class Figures(NamedTuple):
    """The pools of a budget before anything is refused; of an array of budgets, arrays.

    ``fullest`` is the place of the stage whose tokens count, among :func:`token_stages`.
    """

    tokens: int
    swa_tokens: int | None
    slots: int | None
    running: int
    after_states_bytes: int
    fullest: int


def plan_figures(layout: PoolLayout, settings: SglangSettings, budget: int) -> Figures:
    """The pools of ``budget`` bytes on each rank; the stage with the fewest tokens counts."""
    slots, left = (None, budget) if not layout.has_states else slots_of_budget(layout, settings, budget)
    first, *others = token_stages(layout)
    (tokens, swa), fullest = _stage_tokens(layout, first, settings, left), 0
    for place, stage in enumerate(others, 1):
        own, own_swa = _stage_tokens(layout, stage, settings, left)
        fewer = own < tokens
        tokens, fullest = either(fewer, own, tokens), either(fewer, place, fullest)
        swa = None if swa is None else either(fewer, own_swa, swa)
    limit = settings.total_tokens
    if limit is not None:
        most, most_swa = _limited(layout, settings, limit, swa)
        above = tokens > limit
        tokens, swa = either(above, most, tokens), None if swa is None else either(above, most_swa, swa)
    return Figures(
        tokens=tokens,
        swa_tokens=swa,
        slots=slots,
        running=most_running(settings, tokens, slots),
        after_states_bytes=left,
        fullest=fullest,
    )


def checks(layout: PoolLayout, settings: SglangSettings, found: Figures) -> Iterator[tuple[bool, str]]:
    """What SGLang checks of its pools before it starts, in this order, and what it says if that does not hold."""
    if found.slots is not None:
        yield found.slots > 0, "Not enough GPU memory for hybrid (mamba/linear-attention) state cache."
    yield found.after_states_bytes > 0, LOADED
    yield found.tokens > 0, "Not enough memory. Please try to increase --mem-fraction-static."
    if found.swa_tokens is not None and layout.window is not None and settings.swa_ratio is not None:
        yield found.swa_tokens > layout.window + settings.page_size, "SWA pool ({swa} tokens) cannot hold even one request."
    yield found.running > 0, "Hybrid (mamba/linear-attention) state cache is too small to serve any requests."


def plan_sizes(layout: PoolLayout, settings: SglangSettings, budget: int) -> Sizes:
    """The pools of ``budget`` bytes on each rank, or what SGLang says where it makes none."""
    found = plan_figures(layout, settings, budget)
    error = next((words for passed, words in checks(layout, settings, found) if not passed), None)
    slots, left = found.slots, found.after_states_bytes
    lacking = left <= 0 or (slots is not None and slots <= 0)
    empty = lacking or found.tokens <= 0
    return Sizes(
        tokens=0 if empty else found.tokens,
        swa_tokens=None if empty else found.swa_tokens,
        slots=slots,
        running=0 if empty else found.running,
        after_states_bytes=left,
        cell=0 if lacking else cell_size(token_stages(layout)[found.fullest], settings),
        error=None if error is None else error.format(swa=found.swa_tokens),
    )


def token_stages(layout: PoolLayout) -> tuple[StageCells, ...]:
    """The stages that limit the tokens: one without attention holds as many as the others."""
    return tuple(stage for stage in layout.stages if stage.token_bytes or stage.swa_layers) or layout.stages[:1]


def _stage_tokens(layout: PoolLayout, stage: StageCells, settings: SglangSettings, budget: int) -> tuple[int, int | None]:
    """Tokens of one stage, and window tokens."""
    page, cell = settings.page_size, cell_size(stage, settings)
    if not stage.swa_layers:
        tokens = budget // int(cell) if cell else settings.total_tokens or settings.context
    elif not stage.full_layers or settings.swa_ratio is not None:
        tokens = floored(budget // cell)
    else:
        tokens = floored((budget - capped_windows(layout, settings) * stage.swa_bytes) // cell)
    tokens = tokens // page * page
    return tokens, window_tokens(layout, stage, settings, tokens)


def capped_windows(layout: PoolLayout, settings: SglangSettings) -> int:
    """Window tokens where they follow from the number of requests."""
    assert layout.window is not None
    return -(-request_cap(settings, layout.window) // settings.page_size) * settings.page_size


def window_tokens(layout: PoolLayout, stage: StageCells, settings: SglangSettings, tokens: int) -> int | None:
    """Window tokens beside so many tokens of one stage; ``None`` if no windows have a pool."""
    if not stage.swa_layers:
        return 0 if layout.window is not None else None
    if not stage.full_layers:
        return tokens
    if settings.swa_ratio is None:
        return capped_windows(layout, settings)
    places: int = floored(tokens * settings.swa_ratio) // settings.page_size * settings.page_size
    return places


def _limited(layout: PoolLayout, settings: SglangSettings, limit: int, swa: int | None) -> tuple[int, int | None]:
    """Tokens and window tokens where the user allows no more than ``limit`` tokens."""
    page = settings.page_size
    tokens = limit // page * page
    if swa is None or not any(stage.swa_layers for stage in layout.stages):
        return tokens, swa
    if not any(stage.full_layers for stage in layout.stages):
        return tokens, tokens
    return tokens, smaller(swa, limit) if settings.swa_ratio is None else int(tokens * settings.swa_ratio) // page * page

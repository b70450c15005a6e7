"""The pools that SGLang makes of a byte budget on each rank, to the token.

Source: SGLang 0.5.23, ``pool_configurator.py`` (``calculate_pool_sizes``) and ``kv_cache_configurator.py``
(``_handle_max_mamba_cache``, ``resolve_max_num_reqs``). The budget of states is computed in floating point of GiB, as there.
"""

from __future__ import annotations

from typing import Final

from hwcalc.engines.sglang.layout import PoolLayout, StageCells
from hwcalc.engines.sglang.settings import SglangSettings
from hwcalc.formulas.frozen import frozen
from hwcalc.units import GIB

__all__ = [
    "EVICTION_INTERVAL",
    "LEAST_REQUESTS",
    "LOADED",
    "MOST_REQUESTS",
    "Sizes",
    "cell_size",
    "most_running",
    "plan_sizes",
    "request_cap",
    "slots_of_budget",
    "slots_per_request",
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


@frozen
class Sizes:
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
            left -= slot * (min(requests, slots // each) + 1) * drafted / GIB
    elif not settings.radix and settings.requests is not None:
        slots = requests
        if settings.drafts:
            left -= slot * (slots + 1) * drafted / GIB
    else:
        share = left * settings.mamba_ratio / (1 + settings.mamba_ratio) * GIB
        if settings.drafts:
            slots = int((share - slot * (1 + drafted)) // (slot * (1 + drafted / each)))
            left -= slot * (min(requests, slots // each) + 1) * drafted / GIB
        else:
            slots = int((share - slot) // slot)
    left -= (slots + 1) * slot / GIB
    return slots, int(left * GIB)


def most_running(settings: SglangSettings, tokens: int, slots: int | None) -> int:
    """Requests that run at once (``resolve_max_num_reqs``)."""
    if settings.own_requests is not None:
        most = min(settings.own_requests, tokens // 2)
    else:
        usual = int(tokens / settings.context * 512)
        most = min(max(min(usual, MOST_REQUESTS), LEAST_REQUESTS), tokens // 2)
    return most if slots is None else min(most, slots // slots_per_request(settings))


def plan_sizes(layout: PoolLayout, settings: SglangSettings, budget: int) -> Sizes:
    """The pools of ``budget`` bytes on each rank; the stage with the fewest tokens counts."""
    slots, left = (None, budget) if not layout.has_states else slots_of_budget(layout, settings, budget)
    if slots is not None and slots <= 0:
        return _refused(slots, left, "Not enough GPU memory for hybrid (mamba/linear-attention) state cache.")
    if left <= 0:
        return _refused(slots, left, LOADED)
    # A stage without attention holds as many tokens as the others.
    stages = [stage for stage in layout.stages if stage.token_bytes or stage.swa_layers] or layout.stages[:1]
    found = [_stage_tokens(layout, stage, settings, left) for stage in stages]
    tokens, swa, cell = min(found, key=lambda one: one[0])
    limit = settings.total_tokens
    if limit is not None and limit < tokens:
        tokens, swa = _limited(layout, settings, limit, swa)
    if tokens <= 0:
        return _refused(slots, left, "Not enough memory. Please try to increase --mem-fraction-static.", cell)
    error = None
    if (
        swa is not None
        and layout.window is not None
        and settings.swa_ratio is not None
        and layout.window + settings.page_size >= swa
    ):
        error = f"SWA pool ({swa} tokens) cannot hold even one request."
    running = most_running(settings, tokens, slots)
    if running <= 0:
        error = error or "Hybrid (mamba/linear-attention) state cache is too small to serve any requests."
    return Sizes(tokens=tokens, swa_tokens=swa, slots=slots, running=running, after_states_bytes=left, cell=cell, error=error)


def _refused(slots: int | None, left: int, error: str, cell: float = 0) -> Sizes:
    return Sizes(tokens=0, swa_tokens=None, slots=slots, running=0, after_states_bytes=left, cell=cell, error=error)


def _stage_tokens(layout: PoolLayout, stage: StageCells, settings: SglangSettings, budget: int) -> tuple[int, int | None, float]:
    """Tokens of one stage, window tokens, and the bytes of a token."""
    page, cell = settings.page_size, cell_size(stage, settings)
    if not stage.swa_layers:
        most = budget // int(cell) if cell else settings.total_tokens or settings.context
        return most // page * page, (0 if layout.window is not None else None), cell
    if not stage.full_layers:
        tokens = int(budget // cell) // page * page
        return tokens, tokens, cell
    if settings.swa_ratio is None:
        assert layout.window is not None
        swa = -(-request_cap(settings, layout.window) // page) * page
        return int((budget - swa * stage.swa_bytes) // cell) // page * page, swa, cell
    tokens = int(budget // cell) // page * page
    return tokens, int(tokens * settings.swa_ratio) // page * page, cell


def _limited(layout: PoolLayout, settings: SglangSettings, limit: int, swa: int | None) -> tuple[int, int | None]:
    """The same with the tokens that the user allows."""
    page = settings.page_size
    tokens = limit // page * page
    if swa is None or not any(stage.swa_layers for stage in layout.stages):
        return tokens, swa
    if not any(stage.full_layers for stage in layout.stages):
        return tokens, tokens
    return tokens, min(swa, limit) if settings.swa_ratio is None else int(tokens * settings.swa_ratio) // page * page

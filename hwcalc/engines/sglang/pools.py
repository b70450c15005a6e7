"""The pools that SGLang makes of a byte budget on each rank, to the token, and the least budget whose pools hold some sequences.

:meth:`PoolRules.figures` is the only place that says what a budget becomes, and :meth:`PoolRules.holds` the only one that says whether it
holds a demand. Both take integers, or arrays of them. The steps of an explanation are kept where the figures are computed.

Source: SGLang 0.5.23, ``pool_configurator.py`` (``calculate_pool_sizes``) and ``kv_cache_configurator.py``
(``_handle_max_mamba_cache``, ``resolve_max_num_reqs``). The budget of states is computed in floating point of GiB, as there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.engines.sglang.layout import SWA
from hwcalc.engines.sglang.settings import FOUR_BITS
from hwcalc.engines.steps import Step, figure
from hwcalc.formulas.arithmetic import ceiled, either, floored, larger, largest, smaller, some
from hwcalc.formulas.record import Record
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.sglang.layout import PoolLayout, StageCells
    from hwcalc.engines.sglang.settings import SglangSettings

EVICTION_INTERVAL: Final = 128
"""Tokens between two clearings of a window (``SGLANG_SWA_EVICTION_INTERVAL``)."""
LEAST_REQUESTS: Final = 2048
MOST_REQUESTS: Final = 4096
_USUAL_REQUESTS: Final = (
    f"min(max(min(floor(tokens / context_length x 512), {MOST_REQUESTS}), {LEAST_REQUESTS}), floor(tokens / 2))"
)
_NAMED_REQUESTS: Final = "min(max_running_requests, floor(tokens / 2))"
_NAMED_WITHIN_USUAL: Final = (
    f"min(max_running_requests, max(min(floor(tokens / context_length x 512), {MOST_REQUESTS}), {LEAST_REQUESTS}))"
)
NOTHING_LEFT: Final = "Loaded weights leave no GPU memory for the KV cache."
"""The beginning of what SGLang says where nothing is left (``_profile_available_bytes``)."""
NO_TOKENS: Final = "Not enough memory. Please try to increase --mem-fraction-static."
NO_WINDOW: Final = "SWA pool ({swa} tokens) cannot hold even one request."
_STATE_COPIES: Final = 3
"""Slots for a request with a prefix cache; each of two that may run adds what its copies take."""
_COPIES: Final = {"no_buffer": 0, "extra_buffer": 2, "extra_buffer_lazy": 1}
_BY_POOL: Final = {
    "running": ("requests_by_running", "sequences_per_request"),
    "running_by_tokens": ("requests_by_running", "sequences_per_request"),
    "tokens": ("requests_by_tokens", "places_per_request"),
    "window_tokens": ("requests_by_windows", "window_places_per_request"),
}
"""A pool -> the figure of the requests that it holds, and of what a request takes of it."""
_LARGEST_BUDGET: Final = 2**60
_PROBE: Final = 2**50
"""A budget from which what is taken of every budget is read."""
_ROUNDED: Final = 2.0**-44
"""Floating point is off by less, of any number of bytes here."""
_FEW_BYTES: Final = 64


class Demand(NamedTuple):
    """What the sequences of a replica take: requests at once, places in the pool of tokens, and in that of windows."""

    requests: int
    places: int
    window_places: int


class Figures(NamedTuple):
    """The pools of a budget on each rank, before anything is refused; of an array of budgets, arrays.

    ``swa_tokens`` are those of windows, and ``slots`` those for states; ``None`` without such a pool. ``left_bytes`` are for tokens.
    ``fullest`` is the place of the stage whose tokens count, among :attr:`PoolRules.cells`.
    """

    budget_bytes: int
    tokens: int
    swa_tokens: int | None
    slots: int | None
    running: int
    left_bytes: int
    fullest: int


def slots_per_request(settings: SglangSettings) -> int:
    """Slots for states that each running request may need (``_calculate_mamba_ratio``).

    With a prefix cache that copies states while another batch is computed, that is 3 + 2.
    """
    if not settings.radix:
        return 1
    copies, copied = _COPIES[settings.strategy], settings.strategy == "extra_buffer"
    by = settings.rules.state_copies
    if by == "any":
        copies = _COPIES["extra_buffer"]
    if copied and (not settings.overlap if by == "overlap" else settings.drafts):
        copies = 1
    return _STATE_COPIES + copies


def cell_size(stage: StageCells, settings: SglangSettings) -> float:
    """Bytes of a token of the log's figure on one stage: with those of its share of the windows, and of a draft.

    A draft has layers like those of the model, and an indexer in each.
    """
    counted = settings.rules.draft_layers_counted
    full, drafted = stage.full_layers, settings.draft_layers if counted == ("all" if stage.swa_layers else counted) != "no" else 0
    if stage.swa_layers and not full:
        return stage.swa_bytes + drafted * (stage.swa_bytes // stage.swa_layers)
    if stage.swa_layers:
        size = stage.full_bytes // full * (full + drafted)
        return size if settings.swa_ratio is None else size + settings.swa_ratio * stage.swa_bytes
    if not drafted or not full:
        return stage.token_bytes
    kept = int((stage.token_bytes - stage.index_bytes) * drafted / full)
    return stage.token_bytes + kept + (stage.index_bytes // stage.index_layers * drafted if stage.index_layers else 0)


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


def most_running(
    settings: SglangSettings, tokens: int, slots: int | None, steps: list[Step] | None = None, profile: int | None = None
) -> int:
    """Requests that run at once with so many tokens and slots for states (``resolve_max_num_reqs``).

    ``profile`` are the tokens that SGLang's own number follows from, where these are others.
    """
    named, halved = settings.own_requests, settings.halves_tokens
    by_tokens = tokens // 2 if halved else named
    if named is not None and settings.rules.named_limit == "nothing":
        formula, limit = "max_running_requests", {}
    elif named is None or not halved:
        whole = tokens if profile is None else profile
        usual = larger(floored(smaller(whole / settings.context * 512, MOST_REQUESTS)), LEAST_REQUESTS)
        by_tokens = smaller(by_tokens, usual)
        formula, limit = _USUAL_REQUESTS if halved else _NAMED_WITHIN_USUAL, {"context_length": settings.context}
        if profile is not None:
            formula, limit = formula.replace("tokens / context", "profiled_tokens / context"), {**limit, "profiled_tokens": whole}
    else:
        by_tokens = smaller(by_tokens, named)
        formula, limit = _NAMED_REQUESTS, {}
    if named is not None:
        limit |= {"max_running_requests": named}
    most: int = figure(steps, "running_by_tokens", formula, by_tokens, unit="requests", tokens=tokens, **limit)
    if slots is None:
        return most
    by_states = slots // slots_per_request(settings)
    formula, terms = "min(running_by_tokens, state_requests)", {"running_by_tokens": most, "state_requests": by_states}
    running: int = figure(steps, "running", formula, smaller(by_states, most), unit="requests", **terms)
    return running


def tokens_of_bytes(
    tokens: int, settings: SglangSettings, left_bytes: int, cell: float, steps: list[Step] | None, more: int = 0
) -> None:
    """Keep the step of these tokens, which the pool has of ``left_bytes`` with ``cell`` bytes for each, and ``more`` for drafts."""
    # A token takes a fraction of a byte where windows have a share; the product is rounded down to whole pages.
    whole, drafted = "floor(budget_of_tokens / cell_size)", {"draft_headroom": more} if more else {}
    formula = f"floor(({whole} + draft_headroom) / page_size) x page_size" if more else f"floor({whole} / page_size) x page_size"
    terms = {"budget_of_tokens": left_bytes, "cell_size": cell, "page_size": settings.page_size}
    figure(steps, "tokens", formula, tokens, unit="tokens", **terms, **drafted)


def limited_tokens(settings: SglangSettings, limit: int, steps: list[Step] | None) -> int:
    """The tokens of a pool that may have no more than ``limit``."""
    formula, terms = (
        "floor(max_total_tokens / page_size) x page_size",
        {"max_total_tokens": limit, "page_size": settings.page_size},
    )
    return figure(steps, "tokens", formula, unit="tokens", **terms)


def tokens_in_share(settings: SglangSettings, ratio: float, tokens: int, steps: list[Step] | None) -> int:
    """The tokens of the pool of windows where it has a share of the other pool's."""
    page = settings.page_size
    places: int = floored(tokens * ratio) // page * page
    kept = steps if steps is not None and 0 < places != tokens else None
    formula = "floor(floor(tokens x swa_full_tokens_ratio) / page_size) x page_size"
    terms = {"tokens": tokens, "swa_full_tokens_ratio": ratio, "page_size": page}
    return figure(kept, "window_tokens", formula, places, unit="tokens", **terms)


def of_fewest(stages: Iterator[tuple[int, Any]]) -> tuple[int, Any, int]:
    """The tokens of the stage that has the fewest, what it has beside them, and its place."""
    (tokens, beside), fullest = next(stages), 0
    for place, (own, own_beside) in enumerate(stages, 1):
        fewer = own < tokens
        tokens, fullest = either(fewer, own, tokens), either(fewer, place, fullest)
        beside = None if beside is None else either(fewer, own_beside, beside)
    return tokens, beside, fullest


class PoolRules(Record):
    """How SGLang makes pools of any budget, with these settings."""

    settings: SglangSettings

    @property
    @abstractmethod
    def cells(self) -> tuple[float, ...]:
        """Bytes of a token on each stage that limits the tokens."""

    @abstractmethod
    def figures(self, budget: int, steps: list[Step] | None = None) -> Figures:
        """The pools of ``budget`` bytes on each rank; the stage with the fewest tokens counts. Steps are kept of one budget."""

    @abstractmethod
    def checks(self, figures: Figures) -> Iterator[tuple[bool, str]]:
        """The conditions that SGLang checks of its pools before it starts, in its order, each with the message if it does not hold."""

    def logged(self, figures: Figures) -> tuple[Figures, float]:
        """The pools as SGLang logs them, and the bytes of a token."""
        return figures, self.cells[figures.fullest]

    @cached_property
    @abstractmethod
    def keeps_tokens(self) -> bool:
        """True if tokens take memory. Where no layer keeps any, a pool has as many as one request may have."""

    @abstractmethod
    def windows_of(self, tokens: int) -> int | None:
        """Tokens in the pool of windows if the full pool has so many; ``None`` without that pool, or where stages differ."""

    @abstractmethod
    def bounds(self, demand: Demand) -> tuple[int, int]:
        """Two budgets in bytes: the first and all below are too small for the demand; the second and all above hold it."""

    def error(self, figures: Figures) -> str | None:
        """The error of SGLang if it does not start with these pools; ``None`` if it starts."""
        error = next((words for passed, words in self.checks(figures) if not passed), None)
        return None if error is None else error.format(swa=figures.swa_tokens)

    def places(self, figures: Figures, demand: Demand) -> Iterator[tuple[str, int, int]]:
        """For each pool: the name of its figure, how much it has, and how much the load needs."""
        yield "running" if figures.slots is not None else "running_by_tokens", figures.running, demand.requests
        if self.keeps_tokens:
            yield "tokens", figures.tokens, demand.places
        if figures.swa_tokens is not None:
            yield "window_tokens", figures.swa_tokens, demand.window_places

    def holds(self, figures: Figures, demand: Demand) -> bool:
        """True if SGLang starts with these pools, and they hold the demand."""
        held = True
        for _, have, want in self.places(figures, demand):
            held = held & (want <= have)
        for passed, _ in self.checks(figures):
            held = held & passed
        return held

    def most(self, figures: Figures, request: Demand, steps: list[Step] | None = None) -> int:
        """The number of requests that these pools hold, if each takes as much as this one."""
        if self.error(figures) is not None:
            return 0
        by: dict[str, int] = {}
        for pool, have, each in self.places(figures, request):
            if pool.startswith("running") and each == 1:
                by[pool] = have
            elif each:
                name, of = _BY_POOL[pool]
                by[name] = figure(steps, name, f"floor({pool} / {of})", unit="requests", **{pool: have, of: each})
        return figure(steps, "at_once", f"min({', '.join(by)})", unit="requests", **by)

    def least(self, demand: Demand, own_bytes: int) -> int:
        """The least budget, in bytes, that holds the demand.

        It is searched for among whole bytes. Where states have a share, a little more memory may mean one slot more and fewer tokens: then
        it is the budget to which halving 0 to 2^60 bytes comes. Where no budget holds it (too few requests or tokens allowed) it returns
        ``own_bytes``, what the sequences themselves take.
        """
        most = larger(2 * own_bytes, _LARGEST_BUDGET)
        ever = self.holds(self.figures(most), demand) & (own_bytes > 0)
        # What is never held is not searched for.
        low, high = self.bounds(Demand(*(either(ever, asked, 1) for asked in demand)))
        low, high = larger(low, 0), smaller(high, most)
        while some(low + 1 < high):
            middle = _roundest(low, high)
            held = self.holds(self.figures(middle), demand)
            low, high = either(held, low, middle), either(held, middle, high)
        found: int = either(ever, high, own_bytes)
        return found

    def least_tokens(self, demand: Demand, ratio: float) -> int:
        """The fewest tokens, in whole pages, whose pools hold the demand if memory and slots suffice.

        There is a place for a window in every ``ratio`` of the tokens; if that is 0, the tokens do not follow from the windows.
        """
        settings, page = self.settings, self.settings.page_size
        least = 2 * demand.requests if settings.halves_tokens else 1
        tokens = larger(demand.places, least) if self.keeps_tokens else demand.requests * 0 + least
        if settings.own_requests is None or settings.rules.named_limit == "usual":
            many = demand.requests > LEAST_REQUESTS
            tokens = larger(tokens, either(many, ceiled(demand.requests * (settings.context / 512)), 1))
        if ratio:
            tokens = larger(tokens, ceiled(demand.window_places / ratio))
        tokens = -(-tokens // page) * page
        # A product in floating point may be a page off.

        def suffice(tokens: int) -> bool:
            running = most_running(settings, tokens, None)
            windows = self.windows_of(tokens)
            figures = Figures(
                budget_bytes=1, tokens=tokens, swa_tokens=windows, slots=None, running=running, left_bytes=1, fullest=0
            )
            return self.holds(figures, demand)

        more = either(suffice(tokens), tokens, tokens + page)
        fewest: int = either(suffice(tokens - page), tokens - page, more)
        return fewest


def _roundest(low: int, high: int) -> int:
    """The number above ``low`` and below ``high`` to which halving a range from 0 to a power of two comes first.

    >>> _roundest(5, 14), _roundest(5, 8)
    (8, 6)
    """
    last = high - 1
    below = low ^ last
    for shift in (1, 2, 4, 8, 16, 32):
        below = below | (below >> shift)
    return last & ~(below >> 1)


def with_a_window(demand: Demand, window: int, page: int) -> Demand:
    """The demand, raised to the window places without which SGLang does not start: the whole pages above a window and a page."""
    least = ((window + page) // page + 1) * page
    return demand._replace(window_places=larger(demand.window_places, least))


def around(size: Any) -> tuple[int, int]:
    """Whole bytes below and above a size in floating point."""
    spread = size * _ROUNDED
    return floored(size - spread) - _FEW_BYTES, floored(size + spread) + _FEW_BYTES


class LayerPools(PoolRules):
    """The pools of the layers of a model other than DeepSeek-V4."""

    layout: PoolLayout

    @cached_property
    def stages(self) -> tuple[StageCells, ...]:
        """The stages that limit the tokens: one without attention holds as many as the others."""
        stages = self.layout.stages
        return tuple(stage for stage in stages if stage.token_bytes or stage.swa_layers) or stages[:1]

    @cached_property
    def cells(self) -> tuple[float, ...]:
        if self.settings.rules.profiled_layers == "own" or self.layout.window is None:
            return tuple(cell_size(stage, self.settings) for stage in self.stages)
        sizes = ((self._whole_token_bytes(stage), self._layers_in_share(stage)) for stage in self.stages)
        return tuple(size * share / self._model_layers for size, share in sizes)

    @cached_property
    def keeps_tokens(self) -> bool:
        return any(self.cells)

    def figures(self, budget: int, steps: list[Step] | None = None) -> Figures:
        slots, left = (None, budget) if not self.layout.has_states else self._slots(budget, steps)
        more = self._headroom(slots)
        tokens, swa, fullest = of_fewest(self._stage_tokens(stage, left, more) for stage in self.stages)
        limit, above = self.settings.total_tokens, False
        if self.settings.rules.windows_from_tokens and self.layout.window is not None:
            limit = None
        if limit is not None:
            most, most_swa = self._limited(limit, swa)
            above = tokens > limit
            tokens, swa = either(above, most, tokens), None if swa is None else either(above, most_swa, swa)
        if steps is not None:
            if limit is not None and above:
                self._limited(limit, swa, steps)
            else:
                self._explain_tokens(self.stages[fullest], left, steps, more)
        return Figures(
            budget_bytes=budget,
            tokens=tokens,
            swa_tokens=swa,
            slots=slots,
            running=most_running(self.settings, tokens, slots, steps, self._profile(left)),
            left_bytes=left,
            fullest=fullest,
        )

    def _profile(self, left: int) -> int | None:
        """Tokens of all layers in these bytes, where SGLang's own number of requests follows from them."""
        if not self.settings.rules.requests_from_profile:
            return None
        sizes = [
            int(self._whole_token_bytes(stage) if stage.swa_layers else cell)
            for stage, cell in zip(self.stages, self.cells, strict=True)
        ]
        tokens: int = left // max(1, *sizes)
        return tokens

    def _slots(self, budget: int, steps: list[Step] | None) -> tuple[int, int]:
        """Slots for states, and the bytes that they leave (``_handle_max_mamba_cache``). What drafts copy of states has no step."""
        settings, slot, each = self.settings, self.layout.slot_bytes, slots_per_request(self.settings)
        requests, plain = settings.own_requests or 1, None if settings.drafts else steps
        padding = int(settings.rules.padding_slot)
        one_a_request = settings.mamba_slots is None and not settings.radix and settings.requests is not None
        left = budget / GIB - slot * self._drafts_before_slots / GIB
        # Before 0.5.7 replicas share the slots of gated delta nets, also those of a share of the memory, and no others.
        replicas, delta = settings.dp, settings.rules.delta_replicas and self.layout.delta_nets
        if settings.rules.delta_replicas and not delta:
            replicas, requests = 1, settings.requests or 1
        if settings.mamba_slots is not None:
            terms = {"max_mamba_cache_size": settings.mamba_slots, "dp": replicas}
            slots = figure(steps, "state_slots", "floor(max_mamba_cache_size / dp)", unit="slots", **terms)
        elif one_a_request:
            slots = figure(steps, "state_slots", "max_running_requests", unit="slots", max_running_requests=requests)
        elif self._slots_are_fixed:
            terms = {"usual_slots": settings.rules.usual_state_slots, "dp": replicas}
            slots = figure(steps, "state_slots", "floor(usual_slots / dp)", unit="slots", **terms)
        else:
            slots = self._slots_in_share(left, budget, plain if replicas == 1 or not delta else None)
            slots = slots // replicas if delta else slots
        if settings.drafts and settings.rules.draft_states in ("request", "slot"):
            by_slot = one_a_request or settings.rules.draft_states == "slot"
            copied = slots if by_slot else smaller(slots // each, requests)
            left = left - slot * (copied + padding) * settings.draft_tokens / GIB
        formula = f"pool_bytes - {'(state_slots + 1)' if padding else 'state_slots'} x slot_bytes"
        left_bytes = floored((left - (slots + padding) * slot / GIB) * GIB)
        figure(plain, "budget_of_tokens", formula, left_bytes, pool_bytes=budget, state_slots=slots, slot_bytes=slot)
        formula, terms = "floor(state_slots / slots_per_request)", {"state_slots": slots, "slots_per_request": each}
        figure(steps, "state_requests", formula, slots // each, unit="requests", **terms)
        return slots, left_bytes

    @property
    def _slots_are_fixed(self) -> bool:
        """True if the number of slots for states does not follow from the memory."""
        settings = self.settings
        known = settings.requests is not None or settings.rules.usual_state_slots > 0
        return settings.mamba_slots is not None or (not settings.radix and known)

    @property
    def _drafts_before_slots(self) -> int:
        """The states of drafts whose memory is taken before there are slots, in slots."""
        settings, requests = self.settings, self.settings.own_requests or 1
        if not settings.drafts or settings.rules.draft_states in ("request", "slot"):
            return 0
        if settings.rules.draft_states == "cached":
            requests = 0 if self._slots_are_fixed else settings.requests or 1
        return requests * settings.draft_tokens

    def _slots_in_share(self, left: float, budget: int, steps: list[Step] | None) -> int:
        """Slots for states of ``mamba_full_memory_ratio`` of the GiB that are left. One slot more than these is allocated."""
        settings, slot, drafted = self.settings, self.layout.slot_bytes, self.settings.draft_tokens
        padding = int(settings.rules.padding_slot)
        share = left * settings.mamba_ratio / (1 + settings.mamba_ratio) * GIB
        if settings.drafts and settings.rules.draft_states == "slot":
            slots = floored(share // slot) // (1 + drafted)
        elif settings.drafts and settings.rules.draft_states == "request":
            each = slots_per_request(settings)
            slots = floored((share - padding * slot * (1 + drafted)) // (slot * (1 + drafted / each)))
        else:
            slots = floored((share - padding * slot) // slot)
        share_of = "pool_bytes x mamba_full_memory_ratio / (1 + mamba_full_memory_ratio)"
        formula = f"floor(({share_of} - slot_bytes) / slot_bytes)" if padding else f"floor({share_of} / slot_bytes)"
        shares = {"pool_bytes": budget, "mamba_full_memory_ratio": settings.mamba_ratio, "slot_bytes": slot}
        return figure(steps, "state_slots", formula, slots, unit="slots", **shares)

    def _headroom(self, slots: int | None) -> int:
        """Tokens that a draft adds to the pool: those that all requests draft and check, and 100."""
        settings = self.settings
        if not settings.drafts or not settings.rules.draft_headroom:
            return 0
        requests: int = settings.requests or 1
        if slots is not None:
            requests = smaller(requests, slots // slots_per_request(settings))
        return requests * (2 * settings.draft_tokens - 1) + 100

    def _stage_tokens(self, stage: StageCells, left: int, more: int = 0) -> tuple[int, int | None]:
        """Tokens of one stage, and window tokens, of the bytes that are left for them, and so many tokens ``more``."""
        settings, page, cell = self.settings, self.settings.page_size, cell_size(stage, self.settings)
        if not stage.swa_layers:
            tokens = left // int(cell) + more if cell else settings.total_tokens or settings.context
        elif settings.rules.windows_from_tokens and stage.full_layers:
            tokens = self._solved(stage, left)
            if settings.rules.requests_from_profile:
                # Windows have their share of tokens that are not yet in whole pages.
                return tokens // page * page, self._windows(stage, tokens)
        elif not stage.full_layers or settings.swa_ratio is not None:
            tokens = floored(left // cell)
        else:
            tokens = floored((left - self.capped_windows * stage.swa_bytes) // cell)
        tokens = tokens // page * page
        return tokens, self._windows(stage, tokens)

    def _solved(self, stage: StageCells, left: int, steps: list[Step] | None = None) -> int:
        """Tokens of both pools in the place of as many whole pages of tokens in all layers, of which no more are than the user allows."""
        settings, page, cell = self.settings, self.settings.page_size, cell_size(stage, self.settings)
        both, counted = stage.full_bytes + stage.swa_bytes, self._whole_token_bytes(stage)
        formula = "floor(floor(budget_of_tokens / token_bytes) / page_size) x page_size"
        terms = {"budget_of_tokens": left, "token_bytes": counted, "page_size": page}
        kept = steps if settings.total_tokens is None else None
        whole = figure(kept, "whole_tokens", formula, left // counted // page * page, unit="tokens", **terms)
        if settings.total_tokens is not None:
            whole = smaller(whole, settings.total_tokens // page * page)
        shared = "whole_tokens x full_and_window_bytes / cell_size"
        solved: dict[str, float] = {"full_and_window_bytes": both, "cell_size": cell}
        if settings.rules.profiled_layers != "own":
            shared = "whole_tokens x model_layers / layers_in_share"
            solved = {"model_layers": self._model_layers, "layers_in_share": self._layers_in_share(stage)}
        times, parts = solved.values()
        tokens: int = floored(whole * times / parts)
        formula, solved = f"floor(floor({shared}) / page_size) x page_size", {"whole_tokens": whole, **solved, "page_size": page}
        figure(kept, "tokens", formula, tokens // page * page, unit="tokens", **solved)
        return tokens

    @property
    def _model_layers(self) -> int:
        return sum(stage.layers for stage in self.layout.stages)

    def _layers_in_share(self, stage: StageCells) -> float:
        return (self.settings.swa_ratio or 0) * stage.swa_layers + stage.full_layers

    def _whole_token_bytes(self, stage: StageCells) -> int:
        """Bytes of a token in all layers: four bits are halved here, but not where both pools are solved."""
        alike, layers, unlike = stage.full_bytes + stage.swa_bytes, stage.full_layers + stage.swa_layers, 0
        profiled = self.settings.rules.profiled_layers
        if profiled != "own" and stage.full_layers:
            each = stage.full_bytes // stage.full_layers
            layers = stage.layers if profiled == "stage" else stage.full_layers
            alike, unlike = each * layers, stage.swa_bytes if stage.swa_bytes != each * stage.swa_layers else 0
        if self.settings.kv_dtype in FOUR_BITS:
            key = next(rows[0].elements for kind, rows in self.layout.rows.items() if self.layout.pools[kind] != SWA and rows)
            alike = alike // 2 + key * layers * 2 // 16
        return alike + unlike

    def _explain_tokens(self, stage: StageCells, left: int, steps: list[Step], more: int) -> None:
        """Append the steps of :meth:`_stage_tokens`. Where windows follow from the number of requests, tokens have none."""
        settings, tokens = self.settings, self._stage_tokens(stage, left, more)[0]
        if settings.rules.windows_from_tokens and stage.swa_layers and stage.full_layers:
            whole = self._solved(stage, left, steps)
            tokens = whole if settings.rules.requests_from_profile else tokens
        elif settings.swa_ratio is not None or self.layout.window is None:
            if stage.swa_layers and stage.full_layers and not settings.drafts:
                full, ratio = stage.full_bytes // stage.full_layers * stage.full_layers, settings.swa_ratio or 0
                formula, window = "full_token_bytes + swa_full_tokens_ratio x window_token_bytes", stage.swa_bytes
                figure(steps, "cell_size", formula, full_token_bytes=full, swa_full_tokens_ratio=ratio, window_token_bytes=window)
            tokens_of_bytes(tokens, settings, left, cell_size(stage, settings), steps, more)
        self._windows(stage, tokens, steps)

    @cached_property
    def capped_windows(self) -> int:
        """Window tokens where they follow from the number of requests."""
        assert self.layout.window is not None
        page = self.settings.page_size
        return -(-request_cap(self.settings, self.layout.window) // page) * page

    def _windows(self, stage: StageCells, tokens: int, steps: list[Step] | None = None) -> int | None:
        """Window tokens of a stage that has so many full tokens; ``None`` if no windows have a pool."""
        if not stage.swa_layers:
            return 0 if self.layout.window is not None else None
        if not stage.full_layers:
            return tokens
        ratio = self.settings.swa_ratio
        return self.capped_windows if ratio is None else tokens_in_share(self.settings, ratio, tokens, steps)

    def _limited(self, limit: int, swa: int | None, steps: list[Step] | None = None) -> tuple[int, int | None]:
        """Tokens and window tokens where the user allows no more than ``limit`` tokens."""
        tokens = limited_tokens(self.settings, limit, steps)
        stages, ratio = self.layout.stages, self.settings.swa_ratio
        if swa is None or not any(stage.swa_layers for stage in stages):
            return tokens, swa
        if not any(stage.full_layers for stage in stages):
            return tokens, tokens
        return tokens, smaller(swa, limit) if ratio is None else tokens_in_share(self.settings, ratio, tokens, steps)

    @property
    def checks_window(self) -> bool:
        """True if a pool of windows that holds no request is refused: where it has a share of the tokens."""
        return self.layout.window is not None and self.settings.swa_ratio is not None and self.settings.rules.window_check

    def checks(self, figures: Figures) -> Iterator[tuple[bool, str]]:
        if figures.slots is not None:
            yield figures.slots > 0, "Not enough GPU memory for hybrid (mamba/linear-attention) state cache."
        yield figures.left_bytes > 0, NOTHING_LEFT if self.settings.rules.weights_check else NO_TOKENS
        yield figures.tokens > 0, NO_TOKENS
        if figures.swa_tokens is not None and self.checks_window:
            assert self.layout.window is not None
            yield figures.swa_tokens > self.layout.window + self.settings.page_size, NO_WINDOW
        yield figures.running > 0, "Hybrid (mamba/linear-attention) state cache is too small to serve any requests."

    def logged(self, figures: Figures) -> tuple[Figures, float]:
        """The pools as the log prints them: all 0 where SGLang makes none."""
        lacking = figures.left_bytes <= 0 or (figures.slots is not None and figures.slots <= 0)
        cell = 0 if lacking else self.cells[figures.fullest]
        return (figures._replace(tokens=0, swa_tokens=None, running=0) if lacking or figures.tokens <= 0 else figures), cell

    def windows_of(self, tokens: int) -> int | None:
        return self._windows(self.stages[0], tokens) if self._alike else None

    @cached_property
    def _alike(self) -> bool:
        """True if windows have the same share on all stages, so that it does not matter which one has the fewest tokens."""
        return len({(stage.swa_layers > 0, stage.full_layers > 0) for stage in self.stages}) == 1

    def bounds(self, demand: Demand) -> tuple[int, int]:
        settings, layout, stage = self.settings, self.layout, self.stages[0]
        ratio: float = 0
        if self._alike and stage.swa_layers:
            ratio = 1 if not stage.full_layers else settings.swa_ratio or 0
            if self.checks_window:
                assert layout.window is not None
                demand = with_a_window(demand, layout.window, settings.page_size)
        tokens = self.least_tokens(demand, ratio)
        capped = [
            stage.swa_bytes * self.capped_windows if stage.swa_layers and stage.full_layers and settings.swa_ratio is None else 0
            for stage in self.stages
        ]
        # What must be left for tokens.
        least = larger(largest(tokens * cell + windows for cell, windows in zip(self.cells, capped, strict=True)), 1)
        if not layout.has_states:
            low, high = (least - 1, least) if all(isinstance(cell, int) for cell in self.cells) else around(least)
        else:
            low, high = self._with_states(demand.requests, least)
        low = low - ceiled(self._headroom(None) * max(self.cells) * (1 + settings.mamba_ratio))
        if settings.rules.windows_from_tokens and stage.swa_layers:
            # Whole pages of tokens in all layers come first.
            whole = largest(max(one.full_bytes + one.swa_bytes, self._whole_token_bytes(one)) for one in self.stages)
            high = high + (settings.page_size + 1) * whole
        if settings.rules.requests_from_profile and settings.own_requests is None:
            # More requests than SGLang takes anyway need so many tokens of all layers, and pages do not count.
            wanted = ceiled(demand.requests * (settings.context / 512)) + 1
            each = max(
                int(self._whole_token_bytes(one) if one.swa_layers else cell)
                for one, cell in zip(self.stages, self.cells, strict=True)
            )
            share = 1 + settings.mamba_ratio if layout.has_states else 1
            low, high = low - floored((settings.page_size + 1) * each * share), larger(high, ceiled(wanted * each * share) + high)
        return low, high if self._alike else high * 0 + _LARGEST_BUDGET

    def _with_states(self, requests: int, least: Any) -> tuple[int, int]:
        """The bounds of a budget of which ``least`` bytes must be left for tokens."""
        settings, slot = self.settings, self.layout.slot_bytes
        if self._slots_are_fixed:
            # So many slots take the same of every budget.
            return around(least + _PROBE - self._slots(_PROBE, None)[1])
        each, share = slots_per_request(settings), 1 + settings.mamba_ratio
        drafted, padding = settings.draft_tokens if settings.drafts else 0, int(settings.rules.padding_slot)
        if fixed := slot * self._drafts_before_slots:
            for_slots, low = slot * requests * each * (share / settings.mamba_ratio), (least - slot) * share
            return around(larger(for_slots, low) + fixed)[0], around(larger(for_slots, least * share) + fixed)[1]
        taken = requests * each * (1 + drafted) if settings.rules.draft_states == "slot" else requests * (each + drafted)
        for_slots = slot * (taken + padding * (1 + drafted)) * (share / settings.mamba_ratio)
        # States leave less than a slot of their share, or more where there are fewer requests than drafts have slots for.
        low = least if settings.drafts else (least - slot) * share
        return around(larger(for_slots, low))[0], around(larger(for_slots, least * share))[1]

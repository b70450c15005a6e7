"""The pools of DeepSeek-V4: tokens of windows, entries of groups of 4 and of 128 tokens, and the states of their compressors.

Source: SGLang 0.5.23, ``pool_configurator.py`` (``DSV4PoolConfigurator``), ``deepseek_v4_memory_pool.py`` and ``dsv4/kv_layout.py``. A row is
448 numbers in fp8, 64 in bf16 and 8 scales; the rows of a page are padded to a multiple of 576 bytes. All of it is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.sglang.layout import stage_spans
from hwcalc.engines.sglang.pools import (
    MOST_REQUESTS,
    NO_TOKENS,
    NO_WINDOW,
    NOTHING_LEFT,
    Demand,
    Figures,
    PoolRules,
    around,
    limited_tokens,
    most_running,
    of_fewest,
    request_cap,
    tokens_in_share,
    tokens_of_bytes,
    with_a_window,
)
from hwcalc.engines.steps import Step, figure
from hwcalc.errors import UncountedError, UnsupportedError
from hwcalc.formulas import CompressedAttention, Stack
from hwcalc.formulas.arithmetic import either, floored, larger, largest
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.sglang.rules import Rules
    from hwcalc.engines.sglang.settings import SglangSettings

_ROPE: Final = 64
_SCALES: Final = 8
_PAGE_ALIGN: Final = 576
_STATE_BYTES: Final = 4
_FEW: Final = 4
_MANY: Final = 128
_RINGS: Final = {_FEW: (8, 16), _MANY: (128, 256)}
"""Rows of the ring of a compressor: without and with a draft."""
_TAILS: Final = 4
"""Prefixes for each request whose last window stays."""


class CompressedStage(NamedTuple):
    """Layers of one pipeline stage: all of them, and those that compress 4 and 128 tokens."""

    layers: int
    few: int
    many: int


class CompressedLayout(Record):
    """The stages of the model, and what one row takes. ``window`` and ``index_head_dim`` are those of the model."""

    stages: tuple[CompressedStage, ...]
    head_dim: int
    index_head_dim: int
    window: int
    drafts: bool
    page_size: int
    rules: Rules

    def row_bytes(self, ratio: int = 1) -> float:
        """Bytes of an entry for ``ratio`` tokens, with its share of the padding of a page."""
        rows = self.page_size // ratio
        row = self.head_dim - _ROPE + 2 * _ROPE + _SCALES
        if not self.rules.compressed_row_padding:
            return row
        return -(-rows * row // _PAGE_ALIGN) * _PAGE_ALIGN / rows

    def ring(self, ratio: int) -> int:
        """Rows of the ring of a compressor."""
        return _RINGS[ratio][self.drafts]

    @property
    def many_bytes(self) -> int:
        """Bytes of a row of a compressor of 128 tokens."""
        return 2 * self.head_dim * _STATE_BYTES

    @property
    def index_bytes(self) -> int:
        """An indexer's key in fp8 with a scale."""
        return self.index_head_dim + self.index_head_dim // 128 * 4

    def inflation(self, stage: CompressedStage) -> float:
        """The factor by which a draft of one layer raises every byte."""
        return (stage.layers + 1) / stage.layers if self.drafts else 1.0

    def swa_bytes(self, stage: CompressedStage) -> float:
        """Bytes of a window token: a row in every layer, and its share of the compressors of 4 tokens."""
        states = 2 * 2 * (self.head_dim + self.index_head_dim) * _STATE_BYTES
        ring_tokens = self.page_size if self.rules.compressed_ring_by_page else self.window
        many = 0 if self.rules.compressed_states_by_request else self.ring(_MANY) / ring_tokens * self.many_bytes * stage.many
        own = self.row_bytes() * stage.layers + self.ring(_FEW) / ring_tokens * states * stage.few + many
        return own * self.inflation(stage)

    def compressed_bytes(self, stage: CompressedStage) -> float:
        """Bytes of the entries that a token is compressed into."""
        few = 1 / _FEW * self.row_bytes(_FEW) + 1 / _FEW * self.index_bytes
        return few * stage.few + 1 / _MANY * self.row_bytes(_MANY) * stage.many

    def token_bytes(self, stage: CompressedStage, ratio: float | None) -> float:
        """Bytes of a token with its share of the windows, which have none where they follow from the requests."""
        plain = self.swa_bytes(stage) / self.inflation(stage) if self.drafts else self.swa_bytes(stage)
        return ((ratio or 0) * plain + self.compressed_bytes(stage)) * self.inflation(stage)


def compressed_layout(stack: Stack, settings: SglangSettings) -> CompressedLayout:
    """The layout of DeepSeek-V4.

    Raises :class:`~hwcalc.errors.UnsupportedError` for ratios, pages and stages that SGLang has no pool for.
    """
    kinds = [kind for layer in stack for kind in layer if isinstance(kind, CompressedAttention)]
    ratios = {kind.compress_ratio for kind in kinds} - {None, _FEW, _MANY}
    if ratios or len(kinds) != len(stack):
        what = "SGLang compresses 4 and 128 tokens; kvplan knows no other of its pools."
        raise UncountedError(what, hint="Use: --engine reference")
    if settings.page_size % _MANY:
        message = f"page_size {settings.page_size}: SGLang's compressed attention needs a multiple of 128."
        raise UnsupportedError(message, hint="Leave it out, or use: --engine-option page_size=256")
    if settings.kv_dtype != "fp8_e4m3":
        raise UnsupportedError(
            f"--dtype {settings.kv_dtype}: SGLang keeps the cache of DeepSeek-V4 in fp8_e4m3.", hint="Use: --dtype fp8_e4m3"
        )

    def stage_of(span: range) -> CompressedStage:
        compress_ratios = [kinds[number].compress_ratio for number in span]
        return CompressedStage(layers=len(compress_ratios), few=compress_ratios.count(_FEW), many=compress_ratios.count(_MANY))

    spans = stage_spans(len(stack), settings.pp)
    if not settings.rules.compressed_by_stage:
        # Each stage counts all layers, and that which drafts: the config has its ratio, too.
        whole = stage_of(range(len(stack)))
        stages = (whole._replace(layers=whole.layers + 1),) * len(spans)
    else:
        stages = tuple(map(stage_of, spans))
    if settings.swa_ratio is None and not all(stage.few or stage.many for stage in stages):
        # A token has no bytes there, and SGLang divides by them.
        raise UnsupportedError(
            f"pp {settings.pp}: where window tokens follow from the requests, SGLang needs compressed layers in every stage.",
            hint="Use fewer stages, or: --engine-option swa_full_tokens_ratio=0.1",
        )
    return CompressedLayout(
        stages=stages,
        head_dim=kinds[0].head_dim,
        index_head_dim=max((kind.index_head_dim or 0) for kind in kinds),
        window=kinds[0].window,
        drafts=settings.drafts,
        page_size=settings.page_size,
        rules=settings.rules,
    )


class CompressedPools(PoolRules):
    """The pools of DeepSeek-V4."""

    layout: CompressedLayout

    @cached_property
    def cells(self) -> tuple[float, ...]:
        return tuple(self.layout.token_bytes(stage, self.settings.swa_ratio) for stage in self.layout.stages)

    @property
    def keeps_tokens(self) -> bool:
        return True

    def figures(self, budget: int, steps: list[Step] | None = None) -> Figures:
        layout, limit, above = self.layout, self.settings.total_tokens, False
        tokens, left, fullest = of_fewest(self._stage_tokens(place, budget) for place in range(len(layout.stages)))
        if limit is not None:
            above = tokens > limit
            tokens, left = either(above, limited_tokens(self.settings, limit, None), tokens), either(above, budget, left)
        if steps is not None:
            # What decided is computed once more, so that it tells its steps.
            if limit is not None and above:
                limited_tokens(self.settings, limit, steps)
            else:
                self._stage_tokens(fullest, budget, steps)
        return Figures(
            budget_bytes=budget,
            tokens=tokens,
            swa_tokens=self.windows_of(tokens, steps),
            slots=None,
            running=either(tokens > 0, most_running(self.settings, tokens, None, steps), 0),
            left_bytes=left,
            fullest=fullest,
        )

    def _stage_tokens(self, place: int, budget: int, steps: list[Step] | None = None) -> tuple[int, int]:
        """Tokens of one stage, and the bytes that are left for them."""
        settings, page, cell, stage = self.settings, self.layout.page_size, self.cells[place], self.layout.stages[place]
        fixed = self._fixed_bytes(stage, self.requests_with_states(place, budget))
        left = larger(budget - fixed, 0)
        tokens = floored(left / cell) // page * page
        # A quotient that was rounded up is no whole page more.
        tokens, left_bytes = either((tokens > 0) & (tokens * cell > left), tokens - page, tokens), floored(left)
        if settings.swa_ratio is not None:
            formula, kept = "pool_bytes - compressor_states", steps if settings.total_tokens is None else None
            figure(kept, "budget_of_tokens", formula, left_bytes, pool_bytes=budget, compressor_states=fixed)
            tokens_of_bytes(tokens, settings, left_bytes, cell, steps)
        return tokens, left_bytes

    def requests_with_states(self, place: int, budget: int) -> int:
        """Requests that have compressors of 128 tokens in a pool of ``budget`` bytes on a stage: all that may run."""
        if self.settings.own_requests is not None:
            return self.settings.own_requests
        return most_running(self.settings, floored(budget / self.cells[place]), None)

    def states_bytes(self, stage: CompressedStage, requests: int) -> int:
        """Bytes of the compressors of 128 tokens, which every request has (``_get_c128_state_fixed_bytes``)."""
        if not self.settings.rules.compressed_states_by_request:
            return 0
        ring = self.layout.ring(_MANY)
        rows = -(-((requests + 1) * ring + ring + 1) // _MANY) * _MANY
        return rows * self.layout.many_bytes * stage.many

    def _fixed_bytes(self, stage: CompressedStage, requests: int) -> float:
        """Bytes of a stage that are no share of its tokens, for so many requests."""
        fixed = self.states_bytes(stage, requests)
        return fixed + (0 if self.settings.swa_ratio is not None else self._capped_windows * self.layout.swa_bytes(stage))

    def windows_of(self, tokens: int, steps: list[Step] | None = None) -> int:
        ratio = self.settings.swa_ratio
        return self._capped_windows if ratio is None else tokens_in_share(self.settings, ratio, tokens, steps)

    @cached_property
    def _capped_windows(self) -> int:
        """Window tokens, where they follow from the requests: the most that all requests hold, and the tails of kept prefixes."""
        layout, settings = self.layout, self.settings
        tails = _TAILS * (settings.own_requests or 1) if settings.radix else 0
        cap = request_cap(settings, layout.window) + tails * (layout.window + layout.page_size)
        return -(-cap // layout.page_size) * layout.page_size

    def checks(self, figures: Figures) -> Iterator[tuple[bool, str]]:
        yield figures.budget_bytes > 0, NOTHING_LEFT if self.settings.rules.weights_check else NO_TOKENS
        yield figures.tokens > 0, NO_TOKENS
        if self.settings.swa_ratio is not None and self.layout.rules.compressed_window_check:
            assert figures.swa_tokens is not None
            yield figures.swa_tokens > self.layout.window + self.layout.page_size, NO_WINDOW

    def bounds(self, demand: Demand) -> tuple[int, int]:
        settings, layout = self.settings, self.layout
        if settings.swa_ratio is not None and layout.rules.compressed_window_check:
            demand = with_a_window(demand, layout.window, layout.page_size)
        tokens = self.least_tokens(demand, settings.swa_ratio or 0)
        few, many = (0, MOST_REQUESTS) if settings.own_requests is None else (settings.own_requests,) * 2
        low, high = (
            largest(
                tokens * cell + self._fixed_bytes(stage, requests) for stage, cell in zip(layout.stages, self.cells, strict=True)
            )
            for requests in (few, many)
        )
        return around(low)[0], around(high)[1]

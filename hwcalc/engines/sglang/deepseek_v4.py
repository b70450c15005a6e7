"""The pools of DeepSeek-V4: tokens of windows, entries of groups of 4 and of 128 tokens, and the states of their compressors.

Source: SGLang 0.5.23, ``pool_configurator.py`` (``DSV4PoolConfigurator``), ``deepseek_v4_memory_pool.py`` and ``dsv4/kv_layout.py``. A row is
448 numbers in fp8, 64 in bf16 and 8 scales; the rows of a page are padded to a multiple of 576 bytes. All of it is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hwcalc.engines.sglang.layout import stage_spans
from hwcalc.engines.sglang.settings import SglangSettings
from hwcalc.engines.sglang.sizes import LOADED, Figures, Sizes, most_running, request_cap
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import CompressedAttention, Stack
from hwcalc.formulas.arithmetic import either, floored, larger
from hwcalc.formulas.record import Record

__all__ = [
    "CompressedLayout",
    "CompressedStage",
    "compressed_checks",
    "compressed_figures",
    "compressed_layout",
    "compressed_sizes",
    "fixed_bytes",
    "state_requests",
    "state_rows_bytes",
    "window_places",
]

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

    def row_bytes(self, ratio: int = 1) -> float:
        """Bytes of an entry for ``ratio`` tokens, with its share of the padding of a page."""
        rows = self.page_size // ratio
        row = self.head_dim - _ROPE + 2 * _ROPE + _SCALES
        return -(-rows * row // _PAGE_ALIGN) * _PAGE_ALIGN / rows

    def ring(self, ratio: int) -> int:
        """Rows of the ring of a compressor."""
        return _RINGS[ratio][self.drafts]

    @property
    def index_bytes(self) -> int:
        """An indexer's key in fp8 with a scale."""
        return self.index_head_dim + self.index_head_dim // 128 * 4

    def inflation(self, stage: CompressedStage) -> float:
        """What a draft of one layer adds to every byte."""
        return (stage.layers + 1) / stage.layers if self.drafts else 1.0

    def swa_bytes(self, stage: CompressedStage) -> float:
        """Bytes of a window token: a row in every layer, and its share of the compressors of 4 tokens."""
        states = 2 * 2 * (self.head_dim + self.index_head_dim) * _STATE_BYTES
        own = self.row_bytes() * stage.layers + self.ring(_FEW) / self.page_size * states * stage.few
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
        raise UnsupportedError(
            "SGLang compresses 4 and 128 tokens; kvplan knows no other of its pools.", hint="Use: --engine reference"
        )
    if settings.page_size % _MANY:
        raise UnsupportedError(
            f"page_size {settings.page_size}: SGLang's compressed attention needs a multiple of 128.",
            hint="Leave it out, or use: --engine-option page_size=256",
        )
    if settings.kv_dtype != "fp8_e4m3":
        raise UnsupportedError(
            f"--dtype {settings.kv_dtype}: SGLang keeps the cache of DeepSeek-V4 in fp8_e4m3.", hint="Use: --dtype fp8_e4m3"
        )

    def stage_of(span: range) -> CompressedStage:
        own = [kinds[number].compress_ratio for number in span]
        return CompressedStage(layers=len(own), few=own.count(_FEW), many=own.count(_MANY))

    stages = tuple(map(stage_of, stage_spans(len(stack), settings.pp)))
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
    )


def state_rows_bytes(layout: CompressedLayout, stage: CompressedStage, requests: int) -> int:
    """Bytes of the compressors of 128 tokens, which every request has (``_get_c128_state_fixed_bytes``)."""
    ring = layout.ring(_MANY)
    rows = -(-((requests + 1) * ring + ring + 1) // _MANY) * _MANY
    return rows * 2 * layout.head_dim * _STATE_BYTES * stage.many


def state_requests(layout: CompressedLayout, stage: CompressedStage, settings: SglangSettings, budget: int) -> int:
    """Requests that have compressors of 128 tokens in a pool of ``budget`` bytes: all that may run."""
    if settings.own_requests is not None:
        return settings.own_requests
    return most_running(settings, floored(budget / layout.token_bytes(stage, settings.swa_ratio)), None)


def compressed_figures(layout: CompressedLayout, settings: SglangSettings, budget: int) -> Figures:
    """The pools of ``budget`` bytes on each rank; the stage with the fewest tokens counts."""
    first, *others = layout.stages
    (tokens, left), fullest = _stage_tokens(layout, first, settings, budget), 0
    for place, stage in enumerate(others, 1):
        own, own_left = _stage_tokens(layout, stage, settings, budget)
        fewer = own < tokens
        tokens, left, fullest = either(fewer, own, tokens), either(fewer, own_left, left), either(fewer, place, fullest)
    limit = settings.total_tokens
    if limit is not None:
        above = tokens > limit
        tokens, left = either(above, limit // layout.page_size * layout.page_size, tokens), either(above, budget, left)
    return Figures(
        tokens=tokens,
        swa_tokens=window_places(layout, settings, tokens),
        slots=None,
        running=either(tokens > 0, most_running(settings, tokens, None), 0),
        after_states_bytes=left,
        fullest=fullest,
    )


def compressed_checks(
    layout: CompressedLayout, settings: SglangSettings, found: Figures, budget: int
) -> Iterator[tuple[bool, str]]:
    """What SGLang checks of its pools before it starts, in this order, and what it says if that does not hold."""
    yield budget > 0, LOADED
    yield found.tokens > 0, "Not enough memory. Please try to increase --mem-fraction-static."
    if settings.swa_ratio is not None:
        assert found.swa_tokens is not None
        yield found.swa_tokens > layout.window + layout.page_size, "SWA pool ({swa} tokens) cannot hold even one request."


def compressed_sizes(layout: CompressedLayout, settings: SglangSettings, budget: int) -> Sizes:
    """The pools of ``budget`` bytes on each rank, or what SGLang says where it makes none."""
    found = compressed_figures(layout, settings, budget)
    error = next((words for passed, words in compressed_checks(layout, settings, found, budget) if not passed), None)
    return Sizes(
        tokens=found.tokens,
        swa_tokens=found.swa_tokens,
        slots=None,
        running=found.running,
        after_states_bytes=found.after_states_bytes,
        cell=layout.token_bytes(layout.stages[found.fullest], settings.swa_ratio),
        error=None if error is None else error.format(swa=found.swa_tokens),
    )


def fixed_bytes(layout: CompressedLayout, stage: CompressedStage, settings: SglangSettings, requests: int) -> float:
    """Bytes of a stage that are no share of its tokens, for so many requests."""
    fixed = state_rows_bytes(layout, stage, requests)
    return fixed + (0 if settings.swa_ratio is not None else _capped_windows(layout, settings) * layout.swa_bytes(stage))


def window_places(layout: CompressedLayout, settings: SglangSettings, tokens: int) -> int:
    """Window tokens beside so many tokens."""
    if settings.swa_ratio is None:
        return _capped_windows(layout, settings)
    places: int = floored(tokens * settings.swa_ratio) // layout.page_size * layout.page_size
    return places


def _capped_windows(layout: CompressedLayout, settings: SglangSettings) -> int:
    """Window tokens where they follow from the requests: what these hold at the worst, and the tails of prefixes that are kept."""
    tails = _TAILS * (settings.own_requests or 1) if settings.radix else 0
    cap = request_cap(settings, layout.window) + tails * (layout.window + layout.page_size)
    return -(-cap // layout.page_size) * layout.page_size


def _stage_tokens(layout: CompressedLayout, stage: CompressedStage, settings: SglangSettings, budget: int) -> tuple[int, int]:
    """Tokens of one stage, and the bytes that are left for them."""
    page, cell = layout.page_size, layout.token_bytes(stage, settings.swa_ratio)
    left = larger(budget - fixed_bytes(layout, stage, settings, state_requests(layout, stage, settings, budget)), 0)
    tokens = floored(left / cell) // page * page
    # A quotient that was rounded up is no whole page more.
    return either((tokens > 0) & (tokens * cell > left), tokens - page, tokens), floored(left)

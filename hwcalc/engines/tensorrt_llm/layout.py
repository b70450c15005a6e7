"""What a layer keeps on one rank, the layers of each pipeline stage, and how the cache manager divides a budget over them.

A layer has rows in blocks, all of them or those of a window, and states. V1 makes one pool of blocks, or with several windows one for each, of
equal shares of the budget. V2 first reckons a quota in tokens: bytes for each token, and for each of ``max_batch_size`` requests the blocks of
its windows and its states; while prompts are read, windowed layers cost each token of a batch too. That limits the quota by ``max_tokens`` and
by the rank with least (:class:`Layout`). Then V2 divides the quota (:mod:`hwcalc.engines.tensorrt_llm.storage`).

Read, not run: pyexecutor/resource_manager.py get_cache_bytes_per_token and calculate_max_num_blocks, vswa.py calculate_max_num_blocks_for_vswa,
sparse/dsa/cache_manager.py, sparse/deepseek_v4/deepseek_v4.py get_token_bytes, config_utils.py get_states_bytes_per_layer,
kv_cache/kv_cache_manager_v2.py _get_max_tokens_from_quota and _get_quota_from_max_tokens, mamba_cache_manager_v2.py and
sparse/deepseek_v4/cache_manager.py (the same names) of the sources of 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.steps import Step, figure
from hwcalc.engines.tensorrt_llm.settings import ITEM_BYTES, Settings
from hwcalc.engines.tensorrt_llm.storage import FOREVER, Dealt, Storage, storage_of
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    Mamba2,
    NoCache,
    Role,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.arithmetic import ceil_div, ceiled, either, floored, largest, last_good, picked, smaller, some
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.formulas.attention import AttentionKind

_PADDING: Final = 7 * 2**21
"""DeepSeek-V4's manager adds 2 MiB for each of its kinds of buffers."""
_RESUMED: Final = 0.95
"""``max_util_for_resume``: the share of a quota that counts where it is said in tokens."""
_SCALE_EVERY: Final = 16
_INDEX_SCALE_EVERY: Final = 128
_STATE: Final = 4
"""Bytes of a number of DeepSeek-V4's compressor, which is always fp32."""


class Piece(Record):
    """One buffer of a layer on a rank: ``row`` bytes for each token of a block, or ``state`` bytes for each slot.

    ``window`` cuts it to the blocks of the last tokens; ``key`` is what layers have in common that share one scratch block.
    """

    name: str
    role: Role
    dtype: str
    row: int = 0
    state: int = 0
    window: int | None = None
    key: tuple[object, ...] = ()


def _attention(kind: AttentionKind, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """Keys and values, which are as wide as keys; with more ranks than heads each rank has a head."""
    if settings.kv_dtype == "fp8_ds_mla":
        raise UnsupportedError(f"--dtype fp8_ds_mla packs a latent; {kind.title} has keys.", hint="Use: --dtype fp8")
    numbers = -(-kind.num_key_value_heads // settings.tp) * kind.head_dim
    row = _row(numbers, settings)
    return tuple(
        Piece(name=name, role=role, dtype=settings.kv_dtype, row=row, window=window, key=(window, 2 * row))
        for name, role in (("keys", Role.KEY), ("values", Role.VALUE))
    )


def _row(numbers: int, settings: Settings) -> int:
    """Bytes of ``numbers`` numbers in the KV dtype, with their scales."""
    if settings.kv_dtype == "nvfp4":
        if numbers % _SCALE_EVERY:
            message = f"NVFP4 cache size must be divisible by quant vector size: {numbers:,} numbers are no multiple of 16."
            raise UnsupportedError(message, hint="Use: --dtype fp8")
        return numbers // 2 + numbers // _SCALE_EVERY
    return numbers * ITEM_BYTES.get(settings.kv_dtype, 1)


def _latent(kind: LatentAttention, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """One row that is key and value at once, whole on every rank."""
    if kind.window is not None:
        raise UnsupportedError("TensorRT-LLM has no latent attention with a window.", hint="Plan it with --engine vllm.")
    if settings.kv_dtype == "fp8_ds_mla":
        row = kind.kv_lora_rank + kind.kv_lora_rank // 128 * 4 + 2 * kind.qk_rope_head_dim
    else:
        row = _row(kind.kv_lora_rank + kind.qk_rope_head_dim, settings)
    return (Piece(name="latent", role=Role.LATENT, dtype=settings.kv_dtype, row=row, window=window, key=(window, row)),)


def _indexer(kind: SparseIndexer, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    if not kind.index_quantized or kind.index_extra_elements:
        message = "TensorRT-LLM keeps this indexer's keys in pools of their own, whose rows are not known."
        raise UnsupportedError(message, hint="Plan it with --engine vllm.")
    # With a scale for each 128 numbers, whatever the KV dtype.
    width = kind.index_head_dim
    row = (width // 2 if settings.index_fp4 else width) + width // _INDEX_SCALE_EVERY * 4
    return (Piece(name="indexer_keys", role=Role.INDEX, dtype="fp4" if settings.index_fp4 else "fp8", row=row),)


def _compressed(kind: CompressedAttention, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """DeepSeek-V4: a window of raw tokens and of the compressor's states in whole blocks, and rows of compressed tokens."""
    item, ratio, dtype = ITEM_BYTES.get(settings.kv_dtype, 1), kind.compress_ratio, settings.kv_dtype
    held = [_sliding("window_latent", Role.LATENT, dtype, kind.head_dim * item, kind.window, 1)]
    if ratio is None:
        return tuple(held)
    halves = 2 if kind.overlap else 1
    reach = halves * ratio
    held.append(Piece(name="compressed_latent", role=Role.LATENT, dtype=dtype, row=kind.head_dim * item // ratio))
    state = halves * kind.head_dim * _STATE
    held += [_sliding(name, Role.STATE, "fp32", state, reach, ratio) for name in ("compressor_value", "compressor_gate")]
    if kind.index_head_dim is not None:
        width = kind.index_head_dim
        row = width // 2 + width // 32 if settings.index_fp4 else width + width // _INDEX_SCALE_EVERY * 4
        held.append(Piece(name="indexer_keys", role=Role.INDEX, dtype="fp8", row=row // ratio))
        state = halves * width * _STATE
        held += [_sliding(name, Role.STATE, "fp32", state, reach, ratio) for name in ("indexer_value", "indexer_gate")]
    return tuple(held)


def _sliding(name: str, role: Role, dtype: str, row: int, window: int, ratio: int) -> Piece:
    return Piece(name=name, role=role, dtype=dtype, row=row, window=window, key=(name, ratio))


def _state(conv: int, columns: int, matrix: int, settings: Settings) -> tuple[Piece, ...]:
    """The convolution's last columns in the model's dtype, and the recurrence in that of states."""
    if settings.model_dtype not in ITEM_BYTES:
        message = f"TensorRT-LLM computes convolutions in {', '.join(ITEM_BYTES)}, and the config says {settings.model_dtype}."
        raise UnsupportedError(message, hint="Check the key torch_dtype of the config, or plan it with --engine vllm.")
    columns_bytes = conv // settings.tp * columns * ITEM_BYTES[settings.model_dtype]
    return (
        Piece(name="conv_state", role=Role.CONV, dtype=settings.model_dtype, state=columns_bytes),
        Piece(name="state", role=Role.STATE, dtype=settings.state_dtype, state=matrix * ITEM_BYTES[settings.state_dtype]),
    )


def _mamba2(kind: Mamba2, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    heads = _share(kind.num_heads, settings.tp, "num_heads")
    conv = kind.num_heads * kind.head_dim + 2 * kind.n_groups * kind.d_state
    return _state(conv, kind.d_conv - 1, heads * kind.head_dim * kind.d_state, settings)


def _gated_delta(kind: GatedDeltaNet, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    heads = _share(kind.num_value_heads, settings.tp, "num_value_heads")
    return _state(kind.conv_dim, kind.d_conv - 1, heads * kind.value_head_dim * kind.key_head_dim, settings)


def _kimi_delta(kind: KimiDeltaAttention, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    """The convolution keeps as many columns as it is wide, one more than it needs."""
    heads = _share(kind.num_heads, settings.tp, "num_heads")
    return _state(kind.conv_dim, kind.d_conv, heads * kind.head_dim * kind.head_dim, settings)


def _share(number: int, tp: int, name: str) -> int:
    if number % tp:
        raise UsageError(f"TensorRT-LLM cannot split {name} {number:,} over tp {tp}.", hint="Use a tp that divides it.")
    return number // tp


def _nothing(kind: LayerKind, settings: Settings, window: int | None) -> tuple[Piece, ...]:
    return ()


RULES: Final[Mapping[type[LayerKind], Callable[..., tuple[Piece, ...]]]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _attention,
        LatentAttention: _latent,
        SparseIndexer: _indexer,
        CompressedAttention: _compressed,
        Mamba2: _mamba2,
        GatedDeltaNet: _gated_delta,
        KimiDeltaAttention: _kimi_delta,
        NoCache: _nothing,
    }
)


class Stage(Record):
    """The layers of one pipeline stage: the pieces of each kind, and how many layers have them."""

    kinds: tuple[tuple[tuple[Piece, ...], int], ...]

    @cached_property
    def pieces(self) -> tuple[tuple[Piece, int], ...]:
        """Each piece and how many layers have it."""
        return tuple((piece, count) for pieces, count in self.kinds for piece in pieces)

    @cached_property
    def growing(self) -> int:
        """Bytes for each token, in layers that keep all of them."""
        return sum(count * piece.row for piece, count in self.pieces if piece.window is None)

    @cached_property
    def windows(self) -> dict[int, int]:
        """Window -> bytes for each token in the layers with that window, the smallest first."""
        found: dict[int, int] = {}
        for piece, count in self.pieces:
            if piece.window is not None:
                found[piece.window] = found.get(piece.window, 0) + count * piece.row
        return dict(sorted(found.items()))

    @cached_property
    def state(self) -> int:
        """Bytes of a slot of all recurrent states."""
        return sum(count * piece.state for piece, count in self.pieces)

    def reading(self, scratch: bool) -> int:
        """Bytes of windowed layers for each token of a prompt that is read; with scratch blocks one layer of each kind."""
        sliding = [(piece, count) for piece, count in self.pieces if piece.window is not None]
        if not scratch:
            return sum(count * piece.row for piece, count in sliding)
        return sum({piece.key: piece.row for piece, _ in sliding}.values())


class Layout(Record):
    """What the manager knows: the stages, the settings, and the kinds with their pieces."""

    stages: tuple[Stage, ...]
    settings: Settings
    kinds: tuple[tuple[LayerKind, tuple[Piece, ...]], ...]
    compressed: bool

    @cached_property
    def windows(self) -> tuple[int | None, ...]:
        """The windows of all stages, the smallest first; ``None`` is every token."""
        windows = sorted({window for stage in self.stages for window in stage.windows})
        return (*windows, None) if any(stage.growing for stage in self.stages) or not windows else tuple(windows)

    @property
    def several(self) -> bool:
        """True if V1 divides its budget over windows."""
        return not self.settings.v2 and len(self.windows) > 1

    @cached_property
    def slots(self) -> int:
        """Slots of states without those of snapshots: for all requests of all stages, a padded one for graphs, one for attention DP."""
        settings = self.settings
        return settings.sequences * settings.pp + 1 + settings.attention_dp if any(stage.state for stage in self.stages) else 0

    def storages(self, length: int) -> tuple[Dealt, ...]:
        """V2: the pools of every stage. The longest sequence divides them where the model has states, or where it says so itself."""
        by_length = self.compressed or self.slots or self.settings.expected is not None
        if not by_length:
            return self._usual_storages
        return self._storages_of_length(length) if isinstance(length, int) else self._sized_storages(length)

    @cached_property
    def _storages_of_length(self) -> Callable[[int], tuple[Dealt, ...]]:
        """The pools of one length. A solver tries many numbers of sequences of a length: it takes two thirds of the time to keep them."""
        return cache(self._sized_storages)

    def _sized_storages(self, length: int) -> tuple[Dealt, ...]:
        return tuple(storage.sized(self.settings, length, compressed=self.compressed) for storage in self._usual_storages)

    @cached_property
    def _usual_storages(self) -> tuple[Storage, ...]:
        return tuple(storage_of(stage.kinds, self.settings, compressed=self.compressed) for stage in self.stages)

    def rows(self, stage: Stage, window: int | None) -> int:
        """Bytes for each token of the layers of a stage with this window."""
        return stage.growing if window is None else stage.windows.get(window, 0)

    def blocks(self, window: int | None, tokens: int) -> int:
        """The most blocks that a sequence holds in the pool of a window.

        V1 keeps one more, so that the window is always whole (kSWAExtraBlock); V2 those that tokens of a window lie in wherever it begins.
        """
        size = self.settings.block
        whole = ceil_div(tokens, size)
        if window is None:
            return whole
        kept = smaller(whole, ceil_div(window - 1, size) + 1) if self.settings.v2 else ceil_div(window, size) + 1
        blocks: int = either(tokens <= window, whole, kept)
        return blocks

    def window_bytes(self, stage: Stage) -> int:
        """Bytes of one request's windows under V2."""
        size = self.settings.block
        return sum(ceil_div(window, size) * size * row for window, row in stage.windows.items())

    def snapshots(self, tokens: int) -> int:
        """Slots of kept states for a pool of so many tokens."""
        settings = self.settings
        return tokens // settings.interval if settings.interval is not None and settings.reuse and self.slots else 0

    def _cost(self, stage: Stage, tokens: float) -> int:
        """V2: the bytes that a stage takes for so many tokens, as the manager reckons."""
        settings = self.settings
        kept = 0 if settings.interval is None else self.snapshots(floored(tokens))
        cost: int = floored(
            tokens * stage.growing
            + smaller(tokens, settings.batched_tokens) * stage.reading(settings.scratch)
            + settings.sequences * self.window_bytes(stage)
            + ((self.slots + kept) * stage.state if stage.state else 0)
            + (kept > 0) * settings.sequences * settings.pp * stage.growing * settings.block
            + (_PADDING if self.compressed else 0)
        )
        return cost

    def _tokens_for(self, stage: Stage, quota: int) -> float:
        """V2: the tokens that a quota holds on one stage, by the same reckoning. It is exact where there are no kept states."""
        settings, fixed = self.settings, self._cost(stage, 0)
        each = stage.growing + stage.reading(settings.scratch)
        few: float = (quota - fixed) / each if each else math.inf
        many: float = math.inf
        if stage.growing:
            many = settings.batched_tokens + (quota - fixed - settings.batched_tokens * each) / stage.growing
        if settings.interval is not None and stage.state and stage.growing and self.snapshots(FOREVER):
            many = last_good((quota - fixed) // stage.growing, lambda count: self._cost(stage, count) <= quota)
        found: float = picked(quota <= settings.batched_tokens * each + fixed, few, many)
        tokens: float = picked(fixed > quota, 0.0, found)
        return tokens

    def quotas(self, budget: int, *, capped: bool = True) -> tuple[int, ...]:
        """V2: the quota of each stage: the budget, less where ``max_tokens`` or the rank with fewest tokens needs less."""
        settings, cap = self.settings, self.settings.most_tokens if capped else None
        quotas = [budget for _ in self.stages]
        if cap is not None:
            quotas = [smaller(budget, ceiled(self._cost(stage, cap) / _RESUMED)) for stage in self.stages]
        if settings.ranks > 1:
            each = [self._tokens_for(stage, floored(quota * _RESUMED)) for stage, quota in zip(self.stages, quotas, strict=True)]
            fewest = -largest(-tokens for tokens in each)
            ends = fewest < math.inf
            if some(ends):
                tokens = picked(ends, fewest, 0.0)
                needs = [ceiled(self._cost(stage, tokens) / _RESUMED) for stage in self.stages]
                quotas = [either(ends, smaller(*pair), pair[0]) for pair in zip(quotas, needs, strict=True)]
        return tuple(quotas)

    def pool_blocks(self, budget: int, steps: list[Step] | None = None) -> dict[int | None, int]:
        """V1: the blocks of each pool, of the stage that has fewest."""
        settings, size = self.settings, self.settings.block
        if self.several:
            return self._window_blocks(budget, steps)
        (window,) = self.windows
        row = max((self.rows(stage, window) for stage in self.stages), default=0)
        if not row or settings.most_tokens is not None:
            tokens = budget // row if row else FOREVER
            return {window: (tokens if settings.most_tokens is None else min(tokens, settings.most_tokens)) // size}
        tokens = figure(steps, "tokens", "floor(budget / bytes_per_token)", unit="tokens", budget=budget, bytes_per_token=row)
        terms = {"tokens": tokens, "tokens_per_block": size}
        return {window: figure(steps, "blocks", "floor(tokens / tokens_per_block)", unit="blocks", **terms)}

    def _window_blocks(self, budget: int, steps: list[Step] | None) -> dict[int | None, int]:
        """V1 with several windows, each of which has an equal share of the budget."""
        size, share, scaled = self.settings.block, 1.0 / len(self.windows), self.settings.kv_dtype == "nvfp4"
        pools: dict[int | None, int] = {}
        if self.settings.most_tokens is not None or scaled:
            steps = None
        for number, window in enumerate(self.windows, start=1):
            rows = [self.rows(stage, window) for stage in self.stages]
            # V1 counts in floating point. Its figure for NVFP4 leaves out the scales, as the manager does.
            counted = [row * 8 // 9 if scaled else row for row in rows]
            pools[window] = figure(
                steps,
                f"window_blocks_{number}",
                "floor(budget / windows / window_block_bytes)",
                min(int(budget * share / row // size) if row else FOREVER for row in counted),
                unit="blocks",
                budget=budget,
                windows=len(self.windows),
                window_block_bytes=max(rows) * size,
            )
        names = {f"window_blocks_{number}": blocks for number, blocks in enumerate(pools.values(), start=1)}
        figure(steps, "blocks", f"min({', '.join(names)})", unit="blocks", **names)
        # The pool of the longest window comes last.
        longest = next(name for name, count in names.items() if count == pools[self.windows[-1]])
        terms = {longest: names[longest], "tokens_per_block": size}
        figure(steps, "tokens", f"{longest} x tokens_per_block", unit="tokens", **terms)
        return pools

    def needed(self, stage: Stage, blocks: Mapping[int | None, int]) -> int:
        """V1: the budget that holds so many blocks in each pool."""
        size = self.settings.block
        each = [blocks[window] * size * self.rows(stage, window) for window in self.windows]
        if self.settings.kv_dtype == "nvfp4" and self.several:
            each = [ceil_div(bytes_ * 8, 9) for bytes_ in each]
        most: int = largest(each) if each else 0
        return len(each) * most

"""What a token costs on each pipeline stage, and what a slot of states costs: the rows and states of one layer on a rank, and their sums.

Source: SGLang 0.5.23, ``model_executor/pool_configurator.py`` and ``mem_cache/kv_cache_configurator.py``. Heads are divided and rounded
down, at least one a rank; a latent and an indexer are whole on every rank. States: ``configs/mamba_utils.py`` (``Mamba2StateShape``,
``KimiLinearStateShape``). A slot has the state of every recurrent layer. Convolution states are bf16, recurrent ones float32 unless the
config or the user says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.options import AUTO, CacheFormat
from hwcalc.engines.sglang.rules import Rules
from hwcalc.engines.sglang.settings import (
    BLACKWELL,
    FOUR_BITS,
    HOPPER,
    STATE_KINDS,
    SglangSettings,
    is_sparse_latent,
    words_of,
)
from hwcalc.engines.versions import OLDEST, rules_in
from hwcalc.errors import UncountedError, UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    NoCache,
    Role,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    SparseIndexer,
    Stack,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

INDEX_BLOCK: Final = 128
"""Numbers of an indexer key that share a scale of four bytes."""
_SCALED_LATENT: Final = 128
"""Numbers of a latent that share one."""
_MX_BLOCK: Final = 32
_FP4_BLOCK: Final = 16
ROW_KINDS: Final = (FullAttention, SlidingAttention, ChunkedAttention, LatentAttention, SparseIndexer)
_FLOAT_INDEX_BYTES: Final = 2


class Row(NamedTuple):
    """One tensor of a layer: its bytes for a token on a rank, and the numbers that they hold."""

    name: str
    role: Role
    elements: int
    bytes: int
    dtype: str


def attention_elements(kind: AttentionKind, tp: int) -> tuple[int, int]:
    """Numbers of the key and of the value of a token on a rank."""
    heads = max(1, kind.num_key_value_heads // tp)
    return heads * kind.head_dim, heads * kind.v_head_dim


def rows_of(
    kind: LayerKind, settings: SglangSettings, *, sparse: bool, split: bool, fp8_index: bool = False, plain: bool = False
) -> tuple[Row, ...]:
    """The rows of a layer of this kind. ``sparse`` latents have an indexer; ``split`` is a model whose windows have their own pool.

    ``fp8_index`` says whether an indexer without scales follows a cache in fp8, and ``plain`` that scales are never counted.
    """
    if isinstance(kind, LatentAttention):
        width = kind.kv_lora_rank + kind.qk_rope_head_dim
        size = width * settings.element_bytes
        if settings.kv_dtype in FOUR_BITS:
            size = width // 2 + width // _FP4_BLOCK
        elif sparse and settings.kv_dtype == "fp8_e4m3" and not settings.raw_latents:
            # Scales of the latent, and the rotary key in 16 bits (``calculate_mla_kv_cache_dim``).
            size = kind.kv_lora_rank + kind.kv_lora_rank // _SCALED_LATENT * 4 + kind.qk_rope_head_dim * 2
        return (Row("latent", Role.LATENT, width, size, settings.kv_dtype),)
    if isinstance(kind, SparseIndexer):
        width = kind.index_head_dim
        if kind.index_quantized:
            return (Row("indexer_keys", Role.INDEX, width, width + width // INDEX_BLOCK * 4, "fp8_e4m3"),)
        size = settings.element_bytes if fp8_index else _FLOAT_INDEX_BYTES
        return (Row("indexer_keys", Role.INDEX, width, width * size, settings.kv_dtype if size == 1 else "bf16"),)
    assert isinstance(kind, AttentionKind)
    key, value = attention_elements(kind, settings.tp)
    name = settings.kv_dtype
    sizes = tuple(
        count * settings.element_bytes if plain else _row_bytes(count, key, settings, split=split) for count in (key, value)
    )
    return Row("keys", Role.KEY, key, sizes[0], name), Row("values", Role.VALUE, value, sizes[1], name)


def _row_bytes(elements: int, key: int, settings: SglangSettings, *, split: bool) -> int:
    if settings.kv_dtype == "mxfp8":
        return elements + elements // _MX_BLOCK
    if settings.kv_dtype in FOUR_BITS and not split and not settings.rules.fp4_by_method:
        # Values have as many scales as keys.
        return elements // 2 + key // _FP4_BLOCK
    if settings.kv_dtype in FOUR_BITS and not split:
        # Kernels of Blackwell read scales in an order of their own, and prompts are unpacked in another.
        layouts = 2 if settings.kv_dtype == "nvfp4" and settings.major == BLACKWELL and settings.unpacks else 1
        return elements // 2 + layouts * (elements // _FP4_BLOCK)
    # Pools that are split charge four bits a whole byte (``HybridSWAPoolConfigurator``).
    return elements * settings.element_bytes


def cache_formats(newest: str) -> tuple[CacheFormat, ...]:
    """The formats of the cache in all releases."""
    rule = rules_in(Rules)["kv_dtypes"]
    out = dict[str, CacheFormat]()
    for place, (first, known) in enumerate(rule.entries):
        since_ = "" if first == OLDEST else first
        for name in known:
            # The entries go from the newest to the oldest.
            until = rule.entries[place - 1][0] if place else ""
            bits, stored = _stored(name)
            made = CacheFormat(
                name=name, bits=bits, stored=stored, since=since_, until=until, source=f"SGLang {newest}, {rule.source}"
            )
            out[name] = made if name not in out else replace(out[name], since=since_)
    return tuple(each for name, each in out.items() if name not in (AUTO, "bf16", "bfloat16"))


def _stored(kv_dtype: str) -> tuple[float, str]:
    """The bits of a value with its scale, and where that lies."""
    if kv_dtype in FOUR_BITS:
        return 4 + 8 / _FP4_BLOCK, f"4 bits, and a scale of a byte for each {_FP4_BLOCK} values"
    if kv_dtype == "mxfp8":
        return 8 + 8 / _MX_BLOCK, f"8 bits, and a scale of a byte for each {_MX_BLOCK} values"
    return 8, "no scale in the cache, that of a layer is one of its weights"


FULL: Final = "full"
SWA: Final = "swa"
KINDS: Final[frozenset[type[LayerKind]]] = frozenset({*ROW_KINDS, *STATE_KINDS, CompressedAttention, NoCache, SharedCache})
"""The kinds of layers that have a rule: those of DeepSeek-V4 in :mod:`hwcalc.engines.sglang.deepseek_v4`, the others here."""
_CONV_BYTES: Final = 2
_STATE_BYTES: Final = {"fp32": 4, "fp16": 2, "bf16": 2}
_LAYER_TYPES: Final = {"sliding_attention": SWA, "full_attention": FULL}


class StageCells(Record):
    """What the layers of one stage take on a rank: bytes of a token in each pool, and of a slot in the pool of states.

    ``full_layers`` counts those whose tokens are all kept, as SGLang counts them for a draft. ``index_bytes`` are those of the indexers.
    """

    layers: int
    full_bytes: int
    full_layers: int
    swa_bytes: int
    swa_layers: int
    index_bytes: int
    index_layers: int
    workspace_bytes: int
    slot_bytes: int
    state_layers: int

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the layers that keep all."""
        return self.full_bytes + self.workspace_bytes


class PoolLayout(Record):
    """The stages of a model, the tensors of each kind of layer, and what its pools are divided by.

    ``window`` is the window as SGLang counts it; ``None`` without a pool of its own. ``state_bytes`` are those of both states, by kind.
    ``states_by_stage`` says whether a stage counts the states of its own layers alone.
    """

    stages: tuple[StageCells, ...]
    rows: Mapping[LayerKind, tuple[Row, ...]]
    pools: Mapping[LayerKind, str]
    window: int | None
    state_bytes: Mapping[LayerKind, tuple[int, int]]
    states_by_stage: bool

    @property
    def delta_nets(self) -> bool:
        """True if the states are those of gated delta nets."""
        return any(isinstance(kind, GatedDeltaNet) for kind in self.state_bytes)

    @property
    def has_states(self) -> bool:
        """True if there is a pool of states."""
        return bool(self.state_bytes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot on the stage with most states; all stages have as many slots."""
        layers, most = sum(stage.state_layers for stage in self.stages), max(stage.state_layers for stage in self.stages)
        size = sum(stage.slot_bytes for stage in self.stages)
        # The product of a float, as there.
        return int(size * (most / max(1, layers))) if self.states_by_stage else size


def stage_spans(layers: int, stages: int) -> tuple[range, ...]:
    """The layers of each stage: left-over layers go to the last ones (``get_pp_indices``).

    >>> [len(span) for span in stage_spans(61, 4)]
    [15, 15, 15, 16]
    """
    if stages > layers:
        raise UsageError(f"pp {stages:,} is more than the model's {layers:,} layers.", hint="Use a smaller pp.")
    each, more = divmod(layers, stages)
    sizes = [each + (stage >= stages - more) for stage in range(stages)]
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def plan_layout(model: ModelSpec, stack: Stack, settings: SglangSettings) -> PoolLayout:
    """The layout of a model other than DeepSeek-V4. Raises :class:`~hwcalc.errors.UnsupportedError` for a kind without a rule."""
    kinds, words = tuple(group.kind for group in stack.groups), words_of(model, settings.rules)
    split, states = settings.splits, dict[LayerKind, tuple[int, int]]()
    for kind in kinds:
        if isinstance(kind, STATE_KINDS):
            conv, state = _STATE_RULES[type(kind)](kind, settings.tp * (settings.dp if "whole_group_states" in words else 1))
            named = model.state_dtype if isinstance(kind, (GatedDeltaNet, Mamba2)) else None
            states[kind] = conv * _CONV_BYTES, state * _STATE_BYTES[settings.state_dtype or named or "fp32"]
    usual = None if states or split else _usual(kinds, model)
    rows = {kind: () if kind in states else _counted_rows(kind, usual, model, settings) for kind in kinds}
    pools = {kind: SWA if split and isinstance(kind, SlidingAttention | ChunkedAttention) else FULL for kind in kinds}
    shared, splits = _shared_pools(model, stack) if split else {}, SWA in pools.values()
    unpacks = settings.kv_dtype == "nvfp4" and settings.unpacks
    if not settings.rules.fp4_by_method:
        unpacks = settings.kv_dtype in FOUR_BITS and settings.rules.fp4_workspace
    latent = any(isinstance(kind, LatentAttention) for kind in pools)
    each_indexes = latent and not settings.rules.shares_indexers
    like = {pool: next((kind for kind, own in pools.items() if own == pool and rows[kind]), None) for pool in (FULL, SWA)}

    def stage(span: range) -> StageCells:
        """The bytes of a token and of a slot of states on one rank of the stage with these layers."""
        sizes, layers, index, indexers, slot, recurrent, workspace = {FULL: 0, SWA: 0}, {FULL: 0, SWA: 0}, 0, 0, 0, 0, 0
        own_layers, more = len(span), int(splits and not settings.rules.windows_by_stage)
        counted_layers = list(_counted(stack, range(span.start, min(span.stop + more, len(stack))), shared))
        if states and not settings.rules.attention_by_stage:
            whole = _counted(stack, range(len(stack)), shared)
            counted_layers = [
                *(row for row in counted_layers if row[0] in states),
                *(row for row in whole if row[0] not in states),
            ]
        # Before 0.5.18 layers that take the indexer of another one are counted with one of their own.
        latents = sum(count for kind, count, _ in counted_layers if isinstance(kind, LatentAttention))
        for kind, layer_count, named in counted_layers:
            count = latents if each_indexes and isinstance(kind, SparseIndexer) else layer_count
            if kind in states:
                slot, recurrent = slot + count * sum(states[kind]), recurrent + count
            pool = pools[kind] if named is None else named
            row_kind = kind if named is None else like[pool]
            size = sum(row.bytes for row in rows[row_kind]) if row_kind is not None else 0
            if not size:
                continue
            sizes[pool] += count * size
            if isinstance(kind, SparseIndexer):
                # Only with latents does a draft have an indexer of its own in each layer.
                index, indexers = (index + count * size, indexers + count) if latent else (index, indexers)
                continue
            layers[pool] += count
            counted = usual or kind
            # Four-bit keys and values take a place where one layer is unpacked in fp8 for prompts; pools of windows have none. Kernels of
            # Blackwell read four bits themselves (``NVFP4KVCacheMethod``), and ``fp4_mx_block16`` has no such place.
            if not splits and unpacks and isinstance(counted, AttentionKind):
                workspace = max(workspace, sum(attention_elements(counted, settings.tp)))
        return StageCells(
            layers=own_layers,
            full_bytes=sizes[FULL],
            full_layers=layers[FULL],
            swa_bytes=sizes[SWA],
            swa_layers=layers[SWA],
            index_bytes=index,
            index_layers=indexers,
            workspace_bytes=workspace,
            slot_bytes=slot,
            state_layers=recurrent,
        )

    windows = [kind.window if isinstance(kind, SlidingAttention) else kind.chunk for kind in kinds if pools[kind] == SWA]  # type: ignore[attr-defined]
    return PoolLayout(
        stages=tuple(map(stage, stage_spans(len(stack), settings.pp))),
        rows=rows,
        pools=pools,
        window=max(windows) - ("window_less_one" in words) if windows else None,
        state_bytes=states,
        states_by_stage=settings.rules.states_by_stage,
    )


def _usual(kinds: Iterable[LayerKind], model: ModelSpec) -> LayerKind | None:
    """The attention that every layer is counted as, also those that keep nothing: only a model with states has a list of layers.

    Raises :class:`~hwcalc.errors.UnsupportedError` where layers differ: SGLang counts one size for all.
    """
    counted_kinds = [kind for kind in kinds if isinstance(kind, ROW_KINDS) and not isinstance(kind, SparseIndexer)]
    # The config's first numbers of heads and their width are those of the layers that keep every token.
    counted_kinds = [kind for kind in counted_kinds if isinstance(kind, FullAttention)] or counted_kinds
    sizes = {tuple(tensor.shape for tensor in kind.tensors()) for kind in counted_kinds}
    if len(sizes) > 1:
        raise UnsupportedError(
            f"SGLang counts the same keys and values for every layer of {model.architecture or model.id}, but its layers differ.",
            hint="Use: --engine reference",
        )
    return counted_kinds[0] if counted_kinds else None


def _counted_rows(kind: LayerKind, usual: LayerKind | None, model: ModelSpec, settings: SglangSettings) -> tuple[Row, ...]:
    if isinstance(kind, NoCache | SharedCache):
        if usual is None:
            return ()
        kind = usual
    elif usual is not None and isinstance(kind, SlidingAttention | ChunkedAttention):
        kind = usual
    if not isinstance(kind, ROW_KINDS) or isinstance(kind, CompressedAttention):
        raise UncountedError(f"SGLang has no rule for {kind.title} that kvplan knows.", hint="Use: --engine reference")
    return rows_of(
        kind,
        settings,
        sparse=is_sparse_latent(model),
        split=settings.splits,
        fp8_index=settings.kv_dtype == "fp8_e4m3"
        and (
            (settings.major == HOPPER and "hopper" in settings.rules.index_fp8)
            or (settings.backend == "trtllm_mha" and "blackwell" in settings.rules.index_fp8)
        ),
        plain="minimax_sparse" in words_of(model, settings.rules),
    )


def _shared_pools(model: ModelSpec, stack: Stack) -> Mapping[int, str]:
    """The pool in which a layer that reads another one's cache is counted all the same, by its number (Gemma 4)."""
    layers = [number for number, layer in enumerate(stack) if any(isinstance(kind, SharedCache) for kind in layer)]
    types: Any = next((value for path, value in model.bearing.items() if path.split(".")[-1] == "layer_types"), None)
    if not layers:
        return {}
    if not isinstance(types, list | tuple) or len(types) != len(stack):
        message = f"SGLang counts layers of {model.id} that share a cache by their type, which its config does not say."
        raise UnsupportedError(message, hint="Use: --engine reference")
    return {number: _LAYER_TYPES.get(str(types[number]), FULL) for number in layers}


def _counted(stack: Stack, span: range, shared: Mapping[int, str]) -> Iterator[tuple[LayerKind, int, str | None]]:
    """The kinds of some layers, how often each is there, and the pool that the number of a layer names where it shares a cache."""
    for group in stack.groups if len(span) == len(stack) else stack.groups_of(span):
        if not shared or not isinstance(group.kind, SharedCache):
            yield group.kind, group.count, None
            continue
        for number in span:
            for kind in stack.layers[number]:
                if kind == group.kind:
                    yield kind, 1, shared[number]


def _groups(groups: int, tp: int) -> int:
    """Groups that are not divided evenly are repeated, one for each rank."""
    return groups if groups % tp == 0 else tp


def _share(count: int, tp: int, what: str) -> int:
    if count % tp:
        message = f"SGLang divides {what} evenly over ranks: {count:,} are not divisible by tp {tp:,}."
        raise UsageError(message, hint="Use another tp.")
    return count // tp


def _delta_net(kind: GatedDeltaNet, tp: int) -> tuple[int, int]:
    inner = kind.num_value_heads * kind.value_head_dim
    conv = _share(inner + 2 * _groups(kind.num_key_heads, tp) * kind.key_head_dim, tp, "channels of a convolution")
    heads = _share(kind.num_value_heads, tp, "heads of a state")
    return conv * (kind.d_conv - 1), heads * kind.value_head_dim * kind.key_head_dim


def _mamba2(kind: Mamba2, tp: int) -> tuple[int, int]:
    conv = _share(kind.num_heads * kind.head_dim + 2 * _groups(kind.n_groups, tp) * kind.d_state, tp, "channels of a convolution")
    return conv * (kind.d_conv - 1), _share(kind.num_heads, tp, "heads of a state") * kind.head_dim * kind.d_state


def _mamba1(kind: Mamba1, tp: int) -> tuple[int, int]:
    channels = _share(kind.d_inner, tp, "channels")
    return channels * (kind.d_conv - 1), channels * kind.d_state


def _kimi(kind: KimiDeltaAttention, tp: int) -> tuple[int, int]:
    heads = _share(kind.num_heads, tp, "heads of a state")
    return 3 * heads * kind.head_dim * (kind.d_conv - 1), heads * kind.head_dim * kind.head_dim


def _lightning(kind: LightningAttention, tp: int) -> tuple[int, int]:
    return 0, _share(kind.num_heads, tp, "heads of a state") * kind.head_dim * kind.head_dim


def _convolution(kind: ShortConvolution, tp: int) -> tuple[int, int]:
    return _share(kind.channels, tp, "channels of a convolution") * (kind.d_conv - 1), 0


_STATE_RULES: Final[Mapping[type[LayerKind], Callable[[Any, int], tuple[int, int]]]] = MappingProxyType(
    {
        GatedDeltaNet: _delta_net,
        Mamba2: _mamba2,
        Mamba1: _mamba1,
        KimiDeltaAttention: _kimi,
        LightningAttention: _lightning,
        ShortConvolution: _convolution,
    }
)

"""A model's layer caches in their groups, and what one request takes of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hwcalc.engines.vllm import formats, versions
from hwcalc.engines.vllm.blocks import backend_block, hybrid_block, kernel_block
from hwcalc.engines.vllm.drafts import draft_layers
from hwcalc.engines.vllm.groups import Group, form_groups
from hwcalc.engines.vllm.settings import Settings
from hwcalc.engines.vllm.specs import Limits, Spec, attention_spec, blocks_of, ceil_div, state_spec
from hwcalc.engines.vllm.states import STATE_KINDS, checkpoint_alignment, exports_checkpoints, state_bytes
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    LayerKind,
    SlidingAttention,
    SparseIndexer,
    Stack,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec
from hwcalc.profiles.dtypes import find_dtype

__all__ = ["Held", "Layout", "Part", "plan_layout"]

_KEEPERS: Final = (AttentionKind, LatentAttention, SparseIndexer, CompressedAttention, *STATE_KINDS)
_STATELESS: Final = frozenset({"shared_cache", "no_cache"})
_BOUNDARY: Final = 2
_WINDOW_BLOCK: Final = 64
_COMPRESSOR_BLOCKS: Final = {4: 4, 128: 8}
_PADDED_LATENT: Final = 640
# Latent in name only: vLLM runs it with full keys and values for every head.
_SPELLED_OUT: Final = frozenset({"MiniCPM3ForCausalLM"})
# Their config class keeps sliding_window where use_sliding_window is false, and vLLM applies it to every layer.
_WINDOWED: Final = frozenset({"MiMoForCausalLM"})


class Part(NamedTuple):
    """One cache of one layer.

    ``kind`` is the place of its kind among the stack's groups, ``layer`` and ``kind`` are -1 for a draft's; ``outer`` marks a layer
    that turboquant leaves alone.
    """

    name: str
    layer: int
    stage: int
    kind: int
    outer: bool


class Held(NamedTuple):
    """``kinds`` has one layer of each with its blocks: a packed one, where outer layers are not. The rest are bytes of one request:
    of all layers as if packed, what outer layers take beyond that, of drafts.
    """

    kinds: tuple[tuple[Part, Spec, int], ...]
    layers: int
    outer: int
    drafts: int


@frozen
class Layout:
    """Groups of one model. ``stage_bytes`` is what a block takes on each pipeline stage's ranks."""

    parts: tuple[Part, ...]
    groups: tuple[Group, ...]
    block_size: int
    limits: Limits
    stage_bytes: tuple[int, ...]
    depends_on_length: bool
    """Whether another longest sequence would be laid out otherwise: a state that has one block for a whole sequence, an encoder."""

    def held(self, length: int) -> Held:
        """What one request of ``length`` tokens holds on one rank of each stage, by kind."""
        kinds: dict[tuple[int, str], tuple[Part, Spec, int]] = {}
        counts: dict[tuple[int, str], int] = {}
        whole = drafts = 0
        for group in self.groups:
            blocks = self.blocks(group, length)
            for member, spec in zip(group.members, group.specs, strict=True):
                part = self.parts[member]
                if part.kind < 0:
                    drafts += blocks * spec.page
                    continue
                whole += blocks * spec.page
                key = (part.kind, part.name)
                counts[key] = counts.get(key, 0) + 1
                if key not in kinds or kinds[key][0].outer:
                    kinds[key] = (part, spec, blocks)
        plain = sum(count * kinds[key][1].page * kinds[key][2] for key, count in counts.items())
        return Held(kinds=tuple(kinds.values()), layers=plain, outer=whole - plain, drafts=drafts)

    def blocks(self, group: Group, length: int) -> int:
        """Blocks of one request of ``length`` tokens in one group: those of the member that needs most."""
        return max(blocks_of(spec, length, self.limits) for spec in group.distinct)

    def total_blocks(self, length: int) -> int:
        """Blocks of one request in all groups; each group draws on the one pool."""
        return sum(self.blocks(group, length) for group in self.groups)

    def longest(self, blocks: int, bound: int) -> int:
        """The longest request up to ``bound`` tokens that fits ``blocks``, 0 if none does; by halving."""
        low, high = 0, bound
        while low < high:
            middle = (low + high + 1) // 2
            if self.total_blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def plan_layout(model: ModelSpec, settings: Settings, length: int) -> Layout:
    """Every layer's caches, grouped. Raises :class:`~hwcalc.errors.UnsupportedError` for what vLLM has no layers for."""
    stack = model.stack_for("vllm")
    builder = _Builder(model, settings, length, stack)
    parts: list[Part] = []
    specs: list[Spec] = []
    numbers = {group.kind: number for number, group in enumerate(stack.groups)}
    known: dict[tuple[int, bool], tuple[tuple[str, Spec], ...]] = {}
    by_identity: dict[int, int] = {}
    for layer, stage, kinds in _placed(stack, settings.pp):
        outer = builder.leaves_outer and (layer < _BOUNDARY or layer >= len(stack) - _BOUNDARY)
        for kind in kinds:
            # By identity first: layers share their kinds, and comparing those costs more than all the rest.
            number = by_identity.get(id(kind), -1)
            if number < 0:
                number = by_identity[id(kind)] = numbers[kind]
            key = (number, outer)
            if key not in known:
                known[key] = builder.specs(kind, outer=outer)
            for name, spec in known[key]:
                parts.append(Part(name, layer, stage, number, outer))
                specs.append(spec)
    for kind in draft_layers(model, settings.speculation):
        for name, spec in builder.specs(kind, outer=False):
            parts.append(Part(name, -1, settings.pp - 1, -1, outer=False))
            specs.append(spec)
    packed = any(part.name == "window_latent" for part in parts)
    groups = form_groups(specs, hybrid=settings.hybrid, packed=packed)
    return Layout(
        parts=tuple(parts),
        groups=tuple(groups),
        block_size=builder.block,
        limits=builder.limits(),
        stage_bytes=_stage_bytes(parts, groups, settings.pp),
        depends_on_length=builder.depends_on_length,
    )


def _placed(stack: Stack, pp: int) -> Iterable[tuple[int, int, Sequence[LayerKind]]]:
    """Layers with their pipeline stage. What does not divide goes one each to the stages before the last, last first."""
    if pp > len(stack):
        raise UnsupportedError(f"pp {pp} is more than the model's {len(stack)} layers.", hint="Use a smaller pp.")
    counts = [len(stack) // pp] * pp
    for back in range(2, len(stack) % pp + 2):
        counts[-back] += 1
    layer = 0
    for stage, count in enumerate(counts):
        for _ in range(count):
            yield layer, stage, stack.layers[layer]
            layer += 1


def _stage_bytes(parts: Sequence[Part], groups: Sequence[Group], pp: int) -> tuple[int, ...]:
    widest = [0] * pp
    for group in groups:
        sums = [0] * pp
        for member, spec in zip(group.members, group.specs, strict=True):
            sums[parts[member].stage] += spec.page
        widest = [max(pair) for pair in zip(widest, sums, strict=True)]
    return tuple(widest)


class _Builder:
    """Kinds to specs."""

    def __init__(self, model: ModelSpec, settings: Settings, length: int, stack: Stack) -> None:
        self.model = model
        self.settings = settings
        self.length = length
        kinds = [group.kind for group in stack.groups if group.kind.name not in _STATELESS]
        for kind in kinds:
            if not isinstance(kind, _KEEPERS) or kind.name == "sink_attention":
                raise UnsupportedError(f"vLLM does not run {kind.title}.", hint="Use: --engine reference")
        self.states = [kind for kind in kinds if isinstance(kind, STATE_KINDS)]
        others = [kind for kind in kinds if not isinstance(kind, STATE_KINDS)]
        self.aligned = bool(self.states) and settings.prefix_caching
        self.leaves_outer = formats.is_turboquant(settings.word) and not self.states
        latent = next((kind for kind in kinds if isinstance(kind, LatentAttention)), None)
        kernel = kernel_block(
            frozenset(type(kind) for kind in kinds),
            settings.word,
            settings.architecture,
            None if latent is None else latent.qk_nope_head_dim,
        )
        self.block = backend_block(kernel, packed=self.leaves_outer, user=settings.block_size)
        self.padded = 0
        if self.states and others:
            state = max(self._state_bytes(kind) for kind in self.states)
            row = self._row(others[0])
            self.block = hybrid_block(
                self.block,
                kernel,
                attention_row=row,
                state=state,
                latent=latent is not None,
                alignment=self._alignment(),
            )
            self.padded = self.block * row

    def limits(self) -> Limits:
        modules = sum(1 for _ in draft_layers(self.model, self.settings.speculation))
        retained = self.settings.speculated - 1 if modules > 1 and self.settings.speculated > 1 else 0
        return Limits(
            in_flight=self.settings.in_flight,
            retained=retained,
            dcp=self.settings.dcp,
            encoder_tokens=max(self.settings.batched_tokens, self.length if self._encodes() else 0),
        )

    @property
    def depends_on_length(self) -> bool:
        """Whether :attr:`length` is in any of the specs."""
        return self._encodes() or (bool(self.states) and not self.aligned)

    def _encodes(self) -> bool:
        """Encoder-decoder models prefill in one piece, so that a batch holds the longest sequence."""
        return any(isinstance(group.kind, CrossAttention) for group in self.model.stack_for("vllm").groups)

    def specs(self, kind: LayerKind, *, outer: bool) -> tuple[tuple[str, Spec], ...]:
        """The caches of one layer of this kind, with their names."""
        return tuple(self._build(kind, outer=outer))

    def _build(self, kind: LayerKind, *, outer: bool) -> Iterable[tuple[str, Spec]]:
        if isinstance(kind, STATE_KINDS):
            yield "state", self._state(kind)
        elif isinstance(kind, CompressedAttention):
            yield from self._compressed(kind)
        elif isinstance(kind, SparseIndexer):
            yield "indexer_keys", self._spec("mla", 1, self._index_row(kind), f"index {kind.index_head_dim}")
        elif isinstance(kind, LatentAttention) and self.model.architecture not in _SPELLED_OUT:
            form = "mla" if kind.window is None else "sliding_mla"
            yield "latent", self._spec(form, 1, self._row(kind), self.settings.word, limit=kind.window or 0)
        elif isinstance(kind, (AttentionKind, LatentAttention)):
            heads, width, value = self._heads(kind)
            word = "auto" if outer else self.settings.word
            row = formats.row_bytes(word, width, value, self.settings.plain_bytes)
            form, limit = self._form(kind)
            yield _name(form), self._spec(form, heads, row, f"{word} {heads} {width} {value}", limit=limit)

    def _form(self, kind: LayerKind) -> tuple[str, int]:
        window = self.model.facts.sliding_window if self.model.architecture in _WINDOWED else None
        if window is not None:
            return "sliding", window
        return _form(kind)

    def _spec(self, form: str, heads: int, row: int, tag: str, *, limit: int = 0) -> Spec:
        return attention_spec(form, block_size=self.block, heads=heads, row=row, tag=tag, limit=limit)

    def _heads(self, kind: LayerKind) -> tuple[int, int, int]:
        """Key/value heads on a rank (never less than one), and the widths of a key and a value."""
        if isinstance(kind, LatentAttention):
            width = kind.qk_nope_head_dim + kind.qk_rope_head_dim
            return max(1, kind.num_attention_heads // self.settings.tp), width, width
        assert isinstance(kind, AttentionKind)
        return max(1, kind.num_key_value_heads // self.settings.tp), kind.head_dim, kind.v_head_dim

    def _row(self, kind: LayerKind) -> int:
        """Bytes of one token of one layer on a rank."""
        if isinstance(kind, LatentAttention) and self.model.architecture not in _SPELLED_OUT:
            width = kind.kv_lora_rank + kind.qk_rope_head_dim
            if self.settings.version < versions.PLAIN_LATENT_SINCE:
                width = ceil_div(width, _PADDED_LATENT) * _PADDED_LATENT
            return formats.latent_row(self.settings.word, width, self.settings.plain_bytes)
        heads, key, value = self._heads(kind)
        return heads * formats.row_bytes(self.settings.word, key, value, self.settings.plain_bytes)

    def _index_row(self, kind: SparseIndexer) -> int:
        width = kind.index_head_dim + kind.index_extra_elements
        if kind.index_quantized:
            return width + 4 * ceil_div(width, 128)
        return formats.latent_row(self.settings.word, width, self.settings.plain_bytes)

    def _compressed(self, kind: CompressedAttention) -> Iterable[tuple[str, Spec]]:
        """DeepSeek-V4: a window, and with a ratio compressed entries, the compressor's fp32 state, the same for the indexer."""
        packed = self.settings.word == "fp8_ds_mla"
        row = formats.COMPRESSED_ROW if packed else kind.head_dim * self.settings.plain_bytes
        align = 576 if packed else 512

        def cache(form: str, block: int, width: int, tag: str, limit: int = 0, per_state: int = 1) -> Spec:
            return attention_spec(
                form, block_size=block, heads=1, row=width, tag=tag, limit=limit, per_state=per_state, alignment=align
            )

        yield "window_latent", cache("sliding_mla", _WINDOW_BLOCK, row, "window", kind.window)
        ratio = kind.compress_ratio
        if ratio is None:
            return
        if ratio not in _COMPRESSOR_BLOCKS:
            raise UnsupportedError(f"vLLM has no compressor of ratio {ratio}.", hint="Use: --engine reference")
        block, halves = _COMPRESSOR_BLOCKS[ratio], 2 if kind.overlap else 1
        if kind.index_head_dim is not None:
            width = kind.index_head_dim + 4 * ceil_div(kind.index_head_dim, 128)
            yield "indexer_keys", cache("mla", self.block, width, "index", per_state=ratio)
            state = 2 * halves * kind.index_head_dim * 4
            yield "indexer_state", cache("sliding_mla", block, state, "index state", halves * ratio)
        yield "compressed_latent", cache("mla", self.block, row, f"compressed {ratio}", per_state=ratio)
        yield "compressor_state", cache("sliding_mla", block, 2 * halves * kind.head_dim * 4, "state", halves * ratio)

    def _state_bytes(self, kind: LayerKind) -> int:
        return state_bytes(
            kind,
            tp=self.settings.tp,
            speculated=self.settings.speculated,
            conv_bytes=_element(self.settings.conv),
            ssm_bytes=_element(self.settings.state),
        )

    def _checkpoints(self, kind: LayerKind) -> bool:
        return exports_checkpoints(kind, self.model, self.settings.architecture)

    def _alignment(self) -> int:
        if not self.aligned:
            return 1
        return max(checkpoint_alignment(kind, self.model, self.settings.architecture) for kind in self.states)

    def _state(self, kind: LayerKind) -> Spec:
        states = (2 + self._checkpoints(kind) if self.aligned else 1) + self.settings.speculated
        return state_spec(
            block_size=self.block if self.aligned else self.length,
            bytes_=self._state_bytes(kind),
            states=states,
            padded=self.padded,
            tag=kind.name,
        )


def _form(kind: LayerKind) -> tuple[str, int]:
    if isinstance(kind, SlidingAttention):
        return "sliding", kind.window
    if isinstance(kind, ChunkedAttention):
        return "chunked", kind.chunk
    if isinstance(kind, LatentAttention) and kind.window is not None:
        return "sliding", kind.window
    if isinstance(kind, CrossAttention):
        return "cross", 0
    assert isinstance(kind, (FullAttention, LatentAttention))
    return "full", 0


_NAMES: Final[Mapping[str, str]] = {"cross": "cross_keys_values"}


def _name(form: str) -> str:
    return _NAMES.get(form, "keys_values")


def _element(name: str) -> int:
    dtype = find_dtype(name)
    assert dtype is not None
    return dtype.block_bytes

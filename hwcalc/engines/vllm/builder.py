"""The cache specs of a layer in vLLM: a rule for each kind of layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING, Final

from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.vllm import formats
from hwcalc.engines.vllm.blocks import backend_block, compressed_block, hybrid_block, kernel_block
from hwcalc.engines.vllm.classes import expands_latents
from hwcalc.engines.vllm.specs import (
    ChunkSpec,
    CrossSpec,
    FullSpec,
    LatentSpec,
    LatentWindowSpec,
    LayerSpec,
    StateSpec,
    WindowSpec,
    ceil_div,
)
from hwcalc.engines.vllm.states import STATE_KINDS, checkpoint_alignment, exports_checkpoints, state_bytes
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    LayerKind,
    NoCache,
    SharedCache,
    SlidingAttention,
    SparseIndexer,
    Stack,
)
from hwcalc.formulas.attention import AttentionKind

if TYPE_CHECKING:
    from hwcalc.engines.vllm.settings import VllmSettings
    from hwcalc.model import ModelSpec

_STATELESS: Final = (SharedCache, NoCache)
KINDS: Final[frozenset[type[LayerKind]]] = frozenset(
    {
        *(FullAttention, SlidingAttention, ChunkedAttention, CrossAttention),
        *(LatentAttention, SparseIndexer, CompressedAttention),
        *(*STATE_KINDS, *_STATELESS),
    }
)
"""The kinds of layers that have a rule here."""
_WINDOW_BLOCK: Final = 64
_COMPRESSOR_BLOCKS: Final = {4: 4, 128: 8}
_STEP: Final = 16
_DEFAULT_CHUNK: Final = 2048
_WIDE_HEAD: Final = 256
# vLLM applies sliding_window to every layer of these, although the config has use_sliding_window false.
_ALWAYS_WINDOWED: Final = frozenset({"MiMoForCausalLM"})
# Full layers of these took the config's window, as long as a layer without a window of its own did.
_WINDOWED_AT_FIRST: Final = frozenset({"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"})

# vLLM builds the attention of these without its window.
_NEVER_WINDOWED: Final = frozenset({"Plamo2ForCausalLM"})

Named = tuple[str, LayerSpec]
"""The name of a cache, such as ``keys_values``, and its spec."""


WHOLE_SEQUENCE: Final = 2**62
"""The tokens of a block that holds all of a sequence, however long it is. A plan names it by the longest sequence."""


class SpecBuilder:
    """Builds the specs for each kind of layer of one model."""

    def __init__(self, model: ModelSpec, settings: VllmSettings, stack: Stack) -> None:
        self.model = model
        self.settings = settings
        kinds = [group.kind for group in stack.groups if not isinstance(group.kind, _STATELESS)]
        self.expands_latents = expands_latents(model, settings.rules)
        self.attention = [kind for kind in kinds if isinstance(kind, AttentionKind)]
        self.states = [kind for kind in kinds if isinstance(kind, STATE_KINDS)]
        others = [kind for kind in kinds if not isinstance(kind, STATE_KINDS)]
        self.rules = settings.rules
        self.aligned = settings.state_caching in ("align", "all")
        self.leaves_outer = formats.is_turboquant(settings.kv_dtype) and not self.states
        latent = None if self.expands_latents else next((kind for kind in kinds if isinstance(kind, LatentAttention)), None)
        kernel = kernel_block(
            frozenset(type(kind) for kind in kinds if latent is not None or not isinstance(kind, LatentAttention)),
            settings.kv_dtype,
            settings.capability,
            None if latent is None else latent.qk_nope_head_dim,
            max((kind.head_dim for kind in self.attention), default=0),
            self.rules,
        )
        self.kernel = kernel
        user = settings.block_size if latent is None else self._user_block(kernel, sparse=_has(kinds, SparseIndexer))
        self.block = (
            compressed_block(user, self.rules)
            if _has(kinds, CompressedAttention)
            else backend_block(kernel, packed=self.leaves_outer, user=user)
        )
        self.padded = 0
        if self.states and others:
            row = self._row(others[0])
            given = self.block
            self.block = hybrid_block(
                self.block,
                kernel,
                attention_row=row,
                state=max(self._state_bytes(kind) for kind in self.states),
                step=lcm(self._step(others[0], latent=latent is not None), self._alignment()),
            )
            if self.rules.hybrid_by_hand and given < self.block:
                raise UnsupportedError(
                    f"vLLM 0.9 runs {model.architecture} only in blocks of at least {self.block} tokens, which hold a recurrent state.",
                    hint=f"Use: --engine-option block_size={self.block}, or --engine vllm@0.10",
                )
            self.padded = self.block * row

    def _step(self, attention: LayerKind, *, latent: bool) -> int:
        """The tokens in whose steps the block of a hybrid grows, without regard to its states."""
        step = max(self.kernel, self.block) if self.rules.hybrid_step == "user" else _STEP
        if latent:
            return max(step, self.rules.latent_hybrid_step)
        if self.settings.capability // 10 == 10 and self._heads(attention)[1] == _WIDE_HEAD:
            return max(step, self.rules.wide_head_step)
        return step

    def _user_block(self, kernel: int, *, sparse: bool) -> int | None:
        """The user's block size; ``None`` where latent attention takes its own in its place."""
        user, sm90 = self.settings.block_size, self.settings.capability // 10 == 9
        if user is None or (sparse and self.rules.sparse_block_forced):
            return None
        kept = {"no": True, "multiple": user % kernel == 0, "equal": user == kernel}
        return user if not sm90 or kept[self.rules.latent_block_forced] else None

    @cached_property
    def encodes(self) -> bool:
        """Whether the model has cross attention. Such models prefill in one chunk, so that a batch holds the longest sequence."""
        return any(isinstance(group.kind, CrossAttention) for group in self.model.stack_for("vllm").groups)

    def specs(self, kind: LayerKind, *, outer: bool = False) -> tuple[Named, ...]:
        """The caches of one layer of this kind. ``outer`` is for a layer that turboquant does not pack."""
        return tuple(self._build(kind, outer=outer))

    def _build(self, kind: LayerKind, *, outer: bool) -> Iterable[Named]:
        if isinstance(kind, STATE_KINDS):
            yield "state", self._state(kind)
        elif isinstance(kind, CompressedAttention):
            yield from self._compressed(kind)
        elif isinstance(kind, SparseIndexer):
            row, tag = self._index_row(kind), f"index {kind.index_head_dim}"
            yield "indexer_keys", LatentSpec.of(block_size=self.block, heads=1, row=row, tag=tag)
        elif isinstance(kind, LatentAttention) and not self.expands_latents:
            row, kv_dtype = self._row(kind), self.settings.kv_dtype
            if kind.window is None:
                yield "latent", LatentSpec.of(block_size=self.block, heads=1, row=row, tag=kv_dtype)
            else:
                yield "latent", LatentWindowSpec.of(block_size=self.block, heads=1, row=row, tag=kv_dtype, limit=kind.window)
        elif isinstance(kind, (AttentionKind, LatentAttention)):
            yield self._attention(kind, outer=outer)

    def _attention(self, kind: AttentionKind | LatentAttention, *, outer: bool) -> Named:
        heads, width, value = self._heads(kind)
        kv_dtype = "auto" if outer else self.settings.kv_dtype
        window = self._window(kind)
        row = formats.row_bytes(kv_dtype, width, value, self.settings.element_bytes)
        tag = f"{kv_dtype} {heads} {width} {value}"
        if window is not None:
            size = min(self.block, self.kernel) if self.rules.window_block_fixed else self.block
            return "keys_values", WindowSpec.of(block_size=size, heads=heads, row=row, tag=tag, limit=window)
        if isinstance(kind, ChunkedAttention) and self.rules.chunks != "full":
            return "keys_values", ChunkSpec.of(block_size=self.block, heads=heads, row=row, tag=tag, limit=kind.chunk)
        if isinstance(kind, CrossAttention):
            return "cross_keys_values", CrossSpec.of(block_size=self.block, heads=heads, row=row, tag=tag)
        return "keys_values", FullSpec.of(block_size=self.block, heads=heads, row=row, tag=tag)

    def _window(self, kind: AttentionKind | LatentAttention) -> int | None:
        if self.model.architecture in _NEVER_WINDOWED or not self.rules.windows:
            return None
        if self.model.architecture in _ALWAYS_WINDOWED and self.model.facts.sliding_window is not None:
            return self.model.facts.sliding_window
        if self.model.architecture in _WINDOWED_AT_FIRST and self.rules.windows_by_default:
            return next((other.window for other in self.attention if isinstance(other, SlidingAttention)), None)
        return kind.window if isinstance(kind, (SlidingAttention, LatentAttention)) else None

    def _heads(self, kind: LayerKind) -> tuple[int, int, int]:
        """Key/value heads on a rank (at least one), and the widths of a key and a value."""
        if isinstance(kind, LatentAttention):
            width = kind.qk_nope_head_dim + kind.qk_rope_head_dim
            return max(1, kind.num_attention_heads // self.settings.tp), width, width
        if not isinstance(kind, AttentionKind):
            raise UnsupportedError(
                f"vLLM has no block that {kind.title} and recurrent states share.", hint="Use: --engine reference"
            )
        heads = max(1, kind.num_key_value_heads // self.settings.tp)
        narrow = {"all": True, "grouped": self._keeps_value_width(kind, heads), "no": False}[self.rules.value_width]
        return heads, kind.head_dim, kind.v_head_dim if narrow else kind.head_dim

    def _keeps_value_width(self, kind: AttentionKind, heads: int) -> bool:
        """Whether a windowed layer has the width of its values though it is kept whole: it does if it merges with the full layers."""
        if self.settings.hybrid or self._window(kind) is None:
            return True
        full = (other for other in self.attention if self._window(other) is None)
        return any(max(1, other.num_key_value_heads // self.settings.tp) == heads for other in full)

    def _row(self, kind: LayerKind) -> int:
        """Bytes per token of one layer on a rank."""
        if isinstance(kind, LatentAttention) and not self.expands_latents:
            width = kind.kv_lora_rank + kind.qk_rope_head_dim
            row, alignment = (
                formats.latent_row(self.settings.kv_dtype, width, self.settings.element_bytes),
                self.rules.latent_row_alignment,
            )
            return ceil_div(row, alignment) * alignment
        heads, key, value = self._heads(kind)
        return heads * formats.row_bytes(self.settings.kv_dtype, key, value, self.settings.element_bytes)

    def _index_row(self, kind: SparseIndexer) -> int:
        width = kind.index_head_dim + kind.index_extra_elements
        if kind.index_quantized:
            return width + 4 * ceil_div(width, 128)
        return formats.latent_row(self.settings.kv_dtype, width, self.settings.element_bytes)

    def _compressed(self, kind: CompressedAttention) -> Iterator[Named]:
        """DeepSeek-V4: every layer has a window. Compressed layers also have entries and an fp32 compressor state; so may an indexer."""
        packed = self.settings.kv_dtype == "fp8_ds_mla"
        row = formats.COMPRESSED_ROW if packed else kind.head_dim * self.settings.element_bytes
        align = 576 if packed else 512

        def entries(width: int, tag: str, ratio: int) -> LayerSpec:
            return LatentSpec.of(block_size=self.block, heads=1, row=width, tag=tag, per_state=ratio, alignment=align)

        def window(block: int, width: int, tag: str, limit: int) -> LayerSpec:
            return LatentWindowSpec.of(block_size=block, heads=1, row=width, tag=tag, alignment=align, limit=limit)

        yield "window_latent", window(_WINDOW_BLOCK, row, "window", kind.window)
        ratio = kind.compress_ratio
        if ratio is None:
            return
        if ratio not in _COMPRESSOR_BLOCKS:
            raise UnsupportedError(f"vLLM has no compressor of ratio {ratio}.", hint="Use: --engine reference")
        block, halves = _COMPRESSOR_BLOCKS[ratio], 2 if kind.overlap else 1
        if kind.index_head_dim is not None:
            width = kind.index_head_dim + 4 * ceil_div(kind.index_head_dim, 128)
            yield "indexer_keys", entries(width, "index", ratio)
            yield "indexer_state", window(block, 2 * halves * kind.index_head_dim * 4, "index state", halves * ratio)
        yield "compressed_latent", entries(row, f"compressed {ratio}", ratio)
        yield "compressor_state", window(block, 2 * halves * kind.head_dim * 4, "state", halves * ratio)

    def _state_bytes(self, kind: LayerKind) -> int:
        in_fp8 = self.rules.states_follow_cache and formats.is_fp8(self.settings.kv_dtype)
        return state_bytes(
            kind,
            tp=self.settings.tp,
            speculated=self.settings.speculated,
            conv_bytes=1 if in_fp8 else _element(self.settings.conv),
            ssm_bytes=1 if in_fp8 else _element(self.settings.state),
        )

    def _alignment(self) -> int:
        """Tokens of which a block must be a multiple, so that states can be kept at its end."""
        if self.settings.state_caching == "all":
            return self.model.facts.state_chunk_tokens or _DEFAULT_CHUNK
        if not self.aligned:
            return 1
        return max(checkpoint_alignment(kind, self.model, self.settings.delta_capability, self.rules) for kind in self.states)

    def _state(self, kind: LayerKind) -> StateSpec:
        """The spec of a recurrent state, padded to the page of the model's attention layers."""
        every = self.settings.state_caching == "all"
        counted = self.rules.speculated_all == "block" if every else self.rules.speculated_states
        speculated = self.settings.speculated if counted else 0
        boundary = 0 if every else 1
        if self.settings.state_caching == "align":
            boundary = 2 + exports_checkpoints(kind, self.model, self.settings.delta_capability, self.rules)
        attention_free = every and not self.padded
        given = self.rules.attention_free_block == "block" or (
            self.settings.block_size is not None and self.rules.attention_free_block != "length"
        )
        if attention_free and not given and self.rules.attention_free_block == "asked":
            raise UnsupportedError(
                f"vLLM {self.settings.version} caches prefixes of {self.model.architecture} only where block_size is named.",
                hint="Add: --engine-option block_size=16",
            )
        whole = not self.aligned or (attention_free and not given)
        return StateSpec(
            block_size=WHOLE_SEQUENCE if whole else self.block,
            page=max(self._state_bytes(kind), self.padded),
            states=boundary + speculated,
            every=every,
            tag=kind.name,
        )


def _has(kinds: Iterable[LayerKind], wanted: type[LayerKind]) -> bool:
    return any(isinstance(kind, wanted) for kind in kinds)


def _element(name: str) -> int:
    return known_dtype(name).block_bytes

"""The specs of each kind of layer: which rule its cache follows, the tokens of its blocks, and the bytes of a recurrent state.

The size of a block follows from the attention backend and the GPU; it is then enlarged until an attention block holds a recurrent state.
With prefix caching a request holds the running state and the state at the last block boundary, and one more if the kernels write a
checkpoint during a prefill. Without prefix caching it holds only the running state. Each speculated token adds a block.

Source: vLLM 0.33, platforms/cuda.py (order of backends), platforms/interface.py (alignment of hybrids),
model_executor/layers/mamba/mamba_utils.py and the layers that export checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from math import lcm
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.models import known_dtype
from hwcalc.engines.vllm import formats
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
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LayerKind,
    LightningAttention,
    Mamba1,
    Mamba2,
    NoCache,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    SparseIndexer,
    Stack,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.record import Record

if TYPE_CHECKING:
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.engines.vllm.settings import VllmSettings
    from hwcalc.model import ModelSpec

_DEFAULT: Final = 16
_COMPRESSED_BLOCK: Final = 256
_INDEXED_BLOCK: Final = 64
_WIDEST_HEAD: Final = 512
_FLASHINFER_NOPE: Final = (64, 128, 192)


def expands_latents(model: ModelSpec, rules: Rules) -> bool:
    """Whether vLLM runs latent layers of this model with full keys and values for every head."""
    return model.architecture == "MiniCPM3ForCausalLM" or (model.model_type == "kimi_k2" and not rules.kimi_k2_latents)


def sparse_kv_dtype(kv_dtype: str, capability: int, *, keep: bool) -> str:
    """The KV dtype that a sparse latent backend uses: DeepSeek's own fp8 layout on SM90 and SM12x, ordinary fp8 on SM10x.

    ``keep`` says that SM90 keeps the requested dtype. Raises :class:`~hwcalc.errors.UnsupportedError` if there is no backend for the GPU.
    """
    family = capability // 10
    if family not in (9, 10, 12):
        raise UnsupportedError(
            f"vLLM has no sparse latent attention for compute capability {capability / 10:.1f}.",
            hint="Use a GPU of compute capability 9.0, 10.x or 12.x.",
        )
    if family == 12 or (family == 9 and not keep and kv_dtype != "fp8_ds_mla"):
        return "fp8_ds_mla"
    return kv_dtype


def kernel_block(
    kinds: frozenset[type[LayerKind]], kv_dtype: str, capability: int, nope: int | None, widest: int, rules: Rules
) -> int:
    """The smallest block size, in tokens, of the attention backend's kernels. They also accept its multiples, or split them.

    ``nope`` is the width of the keys without rotary positions in a latent layer, ``widest`` that of the widest head of other attention.
    """
    if CompressedAttention in kinds:
        return _COMPRESSED_BLOCK
    if LatentAttention in kinds:
        if SparseIndexer in kinds:
            return _INDEXED_BLOCK
        if capability // 10 == 9 and kv_dtype.startswith("fp8"):
            return 64  # FLASHMLA; FLASH_ATTN_MLA has no fp8
        if capability // 10 == 10 and rules.latent_block_sm10x:
            return rules.latent_block_sm10x
        if capability // 10 == 10:
            return 32 if nope in _FLASHINFER_NOPE else 128  # FLASHINFER_MLA, else CUTLASS_MLA
        return rules.latent_block if capability // 10 == 9 else _DEFAULT
    if SparseIndexer in kinds:
        return 128  # MiniMax-M3
    if capability // 10 == 9 and widest == _WIDEST_HEAD and kv_dtype in ("fp8", "fp8_e4m3"):
        return rules.wide_fp8_block  # FlashAttention 4
    return _DEFAULT


def backend_block(kernel: int, *, packed: bool, user: int | None) -> int:
    """Tokens in a block, before recurrent states are considered. ``user`` is the requested block size.

    ``packed`` is for turboquant, whose outer layers stay in the model dtype.
    """
    size = user if user is not None else max(_DEFAULT, kernel)
    if user is not None and (user % kernel if kernel != _DEFAULT else user % _DEFAULT):
        raise UsageError(
            f"block_size={user:,} is not taken by the attention backend of this model.", hint=f"Use a multiple of {kernel}."
        )
    # A packed page with 8 bits per element must hold a page of 16 tokens with 16 bits per element.
    return max(size, ceil_div(2 * _DEFAULT, size) * size) if packed else size


def compressed_block(user: int | None, rules: Rules) -> int:
    """Tokens in a block of compressed latent attention (DeepSeek-V4). ``user`` is the requested block size."""
    if user is not None and user not in rules.compressed_blocks:
        raise UsageError(
            f"block_size={user:,} is not known for compressed latent attention.",
            hint="Use: --engine-option block_size=" + " or ".join(map(str, rules.compressed_blocks)),
        )
    return user or _COMPRESSED_BLOCK


def hybrid_block(size: int, kernel: int, *, attention_row: int, state: int, step: int) -> int:
    """Tokens in a block of a hybrid model, whose attention page must hold a recurrent state of ``state`` bytes.

    ``attention_row`` is the bytes per token of one attention layer. Jamba has states of 311,296 bytes and attention of 4,096 bytes per
    token: a block has 80 tokens, the first multiple of 16 that holds a state (80 x 4,096 = 327,680).
    """
    tokens = step * ceil_div(state, step * attention_row)
    return max(size, ceil_div(tokens, kernel) * kernel)


STATE_KINDS: Final = (Mamba1, Mamba2, GatedDeltaNet, KimiDeltaAttention, ShortConvolution, LightningAttention)

# Prefixes of model classes whose config may name the format of the state; else it is that of convolutions.
_NAMED_STATES: Final = ("Qwen3_5", "Qwen4Exp")
# Model classes with the mixin SupportsMambaPrefixCaching, in 0.11.1 to 0.27.
_EVERY_STATE: Final = frozenset(
    {
        "BambaForCausalLM",
        "FalconH1ForCausalLM",
        "FalconMambaForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Zamba2ForCausalLM",
    }
)
_GATED_DELTA_CHUNK: Final = 64


def default_state_dtype(model: ModelSpec, conv: str, rules: Rules) -> str:
    """The format of recurrent states for ``mamba_ssm_cache_dtype=auto``. ``conv`` is the format of convolutions."""
    if any(isinstance(group.kind, KimiDeltaAttention) for group in model.stack_for("vllm").groups):
        return "fp32"
    architecture = model.architecture or ""
    if architecture.startswith("NemotronH"):
        return conv if rules.nemotron_states == "conv" else model.state_dtype or rules.nemotron_states
    if architecture.startswith(_NAMED_STATES) and rules.config_states:
        return model.state_dtype or conv
    return conv


def hears_state_dtype(model: ModelSpec, rules: Rules) -> bool:
    """Whether ``mamba_ssm_cache_dtype`` sets the format of this model's states."""
    kinds = {type(group.kind) for group in model.stack_for("vllm").groups}
    return not (
        (GatedDeltaNet in kinds and not rules.gated_delta_dtype) or (KimiDeltaAttention in kinds and not rules.kimi_delta_dtype)
    )


def caching_of_states(model: ModelSpec, rules: Rules, *, drafts: bool) -> str:
    """What prefix caching keeps of the states of this model: ``all`` of them, the last ones (``align``), or ``none``.

    ``drafts`` says whether tokens are drafted. With ``none`` vLLM turns prefix caching off for the whole model.
    """
    if rules.state_caching == "no":
        return "none"
    if rules.state_caching == "last":
        return "align"
    every = model.architecture in _EVERY_STATE and not (drafts and rules.speculated_all == "align")
    return "all" if every else "align" if rules.state_caching == "both" else "none"


def exports_checkpoints(kind: LayerKind, model: ModelSpec, capability: int, rules: Rules) -> bool:
    """Whether prefill kernels write the state at block boundaries, which takes one more block per request.

    Those of Mamba-2 always do; those of gated delta nets with FlashInfer (SM90, or SM10x and SM12x with key heads of 128); those of
    Kimi-K3 with FlashKDA.
    """
    family = capability // 10
    if isinstance(kind, Mamba2):
        return rules.mamba2_checkpoint
    if isinstance(kind, GatedDeltaNet):
        if not rules.gated_delta_checkpoint or (model.architecture or "").startswith("OlmoHybrid"):
            return False
        return family == 9 or (family in (10, 12) and kind.key_head_dim == 128)
    if isinstance(kind, KimiDeltaAttention) and rules.kimi_k3_checkpoint:
        return (model.architecture or "").startswith("KimiK3") and family in (9, 10, 12) and kind.head_dim == 128
    return False


def checkpoint_alignment(kind: LayerKind, model: ModelSpec, capability: int, rules: Rules) -> int:
    """The number of tokens of which a block must be a multiple, so that checkpoints fall on block boundaries."""
    if isinstance(kind, GatedDeltaNet) and exports_checkpoints(kind, model, capability, rules):
        return _GATED_DELTA_CHUNK
    return 1


def state_bytes(kind: LayerKind, *, tp: int, speculated: int, conv_bytes: int, ssm_bytes: int) -> int:
    """Bytes of the state of one layer on one of ``tp`` ranks.

    >>> state_bytes(Mamba1(d_inner=8192, d_state=16, d_conv=4), tp=1, speculated=0, conv_bytes=2, ssm_bytes=2)
    311296
    """
    shape = _SHAPES[type(kind)](kind, tp)
    columns = shape.columns + (speculated if shape.drafts else 0)
    return columns * shape.width * conv_bytes + shape.matrix * (ssm_bytes if shape.own_format else conv_bytes)


class _StateShape(Record):
    """The state on one rank: the convolution has ``columns`` x ``width`` numbers, and the recurrence ``matrix`` numbers."""

    columns: int = 0
    width: int = 0
    matrix: int = 0
    drafts: bool = True
    """Whether each speculated token adds a column to the convolution."""
    own_format: bool = True
    """Whether the recurrence has its own format, or that of the convolution."""


def _mamba1(kind: Mamba1, tp: int) -> _StateShape:
    width = _share(kind.d_inner, tp, "d_inner")
    return _StateShape(columns=kind.d_conv - 1, width=width, matrix=width * kind.d_state, drafts=False)


def _mamba2(kind: Mamba2, tp: int) -> _StateShape:
    if kind.n_groups != 1 and kind.n_groups % tp:
        raise UsageError(f"vLLM cannot split n_groups {kind.n_groups:,} over tp {tp}.", hint="Use a tp that divides it.")
    # Every rank with a head of a group has the B and C of that group.
    groups = kind.n_groups if kind.n_groups % tp == 0 else tp
    width = _share(kind.num_heads * kind.head_dim + 2 * groups * kind.d_state, tp, "conv_dim")
    matrix = _share(kind.num_heads, tp, "num_heads") * kind.head_dim * kind.d_state
    return _StateShape(columns=kind.d_conv - 1, width=width, matrix=matrix)


def _gated_delta(kind: GatedDeltaNet, tp: int) -> _StateShape:
    matrix = _share(kind.num_value_heads, tp, "num_value_heads") * kind.value_head_dim * kind.key_head_dim
    return _StateShape(columns=kind.d_conv - 1, width=_share(kind.conv_dim, tp, "conv_dim"), matrix=matrix)


def _kimi_delta(kind: KimiDeltaAttention, tp: int) -> _StateShape:
    matrix = _share(kind.num_heads, tp, "num_heads") * kind.head_dim * kind.head_dim
    return _StateShape(columns=kind.d_conv - 1, width=_share(kind.conv_dim, tp, "conv_dim"), matrix=matrix)


def _short_convolution(kind: ShortConvolution, tp: int) -> _StateShape:
    return _StateShape(columns=kind.d_conv - 1, width=_share(kind.channels, tp, "channels"))


def _lightning(kind: LightningAttention, tp: int) -> _StateShape:
    matrix = _share(kind.num_heads, tp, "num_heads") * kind.head_dim * kind.head_dim
    return _StateShape(matrix=matrix, own_format=False)


def _share(number: int, tp: int, name: str) -> int:
    if number % tp:
        raise UsageError(f"vLLM cannot split {name} {number:,} over tp {tp}.", hint="Use a tp that divides it.")
    return number // tp


_SHAPES: Final[Mapping[type[LayerKind], Callable[..., _StateShape]]] = MappingProxyType(
    {
        Mamba1: _mamba1,
        Mamba2: _mamba2,
        GatedDeltaNet: _gated_delta,
        KimiDeltaAttention: _kimi_delta,
        ShortConvolution: _short_convolution,
        LightningAttention: _lightning,
    }
)


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

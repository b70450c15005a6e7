"""The specs of each kind of layer: which rule its cache follows, the tokens of its blocks, and the bytes of a recurrent state.

The size of a block follows from the attention backend and the GPU; it is then enlarged until an attention block holds a recurrent state.
With prefix caching a request holds the running state and the state at the last block boundary, and one more if the kernels write a
checkpoint during a prefill. Without prefix caching it holds only the running state. Each speculated token adds a block. What the layers of
a draft keep stands at the end.

Source: vLLM 0.33, platforms/cuda.py (order of backends), platforms/interface.py (alignment of hybrids),
model_executor/layers/mamba/mamba_utils.py and the layers that export checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
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
    StreamConvolutions,
)
from hwcalc.formulas.attention import AttentionKind

if TYPE_CHECKING:
    from hwcalc.engines.vllm.rules import Rules
    from hwcalc.engines.vllm.settings import Speculation, VllmSettings
    from hwcalc.model import ModelSpec

_DEFAULT: Final = 16
_COMPRESSED_BLOCK: Final = 256
_INDEXED_BLOCK: Final = 64
_WIDEST_HEAD: Final = 512
_FLASHINFER_NOPE: Final = (64, 128, 192)
_GATED_DELTA_CHUNK: Final = 64
_WINDOW_BLOCK: Final = 64
_COMPRESSOR_BLOCKS: Final = {4: 4, 128: 8}
_STEP: Final = 16
_DEFAULT_CHUNK: Final = 2048
_WIDE_HEAD: Final = 256
# vLLM applies sliding_window to every layer of these, although the config has use_sliding_window false.
_ALWAYS_WINDOWED: Final = frozenset({"MiMoForCausalLM"})
# Full layers of these took the config's window, as long as a layer without a window of its own did.
_WINDOWED_AT_FIRST: Final = frozenset({"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"})
# The config counts the tokens before the query, and vLLM takes that as the window (models/mimo_v2.py).
_WINDOW_WITHOUT_QUERY: Final = frozenset({"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"})
# vLLM builds the attention of these without its window.
_NEVER_WINDOWED: Final = frozenset({"Plamo2ForCausalLM"})

STATE_KINDS: Final = (Mamba1, Mamba2, GatedDeltaNet, KimiDeltaAttention, ShortConvolution, LightningAttention)
_STATELESS: Final = (SharedCache, NoCache)
KINDS: Final[frozenset[type[LayerKind]]] = frozenset(
    {
        *(FullAttention, SlidingAttention, ChunkedAttention, CrossAttention),
        *(LatentAttention, SparseIndexer, CompressedAttention),
        StreamConvolutions,
        *(*STATE_KINDS, *_STATELESS),
    }
)
"""The kinds of layers that have a rule here."""
WHOLE_SEQUENCE: Final = 2**62
"""The tokens of a block that holds all of a sequence, however long it is. A plan names it by the longest sequence."""
Named = tuple[str, LayerSpec]
"""The name of a cache, such as ``keys_values``, and its spec."""


def expands_latents(model: ModelSpec, rules: Rules) -> bool:
    """True if vLLM runs latent layers of this model with full keys and values for every head."""
    return model.architecture == "MiniCPM3ForCausalLM" or (model.model_type == "kimi_k2" and not rules.kimi_k2_latents)


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


def exports_checkpoints(kind: LayerKind, model: ModelSpec, capability: int, rules: Rules) -> bool:
    """True if prefill kernels write the state at block boundaries, which takes one more block per request.

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


def state_bytes(kind: LayerKind, *, tp: int, speculated: int, conv_bytes: int, ssm_bytes: int) -> int:
    """Bytes of the state of one layer on one of ``tp`` ranks: that of its convolution, and that of its recurrence.

    >>> state_bytes(Mamba1(d_inner=8192, d_state=16, d_conv=4), tp=1, speculated=0, conv_bytes=2, ssm_bytes=2)
    311296
    """

    def share(number: int, name: str) -> int:
        if number % tp:
            raise UsageError(f"vLLM cannot split {name} {number:,} over tp {tp}.", hint="Use a tp that divides it.")
        return number // tp

    if isinstance(kind, LightningAttention):
        # Its recurrence has the format of convolutions.
        return share(kind.num_heads, "num_heads") * kind.head_dim * kind.head_dim * conv_bytes
    if isinstance(kind, Mamba1):
        # A speculated token adds no column to its convolution, as it does to all others.
        width = share(kind.d_inner, "d_inner")
        return (kind.d_conv - 1) * width * conv_bytes + width * kind.d_state * ssm_bytes
    matrix = 0
    if isinstance(kind, Mamba2):
        if kind.n_groups != 1 and kind.n_groups % tp:
            raise UsageError(f"vLLM cannot split n_groups {kind.n_groups:,} over tp {tp}.", hint="Use a tp that divides it.")
        # Every rank with a head of a group has the B and C of that group.
        groups = kind.n_groups if kind.n_groups % tp == 0 else tp
        width = share(kind.num_heads * kind.head_dim + 2 * groups * kind.d_state, "conv_dim")
        matrix = share(kind.num_heads, "num_heads") * kind.head_dim * kind.d_state
    elif isinstance(kind, GatedDeltaNet):
        matrix = share(kind.num_value_heads, "num_value_heads") * kind.value_head_dim * kind.key_head_dim
        width = share(kind.conv_dim, "conv_dim")
    elif isinstance(kind, KimiDeltaAttention):
        matrix = share(kind.num_heads, "num_heads") * kind.head_dim * kind.head_dim
        width = share(kind.conv_dim, "conv_dim")
    else:
        assert isinstance(kind, ShortConvolution)
        width = share(kind.channels, "channels")
    return (kind.d_conv - 1 + speculated) * width * conv_bytes + matrix * ssm_bytes


_ALIGNED: Final = "platforms/interface.py _align_hybrid_block_size"


class SpecBuilder:
    """Builds the specs for each kind of layer of one model."""

    def __init__(self, model: ModelSpec, settings: VllmSettings, stack: Stack) -> None:
        self.model, self.settings, self.rules = model, settings, settings.rules
        kinds = [group.kind for group in stack.groups if not isinstance(group.kind, _STATELESS)]
        self.expands_latents = expands_latents(model, self.rules)
        self.attention = [kind for kind in kinds if isinstance(kind, AttentionKind)]
        self.states = [kind for kind in kinds if isinstance(kind, STATE_KINDS)]
        self.leaves_outer = settings.kv_dtype in formats.TURBOQUANT and not self.states
        self.encodes = any(isinstance(kind, CrossAttention) for kind in kinds)
        """Whether the model has cross attention. Such models prefill in one chunk, so that a batch holds the longest sequence."""
        latent = None if self.expands_latents else next((kind for kind in kinds if isinstance(kind, LatentAttention)), None)
        self.kernel = kernel_block(
            frozenset(type(kind) for kind in kinds if latent is not None or not isinstance(kind, LatentAttention)),
            settings.kv_dtype,
            settings.capability,
            None if latent is None else latent.qk_nope_head_dim,
            max((kind.head_dim for kind in self.attention), default=0),
            self.rules,
        )
        self.block = self._backend_block(kinds, latent=latent is not None)
        self.padded = 0
        """Bytes of a page of attention, to which states are padded; 0 without attention."""
        self.grown: tuple[int, int, str] | None = None
        """Tokens of a block without states, the tokens by which it grows until it holds one, and why they are as many; ``None`` without both."""
        others = [kind for kind in kinds if not isinstance(kind, STATE_KINDS)]
        if self.states and others:
            row = self._row(others[0])
            self.grown = self.block, *self._hybrid_step(others[0], latent=latent is not None)
            self.block = self._hybrid_block(row, self.grown[1])
            self.padded = self.block * row

    def _backend_block(self, kinds: list[LayerKind], *, latent: bool) -> int:
        """Tokens in a block, before recurrent states are considered."""
        user, kernel, rules = self.settings.block_size, self.kernel, self.rules
        if latent and user is not None:
            # Latent attention takes its own size in place of the user's.
            kept = {"no": True, "multiple": user % kernel == 0, "equal": user == kernel}[rules.latent_block_forced]
            sparse = any(isinstance(kind, SparseIndexer) for kind in kinds)
            if (sparse and rules.sparse_block_forced) or (self.settings.capability // 10 == 9 and not kept):
                user = None
        if any(isinstance(kind, CompressedAttention) for kind in kinds):
            if user is not None and user not in rules.compressed_blocks:
                raise UsageError(
                    f"block_size={user:,} is not known for compressed latent attention.",
                    hint="Use: --engine-option block_size=" + " or ".join(map(str, rules.compressed_blocks)),
                )
            return user or _COMPRESSED_BLOCK
        if user is not None and user % kernel:
            raise UsageError(
                f"block_size={user:,} is not taken by the attention backend of this model.", hint=f"Use a multiple of {kernel}."
            )
        size = user if user is not None else max(_DEFAULT, kernel)
        # A packed page with 8 bits per element must hold a page of 16 tokens with 16 bits per element (outer layers of turboquant).
        return max(size, ceil_div(2 * _DEFAULT, size) * size) if self.leaves_outer else size

    def _hybrid_block(self, row: int, step: int) -> int:
        """Tokens in a block of a hybrid model, whose page of attention, of ``row`` bytes per token, must hold a recurrent state.

        Jamba has states of 311,296 bytes and attention of 4,096 bytes per token: a block has 80 tokens, the first multiple of 16 that
        holds a state (80 x 4,096 = 327,680).
        """
        rules, given = self.rules, self.block
        state = max(self._state_bytes(kind) for kind in self.states)
        tokens = step * ceil_div(state, step * row)
        size = max(given, ceil_div(tokens, self.kernel) * self.kernel)
        if rules.hybrid_by_hand and given < size:
            raise UnsupportedError(
                f"vLLM 0.9 runs {self.model.architecture} only in blocks of at least {size} tokens, which hold a recurrent state.",
                hint=f"Use: --engine-option block_size={size}, or --engine vllm@0.10",
            )
        return size

    def _hybrid_step(self, attention: LayerKind, *, latent: bool) -> tuple[int, str]:
        """The tokens by which a block of a hybrid model grows until it holds a state, and why they are as many."""
        settings, rules = self.settings, self.rules
        step, why = max(self.kernel, self.block) if rules.hybrid_step == "user" else _STEP, "what attention takes as a block"
        if latent:
            step = max(step, rules.latent_hybrid_step)
        elif settings.capability // 10 == 10 and self._heads(attention)[1] == _WIDE_HEAD:
            step = max(step, rules.wide_head_step)
        # States can be kept at the end of a block of so many tokens.
        chunk = 1
        if settings.state_caching == "all":
            chunk = self.model.facts.state_chunk_tokens or _DEFAULT_CHUNK
        elif settings.state_caching == "align":
            deltas = (kind for kind in self.states if isinstance(kind, GatedDeltaNet))
            if any(exports_checkpoints(kind, self.model, settings.delta_capability, rules) for kind in deltas):
                chunk = _GATED_DELTA_CHUNK
        return lcm(
            step, chunk
        ), why if step % chunk == 0 else f"{why}, and chunks of {chunk} tokens at whose ends states can be kept"

    def reasons(self) -> tuple[str, ...]:
        """Sentences on the tokens of a block, the padding of pages and the number of states of a model with recurrent states."""
        if not self.states:
            return ()
        out = list[str]()
        if self.grown is not None:
            before, step, why = self.grown
            state, row = max(map(self._state_bytes, self.states)), self.padded // self.block
            held = f"attention takes {row:,} B a token and has to hold a state of {state:,} B in a block"
            grown = "as without states" if self.block == before else f"in steps of {step:,} ({why}; {_ALIGNED})"
            out.append(f"A block has {self.block:,} tokens: {held}, {grown}.")
        for kind in self.states:
            own = self._state_bytes(kind)
            if own < self.padded:
                out.append(
                    f"A page of {kind.title} has {self.padded:,} B, of which its state takes {own:,}: all pages of the pool are as large "
                    "as that of attention."
                )
        return (*out, *dict.fromkeys(map(self._why_states, self.states)))

    def _why_states(self, kind: LayerKind) -> str:
        """A sentence on the states that a request keeps."""
        spec, caching = self._state(kind), self.settings.state_caching
        each = {
            "none": ["the running one"],
            "align": ["the running one", "the one at the last end of a block, for prefix caching"],
            "all": ["one at each end of a block, for prefix caching"],
        }[caching]
        if caching == "align" and exports_checkpoints(kind, self.model, self.settings.delta_capability, self.rules):
            each.append("one that the kernel of the prefill writes for it")
        drafted = spec.states - (0 if caching == "all" else len(each))
        each += [f"{drafted:,} for drafted tokens"] if drafted else []
        number = "" if spec.every else f" {spec.states:,}"
        return f"A request keeps{number} state{'s' if spec.every or spec.states > 1 else ''} of {kind.title}: {' + '.join(each)} (v1/kv_cache_interface.py MambaSpec)."

    def specs(self, kind: LayerKind, *, outer: bool = False) -> tuple[Named, ...]:
        """The caches of one layer of this kind. ``outer`` is for a layer that turboquant does not pack."""
        kv_dtype = self.settings.kv_dtype
        if isinstance(kind, STATE_KINDS):
            return (("state", self._state(kind)),)
        if isinstance(kind, CompressedAttention):
            return tuple(self._compressed(kind))
        if isinstance(kind, StreamConvolutions):
            return (("convolutions", self._streams(kind)),)
        if isinstance(kind, SparseIndexer):
            width = kind.index_head_dim + kind.index_extra_elements
            row = width + 4 * ceil_div(width, 128)
            if not kind.index_quantized:
                row = formats.latent_row(kv_dtype, width, self.settings.element_bytes)
            tag = f"index {kind.index_head_dim}"
            return (("indexer_keys", LatentSpec.of(block_size=self.block, heads=1, row=row, tag=tag)),)
        if isinstance(kind, LatentAttention) and not self.expands_latents:
            row, window = self._row(kind), kind.window
            if window is None:
                return (("latent", LatentSpec.of(block_size=self.block, heads=1, row=row, tag=kv_dtype)),)
            return (("latent", LatentWindowSpec.of(block_size=self.block, heads=1, row=row, tag=kv_dtype, limit=window)),)
        if isinstance(kind, (AttentionKind, LatentAttention)):
            return (self._attention(kind, "auto" if outer else kv_dtype),)
        return ()

    def _attention(self, kind: AttentionKind | LatentAttention, kv_dtype: str) -> Named:
        heads, width, value = self._heads(kind)
        row, tag = formats.row_bytes(kv_dtype, width, value, self.settings.element_bytes), f"{kv_dtype} {heads} {width} {value}"
        window = self._window(kind)
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
        window = kind.window if isinstance(kind, (SlidingAttention, LatentAttention)) else None
        return window - 1 if window is not None and self.model.architecture in _WINDOW_WITHOUT_QUERY else window

    def _heads(self, kind: LayerKind) -> tuple[int, int, int]:
        """Key/value heads on a rank (at least one), and the widths of a key and a value."""
        tp = self.settings.tp
        if isinstance(kind, LatentAttention):
            width = kind.qk_nope_head_dim + kind.qk_rope_head_dim
            return max(1, kind.num_attention_heads // tp), width, width
        if not isinstance(kind, AttentionKind):
            raise UnsupportedError(
                f"vLLM has no block that {kind.title} and recurrent states share.", hint="Use: --engine reference"
            )
        heads, narrow = max(1, kind.num_key_value_heads // tp), self.rules.value_width == "all"
        if self.rules.value_width == "grouped":
            # A windowed layer that is kept whole has the width of its values if it merges with the full layers.
            full = (other for other in self.attention if self._window(other) is None)
            kept = self.settings.hybrid or self._window(kind) is None
            narrow = kept or any(max(1, other.num_key_value_heads // tp) == heads for other in full)
        return heads, kind.head_dim, kind.v_head_dim if narrow else kind.head_dim

    def _row(self, kind: LayerKind) -> int:
        """Bytes per token of one layer on a rank."""
        kv_dtype, element_bytes = self.settings.kv_dtype, self.settings.element_bytes
        if isinstance(kind, LatentAttention) and not self.expands_latents:
            row = formats.latent_row(kv_dtype, kind.kv_lora_rank + kind.qk_rope_head_dim, element_bytes)
            return ceil_div(row, self.rules.latent_row_alignment) * self.rules.latent_row_alignment
        heads, key, value = self._heads(kind)
        return heads * formats.row_bytes(kv_dtype, key, value, element_bytes)

    def _streams(self, kind: StreamConvolutions) -> LayerSpec:
        """The four convolutions as a window of their kernel, in blocks of as many tokens, dealt out over the key/value heads.

        A row of a head is a power of two: of 2 x 128 + 2 x 6,144 / 8 = 1,792 numbers it has 2,048.
        """
        heads, tp, size = kind.num_key_value_heads, self.settings.tp, kind.d_conv
        if self.settings.model_dtype != "bf16":
            raise UnsupportedError(
                f"vLLM runs {self.model.architecture} in bf16 alone: its convolutions are kept in it.",
                hint="Leave out: --engine-option dtype",
            )
        if tp > heads:
            raise UnsupportedError(
                f"vLLM cannot split the convolutions of {heads} key/value heads over tp {tp}.", hint=f"Use --tp {heads} or less."
            )
        width = 1 << (2 * kind.head_dim + 2 * (kind.hidden_size // heads) - 1).bit_length()
        row = width * self.settings.element_bytes
        return WindowSpec.of(block_size=size, heads=heads // tp, row=row, tag=f"convolutions {heads} {width}", limit=size)

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
        settings = self.settings
        in_fp8 = self.rules.states_follow_cache and settings.kv_dtype in formats.FP8
        conv, ssm = (1 if in_fp8 else known_dtype(name).block_bytes for name in (settings.conv, settings.state))
        return state_bytes(kind, tp=settings.tp, speculated=settings.speculated, conv_bytes=conv, ssm_bytes=ssm)

    def _state(self, kind: LayerKind) -> StateSpec:
        """The spec of a recurrent state, padded to the page of the model's attention layers."""
        settings, rules, caching = self.settings, self.rules, self.settings.state_caching
        every = caching == "all"
        counted = rules.speculated_all == "block" if every else rules.speculated_states
        boundary = 0 if every else 1
        if caching == "align":
            boundary = 2 + exports_checkpoints(kind, self.model, settings.delta_capability, rules)
        # A block of a model without attention may hold a whole sequence.
        unsized = rules.attention_free_block != "block" and (
            settings.block_size is None or rules.attention_free_block == "length"
        )
        unsized = unsized and every and not self.padded
        if unsized and rules.attention_free_block == "asked":
            raise UnsupportedError(
                f"vLLM {settings.version} caches prefixes of {self.model.architecture} only where block_size is named.",
                hint="Add: --engine-option block_size=16",
            )
        return StateSpec(
            block_size=WHOLE_SEQUENCE if unsized or caching not in ("align", "all") else self.block,
            page=max(self._state_bytes(kind), self.padded),
            states=boundary + (settings.speculated if counted else 0),
            every=every,
            tag=kind.name,
        )


def draft_layers(model: ModelSpec, speculation: Speculation | None) -> Sequence[LayerKind]:
    """The kinds of the draft's layers, in order; empty for n-gram lookup.

    A predicting layer is built like the model's last layer with attention. That of DeepSeek-V4 has only the window. Those of Inkling have
    each its own kind of attention, and are as many as tokens are drafted.
    """
    if speculation is None or speculation.method == "ngram":
        return ()
    if speculation.model is not None:
        return [kind for layer in speculation.model.stack_for("vllm") for kind in layer]
    modules, stack = model.facts.mtp_modules, model.stack_for("vllm")
    if modules is None:
        raise UsageError(
            f"speculative=mtp: the config of {model.id} names no multi-token-prediction layers.", hint="Use: speculative=ngram:N"
        )
    if any(isinstance(group.kind, StreamConvolutions) for group in stack.groups):
        windowed = {any(isinstance(kind, SlidingAttention) for kind in layer): layer for layer in stack.layers}
        chosen = [number in model.facts.mtp_windowed for number in range(min(modules, speculation.tokens))]
        return [kind for own in chosen for kind in windowed.get(own, stack.layers[-1])]
    for layer in reversed(stack.layers):
        for kind in layer:
            if isinstance(kind, CompressedAttention):
                heads = kind.num_attention_heads
                return [CompressedAttention(num_attention_heads=heads, head_dim=kind.head_dim, window=kind.window)] * modules
        kinds: list[LayerKind] = [kind for kind in layer if isinstance(kind, (AttentionKind, LatentAttention))]
        if kinds:
            # It has its own indexer, even if the last layers reuse the selection of an earlier layer.
            indexers = [group.kind for group in stack.groups if isinstance(group.kind, SparseIndexer)]
            return (kinds + indexers[:1]) * modules
    raise UsageError(f"speculative=mtp: {model.id} has no attention layer.", hint="Use: speculative=ngram:N")


def retained_tokens(model: ModelSpec, speculation: Speculation | None) -> int:
    """Tokens before the window that are kept for layers which predict: each reads a token further ahead than the one before it.

    Source: vLLM 0.33, config/vllm.py num_prefill_lookahead_tokens, config/speculative.py use_multi_module_mtp.
    """
    if speculation is None or speculation.method != "mtp" or min(model.facts.mtp_modules or 1, speculation.tokens) == 1:
        return 0
    return speculation.tokens - 1

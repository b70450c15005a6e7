"""What mistral.rs stores for one layer.

Read, not run, in 0.9.2 (commit 9e922623f24b): ``paged_attention/{config,cache_engine}.rs``, ``kv_cache/{mod,rotating_cache,hybrid_cache}.rs``
and the ``ModelConfigMetadata`` of each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.mistral_rs.models import EXACT_WIDTHS, STATE_COPIES, counts_states_as_attention, keeps_all_heads
from hwcalc.engines.mistral_rs.opened import MistralOpened
from hwcalc.engines.mistral_rs.spans import GROWTH, Rotating
from hwcalc.engines.pages import Pages
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import (
    AttentionKind,
    CacheTensor,
    ChunkedAttention,
    Full,
    FullAttention,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    Mamba2,
    NoCache,
    SharedCache,
    ShortConvolution,
    SlidingAttention,
    Span,
)
from hwcalc.formulas.ssm import state_tensor
from hwcalc.formulas.tensor import Once

if TYPE_CHECKING:
    from hwcalc.engines.stored import StoredTensor
    from hwcalc.model import ModelSpec

__all__ = ["RULES", "check_shared", "counted_elements", "is_state", "layer_tensors", "shard"]

_STATES: Final = (GatedDeltaNet, Mamba2, ShortConvolution)


def shard(model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
    """The part of a layer's cache on a tensor-parallel rank: key/value heads are divided, rounded down, or repeated; states are whole."""
    if isinstance(kind, LatentAttention):
        return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp))
    if not isinstance(kind, AttentionKind):
        return kind
    heads = kind.num_key_value_heads if keeps_all_heads(model) else max(1, kind.num_key_value_heads // tp)
    return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp), num_key_value_heads=heads)


def is_state(kind: LayerKind) -> bool:
    """Whether a layer of this kind has slots of the pool of states."""
    return isinstance(kind, _STATES)


def layer_tensors(kind: LayerKind, opened: MistralOpened, ranks: int = 1) -> tuple[StoredTensor, ...]:
    """The tensors of one layer; ``kind`` is that of one of so many tensor-parallel ranks."""
    return RULES[type(kind)](kind, opened, ranks)


def counted_elements(kind: LayerKind, opened: MistralOpened, ranks: int = 1) -> int:
    """Elements per token by which the pool's blocks are counted: keys and values as wide as the wider of them."""
    if isinstance(kind, LatentAttention):
        return sum(tensor.elements_per_position for tensor in _latent_tensors(kind, opened))
    if isinstance(kind, AttentionKind):
        if opened.model.architecture in EXACT_WIDTHS:
            return kind.num_key_value_heads * (kind.head_dim + kind.v_head_dim)
        return 2 * kind.num_key_value_heads * max(kind.head_dim, kind.v_head_dim)
    return sum(tensor.elements_per_position for tensor in _unused(kind, opened, ranks))


def _attention(kind: AttentionKind, opened: MistralOpened, ranks: int) -> tuple[StoredTensor, ...]:
    """Pages for all tokens, whatever the window. Without pages, a window rotates."""
    return opened.store_all(replace(tensor, span=_span(opened, tensor.span)) for tensor in kind.tensors())


def _span(opened: MistralOpened, plain: Span) -> Span:
    if opened.settings.paged:
        return Pages(opened.settings.block_size)
    return Pages(GROWTH) if isinstance(plain, Full) else Rotating(plain.numbers[0])


def _chunked(kind: ChunkedAttention, opened: MistralOpened, ranks: int) -> tuple[StoredTensor, ...]:
    """Chunks are a matter of the mask: every token is kept (vision_models/llama4/text.rs)."""
    span = Pages(opened.settings.block_size if opened.settings.paged else GROWTH)
    return opened.store_all(replace(tensor, span=span) for tensor in kind.tensors())


def _latent(kind: LatentAttention, opened: MistralOpened, ranks: int) -> tuple[StoredTensor, ...]:
    span = Pages(opened.settings.block_size if opened.settings.paged else GROWTH)
    return opened.store_all(replace(tensor, span=span) for tensor in _latent_tensors(kind, opened))


def _latent_tensors(kind: LatentAttention, opened: MistralOpened) -> tuple[CacheTensor, ...]:
    """The latent in CUDA's pages; keys and values of every head elsewhere, in Metal's pages with values as wide as keys."""
    gpu = opened.request.hardware.gpu
    if not opened.settings.paged:
        return kind.expanded().tensors()
    if gpu is None or gpu.vendor.lower() == "nvidia":
        return kind.tensors()
    return replace(kind.expanded(), v_head_dim=kind.qk_nope_head_dim + kind.qk_rope_head_dim).tensors()


def _states(kind: LayerKind, opened: MistralOpened, ranks: int) -> tuple[StoredTensor, ...]:
    """Slots with all columns of the convolution, as many as its kernel, and the state; and pages that nothing uses."""
    own = tuple(_slots(tensor, opened) for tensor in _state_tensors(kind))
    return (*own, *_nothing_in(_unused(kind, opened, ranks), opened))


def _state_tensors(kind: LayerKind) -> tuple[CacheTensor, ...]:
    conv, *rest = kind.tensors()
    assert isinstance(kind, _STATES)
    columns = replace(conv, shape=(*conv.shape, kind.d_conv), axes=(*conv.axes, "d_conv"), span=Once())
    # Short convolutions have a state of a single number.
    return (columns, *(rest or (state_tensor((1,), ("1",)),)))


def _slots(tensor: CacheTensor, opened: MistralOpened) -> StoredTensor:
    """A tensor of all slots, which is there whether sequences run or not."""
    slots = opened.slots + STATE_COPIES.get(opened.model.architecture or "", 0)
    one = opened.store(tensor)
    size = tensor.bytes_per_position(opened.dtypes.roles[tensor.role])
    return replace(
        one,
        bytes=slots * size,
        position_bytes=slots * size,
        once=True,
        rule=f"{slots:,} x {size:,} B: slots of the pool of states",
        why=f"state x {slots:,} slots",
    )


def _unused(kind: LayerKind, opened: MistralOpened, ranks: int) -> tuple[CacheTensor, ...]:
    """Pages of a layer that keeps nothing in them: of one with a state, or of one that reads another layer's cache."""
    model = opened.model
    if not opened.settings.paged or isinstance(kind, NoCache):
        return ()
    if is_state(kind) and not counts_states_as_attention(model):
        return ()
    found = _shape_of_pages(opened)
    if found is None:
        return ()
    part, span = shard(model, found, ranks), Pages(opened.settings.block_size)
    return tuple(replace(tensor, name=f"unused_{tensor.name}", span=span) for tensor in part.tensors())


def _shape_of_pages(opened: MistralOpened) -> AttentionKind | None:
    return next((group.kind for group in opened.plain_stack.groups if isinstance(group.kind, AttentionKind)), None)


def _shared(kind: SharedCache, opened: MistralOpened, ranks: int) -> tuple[StoredTensor, ...]:
    """Pages are allocated for layers that share another one's cache, too; without pages there is nothing."""
    if not opened.settings.paged:
        return ()
    return _nothing_in(_unused(kind, opened, ranks), opened)


def _nothing_in(tensors: Iterable[CacheTensor], opened: MistralOpened) -> tuple[StoredTensor, ...]:
    return tuple(replace(tensor, why="unused pages") for tensor in opened.store_all(tensors))


def check_shared(opened: MistralOpened) -> None:
    """Refuse pages of layers that share a cache where it is not planned how wide they are."""
    kinds = [group.kind for group in opened.plain_stack.groups]
    shapes = {(kind.num_key_value_heads, kind.head_dim, kind.v_head_dim) for kind in kinds if isinstance(kind, AttentionKind)}
    if opened.settings.paged and len(shapes) > 1 and any(isinstance(kind, SharedCache) for kind in kinds):
        raise UnsupportedError(
            "mistral.rs pages the layers that share a cache too, and which of the model's two shapes each has is not planned.",
            hint="Use: --engine-option paged_attn=off, or --engine reference",
        )


def _nothing(kind: LayerKind, opened: MistralOpened, ranks: int) -> tuple[StoredTensor, ...]:
    return ()


RULES: Final[Mapping[type[LayerKind], Callable[..., tuple[StoredTensor, ...]]]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _chunked,
        LatentAttention: _latent,
        GatedDeltaNet: _states,
        Mamba2: _states,
        ShortConvolution: _states,
        SharedCache: _shared,
        NoCache: _nothing,
    }
)

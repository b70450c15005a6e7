"""What mistral.rs stores for one layer, and how it divides layers and weights over its ranks.

Read, not run, in 0.9.2 (commit 9e922623f24b): ``paged_attention/{config,cache_engine}.rs``, ``kv_cache/{mod,rotating_cache,hybrid_cache}.rs``,
``mistralrs-core/src/{models,vision_models}`` and the ``ModelConfigMetadata`` of each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.models import model_classes
from hwcalc.engines.pooled import Pages
from hwcalc.engines.rank_weights import Rank, Rules
from hwcalc.engines.stored import store, store_all
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import (
    AttentionKind,
    CacheTensor,
    ChunkedAttention,
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
    Stack,
)
from hwcalc.formulas.stairs import Stair
from hwcalc.formulas.tensor import Full, Once, Role
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.mistral_rs.engine import MistralOccupancy
    from hwcalc.engines.stored import StoredTensor
    from hwcalc.formulas.weights import Weight
    from hwcalc.model import ModelSpec

_STATES: Final = (GatedDeltaNet, Mamba2, ShortConvolution)
GROWTH: Final = 512
"""Positions by which a cache without pages grows (``NormalCache::CACHE_GROW_SIZE``, mistralrs-core/src/kv_cache/mod.rs)."""


class Rotating(Span):
    """A window with free slots to slide in: grows by 512 up to ``window + 512`` (mistralrs-core/src/kv_cache/rotating_cache.rs).

    >>> [Rotating(1000).positions(tokens) for tokens in (1, 512, 513, 1025, 9999)]
    [512, 512, 1024, 1512, 1512]
    >>> [Rotating(128).positions(tokens) for tokens in (1, 129, 513)]
    [128, 512, 640]
    """

    __slots__ = ()

    def stairs(self, encoder_tokens: int | None = 0) -> tuple[Stair, ...]:
        (window,) = self.numbers
        if window < GROWTH:
            # It begins with the window, and then has 512 positions, and at last 512 more than the window.
            return (
                Stair(times=window, most=1),
                Stair(times=GROWTH - window, per=window + 1, most=1),
                Stair(times=window, per=GROWTH + 1, most=1),
            )
        steps, rest = divmod(window + GROWTH, GROWTH)
        grown = Stair(times=GROWTH, per=GROWTH, add=GROWTH - 1, most=steps)
        return (grown, Stair(times=rest, per=steps * GROWTH + 1, most=1)) if rest else (grown,)

    @property
    def text(self) -> str:
        return f"min(roundup(n, {GROWTH}), {self.numbers[0]:,} + {GROWTH})"


def words_of(model: ModelSpec) -> Mapping[str, str]:
    """The columns of the model's class in the engine's file of classes."""
    return model_classes("mistral-rs").row(model).words


def check_model(model: ModelSpec) -> None:
    """Refuse layers that mistral.rs does not build. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    name = model.architecture
    kinds = {type(group.kind) for group in model.stack.groups}
    if name is not None and LatentAttention in kinds and "latent" not in words_of(model):
        raise UnsupportedError(f"mistral.rs has no latent attention in {brief(name, 60)}.", hint="Use: --engine reference")
    if "hidden_over_heads" in words_of(model) and model.hidden_size is not None:
        for group in model.stack.groups:
            kind = group.kind
            if isinstance(kind, AttentionKind) and kind.head_dim * kind.num_attention_heads != model.hidden_size:
                raise UnsupportedError(
                    f"mistral.rs takes hidden_size / num_attention_heads for the head width of {name}, which is not head_dim here.",
                    hint="Use: --engine reference",
                )
    if not any(issubclass(kind, (AttentionKind, LatentAttention)) for kind in kinds):
        raise UnsupportedError("mistral.rs has no model without attention.", hint="Use: --engine reference")


def layer_types(model: ModelSpec) -> tuple[str, ...]:
    """The name of each layer's type in the config; empty where it does not say."""
    text = model.config.get("text_config")
    named = (text if isinstance(text, Mapping) else model.config).get("layer_types")
    return tuple(map(str, named)) if isinstance(named, (list, tuple)) else ()


def as_built(stack: Stack, types: Sequence[str], *, paged: bool) -> Stack:
    """Layers of which later ones read the cache of the last earlier one of their type, as mistral.rs allocates them.

    In pages each later one has as much as the one that it reads, and nothing uses it. Without pages it has nothing, and the one that
    it reads keeps every token, whatever its window (``donor_layers`` in ``vision_models/gemma4/text.rs``).
    """
    layers = list(stack)
    shared = [number for number, layer in enumerate(layers) if any(isinstance(kind, SharedCache) for kind in layer)]
    last = {types[number]: number for number in range(len(layers)) if number not in shared}
    for number in shared:
        read = last.get(types[number])
        if read is not None and paged:
            layers[number] = layers[read]
        elif read is not None:
            layers[read] = tuple(
                FullAttention(
                    num_attention_heads=kind.num_attention_heads,
                    num_key_value_heads=kind.num_key_value_heads,
                    head_dim=kind.head_dim,
                    v_head_dim=kind.v_head_dim,
                )
                if isinstance(kind, SlidingAttention)
                else kind
                for kind in layers[read]
            )
    return Stack(tuple(layers))


def state_copies(model: ModelSpec) -> int:
    """Slots of a second set of states, which the model keeps in addition to the pool of slots."""
    return int(words_of(model).get("state_copies", 0))


def shard(model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
    """The part of a layer's cache on a tensor-parallel rank: key/value heads are divided, rounded down, or repeated; states are whole."""
    if isinstance(kind, LatentAttention):
        return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp))
    if not isinstance(kind, AttentionKind):
        return kind
    heads = kind.num_key_value_heads if "all_heads" in words_of(model) else max(1, kind.num_key_value_heads // tp)
    return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp), num_key_value_heads=heads)


def is_state(kind: LayerKind) -> bool:
    """True if a layer of this kind has slots of the pool of states."""
    return isinstance(kind, _STATES)


def counted_elements(kind: LayerKind, occupancy: MistralOccupancy, ranks: int = 1) -> int:
    """Elements per token with which mistral.rs computes the bytes of a block: keys and values, each as wide as the wider."""
    if isinstance(kind, LatentAttention):
        return sum(tensor.elements_per_position for tensor in _latent_tensors(kind, occupancy))
    if isinstance(kind, AttentionKind):
        if "exact_widths" in words_of(occupancy.model):
            return kind.num_key_value_heads * (kind.head_dim + kind.v_head_dim)
        return 2 * kind.num_key_value_heads * max(kind.head_dim, kind.v_head_dim)
    return sum(tensor.elements_per_position for tensor in _unused(kind, occupancy, ranks))


def _kept(tensors: Iterable[CacheTensor], occupancy: MistralOccupancy, *, rotates: bool = False) -> tuple[StoredTensor, ...]:
    """Pages for all tokens, whatever the window. Without pages a cache grows, and a window ``rotates``."""
    settings = occupancy.deployment.settings
    whole, rotates = Pages(settings.block_size if settings.paged else GROWTH), rotates and not settings.paged
    spans = ((one, Rotating(one.span.numbers[0]) if rotates and not isinstance(one.span, Full) else whole) for one in tensors)
    return store_all(occupancy, (replace(tensor, span=span) for tensor, span in spans))


def _attention(kind: AttentionKind, occupancy: MistralOccupancy, ranks: int) -> tuple[StoredTensor, ...]:
    # Chunks are a matter of the mask: every token is kept (vision_models/llama4/text.rs).
    return _kept(kind.tensors(), occupancy, rotates=not isinstance(kind, ChunkedAttention))


def _latent(kind: LatentAttention, occupancy: MistralOccupancy, ranks: int) -> tuple[StoredTensor, ...]:
    return _kept(_latent_tensors(kind, occupancy), occupancy)


def _latent_tensors(kind: LatentAttention, occupancy: MistralOccupancy) -> tuple[CacheTensor, ...]:
    """The latent in CUDA's pages; keys and values of every head elsewhere, in Metal's pages with values as wide as keys."""
    gpu = occupancy.setup.hardware.gpu
    if not occupancy.deployment.settings.paged:
        return kind.expanded().tensors()
    if gpu is None or gpu.vendor.lower() == "nvidia":
        return kind.tensors()
    return replace(kind.expanded(), v_head_dim=kind.qk_nope_head_dim + kind.qk_rope_head_dim).tensors()


def _states(kind: LayerKind, occupancy: MistralOccupancy, ranks: int) -> tuple[StoredTensor, ...]:
    """Slots with all columns of the convolution, as many as its kernel, and the state; and pages that nothing uses."""
    conv, *rest = kind.tensors()
    assert isinstance(kind, _STATES)
    columns = replace(conv, shape=(*conv.shape, kind.d_conv), axes=(*conv.axes, "d_conv"), span=Once())
    number = occupancy.slots + state_copies(occupancy.model)
    stored: list[StoredTensor] = []
    # Short convolutions have a state of a single number.
    for tensor in (columns, *(rest or (kind.tensor("recurrent_state", "1", role=Role.STATE, span=Once()),))):
        size = tensor.bytes_per_position(occupancy.dtypes.roles[tensor.role])
        rule, why = f"{number:,} x {size:,} B: slots of the pool of states", f"state x {number:,} slots"
        more = {"bytes": number * size, "position_bytes": number * size, "once": True, "rule": rule, "why": why}
        stored.append(replace(store(occupancy, tensor), **more))
    return (*stored, *_shared(kind, occupancy, ranks))


def _unused(kind: LayerKind, occupancy: MistralOccupancy, ranks: int) -> tuple[CacheTensor, ...]:
    """Pages of a layer that keeps nothing in them: of one with a state, or of one that reads another layer's cache."""
    model = occupancy.model
    if not occupancy.deployment.settings.paged or isinstance(kind, NoCache):
        return ()
    # Layers with a state have no pages where they would have no use; nor have they without a config that names a class.
    if is_state(kind) and (model.architecture is None or "attention_pages" in words_of(model)):
        return ()
    shape = next((group.kind for group in occupancy.deployment.plain_stack.groups if isinstance(group.kind, AttentionKind)), None)
    if shape is None:
        return ()
    part, span = shard(model, shape, ranks), Pages(occupancy.deployment.settings.block_size)
    return tuple(replace(tensor, name=f"unused_{tensor.name}", span=span) for tensor in part.tensors())


def _shared(kind: LayerKind, occupancy: MistralOccupancy, ranks: int) -> tuple[StoredTensor, ...]:
    """Pages are allocated for layers that share another one's cache, too; without pages there is nothing."""
    return tuple(replace(tensor, why="unused pages") for tensor in store_all(occupancy, _unused(kind, occupancy, ranks)))


RULES: Final[Mapping[type[LayerKind], Callable[..., tuple[StoredTensor, ...]]]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _attention,
        LatentAttention: _latent,
        GatedDeltaNet: _states,
        Mamba2: _states,
        ShortConvolution: _states,
        SharedCache: _shared,
        NoCache: _shared,
    }
)


class MistralRank(Rank):
    """Layers with a state are whole on every rank, but for what gated delta nets put out; LFM2's MLP is too."""

    def is_replicated(self, weight: Weight) -> bool:
        path = weight.path.split(".")
        if path[0] == "linear_attn":
            return path[1] != "out_proj" or super().is_replicated(weight)
        return path[0] in words_of(self.model).get("whole", "").split("+") or super().is_replicated(weight)


class MistralRules(Rules):
    """Key/value heads are divided, rounded down, or repeated; states are whole on every rank. Stages are of the user's making."""

    engine = "mistral-rs"
    rank = MistralRank

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        return shard(model, kind, tp)


MISTRAL_RS: Final = MistralRules()

"""What transformers stores for one layer: a rule for each kind of layer, for each cache class.

The first update of a QuantizedCache quantises the whole prefill. Later tokens wait in the model dtype until there are ``residual_length`` of
them; then everything is quantised again. A plan shows the cache after the prefill; a note says how much may wait on top of that.

The keys and values of a layer of an offloaded cache are on the GPU only while they are used. The GPU holds the layer in use and the next one,
which is fetched at the same time; the first layer follows the last. Windowed layers are offloaded too by default. States of linear layers stay
on the GPU, since only what goes through ``update`` is offloaded. Source: transformers 5.23, ``cache_utils.py`` Cache.update, prefetch and
offload; ``generation/utils.py`` makes DynamicCache(offloading=True).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc import formulas
from hwcalc.engines.models import known_dtype
from hwcalc.engines.options import integer_option
from hwcalc.engines.stored import StoredTensor, store, store_all
from hwcalc.errors import UsageError
from hwcalc.formulas import CacheTensor, CompressedAttention, DType, Layer, LayerKind, Role, Span, Stack
from hwcalc.formulas.attention import AttentionKind, key_value_tensors
from hwcalc.formulas.record import Record
from hwcalc.formulas.tensor import Fixed, Full, Latest, Once, Pooled, Remainder, Window

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Deployment, Occupancy
    from hwcalc.engines.transformers.engine import TransformersOccupancy
    from hwcalc.formulas.hybrid import Group

LATENT_SINCE: Final = (5, 15)
_FP32_GATES_SINCE: Final = (5, 24)
# Model types whose short convolutions keep only the columns that they need.
_OWN_CONV_SIZES: Final = frozenset({"baichuan_m1", "qwen4_exp", "qwen4_exp_text", "zaya"})
# Model types whose static indexer layers keep their length in a tensor.
_COUNTED_INDEXERS: Final = frozenset({"minimax_m3_vl", "minimax_m3_vl_text"})


def version_numbers(version: str) -> tuple[int, ...] | None:
    """(5, 14, 1) for ``5.14.1``; ``None`` if the text is not a version."""
    parts = version.split(".")
    return tuple(int(part) for part in parts[:3]) if all(part.isdecimal() and len(part) < 6 for part in parts[:3]) else None


def cache_class(deployed: Deployment | Occupancy) -> str:
    """The requested cache class: dynamic, static, quantized or offloaded."""
    return deployed.setup.options.get("cache", "dynamic")


def room_tokens(deployed: Deployment | Occupancy) -> int | None:
    """The positions of a StaticCache, as the user sets them; ``None`` if the user does not."""
    value = deployed.setup.options.get("max_cache_len")
    return None if value is None else integer_option(1)("max_cache_len", value)


def counter(name: str) -> StoredTensor:
    """A tensor of one int64, which exists once for the whole batch."""
    what: dict[str, Any] = {"role": Role.STATE, "axes": ("1",), "shape": (1,), "dtype": "int64"}
    return StoredTensor(name=name, **what, positions=1, span=Once(), bytes=8, position_bytes=8, once=True)


LayerRule = Callable[..., tuple[StoredTensor, ...]]
Tensors = tuple[CacheTensor, ...]


def _plain(kind: LayerKind, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    return store_all(opened, kind.tensors())


def _growing(tensors: Tensors, opened: TransformersOccupancy, window: int | None = None) -> tuple[StoredTensor, ...]:
    """Store tensors with one entry per token.

    A dynamic sliding layer keeps ``window`` - 1 entries: with window 3 it keeps [CD] of ABCD, and the next token is the third. A static
    layer preallocates min(window, max_cache_len) entries.
    """
    length = room_tokens(opened)
    if cache_class(opened) != "static":
        # A layer without a window keeps what its tensors say: every token, or what a policy leaves.
        return store_all(opened, tensors if window is None else (replace(tensor, span=Window(window - 1)) for tensor in tensors))
    if length is not None and opened.tokens > length:
        raise UsageError(f"max_cache_len={length:,} does not hold {opened.tokens:,} tokens.", hint="Raise it, or lower --seq.")
    span: Span = Full() if window is None else Window(window)
    if length is not None:
        span = Fixed(length if window is None else min(window, length))
    return store_all(opened, (replace(tensor, span=span) for tensor in tensors))


def _full(kind: formulas.FullAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    return _quantized(kind, opened) if cache_class(opened) == "quantized" else _growing(kind.tensors(), opened)


def _latent(kind: formulas.LatentAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    latent = (version_numbers(opened.deployment.version) or ()) >= LATENT_SINCE
    return _growing(kind.tensors() if latent else kind.expanded().tensors(), opened, kind.window)


def _indexer(kind: formulas.SparseIndexer, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    keys = _growing(kind.tensors(), opened)
    if cache_class(opened) == "static" and opened.model.model_type in _COUNTED_INDEXERS:
        return (*keys, counter("indexer_length"))
    return keys


def _whole_kernel(kind: LayerKind, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    """The states of a layer: LinearAttentionLayer keeps all columns of the convolution's kernel, one more than it needs."""
    wider = (
        replace(tensor, span=Fixed(tensor.span.positions(1) + 1)) if tensor.role is Role.CONV else tensor
        for tensor in kind.tensors()
    )
    return store_all(opened, wider)


def _compressed(kind: CompressedAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    """DeepSeek-V4: compressed layers keep key and value as one tensor, layers with only a window as two."""
    dtype = opened.dtypes.roles[Role.LATENT]
    if kind.compress_ratio is None:
        tensors = key_value_tensors(1, kind.head_dim, kind.head_dim, kind.tensors()[0].span)
        return _growing(tensors, opened, kind.window)
    window, compressed = kind.tensors()[:2]
    out = [store(opened, replace(window, span=Window(kind.window - 1)), dtype=dtype), store(opened, compressed, dtype=dtype)]
    halves = 2 if kind.overlap else 1
    widths = {"compressor": kind.head_dim}
    if kind.index_head_dim is not None:
        widths["indexer"] = kind.index_head_dim
        out.append(store(opened, kind.tensors()[4], dtype=dtype))
    # With ratio 4, overlap and tokens ABCDEF: [EF] wait in the buffers, and [ABCD] stay as the overlap of the next entry.
    rest, overlap = Remainder(kind.compress_ratio), Latest(kind.compress_ratio)

    def store_slots(name: str, width: int, span: Span, dtype: DType = dtype) -> StoredTensor:
        tensor = CacheTensor(name=name, shape=(width,), axes=("width",), role=Role.STATE, span=span)
        return store(opened, tensor, dtype=dtype)

    # Positions in fp32 are added to the gates of a whole group.
    positioned = (version_numbers(opened.deployment.version) or ()) >= _FP32_GATES_SINCE
    for name, width in widths.items():
        for part in ("value", "gate"):
            out.append(store_slots(f"{name}_{part}", halves * width, rest))
            if kind.overlap:
                gates = known_dtype("fp32") if part == "gate" and positioned else dtype
                out.append(store_slots(f"{name}_overlap_{part}", width, overlap, gates))
    return tuple(out)


def _block_sparse(kind: formulas.BlockSparseAttention, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    """The cache of MiniCPM's own code (``InfLLMv2CacheLayer``): in each step it joins the pooled keys of all sequences beside their own."""
    tensors = kind.tensors()
    joined = (replace(tensor, name=f"joined_{tensor.name}") for tensor in tensors if isinstance(tensor.span, Pooled))
    return store_all(opened, (*tensors, *joined))


RULES: Final[Mapping[type[LayerKind], LayerRule]] = MappingProxyType(
    {
        formulas.FullAttention: _full,
        formulas.SlidingAttention: lambda kind, opened: _growing(kind.tensors(), opened, kind.window),
        formulas.ChunkedAttention: lambda kind, opened: _growing(kind.tensors(), opened, kind.chunk),
        formulas.LatentAttention: _latent,
        formulas.ExpandedLatentAttention: lambda kind, opened: _growing(kind.tensors(), opened, kind.window),
        formulas.SparseIndexer: _indexer,
        CompressedAttention: _compressed,
        **dict.fromkeys((formulas.Mamba1, formulas.Mamba2, formulas.GatedDeltaNet, formulas.KimiDeltaAttention), _whole_kernel),
        formulas.ShortConvolution: lambda kind, opened: (
            _plain(kind, opened) if opened.model.model_type in _OWN_CONV_SIZES else _whole_kernel(kind, opened)
        ),
        **dict.fromkeys(
            (
                formulas.LightningAttention,
                formulas.GatedLinearAttention,
                formulas.RealGatedLRU,
                formulas.Rwkv4,
                formulas.RwkvMatrix,
            ),
            _plain,
        ),
        formulas.BlockSparseAttention: _block_sparse,
        **dict.fromkeys(
            (formulas.MatrixLSTM, formulas.CrossAttention, formulas.MetaTokens, formulas.SharedCache, formulas.NoCache), _plain
        ),
    }
)


class CacheQuantization(Record):
    """The checked options of a quantized cache."""

    backend: str
    nbits: int
    q_group_size: int
    residual_length: int

    def data_bytes(self, elements: int) -> int:
        """Bytes of the packed numbers, without scales.

        The numbers form a matrix of groups. quanto packs several groups into one row of bytes: three groups of 4 bits take two rows.
        hqq packs within a group: 8 / nbits numbers into a byte, or ten 3-bit numbers into an int32, so a group of 64 takes seven int32.
        """
        groups = elements // self.q_group_size
        if self.backend == "quanto":
            return self.q_group_size * -(-groups * self.nbits // 8)
        if self.nbits == 3:
            return 4 * -(-self.q_group_size // 10) * groups
        return -(-self.q_group_size * self.nbits // 8) * groups

    def row_bytes(self, elements: int) -> int | None:
        """Bytes of the packed numbers of one position of so many; ``None`` if a position is packed together with others."""
        apart = elements % self.q_group_size == 0
        if self.backend == "quanto":
            apart = apart and elements // self.q_group_size * self.nbits % 8 == 0
        return self.data_bytes(elements) if apart else None


def _quantized(kind: AttentionKind, opened: TransformersOccupancy) -> tuple[StoredTensor, ...]:
    """Packed keys and values of one layer after a prefill of ``seq`` tokens, or of those that a policy leaves, with their scales and zero points.

    Raises :class:`~hwcalc.errors.UsageError` for lengths that the backend refuses.
    """
    options, dtype = opened.deployment.quantization, opened.dtypes.roles[Role.KEY]
    out: list[StoredTensor] = []
    for tensor in kind.tensors():
        positions = tensor.span.positions(opened.tokens)
        row = prod(tensor.shape)
        elements = opened.batch * positions * row
        parts: list[tuple[str, str, int, int | None, str | None]]
        if options.backend == "fp8":
            # One fp32 scale for the whole tensor, set by the first update.
            parts = [("", "fp8_e4m3", elements, row, None), ("_scale", "fp32", 4, 4, "1 scale x 4 B")]
        else:
            if elements % options.q_group_size:
                raise UsageError(
                    f"{elements:,} cached numbers are no multiple of q_group_size={options.q_group_size}: "
                    f"{options.backend} refuses them.",
                    hint="Choose another q_group_size or length.",
                )
            size_of_group = options.q_group_size
            groups = elements // size_of_group
            scales, per_group = dtype.block_bytes * groups, f"{elements:,} / {size_of_group:,} groups"
            scales_rule = f"{per_group} x {dtype.block_bytes} B"
            scale = None if row % size_of_group else dtype.block_bytes * (row // size_of_group)
            zero, data_rule = "_zero", f"{per_group} x {options.data_bytes(size_of_group):,} B"
            if options.backend == "quanto":
                zero, data_rule = "_shift", f"{size_of_group:,} a group x ceil({groups:,} groups x {options.nbits} bits / 8) B"
            parts = [
                ("", f"int{options.nbits}", options.data_bytes(elements), options.row_bytes(row), data_rule),
                ("_scale", dtype.name, scales, scale, scales_rule),
                (zero, dtype.name, scales, scale, scales_rule),
            ]
        out += [
            StoredTensor(
                name=tensor.name + suffix,
                role=tensor.role,
                axes=tensor.axes,
                shape=tensor.shape,
                dtype=name,
                positions=positions,
                span=tensor.span,
                bytes=size,
                rule=rule,
                position_bytes=position_bytes,
                once=options.backend == "fp8" and suffix == "_scale",
            )
            for suffix, name, size, position_bytes, rule in parts
        ]
    return tuple(out)


_OFFLOADED = (AttentionKind, formulas.LatentAttention, formulas.ExpandedLatentAttention, CompressedAttention)


def is_offloaded(layer: Layer) -> bool:
    """True if a layer moves between host and device; a state alone stays where it is."""
    return any(isinstance(kind, _OFFLOADED) for kind in layer)


def offloaded_gpu_bytes(stack: Stack, layer_bytes: Callable[[LayerKind], int]) -> int:
    """Bytes of cache on the GPU: everything that is never offloaded, and the two neighbouring layers that hold most.

    ``layer_bytes`` returns the bytes of one layer of a kind, for the whole batch. Of 32 equal layers, two are on the GPU:

    >>> from hwcalc import load_model
    >>> offloaded_gpu_bytes(load_model("meta-llama/Llama-3.1-8B").stack, lambda kind: 1000)
    2000

    This is approximate for a moment: the fetched layer still lacks its newest token, and the layer in use keeps its old tensors while it
    grows.
    """
    return max(sum(group.count * layer_bytes(group.kind) for group in groups) for groups in groups_on_gpu(stack))


def groups_on_gpu(stack: Stack) -> tuple[tuple[Group, ...], ...]:
    """The layers that are on the GPU together: those that are never offloaded, and two neighbours; each choice that differs once."""
    layers = stack.layers
    offloaded = [number for number, layer in enumerate(layers) if is_offloaded(layer)]
    resident = set(range(len(layers))) - set(offloaded)
    neighbours = zip(offloaded, (*offloaded[1:], *offloaded[:1]), strict=True)
    pairs = {frozenset((layers[used], layers[fetched])): {used, fetched} for used, fetched in neighbours}
    return tuple(stack.groups_of(sorted(resident | pair)) for pair in pairs.values() or (set(),))

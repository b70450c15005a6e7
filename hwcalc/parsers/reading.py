"""What a family of models is: something that reads layers and weighs them. With the readers that most families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import field
from msgspec.structs import asdict, replace

from hwcalc.errors import ConfigError
from hwcalc.formulas import AttentionKind, ChunkedAttention, CrossAttention, FullAttention, SinkAttention, SlidingAttention
from hwcalc.formulas.hybrid import Layer
from hwcalc.formulas.kind import LayerKind
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.parsers.config import Config
from hwcalc.text import by_word, shown

if TYPE_CHECKING:
    from hwcalc.formulas.weights import Block


class Reading(Record):
    """The layers that a config describes. ``config`` is the level that describes the language model."""

    layers: tuple[Layer, ...]
    config: Config
    types: tuple[str, ...] = ()
    """The type of each layer, for families that weigh layers by type."""
    weighed: tuple[Layer, ...] = ()
    """The layers that the weights are counted for, where they differ: a layer that caches nothing may have weights."""
    encoder_tokens: int | None = None
    state_dtype: str | None = None
    notes: tuple[Note, ...] = ()
    readings: Mapping[str, tuple[Layer, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """The layers under which a named engine reads the same file differently."""
    weighs_readings: bool = False
    """True if the weights differ as well under these readings, and not the cache alone."""


class Family(Protocol):
    """How the configs of one model type are read: the layers, and the weights that belong to those layers."""

    def read(self, config: Config) -> Reading:
        """The layers. ``config`` is the level that describes the language model."""

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """The blocks of weights of the layers in ``reading``, which :meth:`read` gave.

        ``top`` is the whole document, often the same object as ``config``. ``None`` where the file does not say enough.
        """


class Readers(Record):
    """A family made of two functions. Without ``weights``, nobody counts the weights of its models."""

    layers: Callable[[Config], Reading]
    weights: Callable[[Config, Config, Reading], Sequence[Block] | None] | None = None

    def read(self, config: Config) -> Reading:
        """The layers."""
        return self.layers(config)

    def weigh(self, config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        """The blocks of weights of these layers."""
        return None if self.weights is None else self.weights(config, top, reading)


class AttentionDims(Record):
    """Heads and widths of one attention layer."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int

    def full(self) -> FullAttention:
        """These dims, every token kept."""
        return FullAttention(**asdict(self))

    def sliding(self, window: int) -> SlidingAttention:
        """These dims, the last ``window`` tokens kept."""
        return SlidingAttention(**asdict(self), window=window)

    def within(self, window: int | None) -> FullAttention | SlidingAttention:
        """These dims, full where ``window`` is ``None``."""
        return self.full() if window is None else self.sliding(window)

    def chunked(self, chunk: int) -> ChunkedAttention:
        """These dims, one chunk kept."""
        return ChunkedAttention(**asdict(self), chunk=chunk)

    def sink(self, sink: int, window: int) -> SinkAttention:
        """These dims, the first ``sink`` and the last ``window`` tokens kept."""
        return SinkAttention(**asdict(self), sink=sink, window=window)

    def cross(self) -> CrossAttention:
        """These dims, every token of the encoder kept."""
        return CrossAttention(**asdict(self))


def equal_dims(heads: int, kv_heads: int | None, head_dim: int) -> AttentionDims:
    """Values as wide as keys; ``kv_heads`` ``None`` is all heads."""
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads or heads, head_dim=head_dim, v_head_dim=head_dim)


def shared_width(config: Config, heads: int) -> int:
    """The width of a head, where all heads together are as wide as the model."""
    width = config.integer("hidden_size")
    if width < heads:
        raise config.error("hidden_size", width, f"at least the number of attention heads ({heads})")
    return width // heads


def shared_heads(config: Config) -> AttentionDims:
    """Heads that share the model's width. These classes have no key for fewer key/value heads or for the width of a head."""
    config.ignore("num_key_value_heads", "head_dim", "v_head_dim")
    heads = config.integer("num_attention_heads")
    return equal_dims(heads, heads, shared_width(config, heads))


def attention_dims(config: Config) -> AttentionDims:
    """Heads and widths by the common keys.

    Where ``num_key_value_heads`` is null, or absent without a class default, each head has its own keys and values. Where
    ``head_dim`` is, it is hidden_size // heads. Values are as wide as keys unless ``v_head_dim`` says otherwise.
    """
    heads = config.integer("num_attention_heads")
    kv_heads = config.maybe_integer("num_key_value_heads") or heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", kv_heads, f"a divisor of the number of attention heads ({heads})")
    head_dim = config.maybe_integer("head_dim") or shared_width(config, heads)
    v_head_dim = head_dim
    if not config.has_class or config.knows("v_head_dim"):
        v_head_dim = config.maybe_integer("v_head_dim") or head_dim
    elif config.raw.get("v_head_dim") == head_dim:
        # A class without the key builds values as wide as keys. A file that says otherwise is of a model that is not known.
        config.ignore("v_head_dim")
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=v_head_dim)


def divided_dims(config: Config) -> AttentionDims:
    """The same for classes that have the key and set it themselves: heads share the hidden size, whatever the file says.

    A class that sets an attribute which is no key of its own (Cohere 2) gets the file's value put over it.
    """
    dims = attention_dims(config)
    size = config.integer("hidden_size") // dims.num_attention_heads
    if size == 0:
        raise config.error("hidden_size", config.get("hidden_size"), f"at least the number of heads ({dims.num_attention_heads})")
    return replace(dims, head_dim=size, v_head_dim=size)


def dims_of(layer: Layer) -> AttentionDims:
    """Heads and widths of the attention of a layer that was read."""
    for kind in layer:
        if isinstance(kind, AttentionKind):
            heads, kv_heads, width = kind.num_attention_heads, kind.num_key_value_heads, kind.head_dim
            return AttentionDims(
                num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, v_head_dim=kind.v_head_dim
            )
    raise ValueError("a layer without attention has no heads")


K = TypeVar("K", bound=LayerKind)


def kind_in(config: Config, layer: Layer, wanted: type[K]) -> K:
    """The kind of a layer, of the type ``wanted``, by whose numbers the weights of the layer are counted.

    A file may put other layers where its model has these, such as those of a Llama. Raises :class:`~hwcalc.errors.ConfigError` for them.
    """
    for kind in layer:
        if isinstance(kind, wanted):
            return kind
    kept = ", ".join(kind.name for kind in layer)
    raise ConfigError(f"the weights of a {config.model_type} model have no formula for a layer that keeps {kept}.")


LayerReader = Callable[[Config, int], Layer]
"""Reads one layer: the config and the layer's index."""

# Older names of the same types, as transformers itself maps them.
LEGACY_TYPES = by_word(
    {
        "full_attention": "attention full global global_attention",
        "sliding_attention": "sliding local_attention sliding_window swa",
        "linear_attention": "mamba mamba2 recurrent linear", "conv": "short_conv", "mlp": "-",
    }
)  # fmt: skip


def read_layer_types(config: Config, count: int, key: str = "layer_types") -> list[str] | None:
    """The types of the layers as the file lists them, with today's names for older ones; ``None`` if it lists none."""
    types = config.strings(key)
    if types is None:
        return None
    if len(types) < count:
        raise config.error_in_words(key, f"{len(types)} items long", f"a list of {count} items, one for each layer")
    return [LEGACY_TYPES.get(name, name) for name in types[:count]]


def every(period: int, count: int, hit: str, other: str, offset: int = -1) -> list[str]:
    """``count`` types: ``hit`` at each index i with i % period == offset (by default the last of each period), else ``other``.

    >>> every(3, 4, "full", "sliding")
    ['sliding', 'sliding', 'full', 'sliding']
    """
    return [hit if i % period == offset % period else other for i in range(count)]


def build_layers(config: Config, types: list[str], readers: Mapping[str, LayerReader]) -> tuple[Layer, ...]:
    """One layer for each type. The reader of that type sees the config with the overrides of the layer."""
    layers = []
    for index, name in enumerate(types):
        reader = readers.get(name)
        if reader is None:
            message = f"layer {index} is of type {shown(name, 60)}, which a {config.model_type} model does not have."
            raise ConfigError(message, hint=f"Known here: {', '.join(sorted(readers))}.")
        layers.append(reader(config.layer(index), index))
    return tuple(layers)


def full_layer(config: Config, index: int) -> Layer:
    """A layer of full attention by the common keys."""
    return (attention_dims(config).full(),)


def windowed(config: Config, dims: AttentionDims) -> Layer:
    """A sliding layer of these dims: full if no window is set, with a sink before the window if one is."""
    window = config.maybe_integer("sliding_window")
    if window is None:
        return (dims.full(),)
    sink = config.maybe_integer("attention_sink_size", minimum=0)
    return (dims.sink(sink, window),) if sink else (dims.sliding(window),)


def windowed_layer(config: Config, index: int) -> Layer:
    """A sliding layer by the common keys."""
    return windowed(config, attention_dims(config))


def divisible(value: float, divisor: int) -> int:
    """``value`` rounded to a multiple of ``divisor``, up where it would lose more than a tenth.

    >>> divisible(640.0, 256), divisible(934.4, 256)
    (768, 1024)
    """
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded

"""The pieces of towers: layers, patches, convolutions, and the spec of a tower of equal layers.

Paths begin with the tower's name in the model and have no layer number (``visual.blocks.attn.qkv.weight``), since quantisations
exclude whole towers by that name. Every room mirrors the towers' ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, embedding, linear, parameter
from hwcalc.parsers.blocks import Switch, Weighed, norm, switched
from hwcalc.parsers.config import Config
from hwcalc.parsers.registry import find_tower

Weigh = Callable[[Config, str, int], Weighed]
"""Weighs one piece of a tower, by the tower's config, its path and its width."""

LLAMA_NAMES: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED: Final = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_MOST_STAGES: Final = 32


class UnknownTowerError(Exception):
    """A tower whose type has no weights here, or whose shape cannot be counted."""


def tower(config: Config, path: str) -> tuple[Block, ...]:
    """All blocks of one tower, by the model type of its own config.

    Raises :class:`UnknownTowerError` for a type that has no weights here, and :class:`~hwcalc.errors.ConfigError` if a value
    makes no sense.
    """
    weigh = find_tower(config.model_type)
    if weigh is None:
        raise UnknownTowerError(config.model_type)
    return weigh(config, path)


class Style(Record):
    """How a family of encoders builds a layer, and how it names the tensors."""

    attention: str = "self_attn"
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "out_proj")
    """Query, key, value and output; or one tensor for the first three, and output."""
    bias: tuple[Switch, ...] = (True, True, True, True)
    """Biases of query, key, value and output. One tensor for the first three has the bias of the query."""
    mlp: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")
    """Up and down, or gate, up and down."""
    mlp_bias: tuple[Switch, Switch] = (True, True)
    """Biases of all matrices but the last, and of the last."""
    norms: tuple[str, ...] = ("layer_norm1", "layer_norm2")
    norm: str = "layer"
    """The kind of norms: ``layer`` or ``rms``."""
    heads: str = ""
    """``split`` if heads share the width, ``own`` if their width is ``head_dim``. Empty if the weights do not depend on it."""
    kv_heads: bool = False
    """True if keys and values may have fewer heads than queries."""
    qk_norm: str = ""
    """Norms of queries and keys: ``head`` (as wide as one head), ``full`` (as wide as all heads), or none."""
    qk_norm_if: Switch = True
    qk_norm_kind: str = "rms"
    scales: tuple[str, ...] = ()
    """Vectors of one number for each channel, by which the output of a branch is multiplied."""


LLAMA: Final = Style(names=LLAMA_NAMES, norms=("input_layernorm", "post_attention_layernorm"))


def split_width(config: Config, width: int, heads: int) -> int:
    """The width of a head if all heads together are as wide as the tower."""
    if heads > width:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    return width // heads


def encoder_layer(config: Config, style: Style, path: str, width: int, mlp_width: int, *, heads: int | None = None) -> Weighed:
    """The tensors of one layer. ``heads`` is for a config that has another key than ``num_attention_heads``.

    A layer of width 4 with an MLP of 8 and biases: 4 x (16 + 4) + (32 + 8) + (32 + 4) + 2 x 8 = 172.
    """
    query, key, head = width, width, 0
    if style.heads:
        count = heads or config.integer("num_attention_heads")
        kv_heads = (config.maybe_integer("num_key_value_heads") or count) if style.kv_heads else count
        given = config.maybe_integer("head_dim") if style.heads == "own" else None
        head = given or split_width(config, width, count)
        if style.heads == "own" or style.kv_heads:
            query, key = count * head, kv_heads * head
    bias = [switched(config, switch) for switch in style.bias]
    base = f"{path}.{style.attention}" if style.attention else path
    if len(style.names) == 2:
        weights = linear(f"{base}.{style.names[0]}", width, query + 2 * key, bias=bias[0])
    else:
        weights = linear(f"{base}.{style.names[0]}", width, query, bias=bias[0])
        for name, biased in zip(style.names[1:3], bias[1:3], strict=True):
            weights += linear(f"{base}.{name}", width, key, bias=biased)
    weights += linear(f"{base}.{style.names[-1]}", query, width, bias=bias[3])
    if style.qk_norm and switched(config, style.qk_norm_if):
        sizes = (query, key) if style.qk_norm == "full" else (head, head)
        for name, size in zip(("q_norm", "k_norm"), sizes, strict=True):
            weights += norm(style.qk_norm_kind, f"{base}.{name}", size)
    weights += norms(style.norm, path, style.norms, width)
    if mlp_width:
        biases = [switched(config, switch) for switch in style.mlp_bias]
        weights += linears(path, style.mlp[:-1], width, mlp_width, bias=biases[0])
        weights += linear(f"{path}.{style.mlp[-1]}", mlp_width, width, bias=biases[1])
    for name in style.scales:
        weights += parameter(f"{path}.{name}", width)
    return weights


class Encoder(Record):
    """A family of encoders: what comes before equal layers, the layers, and what comes after. A call weighs one encoder."""

    style: Style = Style()
    stem: Weigh | None = None
    layers: str = "layers"
    width: str = "hidden_size"
    """The key for the tower's width."""
    mlp_width: str | Callable[[Config, int], int] = "intermediate_size"
    """The key for the MLP's width, or a function of the config and the tower's width."""
    norms: tuple[str, ...] = ()
    """Norms before and after the layers."""
    extra: Weigh | None = None
    """Further tensors of the tower."""
    joint: Weigh | None = None
    """The tower's own projector."""
    joint_kind: str = "projector"
    part: Part = Part.VISION

    def __call__(self, config: Config, path: str) -> tuple[Block, ...]:
        """All blocks of one tower."""
        if config.flag("use_swiglu_ffn"):
            # Such a tower has a gated MLP of another width. No known model has one.
            raise UnknownTowerError(config.model_type)
        width = config.integer(self.width)

        def weighed(piece: Weigh | None) -> Weighed:
            return () if piece is None else piece(config, path, width)

        stem = weighed(self.stem)
        inner = config.integer(self.mlp_width) if isinstance(self.mlp_width, str) else self.mlp_width(config, width)
        layer = encoder_layer(config, self.style, f"{path}.{self.layers}", width, inner)
        return (
            *block("embedding", stem, self.part),
            *block("layer", layer, self.part, config.number_of_layers()),
            *block("norm", norms(self.style.norm, path, self.norms, width), self.part),
            *block("extra", weighed(self.extra), self.part),
            *block(self.joint_kind, weighed(self.joint), Part.PROJECTOR),
        )


def block(kind: str, weights: Weighed, part: Part = Part.VISION, count: int = 1) -> tuple[Block, ...]:
    """One block, or none if it would be empty."""
    return (Block(kind=kind, weights=weights, part=part, count=count),) if weights and count else ()


def copied(weights: Iterable[Weight], count: int) -> Weighed:
    """``count`` copies of each tensor."""
    return tuple(replace(weight, copies=count) for weight in weights) if count else ()


def conv(path: str, out_channels: int, *shape: int, bias: bool = True, transposed: bool = False) -> Weighed:
    """A convolution. ``shape`` is the number of channels that one filter reads, then its size in each direction.

    A transposed convolution stores its inputs first: ``out_channels`` and the first number of ``shape`` change places.
    """
    weights = parameter(f"{path}.weight", out_channels, *shape, role=WeightRole.CONV)
    width = shape[0] if transposed else out_channels
    return (*weights, *parameter(f"{path}.bias", width, role=WeightRole.BIAS)) if bias else weights


def linears(path: str, names: Iterable[str], source: int, out: int, *, bias: bool = False) -> Weighed:
    """Linear layers of one shape, side by side."""
    return tuple(weight for name in names for weight in linear(f"{path}.{name}", source, out, bias=bias))


def norms(kind: str, path: str, names: Iterable[str], width: int) -> Weighed:
    """Norms of one kind and width."""
    return tuple(weight for name in names for weight in norm(kind, f"{path}.{name}", width))


def mlp_chain(path: str, sizes: tuple[int, ...], names: tuple[str, ...], *, bias: bool = True) -> Weighed:
    """Linear layers one after another: ``names[i]`` from ``sizes[i]`` to ``sizes[i + 1]``."""
    weights: Weighed = ()
    for i, name in enumerate(names):
        weights += linear(f"{path}.{name}", sizes[i], sizes[i + 1], bias=bias)
    return weights


def integers(config: Config, *keys: str) -> tuple[int, ...]:
    """The whole numbers of keys that must be there."""
    return tuple(config.integer(key) for key in keys)


def needed(config: Config, key: str, **set_by_parent: int) -> Config:
    """The config of a part that must be there."""
    part = config.part(key, **set_by_parent)
    if part is None:
        raise config.missing(key)
    return part


def stages(config: Config, key: str, length: int | None = None, default: tuple[int, ...] = ()) -> list[int]:
    """A list of whole numbers, one for each stage of a tower."""
    values = config.integers(key, length=length, minimum=1) or list(default)
    if not values:
        raise config.missing(key)
    if len(values) > _MOST_STAGES:
        raise config.error_in_words(key, f"{len(values)} items long", f"a list of at most {_MOST_STAGES}")
    return values


def pair(config: Config, key: str) -> tuple[int, int]:
    """A height and a width, given as two numbers or as one for both."""
    return integer_pair(config, key, config.get(key))


def integer_pair(config: Config, key: str, value: object) -> tuple[int, int]:
    """The same for a value that stands in a list under ``key``."""
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise config.error(key, value, "one number, or a height and a width")
        return config.checked_integer(key, value[0]), config.checked_integer(key, value[1])
    if value is None:
        raise config.missing(key)
    side = config.checked_integer(key, value)
    return side, side


def grid(config: Config, extra: int = 0) -> int:
    """Patches of an image of the size used in training, and ``extra`` positions more."""
    (height, width), (down, across) = pair(config, "image_size"), pair(config, "patch_size")
    return (height // down) * (width // across) + extra


def _patch_shape(config: Config, frames: str) -> tuple[int, ...]:
    """Channels, frames, height and width of a patch. The channels have either of two names, or there are three."""
    depth = (config.integer(frames),) if frames else ()
    channels = config.maybe_integer("num_channels") or config.maybe_integer("in_channels") or 3
    return (channels, *depth, *pair(config, "patch_size"))


def patch_conv(config: Config, path: str, width: int, *, bias: bool = True, frames: str = "") -> Weighed:
    """A convolution from patches to vectors. ``frames`` is the key for the number of images in a patch."""
    return conv(path, width, *_patch_shape(config, frames), bias=bias)


def patch_linear(config: Config, path: str, width: int, *, bias: bool = True, frames: str = "") -> Weighed:
    """A linear layer from patches to vectors."""
    return linear(path, prod(_patch_shape(config, frames)), width, bias=bias)


def patches(
    name: str = "patch_embedding",
    *,
    embed: Callable[..., Weighed] | None = patch_conv,
    bias: bool = True,
    frames: str = "",
    table: str = "position_embedding",
    positions: str | Callable[[Config], int] = "",
    vectors: int = 0,
) -> Weigh:
    """A stem: patches, a table of positions, and learned vectors before the patches.

    ``positions`` gives the number of positions, or is the key for it.
    """

    def stem(config: Config, path: str, width: int) -> Weighed:
        weights = () if embed is None else embed(config, f"{path}.{name}", width, bias=bias, frames=frames)
        if positions:
            rows = config.integer(positions) if isinstance(positions, str) else positions(config)
            weights += embedding(f"{path}.{table}", rows, width)
        return weights + parameter(f"{path}.class_embedding", vectors, width) if vectors else weights

    return stem


def ratio_width(config: Config, width: int, key: str = "mlp_ratio") -> int:
    """A width that is a multiple of another, rounded down."""
    size = int(width * config.number(key, 4.0))
    if size < 1:
        raise config.error(key, config.get(key), "a positive number")
    return size


def neck(path: str, width: int, out: int) -> Weighed:
    """Two convolutions, each with a norm. ``out`` is the number of channels that leave SAM's encoder."""
    weights = conv(f"{path}.conv1", out, width, 1, 1, bias=False) + norm("layer", f"{path}.layer_norm1", out)
    return weights + conv(f"{path}.conv2", out, out, 3, 3, bias=False) + norm("layer", f"{path}.layer_norm2", out)

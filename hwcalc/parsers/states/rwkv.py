"""RWKV-4 to RWKV-7. RWKV-4 mirrors ``modeling_rwkv.py`` of transformers 5.23; the others' code lives with the models.

- rwkv5, rwkv6: ``attention_hidden_size`` // ``head_size`` heads (``num_attention_heads``, where a file has it, is the head
  size by another name). The weights are those of RWKV's ``modeling_rwkv5.py``.
- rwkv7: ``hidden_size`` // ``head_dim``; layers listed in ``attn`` have softmax attention instead, and keep only the token
  shift of their feed-forward (fla, ``modeling_rwkv7.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import Layer, Rwkv4, RwkvMatrix, ShortConvolution
from hwcalc.formulas.weights import Block, Weight, layer_norm, linear, parameter
from hwcalc.formulas.weights_state import rwkv4
from hwcalc.parsers.blocks import Named, ends, repeated
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading, equal_dims

__all__ = ["RWKV4", "RWKV5", "RWKV6", "RWKV7"]


def _rwkv4(config: Config) -> Reading:
    hidden = config.integer("hidden_size")
    kind = Rwkv4(hidden_size=hidden, attention_hidden_size=config.maybe_integer("attention_hidden_size") or hidden)
    return Reading(layers=((kind,),) * config.number_of_layers(), config=config)


def _rwkv5(config: Config) -> Reading:
    """RWKV-5 and -6."""
    count = config.number_of_layers()
    hidden = config.integer("hidden_size")
    width = config.maybe_integer("attention_hidden_size") or hidden
    head_dim = config.integer("head_dim")
    config.ignore("num_attention_heads", "num_heads", "head_size_divisor")
    return Reading(layers=(_matrix_layer(config, hidden, width, head_dim),) * count, config=config)


def _rwkv7(config: Config) -> Reading:
    count = config.number_of_layers()
    hidden = config.integer("hidden_size")
    config.ignore("num_heads", "attn_mode")
    value_dim = config.get("value_dim")
    values = value_dim if isinstance(value_dim, (list, tuple)) else [value_dim]
    if any(value not in (None, hidden) for value in values):
        raise config.error("value_dim", value_dim, f"hidden_size ({hidden}) on every layer: no other is known")
    mixing = _matrix_layer(config, hidden, hidden, config.integer("head_dim"))
    attention = config.sub("attn")
    if attention is None:
        return Reading(layers=(mixing,) * count, config=config)
    listed = set(attention.integers("layers") or [])
    attending = _softmax_layer(attention, hidden)
    return Reading(layers=tuple(attending if i in listed else mixing for i in range(count)), config=config)


def _matrix_layer(config: Config, hidden: int, width: int, head_dim: int) -> Layer:
    heads = width // head_dim
    if heads * head_dim != width:
        raise config.error("head_dim", head_dim, f"a divisor of the attention's width ({width})")
    return (RwkvMatrix(hidden_size=hidden, num_heads=heads, head_dim=head_dim),)


def _softmax_layer(attention: Config, hidden: int) -> Layer:
    heads = attention.integer("num_heads")
    dims = equal_dims(heads, attention.maybe_integer("num_kv_heads"), hidden // heads)
    # A token shift is a convolution of two taps.
    shift = ShortConvolution(channels=hidden, d_conv=2)
    return (dims.within(attention.maybe_integer("window_size")), shift)


def _early_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """RWKV-4 and -5: time mixing, channel mixing, and a layer norm before each.

    The MLP of RWKV-4 is 4 times as wide as the model, that of RWKV-5 3.5 times, rounded down to a multiple of 32.
    """
    hidden = config.integer("hidden_size")
    usual = 4 * hidden if isinstance(reading.layers[0][0], Rwkv4) else int(hidden * 3.5) // 32 * 32
    width = config.maybe_integer("intermediate_size") or usual
    path = "feed_forward"
    mlp = parameter(f"{path}.time_mix_key", 1, 1, hidden) + parameter(f"{path}.time_mix_receptance", 1, 1, hidden)
    mlp += linear(f"{path}.key", hidden, width) + linear(f"{path}.receptance", hidden, hidden)
    mlp += linear(f"{path}.value", width, hidden)

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Rwkv4):
            yield "rwkv", rwkv4(**vars(kind))
        else:
            assert isinstance(kind, RwkvMatrix)
            yield "rwkv", _rwkv5_mixing(kind)
        yield "mlp", mlp
        yield "norm", layer_norm("ln1", hidden) + layer_norm("ln2", hidden)

    norms = layer_norm("rwkv.blocks.0.pre_ln", hidden) + layer_norm("rwkv.ln_out", hidden)
    return ends(config, top, embed="rwkv.embeddings", norm=norms, head="head") + repeated(reading.layers, weigh)


def _rwkv5_mixing(kind: RwkvMatrix) -> tuple[Weight, ...]:
    """As RWKV-4, with heads, a gate and a group norm."""
    hidden, inner = kind.hidden_size, kind.num_heads * kind.head_dim
    weights: tuple[Weight, ...] = ()
    for name in ("time_decay", "time_faaaa"):
        weights += parameter(f"attention.{name}", kind.num_heads, kind.head_dim)
    for name in ("key", "value", "receptance", "gate"):
        weights += parameter(f"attention.time_mix_{name}", 1, 1, hidden) + linear(f"attention.{name}", hidden, inner)
    return weights + linear("attention.output", inner, hidden) + layer_norm("attention.ln_x", inner)


def _rwkv7_weights(config: Config, top: Config, reading: Reading) -> list[Block] | None:
    """RWKV-7: decay, in-context rate, value residual and gate each through a low rank; the first layer has no residual."""
    hidden = config.integer("hidden_size")
    ranks = [config.maybe_integer(f"{name}_low_rank_dim") for name in ("decay", "a", "v", "gate")]
    # fla has changed its defaults, and hybrids with softmax attention have a layout of their own.
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks) or config.get("attn") is not None or not config.flag("norm_first", default=True):
        return None
    decay, rate, value, gate = known
    bias = config.flag("norm_bias", default=True)
    ratio = config.number("hidden_ratio", 4)
    # Rounded up to a multiple of 32, where the file does not name it.
    width = config.maybe_integer("intermediate_size") or config.checked_integer(
        "hidden_ratio", -(-int(hidden * ratio) // 32) * 32
    )
    mlp = parameter("ffn.x_k", hidden) + linear("ffn.key", hidden, width) + linear("ffn.value", width, hidden)

    def low_rank(name: str, rank: int, *, bias: bool = True) -> tuple[Weight, ...]:
        return linear(f"attn.{name}_lora.lora.0", hidden, rank) + linear(f"attn.{name}_lora.lora.2", rank, hidden, bias=bias)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        (kind,), first = key
        assert isinstance(kind, RwkvMatrix)
        weights = tuple(parameter(f"attn.x_{name}", 1, 1, hidden)[0] for name in "rwkvag")
        weights += parameter("attn.k_k", hidden) + parameter("attn.k_a", hidden)
        weights += parameter("attn.r_k", kind.num_heads, kind.head_dim)
        for name in "rkvo":
            weights += linear(f"attn.{name}_proj", hidden, hidden)
        weights += low_rank("w", decay) + low_rank("a", rate) + low_rank("g", gate, bias=False)
        if not first:
            weights += low_rank("v", value)
        yield "rwkv", weights + layer_norm("attn.g_norm", hidden)
        yield "mlp", mlp
        yield "norm", layer_norm("attn_norm", hidden, bias=bias) + layer_norm("ffn_norm", hidden, bias=bias)

    norms = layer_norm("model.layers.0.pre_norm", hidden, bias=bias) + layer_norm("model.norm", hidden, bias=bias)
    layers = [(layer, i == 0) for i, layer in enumerate(reading.layers)]
    return ends(config, top, embed="model.embeddings", norm=norms) + repeated(layers, weigh)


RWKV4: Final = Readers(layers=_rwkv4, weights=_early_weights)
RWKV5: Final = Readers(layers=_rwkv5, weights=_early_weights)
RWKV6: Final = Readers(layers=_rwkv5)
RWKV7: Final = Readers(layers=_rwkv7, weights=_rwkv7_weights)

"""JetMoE, whose attention has experts, and HRM, which runs its layers several times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import Block, Weight, WeightRole, experts, linear, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.decoder.build import Decoder, alike, mlp_blocks
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims, dims_of, equal_dims


def _jetmoe_dims(config: Config) -> AttentionDims:
    """The experts share keys and values: each key/value head serves one query head of every expert in use."""
    kv_heads = config.integer("num_key_value_heads")
    head_dim = config.integer("head_dim")
    per_token = config.integer("num_experts_per_tok")
    return equal_dims(kv_heads * per_token, kv_heads, head_dim)


def _mixture(config: Config, path: str, up: int, down: int) -> Weighed:
    """Experts of two matrices each, their router, and one bias for all of them."""
    hidden, count = config.integer("hidden_size"), config.integer("num_local_experts")
    expert = linear(f"{path}.input_linear", hidden, up) + linear(f"{path}.output_linear", down, hidden)
    return (
        *experts(expert, count, config.integer("num_experts_per_tok")),
        *linear(f"{path}.router.layer", hidden, count, role=WeightRole.ROUTER),
        Weight(path=f"{path}.bias", shape=(hidden,), role=WeightRole.BIAS),
    )


def _jetmoe_attention(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """The projections of queries and of the output are experts; keys and values are shared."""
    dims = dims_of(layer)
    inner = dims.head_dim * dims.num_key_value_heads
    mixed = _mixture(config, "self_attention.experts", inner, inner)
    return mixed + linear("self_attention.kv_proj", config.integer("hidden_size"), 2 * inner)


def _jetmoe_mlps(config: Config, _spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    width = config.integer("intermediate_size")
    return mlp_blocks([None] * len(layers), lambda _: _mixture(config, "mlp", 2 * width, width))


JETMOE: Final = Decoder(layers=alike(_jetmoe_dims, "num_attention_heads"), attention=_jetmoe_attention, mlps=_jetmoe_mlps)


def _hrm_layers(config: Config) -> Reading:
    """Each layer runs several times on a token, and each run has its own keys and values.

    HRM runs its stack H_cycles x (L_cycles + 1) times: 16 layers with 2 and 3 keep 128 caches. A file with
    ``num_layers_per_stack`` already counts every run. Every head has its own keys and values, whatever the file says.
    """
    count = config.number_of_layers()
    config.ignore("L_bp_cycles", "H_cycles", "L_cycles")
    dims = attention_dims(config)
    passes = 1
    if config.maybe_integer("num_layers_per_stack") is None:
        cycles = config.integer("H_cycles", maximum=1000) * (config.integer("L_cycles", maximum=1000) + 1)
        passes = config.checked_integer("H_cycles x (L_cycles + 1)", cycles, maximum=MAX_LAYERS)
    kept = replace(dims, num_key_value_heads=dims.num_attention_heads).full()
    return Reading(layers=((kept,) * passes,) * count, config=config)


def _hrm_stacks(config: Config, reading: Reading) -> Sequence[int]:
    """The weights of two stacks of the same shape, spread over the layers that were read.

    The depth of a stack is ``num_layers_per_stack``, else ``num_hidden_layers``. Beside the former, the latter counts all runs.
    """
    count = len(reading.layers)
    depth = config.maybe_integer("num_layers_per_stack") or count
    return [index * count // (2 * depth) for index in range(2 * depth)]


def _hrm_gate(config: Config, layer: Layer) -> Weighed:
    dims, hidden = dims_of(layer), config.integer("hidden_size")
    return linear("self_attn.gate_proj", hidden, dims.num_attention_heads * dims.head_dim, bias=config.flag("attention_bias"))


HRM: Final = Decoder(
    layers=_hrm_layers,
    numbers=_hrm_stacks,
    # No norm has weights.
    norms=0,
    final_norm=False,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    extra=_hrm_gate,
    outer=lambda config: rms_norm("z_L_init", config.integer("hidden_size")),
)

"""Linear attention and other recurrences: MiniMax, Ring-linear, RecurrentGemma, xLSTM, and RWKV-4 to RWKV-7.

Mirrors ``modeling_*.py`` of MiniMax, RecurrentGemma, xLSTM and RWKV-4 in transformers 5.23. The code of the others lives with the
models:

- minimax_m1, minimax_text_01: ``attn_type_list`` is 1 for softmax attention and 0 for lightning attention, whose state is a square
  matrix for each *query* head (vLLM's ``minimax_text_01.py``: heads x head_dim x head_dim, fp32).
- bailing_moe_linear (Ring-linear, Ling 2.5): softmax attention on the last of each ``layer_group_size`` layers and on the layers
  at the end that fill no group, lightning attention on the others (``modeling_bailing_moe_linear_v2.py``). With ``kv_lora_rank``
  the softmax attention is MLA.
- rwkv5, rwkv6: ``attention_hidden_size`` // ``head_size`` heads. If a file has ``num_attention_heads``, that is another name for
  the head size. The weights are those of RWKV's ``modeling_rwkv5.py``.
- rwkv7: ``hidden_size`` // ``head_dim`` heads. Layers listed in ``attn`` have softmax attention instead, and keep only the token
  shift of their feed-forward (fla, ``modeling_rwkv7.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc import formulas
from hwcalc.formulas import AttentionKind, Layer
from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, WeightRole
from hwcalc.parsers.blocks import Named, Weighed, attention_of, ends, gated_experts, repeated, rms_norms
from hwcalc.parsers.config import MAX_LAYERS, Config
from hwcalc.parsers.reading import (
    AttentionDims,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    equal_dims,
    every,
    full_layer,
    kind_in,
)
from hwcalc.parsers.states import FULL, LINEAR, SLIDING, Mixers, mixed_layers, spelled_layer_types, state_dtype


def _minimax(config: Config) -> Reading:
    """By ``layer_types`` or ``attn_type_list`` (1 is attention). Without both, layers 0, 2, 4 and so on have attention."""
    count = config.number_of_layers()
    for kind in ("full", "linear"):
        config.ignore(f"{kind}_attn_alpha_factor", f"{kind}_attn_beta_factor")
    config.ignore("sliding_window")
    alternating = every(2, count, FULL, LINEAR, offset=0)
    flags = config.integers("attn_type_list", length=count)
    spelled = spelled_layer_types(config, count)
    types = spelled or ([FULL if flag else LINEAR for flag in flags] if flags else alternating)
    readers = {LINEAR: lambda level, _index: _lightning(attention_dims(level)), FULL: full_layer}
    layers = build_layers(config, types, readers)
    # The class in transformers does not read attn_type_list.
    readings = {"transformers": build_layers(config, alternating, readers)} if flags and not spelled else {}
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config), readings=readings)


def _lightning(dims: AttentionDims) -> Layer:
    return (formulas.LightningAttention(num_heads=dims.num_attention_heads, head_dim=dims.head_dim),)


def _minimax_text(config: Config) -> Reading:
    count, dims = config.number_of_layers(), attention_dims(config)
    types = config.integers("attn_type_list")
    if types is None:
        raise config.missing("attn_type_list")
    if len(types) < count or set(types) - {0, 1}:
        raise config.error("attn_type_list", types, f"a list of {count} items, 0 (lightning) or 1 (softmax)")
    return Reading(layers=tuple((dims.full(),) if flag else _lightning(dims) for flag in types[:count]), config=config)


def _minimax_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """Lightning or softmax attention, then experts. Early files may have a shared expert, which is scaled by a single number."""
    hidden, count = config.integer("hidden_size"), config.integer("num_local_experts")
    moe = gated_experts(hidden, config.integer("intermediate_size"), count, config.integer("num_experts_per_tok"))
    shared = 0 if config.has_class else config.maybe_integer("shared_intermediate_size", minimum=0) or 0
    if shared:
        moe += w.gated_mlp(hidden, shared, path="shared_mlp") + w.linear("coefficient", hidden, 1, role=WeightRole.ROUTER)

    mixers: Mixers = {
        formulas.LightningAttention: ("lightning", lambda kind: w.lightning_attention(hidden, **kind.numbers())),
        AttentionKind: ("attention", lambda kind: attention_of(kind, hidden)),
    }
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")
    return ends(config, top) + mixed_layers(reading.layers, mixers, ("moe", moe), ("norm", norms))


def _bailing_moe_linear(config: Config) -> Reading:
    count, period = config.number_of_layers(), config.integer("layer_group_size")
    dims = attention_dims(config)
    softmax: Layer = (dims.full(),)
    rank = config.maybe_integer("kv_lora_rank")
    if rank is not None:
        softmax = (
            formulas.LatentAttention(
                num_attention_heads=dims.num_attention_heads,
                kv_lora_rank=rank,
                qk_rope_head_dim=config.integer("qk_rope_head_dim", minimum=0),
                qk_nope_head_dim=config.integer("qk_nope_head_dim", minimum=0),
                v_head_dim=dims.v_head_dim,
            ),
        )
    config.ignore("num_kv_heads_for_linear_attn", "max_window_layers", "layer_types", "linear_attn_norm_group_size")
    filled = count // period * period
    layers = tuple(softmax if (i + 1) % period == 0 or i >= filled else _lightning(dims) for i in range(count))
    return Reading(layers=layers, config=config)


def _recurrent_gemma(config: Config) -> Reading:
    """``block_types`` is one period. Attention always has a window."""
    count = config.number_of_layers()
    period = config.strings("block_types")
    spelled = spelled_layer_types(config, count)
    if spelled is None and not period:
        raise config.missing("block_types")
    names, cycle = {"recurrent": LINEAR, "attention": SLIDING}, period or [""]
    types = spelled or [names.get(name, name) for name in (cycle[i % len(cycle)] for i in range(count))]
    config.ignore("attention_window_size", "_block_types", "final_w_init_variance_scale")
    window = config.integer("attention_window_size")

    def recurrent(layer: Config, index: int) -> Layer:
        width = layer.maybe_integer("lru_width") or layer.integer("hidden_size")
        return (formulas.RealGatedLRU(lru_width=width, d_conv=layer.integer("conv1d_width")),)

    def attention(layer: Config, index: int) -> Layer:
        return (attention_dims(layer).sliding(window),)

    return Reading(layers=build_layers(config, types, {LINEAR: recurrent, SLIDING: attention}), config=config)


def _recurrent_gemma_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """``intermediate_size`` is the width of gate and up together."""
    hidden, heads, bias = config.integer("hidden_size"), config.integer("num_attention_heads"), config.flag("attention_bias")
    mlp = w.gated_mlp(hidden, config.integer("intermediate_size") // 2, bias=True, path="mlp_block")
    norms = rms_norms(hidden, "temporal_pre_norm", "channel_pre_norm")
    mixers: Mixers = {
        formulas.RealGatedLRU: ("rg_lru", lambda kind: w.rg_lru(hidden, kind.lru_width, kind.d_conv, heads)),
        AttentionKind: ("attention", lambda kind: attention_of(kind, hidden, qkv_bias=bias, o_bias=True, path="temporal_block")),
    }
    out = ends(config, top, norm="model.final_norm")
    return out + mixed_layers(reading.layers, mixers, ("mlp", mlp), ("norm", norms))


def _xlstm(config: Config) -> Reading:
    """The widths of the states are shares of ``hidden_size``, rounded up to a multiple of 64 and divided among the heads."""
    heads = config.integer("num_heads")
    hidden = config.maybe_integer("hidden_size") or config.integer("embedding_dim")
    count = config.maybe_integer("num_hidden_layers") or config.integer("num_blocks")
    queries, values = (_share(config, hidden, key, share, 64) for key, share in _SHARES)
    kind = formulas.MatrixLSTM(num_heads=heads, qk_head_dim=queries // heads, v_head_dim=values // heads)
    config.ignore(
        "autocast_kernel_dtype", "chunk_size", "chunkwise_kernel", "head_dim", "inference_state_dtype", "max_inference_chunksize",
        "return_last_states",
    )  # fmt: skip
    layers = ((kind,),) * config.checked_integer("num_hidden_layers", count, maximum=MAX_LAYERS)
    return Reading(layers=layers, config=config, state_dtype=state_dtype(config, ("inference_state_dtype",)))


def _xlstm_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """The widths of the projections are the same shares without rounding. The MLP's width is rounded: 2.667 x 4,096 is 10,944."""
    hidden, bias = config.integer("hidden_size"), config.flag("use_bias")
    width = _share(config, hidden, "ffn_proj_factor", 2.667, config.integer("ffn_round_up_to_multiple_of"))
    queries, values = (_share(config, hidden, key, share) for key, share in _SHARES)
    mlp = w.linear("ffn.proj_up_gate", hidden, width, bias=bias) + w.linear("ffn.proj_up", hidden, width, bias=bias)
    mlp += w.linear("ffn.proj_down", width, hidden, bias=bias)
    norms = w.layer_norm("norm_mlstm", hidden, bias=bias) + w.layer_norm("norm_ffn", hidden, bias=bias)
    mixers: Mixers = {
        formulas.MatrixLSTM: ("mlstm", lambda kind: w.matrix_lstm(hidden, kind.num_heads, queries, values, bias=bias))
    }
    out = ends(config, top, embed="backbone.embeddings", norm="backbone.out_norm")
    return out + mixed_layers(reading.layers, mixers, ("mlp", mlp), ("norm", norms))


# The share of hidden_size that queries and keys have, and that values have.
_SHARES: Final = (("qk_dim_factor", 0.5), ("v_dim_factor", 1.0))


def _share(config: Config, hidden: int, key: str, default: float, multiple: int = 1) -> int:
    """A share of ``hidden``, rounded up to a multiple."""
    width = hidden * config.number(key, default)
    return config.checked_integer(key, int((width + multiple - 1) // multiple * multiple))


def _rwkv4(config: Config) -> Reading:
    hidden = config.integer("hidden_size")
    kind = formulas.Rwkv4(hidden_size=hidden, attention_hidden_size=config.maybe_integer("attention_hidden_size") or hidden)
    return Reading(layers=((kind,),) * config.number_of_layers(), config=config)


def _rwkv5(config: Config) -> Reading:
    """RWKV-5 and -6."""
    count, hidden = config.number_of_layers(), config.integer("hidden_size")
    width, head_dim = config.maybe_integer("attention_hidden_size") or hidden, config.integer("head_dim")
    config.ignore("num_attention_heads", "num_heads", "head_size_divisor")
    return Reading(layers=(_matrix_layer(config, hidden, width, head_dim),) * count, config=config)


def _rwkv7(config: Config) -> Reading:
    count, hidden = config.number_of_layers(), config.integer("hidden_size")
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
    heads = attention.integer("num_heads")
    dims = equal_dims(heads, attention.maybe_integer("num_kv_heads"), hidden // heads)
    # A token shift is a convolution of two taps.
    shift = formulas.ShortConvolution(channels=hidden, d_conv=2)
    attending = (dims.within(attention.maybe_integer("window_size")), shift)
    return Reading(layers=tuple(attending if i in listed else mixing for i in range(count)), config=config)


def _matrix_layer(config: Config, hidden: int, width: int, head_dim: int) -> Layer:
    heads = width // head_dim
    if heads * head_dim != width:
        raise config.error("head_dim", head_dim, f"a divisor of the attention's width ({width})")
    return (formulas.RwkvMatrix(hidden_size=hidden, num_heads=heads, head_dim=head_dim),)


def _early_weights(config: Config, top: Config, reading: Reading) -> list[Block]:
    """RWKV-4 and -5: time mixing, channel mixing, and a layer norm before each.

    The MLP of RWKV-4 is 4 times as wide as the model, that of RWKV-5 is 3.5 times as wide, rounded down to a multiple of 32.
    """
    hidden = config.integer("hidden_size")
    usual = 4 * hidden if isinstance(reading.layers[0][0], formulas.Rwkv4) else int(hidden * 3.5) // 32 * 32
    width = config.maybe_integer("intermediate_size") or usual
    path = "feed_forward"
    mlp = w.parameter(f"{path}.time_mix_key", 1, 1, hidden) + w.parameter(f"{path}.time_mix_receptance", 1, 1, hidden)
    mlp += w.linear(f"{path}.key", hidden, width) + w.linear(f"{path}.receptance", hidden, hidden)
    mlp += w.linear(f"{path}.value", width, hidden)
    mixers: Mixers = {
        formulas.Rwkv4: ("rwkv", lambda kind: w.rwkv4(**kind.numbers())),
        formulas.RwkvMatrix: ("rwkv", _rwkv5_mixing),
    }
    norms = w.layer_norm("ln1", hidden) + w.layer_norm("ln2", hidden)
    outer = w.layer_norm("rwkv.blocks.0.pre_ln", hidden) + w.layer_norm("rwkv.ln_out", hidden)
    out = ends(config, top, embed="rwkv.embeddings", norm=outer, head="head")
    return out + mixed_layers(reading.layers, mixers, ("mlp", mlp), ("norm", norms))


def _rwkv5_mixing(kind: formulas.RwkvMatrix) -> Weighed:
    """Time mixing of RWKV-4 with heads, a gate and a group norm."""
    hidden, inner = kind.hidden_size, kind.num_heads * kind.head_dim
    weights: Weighed = ()
    for name in ("time_decay", "time_faaaa"):
        weights += w.parameter(f"attention.{name}", kind.num_heads, kind.head_dim)
    for name in ("key", "value", "receptance", "gate"):
        weights += w.parameter(f"attention.time_mix_{name}", 1, 1, hidden) + w.linear(f"attention.{name}", hidden, inner)
    return weights + w.linear("attention.output", inner, hidden) + w.layer_norm("attention.ln_x", inner)


def _rwkv7_weights(config: Config, top: Config, reading: Reading) -> list[Block] | None:
    """RWKV-7: decay, in-context rate, value residual and gate each have a low rank. The first layer has no value residual."""
    hidden = config.integer("hidden_size")
    ranks = [config.maybe_integer(f"{name}_low_rank_dim") for name in ("decay", "a", "v", "gate")]
    # Without the ranks the widths are unknown, since fla has changed its defaults. Hybrids with attention have another layout.
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks) or config.get("attn") is not None or not config.flag("norm_first", default=True):
        return None
    decay, rate, value, gate = known
    bias, ratio = config.flag("norm_bias", default=True), config.number("hidden_ratio", 4)
    # If the file does not give the width, it is rounded up to a multiple of 32.
    usual = -(-int(hidden * ratio) // 32) * 32
    width = config.maybe_integer("intermediate_size") or config.checked_integer("hidden_ratio", usual)
    mlp = w.parameter("ffn.x_k", hidden) + w.linear("ffn.key", hidden, width) + w.linear("ffn.value", width, hidden)

    def low_rank(name: str, rank: int, *, bias: bool = True) -> Weighed:
        return w.linear(f"attn.{name}_lora.lora.0", hidden, rank) + w.linear(f"attn.{name}_lora.lora.2", rank, hidden, bias=bias)

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, first = key
        kind = kind_in(config, layer, formulas.RwkvMatrix)
        weights = tuple(w.parameter(f"attn.x_{name}", 1, 1, hidden)[0] for name in "rwkvag")
        weights += w.parameter("attn.k_k", hidden) + w.parameter("attn.k_a", hidden)
        weights += w.parameter("attn.r_k", kind.num_heads, kind.head_dim)
        for name in "rkvo":
            weights += w.linear(f"attn.{name}_proj", hidden, hidden)
        weights += low_rank("w", decay) + low_rank("a", rate) + low_rank("g", gate, bias=False)
        if not first:
            weights += low_rank("v", value)
        yield "rwkv", weights + w.layer_norm("attn.g_norm", hidden)
        yield "mlp", mlp
        yield "norm", w.layer_norm("attn_norm", hidden, bias=bias) + w.layer_norm("ffn_norm", hidden, bias=bias)

    norms = w.layer_norm("model.layers.0.pre_norm", hidden, bias=bias) + w.layer_norm("model.norm", hidden, bias=bias)
    layers = [(layer, i == 0) for i, layer in enumerate(reading.layers)]
    return ends(config, top, embed="model.embeddings", norm=norms) + repeated(layers, weigh)


BAILING_MOE_LINEAR: Final = Readers(layers=_bailing_moe_linear)
MINIMAX: Final = Readers(layers=_minimax, weights=_minimax_weights)
MINIMAX_TEXT: Final = Readers(layers=_minimax_text, weights=_minimax_weights)
RECURRENT_GEMMA: Final = Readers(layers=_recurrent_gemma, weights=_recurrent_gemma_weights)
XLSTM: Final = Readers(layers=_xlstm, weights=_xlstm_weights)
RWKV4: Final = Readers(layers=_rwkv4, weights=_early_weights)
RWKV5: Final = Readers(layers=_rwkv5, weights=_early_weights)
RWKV6: Final = Readers(layers=_rwkv5)
RWKV7: Final = Readers(layers=_rwkv7, weights=_rwkv7_weights)

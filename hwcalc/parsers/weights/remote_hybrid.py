"""Hybrids and recurrent models whose code lives with the model: PLaMo 2, Phi-4-mini-flash, RWKV-5 and RWKV-7.

Layouts by vLLM's ``plamo2.py`` and ``phi4flash.py``, RWKV's ``modeling_rwkv5.py`` and fla's ``rwkv7.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hwcalc.formulas import Layer, Mamba1, Mamba2, NoCache, RwkvMatrix
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Weight, WeightRole, embedding, gated_mlp, layer_norm, linear, parameter, rms_norm
from hwcalc.formulas.weights_state import convolution, mamba1
from hwcalc.parsers.blocks import Named, ends, repeated, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import attention_dims
from hwcalc.parsers.weights.mamba import time_step_rank
from hwcalc.parsers.weights.stack import cached_layers

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...] | None:
    """All blocks of one of the models above; ``None`` for an RWKV-7 file that does not name its low ranks."""
    found = _RULES[config.model_type or ""](config, top)
    return None if found is None else tuple(found)


def _plamo2(config: Config, top: Config) -> list[Block]:
    """Four norms a layer; queries and keys have a scale for each channel of each head."""
    hidden = config.integer("hidden_size")
    norms = tuple(
        weight for place in ("mixer", "mlp") for when in ("pre", "post") for weight in rms_norm(f"{when}_{place}_norm", hidden)
    )
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), fused="gate_up_proj")

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba2):
            yield "mamba", _plamo2_mamba(kind, hidden)
        else:
            assert isinstance(kind, AttentionKind)
            queries, keys = kind.num_attention_heads * kind.head_dim, kind.num_key_value_heads * kind.head_dim
            weights = linear("mixer.qkv_proj", hidden, queries + 2 * keys) + linear("mixer.o_proj", queries, hidden)
            weights += parameter("mixer.q_weight", kind.num_attention_heads, kind.head_dim, role=WeightRole.NORM)
            yield (
                "attention",
                weights + parameter("mixer.k_weight", kind.num_key_value_heads, kind.head_dim, role=WeightRole.NORM),
            )
        yield "mlp", mlp
        yield "norm", norms

    return ends(config, top) + repeated(cached_layers(config), weigh)


def _plamo2_mamba(kind: Mamba2, hidden: int) -> tuple[Weight, ...]:
    """Mamba-2's heads behind Mamba-1's projections: B, C and the time step come from x, each with a norm."""
    inner, state = kind.num_heads * kind.head_dim, kind.d_state
    rank = max(64, hidden // 16)
    weights = linear("mixer.in_proj", hidden, 2 * inner) + convolution("mixer.conv1d", inner, kind.d_conv)
    weights += linear("mixer.bcdt_proj", inner, rank + 2 * state) + linear("mixer.dt_proj", rank, kind.num_heads)
    weights += parameter("mixer.dt_bias", kind.num_heads, role=WeightRole.BIAS)
    weights += parameter("mixer.A_log", kind.num_heads) + parameter("mixer.D", kind.num_heads)
    weights += rms_norm("mixer.dt_norm", rank) + rms_norm("mixer.B_norm", state) + rms_norm("mixer.C_norm", state)
    return weights + linear("mixer.out_proj", inner, hidden)


def _phi4flash(config: Config, top: Config) -> list[Block]:
    """Layer norms; differential attention. Past the middle, attention has only queries and Mamba only a gate and an output."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    dims = attention_dims(config)
    width = config.integer("intermediate_size")
    mlp = linear("mlp.fc1", hidden, 2 * width) + linear("mlp.fc2", width, hidden)
    norms = layer_norm("input_layernorm", hidden) + layer_norm("post_attention_layernorm", hidden)
    queries, keys = dims.num_attention_heads * dims.head_dim, dims.num_key_value_heads * dims.head_dim
    inner = config.integer("mamba_expand") * hidden

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        if isinstance(kind, Mamba1):
            rank = time_step_rank(config, "mamba_dt_rank")
            yield "mamba", mamba1(hidden, kind.d_inner, kind.d_state, kind.d_conv, rank, path="attn")
        elif isinstance(kind, NoCache):
            yield "gate", linear("attn.in_proj", hidden, inner) + linear("attn.out_proj", inner, hidden)
        else:
            own = queries + 2 * keys if isinstance(kind, AttentionKind) else queries
            weights = linear("attn.Wqkv", hidden, own, bias=True) + linear("attn.out_proj", queries, hidden, bias=True)
            for name in ("q1", "k1", "q2", "k2"):
                weights += parameter(f"attn.inner_cross_attn.lambda_{name}", dims.head_dim)
            yield "attention", weights + rms_norm("attn.inner_cross_attn.subln", 2 * dims.head_dim)
        yield "mlp", mlp
        yield "norm", norms

    out = [
        Block(kind="embedding", weights=embedding("model.embed_tokens", vocab, hidden)),
        Block(kind="norm", weights=layer_norm("model.final_layernorm", hidden)),
    ]
    if not tied_head(config, top):
        out.append(Block(kind="head", weights=linear("lm_head", hidden, vocab, role=WeightRole.HEAD)))
    return out + repeated(cached_layers(config), weigh)


def _rwkv_ends(config: Config, top: Config, names: tuple[str, str, str, str], *, bias: bool = True) -> list[Block]:
    """Embeddings, a layer norm before the first layer, one after the last, and the head."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    embed, before, after, head = names
    norms = layer_norm(before, hidden, bias=bias) + layer_norm(after, hidden, bias=bias)
    out = [Block(kind="embedding", weights=embedding(embed, vocab, hidden)), Block(kind="norm", weights=norms)]
    if not tied_head(config, top):
        out.append(Block(kind="head", weights=linear(head, hidden, vocab, role=WeightRole.HEAD)))
    return out


def _rwkv5(config: Config, top: Config) -> list[Block]:
    """RWKV-5: as RWKV-4 with heads, a gate and a group norm. The MLP is 3.5 times as wide, rounded down to a multiple of 32."""
    hidden = config.integer("hidden_size")
    width = config.maybe_integer("intermediate_size") or int(hidden * 3.5) // 32 * 32
    mlp = parameter("feed_forward.time_mix_key", 1, 1, hidden) + parameter("feed_forward.time_mix_receptance", 1, 1, hidden)
    mlp += linear("feed_forward.key", hidden, width) + linear("feed_forward.receptance", hidden, hidden)
    mlp += linear("feed_forward.value", width, hidden)

    def weigh(layer: Layer) -> Iterator[Named]:
        kind = layer[0]
        assert isinstance(kind, RwkvMatrix)
        inner = kind.num_heads * kind.head_dim
        weights: tuple[Weight, ...] = ()
        for name in ("time_decay", "time_faaaa"):
            weights += parameter(f"attention.{name}", kind.num_heads, kind.head_dim)
        for name in ("key", "value", "receptance", "gate"):
            weights += parameter(f"attention.time_mix_{name}", 1, 1, hidden) + linear(f"attention.{name}", hidden, inner)
        yield "rwkv", weights + linear("attention.output", inner, hidden) + layer_norm("attention.ln_x", inner)
        yield "mlp", mlp
        yield "norm", layer_norm("ln1", hidden) + layer_norm("ln2", hidden)

    names = ("rwkv.embeddings", "rwkv.blocks.0.pre_ln", "rwkv.ln_out", "head")
    return _rwkv_ends(config, top, names) + repeated(cached_layers(config), weigh)


def _rwkv7(config: Config, top: Config) -> list[Block] | None:
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

    layers = [(layer, i == 0) for i, layer in enumerate(cached_layers(config))]
    names = ("model.embeddings", "model.layers.0.pre_norm", "model.norm", "lm_head")
    return _rwkv_ends(config, top, names, bias=bias) + repeated(layers, weigh)


_RULES: Final[dict[str, Callable[[Config, Config], list[Block] | None]]] = {
    "phi4flash": _phi4flash,
    "plamo2": _plamo2,
    "rwkv5": _rwkv5,
    "rwkv7": _rwkv7,
    "rwkv7_fla": _rwkv7,
}

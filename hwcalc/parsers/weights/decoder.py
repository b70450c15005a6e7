"""Decoder-only models built of attention and an MLP or experts: one line each in a table of what they add to Llama.

Each line mirrors the model's ``modeling_*.py`` in transformers 5.23; names of tensors are those of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formulas.frozen import frozen
from formulas.weights import (
    Block,
    Weight,
    WeightRole,
    attention,
    embedding,
    experts,
    gated_mlp,
    layer_norm,
    linear,
    parameter,
    plain_mlp,
    rms_norm,
)
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import attention_dims

__all__ = ["Decoder", "Experts", "blocks", "sparse_layers", "tied_head"]

Switch = bool | str
"""Yes, no, or the config key that says so."""


@frozen
class Experts:
    """A mixture of experts: the keys that count them, and what stands beside them."""

    count: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared: Callable[[Config], int] | None = None
    """Width of the shared expert, 0 for none."""
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    dense: Callable[[Config, int], list[bool]] | None = None
    """Which layers have a plain MLP instead; ``None`` is no layer."""


@frozen
class Decoder:
    """What a model type adds to, or takes from, Llama."""

    norm: str = "rms"
    """``rms``, ``layer`` (scale and shift), ``scale`` (a layer norm without shift) or ``none``."""
    norms: int = 2
    final_norm: bool = True
    qkv_bias: Switch = False
    o_bias: Switch = False
    mlp_bias: Switch = False
    gated: bool = True
    qk_norm: str = ""
    """``head`` (one scale per channel of a head, for queries and keys), ``full`` (over all heads), or nothing."""
    qk_norm_if: Switch = True
    experts: Experts | None = None
    positions: int | None = None
    """Learned positions: this many rows more than ``max_position_embeddings``."""
    head_bias: Switch = False
    sinks: bool = False
    """One learned number per query head."""
    extra: Callable[[Config], tuple[Weight, ...]] | None = None
    """Tensors that each layer has besides."""


def switched(config: Config, switch: Switch) -> bool:
    """The value of a switch."""
    return config.flag(switch) if isinstance(switch, str) else switch


def norm(kind: str, path: str, width: int) -> tuple[Weight, ...]:
    """One norm of the given kind."""
    if kind == "none":
        return ()
    if kind == "layer":
        return layer_norm(path, width)
    return rms_norm(path, width)


def tied_head(config: Config, top: Config) -> bool:
    """Whether input and output embeddings are one tensor: the whole model's key decides, then the language model's."""
    for level in (top, config):
        value = level.get("tie_word_embeddings")
        if value is not None:
            return bool(value)
    return False


def sparse_layers(config: Config, count: int) -> list[bool]:
    """Which layers have experts, by ``mlp_layer_types`` or the first ``first_k_dense_replace`` that have none."""
    types = config.strings("mlp_layer_types")
    if types is not None and len(types) >= count:
        return [name == "sparse" for name in types[:count]]
    dense = config.maybe_integer("first_k_dense_replace", minimum=0) or 0
    return [i >= dense for i in range(count)]


def _attention(config: Config, spec: Decoder) -> tuple[Weight, ...]:
    dims = attention_dims(config)
    hidden = config.integer("hidden_size")
    weights = attention(
        hidden,
        dims.num_attention_heads,
        dims.num_key_value_heads,
        dims.head_dim,
        dims.v_head_dim,
        qkv_bias=switched(config, spec.qkv_bias),
        o_bias=switched(config, spec.o_bias),
    )
    if spec.qk_norm and switched(config, spec.qk_norm_if):
        heads = (dims.num_attention_heads, dims.num_key_value_heads) if spec.qk_norm == "full" else (1, 1)
        weights += rms_norm("self_attn.q_norm", heads[0] * dims.head_dim)
        weights += rms_norm("self_attn.k_norm", heads[1] * dims.head_dim)
    if spec.sinks:
        weights += parameter("self_attn.sinks", dims.num_attention_heads)
    return weights


def _mlp(config: Config, spec: Decoder, width: int) -> tuple[Weight, ...]:
    hidden, bias = config.integer("hidden_size"), switched(config, spec.mlp_bias)
    return gated_mlp(hidden, width, bias=bias) if spec.gated else plain_mlp(hidden, width, bias=bias)


def _moe(config: Config, spec: Experts) -> tuple[Weight, ...]:
    hidden = config.integer("hidden_size")
    count = config.integer(spec.count)
    active = config.integer(spec.per_token)
    expert = gated_mlp(hidden, config.integer(spec.width), bias=spec.expert_bias, path="mlp.experts")
    weights = experts(expert, count, active)
    weights += linear("mlp.gate", hidden, count, bias=spec.router_bias, role=WeightRole.ROUTER)
    shared = spec.shared(config) if spec.shared is not None else 0
    if shared:
        weights += gated_mlp(hidden, shared, path="mlp.shared_experts")
        if spec.shared_gate:
            weights += linear("mlp.shared_expert_gate", hidden, 1, role=WeightRole.ROUTER)
    return weights


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model type in the table."""
    spec = _TABLE[config.model_type or ""]
    hidden, count = config.integer("hidden_size"), config.number_of_layers()
    vocab = config.integer("vocab_size")
    out = [Block(kind="embedding", weights=embedding("model.embed_tokens", vocab, hidden))]
    if spec.positions is not None:
        rows = config.integer("max_position_embeddings") + spec.positions
        out.append(Block(kind="embedding", weights=embedding("model.embed_positions", rows, hidden)))
    norms = tuple(weight for i in range(spec.norms) for weight in norm(spec.norm, f"norm_{i}", hidden))
    own = _attention(config, spec) + (spec.extra(config) if spec.extra is not None else ())
    out.append(Block(kind="attention", weights=own, count=count))
    if norms:
        out.append(Block(kind="norm", weights=norms, count=count))
    sparse = 0
    if spec.experts is not None:
        dense = spec.experts.dense
        sparse = count - (sum(dense(config, count)) if dense is not None else 0)
        if sparse:
            out.append(Block(kind="moe", weights=_moe(config, spec.experts), count=sparse))
    if sparse < count:
        out.append(Block(kind="mlp", weights=_mlp(config, spec, config.integer("intermediate_size")), count=count - sparse))
    if spec.final_norm:
        out.append(Block(kind="norm", weights=norm(spec.norm, "model.norm", hidden)))
    if not tied_head(config, top):
        head = linear("lm_head", hidden, vocab, bias=switched(config, spec.head_bias), role=WeightRole.HEAD)
        out.append(Block(kind="head", weights=head))
    return tuple(block for block in out if block.weights)


def _dense_prefix(key: str) -> Callable[[Config, int], list[bool]]:
    def dense(config: Config, count: int) -> list[bool]:
        prefix = config.maybe_integer(key, minimum=0) or 0
        return [i < prefix for i in range(count)]

    return dense


def _not_sparse(config: Config, count: int) -> list[bool]:
    return [not sparse for sparse in sparse_layers(config, count)]


def _times(key: str, width: str = "moe_intermediate_size") -> Callable[[Config], int]:
    """A shared expert as wide as several: ``key`` experts of ``width``."""
    return lambda config: (config.maybe_integer(key, minimum=0) or 0) * config.integer(width)


def _width(key: str) -> Callable[[Config], int]:
    return lambda config: config.maybe_integer(key, minimum=0) or 0


_LLAMA: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
_PLAIN: Final = Decoder()
_TABLE: Final[dict[str, Decoder]] = {
    "llama": _LLAMA,
    "mistral": _PLAIN,
    "ministral": _PLAIN,
    "ministral3": _PLAIN,
    "qwen2": Decoder(qkv_bias=True),
    "qwen3": Decoder(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head"),
    "qwen3_moe": Decoder(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head", experts=Experts()),
    "mixtral": Decoder(experts=Experts(count="num_local_experts", width="intermediate_size")),
    "gemma": Decoder(qkv_bias="attention_bias", o_bias="attention_bias"),
    "gemma2": Decoder(qkv_bias="attention_bias", o_bias="attention_bias", norms=4),
    "gemma3_text": Decoder(qkv_bias="attention_bias", o_bias="attention_bias", norms=4, qk_norm="head"),
    "gpt_oss": Decoder(
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        experts=Experts(count="num_local_experts", width="intermediate_size", router_bias=True, expert_bias=True),
    ),
    "qwen2_moe": Decoder(
        qkv_bias="qkv_bias",
        experts=Experts(shared=_width("shared_expert_intermediate_size"), shared_gate=True),
    ),
    "glm4_moe": Decoder(
        qkv_bias="attention_bias",
        qk_norm="head",
        qk_norm_if="use_qk_norm",
        experts=Experts(count="n_routed_experts", shared=_times("n_shared_experts"), dense=_dense_prefix("first_k_dense_replace")),
    ),
    "hy_v3": Decoder(qk_norm="head", experts=Experts(shared=_times("num_shared_experts"), dense=_not_sparse)),
}

"""Decoder-only models built of attention and an MLP or experts: what each adds to Llama, and how that becomes blocks.

The lines themselves are in the ``decoder_*`` modules: each mirrors the model's ``modeling_*.py`` in transformers 5.23, or its
own code where it lives with the model; names of tensors are those of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import (
    Block,
    Part,
    WeightRole,
    attention,
    embedding,
    experts,
    gated_mlp,
    linear,
    parameter,
    plain_mlp,
    rms_norm,
)
from hwcalc.parsers.blocks import Switch, Weighed, head_block, norm, switched, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, attention_dims

__all__ = [
    "Decoder",
    "Experts",
    "attention_weights",
    "build",
    "dense_prefix",
    "grouped",
    "mlp_weights",
    "moe_weights",
    "mtp_blocks",
    "not_sparse",
    "sparse_layers",
    "times",
    "width",
]


Layers = list[tuple[Weighed, int]]
"""Kinds of layer and how many layers are of each."""


@frozen
class Experts:
    """A mixture of experts: the keys that count them, and what stands beside them."""

    count: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    path: str = "mlp"
    router: str = "gate"
    shared: Callable[[Config], int] | None = None
    """Width of the shared expert, 0 for none."""
    shared_path: str = "shared_experts"
    shared_bias: Switch = False
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: Switch = False
    dense: Callable[[Config, int], list[bool]] | None = None
    """Which layers have a plain MLP instead; ``None`` is no layer."""
    extra: Callable[[Config], Weighed] | None = None
    """Tensors that each of these layers has besides."""


@frozen
class Decoder:
    """What a model type adds to, or takes from, Llama."""

    norm: str = "rms"
    """``rms``, ``layer`` (scale and shift), ``scale`` (a layer norm without shift) or ``none``."""
    norms: int | Callable[[Config], int] = 2
    final_norm: bool | Callable[[Config], bool] = True
    qkv_bias: Switch = False
    o_bias: Switch = False
    mlp_bias: Switch = False
    attn: str = "self_attn"
    fused_qkv: str = ""
    """Name of the tensor that holds queries, keys and values, where they are one."""
    output: str = "o_proj"
    mlp: str = "mlp"
    gated: bool = True
    fused_gate: str = ""
    """Name of the tensor that holds gate and up, where they are one."""
    names: tuple[str, str] = ("up_proj", "down_proj")
    """Names in an MLP without gate."""
    width: str | Callable[[Config], int] = "intermediate_size"
    qk_norm: str = ""
    """``head`` (one scale per channel of a head, for queries and keys), ``full`` (over all heads), ``head_layer`` and
    ``full_layer`` (the same with a shift), or nothing."""
    qk_norm_if: Switch = True
    gate: str = ""
    """A gate on the attention's output: ``head`` (one number per head), ``full`` (one per channel), or nothing."""
    sinks: bool = False
    """One learned number per query head."""
    dims: Callable[[Config], AttentionDims] = attention_dims
    experts: Experts | None = None
    layers: Callable[[Config], int] | None = None
    """How many layers have weights, where it is not the number of layers that run."""
    positions: int | None = None
    """Learned positions: this many rows more than ``max_position_embeddings``."""
    rows: Callable[[Config], int] | None = None
    """Rows of the token embedding, where they are not the vocabulary."""
    head_bias: Switch = False
    ties: bool = True
    """Whether ``tie_word_embeddings`` has an effect."""
    extra: Callable[[Config], Weighed] | None = None
    """Tensors that each layer has besides."""
    outer: Callable[[Config], Weighed] | None = None
    """Tensors that the model has once besides."""
    attentions: Callable[[Config, Decoder, int], Layers] | None = None
    """The attention of each layer, where they differ or are not of the common kind; ``extra`` and the rest not included."""
    mlps: Callable[[Config, Decoder, int], Layers] | None = None
    """The MLP of each layer, likewise."""
    mtp: str = ""
    """Whether ``num_nextn_predict_layers`` more layers stand in the checkpoint, as DeepSeek-V3 lays them out: ``copies`` (with
    embedding and head of their own), ``shared`` (with the model's), or nothing."""


def sparse_layers(config: Config, count: int, default: int = 0, key: str | None = "first_k_dense_replace") -> list[bool]:
    """Which layers have experts, by ``mlp_layer_types`` or the leading ones that have none: ``key`` or ``default`` of them."""
    types = config.strings("mlp_layer_types")
    if types is not None and len(types) >= count:
        return [name == "sparse" for name in types[:count]]
    dense = None if key is None else config.maybe_integer(key, minimum=0)
    return [i >= (default if dense is None else dense) for i in range(count)]


def grouped(kinds: Iterable[Weighed]) -> Layers:
    """Equal layers counted together."""
    groups: dict[Weighed, int] = {}
    for kind in kinds:
        groups[kind] = groups.get(kind, 0) + 1
    return list(groups.items())


def attention_weights(config: Config, spec: Decoder, dims: AttentionDims | None = None) -> Weighed:
    """One attention layer: projections, norms of queries and keys, gate and sinks."""
    dims = spec.dims(config) if dims is None else dims
    hidden, heads, path = config.integer("hidden_size"), dims.num_attention_heads, spec.attn
    weights = attention(
        hidden,
        heads,
        dims.num_key_value_heads,
        dims.head_dim,
        dims.v_head_dim,
        qkv_bias=switched(config, spec.qkv_bias),
        o_bias=switched(config, spec.o_bias),
        path=path,
        fused=spec.fused_qkv,
        output=spec.output,
    )
    if spec.qk_norm and switched(config, spec.qk_norm_if):
        scales = (heads, dims.num_key_value_heads) if spec.qk_norm.startswith("full") else (1, 1)
        kind = "layer" if spec.qk_norm.endswith("layer") else "rms"
        weights += norm(kind, f"{path}.q_norm", scales[0] * dims.head_dim)
        weights += norm(kind, f"{path}.k_norm", scales[1] * dims.head_dim)
    if spec.gate:
        weights += linear(f"{path}.gate_proj", hidden, heads * dims.head_dim if spec.gate == "full" else heads)
    if spec.sinks:
        weights += parameter(f"{path}.sinks", heads)
    return weights


def mlp_weights(config: Config, spec: Decoder, width: int | None = None) -> Weighed:
    """One MLP without experts."""
    if width is None:
        width = config.integer(spec.width) if isinstance(spec.width, str) else spec.width(config)
    hidden, bias = config.integer("hidden_size"), switched(config, spec.mlp_bias)
    if not spec.gated:
        return plain_mlp(hidden, width, bias=bias, path=spec.mlp, names=spec.names)
    return gated_mlp(hidden, width, bias=bias, path=spec.mlp, fused=spec.fused_gate)


def moe_weights(config: Config, spec: Experts) -> Weighed:
    """One mixture of experts with its router and shared expert."""
    hidden = config.integer("hidden_size")
    count = config.integer(spec.count)
    # A config class whose default is no number of experts in use builds the model all the same: all of them then.
    active = config.maybe_integer(spec.per_token) or count
    bias = switched(config, spec.expert_bias)
    expert = gated_mlp(hidden, config.integer(spec.width), bias=bias, path=f"{spec.path}.experts")
    weights = experts(expert, count, active)
    weights += linear(f"{spec.path}.{spec.router}", hidden, count, bias=spec.router_bias, role=WeightRole.ROUTER)
    shared = spec.shared(config) if spec.shared is not None else 0
    if shared:
        bias = switched(config, spec.shared_bias)
        weights += gated_mlp(hidden, shared, bias=bias, path=f"{spec.path}.{spec.shared_path}")
        if spec.shared_gate:
            weights += linear(f"{spec.path}.shared_expert_gate", hidden, 1, role=WeightRole.ROUTER)
    return weights if spec.extra is None else weights + spec.extra(config)


def _mlp_blocks(config: Config, spec: Decoder, count: int) -> list[Block]:
    if spec.mlps is not None:
        return [_mlp_block(weights, number) for weights, number in spec.mlps(config, spec, count)]
    plain = [True] * count
    if spec.experts is not None:
        plain = [False] * count if spec.experts.dense is None else list(spec.experts.dense(config, count))
    dense = tuple(i for i, flag in enumerate(plain) if flag)
    sparse = tuple(i for i, flag in enumerate(plain) if not flag)
    out = []
    if spec.experts is not None and sparse:
        out.append(_mlp_block(moe_weights(config, spec.experts), len(sparse), sparse))
    if dense:
        out.append(_mlp_block(mlp_weights(config, spec), len(dense), dense))
    return out


def _mlp_block(weights: Weighed, count: int, layers: tuple[int, ...] | None = None) -> Block:
    sparse = any(weight.role is WeightRole.EXPERT for weight in weights)
    return Block(kind="moe" if sparse else "mlp", weights=weights, count=count, layers=layers)


def build(config: Config, top: Config, spec: Decoder) -> tuple[Block, ...]:
    """All blocks of a model by its line in a table."""
    hidden = config.integer("hidden_size")
    count = config.number_of_layers() if spec.layers is None else spec.layers(config)
    rows = config.integer("vocab_size") if spec.rows is None else spec.rows(config)
    out = [Block(kind="embedding", weights=embedding("model.embed_tokens", rows, hidden))]
    if spec.positions is not None:
        rows = config.integer("max_position_embeddings") + spec.positions
        out.append(Block(kind="embedding", weights=embedding("model.embed_positions", rows, hidden)))
    if spec.attentions is not None:
        out += [
            Block(kind="attention", weights=weights, count=number) for weights, number in spec.attentions(config, spec, count)
        ]
    else:
        out.append(Block(kind="attention", weights=attention_weights(config, spec), count=count))
    norms = spec.norms if isinstance(spec.norms, int) else spec.norms(config)
    scales = tuple(weight for i in range(norms) for weight in norm(spec.norm, f"norm_{i}", hidden))
    out.append(Block(kind="norm", weights=scales, count=count))
    if spec.extra is not None:
        out.append(Block(kind="extra", weights=spec.extra(config), count=count))
    out += _mlp_blocks(config, spec, count)
    if spec.final_norm is True or (callable(spec.final_norm) and spec.final_norm(config)):
        out.append(Block(kind="norm", weights=norm(spec.norm, "model.norm", hidden)))
    if spec.outer is not None:
        out.append(Block(kind="extra", weights=spec.outer(config)))
    tied = spec.ties and tied_head(config, top)
    out += head_block(config, tied=tied, bias=switched(config, spec.head_bias))
    if spec.mtp:
        layer = attention_weights(config, spec) if spec.attentions is None else spec.attentions(config, spec, 1)[0][0]
        layer += scales + (() if spec.extra is None else spec.extra(config))
        layer += mlp_weights(config, spec) if spec.experts is None else moe_weights(config, spec.experts)
        out += mtp_blocks(config, layer, copies=spec.mtp == "copies")
    return tuple(block for block in out if block.weights)


def mtp_blocks(config: Config, layer: Weighed, *, copies: bool) -> tuple[Block, ...]:
    """Multi-token-prediction layers as DeepSeek-V3 has them.

    Each is a whole layer between a projection, of the token's embedding beside the hidden state, and a norm; with ``copies``
    the checkpoint stores the embedding and the head again with each.
    """
    count = config.maybe_integer("num_nextn_predict_layers", minimum=0) or 0
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    weights = (
        *rms_norm("enorm", hidden),
        *rms_norm("hnorm", hidden),
        *linear("eh_proj", 2 * hidden, hidden),
        *layer,
        *rms_norm("shared_head.norm", hidden),
    )
    if copies:
        weights += embedding("embed_tokens", vocab, hidden)
        weights += linear("shared_head.head", hidden, vocab, role=WeightRole.HEAD)
    return (Block(kind="mtp", weights=weights, part=Part.MTP, count=count),) if count else ()


def dense_prefix(key: str) -> Callable[[Config, int], list[bool]]:
    """The first ``key`` layers have no experts."""

    def dense(config: Config, count: int) -> list[bool]:
        prefix = config.maybe_integer(key, minimum=0) or 0
        return [i < prefix for i in range(count)]

    return dense


def not_sparse(default: int = 0, key: str | None = "first_k_dense_replace") -> Callable[[Config, int], list[bool]]:
    """The layers that :func:`sparse_layers` leaves out."""
    return lambda config, count: [not sparse for sparse in sparse_layers(config, count, default, key)]


def times(key: str, width: str = "moe_intermediate_size") -> Callable[[Config], int]:
    """A shared expert as wide as several: ``key`` experts of ``width``."""
    return lambda config: (config.maybe_integer(key, minimum=0) or 0) * config.integer(width)


def width(key: str) -> Callable[[Config], int]:
    """A width that may be 0 or absent for none."""
    return lambda config: config.maybe_integer(key, minimum=0) or 0

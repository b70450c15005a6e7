"""Models whose code lives with them, where it is plain enough to count: one line each.

Counted by each model's own modeling file; where a catalog gives a published size, it is met to the parameter (buffers apart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, attention, embedding, experts, gated_mlp, linear, rms_norm
from hwcalc.parsers.blocks import Weighed, head_block, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, attention_dims
from hwcalc.parsers.weights.decoder import (
    Decoder,
    Experts,
    Layers,
    attention_weights,
    build,
    dense_prefix,
    grouped,
    mlp_weights,
    times,
    width,
)

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model type in the table."""
    return _TABLE[config.model_type or ""](config, top)


def _line(spec: Decoder) -> Callable[[Config, Config], tuple[Block, ...]]:
    return lambda config, top: build(config, top, spec)


def _minicpm(config: Config, top: Config) -> tuple[Block, ...]:
    """MiniCPM; with ``num_experts`` its mixture of experts, each as wide as the MLP would be."""
    moe = Experts(width="intermediate_size") if config.maybe_integer("num_experts", minimum=0) else None
    # The file may leave the tie out: its class ties.
    tied = replace(_LLAMA, experts=moe)
    out = build(config, top, tied)
    if config.get("tie_word_embeddings") is None:
        out = tuple(block for block in out if block.kind != "head")
    return out


def _chatglm(config: Config, top: Config) -> tuple[Block, ...]:
    """ChatGLM2, 3 and GLM-4; the first ChatGLM, which has no ``ffn_hidden_size``, is another model."""
    if not config.has("ffn_hidden_size"):
        return ()
    dims = attention_dims(config)
    groups = config.maybe_integer("multi_query_group_num") or 1
    if config.flag("multi_query_attention"):
        dims = replace(dims, num_key_value_heads=groups)
    biased = config.flag("add_bias_linear")
    spec = Decoder(
        norm="rms" if config.flag("rmsnorm", default=True) else "layer",
        final_norm=config.flag("post_layer_norm", default=True),
        attn="self_attention",
        fused_qkv="query_key_value",
        output="dense",
        qkv_bias=biased or config.flag("add_qkv_bias"),
        o_bias=biased,
        mlp_bias=biased,
        fused_gate="dense_h_to_4h",
        dims=lambda _config: dims,
    )
    return build(config, top, spec)


def _qwen(config: Config, top: Config) -> tuple[Block, ...]:
    """The first Qwen: ``intermediate_size`` is the width of gate and up together."""
    biased = not config.flag("no_bias", default=True)
    spec = replace(_QWEN, o_bias=biased, mlp_bias=biased, width=lambda config: max(1, config.integer("intermediate_size") // 2))
    return build(config, top, spec)


def _arctic_residual(config: Config) -> tuple[Weight, ...]:
    """Arctic's dense MLP beside the experts, as wide as the hidden size, with a norm."""
    if not config.flag("use_residual", default=True):
        return ()
    hidden = config.integer("hidden_size")
    return gated_mlp(hidden, hidden, path="residual_mlp") + rms_norm("residual_layernorm", hidden)


def _arctic(config: Config, top: Config) -> tuple[Block, ...]:
    if (config.maybe_integer("moe_layer_frequency") or 1) != 1:
        # Dense layers between the experts: no such model is known to check a count against.
        return ()
    return build(config, top, _ARCTIC)


def _phi3_small(config: Config, top: Config) -> tuple[Block, ...]:
    """Phi-3-small: biases everywhere, and its class ties the head unless told otherwise."""
    out = build(config, top, _PHI3_SMALL)
    if config.get("tie_word_embeddings") is None:
        out = tuple(block for block in out if block.kind != "head")
    return out


def _hunyuan(config: Config, top: Config) -> tuple[Block, ...]:
    """Hunyuan-Large and -A13B: experts of a listed width, and with ``use_cla`` layers that project no keys and values."""
    first = config.maybe_integer("moe_layer_num_skipped", minimum=0) or 0
    factor = (config.maybe_integer("cla_share_factor") or 1) if config.flag("use_cla") else 1

    def at(key: str, index: int, default: int | None = None) -> int:
        value = config.get(key)
        if isinstance(value, (list, tuple)):
            return (config.integers(key, length=config.number_of_layers(), minimum=1) or [])[index]
        number = config.maybe_integer(key)
        if number is None and default is None:
            raise config.missing(key)
        return number or default or 1

    def mlps(config: Config, spec: Decoder, count: int) -> Layers:
        hidden, wide = config.integer("hidden_size"), config.integer("intermediate_size")
        kinds: dict[tuple[int, ...], int] = {}
        for index in range(count):
            number = at("num_experts", index, 1)
            kind: tuple[int, ...] = (0,)
            if number > 1 and index >= first:
                shared = at("num_shared_expert", index, 1) if config.flag("use_mixed_mlp_moe") else 0
                kind = (number, at("moe_topk", index, 1), at("moe_intermediate_size", index, wide), shared)
            kinds[kind] = kinds.get(kind, 0) + 1

        def layer(number: int, active: int = 0, inner: int = 0, shared: int = 0) -> Weighed:
            if not number:
                return mlp_weights(config, spec)
            weights = experts(gated_mlp(hidden, inner, path="mlp.experts"), number, active)
            weights += linear("mlp.gate.wg", hidden, number, role=WeightRole.ROUTER)
            return weights + (gated_mlp(hidden, inner * shared, path="mlp.shared_mlp") if shared else ())

        return [(layer(*kind), number) for kind, number in kinds.items()]

    def attentions(config: Config, spec: Decoder, count: int) -> Layers:
        own = attention_weights(config, spec)
        reads = tuple(weight for weight in own if ".k_" not in weight.path and ".v_" not in weight.path)
        return grouped(reads if index % factor else own for index in range(count))

    return build(config, top, replace(_HUNYUAN, attentions=attentions, mlps=mlps))


def _mimo_mtp(config: Config, top: Config) -> tuple[Block, ...]:
    """MiMo, and its multi-token-prediction layers: a whole layer each, behind a projection and three norms."""
    out = build(config, top, _MIMO)
    count = config.maybe_integer("num_nextn_predict_layers", minimum=0) or 0
    hidden = config.integer("hidden_size")
    layer = (
        *linear("input_proj", 2 * hidden, hidden),
        *(weight for name in _MIMO_NORMS for weight in rms_norm(name, hidden)),
        *attention_weights(config, _MIMO),
        *mlp_weights(config, _MIMO),
    )
    return (*out, Block(kind="mtp", weights=layer, part=Part.MTP, count=count)) if count else out


def _step3(config: Config, spec: Decoder, count: int) -> Layers:
    """Step-3: queries pass through a low rank; all heads share one key and one value."""
    dims = attention_dims(config)
    hidden, rank = config.integer("hidden_size"), config.integer("share_q_dim")
    own = attention(hidden, dims.num_attention_heads, dims.num_key_value_heads, dims.head_dim)
    queries = (
        *linear("self_attn.q_proj", hidden, rank),
        *rms_norm("self_attn.inter_norm", rank),
        *linear("self_attn.wq", rank, dims.num_attention_heads * dims.head_dim),
    )
    del spec
    return [(queries + own[1:], count)]


def _step3_dense(config: Config, count: int) -> list[bool]:
    """``moe_layers_enum``: layer numbers between commas."""
    listed = config.text("moe_layers_enum")
    if listed is None:
        return [i < 1 for i in range(count)]
    items = [item.strip() for item in listed.split(",") if item.strip()]
    if not all(item.isdecimal() and len(item) < 8 for item in items):
        raise config.error("moe_layers_enum", listed, "layer numbers with commas between")
    sparse = {int(item) for item in items}
    return [i not in sparse for i in range(count)]


def _divisible(value: float, divisor: int) -> int:
    """``value`` rounded to a multiple of ``divisor``, up where it would lose more than a tenth.

    >>> _divisible(640.0, 256), _divisible(934.4, 256)
    (768, 1024)
    """
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def _openelm(config: Config, top: Config) -> tuple[Block, ...]:
    """OpenELM: heads and widths of each layer's own."""
    hidden, head_dim, count = config.integer("hidden_size"), config.integer("head_dim"), config.number_of_layers()
    queries = config.integers("num_attention_heads", length=count, minimum=1)
    groups = config.integers("num_key_value_heads", length=count, minimum=1)
    multipliers = config.sequence("ffn_multipliers", length=count)
    if queries is None or groups is None or multipliers is None:
        return ()
    divisor = config.maybe_integer("ffn_dim_divisor") or 256
    scales = config.flag("normalize_qk_projections")
    gated = config.flag("ffn_with_glu", default=True)

    def layer(heads: int, group: int, multiplier: Any) -> Weighed:
        if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)) or not 0 < multiplier < 1000:
            raise config.error("ffn_multipliers", multiplier, "numbers above 0")
        wide = _divisible(multiplier * hidden, divisor)
        own = attention(hidden, heads, group, head_dim, path="attn", fused="qkv_proj", output="out_proj")
        if scales:
            own += rms_norm("attn.q_norm", head_dim) + rms_norm("attn.k_norm", head_dim)
        own += linear("ffn.proj_1", hidden, 2 * wide if gated else wide) + linear("ffn.proj_2", wide, hidden)
        return own + rms_norm("attn_norm", hidden) + rms_norm("ffn_norm", hidden)

    layers = grouped(layer(*kind) for kind in zip(queries, groups, multipliers, strict=True))
    out = [Block(kind="embedding", weights=embedding("transformer.token_embeddings", config.integer("vocab_size"), hidden))]
    out += [Block(kind="layer", weights=weights, count=number) for weights, number in layers]
    out.append(Block(kind="norm", weights=rms_norm("transformer.norm", hidden)))
    if not config.flag("share_input_output_layers", default=True):
        out += head_block(config, tied=False)
    return tuple(out)


def _nemotron_nas(config: Config, top: Config) -> tuple[Block, ...]:
    """Llama-Nemotron: each entry of ``block_configs`` says what is left of a layer.

    An attention or MLP may be gone with its norm, be one square matrix, have fewer key/value heads, or another width:
    ``ffn_mult`` x hidden x 2 / 3, up to the next multiple of 256.
    """
    count, hidden, dims = config.number_of_layers(), config.integer("hidden_size"), attention_dims(config)
    entries = config.sequence("block_configs", length=count)
    if entries is None:
        return ()
    kinds: dict[tuple[str, int | float], int] = {}
    for index, entry in enumerate(entries):
        for part in ("attention", "ffn"):
            given = entry.get(part) if isinstance(entry, Mapping) else None
            if not isinstance(given, Mapping):
                raise config.error(f"block_configs[{index}].{part}", given, "an object")
            block = Config(given, None, f"block_configs[{index}].{part}")
            kind: tuple[str, int | float]
            if block.flag("no_op"):
                kind = (part, 0)
            elif block.flag("replace_with_linear"):
                kind = (part, -1)
            elif part == "attention":
                kind = (part, block.integer("n_heads_in_group"))
            else:
                kind = (part, block.number("ffn_mult", 0.0))
            kinds[kind] = kinds.get(kind, 0) + 1
    out = [Block(kind="embedding", weights=embedding("model.embed_tokens", config.integer("vocab_size"), hidden))]
    for (part, value), number in kinds.items():
        if value:
            out.append(
                Block(kind="attention" if part == "attention" else "mlp", weights=_kept(config, dims, part, value), count=number)
            )
    out.append(Block(kind="norm", weights=rms_norm("model.norm", hidden)))
    return (*out, *head_block(config, tied=tied_head(config, top)))


def _kept(config: Config, dims: AttentionDims, part: str, value: float) -> Weighed:
    """One attention or MLP of Llama-Nemotron with its norm; -1 is a square matrix."""
    hidden = config.integer("hidden_size")
    scale = rms_norm("input_layernorm" if part == "attention" else "post_attention_layernorm", hidden)
    if value == -1:
        return linear("self_attn.linear_attn" if part == "attention" else "mlp.linear_mlp", hidden, hidden) + scale
    if part == "attention":
        groups = max(1, dims.num_attention_heads // int(value))
        return attention_weights(config, _LLAMA, replace(dims, num_key_value_heads=groups)) + scale
    if value <= 0:
        raise config.error("block_configs.ffn.ffn_mult", value, "a number above 0")
    wide = int(2 * value * hidden / 3)
    return mlp_weights(config, _LLAMA, -(-wide // 256) * 256) + scale


def _as(model_type: str, module: str) -> Callable[[Config, Config], tuple[Block, ...]]:
    """Another type's file under a label of its own."""

    def read(config: Config, top: Config) -> tuple[Block, ...]:
        read_as: Callable[[Config, Config], tuple[Block, ...]] = import_module(f"hwcalc.parsers.weights.{module}").blocks
        return read_as(config.retyped(model_type), top)

    return read


_LLAMA: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
_PLAIN: Final = Decoder()
_QWEN: Final = Decoder(attn="attn", fused_qkv="c_attn", qkv_bias=True, output="c_proj")
_ROUTED: Final = Experts(count="n_routed_experts", shared=times("n_shared_experts"), dense=dense_prefix("first_k_dense_replace"))
_HUNYUAN: Final = Decoder(
    qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", qk_norm="head", qk_norm_if="use_qk_norm"
)
_MIMO: Final = Decoder(qkv_bias="attention_bias")
_MIMO_NORMS: Final = (
    "token_layernorm",
    "hidden_layernorm",
    "input_layernorm",
    "post_attention_layernorm",
    "final_layernorm",
)
_ARCTIC: Final = Decoder(
    extra=_arctic_residual,
    experts=Experts(count="num_local_experts", width="intermediate_size", path="block_sparse_moe"),
)
_PHI3_SMALL: Final = Decoder(
    norm="layer",
    fused_qkv="query_key_value",
    output="dense",
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    fused_gate="up_proj",
    width="ff_intermediate_size",
)
_BAILING: Final = Decoder(
    attn="attention",
    fused_qkv="query_key_value",
    output="dense",
    qkv_bias="use_qkv_bias",
    o_bias="use_bias",
    qk_norm="head",
    qk_norm_if="use_qk_norm",
    experts=Experts(shared=times("num_shared_experts"), dense=dense_prefix("first_k_dense_replace")),
)
_TABLE: Final[dict[str, Callable[[Config, Config], tuple[Block, ...]]]] = {
    "Yi": _line(_PLAIN),
    "yi": _line(_PLAIN),
    "aquila": _line(_PLAIN),
    "skywork": _line(_PLAIN),
    "xverse": _line(_PLAIN),
    "baichuan": _line(replace(_PLAIN, fused_qkv="W_pack")),
    "exaone": _line(replace(_PLAIN, attn="attn.attention", output="out_proj")),
    "internlm": _line(Decoder(qkv_bias="bias", o_bias="bias")),
    "internlm2": _line(
        Decoder(attn="attention", fused_qkv="wqkv", output="wo", mlp="feed_forward", qkv_bias="bias", o_bias="bias")
    ),
    "orion": _line(Decoder(norm="layer")),
    "minicpm": _minicpm,
    "chatglm": _chatglm,
    "qwen": _qwen,
    "deepseek": _line(replace(_LLAMA, mlp_bias=False, experts=_ROUTED)),
    "bailing_moe": _line(_BAILING),
    "bailing_moe_v2": _line(_BAILING),
    "grok-1": _line(Decoder(norms=4, experts=Experts(width="intermediate_size"))),
    "arctic": _arctic,
    "phi-msft": _line(
        Decoder(
            norm="layer",
            norms=1,
            attn="mixer",
            fused_qkv="Wqkv",
            output="out_proj",
            qkv_bias=True,
            o_bias=True,
            mlp_bias=True,
            gated=False,
            names=("fc1", "fc2"),
            width=lambda config: config.maybe_integer("intermediate_size") or 4 * config.integer("hidden_size"),
            head_bias=True,
        )
    ),
    "phi3small": _phi3_small,
    "mimo": _mimo_mtp,
    "step3_text": _line(
        Decoder(
            attentions=_step3,
            experts=Experts(
                count="moe_num_experts",
                per_token="moe_top_k",
                shared=width("share_expert_dim"),
                shared_path="share_expert",
                dense=_step3_dense,
            ),
        )
    ),
    "hunyuan": _hunyuan,
    "openelm": _openelm,
    "nemotron-nas": _nemotron_nas,
    "deepseek_ref": _as("deepseek_v4", "hyper"),
    "minimax_m3": _as("minimax_m3_vl_text", "layered"),
}

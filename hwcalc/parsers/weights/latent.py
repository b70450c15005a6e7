"""DeepSeek-V2 and the models after it: latent attention, with or without an indexer, and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import (
    Block,
    WeightRole,
    experts,
    gated_mlp,
    indexer,
    latent_attention,
    layer_norm,
    linear,
    parameter,
    rms_norm,
)
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.latent import indexer_modes
from hwcalc.parsers.reading import every, read_layer_types
from hwcalc.parsers.weights.decoder import (
    Decoder,
    Experts,
    Layers,
    build,
    dense_prefix,
    grouped,
    mlp_weights,
    moe_weights,
    not_sparse,
    sparse_layers,
    times,
)
from hwcalc.parsers.weights.hyper import hyper_connection, hyper_head

__all__ = ["blocks"]


def blocks(config: Config, top: Config) -> tuple[Block, ...]:
    """All blocks of a model with latent attention."""
    spec, latent = _TABLE[config.model_type or ""]
    return build(config, top, replace(spec, attentions=latent, mtp=_MTP.get(config.model_type or "", "")))


Latents = Callable[[Config, Decoder, int], Layers]


def _attention(config: Config, *, heads: int | None = None) -> Weighed:
    """Latent attention by the common keys."""
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads") if heads is None else heads
    return latent_attention(
        hidden,
        heads,
        config.integer("kv_lora_rank"),
        config.integer("qk_nope_head_dim", minimum=0),
        config.integer("qk_rope_head_dim", minimum=0),
        # MiniCPM3 leaves it null: the plain head width then.
        config.maybe_integer("v_head_dim") or max(1, hidden // heads),
        config.maybe_integer("q_lora_rank"),
        bias=config.flag("attention_bias"),
    )


def _indexer(config: Config) -> Weighed:
    hidden = config.integer("hidden_size")
    return indexer(hidden, config.integer("q_lora_rank"), config.integer("index_n_heads"), config.integer("index_head_dim"))


def _plain(config: Config, spec: Decoder, count: int) -> Layers:
    """Latent attention on every layer."""
    del spec
    return [(_attention(config), count)]


def _indexed(config: Config, spec: Decoder, count: int) -> Layers:
    """With an indexer on every layer."""
    del spec
    return [(_attention(config) + _indexer(config), count)]


def _shared_indexers(config: Config, spec: Decoder, count: int) -> Layers:
    """With an indexer where a layer has its own."""
    del spec
    bare, index = _attention(config), _indexer(config)
    return grouped(bare + index if mode == "full" else bare for mode in indexer_modes(config, count))


def _hy_v4(config: Config, spec: Decoder, count: int) -> Layers:
    """Hunyuan V4: a gate as wide as the values, and a sink for each head."""
    heads = config.integer("num_attention_heads")
    gate = linear("self_attn.gate_proj", config.integer("hidden_size"), heads * config.integer("v_head_dim"))
    gate += parameter("self_attn.sinks", heads)
    return [(weights + gate, number) for weights, number in _shared_indexers(config, spec, count)]


def _axk2(config: Config, spec: Decoder, count: int) -> Layers:
    """A.X K2: queries and gate in one projection of the query latent and as much again."""
    del spec
    heads, rank = config.integer("num_attention_heads"), config.integer("q_lora_rank")
    widths = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim") + config.integer("v_head_dim")
    own = tuple(weight for weight in _attention(config) if not weight.path.endswith("q_b_proj.weight"))
    return [(own + linear("self_attn.q_gate_proj", 2 * rank, heads * widths) + _indexer(config), count)]


def _axk2_mlps(config: Config, spec: Decoder, count: int) -> Layers:
    """With the norms around them: those of experts and of attention pass a gate of low rank."""
    hidden, rank = config.integer("hidden_size"), config.integer("gated_norm_rank")

    def gated(path: str) -> Weighed:
        return (
            *rms_norm(f"{path}.norm", hidden),
            *linear(f"{path}.mlp.fc1", hidden, rank),
            *linear(f"{path}.mlp.fc2", rank, hidden),
        )

    before = gated("input_layernorm")
    sparse = moe_weights(config, _ROUTED) + before + gated("post_attention_layernorm")
    dense = mlp_weights(config, spec) + before + rms_norm("post_attention_layernorm", hidden)
    return grouped(dense if flag else sparse for flag in _axk_dense(config, count))


def _axk_dense(config: Config, count: int) -> list[bool]:
    """``mlp_layer_types``, or leading dense layers and then experts on every ``moe_layer_freq``-th."""
    if config.strings("mlp_layer_types") is not None:
        return [not sparse for sparse in sparse_layers(config, count)]
    prefix = config.maybe_integer("first_k_dense_replace", minimum=0)
    first, every_nth = 1 if prefix is None else prefix, config.maybe_integer("moe_layer_freq") or 1
    return [i < first or i % every_nth != 0 for i in range(count)]


def _mistral_large4(config: Config, spec: Decoder, count: int) -> Layers:
    """Mistral Large 4: queries without a latent, a learned softmax scale, and layers that keep or share the latent.

    Where positions are left out, the rope part of the keys comes from the latent like the rest.
    """
    del spec
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    rank, nope, rope = config.integer("kv_lora_rank"), config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    value, bias = config.integer("v_head_dim"), config.flag("attention_bias")
    spelled = config.integers("no_rope_layers", length=count)
    period = config.maybe_integer("no_rope_layer_interval") or 4
    positions = [bool(flag) for flag in (spelled or [(i + 1) % period for i in range(count)])]
    sources = config.integers("kv_source_layers", length=count) or list(range(count))
    modes = indexer_modes(config, count)
    index = (
        *indexer(hidden, hidden, config.integer("index_n_heads"), config.integer("index_head_dim")),
        *layer_norm("self_attn.indexer.q_input_norm", hidden),
        *parameter("self_attn.indexer.softmax_scaling", 2, config.integer("index_n_heads")),
    )

    def layer(rotated: bool, owner: bool, mode: str) -> Weighed:
        weights = latent_attention(
            hidden, heads, rank, nope if rotated else nope + rope, rope if rotated else 0, value, bias=bias
        )
        if not owner:
            weights = tuple(weight for weight in weights if ".kv_a_" not in weight.path)
        weights += parameter("self_attn.softmax_scaling", 2, heads)
        return weights + index if mode == "full" else weights

    kinds: dict[tuple[bool, bool, str], int] = {}
    for index_of, kind in enumerate(zip(positions, sources, modes, strict=True)):
        own = (kind[0], kind[1] == index_of, kind[2])
        kinds[own] = kinds.get(own, 0) + 1
    return [(layer(*kind), number) for kind, number in kinds.items()]


def _dots3(config: Config, spec: Decoder, count: int) -> Layers:
    """Dots 3 Note: sliding layers have dims of their own (``per_layer_config`` or ``swa_*``); all have a gate per head."""
    del spec
    derived = [
        "indexed_attention" if i < 2 else name for i, name in enumerate(every(4, count, "indexed_attention", "sliding", 1))
    ]
    types = read_layer_types(config, count) or derived
    hidden = config.integer("hidden_size")

    def layer(index: int, name: str) -> Weighed:
        own = config.layer(index)
        sliding = name not in ("indexed_attention", "full_attention", "deepseek_sparse_attention")
        if sliding and "per_layer_config" not in config.raw:
            own = _sliding_dims(config)
        heads = own.integer("num_attention_heads")
        weights = _attention(own)
        weights += rms_norm("self_attn.k_rope_only_layernorm", own.integer("qk_rope_head_dim"))
        weights += linear("self_attn.g_proj", hidden, heads)
        return weights if sliding else weights + _indexer(own)

    # Most layers are alike: one of each kind is weighed.
    kinds: dict[tuple[str, str], tuple[int, int]] = {}
    for index, name in enumerate(types):
        own = config.layer(index).raw if "per_layer_config" in config.raw else {}
        kind = (name, repr([own.get(key) for key in _LAYER_DIMS]))
        first, number = kinds.get(kind, (index, 0))
        kinds[kind] = (first, number + 1)
    return [(layer(first, name), number) for (name, _), (first, number) in kinds.items()]


_LAYER_DIMS: Final = (
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
)


def _sliding_dims(config: Config) -> Config:
    """The config with the dims of its sliding layers, by ``swa_*`` or the class's defaults for them."""
    head_dim = config.maybe_integer("swa_head_dim") or 256
    nope = config.maybe_integer("swa_qk_nope_head_dim") or 192
    own = {
        "num_attention_heads": config.maybe_integer("swa_num_attention_heads") or 64,
        "kv_lora_rank": config.maybe_integer("swa_kv_lora_rank") or 1024,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": config.maybe_integer("swa_qk_rope_head_dim") or max(1, head_dim - nope),
        "v_head_dim": config.maybe_integer("swa_v_head_dim") or 128,
        "q_lora_rank": config.maybe_integer("swa_q_lora_rank") or 1024,
    }
    return Config({**config.raw, **own}, config.model_type, config.where)


def _num_layers(config: Config) -> int:
    return config.number_of_layers("num_layers")


def _longcat(config: Config, spec: Decoder, count: int) -> Layers:
    """LongCat Flash: two attentions in each layer."""
    del spec
    return [(_attention(config) * 2, count)]


def _longcat_mlps(config: Config, spec: Decoder, count: int) -> Layers:
    """Two MLPs, and experts of which some do nothing.

    transformers gives those their gate and up all the same (LongcatFlashExperts), which no token uses.
    """
    hidden, number = config.integer("hidden_size"), config.integer("n_routed_experts")
    idle = config.maybe_integer("zero_expert_num", minimum=0) or 0
    width = config.integer("moe_intermediate_size")
    expert = gated_mlp(hidden, width, path="mlp.experts")
    router = linear("mlp.router.classifier", hidden, number + idle, bias=config.flag("router_bias"), role=WeightRole.ROUTER)
    weights = experts(expert, number, config.integer("num_experts_per_tok")) + router
    if idle:
        weights += experts(expert[:2], idle, 0)
    return [(weights + mlp_weights(config, spec) * 2, count)]


def _post_norm(config: Config) -> Weighed:
    return rms_norm("mlp.post_mlp_layernorm", config.integer("hidden_size"))


def _hyper_connections(config: Config) -> Weighed:
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return hyper_connection("attn_hc", streams, hidden, 2) + hyper_connection("ffn_hc", streams, hidden, 2)


_ROUTED: Final = Experts(count="n_routed_experts", shared=times("n_shared_experts"))
_PREFIX: Final = Decoder(experts=replace(_ROUTED, dense=dense_prefix("first_k_dense_replace")))
_SECOND: Final = Decoder(experts=replace(_ROUTED, dense=not_sparse(1, None)))
_SPARSE: Final = Decoder(experts=replace(_ROUTED, dense=not_sparse()))
_TABLE: Final[dict[str, tuple[Decoder, Latents]]] = {
    "deepseek_v2": (
        Decoder(
            mlp_bias="mlp_bias",
            experts=replace(_ROUTED, shared_bias="mlp_bias", dense=dense_prefix("first_k_dense_replace")),
        ),
        _plain,
    ),
    "deepseek_v3": (_PREFIX, _plain),
    "kimi_k2": (_PREFIX, _plain),
    "mistral4": (_PREFIX, _plain),
    "glm4_moe_lite": (_SECOND, _plain),
    "axk1": (Decoder(experts=replace(_ROUTED, dense=_axk_dense, extra=_post_norm)), _plain),
    "minicpm3": (Decoder(mlp_bias="mlp_bias"), _plain),
    "youtu": (Decoder(), _plain),
    "deepseek_v32": (_SPARSE, _indexed),
    "glm_moe_dsa": (_SPARSE, _shared_indexers),
    "axk2": (Decoder(norms=0, mlps=_axk2_mlps), _axk2),
    "hy_v4": (replace(_SECOND, extra=_hyper_connections, outer=hyper_head), _hy_v4),
    "mistral_large4_text": (_SPARSE, _mistral_large4),
    "dots3_note_text": (
        Decoder(
            experts=replace(_ROUTED, shared=times("n_shared_experts", "shared_experts_intermediate_size"), dense=not_sparse(1))
        ),
        _dots3,
    ),
    "longcat_flash": (Decoder(norms=4, layers=_num_layers, mlps=_longcat_mlps), _longcat),
}
_MTP: Final = {
    "deepseek_v3": "copies",
    "kimi_k2": "copies",
    "deepseek_v32": "copies",
    "glm4_moe_lite": "copies",
    "glm_moe_dsa": "shared",
}
"""Layouts that the published sizes of checkpoints confirm."""

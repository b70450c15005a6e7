"""Decoders that resemble GPT-2 (layer norms, biases, fused projections, learned positions), and Llama or GPT under other key names.

The code of the latter lives with the model, and their layers are alike. Each rule comes from the model's own modeling file unless
another is named:

- Llama-like, keys as transformers names them: aquila, arctic, bailing_moe (Ling, Ring), deepseek (the first), grok-1, internlm,
  internlm2, minicpm, orion, skywork, stablelm_epoch, xverse, Yi. ``head_dim`` absent is hidden_size // heads,
  ``num_key_value_heads`` absent is all heads.
- baichuan, qwen (the first): no key/value head key at all, every head has its own; qwen's width is ``kv_channels``.
- chatglm: ``multi_query_attention`` says whether ``multi_query_group_num`` counts (ChatGLM2 and later, GLM-4); the first
  ChatGLM has neither key. vLLM's ``configs/chatglm.py`` has the same pair with defaults false and 1.
- exaone (3.x), telechat: ``num_layers`` / ``n_layer``, ``n_head``; else as Llama.
- mimo: Qwen2's rule: ``use_sliding_window`` makes layers from ``max_window_layers`` on slide; published files say false.
- phi-msft: ``n_head_kv`` null is all heads. mixformer-sequential (its older name): all heads.
- phi3small: half of its layers are block-sparse. That is a pattern of what is *read* (16 local blocks and every eighth other
  one, a different eighth for each head): some head needs each block, so all are kept.
- sarvam_moe: as bailing_moe, with a learned correction for each expert.
- plamo: ``n_shared_head`` query heads share one: heads / n_shared_head, rounded up. Its default is the class's 8.
- step1, step3_text: ``num_attention_groups`` key/value heads. Step-3's factorised queries (``share_q_dim``) are not cached:
  vLLM's ``step3_text.py`` keeps one key and one value of ``head_dim`` 256 (1,024 bytes a layer and token).
- RefinedWeb (Falcon-40B before its class) has ``n_head_kv``; RefinedWebModel (7B) and gpt_refact have ``multi_query``: one
  head. codeshell: ``num_query_groups`` heads. jais: GPT-2's names, every head its own.

Multi-token-prediction layers (``num_nextn_predict_layers``) follow the stack and are no part of it. Weights are counted by each
model's own modeling file; where a catalog gives a published size, it is met to the parameter (buffers apart).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import Layer
from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, WeightRole
from hwcalc.parsers.blocks import Weighed, norm, rms_norms, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder import build
from hwcalc.parsers.decoder.build import FULL, SLIDING, Decoder, Experts, attention_weights, mlp_blocks, mlp_weights
from hwcalc.parsers.reading import (
    AttentionDims,
    Readers,
    Reading,
    attention_dims,
    build_layers,
    dims_of,
    equal_dims,
    shared_heads,
    shared_width,
)


def _equal(config: Config, kv_heads: int | None = None) -> AttentionDims:
    """The heads together are as wide as the hidden size. Each has its own keys and values unless ``kv_heads`` says otherwise."""
    heads = config.integer("num_attention_heads")
    return equal_dims(heads, kv_heads, shared_width(config, heads))


def _multi_query(config: Config) -> AttentionDims:
    """One key/value head with ``multi_query``, which is true by default."""
    return _equal(config, 1 if config.flag("multi_query") else None)


def _nested_heads(config: Config) -> AttentionDims:
    """DBRX and MPT keep ``kv_n_heads`` in ``attn_config``. Without it every head has its own (DBRX: all share one)."""
    nested = config.sub("attn_config")
    if nested is not None:
        nested.ignore("attn_type")
    kv_heads = nested.maybe_integer("kv_n_heads") if nested is not None else None
    return _equal(config, kv_heads or (1 if config.model_type == "dbrx" else None))


def _falcon_layers(config: Config) -> Reading:
    """``num_kv_heads`` key/value heads, or one with ``multi_query`` (the default), which the new decoder architecture ignores.

    Falcon-7B has num_kv_heads 71 and multi_query true: one key/value head, not 71.
    """
    count, given = config.number_of_layers(), config.maybe_integer("num_kv_heads") or config.integer("num_attention_heads")
    multi_query, new = config.flag("multi_query"), config.flag("new_decoder_architecture")
    dims = _equal(config, given if new or not multi_query else 1)
    # transformers repeats each key/value head for its query heads before it caches them (modeling_falcon.py).
    repeated = replace(dims, num_key_value_heads=dims.num_attention_heads)
    readings = {"transformers": ((repeated.full(),),) * count} if new else {}
    return Reading(layers=((dims.full(),),) * count, config=config, readings=readings)


def _falcon_norms(config: Config, spec: Decoder) -> Decoder:
    """Two norms, or one where attention and MLP run in parallel on the same normalised input."""
    if not config.flag("parallel_attn"):
        return spec
    number = config.maybe_integer("num_ln_in_parallel_attn")
    two = number == 2 or (number is None and config.flag("new_decoder_architecture"))
    return spec if two else replace(spec, norms=1)


def _opt_norms(config: Config, spec: Decoder) -> Decoder:
    """Norms may have no scales. They may stand after attention and MLP (350M): then there is none at the end."""
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    after = not config.flag("do_layer_norm_before", default=True) or config.flag("_remove_final_layer_norm")
    return replace(spec, norm="layer" if affine else "none", final_norm=not after)


def _moshi_alone(config: Config, spec: Decoder) -> Decoder | None:
    """Moshi's language model alone. The weights of the whole model, with codec and depth decoder, are not counted."""
    names = config.get("architectures")
    return spec if isinstance(names, list) and names[:1] == ["MoshiForCausalLM"] else None


def _inner(key: str) -> Callable[[Config], int]:
    """The width ``key``, or four times the hidden size."""
    return lambda config: config.maybe_integer(key) or 4 * config.integer("hidden_size")


def _codebook_rows(config: Config) -> int:
    """A row for each text token, one for each code of each codebook, and one for an absent code."""
    codes = config.integer("num_codebooks") * config.integer("codebook_vocab_size")
    return config.integer("vocab_size") + codes + 1


def _cross_attention(config: Config, _layer: Layer) -> Weighed:
    """If GPT-2 is the decoder of an encoder-decoder model, it has cross attention to the encoder, with a norm before it."""
    if not config.flag("add_cross_attention"):
        return ()
    hidden = config.integer("hidden_size")
    weights = w.layer_norm("ln_cross_attn", hidden) + w.linear("crossattention.q_attn", hidden, hidden, bias=True)
    weights += w.linear("crossattention.c_attn", hidden, 2 * hidden, bias=True)
    return weights + w.linear("crossattention.c_proj", hidden, hidden, bias=True)


def _encoder_attention(config: Config, layer: Layer) -> Weighed:
    """The same with BART's projections."""
    if not config.flag("add_cross_attention"):
        return ()
    hidden, dims = config.integer("hidden_size"), dims_of(layer)
    heads = dims.num_attention_heads
    cross = w.attention(hidden, heads, heads, dims.head_dim, qkv_bias=True, o_bias=True, path="encoder_attn", output="out_proj")
    return cross + w.layer_norm("encoder_attn_layer_norm", hidden)


def _kosmos_norms(config: Config, layer: Layer) -> Weighed:
    """Kosmos: a norm in the middle of the MLP, and in Kosmos-2 one before the attention's output."""
    inner = w.layer_norm("ffn.ffn_layernorm", config.integer("ffn_dim"))
    if config.model_type == "kosmos_2_text_model":
        inner += w.layer_norm("self_attn.inner_attn_ln", config.integer("hidden_size"))
    return inner + _encoder_attention(config, layer)


def _opt_width(config: Config) -> int:
    """Embeddings may be narrower than the layers (350M)."""
    return config.maybe_integer("word_embed_proj_dim") or config.integer("hidden_size")


def _opt_projections(config: Config) -> Weighed:
    """Projections between narrow embeddings and the layers."""
    hidden, embedded = config.integer("hidden_size"), _opt_width(config)
    return () if embedded == hidden else w.linear("project_in", embedded, hidden) + w.linear("project_out", hidden, embedded)


def _dbrx_experts(config: Config, _spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """DBRX keeps the sizes of its experts in ``ffn_config``. The defaults are a width of 3,584, 4 experts, and 1 in use."""
    ffn = config.sub("ffn_config") or Config({}, None, "ffn_config")
    hidden = config.integer("hidden_size")
    count, active = (ffn.maybe_integer("moe_num_experts") or 4, ffn.maybe_integer("moe_top_k") or 1)
    expert = w.gated_mlp(hidden, ffn.maybe_integer("ffn_hidden_size") or 3584, path="ffn.experts.mlp")
    router = w.linear("ffn.router.layer", hidden, count, role=WeightRole.ROUTER)
    return mlp_blocks([None] * len(layers), lambda _: w.experts(expert, count, active) + router)


def _read_modernbert(config: Config) -> Reading:
    """ModernBERT's decoder: ``local_attention`` counts both directions, so that its half is the window that the class sets."""
    dims, given = shared_heads(config), config.has("sliding_window")
    # A class without a local attention makes a window of -1, which is none.
    half = config.integer("local_attention", minimum=0 if given else 2) // 2
    window = config.maybe_integer("sliding_window") if given else half
    types = build.layer_types(config, build.first_of(3, "global_attn_every_n_layers"))
    readers = {FULL: lambda _level, _index: (dims.full(),), SLIDING: lambda _level, _index: (dims.within(window),)}
    return Reading(layers=build_layers(config, types, readers), config=config)


def _modernbert_attentions(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """A norm before each attention but the first."""
    scale = norm(spec.norm, "attn_norm", config.integer("hidden_size"))
    places = [(layer, index > 0) for index, layer in enumerate(layers)]
    return build.attention_blocks(places, lambda place: attention_weights(config, spec, place[0]) + (scale if place[1] else ()))


def _modernbert_outer(config: Config) -> Weighed:
    """A norm after the embedding, and a head of two layers."""
    hidden, kind = config.integer("hidden_size"), "layer" if config.flag("norm_bias") else "scale"
    dense = w.linear("lm_head.dense", hidden, hidden, bias=config.flag("classifier_bias"))
    return norm(kind, "embeddings.norm", hidden) + dense + norm(kind, "lm_head.norm", hidden)


def _gated_halves(config: Config, _spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """``ffn_dim`` is the width of gate and value together: the first matrix is that wide, the second one half of it."""
    hidden, both = config.integer("hidden_size"), config.integer("ffn_dim")
    weights = w.linear("mlp.fc1", hidden, both) + w.linear("mlp.fc2", both // 2, hidden)
    return mlp_blocks([None] * len(layers), lambda _: weights)


def _grouped(flag: str, key: str = "", *, default: bool = True) -> Callable[[Config], AttentionDims]:
    """If ``flag`` is set, ``key`` gives the number of key/value heads (1 without a key). If not, every head has its own."""

    def dims(config: Config) -> AttentionDims:
        own, groups = attention_dims(config), (config.maybe_integer(key) if key else None) or 1
        return replace(own, num_key_value_heads=groups if config.flag(flag, default=default) else own.num_attention_heads)

    return dims


def _plamo_dims(config: Config) -> AttentionDims:
    dims, sharing = attention_dims(config), config.maybe_integer("n_shared_head") or 8
    return replace(dims, num_key_value_heads=-(-dims.num_attention_heads // sharing))


def _minicpm_layers(config: Config) -> Reading:
    reading = build.alike()(config)
    # InfLLM-V2 also keeps a key for each block of tokens. No key of its config is read, so such a file is refused by name.
    config.sub("sparse_config")
    return reading


def _tied_unless_said(config: Config, top: Config) -> bool:
    """The head is tied unless the file says otherwise."""
    return config.get("tie_word_embeddings") is None or tied_head(config, top)


def _minicpm(config: Config, spec: Decoder) -> Decoder:
    """If ``num_experts`` is set, each layer has that many experts, each as wide as the MLP of a model without experts."""
    routed = config.maybe_integer("num_experts", minimum=0)
    return replace(spec, experts=Experts(width="intermediate_size")) if routed else spec


def _chatglm(config: Config, spec: Decoder) -> Decoder | None:
    """ChatGLM2, 3 and GLM-4; the first ChatGLM, which has no ``ffn_hidden_size``, is another model."""
    if not config.has("ffn_hidden_size"):
        return None
    biased = config.flag("add_bias_linear")
    return replace(
        spec,
        norm="rms" if config.flag("rmsnorm", default=True) else "layer",
        final_norm=config.flag("post_layer_norm", default=True),
        qkv_bias=biased or config.flag("add_qkv_bias"),
        o_bias=biased,
        mlp_bias=biased,
    )


def _qwen(config: Config, spec: Decoder) -> Decoder:
    biased = not config.flag("no_bias", default=True)
    return replace(spec, o_bias=biased, mlp_bias=biased)


def _arctic_residual(config: Config, _layer: Layer) -> Weighed:
    """A dense MLP beside the experts, as wide as the hidden size, with a norm."""
    if not config.flag("use_residual", default=True):
        return ()
    hidden = config.integer("hidden_size")
    return w.gated_mlp(hidden, hidden, path="residual_mlp") + w.rms_norm("residual_layernorm", hidden)


def _step3(config: Config, _spec: Decoder, layer: Layer) -> Weighed:
    """Step-3: queries pass through a low rank; all heads share one key and one value."""
    hidden, rank, dims = config.integer("hidden_size"), config.integer("share_q_dim"), dims_of(layer)
    own = w.attention(hidden, dims.num_attention_heads, dims.num_key_value_heads, dims.head_dim)
    queries = w.linear("self_attn.q_proj", hidden, rank) + w.rms_norm("self_attn.inter_norm", rank)
    return (*queries, *w.linear("self_attn.wq", rank, dims.num_attention_heads * dims.head_dim), *own[1:])


def _mimo_mtp(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """MiMo: a projection and norms before a whole layer, and a norm after it."""
    hidden = config.integer("hidden_size")
    norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm", "final_layernorm")
    projection = w.linear("input_proj", 2 * hidden, hidden) + rms_norms(hidden, *norms)
    return projection + attention_weights(config, spec, layer) + mlp_weights(config, spec)


_LAYER_NORM: Final = Decoder(dims=shared_heads, norm="layer")
_BIASED: Final = replace(_LAYER_NORM, qkv_bias=True, o_bias=True, mlp_bias=True)
GPT2: Final = replace(
    _BIASED, attn="attn", fused_qkv="c_attn", output="c_proj", gated=False, names=("c_fc", "c_proj"), width=_inner("n_inner"),
    positions=0, extra=_cross_attention,
)  # fmt: skip
GPT_BIGCODE: Final = replace(GPT2, layers=build.alike(_multi_query, "num_key_value_heads"))
GPT_NEO: Final = replace(
    # Local layers mask old tokens but keep them: the cache is full on all layers.
    GPT2, layers=build.alike(_equal, "attention_types", "attention_layers", "window_size"), attn="attn.attention", fused_qkv="",
    output="out_proj", qkv_bias=False, width=_inner("intermediate_size"), extra=None,
)  # fmt: skip
CTRL: Final = replace(
    GPT2, attn="multi_head_attention", output="dense", fused_qkv="", width="dff", positions=None, extra=None, head_bias=True
)
GPTJ: Final = replace(
    _LAYER_NORM, norms=1, attn="attn", output="out_proj", mlp_bias=True, gated=False, names=("fc_in", "fc_out"),
    width=_inner("n_inner"), head_bias=True,
)  # fmt: skip
CODEGEN: Final = replace(GPTJ, fused_qkv="qkv_proj")
GPT_NEOX: Final = replace(
    _BIASED, qkv_bias="attention_bias", o_bias="attention_bias", attn="attention", fused_qkv="query_key_value", output="dense",
    gated=False, names=("dense_h_to_4h", "dense_4h_to_h"),
)  # fmt: skip
GPT_NEOX_JAPANESE: Final = replace(
    GPT_NEOX, qkv_bias=False, o_bias=False, mlp_bias=False,
    width=lambda config: config.integer("intermediate_multiple_size") * config.integer("hidden_size"),
    # Only the last layer adds a bias to its attention's output.
    outer=lambda config: w.parameter("attention.dense_bias", config.integer("hidden_size"), role=WeightRole.BIAS),
)  # fmt: skip
BLOOM: Final = replace(
    GPT_NEOX, qkv_bias=True, o_bias=True, attn="self_attention", width=_inner("n_inner"),
    outer=lambda config: w.layer_norm("word_embeddings_layernorm", config.integer("hidden_size")),
)  # fmt: skip
FALCON: Final = replace(
    GPT_NEOX, layers=_falcon_layers, adapt=_falcon_norms, attn="self_attention", qkv_bias="bias", o_bias="bias", mlp_bias="bias",
    width=_inner("ffn_hidden_size"),
)  # fmt: skip
PERSIMMON: Final = replace(
    GPT_NEOX, qkv_bias=True, o_bias=True, attn="self_attn", qk_norm="head_layer", qk_norm_if="qk_layernorm"
)
MPT: Final = replace(
    GPT_NEOX_JAPANESE, layers=build.alike(_nested_heads, "num_key_value_heads"), norm="scale", attn="attn", fused_qkv="Wqkv",
    output="out_proj", mlp="ffn", names=("up_proj", "down_proj"), width=_inner("n_inner"), outer=None,
)  # fmt: skip
BIOGPT: Final = replace(_BIASED, output="out_proj", mlp="layer", gated=False, names=("fc1", "fc2"), positions=2)
XGLM: Final = replace(BIOGPT, positions=None, width="ffn_dim", extra=_encoder_attention)
KOSMOS_2: Final = replace(XGLM, mlp="ffn", extra=_kosmos_norms)
KOSMOS_2_5: Final = replace(KOSMOS_2, outer=lambda config: w.embedding("segment_emb", 2, config.integer("hidden_size")))
OPT: Final = replace(
    BIOGPT, adapt=_opt_norms, qkv_bias="enable_bias", o_bias="enable_bias", mlp_bias="enable_bias", width="ffn_dim",
    embed="model.decoder.embed_tokens", embedded=_opt_width, outer=_opt_projections,
)  # fmt: skip
PHI: Final = Decoder(
    norm="layer", norms=1, qkv_bias=True, o_bias=True, mlp_bias=True, output="dense", gated=False, names=("fc1", "fc2"),
    qk_norm="head_layer", qk_norm_if="qk_layernorm", head_bias=True,
)  # fmt: skip
STARCODER2: Final = Decoder(
    norm="layer", qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", gated=False, names=("c_fc", "c_proj")
)
STABLELM: Final = Decoder(
    # Attention and MLP share a norm where they run in parallel.
    adapt=lambda config, spec: replace(spec, norms=1 if config.flag("use_parallel_residual") else 2),
    norm="layer", qkv_bias="use_qkv_bias", qk_norm="full", qk_norm_if="qk_layernorm",
)  # fmt: skip
DBRX: Final = Decoder(
    layers=build.alike(_nested_heads, "num_key_value_heads"), norm="scale", attn="norm_attn_norm.attn", fused_qkv="Wqkv",
    output="out_proj", mlps=_dbrx_experts,
)  # fmt: skip
MODERNBERT: Final = Decoder(
    layers=_read_modernbert, adapt=lambda config, spec: replace(spec, norm="layer" if config.flag("norm_bias") else "scale"),
    norms=1, attn="attn", qkv_bias="attention_bias", o_bias="attention_bias", output="Wo", mlp_bias="mlp_bias", fused_gate="Wi",
    head_bias="decoder_bias", attentions=_modernbert_attentions, outer=_modernbert_outer,
)  # fmt: skip
KYUTAI: Final = Decoder(rows=_codebook_rows, mlps=_gated_halves)
MOSHI: Final = replace(KYUTAI, adapt=_moshi_alone, rows=lambda config: config.integer("vocab_size") + 1)
PLAIN: Final = Decoder(layers=build.alike())
_LLAMA: Final = replace(PLAIN, qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
BAICHUAN: Final = replace(PLAIN, fused_qkv="W_pack")
EXAONE: Final = replace(_LLAMA, qkv_bias="attention_bias", o_bias="attention_bias", attn="attn.attention", output="out_proj")
INTERNLM: Final = replace(PLAIN, qkv_bias="bias", o_bias="bias")
INTERNLM2: Final = replace(INTERNLM, attn="attention", fused_qkv="wqkv", output="wo", mlp="feed_forward")
ORION: Final = replace(PLAIN, norm="layer")
MINICPM: Final = replace(_LLAMA, layers=_minicpm_layers, adapt=_minicpm, tied=_tied_unless_said)
CHATGLM: Final = Decoder(
    layers=build.alike(_grouped("multi_query_attention", "multi_query_group_num", default=False)), adapt=_chatglm,
    attn="self_attention", fused_qkv="query_key_value", output="dense", fused_gate="dense_h_to_4h",
)  # fmt: skip
QWEN: Final = replace(
    PLAIN, adapt=_qwen, attn="attn", fused_qkv="c_attn", qkv_bias=True, output="c_proj",
    # intermediate_size is the width of gate and up together.
    width=lambda config: max(1, config.integer("intermediate_size") // 2),
)  # fmt: skip
DEEPSEEK: Final = replace(_LLAMA, mlp_bias=False, experts=build.AFTER_PREFIX)
BAILING: Final = Decoder(
    layers=build.alike(attention_dims, "max_window_layers", "sliding_window", "use_sliding_window"), attn="attention",
    fused_qkv="query_key_value", output="dense", qkv_bias="use_qkv_bias", o_bias="use_bias", qk_norm="head",
    qk_norm_if="use_qk_norm",
    experts=Experts(shared=build.times("num_shared_experts"), sparse=build.sparse_after("first_k_dense_replace")),
)  # fmt: skip
# transformers builds it as GLM-4 MoE, whose cache has a window if the config object has one.
SARVAM_MOE: Final = replace(BAILING, layers=None, types=build.by_window("max_window_layers", "use_sliding_window"))
GROK: Final = Decoder(
    layers=build.alike(attention_dims, "attn_output_multiplier", "max_attn_value"), norms=4,
    experts=Experts(width="intermediate_size"),
)  # fmt: skip
ARCTIC: Final = Decoder(
    layers=build.alike(attention_dims, "parallel_attn_mlp_res"),
    # No model with dense layers between the experts is known that a count could be checked against.
    adapt=lambda config, spec: spec if (config.maybe_integer("moe_layer_frequency") or 1) == 1 else None,
    extra=_arctic_residual,
    experts=Experts(count="num_local_experts", width="intermediate_size", path="block_sparse_moe"),
)
PHI_MSFT: Final = replace(
    PHI, layers=build.alike(), attn="mixer", fused_qkv="Wqkv", output="out_proj", qk_norm="", width=_inner("intermediate_size")
)
PHI3_SMALL: Final = Decoder(
    layers=build.alike(
        attention_dims, "blocksparse_block_size", "blocksparse_homo_head_pattern", "blocksparse_num_local_blocks",
        "blocksparse_triton_kernel_block_size", "blocksparse_vert_stride", "dense_attention_every_n_layers",
    ),
    norm="layer", fused_qkv="query_key_value", output="dense", qkv_bias=True, o_bias=True, mlp_bias=True, fused_gate="up_proj",
    width="ff_intermediate_size", tied=_tied_unless_said,
)  # fmt: skip
MIMO: Final = Decoder(types=build.from_a_layer_on, qkv_bias="attention_bias", mtp=_mimo_mtp)
STEP3: Final = Decoder(
    layers=build.alike(attention_dims, "share_q_dim"), attention=_step3,
    experts=Experts(
        count="moe_num_experts", per_token="moe_top_k", shared=build.width("share_expert_dim"), shared_path="share_expert",
        sparse=build.sparse_in_list(1),
    ),
)  # fmt: skip
# Nobody has counted the weights of these.
ALIKE: Final = Readers(layers=build.alike())
CODESHELL: Final = Readers(layers=build.alike(_grouped("group_query_attention", "num_query_groups")))
MULTI_QUERY: Final = Readers(layers=build.alike(_grouped("multi_query")))
PLAMO: Final = Readers(layers=build.alike(_plamo_dims))

"""Decoders that resemble Llama: dense models, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import Layer
from hwcalc.formulas.weights import Block, WeightRole, experts, gated_mlp, linear, parameter, rms_norm
from hwcalc.model import Note
from hwcalc.parsers.blocks import Weighed, gated_experts
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder import build
from hwcalc.parsers.decoder.build import CHUNKED, FULL, SLIDING, Decoder, Experts, mlp_blocks, mlp_weights
from hwcalc.parsers.reading import Readers, Reading, build_layers, dims_of, divided_dims, every, read_layer_types


def _smollm3_types(config: Config, count: int) -> list[str]:
    """Layers without rotary positions slide, if ``use_sliding_window``."""
    positions = build.with_positions(config, count)
    config.ignore("max_window_layers")
    window = config.maybe_integer("sliding_window", minimum=0)
    use = config.flag("use_sliding_window") and window
    return [SLIDING if use and not positions[i] else FULL for i in range(count)]


def all_or_none(config: Config, count: int) -> list[str]:
    """Every layer slides, and none does if the window is null."""
    return [FULL if config.maybe_integer("sliding_window") is None else SLIDING] * count


def every_fourth_from_the_end(_config: Config, count: int) -> list[str]:
    """Full attention on the last layer and on every fourth before it."""
    return [FULL if (count - 1 - i) % 4 == 0 else SLIDING for i in range(count)]


def _xielu(config: Config, _layer: Layer) -> Weighed:
    """The activation of Apertus has two learned numbers in each layer."""
    if config.get("hidden_act", "xielu") != "xielu":
        return ()
    return parameter("mlp.act_fn.alpha_p", 1) + parameter("mlp.act_fn.alpha_n", 1)


def _sub_norms(config: Config, _layer: Layer) -> Weighed:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    return rms_norm("self_attn.attn_sub_norm", hidden) + rms_norm("mlp.ffn_sub_norm", width)


def _lambdas(_config: Config, layer: Layer) -> Weighed:
    """DiffLlama has two pairs of vectors, as wide as a head, whose products weigh the second attention map."""
    head_dim = dims_of(layer).head_dim
    return tuple(weight for name in ("q1", "k1", "q2", "k2") for weight in parameter(f"self_attn.lambda_{name}", head_dim))


def _adaptive_norm(config: Config, _layer: Layer) -> Weighed:
    """Voxtral Realtime has a norm that depends on the delay, through two matrices of rank 32."""
    hidden = config.integer("hidden_size")
    return linear("ada_rms_norm.linear1", hidden, 32) + linear("ada_rms_norm.linear2", 32, hidden)


def _minimax_m2_types(config: Config, count: int) -> list[str]:
    """No layer is linear. ``attn_type_list`` (1 is full) is left over from models of which some are."""
    kinds = config.integers("attn_type_list", length=count)
    if kinds is not None and set(kinds) != {1}:
        raise config.error("attn_type_list", kinds, "1 (full attention) on every layer")
    return build.by_window()(config, count)


def _dots1_types(config: Config, count: int) -> list[str]:
    config.ignore("use_sliding_window")
    return build.from_a_layer_on(config, count, always=True)


def _telechat3_types(config: Config, count: int) -> list[str]:
    """Full attention on every layer. The config class has two switches for shared layers, which no published file sets."""
    for key in ("share_attention", "share_ffn"):
        if config.flag(key):
            raise config.error(key, config.get(key), "false, as in every published file")
    return build.full()(config, count)


def _small_thinker_types(config: Config, count: int) -> list[str]:
    """Layers that ``sliding_window_layout`` marks with 1 slide; null or absent is none. ``rope_layout`` says which have positions."""
    # The class sets the first for another engine: the layout once more. Where no layer slides, the width has no effect.
    config.ignore("sliding_window_pattern", "sliding_window", "sliding_window_size", "rope_layout")
    layout = config.integers("sliding_window_layout", length=count) or [0] * count
    return [SLIDING if marked == 1 else FULL for marked in layout]


def _qwen2_moe_types(config: Config, count: int) -> list[str]:
    """Every other layer *below* ``max_window_layers`` slides, if ``use_sliding_window``. In Qwen2 the layers above it do."""
    last = config.maybe_integer("max_window_layers", minimum=0) or 0
    window = config.maybe_integer("sliding_window", minimum=0)
    use = config.flag("use_sliding_window") and window
    return [SLIDING if use and (i + 1) % 2 and i < last else FULL for i in range(count)]


def _qwen3_moe_types(config: Config, count: int) -> list[str]:
    """Every layer slides if a window is set and ``use_sliding_window`` does not switch it off."""
    config.ignore("max_window_layers")
    window = config.maybe_integer("sliding_window", minimum=0)
    on = config.flag("use_sliding_window") if config.has("use_sliding_window") or config.has_class else True
    if window and on:
        return [SLIDING] * count
    return [FULL if config.maybe_integer("attention_chunk_size") is None else CHUNKED] * count


def _llama4_types(config: Config, count: int) -> list[str]:
    """Layers with rotary positions are chunked, the others (every fourth) full."""
    positions = build.with_positions(config, count, exact=False)
    return [CHUNKED if positions[i] else FULL for i in range(count)]


def _cohere2_moe_types(config: Config, count: int) -> list[str]:
    """The first layers, which are dense, have a pattern of their own. The pattern of the others starts after them."""
    prefix = min(config.maybe_integer("first_k_dense_replace", minimum=0) or 0, count)
    in_prefix = config.maybe_integer("prefix_dense_sliding_window_pattern") or 1
    after = config.maybe_integer("sliding_window_pattern") or 4
    return every(in_prefix, prefix, FULL, SLIDING) + every(after, count - prefix, FULL, SLIDING)


def _helium(config: Config, spec: Decoder, layer: Layer) -> Weighed:
    """The output projection is as wide as the hidden vector, whatever the heads are (transformers' HeliumAttention)."""
    hidden, weights = config.integer("hidden_size"), build.attention_weights(config, spec, layer)
    output = f"{spec.attn}.{spec.output}"
    return tuple(each for each in weights if not each.path.startswith(output)) + linear(output, hidden, hidden)


def _hy_shared(config: Config) -> int:
    """Width of the shared expert. The class takes that of the dense layers for 0 shared experts (transformers' HYV3MLP)."""
    return build.times("num_shared_experts")(config) or config.integer("intermediate_size")


def _unlimited_ocr(config: Config) -> Reading:
    """The cache keeps all tokens of the prompt, and a window of those that are generated. All tokens are counted as prompt."""
    count, window, name = config.number_of_layers(), config.integer("sliding_window"), "reference_sliding_attention"
    layers = build_layers(
        config, read_layer_types(config, count) or [name] * count, {name: lambda level, _: (divided_dims(level).full(),)}
    )
    message = f"All tokens are counted as prompt, which is kept whole; of generated tokens only {window:,} would be kept."
    return Reading(layers=layers, config=config, notes=(Note(code="prompt-kept-whole", message=message),))


def _phi4_mm(config: Config) -> Reading:
    """Phi-3's layers. The published file has an adapter for images and one for sound as well."""
    reading = PHI3.read(config)
    if config.get("vision_lora") is None and config.get("speech_lora") is None:
        return reading
    message = "The adapters for images and sound (vision_lora, speech_lora) are beside the model and not counted with it."
    return replace(reading, notes=(*reading.notes, Note(code="adapters-apart", message=message)))


def _by_step(*default: int) -> Callable[[Config, int], list[bool]]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer but those in ``mlp_only_layers``, if there are experts at all."""

    def sparse(config: Config, count: int) -> list[bool]:
        listed = config.integers("mlp_only_layers")
        only = set(default if listed is None else listed)
        step = config.maybe_integer("decoder_sparse_step") or 1
        some = config.maybe_integer("num_experts", minimum=0) != 0
        return [some and i not in only and (i + 1) % step == 0 for i in range(count)]

    return sparse


def _ernie_sparse(config: Config, count: int) -> list[bool]:
    """Every ``moe_layer_interval``-th layer between two indices has experts; -1 is the last layer."""
    interval = config.integer("moe_layer_interval")
    start = config.integer("moe_layer_start_index", minimum=0)
    end = config.integer("moe_layer_end_index", minimum=-1)
    last = count - 1 if end == -1 else end
    return [(i + 1) % interval == 0 and start <= i <= last for i in range(count)]


def _llama4_sparse(config: Config, count: int) -> list[bool]:
    """``moe_layers`` names the layers with experts, else every ``interleave_moe_layer_step``-th has them."""
    listed = config.integers("moe_layers")
    step = config.integer("interleave_moe_layer_step")
    sparse = set(range(step - 1, count, step) if listed is None else listed)
    return [i in sparse for i in range(count)]


def _ernie_vl(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """ERNIE-4.5-VL: experts for text and others for images, of another width. A token uses one of the two kinds."""
    hidden, number, active = config.integer("hidden_size"), config.integer("moe_num_experts"), config.integer("moe_k")
    widths = config.integers("moe_intermediate_size", length=2, minimum=1) or [1536, 512]
    sparse: Weighed = ()
    for kind, per_expert in zip(("text_moe", "vision_moe"), widths, strict=True):
        path = f"mlp.{kind}"
        sparse += gated_experts(hidden, per_expert, number, active if kind == "text_moe" else 0, path=path)
        sparse += parameter(f"{path}.gate.moe_statics.e_score_correction_bias", 1, number)
    shared = config.maybe_integer("moe_num_shared_experts", minimum=0) or 0
    if shared:
        sparse += gated_mlp(hidden, widths[0] * shared, bias=config.flag("use_bias"), path="mlp.shared_experts")
    dense = mlp_weights(config, spec)
    return mlp_blocks(build.sparse_layers(config, len(layers), 1, None), lambda routed: sparse if routed else dense)


def _muse_spark(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Muse Spark: two projections, each with a norm, lead to the width of the experts and back."""
    hidden, inner = config.integer("hidden_size"), config.integer("moe_hidden_size")
    number, active = config.integer("num_local_experts"), config.integer("num_experts_per_tok")
    expert = gated_mlp(inner, config.integer("moe_intermediate_size"), path="mlp.experts")
    sparse = linear("mlp.gate", hidden, number, role=WeightRole.ROUTER) + linear("mlp.pre_expert_proj", hidden, inner)
    sparse += rms_norm("mlp.pre_expert_norm", inner) + experts(expert, number, active)
    sparse += rms_norm("mlp.experts.post_expert_norm", inner) + linear("mlp.post_expert_proj", inner, hidden)
    dense = mlp_weights(config, spec)
    return mlp_blocks(build.sparse_layers(config, len(layers), 0, None), lambda routed: sparse if routed else dense)


def _klear_mixing(config: Config) -> Weighed:
    """Two weights of a token, by which Klear mixes the routed experts with the shared one, and a bias of each expert's score."""
    hidden, number = config.integer("hidden_size"), config.integer("num_experts")
    return linear("mlp.coefficient", hidden, 2, bias=True, role=WeightRole.ROUTER) + parameter("mlp.expert_bias", number)


def _pangu(config: Config, spec: Decoder) -> Decoder:
    """In openPangu Embedded one key decides on the biases of all four projections, which are there unless it says no."""
    bias = config.flag("bias", default=True)
    return replace(spec, qkv_bias=bias, o_bias=bias)


def _pangu_router_scale(config: Config) -> Weighed:
    return parameter("mlp.router_scale", 1, config.integer("num_experts"))


def _residual_gates(config: Config, _layer: Layer) -> Weighed:
    hidden = config.integer("hidden_size")
    return parameter("post_attention_residual_gate.gate", hidden) + parameter("post_feedforward_residual_gate.gate", hidden)


def _doge(config: Config, spec: Decoder, layers: Sequence[Layer]) -> list[Block]:
    """Doge: with ``is_moe`` there are experts beside the MLP. Each is a row of two tables, which the sum of two keys selects."""
    weights = mlp_weights(config, spec)
    if config.flag("is_moe"):
        hidden, number = config.integer("hidden_size"), config.integer("num_experts")
        keys = int(number**0.5)
        weights += linear("mlp.router_gate", hidden, 2 * keys, role=WeightRole.ROUTER)
        rows = [parameter(f"mlp.{name}_embed.weight", hidden, role=WeightRole.EXPERT)[0] for name in ("down", "up")]
        weights += experts(rows, number, config.integer("num_experts_per_tok"))
    return mlp_blocks([None] * len(layers), lambda _: weights)


def _doge_extra(config: Config, layer: Layer) -> Weighed:
    hidden, dims = config.integer("hidden_size"), dims_of(layer)
    groups, bias = dims.num_key_value_heads, config.flag("attention_bias")
    weights = parameter("self_attn.A", groups) + linear("self_attn.dt_proj", groups * dims.head_dim, groups, bias=bias)
    return weights + parameter("input_residual", hidden) + parameter("post_attention_residual", hidden)


PLAIN: Final = Decoder()
MINISTRAL: Final = Decoder(types=all_or_none)
ATTENTION_BIAS: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_bias")
# Llama, and models that differ from it mostly in biases.
LLAMA: Final = replace(ATTENTION_BIAS, mlp_bias="mlp_bias")
GRANITE_SWA: Final = replace(LLAMA, types=build.first_of(4), sinks=True)
SMOLLM3: Final = replace(LLAMA, types=_smollm3_types)
HYPERCLOVAX: Final = replace(LLAMA, adapt=lambda config, spec: replace(spec, norms=4 if config.flag("use_post_norm") else 2))
CWM: Final = Decoder(types=build.first_of(4), mlp_bias="mlp_bias")
HELIUM: Final = Decoder(qkv_bias="attention_bias", mlp_bias="mlp_bias", attention=_helium)
SEED_OSS: Final = Decoder(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias")
ERNIE: Final = Decoder(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias")
CHAMELEON: Final = replace(LLAMA, qk_norm="full_layer")
VOXTRAL_REALTIME: Final = Decoder(extra=_adaptive_norm)
DIFFLLAMA: Final = replace(ATTENTION_BIAS, extra=_lambdas)
BITNET: Final = replace(ATTENTION_BIAS, extra=_sub_norms)
# Without a gate in the MLP.
ARCEE: Final = replace(LLAMA, gated=False)
NEMOTRON: Final = replace(ARCEE, norm="layer")
COSMOS3_EDGE: Final = replace(ARCEE, names=("fc1", "fc2"), tied=build.untied)
APERTUS: Final = replace(ATTENTION_BIAS, qk_norm="head", gated=False, extra=_xielu)
APERTUS15: Final = replace(APERTUS, head_rows=lambda config: config.maybe_integer("output_vocab_size"))
NANOCHAT: Final = replace(ATTENTION_BIAS, norms=0, final_norm=False, gated=False, names=("fc1", "fc2"))
GEMMA: Final = ATTENTION_BIAS
VAULTGEMMA: Final = replace(GEMMA, types=build.last_of(2))
GEMMA2: Final = replace(VAULTGEMMA, norms=4)
GEMMA3: Final = replace(GEMMA, types=build.last_of(6, "sliding_window_pattern"), norms=4, qk_norm="head")
MUSE_GLIMMER: Final = replace(ATTENTION_BIAS, types=every_fourth_from_the_end, norms=4, gate="full")
QWEN2: Final = Decoder(types=build.from_a_layer_on, qkv_bias=True)
HEAD_NORM: Final = replace(ATTENTION_BIAS, qk_norm="head")
QWEN3: Final = replace(HEAD_NORM, types=build.from_a_layer_on)
EXAONE4: Final = Decoder(types=build.nullable_window, qk_norm="head")
OLMO: Final = replace(ATTENTION_BIAS, norm="none")
OLMO2: Final = replace(ATTENTION_BIAS, qk_norm="full")
OLMO3: Final = replace(OLMO2, types=build.last_of(4))
COHERE: Final = replace(ATTENTION_BIAS, norm="scale", norms=1, qk_norm="full", qk_norm_if="use_qk_norm")
COHERE2: Final = replace(COHERE, types=build.last_of(4, "sliding_window_pattern"), qk_norm="")
COHERE_COMPASS: Final = replace(COHERE2, types=build.full("sliding_window_pattern"))
GLM: Final = Decoder(qkv_bias="attention_bias", fused_gate="gate_up_proj")
GLM4: Final = replace(GLM, norms=4)
GLM4V: Final = replace(GLM4, qkv_bias=True)
GLM_OCR: Final = replace(GLM4, qkv_bias=False)
PHI3: Final = Decoder(fused_qkv="qkv_proj", fused_gate="gate_up_proj")
PHI4_MM: Final = replace(PHI3, layers=_phi4_mm)
MOLMO2: Final = Decoder(
    adapt=lambda config, spec: replace(spec, qk_norm="head" if config.text("qk_norm_type") == "qwen3" else "full"),
    qkv_bias="attention_bias", tied=build.untied,
    rows=lambda config: config.integer("vocab_size") + config.integer("additional_vocab_size", minimum=0),
)  # fmt: skip
# Nobody has counted the weights of these two.
EVOLLA: Final = Readers(layers=Decoder(types=build.by_window("resampler_heads", "resampler_dim_head")).read)
IDEFICS: Final = Readers(layers=Decoder(types=build.by_window("cross_layer_interval")).read)
"""The image layers cache nothing: they get the image's states anew at every step."""
# Experts that several families have.
_LOCAL: Final = Experts(count="num_local_experts", width="intermediate_size")
_BLOCK_SPARSE: Final = replace(_LOCAL, path="block_sparse_moe")
_GRANITE: Final = replace(_BLOCK_SPARSE, router="router.layer", shared=build.width("shared_intermediate_size"))
_SHARED: Final = Experts(shared=build.width("shared_expert_intermediate_size"), shared_path="shared_expert")
MIXTRAL: Final = Decoder(experts=_BLOCK_SPARSE)
MINIMAX_M2: Final = Decoder(types=_minimax_m2_types, qk_norm="full", experts=_BLOCK_SPARSE)
PHIMOE: Final = replace(ATTENTION_BIAS, norm="layer", head_bias="lm_head_bias", experts=_BLOCK_SPARSE)
GRANITE_MOE: Final = replace(ATTENTION_BIAS, experts=_GRANITE)
GRANITE_MOE_SWA: Final = replace(GRANITE_MOE, types=build.first_of(4), sinks=True)
GPT_OSS: Final = replace(
    ATTENTION_BIAS, types=build.last_of(2), sinks=True,
    experts=replace(_LOCAL, router="router", router_bias=True, expert_bias=True),
)  # fmt: skip
QWEN2_MOE: Final = Decoder(
    types=_qwen2_moe_types, qkv_bias="qkv_bias", experts=replace(_SHARED, shared_gate=True, sparse=_by_step())
)
QWEN3_VL_MOE: Final = replace(HEAD_NORM, experts=Experts(sparse=_by_step()))
QWEN3_MOE: Final = replace(QWEN3_VL_MOE, types=_qwen3_moe_types)
# The model's own class, configuration_telechat3.py; vLLM 0.20 and later builds its Llama of it.
TELECHAT3: Final = replace(LLAMA, types=_telechat3_types)
# The model's own modeling_smallthinker.py of SmallThinker-4BA0.6B and 21BA3B.
SMALL_THINKER: Final = Decoder(
    types=_small_thinker_types,
    experts=Experts(
        count="moe_num_primary_experts", per_token="moe_num_active_primary_experts", width="moe_ffn_hidden_size",
        path="block_sparse_moe", router="primary_router",
    ),
)  # fmt: skip
KLEAR: Final = replace(QWEN3_MOE, experts=Experts(shared=build.times("n_shared_experts"), sparse=_by_step(), extra=_klear_mixing))
PANGU: Final = Decoder(adapt=_pangu)
PANGU_PRO_MOE: Final = Decoder(qkv_bias=True, o_bias=True, experts=replace(_SHARED, sparse=_by_step(), extra=_pangu_router_scale))
FLINT: Final = replace(
    # Full attention on the first two layers, on every fourth and on the last.
    HEAD_NORM, types=lambda _, count: [FULL if i < 2 or i % 4 == 1 or i == count - 1 else SLIDING for i in range(count)],
    sinks=True, experts=replace(_SHARED, sparse=_by_step(0, 1)),
)  # fmt: skip
GLM4_MOE: Final = Decoder(
    qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm", experts=build.AFTER_PREFIX, mtp=build.mtp_copies
)
GLM4V_MOE: Final = Decoder(qkv_bias="attention_bias", experts=build.AFTER_PREFIX)
SOLAR: Final = Decoder(qkv_bias="attention_bias", experts=build.ROUTED)
DOTS1: Final = replace(HEAD_NORM, types=_dots1_types, experts=build.AFTER_PREFIX)
DEEPSEEK_OCR2: Final = replace(
    ATTENTION_BIAS, types=build.by_window("sliding_window_pattern"), dims=divided_dims, mlp_bias="mlp_bias",
    experts=replace(build.ROUTED, shared_bias="mlp_bias", sparse=build.sparse_by_types(1)),
)  # fmt: skip
UNLIMITED_OCR: Final = replace(DEEPSEEK_OCR2, layers=_unlimited_ocr)
HY_V3: Final = replace(
    HEAD_NORM, mlp_bias="mlp_bias",
    experts=Experts(shared=_hy_shared, shared_bias="mlp_bias", sparse=build.sparse_by_types(1, None)),
    mtp=build.mtp_shared,
)  # fmt: skip
HUNYUAN_MOE: Final = replace(
    HEAD_NORM,
    experts=Experts(
        per_token="moe_topk", width="intermediate_size", router="gate.wg", shared=build.width("intermediate_size"),
        shared_path="shared_mlp",
    ),
)  # fmt: skip
EXAONE_MOE: Final = Decoder(
    types=build.nullable_window, qk_norm="head",
    experts=Experts(shared=build.times("num_shared_experts"), sparse=build.sparse_by_types(1)),
)  # fmt: skip
MELLUM: Final = replace(
    HEAD_NORM, types=build.full("sliding_window_pattern"), experts=Experts(sparse=build.sparse_by_types(0, None))
)
KOLIBRI: Final = Decoder(
    types=build.last_of(5), qk_norm="head", norms=4, experts=Experts(shared=build.width("shared_expert_intermediate_size"))
)
BEAM: Final = replace(
    HEAD_NORM, types=lambda config, count: [*build.last_of(6)(config, count)[:-1], FULL], norms=4, gate="full",
    extra=lambda _config, layer: parameter("self_attn.gate_bias", dims_of(layer).num_attention_heads),
    experts=Experts(sparse=build.sparse_by_types(3, None)),
)  # fmt: skip
AFMOE: Final = replace(
    HEAD_NORM, types=build.last_of(4, "global_attn_every_n_layers"), norms=4, gate="full",
    experts=Experts(
        router="router.gate", shared=build.times("num_shared_experts"), sparse=build.sparse_after("num_dense_layers"),
        extra=lambda config: parameter("mlp.expert_bias", config.integer("num_experts")),
    ),
)  # fmt: skip
ARIA: Final = replace(
    ATTENTION_BIAS,
    experts=Experts(
        count="moe_num_experts", per_token="moe_topk", width="intermediate_size", router="router",
        shared=build.times("moe_num_shared_experts", "intermediate_size"), shared_bias="mlp_bias",
    ),
)  # fmt: skip
ERNIE_VL_MOE: Final = Decoder(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", mlps=_ernie_vl)
ERNIE_MOE: Final = replace(
    ERNIE_VL_MOE, types=build.by_window("moe_layer_start_index", "moe_layer_end_index"), head_bias="use_bias", mlps=None,
    experts=Experts(
        count="moe_num_experts", per_token="moe_k", shared=build.times("moe_num_shared_experts"), shared_bias="use_bias",
        sparse=_ernie_sparse,
        extra=lambda config: parameter("mlp.moe_statics.e_score_correction_bias", config.integer("moe_num_experts")),
    ),
)  # fmt: skip
COHERE2_MOE: Final = replace(
    ATTENTION_BIAS, types=_cohere2_moe_types, norm="scale", norms=1,
    width=lambda config: config.maybe_integer("prefix_dense_intermediate_size") or config.integer("intermediate_size"),
    experts=Experts(
        width="intermediate_size", shared=build.times("num_shared_experts", "intermediate_size"), sparse=build.sparse_by_types()
    ),
)  # fmt: skip
OLMOE: Final = replace(OLMO2, experts=Experts(width="intermediate_size"))
LLAMA4: Final = replace(
    ATTENTION_BIAS, types=_llama4_types, mlp="feed_forward", width="intermediate_size_mlp",
    experts=replace(
        _LOCAL, path="feed_forward", router="router", shared=build.width("intermediate_size"), shared_path="shared_expert",
        sparse=_llama4_sparse,
    ),
)  # fmt: skip
MUSE_SPARK: Final = replace(
    ATTENTION_BIAS,
    types=every_fourth_from_the_end,
    norms=3,
    gate="full",
    tied=build.untied,
    extra=_residual_gates,
    mlps=_muse_spark,
)
DOGE: Final = replace(HEAD_NORM, mlp_bias="mlp_bias", extra=_doge_extra, mlps=_doge)

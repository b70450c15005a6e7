"""Documents of several parts: which towers stand beside the language model, and what joins them to it.

A spec lists the towers, each with its config key, its name in the model and its projector: linear layers, norms and
convolutions, or query transformers, resamplers and small transformers. Some documents have more: heads that draw or speak, and a
second language model. It mirrors the model's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from hwcalc.formulas import weights as w
from hwcalc.formulas.weights import Block, Part, WeightRole
from hwcalc.parsers.beside import (
    JOINT,
    PATH,
    Joined,
    Piece,
    beside,
    chain,
    matrix,
    merged,
    normed,
    shuffled,
    size_of,
    times,
    vector,
    wrapper,
)
from hwcalc.parsers.blocks import Weighed, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.versions import minicpm_version
from hwcalc.parsers.registry import find_family
from hwcalc.parsers.towers import build
from hwcalc.parsers.towers.build import LLAMA, LLAMA_NAMES, UnknownTowerError


def _gemma4(joined: Joined) -> int:
    keys = ("output_proj_dims", "mm_embed_dim", "audio_embed_dim", "hidden_size")
    width = next((width for key in keys if (width := joined.tower.maybe_integer(key)) is not None), None)
    if width is None:
        raise joined.tower.missing("hidden_size")
    return width


def _soft_and_hard(path: str) -> Piece:
    """Gemma 3n: the tokens of one sense have a table of their own, and both these and the tower's vectors are projected."""

    def weigh(joined: Joined) -> Weighed:
        width = joined.width
        weights = w.embedding(f"{path}.embedding", joined.tower.integer("vocab_size"), width)
        weights += build.norms("rms", path, ("hard_embedding_norm", "soft_embedding_norm"), width)
        return weights + w.linear(f"{path}.embedding_projection", width, joined.out)

    return weigh


def _features(joined: Joined) -> int:
    """The width of the outputs of several layers of the tower, side by side."""
    layers = joined.top.get("vision_feature_layer")
    return joined.width * (max(1, len(layers)) if isinstance(layers, (list, tuple)) else 1)


_INNER: Final = "top.projector_hidden_size"


def _swiglu(joined: Joined) -> Weighed:
    """Aya and Command A Vision: half of the first layer's output gates the other half."""
    middle = joined.top.maybe_integer("alignment_intermediate_size") or joined.out
    first = w.linear(f"{PATH}.linear_1", size_of(joined, _DOWN), middle, bias=True)
    return first + w.linear(f"{PATH}.linear_2", middle // 2, joined.out, bias=True)


def _kimi(joined: Joined) -> Weighed:
    """Two layers over a square of patches, behind a norm over each patch."""
    down, across = build.pair(joined.tower, "merge_kernel_size")
    square = joined.width * down * across
    weights = w.layer_norm("mm_projector.pre_norm", joined.top.integer("projection_hidden_size"))
    return weights + build.mlp_chain("mm_projector", (square, square, joined.out), ("in_proj", "out_proj"))


def _kimi_vl(joined: Joined) -> Weighed:
    """The same with other names. The square is 2 x 2 where the file does not say."""
    down, across = build.pair(joined.tower, "merge_kernel_size") if joined.tower.has("merge_kernel_size") else (2, 2)
    square = joined.width * down * across
    chain = build.mlp_chain(PATH, (square, square, joined.out), ("linear_1", "linear_2"))
    return w.layer_norm(f"{PATH}.pre_norm", joined.width) + chain


def _minicpm(joined: Joined) -> Weighed:
    """MiniCPM-V: each step makes one token of four. The last step puts out vectors as wide as the language model."""
    steps, four = joined.top.integer("merger_times", maximum=100), 4 * joined.width
    weights: Weighed = ()
    for step in range(steps):
        sizes = (four, four, joined.out if step == steps - 1 else joined.width)
        weights += w.layer_norm("merger.mlp.pre_norm", four) + build.mlp_chain("merger.mlp", sizes, ("linear_1", "linear_2"))
    return weights


def _resampler(joined: Joined) -> Weighed:
    """Ernie 4.5 VL: patches are merged, then frames, then a matrix projects them."""
    space = joined.width * joined.tower.integer("spatial_merge_size") ** 2
    time = space * joined.tower.integer("temporal_merge_size")
    weights: Weighed = ()
    for name, source in (("spatial_linear", space), ("temporal_linear", time)):
        base = f"resampler_model.{name}"
        weights += build.mlp_chain(base, (source, space, space), ("fc1", "fc2")) + w.layer_norm(f"{base}.ln", space)
    return weights + w.linear("resampler_model.mlp", space, joined.out, bias=True)


def _no_parakeet(joined: Joined) -> Weighed:
    if joined.top.get("audio_config") is not None or joined.top.get("sound_config") is not None:
        # There are no weights here for a Parakeet encoder as a tower.
        raise UnknownTowerError("parakeet_encoder")
    return ()


def _before_several_tokens(joined: Joined) -> Weighed:
    """If the language model predicts several tokens, a norm precedes the projector."""
    several = joined.language.maybe_integer("num_nextn_predict_layers", minimum=0)
    return w.layer_norm("vision_final_layernorm", joined.top.integer("vision_hidden_size")) if several else ()


def _upsampler(joined: Joined) -> Weighed:
    """GOT-OCR: two strided convolutions, then a linear layer."""
    source = joined.tower.integer("output_channels")
    weights = build.conv(f"{PATH}.conv_upsampler1", 2 * source, source, 3, 3, bias=False)
    return weights + build.conv(f"{PATH}.conv_upsampler2", joined.out, 2 * source, 3, 3, bias=False)


def _unlimited_ocr(joined: Joined) -> int:
    sam, encoder = build.needed(joined.tower, "sam_config"), build.needed(joined.tower, "encoder_config")
    return (sam.integers("downsample_channels", length=2, minimum=1) or [512, 1024])[-1] + encoder.integer("hidden_size")


def _molmo2(joined: Joined) -> Weighed:
    """Molmo 2: patches attend to their window, then pass a gated MLP. The adapter has a config of its own."""
    adapter = build.needed(joined.top, "adapter_config")
    layers = adapter.sequence("vision_feature_layer") or (24, 18)
    width, heads, kv_heads = build.integers(adapter, "hidden_size", "num_attention_heads", "num_key_value_heads")
    head_dim, bias = adapter.maybe_integer("head_dim") or width // heads, adapter.flag("attention_bias")
    source, middle = width * len(layers), adapter.integer("intermediate_size")
    pooling, projector = f"{PATH}.image_pooling_2d", f"{PATH}.image_projector"
    weights = w.linear(f"{pooling}.q_proj", source, heads * head_dim, bias=bias)
    weights += build.linears(pooling, ("k_proj", "v_proj"), source, kv_heads * head_dim, bias=bias)
    weights += w.linear(f"{pooling}.o_proj", heads * head_dim, width, bias=bias)
    weights += build.linears(projector, ("gate_proj", "up_proj"), width, middle, bias=adapter.flag("mlp_bias"))
    return weights + w.linear(f"{projector}.down_proj", middle, adapter.integer("text_hidden_size"))


def _aria(joined: Joined) -> Weighed:
    """Aria: learned queries attend to the patches. There are as many as the largest image gets."""
    width, text, attend, key = joined.width, joined.out, f"{PATH}.cross_attn", "projector_patch_to_query_dict"
    queries, given = joined.top.maybe_integer(f"max_value_{key}"), joined.top.get(key)
    if queries is None and given is not None:
        if not isinstance(given, dict) or not given:
            raise joined.top.error(key, given, "an object of patches and queries")
        queries = max(joined.top.checked_integer(key, value) for value in given.values())
    weights = w.parameter(f"{PATH}.query", queries or 256, width) + build.linears(attend, LLAMA_NAMES[:3], width, width)
    weights += w.parameter(f"{attend}.multihead_attn.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR)
    weights += w.parameter(f"{attend}.multihead_attn.in_proj_bias", 3 * width, role=WeightRole.BIAS)
    weights += build.linears(attend, ("multihead_attn.out_proj", "linear"), width, width, bias=True)
    weights += build.norms("layer", PATH, ("cross_attn.layer_norm", "cross_attn.layer_norm_kv", "layer_norm"), width)
    return weights + build.mlp_chain(f"{PATH}.feed_forward", (width, text, text), ("linear_in", "linear_out"), bias=False)


def _blip2(joined: Joined) -> tuple[Block, ...]:
    """BLIP-2 and InstructBLIP. The query transformer of InstructBLIP reads the instruction as well."""
    former = build.needed(joined.top, "qformer_config", encoder_hidden_size=joined.width)
    width = former.integer("hidden_size")
    out = build.tower(former, "qformer")
    ends = w.parameter("query_tokens", joined.top.integer("num_query_tokens"), width)
    ends += w.linear("language_projection", width, joined.out, bias=True)
    if joined.top.model_type != "blip-2":
        ends += w.embedding("qformer.embeddings.word_embeddings", former.integer("vocab_size"), width)
        ends += w.embedding("qformer.embeddings.position_embeddings", former.integer("max_position_embeddings"), width)
    return (*out, *build.block("projector", ends, JOINT))


def _granite_speech(joined: Joined) -> Weighed:
    """Granite Speech: a query transformer that reads each window of audio."""
    width = joined.width
    queries = joined.top.integer("window_size") // joined.top.integer("downsample_rate")
    return w.parameter("projector.query", queries, width) + w.linear("projector.linear", width, joined.out, bias=True)


def _idefics2(joined: Joined) -> tuple[Block, ...]:
    """Idefics 2: a gated MLP, then a perceiver with latents that attend to the patches."""
    text, middle = joined.out, joined.language.integer("intermediate_size")
    config = build.needed(joined.top, "perceiver_config", hidden_size=text)
    base = "connector.modality_projection"
    mlp = build.linears(base, ("gate_proj", "up_proj"), joined.width, middle) + w.linear(f"{base}.down_proj", middle, text)
    own, base = config.integer("hidden_size"), "connector.perceiver_resampler"
    heads, kv_heads = config.integer("resampler_n_heads"), config.integer("num_key_value_heads")
    layer = w.attention(own, heads, kv_heads, config.integer("resampler_head_dim"), path=f"{base}.layers.self_attn")
    layer += w.gated_mlp(own, 4 * own, path=f"{base}.layers.mlp")
    layer += build.norms("rms", f"{base}.layers", ("input_latents_norm", "input_context_norm", "post_attention_layernorm"), own)
    ends = w.parameter(f"{base}.latents", config.integer("resampler_n_latents"), own) + w.rms_norm(f"{base}.norm", own)
    return (
        *build.block("projector", mlp, JOINT),
        *build.block("resampler", layer, JOINT, config.number_of_layers("resampler_depth")),
        *build.block("latents", ends, JOINT),
    )


def _kosmos(joined: Joined) -> Weighed:
    """Kosmos-2 and 2.5: latent queries attend to the patches."""
    text, base = joined.out, "image_to_text_projection"
    weights = w.parameter(f"{base}.latent_query", joined.top.integer("latent_query_num"), text)
    weights += w.linear(f"{base}.dense", joined.width, text, bias=True)
    return weights + build.linears(f"{base}.x_attn", ("k_proj", "v_proj", "q_proj", "out_proj"), text, text, bias=True)


def _fun_asr(joined: Joined) -> tuple[Block, ...]:
    """Fun-ASR: two linear layers and a small transformer between the tower and the language model."""
    adaptor = build.needed(joined.top, "adaptor_config")
    width = adaptor.integer("hidden_size")
    sizes = (joined.width, adaptor.integer("projector_hidden_size"), width)
    layer = build.encoder_layer(adaptor, LLAMA, f"{PATH}.layers", width, adaptor.integer("intermediate_size"))
    return (
        *build.block("projector", build.mlp_chain(PATH, sizes, ("linear_1", "linear_2")), JOINT),
        *build.block("projector layer", layer, JOINT, adaptor.number_of_layers()),
    )


def _deepseek_hybrid(joined: Joined) -> tuple[Block, ...]:
    """DeepSeek-VL: a SigLIP tower for the image, a SAM tower for its details, and a neck after the SAM tower."""
    plain, detail = joined.towers
    text, channels = joined.out, detail.integer("output_channels")
    weights = (
        *build.neck("high_res_vision_neck", detail.integer("hidden_size"), channels),
        *build.conv("high_res_vision_proj.conv1", 2 * channels, channels, 3, 3, bias=False),
        *build.conv("high_res_vision_proj.conv2", 4 * channels, 2 * channels, 3, 3, bias=False),
        *w.parameter("high_res_vision_alpha", 1),
    )
    aligner = (
        *w.linear("aligner.vision_proj", plain.integer("hidden_size"), text // 2, bias=True),
        *w.linear("aligner.high_res_vision_proj", 4 * channels, text // 2, bias=True),
        *w.linear("aligner.proj", text, text, bias=True),
    )
    return (*build.block("neck", weights), *build.block("projector", aligner, JOINT))


_IMAGE: Final = "embed_tokens_extend.image_embed"
_SOUND: Final = "embed_tokens_extend.audio_embed"


def _phi4(joined: Joined) -> Weighed:
    seen, heard = joined.towers
    width, text = seen.integer("hidden_size"), joined.out
    weights = (
        *w.parameter(f"{_IMAGE}.global_img_feature_extensor", width),
        *w.parameter(f"{_IMAGE}.sub_img_feature_extensor", width),
        *build.mlp_chain(_IMAGE, (width, text, text), ("img_projection_up", "img_projection_down")),
    )
    source = heard.integer("hidden_size") * heard.integer("downsample_rate")
    for name in ("speech", "vision_speech"):
        weights += build.mlp_chain(_SOUND, (source, text, text), (f"up_proj_for_{name}", f"down_proj_for_{name}"))
    return weights


# Phi-3 and 3.5 vision: CLIP and two layers that read squares of 2 x 2 patches, as in vLLM's ``phi3v.py``. The file names the tower,
# and the code has its shape.

_SEEN: Final = "model.vision_embed_tokens"
_CLIP_LARGE: Final = {
    "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "num_attention_heads": 16, "num_channels": 3,
    "num_hidden_layers": 24, "patch_size": 14,
}  # fmt: skip


def phi3_vision(top: Config, language: Config) -> tuple[Block, ...] | None:
    """The tower and the projector; ``None`` for a form that no published model has."""
    processor, layer = top.sub("img_processor"), top.sub("embd_layer")
    if processor is None or layer is None or not layer.flag("use_hd_transform") or layer.text("projection_cls") != "mlp":
        return None
    if processor.text("name") != "clip_vision_model":
        return None
    square, text = 4 * processor.integer("image_dim_out"), language.integer("hidden_size")
    separators = w.parameter(f"{_SEEN}.glb_GN", square) + w.parameter(f"{_SEEN}.sub_GN", square)
    projection = build.mlp_chain(f"{_SEEN}.img_projection", (square, text, text), ("0", "2"))
    clip = build.tower(Config(_CLIP_LARGE, "clip_vision_model"), f"{_SEEN}.img_processor")
    return (*clip, *build.block("projector", separators + projection, JOINT))


# dots.ocr: a tower like that of Qwen2.5-VL, as in vLLM's ``dots_ocr.py``; its class, which lives with the model, has these defaults.

_DOTS_VIT: Final = {
    "embed_dim": 1536, "hidden_size": 1536, "intermediate_size": 4224, "num_attention_heads": 12, "num_channels": 3,
    "num_hidden_layers": 42, "patch_size": 14, "post_norm": True, "spatial_merge_size": 2, "use_bias": False,
}  # fmt: skip


def _seen_by(top: Config, model_type: str, defaults: Mapping[str, object]) -> Config:
    """The config of the vision tower, with the defaults of a class that lives with the model."""
    given = top.get("vision_config", {})
    if not isinstance(given, Mapping):
        raise top.error("vision_config", given, "an object")
    return Config({**defaults, **given}, model_type, "vision_config")


def dots_ocr(top: Config, _language: Config) -> tuple[Block, ...]:
    """The tower, whose merger makes vectors as wide as the language model."""
    return build.tower(_seen_by(top, "dots_vit", _DOTS_VIT), "vision_tower")


# MiniCPM-V from 2.5 on: Idefics 2's tower and a resampler, as in vLLM's ``minicpmv.py``; the defaults are the class's own.

_SIGLIP_980: Final = {
    "hidden_size": 1152, "image_size": 980, "intermediate_size": 4304, "num_attention_heads": 16, "num_channels": 3,
    "num_hidden_layers": 27, "patch_size": 14,
}  # fmt: skip


def minicpmv(top: Config, language: Config) -> tuple[Block, ...] | None:
    """The tower and the resampler, whose queries attend to all patches; ``None`` for 2.0, which has another tower."""
    if minicpm_version(top) == "2.0":
        return None
    config = _seen_by(top, "idefics2_vision", _SIGLIP_980)
    if top.flag("drop_vision_last_layer"):
        config = Config({**config.raw, "num_hidden_layers": config.integer("num_hidden_layers") - 1}, config.model_type)
    source, width, base = config.integer("hidden_size"), language.integer("hidden_size"), "resampler"
    weights = w.parameter(f"{base}.query", top.maybe_integer("query_num") or 64, width)
    weights += w.linear(f"{base}.kv_proj", source, width) if source != width else ()
    weights += w.parameter(f"{base}.attn.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR)
    weights += w.parameter(f"{base}.attn.in_proj_bias", 3 * width, role=WeightRole.BIAS)
    weights += w.linear(f"{base}.attn.out_proj", width, width, bias=True)
    weights += build.norms("layer", base, ("ln_q", "ln_kv", "ln_post"), width)
    weights += w.parameter(f"{base}.proj", width, width, role=WeightRole.LINEAR)
    return (*build.tower(config, "vpm"), *build.block("resampler", weights, JOINT))


def keye(top: Config, language: Config) -> tuple[Block, ...]:
    """Keye-VL: SigLIP without its head, and two layers over squares of four patches. 1.5 has its norm behind the merging."""
    config = _seen_by(top, "keye_vision", {})
    width = config.integer("hidden_size")
    weights = w.layer_norm("mlp_AR.pre_norm", width if top.model_type in ("Keye", "keye") else 4 * width)
    sizes = (4 * width, 4 * width, language.integer("hidden_size"))
    weights += build.mlp_chain("mlp_AR", sizes, ("linear_1", "linear_2"))
    return (*build.tower(config, "visual.vision_model"), *build.block("projector", weights, JOINT))


_SOUND_KEYS: Final = {
    "attention_dim": "hidden_size", "attention_heads": "num_attention_heads", "linear_units": "intermediate_size",
    "num_blocks": "num_blocks", "input_size": "input_size", "kernel_size": "kernel_size", "time_reduction": "time_reduction",
    "ext_pw_out_channel": "ext_pw_out_channel", "depthwise_multiplier": "depthwise_multiplier",
    "depthwise_seperable_out_channel": "depthwise_separable_out_channel",
}  # fmt: skip
"""What Phi-4-multimodal's own file calls the keys of the tower for sound in transformers' class."""


def phi4mm(top: Config, language: Config) -> tuple[Block, ...] | None:
    """The towers of transformers' ``phi4_multimodal``, by the keys of the model's own file; ``None`` for an unpublished form."""
    processor = top.sub("audio_processor")
    sound = None if processor is None else processor.sub("config")
    if processor is None or sound is None or processor.text("name") != "cascades":
        return None
    bias, stem = sound.sub("relative_attention_bias_args"), sound.sub("nemo_conv_settings")
    if bias is None or stem is None or bias.text("type") != "t5":
        return None
    heard = {ours: sound.integer(theirs) for theirs, ours in _SOUND_KEYS.items()}
    heard |= {"bias_max_distance": bias.integer("t5_bias_max_distance"), "nemo_conv_channels": stem.integer("conv_channels")}
    return PHI4(Config({**top.raw, "vision_config": {}, "audio_config": heard}, "phi4_multimodal"), language)


def _aligner(path: str, source: int, width: int, count: int) -> Weighed:
    """A linear layer, and ``count - 1`` more of the same width."""
    more = w.linear(f"{path}.hidden_layers", width, width, bias=True)
    return w.linear(f"{path}.fc1", source, width, bias=True) + build.copied(more, count - 1)


def _seeing(joined: Joined) -> Weighed:
    return _aligner("aligner", joined.width, joined.tower.integer("projection_dim"), joined.tower.number_of_layers("depth"))


def _drawing(joined: Joined) -> tuple[Block, ...]:
    vq = joined.tower
    words, code, width = build.integers(vq, "num_embeddings", "embed_dim", "projection_dim")
    weights = (
        *w.embedding("generation_embeddings", words, code),
        *_aligner("generation_aligner", code, width, vq.number_of_layers()),
        *w.linear("generation_head.proj_out", vq.integer("image_token_embed_dim"), width, bias=True),
        *w.linear("generation_head.vision_head", width, words, bias=True),
    )
    return build.block("drawing", weights, JOINT)


def _connector(path: str, tokeniser: Config, out: int, names: tuple[str, str, str]) -> Weighed:
    first, middle, last = names
    weights = w.linear(f"{path}.{first}", tokeniser.integer("hidden_size"), out, bias=True) + w.rms_norm(f"{path}.{middle}", out)
    return weights + w.linear(f"{path}.{last}", out, out, bias=True)


def _speaking(joined: Joined) -> tuple[Block, ...]:
    acoustic, semantic = joined.towers
    text, names = joined.out, ("linear_1", "act", "linear_2")
    weights = _connector(PATH, acoustic, text, names) + _connector("semantic_connector", semantic, text, names)
    weights += w.parameter("latent_factors", 2)
    sizes = {"hidden_size": text, "latent_size": acoustic.integer("hidden_size")}
    config, base = build.needed(joined.top, "diffusion_head_config", **sizes), "diffusion_head"
    width, latent, middle = build.integers(config, "hidden_size", "latent_size", "intermediate_size")
    layer = w.gated_mlp(width, middle, bias=config.flag("mlp_bias"), path=f"{base}.layers.ffn")
    layer += w.rms_norm(f"{base}.layers.norm", width) + w.linear(f"{base}.layers.linear", width, 3 * width)
    ends = w.linear(f"{base}.noisy_images_proj", latent, width) + w.linear(f"{base}.cond_proj", width, width)
    ends += w.linear(f"{base}.timestep_proj.fc1", config.integer("frequency_embedding_size"), width)
    ends += w.linear(f"{base}.timestep_proj.fc2", width, width) + w.linear(f"{base}.final_layer.linear_1", width, 2 * width)
    ends += w.linear(f"{base}.final_layer.linear_2", width, latent)
    blocks = build.block("projector", weights, JOINT) + build.block("diffusion layer", layer, JOINT, config.number_of_layers())
    return blocks + build.block("diffusion ends", ends, JOINT)


def _hearing(joined: Joined) -> Weighed:
    weights: Weighed = ()
    for kind, tokeniser in zip(("acoustic", "semantic"), joined.towers, strict=True):
        weights += _connector(PATH, tokeniser, joined.out, (f"{kind}_linear_1", f"{kind}_norm", f"{kind}_linear_2"))
    return weights


def qwen_omni(top: Config, language: Config) -> tuple[Block, ...]:
    """All parts of Qwen2.5-Omni except the thinker's language model."""
    thinker = top.sub("thinker_config") or top.retyped("qwen2_5_omni_thinker")
    out = build.tower(build.needed(thinker, "audio_config"), "thinker.audio_tower")
    out += build.tower(build.needed(thinker, "vision_config"), "thinker.visual")
    if tied_head(language, top) and not tied_head(language, thinker):
        # The thinker's own config decides whether its head is tied, not that of the whole model.
        width = language.integer("hidden_size")
        head = w.linear("thinker.lm_head", width, language.integer("vocab_size"), role=WeightRole.HEAD)
        out += build.block("head", head, Part.LANGUAGE)
    if not top.flag("enable_audio_output"):
        return out
    vocoder = build.needed(top, "token2wav_config")
    out += build.tower(build.needed(top, "talker_config"), "talker")
    for key in ("dit", "bigvgan"):
        out += build.tower(build.needed(vocoder, f"{key}_config"), f"token2wav.code2wav_{key}_model")
    return out


def pi0(top: Config, language: Config) -> tuple[Block, ...] | None:
    """Everything except the language model of its PaliGemma."""
    vlm = top.sub("vlm_config") or top.retyped("paligemma")
    expert = build.needed(top, "dit_config", vocab_size=language.integer("vocab_size"))
    family = find_family("gemma")
    around = PALIGEMMA(vlm, language) if vlm.model_type == "paligemma" else None
    if around is None or expert.model_type != "gemma" or family is None:
        return None
    actor = family.weigh(expert, expert, family.read(expert)) or ()
    width, (actions, states) = expert.integer("hidden_size"), build.integers(top, "max_action_dim", "max_state_dim")
    base = "embed_action_time"
    ends = w.linear(f"{base}.action_in_proj", actions, width, bias=True) + w.linear(
        f"{base}.state_proj", states, width, bias=True
    )
    ends += w.linear(f"{base}.action_time_mlp_in", 2 * width, width, bias=True)
    ends += w.linear(f"{base}.action_time_mlp_out", width, width, bias=True)
    ends += w.linear("action_out_proj", width, actions, bias=True)
    for piece in actor:
        if piece.kind != "head":
            around += build.block(f"action {piece.kind}", piece.weights, JOINT, piece.count)
    return (*around, *build.block("actions", ends, JOINT))


def _word_times(joined: Joined) -> tuple[Block, ...]:
    width, words, factor = build.integers(joined.tower, "hidden_size", "vocab_size", "upsampling_factor")
    weights = build.conv("word_timestamp_encoder.upsampler", width, width, factor) + build.conv(
        "word_timestamp_head", words, width, 1
    )
    return build.block("word times", weights, JOINT)


vision: Final = partial(beside, "vision_config", path="vision_tower")
audio: Final = partial(beside, "audio_config", path="audio_tower")
TOWER: Final = wrapper(vision())
TOLD_TOWER: Final = wrapper(vision(), told_width=True)
VISUAL: Final = wrapper(vision(path="visual"))
VISION_MODEL: Final = wrapper(vision(path="vision_model"))
VISION_AND_AUDIO: Final = wrapper(vision(), audio())
TOLD_VISION_AND_AUDIO: Final = wrapper(vision(), audio(), told_width=True)
AUDIO_AND_VISUAL: Final = wrapper(audio(), vision(path="visual"))
KYUTAI: Final = wrapper(beside("codec_config", path="codec_model"))
APERTUS: Final = wrapper(vision(path="vision_tokenizer"), audio(path="audio_tokenizer"))
OMNIASR: Final = wrapper(audio(matrix("tower")))
CODEBOOK: Final = wrapper(beside("vq_config", path="vqmodel"))
PALIGEMMA: Final = wrapper(vision(matrix("tower", "top.projection_dim", path=f"{PATH}.linear")))
LLAMA4: Final = wrapper(vision(matrix("tower.vision_output_dim", bias=False, path=f"{PATH}.linear_1"), path="vision_model"))
MLLAMA: Final = wrapper(vision(matrix("tower.vision_output_dim"), path="vision_model"))
HYPERCLOVAX: Final = wrapper(vision(matrix("tower.out_hidden_size", path="projector"), path="vision_model"))
IDEFICS3: Final = wrapper(
    vision(matrix(merged("top.scale_factor"), bias=False, path="connector.modality_projection.proj"), path="vision_model")
)
STEP: Final = wrapper(vision(matrix(times("tower", 4), bias="projector_bias"), path="vision_model"))
QWEN2_AUDIO: Final = wrapper(audio(matrix("tower", path=f"{PATH}.linear")))
OVIS: Final = wrapper(vision(
    lambda joined: w.embedding(
        "visual_embeddings_table", joined.tower.integer("vocab_size"), joined.top.integer("hidden_size")
    )
))  # fmt: skip
GEMMA3: Final = wrapper(vision(
    lambda joined: w.parameter(f"{PATH}.mm_input_projection_weight", joined.width, joined.out),
    normed("tower", f"{PATH}.mm_soft_emb_norm", kind="rms"),
))  # fmt: skip
GEMMA4: Final = wrapper(
    vision(matrix(_gemma4, bias=False, path="embed_vision.embedding_projection")),
    audio(matrix(_gemma4, bias=False, path="embed_audio.embedding_projection")),
)
GEMMA3N: Final = wrapper(vision(_soft_and_hard("embed_vision")), audio(_soft_and_hard("embed_audio")))
_LLAVA: Final = chain(_features, "text", "text", bias="multimodal_projector_bias")
LLAVA: Final = wrapper(vision(_LLAVA))
LLAVA_NEXT: Final = wrapper(vision(_LLAVA, vector("image_newline")))
# One projector for both towers.
VIDEO_LLAVA: Final = wrapper(vision(_LLAVA, path="video_tower"), vision(path="image_tower"))
VIPLLAVA: Final = wrapper(vision(normed(_features, f"{PATH}.projector_layernorm"), chain(_features, "text", "text")))
MISTRAL3: Final = wrapper(vision(
    normed("tower", f"{PATH}.norm", kind="rms"),
    matrix(merged("top.spatial_merge_size"), "tower", bias=False, path=f"{PATH}.patch_merger.merging_layer"),
    _LLAVA,
))  # fmt: skip
LIGHTON: Final = wrapper(vision(
    normed("tower", "vision_projection.norm", kind="rms"),
    matrix(merged("top.spatial_merge_size"), "tower", bias=False, path="vision_projection.patch_merger.merging_layer"),
    chain("tower", "text", "text", bias=False, path="vision_projection"),
    path="vision_encoder",
))  # fmt: skip
FLAMINGO: Final = wrapper(audio(chain("tower", "text", "text", bias="projector_bias")))
GLM_ASR: Final = wrapper(audio(chain("tower.intermediate_size", times("text", 2), "text")))
MOSS: Final = wrapper(
    audio(chain(times("tower", "top.audio_merge_size"), "text", "text", bias="projector_bias"), normed("text", f"{PATH}.norm"))
)
QWEN3_ASR: Final = wrapper(audio(chain("tower", "tower", "tower.output_dim")))
VOXTRAL: Final = wrapper(audio(chain("tower.intermediate_size", "text", "text", bias=False)))
VOXTRAL_REALTIME: Final = wrapper(audio(chain(times("tower", "top.downsample_factor"), "text", "text", bias=False)))
DEEPSEEK: Final = wrapper(
    vision(chain("tower", "text", "text", names=("linear1", "linear2"), path="aligner"), path="vision_model")
)
VIDEO_LLAMA: Final = wrapper(
    vision(chain("tower", "text", "text", names=("readout.0", "readout.2"), path="projector"), path="vision_model")
)
INTERNVL: Final = wrapper(vision(normed(shuffled("tower")), chain(shuffled("tower"), "text", "text")))
_SQUARE: Final = merged("tower.spatial_merge_size")
_DOWN: Final = merged("top.downsample_factor")
COSMOS_EDGE: Final = wrapper(vision(
    normed("tower", "projector.norm"),
    chain(_SQUARE, _INNER, "text", names=("linear_fc1", "linear_fc2"), path="projector"),
    path="visual",
))  # fmt: skip
PADDLE: Final = wrapper(
    vision(normed("tower", "projector.pre_norm"), chain(_SQUARE, _SQUARE, "text", path="projector"), path="visual")
)
LFM2: Final = wrapper(
    vision(normed(_DOWN, switch="projector_use_layernorm"), chain(_DOWN, _INNER, "text", bias="projector_bias"))
)
LFM3: Final = wrapper(vision(normed("tower"), chain(_SQUARE, _INNER, "text", bias="projector_bias")))
MINIMAX: Final = wrapper(vision(
    chain("tower", _INNER, "text"),
    chain(
        lambda joined: joined.out * joined.tower.integer("spatial_merge_size") ** 2,
        _INNER,
        "text",
        names=("merge_linear_1", "merge_linear_2"),
    ),
))  # fmt: skip
_MUSE: Final = vision(
    chain("top.out_hidden_size", _INNER, _INNER, names=("fc1", "fc2"), bias=False, path="vision_adapter"),
    matrix(_INNER, bias=False, path="vision_projection"),
)
MUSE: Final = wrapper(_MUSE)
MUSE_SPARK: Final = wrapper(_MUSE, audio())
AYA: Final = wrapper(vision(normed(_DOWN, f"{PATH}.layernorm"), _swiglu))
COHERE2: Final = wrapper(vision(_swiglu))
KIMI: Final = wrapper(vision(_kimi))
KIMI_VL: Final = wrapper(vision(_kimi_vl))
MINICPM: Final = wrapper(vision(_minicpm))
ERNIE: Final = wrapper(vision(_resampler, normed("text", "resampler_model.after_norm", kind="rms")))
_SHUFFLED: Final = shuffled("top.vision_hidden_size")
_NEMOTRON: Final = (normed(_SHUFFLED, kind="rms"), chain(_SHUFFLED, _INNER, "text", bias=False), _before_several_tokens)
NEMOTRON: Final = wrapper(vision(_no_parakeet, *_NEMOTRON, path="vision_model"))
GOT: Final = wrapper(vision(_upsampler, matrix("text", path=f"{PATH}.multimodal_projector")))
UNLIMITED_OCR: Final = wrapper(vision(matrix(_unlimited_ocr), vector("view_separator"), vector("image_newline")))
MOLMO2: Final = wrapper(vision(_molmo2))
ARIA: Final = wrapper(vision(_aria))
BLIP2: Final = wrapper(vision(path="vision_model", then=_blip2))
GRANITE_SPEECH: Final = wrapper(
    beside("encoder_config", path="encoder"), beside("projector_config", _granite_speech, path="projector.qformer")
)
IDEFICS2: Final = wrapper(vision(path="vision_model", then=_idefics2))
KOSMOS: Final = wrapper(vision(_kosmos, path="vision_model"))
FUN_ASR: Final = wrapper(audio(then=_fun_asr))
DEEPSEEK_HYBRID: Final = wrapper(
    vision(path="vision_model"), beside("high_res_vision_config", path="high_res_vision_model", then=_deepseek_hybrid)
)
PHI4: Final = wrapper(vision(path=f"{_IMAGE}.img_processor"), audio(_phi4, path=f"{_SOUND}.encoder"))
JANUS: Final = wrapper(vision(_seeing, path="vision_model"), beside("vq_config", path="vqmodel", then=_drawing))
VIBEVOICE: Final = wrapper(
    beside("audio_config", path="audio_tower"), beside("semantic_model_config", path="semantic_tokenizer_encoder", then=_speaking)
)
VIBEVOICE_ASR: Final = wrapper(
    beside("acoustic_tokenizer_encoder_config", path="acoustic_tokenizer_encoder"),
    beside("semantic_tokenizer_encoder_config", _hearing, path="semantic_tokenizer_encoder"),
)
NEMOTRON_SPEECH: Final = wrapper(
    audio(matrix(lambda joined: build.needed(joined.tower, "asr_config").integer("hidden_size"))),
    beside("word_timestamp_config", path="word_timestamp_encoder", then=_word_times),
)

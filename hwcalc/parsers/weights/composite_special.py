"""Models of several parts whose joints are models of their own: query transformers, resamplers, tokenisers, second towers.

Each function mirrors the model's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from hwcalc.formulas.weights import (
    Block,
    Part,
    Weight,
    WeightRole,
    attention,
    embedding,
    gated_mlp,
    linear,
    parameter,
    rms_norm,
)
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.towers import (
    Style,
    UnknownTowerError,
    block,
    conv,
    encoder_layer,
    mlp_chain,
    norm,
    sam_neck,
    tower,
)

__all__ = ["blocks"]

_JOINT: Final = Part.PROJECTOR
_SEPARATE: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


def blocks(top: Config, language: Config) -> tuple[Block, ...] | None:
    """Everything beside the language model; ``None`` where a tower is of a type that nobody weighs."""
    try:
        return _TABLE[top.model_type or ""](top, language)
    except UnknownTowerError:
        return None


def _part(top: Config, key: str, **set_by_parent: int) -> Config:
    config = top.part(key, **set_by_parent)
    if config is None:
        raise top.missing(key)
    return config


def _tower(top: Config, key: str, path: str) -> tuple[Config, tuple[Block, ...]]:
    config = _part(top, key)
    return config, tower(config, path)


def _aria(top: Config, language: Config) -> tuple[Block, ...]:
    """Aria: learned queries attend to the patches, as many as the largest image gets."""
    vision, out = _tower(top, "vision_config", "vision_tower")
    width, text, base = vision.integer("hidden_size"), language.integer("hidden_size"), "multi_modal_projector"
    queries = _aria_queries(top)
    attend = f"{base}.cross_attn"
    weights = (
        *parameter(f"{base}.query", queries, width),
        *linear(f"{attend}.q_proj", width, width),
        *linear(f"{attend}.k_proj", width, width),
        *linear(f"{attend}.v_proj", width, width),
        *parameter(f"{attend}.multihead_attn.in_proj_weight", 3 * width, width, role=WeightRole.LINEAR),
        *parameter(f"{attend}.multihead_attn.in_proj_bias", 3 * width, role=WeightRole.BIAS),
        *linear(f"{attend}.multihead_attn.out_proj", width, width, bias=True),
        *linear(f"{attend}.linear", width, width, bias=True),
        *norm(f"{attend}.layer_norm", width),
        *norm(f"{attend}.layer_norm_kv", width),
        *norm(f"{base}.layer_norm", width),
        *mlp_chain(f"{base}.feed_forward", (width, text, text), ("linear_in", "linear_out"), bias=False),
    )
    return (*out, *block("projector", weights, _JOINT))


def _aria_queries(top: Config) -> int:
    most = top.maybe_integer("max_value_projector_patch_to_query_dict")
    given = top.get("projector_patch_to_query_dict")
    if most is not None or given is None:
        return most or 256
    if not isinstance(given, dict) or not given:
        raise top.error("projector_patch_to_query_dict", given, "an object of patches and queries")
    return max(top.checked_integer("projector_patch_to_query_dict", value) for value in given.values())


def _bert_attention(path: str, width: int, source: int) -> tuple[Weight, ...]:
    return (
        *linear(f"{path}.attention.query", width, width, bias=True),
        *linear(f"{path}.attention.key", source, width, bias=True),
        *linear(f"{path}.attention.value", source, width, bias=True),
        *linear(f"{path}.output.dense", width, width, bias=True),
        *norm(f"{path}.output.LayerNorm", width),
    )


def _bert_mlp(path: str, width: int, middle: int, suffix: str) -> tuple[Weight, ...]:
    return (
        *linear(f"{path}.intermediate{suffix}.dense", width, middle, bias=True),
        *linear(f"{path}.output{suffix}.dense", middle, width, bias=True),
        *norm(f"{path}.output{suffix}.LayerNorm", width),
    )


def _qformer(config: Config, path: str, *, reads_text: bool) -> tuple[Block, ...]:
    """BLIP-2's query transformer: some layers attend to the encoder, and text has an MLP of its own where it is read."""
    if config.model_type not in _QFORMERS:
        raise UnknownTowerError(config.model_type)
    width, middle, count = config.integer("hidden_size"), config.integer("intermediate_size"), config.number_of_layers()
    layer = (
        *_bert_attention(f"{path}.encoder.layer.attention", width, width),
        *_bert_mlp(f"{path}.encoder.layer", width, middle, "_query"),
    )
    if reads_text:
        layer += _bert_mlp(f"{path}.encoder.layer", width, middle, "")
    crossing = -(-count // config.integer("cross_attention_frequency"))
    cross = _bert_attention(f"{path}.encoder.layer.crossattention", width, config.integer("encoder_hidden_size"))
    return (
        *block("norm", norm(f"{path}.layernorm", width), _JOINT),
        *block("layer", layer, _JOINT, count),
        *block("cross attention", cross, _JOINT, crossing),
    )


_QFORMERS: Final = {"blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer"}


def _blip2(top: Config, language: Config) -> tuple[Block, ...]:
    """BLIP-2 and InstructBLIP; the latter's query transformer reads the instruction as well."""
    vision, out = _tower(top, "vision_config", "vision_model")
    former = _part(top, "qformer_config", encoder_hidden_size=vision.integer("hidden_size"))
    width = former.integer("hidden_size")
    reads_text = top.model_type != "blip-2"
    out += _qformer(former, "qformer", reads_text=reads_text or former.flag("use_qformer_text_input"))
    ends = (
        *parameter("query_tokens", top.integer("num_query_tokens"), width),
        *linear("language_projection", width, language.integer("hidden_size"), bias=True),
    )
    if reads_text:
        ends += embedding("qformer.embeddings.word_embeddings", former.integer("vocab_size"), width)
        ends += embedding("qformer.embeddings.position_embeddings", former.integer("max_position_embeddings"), width)
    return (*out, *block("projector", ends, _JOINT))


def _granite_speech(top: Config, language: Config) -> tuple[Block, ...]:
    """Granite Speech: a query transformer over each window of audio."""
    _, out = _tower(top, "encoder_config", "encoder")
    former = _part(top, "projector_config")
    width = former.integer("hidden_size")
    out += _qformer(former, "projector.qformer", reads_text=former.flag("use_qformer_text_input"))
    queries = top.integer("window_size") // top.integer("downsample_rate")
    ends = (
        *parameter("projector.query", queries, width),
        *linear("projector.linear", width, language.integer("hidden_size"), bias=True),
    )
    return (*out, *block("projector", ends, _JOINT))


def _idefics2(top: Config, language: Config) -> tuple[Block, ...]:
    """Idefics 2: a gated MLP, then a perceiver whose latents attend to the patches."""
    vision, out = _tower(top, "vision_config", "vision_model")
    text, middle = language.integer("hidden_size"), language.integer("intermediate_size")
    perceiver = _part(top, "perceiver_config", hidden_size=text)
    base, width = "connector.modality_projection", vision.integer("hidden_size")
    mlp = (
        *linear(f"{base}.gate_proj", width, middle),
        *linear(f"{base}.up_proj", width, middle),
        *linear(f"{base}.down_proj", middle, text),
    )
    own, base = perceiver.integer("hidden_size"), "connector.perceiver_resampler"
    layer = (
        *attention(
            own,
            perceiver.integer("resampler_n_heads"),
            perceiver.integer("num_key_value_heads"),
            perceiver.integer("resampler_head_dim"),
            path=f"{base}.layers.self_attn",
        ),
        *gated_mlp(own, 4 * own, path=f"{base}.layers.mlp"),
        *rms_norm(f"{base}.layers.input_latents_norm", own),
        *rms_norm(f"{base}.layers.input_context_norm", own),
        *rms_norm(f"{base}.layers.post_attention_layernorm", own),
    )
    ends = (*parameter(f"{base}.latents", perceiver.integer("resampler_n_latents"), own), *rms_norm(f"{base}.norm", own))
    return (
        *out,
        *block("projector", mlp, _JOINT),
        *block("resampler", layer, _JOINT, perceiver.number_of_layers("resampler_depth")),
        *block("latents", ends, _JOINT),
    )


def _kosmos(top: Config, language: Config) -> tuple[Block, ...]:
    """Kosmos-2 and 2.5: latent queries attend to the patches."""
    vision, out = _tower(top, "vision_config", "vision_model")
    text, base = language.integer("hidden_size"), "image_to_text_projection"
    weights = (
        *parameter(f"{base}.latent_query", top.integer("latent_query_num"), text),
        *linear(f"{base}.dense", vision.integer("hidden_size"), text, bias=True),
    )
    for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
        weights += linear(f"{base}.x_attn.{name}", text, text, bias=True)
    return (*out, *block("projector", weights, _JOINT))


def _deepseek_vl_hybrid(top: Config, language: Config) -> tuple[Block, ...]:
    """DeepSeek-VL: a SigLIP tower for the picture, a SAM one for its details, and a neck for the latter."""
    vision, low = _tower(top, "vision_config", "vision_model")
    detail, high = _tower(top, "high_res_vision_config", "high_res_vision_model")
    text, channels = language.integer("hidden_size"), detail.integer("output_channels")
    neck = (
        *sam_neck("high_res_vision_neck", detail.integer("hidden_size"), channels),
        *conv("high_res_vision_proj.conv1", 2 * channels, channels, 3, 3, bias=False),
        *conv("high_res_vision_proj.conv2", 4 * channels, 2 * channels, 3, 3, bias=False),
        *parameter("high_res_vision_alpha", 1),
    )
    aligner = (
        *linear("aligner.vision_proj", vision.integer("hidden_size"), text // 2, bias=True),
        *linear("aligner.high_res_vision_proj", 4 * channels, text // 2, bias=True),
        *linear("aligner.proj", text, text, bias=True),
    )
    return (*low, *high, *block("neck", neck), *block("projector", aligner, _JOINT))


def _fun_asr(top: Config, language: Config) -> tuple[Block, ...]:
    """Fun-ASR: two linear layers and a small transformer between the tower and the language model."""
    audio, out = _tower(top, "audio_config", "audio_tower")
    adaptor, base = _part(top, "adaptor_config"), "multi_modal_projector"
    width = adaptor.integer("hidden_size")
    sizes = (audio.integer("hidden_size"), adaptor.integer("projector_hidden_size"), width)
    style = Style(names=_SEPARATE, norms=("input_layernorm", "post_attention_layernorm"))
    layer = encoder_layer(adaptor, style, f"{base}.layers", width, adaptor.integer("intermediate_size"))
    return (
        *out,
        *block("projector", mlp_chain(base, sizes, ("linear_1", "linear_2")), _JOINT),
        *block("projector layer", layer, _JOINT, adaptor.number_of_layers()),
    )


def _gemma4(top: Config, language: Config) -> tuple[Block, ...]:
    """Gemma 4: each tower is optional, and has one linear layer to the language model."""
    text = language.integer("hidden_size")
    out: tuple[Block, ...] = ()
    for key, path, name in (
        ("vision_config", "vision_tower", "embed_vision"),
        ("audio_config", "audio_tower", "embed_audio"),
    ):
        config = top.part(key)
        if config is None:
            continue
        out += tower(config, path)
        widths = (config.maybe_integer(width) for width in ("output_proj_dims", "mm_embed_dim", "audio_embed_dim", "hidden_size"))
        source = next((width for width in widths if width is not None), None)
        if source is None:
            raise config.missing("hidden_size")
        out += block("projector", linear(f"{name}.embedding_projection", source, text), _JOINT)
    return out


def _nemotron_omni(top: Config, language: Config) -> tuple[Block, ...]:
    """Nemotron Omni: a RADIO tower, whose features are normalised first where the language model predicts several tokens."""
    _, out = _tower(top, "vision_config", "vision_model")
    if top.get("audio_config") is not None or top.get("sound_config") is not None:
        # A Parakeet encoder, which nobody weighs yet.
        raise UnknownTowerError("parakeet_encoder")
    ratio = top.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise top.error("downsample_ratio", ratio, "more than 0 and at most 1")
    width, base = top.integer("vision_hidden_size"), "multi_modal_projector"
    merged = width * int(1 / ratio) ** 2
    sizes = (merged, top.integer("projector_hidden_size"), language.integer("hidden_size"))
    weights = (*rms_norm(f"{base}.layer_norm", merged), *mlp_chain(base, sizes, ("linear_1", "linear_2"), bias=False))
    if language.maybe_integer("num_nextn_predict_layers", minimum=0):
        weights += norm("vision_final_layernorm", width)
    return (*out, *block("projector", weights, _JOINT))


def _pi0(top: Config, language: Config) -> tuple[Block, ...] | None:
    """π0: PaliGemma, and beside it a smaller Gemma that turns noise into actions."""
    vlm, expert = top.sub("vlm_config"), _part(top, "dit_config", vocab_size=language.integer("vocab_size"))
    vlm = vlm if vlm is not None else top.retyped("paligemma")
    if vlm.model_type != "paligemma" or expert.model_type != "gemma":
        return None
    around = import_module("hwcalc.parsers.weights.composite").blocks(vlm, language)
    if around is None:
        return None
    width = expert.integer("hidden_size")
    actions, states = top.integer("max_action_dim"), top.integer("max_state_dim")
    own = import_module("hwcalc.parsers.weights.decoder_table").blocks(expert, expert)
    ends = (
        *linear("embed_action_time.action_in_proj", actions, width, bias=True),
        *linear("embed_action_time.state_proj", states, width, bias=True),
        *linear("embed_action_time.action_time_mlp_in", 2 * width, width, bias=True),
        *linear("embed_action_time.action_time_mlp_out", width, width, bias=True),
        *linear("action_out_proj", width, actions, bias=True),
    )
    actor = tuple(
        Block(kind=f"action {piece.kind}", weights=piece.weights, part=_JOINT, count=piece.count)
        for piece in own
        if piece.kind != "head"
    )
    return (*around, *actor, *block("actions", ends, _JOINT))


def _nemotron_encoder(config: Config, path: str, *, head_norms: bool, part: Part) -> tuple[Block, ...]:
    """Layers of Nemotron's speech encoders."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads, head_dim = config.maybe_integer("num_key_value_heads") or heads, width // heads
    if head_dim == 0:
        raise config.error("num_attention_heads", heads, f"at most hidden_size ({width})")
    style = Style(names=_SEPARATE, bias=(False, False, False, True), qk_norm="head" if head_norms else "", qk_norm_rms=False)
    layer = encoder_layer(
        config,
        style,
        f"{path}.layers",
        width,
        config.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
    ends = (*norm(f"{path}.input_layer_norm", width), *norm(f"{path}.layer_norm", width))
    return (*block("layer", layer, part, config.number_of_layers()), *block("norm", ends, part))


def _stacking(config: Config, path: str) -> tuple[Block, ...]:
    frames = config.integer("subsampling_factor") * config.integer("num_mel_bins")
    return block("embedding", linear(f"{path}.embedder.projection", frames, config.integer("hidden_size")), Part.AUDIO)


def _nemotron_transcribe(top: Config, language: Config) -> tuple[Block, ...]:
    """Nemotron Transcribe: a speech encoder, one that tells speakers apart, and a head for the times of words."""
    audio, timing = _part(top, "audio_config"), _part(top, "word_timestamp_config")
    speech, speakers = _part(audio, "asr_config"), _part(audio, "diarization_config")
    voices, head = _part(speakers, "audio_config"), _part(speakers, "head_config")
    if speakers.model_type != "nemotron3_diarization":
        raise UnknownTowerError(speakers.model_type)
    out = _stacking(speech, "audio_tower.asr_encoder")
    out += _nemotron_encoder(speech, "audio_tower.asr_encoder", head_norms=True, part=Part.AUDIO)
    base = "audio_tower.diarization_model"
    out += _stacking(voices, f"{base}.model.audio_tower")
    out += _nemotron_encoder(voices, f"{base}.model.audio_tower", head_norms=False, part=Part.AUDIO)
    inner, count, text = head.integer("hidden_size"), head.integer("num_speakers"), language.integer("hidden_size")
    weights = (
        *parameter(f"{base}.silence_embeds", voices.integer("hidden_size")),
        *linear(f"{base}.model.proj", head.integer("audio_hidden_size"), inner, bias=True),
        *conv(f"{base}.model.upsampler.conv", inner * head.integer("subsampling_factor"), inner, 3),
        *linear(f"{base}.classifier.dense", inner, inner, bias=True),
        *linear(f"{base}.classifier.out_proj", inner, count, bias=True),
        *norm("audio_tower.asr_norm", speech.integer("hidden_size")),
        *norm("audio_tower.speaker_norm", count),
    )
    out += block("speakers", weights, Part.AUDIO)
    out += block("projector", linear("multi_modal_projector", speech.integer("hidden_size"), text, bias=True), _JOINT)
    width, words = timing.integer("hidden_size"), timing.integer("vocab_size")
    out += _nemotron_encoder(timing, "word_timestamp_encoder", head_norms=True, part=_JOINT)
    ends = (
        *conv("word_timestamp_encoder.upsampler", width, width, timing.integer("upsampling_factor")),
        *conv("word_timestamp_head", words, width, 1),
    )
    return (*out, *block("word times", ends, _JOINT))


_TABLE: Final[dict[str, Callable[[Config, Config], tuple[Block, ...] | None]]] = {
    "aria": _aria,
    "blip-2": _blip2,
    "deepseek_vl_hybrid": _deepseek_vl_hybrid,
    "fun_asr_nano": _fun_asr,
    "gemma4": _gemma4,
    "gemma4_unified": _gemma4,
    "granite_speech": _granite_speech,
    "granite_speech_plus": _granite_speech,
    "idefics2": _idefics2,
    "instructblip": _blip2,
    "instructblipvideo": _blip2,
    "kosmos-2": _kosmos,
    "kosmos-2.5": _kosmos,
    "nemo_speechlm": _nemotron_transcribe,
    "nemotron_h_omni": _nemotron_omni,
    "pi0": _pi0,
}

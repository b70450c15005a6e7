"""Documents with more than a tower and a projector: second towers, heads that draw or speak, and a second language model."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import Block, Part, WeightRole, embedding, gated_mlp, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed, tied_head
from hwcalc.parsers.config import Config
from hwcalc.parsers.registry import find_family
from hwcalc.parsers.towers.build import block, conv, copied, integers, mlp_chain, needed, tower
from hwcalc.parsers.towers.vit import neck
from hwcalc.parsers.wrappers.joined import JOINT, PALIGEMMA, PATH, Joined, audio, beside, matrix, vision, wrapper


def _deepseek_hybrid(joined: Joined) -> tuple[Block, ...]:
    """DeepSeek-VL: a SigLIP tower for the image, a SAM tower for its details, and a neck after the SAM tower."""
    plain, detail = joined.towers
    text, channels = joined.out, detail.integer("output_channels")
    weights = (
        *neck("high_res_vision_neck", detail.integer("hidden_size"), channels),
        *conv("high_res_vision_proj.conv1", 2 * channels, channels, 3, 3, bias=False),
        *conv("high_res_vision_proj.conv2", 4 * channels, 2 * channels, 3, 3, bias=False),
        *parameter("high_res_vision_alpha", 1),
    )
    aligner = (
        *linear("aligner.vision_proj", plain.integer("hidden_size"), text // 2, bias=True),
        *linear("aligner.high_res_vision_proj", 4 * channels, text // 2, bias=True),
        *linear("aligner.proj", text, text, bias=True),
    )
    return (*block("neck", weights), *block("projector", aligner, JOINT))


_IMAGE: Final = "embed_tokens_extend.image_embed"
_SOUND: Final = "embed_tokens_extend.audio_embed"


def _phi4(joined: Joined) -> Weighed:
    seen, heard = joined.towers
    width, text = seen.integer("hidden_size"), joined.out
    weights = (
        *parameter(f"{_IMAGE}.global_img_feature_extensor", width),
        *parameter(f"{_IMAGE}.sub_img_feature_extensor", width),
        *mlp_chain(_IMAGE, (width, text, text), ("img_projection_up", "img_projection_down")),
    )
    source = heard.integer("hidden_size") * heard.integer("downsample_rate")
    for name in ("speech", "vision_speech"):
        weights += mlp_chain(_SOUND, (source, text, text), (f"up_proj_for_{name}", f"down_proj_for_{name}"))
    return weights


# Phi-3 and 3.5 vision: CLIP and two layers that read squares of 2 x 2 patches, as in vLLM's ``phi3v.py``. The file names the tower,
# and the code has its shape.

_SEEN: Final = "model.vision_embed_tokens"
_CLIP_LARGE: Final = {
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 24,
    "patch_size": 14,
}


def phi3_vision(top: Config, language: Config) -> tuple[Block, ...] | None:
    """The tower and the projector; ``None`` for a form that no published model has."""
    processor, layer = top.sub("img_processor"), top.sub("embd_layer")
    merged = processor is not None and layer is not None and layer.flag("use_hd_transform")
    if processor is None or layer is None or not merged or layer.text("projection_cls") != "mlp":
        return None
    if processor.text("name") != "clip_vision_model":
        return None
    square, text = 4 * processor.integer("image_dim_out"), language.integer("hidden_size")
    separators = parameter(f"{_SEEN}.glb_GN", square) + parameter(f"{_SEEN}.sub_GN", square)
    projection = mlp_chain(f"{_SEEN}.img_projection", (square, text, text), ("0", "2"))
    clip = tower(Config(_CLIP_LARGE, "clip_vision_model"), f"{_SEEN}.img_processor")
    return (*clip, *block("projector", separators + projection, JOINT))


def _aligner(path: str, source: int, width: int, count: int) -> Weighed:
    """A linear layer, and ``count - 1`` more of the same width."""
    more = linear(f"{path}.hidden_layers", width, width, bias=True)
    return linear(f"{path}.fc1", source, width, bias=True) + copied(more, count - 1)


def _seeing(joined: Joined) -> Weighed:
    return _aligner("aligner", joined.width, joined.tower.integer("projection_dim"), joined.tower.number_of_layers("depth"))


def _drawing(joined: Joined) -> tuple[Block, ...]:
    vq = joined.tower
    words, code, width = integers(vq, "num_embeddings", "embed_dim", "projection_dim")
    weights = (
        *embedding("generation_embeddings", words, code),
        *_aligner("generation_aligner", code, width, vq.number_of_layers()),
        *linear("generation_head.proj_out", vq.integer("image_token_embed_dim"), width, bias=True),
        *linear("generation_head.vision_head", width, words, bias=True),
    )
    return block("drawing", weights, JOINT)


def _connector(path: str, tokeniser: Config, out: int, names: tuple[str, str, str]) -> Weighed:
    first, middle, last = names
    weights = linear(f"{path}.{first}", tokeniser.integer("hidden_size"), out, bias=True) + rms_norm(f"{path}.{middle}", out)
    return weights + linear(f"{path}.{last}", out, out, bias=True)


def _speaking(joined: Joined) -> tuple[Block, ...]:
    acoustic, semantic = joined.towers
    text, names = joined.out, ("linear_1", "act", "linear_2")
    weights = _connector(PATH, acoustic, text, names) + _connector("semantic_connector", semantic, text, names)
    weights += parameter("latent_factors", 2)
    sizes = {"hidden_size": text, "latent_size": acoustic.integer("hidden_size")}
    head = needed(joined.top, "diffusion_head_config", **sizes)
    return (*block("projector", weights, JOINT), *_diffusion_head(head, "diffusion_head"))


def _diffusion_head(config: Config, base: str) -> tuple[Block, ...]:
    width, latent, middle = integers(config, "hidden_size", "latent_size", "intermediate_size")
    layer = gated_mlp(width, middle, bias=config.flag("mlp_bias"), path=f"{base}.layers.ffn")
    layer += rms_norm(f"{base}.layers.norm", width) + linear(f"{base}.layers.linear", width, 3 * width)
    ends = linear(f"{base}.noisy_images_proj", latent, width) + linear(f"{base}.cond_proj", width, width)
    ends += linear(f"{base}.timestep_proj.fc1", config.integer("frequency_embedding_size"), width)
    ends += linear(f"{base}.timestep_proj.fc2", width, width) + linear(f"{base}.final_layer.linear_1", width, 2 * width)
    ends += linear(f"{base}.final_layer.linear_2", width, latent)
    return (*block("diffusion layer", layer, JOINT, config.number_of_layers()), *block("diffusion ends", ends, JOINT))


def _hearing(joined: Joined) -> Weighed:
    weights: Weighed = ()
    for kind, tokeniser in zip(("acoustic", "semantic"), joined.towers, strict=True):
        weights += _connector(PATH, tokeniser, joined.out, (f"{kind}_linear_1", f"{kind}_norm", f"{kind}_linear_2"))
    return weights


def qwen_omni(top: Config, language: Config) -> tuple[Block, ...]:
    """All parts of Qwen2.5-Omni except the thinker's language model."""
    thinker = top.sub("thinker_config") or top.retyped("qwen2_5_omni_thinker")
    out = tower(needed(thinker, "audio_config"), "thinker.audio_tower")
    out += tower(needed(thinker, "vision_config"), "thinker.visual")
    if tied_head(language, top) and not tied_head(language, thinker):
        # The thinker's own config decides whether its head is tied, not that of the whole model.
        width = language.integer("hidden_size")
        head = linear("thinker.lm_head", width, language.integer("vocab_size"), role=WeightRole.HEAD)
        out += block("head", head, Part.LANGUAGE)
    if not top.flag("enable_audio_output"):
        return out
    vocoder = needed(top, "token2wav_config")
    out += tower(needed(top, "talker_config"), "talker")
    for key in ("dit", "bigvgan"):
        out += tower(needed(vocoder, f"{key}_config"), f"token2wav.code2wav_{key}_model")
    return out


def pi0(top: Config, language: Config) -> tuple[Block, ...] | None:
    """Everything except the language model of its PaliGemma."""
    vlm = top.sub("vlm_config") or top.retyped("paligemma")
    expert = needed(top, "dit_config", vocab_size=language.integer("vocab_size"))
    family = find_family("gemma")
    around = PALIGEMMA(vlm, language) if vlm.model_type == "paligemma" else None
    if around is None or expert.model_type != "gemma" or family is None:
        return None
    actor = family.weigh(expert, expert, family.read(expert)) or ()
    width, (actions, states) = expert.integer("hidden_size"), integers(top, "max_action_dim", "max_state_dim")
    base = "embed_action_time"
    ends = linear(f"{base}.action_in_proj", actions, width, bias=True) + linear(f"{base}.state_proj", states, width, bias=True)
    ends += linear(f"{base}.action_time_mlp_in", 2 * width, width, bias=True)
    ends += linear(f"{base}.action_time_mlp_out", width, width, bias=True)
    ends += linear("action_out_proj", width, actions, bias=True)
    for piece in actor:
        if piece.kind != "head":
            around += block(f"action {piece.kind}", piece.weights, JOINT, piece.count)
    return (*around, *block("actions", ends, JOINT))


def _word_times(joined: Joined) -> tuple[Block, ...]:
    width, words, factor = integers(joined.tower, "hidden_size", "vocab_size", "upsampling_factor")
    weights = conv("word_timestamp_encoder.upsampler", width, width, factor) + conv("word_timestamp_head", words, width, 1)
    return block("word times", weights, JOINT)


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
NEMOTRON: Final = wrapper(
    audio(matrix(lambda joined: needed(joined.tower, "asr_config").integer("hidden_size"))),
    beside("word_timestamp_config", path="word_timestamp_encoder", then=_word_times),
)

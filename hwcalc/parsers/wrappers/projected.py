"""Documents whose towers are joined by a projector of linear layers, norms and convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hwcalc.formulas.weights import embedding, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
from hwcalc.parsers.config import Config
from hwcalc.parsers.towers.build import UnknownTowerError, conv, integers, linears, mlp_chain, needed, pair
from hwcalc.parsers.wrappers.build import (
    PATH,
    Joined,
    Piece,
    audio,
    beside,
    chain,
    matrix,
    merged,
    normed,
    shuffled,
    vector,
    vision,
    wrapper,
)

_PAIR: Final = ("linear_1", "linear_2")


# Towers that project themselves.

TOWER: Final = wrapper(vision())
TOLD_TOWER: Final = wrapper(vision(), told_width=True)
VISUAL: Final = wrapper(vision(path="visual"))
VISION_MODEL: Final = wrapper(vision(path="vision_model"))
VISION_AND_AUDIO: Final = wrapper(vision(), audio())
TOLD_VISION_AND_AUDIO: Final = replace(VISION_AND_AUDIO, told_width=True)
AUDIO_AND_VISUAL: Final = wrapper(audio(), vision(path="visual"))
KYUTAI: Final = wrapper(beside("codec_config", "codec_model"))
CODEBOOK: Final = wrapper(beside("vq_config", "vqmodel"))


# The LLaVA line: one hidden layer, over one or several layers of the tower.


def _features(joined: Joined) -> int:
    """The width of the tower's layers that are read, side by side."""
    layers = joined.top.get("vision_feature_layer")
    count = len(layers) if isinstance(layers, (list, tuple)) else 1
    return joined.width * max(1, count)


_LLAVA: Final = chain(_features, "text", "text", bias="multimodal_projector_bias")
LLAVA: Final = wrapper(vision(_LLAVA))
LLAVA_NEXT: Final = wrapper(vision(_LLAVA, vector("image_newline")))
# One projector for both towers.
VIDEO_LLAVA: Final = wrapper(vision(_LLAVA, path="video_tower"), vision(path="image_tower"))
VIPLLAVA: Final = wrapper(vision(normed(_features, f"{PATH}.projector_layernorm"), chain(_features, "text", "text")))
MISTRAL3: Final = wrapper(
    vision(
        normed("tower", f"{PATH}.norm", kind="rms"),
        matrix(merged(), "tower", bias=False, path=f"{PATH}.patch_merger.merging_layer"),
        _LLAVA,
    )
)
LIGHTON: Final = wrapper(
    vision(
        normed("tower", "vision_projection.norm", kind="rms"),
        matrix(merged(), "tower", bias=False, path="vision_projection.patch_merger.merging_layer"),
        chain("tower", "text", "text", bias=False, path="vision_projection"),
        path="vision_encoder",
    )
)

# A linear layer.

PALIGEMMA: Final = wrapper(vision(matrix("tower", "top.projection_dim", path=f"{PATH}.linear")))
LLAMA4: Final = wrapper(vision(matrix("tower.vision_output_dim", bias=False, path=f"{PATH}.linear_1"), path="vision_model"))
MLLAMA: Final = wrapper(vision(matrix("tower.vision_output_dim"), path="vision_model"))
HYPERCLOVAX: Final = wrapper(vision(matrix("tower.out_hidden_size", path="projector"), path="vision_model"))
IDEFICS3: Final = wrapper(
    vision(matrix(merged("top.scale_factor"), bias=False, path="connector.modality_projection.proj"), path="vision_model")
)
STEP: Final = wrapper(vision(matrix(lambda joined: 4 * joined.width, bias="projector_bias"), path="vision_model"))
QWEN2_AUDIO: Final = wrapper(audio(matrix("tower", path=f"{PATH}.linear")))
OVIS: Final = wrapper(vision(lambda joined: embedding("visual_embeddings_table", *_table(joined))))


def _table(joined: Joined) -> tuple[int, int]:
    return joined.tower.integer("vocab_size"), joined.top.integer("hidden_size")


def _gemma3(joined: Joined) -> Weighed:
    return (
        *parameter(f"{PATH}.mm_input_projection_weight", joined.width, joined.out),
        *rms_norm(f"{PATH}.mm_soft_emb_norm", joined.width),
    )


GEMMA3: Final = wrapper(vision(_gemma3))


def _gemma4(path: str) -> Piece:
    def project(joined: Joined) -> Weighed:
        keys = ("output_proj_dims", "mm_embed_dim", "audio_embed_dim", "hidden_size")
        source = next((width for key in keys if (width := joined.tower.maybe_integer(key)) is not None), None)
        if source is None:
            raise joined.tower.missing("hidden_size")
        return linear(f"{path}.embedding_projection", source, joined.out)

    return project


GEMMA4: Final = wrapper(vision(_gemma4("embed_vision")), audio(_gemma4("embed_audio")))

# Two linear layers, of a square of patches or of several frames.

_GATED_SOURCE: Final = merged("top.downsample_factor")


def _swiglu(joined: Joined) -> Weighed:
    """Aya and Command A Vision: the first layer's output is a gate and what it lets through."""
    middle = joined.top.maybe_integer("alignment_intermediate_size") or joined.out
    first = matrix(_GATED_SOURCE, lambda _: middle, path=f"{PATH}.linear_1")(joined)
    return first + linear(f"{PATH}.linear_2", middle // 2, joined.out, bias=True)


AYA: Final = wrapper(vision(normed(_GATED_SOURCE, f"{PATH}.layernorm"), _swiglu))
COHERE2: Final = wrapper(vision(_swiglu))
COSMOS_EDGE: Final = wrapper(
    vision(
        normed("tower", "projector.norm"),
        chain(
            merged("tower.spatial_merge_size"),
            "top.projector_hidden_size",
            "text",
            names=("linear_fc1", "linear_fc2"),
            path="projector",
        ),
        path="visual",
    )
)
DEEPSEEK: Final = wrapper(
    vision(chain("tower", "text", "text", names=("linear1", "linear2"), path="aligner"), path="vision_model")
)
INTERNVL: Final = wrapper(vision(normed(shuffled()), chain(shuffled(), "text", "text")))
LFM2: Final = wrapper(
    vision(
        normed(_GATED_SOURCE, switch="projector_use_layernorm"),
        chain(_GATED_SOURCE, "top.projector_hidden_size", "text", bias="projector_bias"),
    )
)
LFM3: Final = wrapper(
    vision(
        normed("tower"),
        chain(merged("tower.spatial_merge_size"), "top.projector_hidden_size", "text", bias="projector_bias"),
    )
)
PADDLE: Final = wrapper(
    vision(
        normed("tower", "projector.pre_norm"),
        chain(*2 * (merged("tower.spatial_merge_size"),), "text", path="projector"),
        path="visual",
    )
)
VIDEO_LLAMA: Final = wrapper(
    vision(chain("tower", "text", "text", names=("readout.0", "readout.2"), path="projector"), path="vision_model")
)
FLAMINGO: Final = wrapper(audio(chain("tower", "text", "text", bias="projector_bias")))
GLM_ASR: Final = wrapper(audio(chain("tower.intermediate_size", lambda joined: 2 * joined.out, "text")))
MOSS: Final = wrapper(
    audio(
        chain(lambda joined: joined.width * joined.top.integer("audio_merge_size"), "text", "text", bias="projector_bias"),
        normed("text", f"{PATH}.norm"),
    )
)
QWEN3_ASR: Final = wrapper(audio(chain("tower", "tower", "tower.output_dim")))
VOXTRAL: Final = wrapper(audio(chain("tower.intermediate_size", "text", "text", bias=False)))
VOXTRAL_REALTIME: Final = wrapper(
    audio(chain(lambda joined: joined.width * joined.top.integer("downsample_factor"), "text", "text", bias=False))
)


def _muse(joined: Joined) -> Weighed:
    source, middle = joined.top.integer("out_hidden_size"), joined.top.integer("projector_hidden_size")
    adapter = mlp_chain("vision_adapter", (source, middle, middle), ("fc1", "fc2"), bias=False)
    return adapter + linear("vision_projection", middle, joined.out)


MUSE: Final = wrapper(vision(_muse))
MUSE_SPARK: Final = wrapper(vision(_muse), audio())


def _kimi(joined: Joined) -> Weighed:
    down, across = pair(joined.tower, "merge_kernel_size")
    merged_width = joined.width * down * across
    return (
        *layer_norm("mm_projector.pre_norm", joined.top.integer("projection_hidden_size")),
        *mlp_chain("mm_projector", (merged_width, merged_width, joined.out), ("in_proj", "out_proj")),
    )


KIMI: Final = wrapper(vision(_kimi))


def _minicpm(joined: Joined) -> Weighed:
    """MiniCPM-V: each step makes one token of four; the last one is as wide as the language model."""
    times, four = joined.top.integer("merger_times", maximum=100), 4 * joined.width
    weights: Weighed = ()
    for step in range(times):
        out = joined.out if step == times - 1 else joined.width
        weights += layer_norm("merger.mlp.pre_norm", four) + mlp_chain("merger.mlp", (four, four, out), _PAIR)
    return weights


MINICPM: Final = wrapper(vision(_minicpm))


def _minimax(joined: Joined) -> Weighed:
    middle, merge = joined.top.integer("projector_hidden_size"), joined.tower.integer("spatial_merge_size")
    return (
        *mlp_chain(PATH, (joined.width, middle, joined.out), _PAIR),
        *mlp_chain(PATH, (joined.out * merge**2, middle, joined.out), ("merge_linear_1", "merge_linear_2")),
    )


MINIMAX: Final = wrapper(vision(_minimax))


def _nemotron_norms(joined: Joined) -> Weighed:
    """Features are normalised first where the language model predicts several tokens."""
    several = joined.language.maybe_integer("num_nextn_predict_layers", minimum=0)
    return layer_norm("vision_final_layernorm", joined.top.integer("vision_hidden_size")) if several else ()


def _no_parakeet(joined: Joined) -> Weighed:
    if joined.top.get("audio_config") is not None or joined.top.get("sound_config") is not None:
        # A Parakeet encoder, which nobody weighs yet.
        raise UnknownTowerError("parakeet_encoder")
    return ()


_NEMOTRON_SOURCE: Final = shuffled("top.vision_hidden_size")
NEMOTRON: Final = wrapper(
    vision(
        _no_parakeet,
        normed(_NEMOTRON_SOURCE, kind="rms"),
        chain(_NEMOTRON_SOURCE, "top.projector_hidden_size", "text", bias=False),
        _nemotron_norms,
        path="vision_model",
    )
)

# Convolutions and pooling.


def _upsampler(joined: Joined) -> Weighed:
    """GOT-OCR: two strided convolutions, then a linear layer."""
    source = joined.tower.integer("output_channels")
    return (
        *conv(f"{PATH}.conv_upsampler1", 2 * source, source, 3, 3, bias=False),
        *conv(f"{PATH}.conv_upsampler2", joined.out, 2 * source, 3, 3, bias=False),
        *linear(f"{PATH}.multimodal_projector", joined.out, joined.out, bias=True),
    )


GOT: Final = wrapper(vision(_upsampler))


def _unlimited_ocr(joined: Joined) -> Weighed:
    sam, encoder = needed(joined.tower, "sam_config"), needed(joined.tower, "encoder_config")
    channels = (sam.integers("downsample_channels", length=2, minimum=1) or [512, 1024])[-1]
    return (
        *linear(PATH, channels + encoder.integer("hidden_size"), joined.out, bias=True),
        *parameter("view_separator", joined.out),
        *parameter("image_newline", joined.out),
    )


UNLIMITED_OCR: Final = wrapper(vision(_unlimited_ocr))


def _resampler(joined: Joined) -> Weighed:
    """Ernie 4.5 VL: merges patches, then frames, then projects."""
    space = joined.width * joined.tower.integer("spatial_merge_size") ** 2
    time = space * joined.tower.integer("temporal_merge_size")
    weights: Weighed = ()
    for name, source in (("spatial_linear", space), ("temporal_linear", time)):
        base = f"resampler_model.{name}"
        weights += mlp_chain(base, (source, space, space), ("fc1", "fc2")) + layer_norm(f"{base}.ln", space)
    weights += linear("resampler_model.mlp", space, joined.out, bias=True)
    return weights + rms_norm("resampler_model.after_norm", joined.out)


ERNIE: Final = wrapper(vision(_resampler))


def _molmo2(joined: Joined) -> Weighed:
    """Molmo 2: patches attend to their window, then a gated MLP; the adapter has a config of its own."""
    adapter: Config = needed(joined.top, "adapter_config")
    layers = adapter.sequence("vision_feature_layer") or (24, 18)
    width, heads, kv_heads = integers(adapter, "hidden_size", "num_attention_heads", "num_key_value_heads")
    head_dim, bias = adapter.maybe_integer("head_dim") or width // heads, adapter.flag("attention_bias")
    source, middle = width * len(layers), adapter.integer("intermediate_size")
    pooling, projector = f"{PATH}.image_pooling_2d", f"{PATH}.image_projector"
    return (
        *linear(f"{pooling}.q_proj", source, heads * head_dim, bias=bias),
        *linears(pooling, ("k_proj", "v_proj"), source, kv_heads * head_dim, bias=bias),
        *linear(f"{pooling}.o_proj", heads * head_dim, width, bias=bias),
        *linears(projector, ("gate_proj", "up_proj"), width, middle, bias=adapter.flag("mlp_bias")),
        *linear(f"{projector}.down_proj", middle, adapter.integer("text_hidden_size")),
    )


MOLMO2: Final = wrapper(vision(_molmo2))

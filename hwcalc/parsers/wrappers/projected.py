"""Documents whose towers are joined to the language model by linear layers, norms and convolutions."""

from __future__ import annotations

from typing import Final

from hwcalc.formulas.weights import embedding, layer_norm, linear, parameter, rms_norm
from hwcalc.parsers.blocks import Weighed
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
    times,
    vector,
    vision,
    wrapper,
)

# Towers that have a projector of their own, and tokenisers.

TOWER: Final = wrapper(vision())
TOLD_TOWER: Final = wrapper(vision(), told_width=True)
VISUAL: Final = wrapper(vision(path="visual"))
VISION_MODEL: Final = wrapper(vision(path="vision_model"))
VISION_AND_AUDIO: Final = wrapper(vision(), audio())
TOLD_VISION_AND_AUDIO: Final = wrapper(vision(), audio(), told_width=True)
AUDIO_AND_VISUAL: Final = wrapper(audio(), vision(path="visual"))
KYUTAI: Final = wrapper(beside("codec_config", path="codec_model"))
CODEBOOK: Final = wrapper(beside("vq_config", path="vqmodel"))

# One linear layer.

PALIGEMMA: Final = wrapper(vision(matrix("tower", "top.projection_dim", path=f"{PATH}.linear")))
LLAMA4: Final = wrapper(vision(matrix("tower.vision_output_dim", bias=False, path=f"{PATH}.linear_1"), path="vision_model"))
MLLAMA: Final = wrapper(vision(matrix("tower.vision_output_dim"), path="vision_model"))
HYPERCLOVAX: Final = wrapper(vision(matrix("tower.out_hidden_size", path="projector"), path="vision_model"))
IDEFICS3: Final = wrapper(
    vision(matrix(merged("top.scale_factor"), bias=False, path="connector.modality_projection.proj"), path="vision_model")
)
STEP: Final = wrapper(vision(matrix(times("tower", 4), bias="projector_bias"), path="vision_model"))
QWEN2_AUDIO: Final = wrapper(audio(matrix("tower", path=f"{PATH}.linear")))


OVIS: Final = wrapper(
    vision(
        lambda joined: embedding("visual_embeddings_table", joined.tower.integer("vocab_size"), joined.top.integer("hidden_size"))
    )
)
GEMMA3: Final = wrapper(
    vision(
        lambda joined: parameter(f"{PATH}.mm_input_projection_weight", joined.width, joined.out),
        normed("tower", f"{PATH}.mm_soft_emb_norm", kind="rms"),
    )
)


def _gemma4(joined: Joined) -> int:
    keys = ("output_proj_dims", "mm_embed_dim", "audio_embed_dim", "hidden_size")
    width = next((width for key in keys if (width := joined.tower.maybe_integer(key)) is not None), None)
    if width is None:
        raise joined.tower.missing("hidden_size")
    return width


GEMMA4: Final = wrapper(
    vision(matrix(_gemma4, bias=False, path="embed_vision.embedding_projection")),
    audio(matrix(_gemma4, bias=False, path="embed_audio.embedding_projection")),
)


def _soft_and_hard(path: str) -> Piece:
    """Gemma 3n: the tokens of one sense have a table of their own, and both these and the tower's vectors are projected."""

    def weigh(joined: Joined) -> Weighed:
        width = joined.width
        weights = embedding(f"{path}.embedding", joined.tower.integer("vocab_size"), width)
        for name in ("hard_embedding_norm", "soft_embedding_norm"):
            weights += rms_norm(f"{path}.{name}", width)
        return weights + linear(f"{path}.embedding_projection", width, joined.out)

    return weigh


GEMMA3N: Final = wrapper(vision(_soft_and_hard("embed_vision")), audio(_soft_and_hard("embed_audio")))

# The LLaVA line: two linear layers that read the output of one or several layers of the tower.


def _features(joined: Joined) -> int:
    """The width of the outputs of several layers of the tower, side by side."""
    layers = joined.top.get("vision_feature_layer")
    return joined.width * (max(1, len(layers)) if isinstance(layers, (list, tuple)) else 1)


_LLAVA: Final = chain(_features, "text", "text", bias="multimodal_projector_bias")
LLAVA: Final = wrapper(vision(_LLAVA))
LLAVA_NEXT: Final = wrapper(vision(_LLAVA, vector("image_newline")))
# One projector for both towers.
VIDEO_LLAVA: Final = wrapper(vision(_LLAVA, path="video_tower"), vision(path="image_tower"))
VIPLLAVA: Final = wrapper(vision(normed(_features, f"{PATH}.projector_layernorm"), chain(_features, "text", "text")))
MISTRAL3: Final = wrapper(
    vision(
        normed("tower", f"{PATH}.norm", kind="rms"),
        matrix(merged("top.spatial_merge_size"), "tower", bias=False, path=f"{PATH}.patch_merger.merging_layer"),
        _LLAVA,
    )
)
LIGHTON: Final = wrapper(
    vision(
        normed("tower", "vision_projection.norm", kind="rms"),
        matrix(merged("top.spatial_merge_size"), "tower", bias=False, path="vision_projection.patch_merger.merging_layer"),
        chain("tower", "text", "text", bias=False, path="vision_projection"),
        path="vision_encoder",
    )
)

# Two linear layers that read a vector of audio, a patch, or a square of patches.

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
_INNER: Final = "top.projector_hidden_size"
COSMOS_EDGE: Final = wrapper(
    vision(
        normed("tower", "projector.norm"),
        chain(_SQUARE, _INNER, "text", names=("linear_fc1", "linear_fc2"), path="projector"),
        path="visual",
    )
)
PADDLE: Final = wrapper(
    vision(normed("tower", "projector.pre_norm"), chain(_SQUARE, _SQUARE, "text", path="projector"), path="visual")
)
LFM2: Final = wrapper(
    vision(normed(_DOWN, switch="projector_use_layernorm"), chain(_DOWN, _INNER, "text", bias="projector_bias"))
)
LFM3: Final = wrapper(vision(normed("tower"), chain(_SQUARE, _INNER, "text", bias="projector_bias")))
MINIMAX: Final = wrapper(
    vision(
        chain("tower", _INNER, "text"),
        chain(
            lambda joined: joined.out * joined.tower.integer("spatial_merge_size") ** 2,
            _INNER,
            "text",
            names=("merge_linear_1", "merge_linear_2"),
        ),
    )
)
_MUSE: Final = vision(
    chain("top.out_hidden_size", _INNER, _INNER, names=("fc1", "fc2"), bias=False, path="vision_adapter"),
    matrix(_INNER, bias=False, path="vision_projection"),
)
MUSE: Final = wrapper(_MUSE)
MUSE_SPARK: Final = wrapper(_MUSE, audio())


def _swiglu(joined: Joined) -> Weighed:
    """Aya and Command A Vision: half of the first layer's output gates the other half."""
    middle = joined.top.maybe_integer("alignment_intermediate_size") or joined.out
    first = matrix(_DOWN, lambda _: middle, path=f"{PATH}.linear_1")(joined)
    return first + linear(f"{PATH}.linear_2", middle // 2, joined.out, bias=True)


AYA: Final = wrapper(vision(normed(_DOWN, f"{PATH}.layernorm"), _swiglu))
COHERE2: Final = wrapper(vision(_swiglu))


def _kimi(joined: Joined) -> Weighed:
    down, across = pair(joined.tower, "merge_kernel_size")
    square = joined.width * down * across
    weights = layer_norm("mm_projector.pre_norm", joined.top.integer("projection_hidden_size"))
    return weights + mlp_chain("mm_projector", (square, square, joined.out), ("in_proj", "out_proj"))


KIMI: Final = wrapper(vision(_kimi))


def _kimi_vl(joined: Joined) -> Weighed:
    """A norm over each patch, then two layers over a square of patches, which is 2 x 2 where the file does not say."""
    down, across = pair(joined.tower, "merge_kernel_size") if joined.tower.has("merge_kernel_size") else (2, 2)
    square = joined.width * down * across
    weights = layer_norm(f"{PATH}.pre_norm", joined.width)
    return weights + mlp_chain(PATH, (square, square, joined.out), ("linear_1", "linear_2"))


KIMI_VL: Final = wrapper(vision(_kimi_vl))


def _minicpm(joined: Joined) -> Weighed:
    """MiniCPM-V: each step makes one token of four. The last step puts out vectors as wide as the language model."""
    steps, four = joined.top.integer("merger_times", maximum=100), 4 * joined.width
    weights: Weighed = ()
    for step in range(steps):
        sizes = (four, four, joined.out if step == steps - 1 else joined.width)
        weights += layer_norm("merger.mlp.pre_norm", four) + mlp_chain("merger.mlp", sizes, ("linear_1", "linear_2"))
    return weights


MINICPM: Final = wrapper(vision(_minicpm))


def _resampler(joined: Joined) -> Weighed:
    """Ernie 4.5 VL: patches are merged, then frames, then a matrix projects them."""
    space = joined.width * joined.tower.integer("spatial_merge_size") ** 2
    time = space * joined.tower.integer("temporal_merge_size")
    weights: Weighed = ()
    for name, source in (("spatial_linear", space), ("temporal_linear", time)):
        base = f"resampler_model.{name}"
        weights += mlp_chain(base, (source, space, space), ("fc1", "fc2")) + layer_norm(f"{base}.ln", space)
    return weights + linear("resampler_model.mlp", space, joined.out, bias=True)


ERNIE: Final = wrapper(vision(_resampler, normed("text", "resampler_model.after_norm", kind="rms")))


def _no_parakeet(joined: Joined) -> Weighed:
    if joined.top.get("audio_config") is not None or joined.top.get("sound_config") is not None:
        # There are no weights here for a Parakeet encoder as a tower.
        raise UnknownTowerError("parakeet_encoder")
    return ()


def _before_several_tokens(joined: Joined) -> Weighed:
    """If the language model predicts several tokens, a norm precedes the projector."""
    several = joined.language.maybe_integer("num_nextn_predict_layers", minimum=0)
    return layer_norm("vision_final_layernorm", joined.top.integer("vision_hidden_size")) if several else ()


_SHUFFLED: Final = shuffled("top.vision_hidden_size")
_NEMOTRON: Final = (normed(_SHUFFLED, kind="rms"), chain(_SHUFFLED, _INNER, "text", bias=False), _before_several_tokens)
NEMOTRON: Final = wrapper(vision(_no_parakeet, *_NEMOTRON, path="vision_model"))

# Projectors of convolutions, after two towers in a row, or with pooling by attention.


def _upsampler(joined: Joined) -> Weighed:
    """GOT-OCR: two strided convolutions, then a linear layer."""
    source = joined.tower.integer("output_channels")
    weights = conv(f"{PATH}.conv_upsampler1", 2 * source, source, 3, 3, bias=False)
    return weights + conv(f"{PATH}.conv_upsampler2", joined.out, 2 * source, 3, 3, bias=False)


GOT: Final = wrapper(vision(_upsampler, matrix("text", path=f"{PATH}.multimodal_projector")))


def _unlimited_ocr(joined: Joined) -> int:
    sam, encoder = needed(joined.tower, "sam_config"), needed(joined.tower, "encoder_config")
    return (sam.integers("downsample_channels", length=2, minimum=1) or [512, 1024])[-1] + encoder.integer("hidden_size")


UNLIMITED_OCR: Final = wrapper(vision(matrix(_unlimited_ocr), vector("view_separator"), vector("image_newline")))


def _molmo2(joined: Joined) -> Weighed:
    """Molmo 2: patches attend to their window, then pass a gated MLP. The adapter has a config of its own."""
    adapter = needed(joined.top, "adapter_config")
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

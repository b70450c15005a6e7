"""Models of several parts: which towers stand beside the language model, and what joins them to it.

One line for each type of document: its towers, by config key and name in the model, and its projector. Each mirrors the
model's ``modeling_*.py`` in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hwcalc.formulas.frozen import frozen
from hwcalc.formulas.weights import Block, Part, Weight, embedding, linear, parameter, rms_norm
from hwcalc.parsers.config import Config
from hwcalc.parsers.weights.towers import UnknownTowerError, block, conv, mlp_chain, norm, pair, tower

__all__ = ["Composite", "blocks", "text_only"]

# Classes that are the language model alone, of documents that describe more.
_TEXT_ONLY: Final = {
    "Dots3NoteForCausalLM",
    "Emu3ForCausalLM",
    "Llama4ForCausalLM",
    "MllamaForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen4ExpForCausalLM",
}


@frozen
class Joined:
    """What a projector is read from."""

    top: Config
    language: Config
    tower: Config
    """The first tower's config."""

    @property
    def width(self) -> int:
        """Width of the tower."""
        return self.tower.integer("hidden_size")

    @property
    def out(self) -> int:
        """Width of the language model."""
        return self.language.integer("hidden_size")


Projector = Callable[[Joined], tuple[Weight, ...]]
Size = Callable[[Joined], int]


@frozen
class Composite:
    """The parts of one type of document."""

    towers: tuple[tuple[str, str], ...] = (("vision_config", "vision_tower"),)
    """Config key and name in the model of each tower; the projector is the first one's."""
    projector: Projector | None = None
    told_width: bool = False
    """Whether the document's class tells its towers the width of the language model."""


def blocks(top: Config, language: Config) -> tuple[Block, ...] | None:
    """Towers and projector of a type in the table; ``None`` where a tower is of a type that nobody weighs."""
    return joined_blocks(_TABLE[top.model_type or ""], top, language)


def text_only(top: Config) -> bool:
    """Whether the document names a class that is the language model alone."""
    names = top.raw.get("architectures")
    return isinstance(names, (list, tuple)) and bool(names) and isinstance(names[0], str) and names[0] in _TEXT_ONLY


def joined_blocks(spec: Composite | None, top: Config, language: Config) -> tuple[Block, ...] | None:
    """The same for any line."""
    if text_only(top):
        return ()
    if spec is None:
        return None
    told = {"text_hidden_size": language.integer("hidden_size")} if spec.told_width else {}
    out: tuple[Block, ...] = ()
    try:
        for position, (key, path) in enumerate(spec.towers):
            config = top.part(key, **told)
            if config is None:
                continue
            out += tower(config, path)
            if spec.projector is not None and position == 0:
                out += block("projector", spec.projector(Joined(top=top, language=language, tower=config)), Part.PROJECTOR)
    except UnknownTowerError:
        return None
    return out


_PATH: Final = "multi_modal_projector"
_PAIR: Final = ("linear_1", "linear_2")


def _width(joined: Joined) -> int:
    return joined.width


def _out(joined: Joined) -> int:
    return joined.out


def _top(key: str) -> Size:
    return lambda joined: joined.top.integer(key)


def _tower(key: str) -> Size:
    return lambda joined: joined.tower.integer(key)


def _merged(key: str = "spatial_merge_size", *, of_tower: bool = False) -> Size:
    """The width of a square of patches, whose side is a key of the document or of the tower."""
    return lambda joined: joined.width * (joined.tower if of_tower else joined.top).integer(key) ** 2


def _shuffled(joined: Joined) -> int:
    """The width after pixels were shuffled by a ratio: 0.5 makes four channels of one."""
    return joined.width * _per_side(joined.top) ** 2


def _per_side(top: Config) -> int:
    ratio = top.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise top.error("downsample_ratio", ratio, "more than 0 and at most 1")
    return int(1 / ratio)


def _features(joined: Joined) -> int:
    """The width of the tower's layers that are read, side by side."""
    layers = joined.top.get("vision_feature_layer")
    count = len(layers) if isinstance(layers, (list, tuple)) else 1
    return joined.width * max(1, count)


def _mlp(*sizes: Size, names: tuple[str, ...] = _PAIR, bias: bool | str = True, path: str = _PATH) -> Projector:
    """Linear layers between the given widths; ``bias`` may be a key of the document."""

    def project(joined: Joined) -> tuple[Weight, ...]:
        given = joined.top.flag(bias) if isinstance(bias, str) else bias
        return mlp_chain(path, tuple(size(joined) for size in sizes), names, bias=given)

    return project


def _linear(source: Size, *, bias: bool | str = True, path: str = _PATH, out: Size = _out) -> Projector:
    def project(joined: Joined) -> tuple[Weight, ...]:
        given = joined.top.flag(bias) if isinstance(bias, str) else bias
        return linear(path, source(joined), out(joined), bias=given)

    return project


def _norm(size: Size, path: str = f"{_PATH}.layer_norm", *, rms: bool = False, switch: str = "") -> Projector:
    return lambda joined: norm(path, size(joined), rms) if not switch or joined.top.flag(switch) else ()


def _vector(path: str) -> Projector:
    """A learned vector among the language model's tokens."""
    return lambda joined: parameter(path, joined.out)


def _both(*projectors: Projector) -> Projector:
    return lambda joined: tuple(weight for projector in projectors for weight in projector(joined))


def _swiglu_projector(joined: Joined) -> tuple[Weight, ...]:
    """Aya and Command A Vision: the first layer's output is a gate and what it lets through."""
    middle = joined.top.maybe_integer("alignment_intermediate_size") or joined.out
    return (
        *linear(f"{_PATH}.linear_1", _merged("downsample_factor")(joined), middle, bias=True),
        *linear(f"{_PATH}.linear_2", middle // 2, joined.out, bias=True),
    )


def _gemma3(joined: Joined) -> tuple[Weight, ...]:
    return (
        *parameter(f"{_PATH}.mm_input_projection_weight", joined.width, joined.out),
        *rms_norm(f"{_PATH}.mm_soft_emb_norm", joined.width),
    )


def _resampler(joined: Joined) -> tuple[Weight, ...]:
    """Ernie 4.5 VL: merges patches, then frames, then projects."""
    space = _merged(of_tower=True)(joined)
    time = space * joined.tower.integer("temporal_merge_size")
    weights: tuple[Weight, ...] = ()
    for name, source in (("spatial_linear", space), ("temporal_linear", time)):
        base = f"resampler_model.{name}"
        weights += (*mlp_chain(base, (source, space, space), ("fc1", "fc2")), *norm(f"{base}.ln", space))
    return (
        *weights,
        *linear("resampler_model.mlp", space, joined.out, bias=True),
        *rms_norm("resampler_model.after_norm", joined.out),
    )


def _kimi(joined: Joined) -> tuple[Weight, ...]:
    down, across = pair(joined.tower, "merge_kernel_size")
    merged = joined.width * down * across
    return (
        *norm("mm_projector.pre_norm", joined.top.integer("projection_hidden_size")),
        *mlp_chain("mm_projector", (merged, merged, joined.out), ("in_proj", "out_proj")),
    )


def _minicpm(joined: Joined) -> tuple[Weight, ...]:
    """MiniCPM-V: each step makes one token of four; the last one is as wide as the language model."""
    times, merged = joined.top.integer("merger_times", maximum=100), 4 * joined.width
    weights: tuple[Weight, ...] = ()
    for step in range(times):
        out = joined.out if step == times - 1 else joined.width
        weights += (*norm("merger.mlp.pre_norm", merged), *mlp_chain("merger.mlp", (merged, merged, out), _PAIR))
    return weights


def _minimax(joined: Joined) -> tuple[Weight, ...]:
    middle, merge = joined.top.integer("projector_hidden_size"), joined.tower.integer("spatial_merge_size")
    return (
        *mlp_chain(_PATH, (joined.width, middle, joined.out), _PAIR),
        *mlp_chain(_PATH, (joined.out * merge**2, middle, joined.out), ("merge_linear_1", "merge_linear_2")),
    )


def _upsampler(joined: Joined) -> tuple[Weight, ...]:
    """GOT-OCR: two strided convolutions, then a linear layer."""
    source = joined.tower.integer("output_channels")
    return (
        *conv(f"{_PATH}.conv_upsampler1", 2 * source, source, 3, 3, bias=False),
        *conv(f"{_PATH}.conv_upsampler2", joined.out, 2 * source, 3, 3, bias=False),
        *linear(f"{_PATH}.multimodal_projector", joined.out, joined.out, bias=True),
    )


def _molmo2(joined: Joined) -> tuple[Weight, ...]:
    """Molmo 2: patches attend to their window, then a gated MLP; the adapter has a config of its own."""
    adapter = joined.top.part("adapter_config")
    if adapter is None:
        raise joined.top.missing("adapter_config")
    layers = adapter.sequence("vision_feature_layer") or (24, 18)
    width, heads, kv_heads = (
        adapter.integer("hidden_size"),
        adapter.integer("num_attention_heads"),
        adapter.integer("num_key_value_heads"),
    )
    head_dim, bias = adapter.maybe_integer("head_dim") or width // heads, adapter.flag("attention_bias")
    source, middle = width * len(layers), adapter.integer("intermediate_size")
    pooling, projector = f"{_PATH}.image_pooling_2d", f"{_PATH}.image_projector"
    gate = adapter.flag("mlp_bias")
    return (
        *linear(f"{pooling}.q_proj", source, heads * head_dim, bias=bias),
        *linear(f"{pooling}.k_proj", source, kv_heads * head_dim, bias=bias),
        *linear(f"{pooling}.v_proj", source, kv_heads * head_dim, bias=bias),
        *linear(f"{pooling}.o_proj", heads * head_dim, width, bias=bias),
        *linear(f"{projector}.gate_proj", width, middle, bias=gate),
        *linear(f"{projector}.up_proj", width, middle, bias=gate),
        *linear(f"{projector}.down_proj", middle, adapter.integer("text_hidden_size")),
    )


def _muse(joined: Joined) -> tuple[Weight, ...]:
    middle = joined.top.integer("projector_hidden_size")
    return (
        *mlp_chain("vision_adapter", (joined.top.integer("out_hidden_size"), middle, middle), ("fc1", "fc2"), bias=False),
        *linear("vision_projection", middle, joined.out),
    )


def _unlimited_ocr(joined: Joined) -> tuple[Weight, ...]:
    sam, encoder = joined.tower.part("sam_config"), joined.tower.part("encoder_config")
    if sam is None or encoder is None:
        raise joined.tower.missing("sam_config")
    channels = (sam.integers("downsample_channels", length=2, minimum=1) or [512, 1024])[-1]
    return (
        *linear(_PATH, channels + encoder.integer("hidden_size"), joined.out, bias=True),
        *parameter("view_separator", joined.out),
        *parameter("image_newline", joined.out),
    )


def _ovis2(joined: Joined) -> tuple[Weight, ...]:
    return embedding("visual_embeddings_table", joined.tower.integer("vocab_size"), joined.top.integer("hidden_size"))


def _audio(path: str = "audio_tower", key: str = "audio_config") -> tuple[tuple[str, str], ...]:
    return ((key, path),)


def _vision(path: str) -> tuple[tuple[str, str], ...]:
    return (("vision_config", path),)


_LLAVA: Final = _mlp(_features, _out, _out, bias="multimodal_projector_bias")
_VISUAL: Final = Composite(towers=_vision("visual"))
_GEMMA3: Final = Composite(projector=_gemma3)
_IDEFICS3: Final = Composite(
    towers=_vision("vision_model"),
    projector=_linear(_merged("scale_factor"), bias=False, path="connector.modality_projection.proj"),
)
_INTERNVL: Final = Composite(projector=_both(_norm(_shuffled), _mlp(_shuffled, _out, _out)))
_LLAVA_NEXT: Final = Composite(projector=_both(_LLAVA, _vector("image_newline")))
_MISTRAL3: Final = Composite(
    projector=_both(
        _norm(_width, f"{_PATH}.norm", rms=True),
        _linear(_merged(), bias=False, path=f"{_PATH}.patch_merger.merging_layer", out=_width),
        _mlp(_features, _out, _out, bias="multimodal_projector_bias"),
    )
)
_MINICPM: Final = Composite(projector=_minicpm)
_FLAMINGO: Final = Composite(towers=_audio(), projector=_mlp(_width, _out, _out, bias="projector_bias"))
_GOT: Final = Composite(projector=_upsampler)
_OMNI: Final = Composite(towers=(*_audio(), *_vision("visual")))
_TABLE: Final[dict[str, Composite | None]] = {
    "audioflamingo3": _FLAMINGO,
    "aya_vision": Composite(projector=_both(_norm(_merged("downsample_factor"), f"{_PATH}.layernorm"), _swiglu_projector)),
    "cohere_compass": _VISUAL,
    "cohere2_vision": Composite(projector=_swiglu_projector),
    "cosmos3_edge": Composite(
        towers=_vision("visual"),
        projector=_both(
            _norm(_width, "projector.norm"),
            _mlp(
                _merged(of_tower=True), _top("projector_hidden_size"), _out, names=("linear_fc1", "linear_fc2"), path="projector"
            ),
        ),
    ),
    "cosmos3_omni": _VISUAL,
    "deepseek_vl": Composite(
        towers=_vision("vision_model"), projector=_mlp(_width, _out, _out, names=("linear1", "linear2"), path="aligner")
    ),
    "dots3_note": Composite(towers=(*_vision("vision_tower"), *_audio())),
    # The towers of the whole model (an image tokeniser) are not weighed; the language model alone is.
    "emu3": None,
    "ernie4_5_vl_moe": Composite(projector=_resampler),
    "exaone4_5": _VISUAL,
    "gemma3": _GEMMA3,
    "glm46v": _VISUAL,
    "glm4v": _VISUAL,
    "glm4v_moe": _VISUAL,
    "glm5_next": _VISUAL,
    "glm_ocr": _VISUAL,
    "glmasr": Composite(towers=_audio(), projector=_mlp(_tower("intermediate_size"), lambda joined: 2 * joined.out, _out)),
    "glmga": _VISUAL,
    "got_ocr2": _GOT,
    "granite_docling": Composite(towers=_vision("vision_model")),
    "hunyuan_vl": Composite(told_width=True),
    "hyperclovax_vision_v2": Composite(
        towers=_vision("vision_model"), projector=_linear(_tower("out_hidden_size"), path="projector")
    ),
    "idefics3": _IDEFICS3,
    "inkling2": Composite(),
    "inkling_mm_model": Composite(towers=(*_vision("vision_tower"), *_audio()), told_width=True),
    "internvl": _INTERNVL,
    "kimi_k25": Composite(projector=_kimi),
    "lfm2_vl": Composite(
        projector=_both(
            _norm(_merged("downsample_factor"), switch="projector_use_layernorm"),
            _mlp(_merged("downsample_factor"), _top("projector_hidden_size"), _out, bias="projector_bias"),
        )
    ),
    "lfm3_vl": Composite(
        projector=_both(_norm(_width), _mlp(_merged(of_tower=True), _top("projector_hidden_size"), _out, bias="projector_bias"))
    ),
    "lighton_ocr": Composite(
        towers=_vision("vision_encoder"),
        projector=_both(
            _norm(_width, "vision_projection.norm", rms=True),
            _linear(_merged(), bias=False, path="vision_projection.patch_merger.merging_layer", out=_width),
            _mlp(_width, _out, _out, bias=False, path="vision_projection"),
        ),
    ),
    "llama4": Composite(
        towers=_vision("vision_model"), projector=_linear(_tower("vision_output_dim"), bias=False, path=f"{_PATH}.linear_1")
    ),
    "llava": Composite(projector=_LLAVA),
    "llava_next": _LLAVA_NEXT,
    "llava_next_video": _LLAVA_NEXT,
    "llava_onevision": _LLAVA_NEXT,
    "minicpm_ocr": _MINICPM,
    "minicpmv4_6": _MINICPM,
    "minicpmv4_7": _MINICPM,
    "minimax_m3_vl": Composite(projector=_minimax),
    "mistral3": _MISTRAL3,
    "mistral_large4": _MISTRAL3,
    "mllama": Composite(towers=_vision("vision_model"), projector=_linear(_tower("vision_output_dim"))),
    "molmo2": Composite(projector=_molmo2),
    "moss_transcribe_diarize": Composite(
        towers=_audio(),
        projector=_both(
            _mlp(lambda joined: joined.width * joined.top.integer("audio_merge_size"), _out, _out, bias="projector_bias"),
            _norm(_out, f"{_PATH}.norm"),
        ),
    ),
    "muse_glimmer": Composite(projector=_muse),
    "muse_spark": Composite(towers=(*_vision("vision_tower"), *_audio()), projector=_muse),
    "musicflamingo": _FLAMINGO,
    "ovis2": Composite(projector=_ovis2),
    "paddleocr_vl": Composite(
        towers=_vision("visual"),
        projector=_both(
            _norm(_width, "projector.pre_norm"),
            _mlp(_merged(of_tower=True), _merged(of_tower=True), _out, path="projector"),
        ),
    ),
    "paligemma": Composite(projector=_linear(_width, path=f"{_PATH}.linear", out=_top("projection_dim"))),
    "pp_chart2table": _GOT,
    "qianfan_ocr": _INTERNVL,
    "qwen2_5_omni_thinker": _OMNI,
    "qwen2_5_vl": _VISUAL,
    "qwen2_audio": Composite(towers=_audio(), projector=_linear(_width, path=f"{_PATH}.linear")),
    "qwen2_vl": _VISUAL,
    "qwen3_5": _VISUAL,
    "qwen3_5_moe": _VISUAL,
    "qwen3_asr": Composite(towers=_audio(), projector=_mlp(_width, _width, _tower("output_dim"))),
    "qwen3_omni_moe_thinker": _OMNI,
    "qwen3_vl": _VISUAL,
    "qwen3_vl_moe": _VISUAL,
    "qwen4_exp": _VISUAL,
    "shieldgemma2": _GEMMA3,
    "smolvlm": _IDEFICS3,
    "step3p7": Composite(
        towers=_vision("vision_model"), projector=_linear(lambda joined: 4 * joined.width, bias="projector_bias")
    ),
    "unlimited_ocr": Composite(projector=_unlimited_ocr),
    "video_llama_3": Composite(
        towers=_vision("vision_model"), projector=_mlp(_width, _out, _out, names=("readout.0", "readout.2"), path="projector")
    ),
    "video_llava": Composite(towers=(("vision_config", "video_tower"), ("vision_config", "image_tower")), projector=_LLAVA),
    "vipllava": Composite(projector=_both(_norm(_features, f"{_PATH}.projector_layernorm"), _mlp(_features, _out, _out))),
    "voxtral": Composite(towers=_audio(), projector=_mlp(_tower("intermediate_size"), _out, _out, bias=False)),
    "voxtral_realtime": Composite(
        towers=_audio(),
        projector=_mlp(lambda joined: joined.width * joined.top.integer("downsample_factor"), _out, _out, bias=False),
    ),
}

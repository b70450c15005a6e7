"""The metadata that llama.cpp's converter would write for a model that is described by a config.json.

Which GGUF architecture llama.cpp's converter writes for a model class, and what it does there in a way of its own.

Source: the ``register`` lines of conversion/*.py in llama.cpp 0c1e57098. Classes of models that kvplan does not read are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.model import FIDELITY, GGUF_ARCHITECTURE, VOCABULARY, ModelSpec
from hwcalc.parsers.gguf import converter_keys, converters
from hwcalc.parsers.gguf.converter_keys import common_keys, source_of
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.converter_keys import Keys, Source


class Row(NamedTuple):
    """One converter: the architecture, the classes that it takes, and what it does besides the keys that most have.

    ``adds`` is the function that does it: most models have none. ``rotary`` is the share of a head that is rotated where the config does
    not say; ``None``: the converter writes no other than the whole. ``model_type`` is that of the classes, where transformers' class of
    that type has another name.
    """

    arch: str
    classes: tuple[str, ...]
    adds: Callable[[Source, Keys], None] | None = None
    rotary: float | None = None
    model_type: str | None = None


def _row(
    arch: str,
    classes: str,
    adds: Callable[[Source, Keys], None] | None = None,
    rotary: float | None = None,
    model_type: str | None = None,
) -> Row:
    return Row(arch, tuple(classes.split()), adds, rotary, model_type)


ROWS: Final = (
    _row("afmoe", "AfmoeForCausalLM", converters.afmoe),
    _row("apertus", "ApertusForCausalLM"),
    _row("arcee", "ArceeForCausalLM"),
    _row("arctic", "ArcticForCausalLM"),
    _row("baichuan", "BaiChuanForCausalLM BaichuanForCausalLM"),
    _row("bailingmoe", "BailingMoeForCausalLM"),
    _row("bailingmoe2", "BailingMoeV2ForCausalLM", converters.bailing2, 0.5),
    _row("bert", "BertForMaskedLM BertForSequenceClassification BertModel CamembertModel", converters.encoder),
    _row("bitnet", "BitNetForCausalLM BitnetForCausalLM"),
    _row("bloom", "BloomForCausalLM BloomModel", converters.bloom),
    _row("chameleon", "ChameleonForCausalLM ChameleonForConditionalGeneration"),
    _row("chatglm", "ChatGLMForConditionalGeneration ChatGLMModel GlmForCausalLM", converters.chatglm, 0.5),
    _row("codeshell", "CodeShellForCausalLM", converters.four_times),
    _row("cohere2", "Cohere2ForCausalLM", converters.window, 1.0),
    _row("cohere2moe", "Cohere2MoeForCausalLM", converters.cohere2_moe),
    _row("command-r", "CohereForCausalLM", converters.command_r),
    _row("dbrx", "DbrxForCausalLM", converters.dbrx),
    _row("deci", "DeciLMForCausalLM", converters.deci),
    _row("deepseek", "DeepseekForCausalLM"),
    _row("deepseek2-ocr", "DeepseekOCRForCausalLM UnlimitedOCRForCausalLM", converters.deepseek_ocr),
    _row(
        "deepseek2",
        "DeepseekV2ForCausalLM DeepseekV3ForCausalLM KimiK25ForConditionalGeneration KimiVLForConditionalGeneration YoutuForCausalLM "
        "YoutuVLForConditionalGeneration",
        converters.latent,
    ),
    _row("deepseek2", "Glm4MoeLiteForCausalLM", converters.latent_mtp),
    _row("deepseek32", "DeepseekV32ForCausalLM", converters.latent_mtp),
    _row("deepseek4", "DeepseekV4ForCausalLM", converters.deepseek4),
    _row("dots1", "Dots1ForCausalLM"),
    _row("dots3note", "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration Dots3NoteTextForCausalLM", converters.dots3),
    _row("ernie4_5", "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM"),
    _row("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", converters.ernie_moe),
    _row("exaone", "ExaoneForCausalLM", rotary=1.0),
    _row("exaone-moe", "ExaoneMoEForCausalLM ExaoneMoeForCausalLM", converters.exaone_moe),
    _row("exaone4", "Exaone4ForCausalLM", converters.listed_window),
    _row("exaone4", "Exaone4_5_ForConditionalGeneration", converters.windows_and_mtp),
    _row("falcon", "FalconForCausalLM RWForCausalLM", converters.falcon),
    _row("falcon-h1", "FalconH1ForCausalLM"),
    _row("gemma", "GemmaForCausalLM"),
    _row("gemma2", "Gemma2ForCausalLM", converters.window),
    _row("gemma3", "Gemma3ForCausalLM Gemma3ForConditionalGeneration", converters.gemma3),
    _row("gemma3n", "Gemma3nForCausalLM Gemma3nForConditionalGeneration", converters.gemma3n),
    _row("gemma4", "Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration", converters.gemma4),
    _row("glm-dsa", "GlmMoeDsaForCausalLM", converters.glm_dsa),
    _row("glm4", "Glm4ForCausalLM Glm4vForConditionalGeneration", rotary=0.5),
    _row("glm4", "GlmOcrForConditionalGeneration", converter_keys.mtp, 0.5),
    _row("glm4moe", "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration SolarOpenForCausalLM", converter_keys.mtp, 0.5),
    _row("glm5-next", "Glm5NextForConditionalGeneration", converters.glm5_next),
    _row("gpt-oss", "GptOssForCausalLM", converters.gpt_oss),
    _row("gpt2", "GPT2LMHeadModel", converters.four_times),
    _row("gptneox", "GPTNeoXForCausalLM", rotary=0.25),
    _row("granite", "GraniteForCausalLM"),
    _row("granite_swa", "GraniteMoeSWAForCausalLM GraniteSWAForCausalLM", converters.granite_swa),
    _row("granitehybrid", "BambaForCausalLM GraniteMoeHybridForCausalLM", converters.granite_hybrid),
    _row("granitemoe", "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM", converter_keys.granite_moe),
    _row("grok", "Grok1ForCausalLM GrokForCausalLM"),
    _row("hrm_text", "HrmTextForCausalLM", converters.hrm),
    _row("hunyuan-dense", "HunYuanDenseV1ForCausalLM", converters.hunyuan_dense),
    _row("hunyuan-moe", "HunYuanMoEV1ForCausalLM", converters.hunyuan_moe),
    _row("hunyuan_vl", "HunYuanVLForConditionalGeneration"),
    _row("hy_v3", "HYV3ForCausalLM", converters.hy3),
    _row("hy_v4", "HYV4ForCausalLM", converters.hy4),
    _row("internlm2", "InternLM2ForCausalLM"),
    _row("jais", "JAISLMHeadModel"),
    _row("jais2", "Jais2ForCausalLM"),
    _row("jamba", "JambaForCausalLM", converter_keys.scalar_heads),
    _row("kimi-k3", "KimiK3ForConditionalGeneration", converter_keys.scalar_heads),
    _row("kimi-linear", "KimiLinearForCausalLM KimiLinearModel", converters.kimi_linear),
    _row("laguna", "LagunaForCausalLM", converters.laguna, 1.0),
    _row("lfm2", "LFM2ForCausalLM Lfm2ForCausalLM", converters.lfm2),
    _row("lfm2moe", "Lfm2MoeForCausalLM", converters.lfm2_moe),
    _row(
        "llama",
        "IQuestCoderForCausalLM InternLM3ForCausalLM JanusForConditionalGeneration LLaMAForCausalLM LlamaForCausalLM LlamaModel "
        "LlavaForConditionalGeneration MistralForCausalLM MixtralForCausalLM VoxtralForConditionalGeneration",
    ),
    _row("llama4", "Llama4ForCausalLM Llama4ForConditionalGeneration", converters.llama4),
    _row("mamba", "FalconMambaForCausalLM MambaForCausalLM MambaLMHeadModel", converters.mamba),
    _row("mamba2", "Mamba2ForCausalLM", converters.mamba),
    _row("mellum", "MellumForCausalLM", converters.mellum),
    _row("mimo2", "MiMoV2FlashForCausalLM MiMoV2ForCausalLM", converters.mimo2, 1.0),
    _row("minicpm", "MiniCPMForCausalLM"),
    _row("minicpm3", "MiniCPM3ForCausalLM", converters.expanded_latent),
    _row("minimax-01", "MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM", converters.minimax01, 1.0),
    _row("minimax-m2", "MiniMaxM2ForCausalLM", converter_keys.experts_as_wide, 1.0),
    _row("minimax-m3", "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration", converters.minimax_m3, 1.0),
    _row("mistral3", "Ministral3ForCausalLM Mistral3ForConditionalGeneration"),
    _row("mpt", "MPTForCausalLM", converters.four_times),
    _row("muse-glimmer", "MuseGlimmerForConditionalGeneration", converters.listed_window),
    _row("nemotron", "NemotronForCausalLM", rotary=0.5),
    _row("nemotron_h", "NemotronHForCausalLM", converters.nemotron_h),
    _row("olmo", "OLMoForCausalLM OlmoForCausalLM"),
    _row("olmo2", "Olmo2ForCausalLM Olmo3ForCausalLM", converters.listed_window),
    _row("olmoe", "OlmoeForCausalLM"),
    _row("openelm", "OpenELMForCausalLM", converters.openelm),
    _row("orion", "OrionForCausalLM"),
    _row("paddleocr", "PaddleOCRVLForConditionalGeneration"),
    _row("phi2", "PhiForCausalLM", converters.four_times, 0.5),
    _row("phi3", "Phi3ForCausalLM Phi4ForCausalLMV", converters.window_or_zero, 1.0),
    _row("phimoe", "PhiMoEForCausalLM", converters.window_or_zero, 1.0, "phimoe"),
    _row("plamo", "PlamoForCausalLM", converters.plamo),
    _row("plamo2", "PLaMo2ForCausalLM Plamo2ForCausalLM", converters.plamo2),
    _row("plamo3", "PLaMo3ForCausalLM Plamo3ForCausalLM", converters.plamo3),
    _row("qwen", "QWenLMHeadModel"),
    _row(
        "qwen2",
        "AudioFlamingo3ForConditionalGeneration DotsOCRForCausalLM KORMoForCausalLM Qwen2AudioForConditionalGeneration Qwen2ForCausalLM "
        "Qwen2Model",
    ),
    _row("qwen2moe", "Qwen2MoeForCausalLM", converter_keys.shared_expert),
    _row("qwen2vl", "Qwen2VLForConditionalGeneration Qwen2VLModel Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration"),
    _row("qwen3", "Qwen3ForCausalLM Qwen3Model"),
    _row(
        "qwen35",
        "MiniCPMV4_6ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
        converters.qwen_next,
        0.25,
    ),
    _row("qwen35moe", "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration", converters.qwen_next_moe, 0.25),
    _row("qwen3moe", "Qwen3MoeForCausalLM"),
    _row("qwen3next", "Qwen3NextForCausalLM", converters.qwen_next_moe, 0.25),
    _row("qwen3vl", "Qwen3ASRForConditionalGeneration Qwen3VLForConditionalGeneration"),
    _row("qwen3vlmoe", "Qwen3OmniMoeForConditionalGeneration Qwen3VLMoeForConditionalGeneration"),
    _row("qwen4exp", "Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration", converters.qwen4, 0.25),
    _row("refact", "GPTRefactForCausalLM", converters.refact),
    _row("rwkv6", "Rwkv6ForCausalLM", converters.rwkv6),
    _row("rwkv7", "RWKV7ForCausalLM Rwkv7ForCausalLM", converters.rwkv7),
    _row("seed_oss", "SeedOssForCausalLM"),
    _row("smollm3", "SmolLM3ForCausalLM"),
    _row("stablelm", "LlavaStableLMEpochForCausalLM StableLMEpochForCausalLM StableLmForCausalLM", rotary=0.25),
    _row("starcoder", "GPTBigCodeForCausalLM", converters.four_times),
    _row("starcoder2", "Starcoder2ForCausalLM"),
    _row("step35", "Step3p5ForCausalLM Step3p7ForConditionalGeneration", converters.step35),
    _row(
        "t5",
        "MT5ForConditionalGeneration T5ForConditionalGeneration T5WithLMHeadModel UMT5ForConditionalGeneration UMT5Model",
        converters.t5,
    ),
    _row("xverse", "XverseForCausalLM"),
)
"""Every class that both the converter and kvplan know."""


@lru_cache(maxsize=1)
def _by_class() -> dict[str, Row]:
    return {name: row for row in ROWS for name in row.classes}


def row_of(name: str | None) -> Row | None:
    """The row of a model class; ``None`` for one that the converter or kvplan does not know."""
    return _by_class().get(name or "")


@lru_cache(maxsize=1)
def _by_type() -> dict[str, Row]:
    from hwcalc.parsers.registry import model_type_of_architecture

    rows: dict[str, Row] = {}
    for row in ROWS:
        for model_type in (row.model_type, *map(model_type_of_architecture, row.classes)):
            if model_type is not None:
                rows.setdefault(model_type, row)
    return rows


def row_of_type(model_type: str | None) -> Row | None:
    """The row of the classes of a model type, for a config that names no class."""
    return _by_type().get(model_type or "")


_FILE_TYPES = {"bf16": 32}
"""The type of file that ``--outtype auto`` makes of weights in bfloat16; of all others, single precision too, it makes float16 (1)."""

_LEVELS = ("text_config", "llm_config", "lm_config", "language_config", "thinker_config")
"""Where a file keeps the config of its language model, as the converter looks for it (conversion/base.py, load_hparams)."""

_TOP_FIRST = frozenset(
    {"Exaone4_5_ForConditionalGeneration", "KimiK3ForConditionalGeneration", "Step3p7ForConditionalGeneration"}
)
"""Classes that count although the config of their language model names another (conversion/base.py, get_model_architecture)."""


def gguf_keys(model: ModelSpec) -> Mapping[str, Any]:
    """The keys of a GGUF file for this model, as far as they bear on memory, and ``general.architecture``.

    They are those that llama.cpp's converter writes at commit 0c1e57098. Vision and audio towers go into a file of their own, which
    has other keys. Raises :class:`~hwcalc.errors.UnsupportedError` for a model that the converter does not know.
    """
    return model.once("gguf keys", lambda: _keys(model))


def _keys(model: ModelSpec) -> Mapping[str, Any]:
    row = row_for(model)
    source = source_of(model)
    try:
        keys = common_keys(source)
        if row.rotary is not None:
            _add_rotary(row.rotary, source, keys)
        if row.adds is not None:
            row.adds(source, keys)
    except (ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"the values of {model.id} do not make sense for llama.cpp: {shown(str(error), 100)}.") from error
    arch = _architecture(row, source, keys)
    general = {GGUF_ARCHITECTURE: arch} | ({} if model.dtype is None else {"general.file_type": _FILE_TYPES.get(model.dtype, 1)})
    return general | {key if key == VOCABULARY else f"{arch}.{key}": value for key, value in keys.items()}


def _add_rotary(default: float, source: Source, keys: Keys) -> None:
    """How much of a head is rotated."""
    length = keys.get("attention.key_length")
    if not isinstance(length, int):
        return
    dimensions = source.number("rotary_dim")
    share = source.fraction("partial_rotary_factor", "rotary_pct")
    share = default if share is None else share
    keys["rope.dimension_count"] = int(share * length) if dimensions is None else dimensions


def _architecture(row: Row, source: Source, keys: Keys) -> str:
    """The architecture of the row, or the one that a converter chooses by the content of the file."""
    if row.arch == "mistral3" and source.config.model_type == "mistral4":
        return "mistral4"
    if row.arch == "nemotron_h" and "expert_count" in keys:
        return "nemotron_h_moe"
    if row.arch == "granitehybrid" and "ssm.conv_kernel" not in keys:
        return "granitemoe" if keys.get("expert_used_count") else "granite"
    return row.arch


def row_for(model: ModelSpec) -> Row:
    """The converter of a model: by the class that the config of its language model names, else by that at the top, else by its type.

    A config that was put together from other sources may name a class that the published file does not: there, too, the type counts.
    """
    top, inner = _class(model.config), None
    level: Mapping[str, Any] = next((each for key in _LEVELS if isinstance(each := model.config.get(key), Mapping)), {})
    if isinstance(deeper := level.get("text_config"), Mapping) and "thinker_config" in model.config:
        level = deeper
    inner = _class(level)
    name = top if top in _TOP_FIRST or inner is None else inner
    row = row_of(name)
    reconstructed = any(note.code == FIDELITY for note in model.notes)
    if row is None and (name is None or reconstructed or (level and inner is None)):
        row = row_of_type(_type(level)) or row_of_type(_type(model.config))
    if row is None:
        what = f"The class {shown(name, 60)}" if name else f"model_type {shown(_type(model.config) or 'none', 60)}"
        raise UnsupportedError(
            f"{what} of {model.id} is none that llama.cpp converts to GGUF.",
            hint="Plan it with another engine: --engine reference, or see kvplan engines",
        )
    return row


def _class(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    return first if isinstance(first, str) else None


def _type(config: Mapping[str, Any]) -> str | None:
    found = config.get("model_type")
    return found if isinstance(found, str) else None

"""The metadata that llama.cpp's converter would write for a model that is described by a config.json: a row for each architecture.

Source of the rows: the ``register`` lines of conversion/*.py in llama.cpp 0c1e57098. Classes of models that kvplan does not read are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.formulas.weights import Part
from hwcalc.model import FIDELITY, GGUF_ARCHITECTURE, VOCABULARY, ModelSpec
from hwcalc.parsers.config import architecture_of
from hwcalc.parsers.gguf import converters as do
from hwcalc.parsers.gguf.converter_keys import common_keys, source_of
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.converters import Step


class Row(NamedTuple):
    """One converter: the architecture, the classes that it takes, and what it does besides the keys that most have.

    ``steps`` do it in turn: most models have none. ``rotary`` is the share of a head that is rotated where the config does not say;
    ``None``: the converter writes no other than the whole. ``model_type`` is that of the classes, where transformers' class of that
    type has another name.
    """

    arch: str
    classes: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    rotary: float | None = None
    model_type: str | None = None


def _row(arch: str, classes: str, *steps: Step, rotary: float | None = None, model_type: str | None = None) -> Row:
    return Row(arch, tuple(classes.split()), steps, rotary, model_type)


_COMMON: Final[Mapping[str, str]] = {
    "apertus": "ApertusForCausalLM", "arcee": "ArceeForCausalLM", "arctic": "ArcticForCausalLM",
    "baichuan": "BaiChuanForCausalLM BaichuanForCausalLM", "bailingmoe": "BailingMoeForCausalLM",
    "bitnet": "BitNetForCausalLM BitnetForCausalLM", "chameleon": "ChameleonForCausalLM ChameleonForConditionalGeneration",
    "deepseek": "DeepseekForCausalLM", "dots1": "Dots1ForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM",
    "falcon-h1": "FalconH1ForCausalLM", "gemma": "GemmaForCausalLM", "granite": "GraniteForCausalLM",
    "grok": "Grok1ForCausalLM GrokForCausalLM", "hunyuan_vl": "HunYuanVLForConditionalGeneration",
    "internlm2": "InternLM2ForCausalLM", "jais": "JAISLMHeadModel", "jais2": "Jais2ForCausalLM",
    "minicpm": "MiniCPMForCausalLM", "mistral3": "Ministral3ForCausalLM Mistral3ForConditionalGeneration",
    "olmo": "OLMoForCausalLM OlmoForCausalLM", "olmoe": "OlmoeForCausalLM", "orion": "OrionForCausalLM",
    "paddleocr": "PaddleOCRVLForConditionalGeneration", "pangu-embedded": "PanguEmbeddedForCausalLM",
    "qwen": "QWenLMHeadModel", "qwen3": "Qwen3ForCausalLM Qwen3Model",
    "qwen3moe": "Qwen3MoeForCausalLM", "qwen3vl": "Qwen3ASRForConditionalGeneration Qwen3VLForConditionalGeneration",
    "qwen3vlmoe": "Qwen3OmniMoeForConditionalGeneration Qwen3VLMoeForConditionalGeneration", "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM", "starcoder2": "Starcoder2ForCausalLM", "xverse": "XverseForCausalLM",
    "llama": "IQuestCoderForCausalLM InternLM3ForCausalLM JanusForConditionalGeneration LLaMAForCausalLM "
    "LlamaForCausalLM LlamaModel LlavaForConditionalGeneration MistralForCausalLM MixtralForCausalLM "
    "VoxtralForConditionalGeneration",
    "qwen2": "AudioFlamingo3ForConditionalGeneration DotsOCRForCausalLM KORMoForCausalLM "
    "Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2Model",
    "qwen2vl": "Qwen2VLForConditionalGeneration Qwen2VLModel Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration",
}  # fmt: skip
"""Classes with the keys that most have and no others, by architecture."""

ROWS: Final = (
    *(_row(arch, classes) for arch, classes in _COMMON.items()),
    _row("afmoe", "AfmoeForCausalLM", do.window(), do.copied({"leading_dense_block_count": "num_dense_layers"})),
    _row("bailingmoe2", "BailingMoeV2ForCausalLM", do.bailing2, do.mtp, rotary=0.5),
    _row("bert", "BertForMaskedLM BertForSequenceClassification BertModel CamembertModel", do.fixed({"attention.causal": False}),
        do.needed({"attention.head_count": "num_attention_heads"})),
    _row("bloom", "BloomForCausalLM BloomModel", do.four_times, do.as_long_as_wide),
    _row("chatglm", "ChatGLMForConditionalGeneration ChatGLMModel GlmForCausalLM", do.as_long_as_wide, do.chatglm, rotary=0.5),
    _row("codeshell", "CodeShellForCausalLM", do.four_times),
    _row("cohere2", "Cohere2ForCausalLM", do.window(), rotary=1.0),
    _row("cohere2moe", "Cohere2MoeForCausalLM", do.window(listed=True), do.mtp, do.cohere2_moe, do.leading_dense),
    _row("command-r", "CohereForCausalLM", do.copied({"context_length": "model_max_length"})),
    _row("dbrx", "DbrxForCausalLM", do.copied({"feed_forward_length": "ffn_hidden_size", "expert_count": "moe_num_experts",
        "expert_used_count": "moe_top_k"}, section="ffn_config")),
    _row("deci", "DeciLMForCausalLM", do.deci),
    _row("deepseek2-ocr", "DeepseekOCRForCausalLM UnlimitedOCRForCausalLM", do.window(), do.rotary, do.latent),
    _row("deepseek2", "DeepseekV2ForCausalLM DeepseekV3ForCausalLM KimiK25ForConditionalGeneration KimiVLForConditionalGeneration "
        "YoutuForCausalLM YoutuVLForConditionalGeneration", do.latent),
    _row("deepseek2", "Glm4MoeLiteForCausalLM", do.latent, do.mtp),
    _row("deepseek32", "DeepseekV32ForCausalLM", do.latent, do.mtp),
    _row("deepseek4", "DeepseekV4ForCausalLM", do.deepseek4),
    _row("dots3note", "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration Dots3NoteTextForCausalLM", do.latent,
        do.window(listed=True), do.dots3),
    _row("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", do.ernie_moe),
    _row("exaone", "ExaoneForCausalLM", rotary=1.0),
    _row("exaone-moe", "ExaoneMoEForCausalLM ExaoneMoeForCausalLM", do.window(listed=True), do.mtp, do.exaone_moe),
    _row("exaone4", "Exaone4ForCausalLM", do.window(listed=True)),
    _row("exaone4", "Exaone4_5_ForConditionalGeneration", do.window(listed=True), do.mtp),
    _row("falcon", "FalconForCausalLM RWForCausalLM", do.four_times, do.fixed({"context_length": 2048})),
    _row("gemma2", "Gemma2ForCausalLM", do.window()),
    _row("gemma3", "Gemma3ForCausalLM Gemma3ForConditionalGeneration", do.gemma3),
    _row("gemma3n", "Gemma3nForCausalLM Gemma3nForConditionalGeneration", do.gemma3, do.gemma3n),
    _row("gemma4", "Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration", do.gemma3,
        do.gemma4),
    _row("glm-dsa", "GlmMoeDsaForCausalLM", do.latent, do.mtp, do.indexer_types),
    _row("glm4", "Glm4ForCausalLM Glm4vForConditionalGeneration", rotary=0.5),
    _row("glm4", "GlmOcrForConditionalGeneration", do.mtp, rotary=0.5),
    _row("glm4moe", "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration SolarOpenForCausalLM", do.mtp, rotary=0.5),
    _row("glm5-next", "Glm5NextForConditionalGeneration", do.scalar_heads, do.mtp, do.glm5_next, do.indexer_types),
    _row("gpt-oss", "GptOssForCausalLM", do.window(), do.experts_as_wide),
    _row("gpt2", "GPT2LMHeadModel", do.four_times),
    _row("gptneox", "GPTNeoXForCausalLM", rotary=0.25),
    _row("granite_swa", "GraniteMoeSWAForCausalLM GraniteSWAForCausalLM", do.granite_swa, do.shared_mlp),
    _row("granitehybrid", "BambaForCausalLM GraniteMoeHybridForCausalLM", do.scalar_heads, do.shared_mlp, do.granite_hybrid),
    _row("granitemoe", "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM", do.shared_mlp),
    _row("hrm_text", "HrmTextForCausalLM", do.hrm),
    _row("hunyuan-dense", "HunYuanDenseV1ForCausalLM", do.without("expert_count"), do.stretched),
    _row("hunyuan-moe", "HunYuanMoEV1ForCausalLM", do.hunyuan_moe, do.stretched),
    _row("hy_v3", "HYV3ForCausalLM", do.hy3, do.mtp),
    _row("hy_v4", "HYV4ForCausalLM", do.leading_dense, do.latent, do.hy4),
    _row("jamba", "JambaForCausalLM", do.scalar_heads),
    _row("kimi-k3", "KimiK3ForConditionalGeneration", do.scalar_heads),
    _row("kimi-linear", "KimiLinearForCausalLM KimiLinearModel", do.scalar_heads, do.without("attention.value_length")),
    _row("laguna", "LagunaForCausalLM", do.laguna, do.leading_dense, rotary=1.0),
    _row("lfm2", "LFM2ForCausalLM Lfm2ForCausalLM", do.lfm2, do.copied({"shortconv.l_cache": "conv_L_cache"})),
    _row("lfm2moe", "Lfm2MoeForCausalLM", do.copied({"leading_dense_block_count": "num_dense_layers",
        "shortconv.l_cache": "conv_L_cache"})),
    _row("llama4", "Llama4ForCausalLM Llama4ForConditionalGeneration", do.needed({"feed_forward_length": "intermediate_size_mlp",
        "expert_feed_forward_length": "intermediate_size"}), do.llama4),
    _row("mamba", "FalconMambaForCausalLM MambaForCausalLM MambaLMHeadModel", do.any_length, do.fixed({"feed_forward_length": 0,
        "attention.head_count": 0})),
    _row("mamba2", "Mamba2ForCausalLM", do.any_length, do.fixed({"feed_forward_length": 0, "attention.head_count": 0})),
    _row("mellum", "MellumForCausalLM", do.mellum),
    _row("mimo2", "MiMoV2FlashForCausalLM MiMoV2ForCausalLM", do.window(listed=True), do.mimo2, rotary=1.0),
    _row("minicpm3", "MiniCPM3ForCausalLM", do.expanded_latent),
    _row("minimax-01", "MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM", do.equal_keys, rotary=1.0),
    _row("minimax-m2", "MiniMaxM2ForCausalLM", do.experts_as_wide, rotary=1.0),
    _row("minimax-m3", "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration", do.experts_as_wide, do.minimax_m3,
        rotary=1.0),
    _row("mpt", "MPTForCausalLM", do.four_times),
    _row("muse-glimmer", "MuseGlimmerForConditionalGeneration", do.window(listed=True)),
    _row("nemotron", "NemotronForCausalLM", rotary=0.5),
    _row("nemotron_h", "NemotronHForCausalLM", do.nemotron_h),
    _row("olmo2", "Olmo2ForCausalLM Olmo3ForCausalLM", do.window(listed=True)),
    _row("openelm", "OpenELMForCausalLM", do.openelm),
    _row("phi2", "PhiForCausalLM", do.four_times, rotary=0.5),
    _row("phi3", "Phi3ForCausalLM Phi4ForCausalLMV", do.fixed({"attention.sliding_window": 0}), do.window(), rotary=1.0),
    _row("phimoe", "PhiMoEForCausalLM", do.fixed({"attention.sliding_window": 0}), do.window(), rotary=1.0, model_type="phimoe"),
    _row("plamo", "PlamoForCausalLM", do.fixed({"context_length": 4096})),
    _row("plamo2", "PLaMo2ForCausalLM Plamo2ForCausalLM", do.plamo2),
    _row("plamo3", "PLaMo3ForCausalLM Plamo3ForCausalLM", do.window(), do.plamo3),
    _row("qwen2moe", "Qwen2MoeForCausalLM", do.shared_expert),
    _row("qwen35", "MiniCPMV4_6ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration", do.interval,
        do.qwen_next, rotary=0.25),
    _row("qwen35moe", "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration", do.shared_expert, do.interval, do.qwen_next,
        rotary=0.25),
    _row("qwen3next", "Qwen3NextForCausalLM", do.shared_expert, do.interval, do.qwen_next, rotary=0.25),
    _row("qwen4exp", "Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration", do.shared_expert, do.interval, do.qwen4,
        rotary=0.25),
    _row("refact", "GPTRefactForCausalLM", do.refact),
    _row("rwkv6", "Rwkv6ForCausalLM", do.any_length, do.wide(3.5, 32)),
    _row("rwkv7", "RWKV7ForCausalLM Rwkv7ForCausalLM", do.any_length, do.wide(4)),
    _row("stablelm", "LlavaStableLMEpochForCausalLM StableLMEpochForCausalLM StableLmForCausalLM", rotary=0.25),
    _row("starcoder", "GPTBigCodeForCausalLM", do.four_times),
    _row("smallthinker", "SmallThinkerForCausalLM", do.small_thinker),
    _row("step35", "Step3p5ForCausalLM Step3p7ForConditionalGeneration", do.window(listed=True), do.mtp, do.step35),
    _row("t5", "MT5ForConditionalGeneration T5ForConditionalGeneration T5WithLMHeadModel UMT5ForConditionalGeneration UMT5Model",
        do.t5),
)  # fmt: skip
"""Every class that both the converter and kvplan know."""


@lru_cache(maxsize=1)
def _by_class() -> dict[str, Row]:
    return {name: row for row in ROWS for name in row.classes}


@lru_cache(maxsize=1)
def _by_type() -> dict[str, Row]:
    from hwcalc.parsers.registry import model_type_of_architecture

    rows: dict[str, Row] = {}
    for row in ROWS:
        for model_type in (row.model_type, *map(model_type_of_architecture, row.classes)):
            if model_type is not None:
                rows.setdefault(model_type, row)
    return rows


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


def without_prediction(model: ModelSpec) -> ModelSpec:
    """The model as a file has it that was made without the layers for multi-token prediction (``--no-mtp``)."""
    counted = model.counted
    if counted is not None:
        counted = replace(counted, blocks=tuple(block for block in counted.blocks if block.part is not Part.MTP))
    return replace(model, counted=counted, facts=replace(model.facts, mtp_modules=0))


def _trunk(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys without the blocks for multi-token prediction: lists with an entry for each block end where the others do."""
    blocks = keys["block_count"] - keys["nextn_predict_layers"]
    kept = {name: value for name, value in keys.items() if name != "nextn_predict_layers"} | {"block_count": blocks}
    whole = keys["block_count"]
    return {name: value[:blocks] if isinstance(value, list) and len(value) == whole else value for name, value in kept.items()}


def _keys(model: ModelSpec) -> Mapping[str, Any]:
    row = row_for(model)
    source = source_of(model)
    try:
        keys = common_keys(source)
        length = keys.get("attention.key_length")
        if row.rotary is not None and isinstance(length, int):
            # How much of a head is rotated.
            dimensions, share = source.number("rotary_dim"), source.fraction("partial_rotary_factor", "rotary_pct")
            rotated = int((row.rotary if share is None else share) * length)
            keys["rope.dimension_count"] = rotated if dimensions is None else dimensions
        for step in row.steps:
            step(source, keys)
    except (ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"the values of {model.id} do not make sense for llama.cpp: {shown(str(error), 100)}.") from error
    if model.facts.mtp_modules == 0 and keys.get("nextn_predict_layers"):
        keys = _trunk(keys)
    # A converter may choose another architecture by the content of the file.
    arch = row.arch
    if arch == "mistral3" and source.config.model_type == "mistral4":
        arch = "mistral4"
    elif arch == "nemotron_h" and "expert_count" in keys:
        arch = "nemotron_h_moe"
    elif arch == "granitehybrid" and "ssm.conv_kernel" not in keys:
        arch = "granitemoe" if keys.get("expert_used_count") else "granite"
    general = {GGUF_ARCHITECTURE: arch} | ({} if model.dtype is None else {"general.file_type": _FILE_TYPES.get(model.dtype, 1)})
    return general | {key if key == VOCABULARY else f"{arch}.{key}": value for key, value in keys.items()}


def row_for(model: ModelSpec) -> Row:
    """The converter of a model: by the class that the config of its language model names, else by that at the top, else by its type.

    A config that was put together from other sources may name a class that the published file does not: there, too, the type counts.
    """
    top = architecture_of(model.config)
    level: Mapping[str, Any] = next((each for key in _LEVELS if isinstance(each := model.config.get(key), Mapping)), {})
    if isinstance(deeper := level.get("text_config"), Mapping) and "thinker_config" in model.config:
        level = deeper
    inner = architecture_of(level)
    name = top if top in _TOP_FIRST or inner is None else inner
    row = _by_class().get(name or "")
    reconstructed = any(note.code == FIDELITY for note in model.notes)
    if row is None and (name is None or reconstructed or (level and inner is None)):
        row = _by_type().get(_type(level) or "") or _by_type().get(_type(model.config) or "")
    if row is None:
        kind = _type(model.config)
        what = f"The class {shown(name, 60)}" if name else f"model_type {shown(kind or '', 60)}"
        message = f"{what} of {model.id} is none that llama.cpp converts to GGUF."
        if not (name or kind):
            message = f"{model.id} names no class and no model_type, by which llama.cpp converts models to GGUF."
        raise UnsupportedError(message, hint="Plan it with another engine: --engine reference, or see kvplan engines")
    return row


def _type(config: Mapping[str, Any]) -> str | None:
    found = config.get("model_type")
    return found if isinstance(found, str) else None

"""Which GGUF architecture llama.cpp's converter writes for a model class, and what it does there in a way of its own.

Source: the ``register`` lines of conversion/*.py in llama.cpp 0c1e57098. Classes of models that kvplan does not read are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source

__all__ = ["ROWS", "Row", "row_of"]


class Row(NamedTuple):
    """One converter: the architecture, the classes that it takes, and what it does besides the keys that most have.

    ``own`` names the module of this folder and the function that does it: most models have none. ``rotary`` is the share of a head that is
    rotated where the config does not say; ``None``: the converter writes no other than the whole. ``model_type`` is that of the classes,
    where transformers' class of that type has another name.
    """

    arch: str
    classes: tuple[str, ...]
    own: str | None = None
    rotary: float | None = None
    model_type: str | None = None

    @property
    def adds(self) -> Callable[[Source, Keys], None] | None:
        """The function of ``own``."""
        if self.own is None:
            return None
        module, _, name = self.own.partition(".")
        found: Callable[[Source, Keys], None] = getattr(import_module(f"{__package__}.{module}"), name)
        return found


def _row(arch: str, classes: str, own: str | None = None, rotary: float | None = None, model_type: str | None = None) -> Row:
    return Row(arch, tuple(classes.split()), own, rotary, model_type)


ROWS: Final = (
    _row("afmoe", "AfmoeForCausalLM", "windows.afmoe"),
    _row("apertus", "ApertusForCausalLM"),
    _row("arcee", "ArceeForCausalLM"),
    _row("arctic", "ArcticForCausalLM"),
    _row("baichuan", "BaiChuanForCausalLM BaichuanForCausalLM"),
    _row("bailingmoe", "BailingMoeForCausalLM"),
    _row("bailingmoe2", "BailingMoeV2ForCausalLM", "sizes.bailing2", 0.5),
    _row("bert", "BertForMaskedLM BertForSequenceClassification BertModel CamembertModel", "sizes.encoder"),
    _row("bitnet", "BitNetForCausalLM BitnetForCausalLM"),
    _row("bloom", "BloomForCausalLM BloomModel", "sizes.bloom"),
    _row("chameleon", "ChameleonForCausalLM ChameleonForConditionalGeneration"),
    _row("chatglm", "ChatGLMForConditionalGeneration ChatGLMModel GlmForCausalLM", "sizes.chatglm", 0.5),
    _row("codeshell", "CodeShellForCausalLM", "sizes.four_times"),
    _row("cohere2", "Cohere2ForCausalLM", "windows.window", 1.0),
    _row("cohere2moe", "Cohere2MoeForCausalLM", "windows.cohere2_moe"),
    _row("command-r", "CohereForCausalLM", "sizes.command_r"),
    _row("dbrx", "DbrxForCausalLM", "sizes.dbrx"),
    _row("deci", "DeciLMForCausalLM", "sizes.deci"),
    _row("deepseek", "DeepseekForCausalLM"),
    _row("deepseek2-ocr", "DeepseekOCRForCausalLM UnlimitedOCRForCausalLM", "latents.deepseek_ocr"),
    _row(
        "deepseek2",
        "DeepseekV2ForCausalLM DeepseekV3ForCausalLM KimiK25ForConditionalGeneration KimiVLForConditionalGeneration YoutuForCausalLM "
        "YoutuVLForConditionalGeneration",
        "latents.latent",
    ),
    _row("deepseek2", "Glm4MoeLiteForCausalLM", "latents.latent_mtp"),
    _row("deepseek32", "DeepseekV32ForCausalLM", "latents.latent_mtp"),
    _row("deepseek4", "DeepseekV4ForCausalLM", "latents.deepseek4"),
    _row("dots1", "Dots1ForCausalLM"),
    _row("dots3note", "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration Dots3NoteTextForCausalLM", "latents.dots3"),
    _row("ernie4_5", "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM"),
    _row("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "sizes.ernie_moe"),
    _row("exaone", "ExaoneForCausalLM", rotary=1.0),
    _row("exaone-moe", "ExaoneMoEForCausalLM ExaoneMoeForCausalLM", "windows.exaone_moe"),
    _row("exaone4", "Exaone4ForCausalLM", "windows.listed_window"),
    _row("exaone4", "Exaone4_5_ForConditionalGeneration", "windows.windows_and_mtp"),
    _row("falcon", "FalconForCausalLM RWForCausalLM", "sizes.falcon"),
    _row("falcon-h1", "FalconH1ForCausalLM"),
    _row("gemma", "GemmaForCausalLM"),
    _row("gemma2", "Gemma2ForCausalLM", "windows.window"),
    _row("gemma3", "Gemma3ForCausalLM Gemma3ForConditionalGeneration", "windows.gemma3"),
    _row("gemma3n", "Gemma3nForCausalLM Gemma3nForConditionalGeneration", "windows.gemma3n"),
    _row("gemma4", "Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration", "windows.gemma4"),
    _row("glm-dsa", "GlmMoeDsaForCausalLM", "latents.glm_dsa"),
    _row("glm4", "Glm4ForCausalLM Glm4vForConditionalGeneration", rotary=0.5),
    _row("glm4", "GlmOcrForConditionalGeneration", "shared.mtp", 0.5),
    _row("glm4moe", "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration SolarOpenForCausalLM", "shared.mtp", 0.5),
    _row("glm5-next", "Glm5NextForConditionalGeneration", "latents.glm5_next"),
    _row("gpt-oss", "GptOssForCausalLM", "windows.gpt_oss"),
    _row("gpt2", "GPT2LMHeadModel", "sizes.four_times"),
    _row("gptneox", "GPTNeoXForCausalLM", rotary=0.25),
    _row("granite", "GraniteForCausalLM"),
    _row("granite_swa", "GraniteMoeSWAForCausalLM GraniteSWAForCausalLM", "windows.granite_swa"),
    _row("granitehybrid", "BambaForCausalLM GraniteMoeHybridForCausalLM", "states.granite_hybrid"),
    _row("granitemoe", "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM", "shared.granite_moe"),
    _row("grok", "Grok1ForCausalLM GrokForCausalLM"),
    _row("hrm_text", "HrmTextForCausalLM", "sizes.hrm"),
    _row("hunyuan-dense", "HunYuanDenseV1ForCausalLM", "sizes.hunyuan_dense"),
    _row("hunyuan-moe", "HunYuanMoEV1ForCausalLM", "sizes.hunyuan_moe"),
    _row("hunyuan_vl", "HunYuanVLForConditionalGeneration"),
    _row("hy_v3", "HYV3ForCausalLM", "sizes.hy3"),
    _row("hy_v4", "HYV4ForCausalLM", "latents.hy4"),
    _row("internlm2", "InternLM2ForCausalLM"),
    _row("jais", "JAISLMHeadModel"),
    _row("jais2", "Jais2ForCausalLM"),
    _row("jamba", "JambaForCausalLM", "shared.scalar_heads"),
    _row("kimi-k3", "KimiK3ForConditionalGeneration", "shared.scalar_heads"),
    _row("kimi-linear", "KimiLinearForCausalLM KimiLinearModel", "latents.kimi_linear"),
    _row("laguna", "LagunaForCausalLM", "windows.laguna", 1.0),
    _row("lfm2", "LFM2ForCausalLM Lfm2ForCausalLM", "states.lfm2"),
    _row("lfm2moe", "Lfm2MoeForCausalLM", "states.lfm2_moe"),
    _row(
        "llama",
        "IQuestCoderForCausalLM InternLM3ForCausalLM JanusForConditionalGeneration LLaMAForCausalLM LlamaForCausalLM LlamaModel "
        "LlavaForConditionalGeneration MistralForCausalLM MixtralForCausalLM VoxtralForConditionalGeneration",
    ),
    _row("llama4", "Llama4ForCausalLM Llama4ForConditionalGeneration", "windows.llama4"),
    _row("mamba", "FalconMambaForCausalLM MambaForCausalLM MambaLMHeadModel", "states.mamba"),
    _row("mamba2", "Mamba2ForCausalLM", "states.mamba"),
    _row("mellum", "MellumForCausalLM", "windows.mellum"),
    _row("mimo2", "MiMoV2FlashForCausalLM MiMoV2ForCausalLM", "windows.mimo2", 1.0),
    _row("minicpm", "MiniCPMForCausalLM"),
    _row("minicpm3", "MiniCPM3ForCausalLM", "latents.expanded_latent"),
    _row("minimax-01", "MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM", "states.minimax01", 1.0),
    _row("minimax-m2", "MiniMaxM2ForCausalLM", "shared.experts_as_wide", 1.0),
    _row("minimax-m3", "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration", "latents.minimax_m3", 1.0),
    _row("mistral3", "Ministral3ForCausalLM Mistral3ForConditionalGeneration"),
    _row("mpt", "MPTForCausalLM", "sizes.four_times"),
    _row("muse-glimmer", "MuseGlimmerForConditionalGeneration", "windows.listed_window"),
    _row("nemotron", "NemotronForCausalLM", rotary=0.5),
    _row("nemotron_h", "NemotronHForCausalLM", "states.nemotron_h"),
    _row("olmo", "OLMoForCausalLM OlmoForCausalLM"),
    _row("olmo2", "Olmo2ForCausalLM Olmo3ForCausalLM", "windows.listed_window"),
    _row("olmoe", "OlmoeForCausalLM"),
    _row("openelm", "OpenELMForCausalLM", "sizes.openelm"),
    _row("orion", "OrionForCausalLM"),
    _row("paddleocr", "PaddleOCRVLForConditionalGeneration"),
    _row("phi2", "PhiForCausalLM", "sizes.four_times", 0.5),
    _row("phi3", "Phi3ForCausalLM Phi4ForCausalLMV", "windows.window_or_zero", 1.0),
    _row("phimoe", "PhiMoEForCausalLM", "windows.window_or_zero", 1.0, "phimoe"),
    _row("plamo", "PlamoForCausalLM", "sizes.plamo"),
    _row("plamo2", "PLaMo2ForCausalLM Plamo2ForCausalLM", "states.plamo2"),
    _row("plamo3", "PLaMo3ForCausalLM Plamo3ForCausalLM", "windows.plamo3"),
    _row("qwen", "QWenLMHeadModel"),
    _row(
        "qwen2",
        "AudioFlamingo3ForConditionalGeneration DotsOCRForCausalLM KORMoForCausalLM Qwen2AudioForConditionalGeneration Qwen2ForCausalLM "
        "Qwen2Model",
    ),
    _row("qwen2moe", "Qwen2MoeForCausalLM", "shared.shared_expert"),
    _row("qwen2vl", "Qwen2VLForConditionalGeneration Qwen2VLModel Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration"),
    _row("qwen3", "Qwen3ForCausalLM Qwen3Model"),
    _row(
        "qwen35",
        "MiniCPMV4_6ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
        "states.qwen_next",
        0.25,
    ),
    _row("qwen35moe", "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration", "states.qwen_next_moe", 0.25),
    _row("qwen3moe", "Qwen3MoeForCausalLM"),
    _row("qwen3next", "Qwen3NextForCausalLM", "states.qwen_next_moe", 0.25),
    _row("qwen3vl", "Qwen3ASRForConditionalGeneration Qwen3VLForConditionalGeneration"),
    _row("qwen3vlmoe", "Qwen3OmniMoeForConditionalGeneration Qwen3VLMoeForConditionalGeneration"),
    _row("qwen4exp", "Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration", "states.qwen4", 0.25),
    _row("refact", "GPTRefactForCausalLM", "sizes.refact"),
    _row("rwkv6", "Rwkv6ForCausalLM", "states.rwkv6"),
    _row("rwkv7", "RWKV7ForCausalLM Rwkv7ForCausalLM", "states.rwkv7"),
    _row("seed_oss", "SeedOssForCausalLM"),
    _row("smollm3", "SmolLM3ForCausalLM"),
    _row("stablelm", "LlavaStableLMEpochForCausalLM StableLMEpochForCausalLM StableLmForCausalLM", rotary=0.25),
    _row("starcoder", "GPTBigCodeForCausalLM", "sizes.four_times"),
    _row("starcoder2", "Starcoder2ForCausalLM"),
    _row("step35", "Step3p5ForCausalLM Step3p7ForConditionalGeneration", "windows.step35"),
    _row(
        "t5",
        "MT5ForConditionalGeneration T5ForConditionalGeneration T5WithLMHeadModel UMT5ForConditionalGeneration UMT5Model",
        "sizes.t5",
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

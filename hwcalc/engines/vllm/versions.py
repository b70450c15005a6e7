"""Releases of vLLM: how a version is spelled, and the model classes that a release does not have.

The rules that changed between releases are in :mod:`hwcalc.engines.vllm.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.formulas import Role
from hwcalc.model import ModelSpec

__all__ = ["NEWEST", "VERSIONS", "Version", "check_architecture", "numbers", "resolve", "runs_second_runner"]

_OLDEST: Final = 8
VERSIONS: Final = tuple(f"0.{number}" for number in range(33, _OLDEST - 1, -1))
NEWEST: Final = VERSIONS[0]
_CROSS_UNTIL: Final = 10

Version = tuple[int, ...]
_LAST_PATCH: Final = 999

# Model class -> the last version that has it. Dots1ForCausalLM was removed too, but vLLM runs the class of transformers instead.
_REMOVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Phi3SmallForCausalLM": "0.9.2",
        "MotifForCausalLM": "0.10.2",
        "Phi4FlashForCausalLM": "0.10.2",
        "MllamaForConditionalGeneration": "0.10.2",
        "DonutForConditionalGeneration": "0.10.2",
        "BartForConditionalGeneration": "0.10.2",
        "MBartForConditionalGeneration": "0.10.2",
        "Florence2ForConditionalGeneration": "0.10.2",
        "Phi4MultimodalForCausalLM": "0.12.0",
        "JAISLMHeadModel": "0.22.0",
        "InternLM2VEForCausalLM": "0.23.0",
        "QWenLMHeadModel": "0.23.0",
        "QwenVLForConditionalGeneration": "0.23.0",
        "InternLMForCausalLM": "0.23.0",
        "XverseForCausalLM": "0.23.0",
        "BambaForCausalLM": "0.23.0",
        "MiniMaxForCausalLM": "0.23.0",
        "MiniMaxText01ForCausalLM": "0.23.0",
        "MiniMaxM1ForCausalLM": "0.23.0",
        "MiniMaxVL01ForConditionalGeneration": "0.23.0",
        "BaiChuanForCausalLM": "0.23.0",
        "BaichuanForCausalLM": "0.23.0",
        "Tarsier2ForConditionalGeneration": "0.23.0",
        "AquilaModel": "0.24.0",
        "AquilaForCausalLM": "0.24.0",
        "Grok1ModelForCausalLM": "0.24.0",
        "Grok1ForCausalLM": "0.24.0",
        "TarsierForConditionalGeneration": "0.24.0",
        "MantisForConditionalGeneration": "0.24.0",
        "AyaVisionForConditionalGeneration": "0.24.0",
        "TeleChatForCausalLM": "0.25.0",
        "PersimmonForCausalLM": "0.25.0",
        "FuyuForCausalLM": "0.25.0",
        "Plamo2ForCausalLM": "0.26.0",
        "OuroForCausalLM": "0.26.0",
        "ArcticForCausalLM": "0.28.0",
        "ChameleonForConditionalGeneration": "0.28.0",
        "HCXVisionForCausalLM": "0.28.0",
        "MPTForCausalLM": "0.28.0",
        "MptForCausalLM": "0.28.0",
        "RWForCausalLM": "0.28.0",
        "StableLMEpochForCausalLM": "0.28.0",
    }
)

# Classes that vLLM does not run, not even through its Transformers backend, by registry.py and the flags of the classes (5.23).
_NEVER: Final = frozenset(
    {
        "BigBirdForCausalLM",
        "CodeGenForCausalLM",
        "CpmAntForCausalLM",
        "GPTNeoForCausalLM",
        "GPTNeoXJapaneseForCausalLM",
        "MegatronBertForCausalLM",
        "MiniMaxM3ForCausalLM",
        "OpenAIGPTLMHeadModel",
        "ReformerModelWithLMHead",
        "RemBertForCausalLM",
        "RoFormerForCausalLM",
        "Step3p7FlashForCausalLM",
        "XGLMForCausalLM",
        "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    }
)
# DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES of config/vllm.py, with the first release that lists them (0.26 or later).
_SECOND_RUNNER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DeepseekV2ForCausalLM": "0.26",
        "DeepseekV4ForCausalLM": "0.28",
        "GraniteMoeForCausalLM": "0.26",
        "InklingForCausalLM": "0.26",
        "InklingForConditionalGeneration": "0.26",
        "KimiK3ForConditionalGeneration": "0.27",
        "LongcatFlashNgramForCausalLM": "0.26",
        "Qwen2MoeForCausalLM": "0.26",
    }
)
# Prefixes of the classes with cross attention that the V1 engine still runs.
_CROSS: Final = ("Whisper", "CohereAsr", "Nemotron")


def numbers(version: str, *, first: bool = False) -> Version:
    """The numbers of a version, for comparison. A version without a patch is its last patch, or its first one.

    >>> numbers("0.20.1"), numbers("0.20"), numbers("0.20", first=True)
    ((0, 20, 1), (0, 20, 999), (0, 20, 0))
    """
    parts = tuple(int(part) for part in version.split("."))
    return parts if len(parts) > 2 else (*parts, 0 if first else _LAST_PATCH)


def resolve(requested: str) -> str:
    """The release that a spelling names: ``0.20.1`` for ``v0.20.1``, and ``0.20``, its last patch, for ``0.20``."""
    parts = requested.removeprefix("v").split(".")
    if parts[-1].startswith("post"):
        parts.pop()
    if 2 <= len(parts) <= 4 and all(part.isdecimal() and len(part) < 4 for part in parts):
        version = [int(part) for part in parts]
        if f"{version[0]}.{version[1]}" in VERSIONS:
            return ".".join(map(str, version))
    raise UnknownNameError(
        f"--engine vllm@{requested[:20]}: no rules for that version.",
        option="engine",
        hint=f"Known: {VERSIONS[-1]} to {VERSIONS[0]}.",
    )


def runs_second_runner(model: ModelSpec, version: Version) -> bool:
    """Whether 0.26 to 0.28 run the model on the V2 runner: dense models with attention only, and a list of model classes."""
    first = next((since for architecture, since in _SECOND_RUNNER.items() if architecture == model.architecture), None)
    if first is not None:
        return version >= numbers(first, first=True)
    kinds = [tensor.role for group in model.stack_for("vllm").groups for tensor in group.kind.tensors()]
    blocks = () if model.counted is None else model.counted.blocks
    routed = any(weight.copies > 1 for block in blocks for weight in block.weights)
    return not routed and Role.STATE not in kinds and Role.CONV not in kinds


def check_architecture(architecture: str | None, version: str, *, cross: bool) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` if ``version`` does not run the model class.

    ``cross`` says whether the model has cross attention.
    """
    lost = cross and numbers(version)[1] > _CROSS_UNTIL and not (architecture or "").startswith(_CROSS)
    if architecture in _NEVER or (lost and architecture not in _REMOVED):
        raise UnsupportedError(f"vLLM does not run {architecture}.", hint="Use: --engine transformers")
    last = _REMOVED.get(architecture or "")
    if last is None or numbers(version)[:2] <= numbers(last)[:2]:
        return
    raise UnsupportedError(
        f"vLLM {version} does not run {architecture}: needs vLLM <= {last}.",
        hint=f"Use: --engine vllm@{last.rpartition('.')[0]}, or another engine.",
    )

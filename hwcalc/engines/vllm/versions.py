"""Changes between versions of vLLM, and the model classes that a version no longer has.

==================================================  ==============================  ==============
behaviour                                           older                           since
==================================================  ==============================  ==============
page of a multi-head latent layer                   rows padded to 640 elements     plain (0.8)
logged tokens of several groups                     (blocks // groups) x block      0.21
share of the GPU, when the user gives none          0.9                             0.92 (0.21)
CUDA graph memory                                   not subtracted                  0.21
fewer blocks for states than requests               graphs for fewer requests       no start (0.19)
batches in flight that windowed layers allow for    one                             two (0.24)
==================================================  ==============================  ==============

Sources: start-up messages of vLLM ("default since v0.21.0"); pull request 47728, which frees blocks by processed tokens and is not in
0.23.0; ``model_executor/models/registry.py`` of 0.33 for the model classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.errors import UnknownNameError, UnsupportedError

__all__ = ["NEWEST", "VERSIONS", "check_architecture", "minor", "resolve"]

NEWEST: Final = 33
_OLDEST: Final = 7
VERSIONS: Final = tuple(f"0.{number}" for number in range(NEWEST, _OLDEST - 1, -1))

PLAIN_LATENT_SINCE: Final = 8
GROUP_AWARE_LOG_SINCE: Final = 21
IN_FLIGHT_SINCE: Final = 24
_CROSS_UNTIL: Final = 10
STATES_CHECKED_SINCE: Final = 19

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
# Prefixes of the classes with cross attention that the V1 engine still runs.
_CROSS: Final = ("Whisper", "CohereAsr", "Nemotron")


def minor(version: str) -> int:
    """The minor version: 33 for ``0.33``."""
    return int(version.split(".")[1])


def resolve(requested: str) -> str:
    """The known version of a spelling: ``0.20`` for ``0.20``, ``0.20.1`` and ``v0.20``."""
    parts = requested.removeprefix("v").split(".")
    if 2 <= len(parts) <= 3 and all(part.isdecimal() and len(part) < 4 for part in parts):
        version = f"{int(parts[0])}.{int(parts[1])}"
        if version in VERSIONS:
            return version
    raise UnknownNameError(
        f"--engine vllm@{requested[:20]}: no rules for that version.",
        option="engine",
        hint=f"Known: {VERSIONS[-1]} to {VERSIONS[0]}.",
    )


def check_architecture(architecture: str | None, version: str, *, cross: bool) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` if ``version`` does not run the model class.

    ``cross`` says whether the model has cross attention.
    """
    lost = cross and minor(version) > _CROSS_UNTIL and not (architecture or "").startswith(_CROSS)
    if architecture in _NEVER or (lost and architecture not in _REMOVED):
        raise UnsupportedError(f"vLLM does not run {architecture}.", hint="Use: --engine transformers")
    last = _REMOVED.get(architecture or "")
    if last is None or minor(version) <= minor(last):
        return
    raise UnsupportedError(
        f"vLLM {version} does not run {architecture}: needs vLLM <= {last}.",
        hint=f"Use: --engine vllm@{last.rpartition('.')[0]}, or another engine.",
    )

"""The model classes that a release of vLLM runs.

``architectures.json`` has the classes that releases from 0.6 on list: ``since`` is the first release whose registry lists the class
(``model_executor/models/registry.py``), ``until`` the last one, and ``v1`` the first whose V1 engine runs it, if V0 alone did before
(the mixin ``SupportsV0Only``). A class that is gone, but runs through the Transformers backend, has no ``until``. ``transformers``
is the first release that ran the class through this backend before its own registry had it, where that was seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.data import data_file
from hwcalc.engines.vllm.rules import Rules, rules_of
from hwcalc.engines.vllm.versions import since
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import CrossAttention
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

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
_CROSS_UNTIL: Final = 10
PLAIN_HYBRIDS: Final = "0.10"
"""The first release that runs windowed layers and hybrids without further options."""
_NEVER_ON_V1: Final = "never"
_EXPANDED_LATENTS: Final = frozenset({"MiniCPM3ForCausalLM"})


@lru_cache(maxsize=1)
def _releases() -> Mapping[str, Mapping[str, str]]:
    return MappingProxyType(json.loads(data_file(__file__, "architectures.json").read_text("utf-8")))


def expands_latents(model: ModelSpec, rules: Rules) -> bool:
    """Whether vLLM runs latent layers of this model with full keys and values for every head."""
    return model.architecture in _EXPANDED_LATENTS or (model.model_type == "kimi_k2" and not rules.kimi_k2_latents)


def check_architecture(model: ModelSpec, version: str) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` if ``version`` does not run the class of the model."""
    release, name = planned_version(version), model.architecture or ""
    known = _releases().get(name, {})
    cross = any(isinstance(group.kind, CrossAttention) for group in model.stack_for("vllm").groups)
    lost = cross and bool(name) and release[1] > _CROSS_UNTIL and not name.startswith(_CROSS)
    if name in _NEVER or (lost and "until" not in known):
        raise UnsupportedError(f"vLLM does not run {name}.", hint="Use: --engine transformers")
    if "until" in known and release[:2] > since(known["until"])[:2]:
        last = known["until"]
        raise UnsupportedError(
            f"vLLM {version} does not run {name}: needs vLLM <= {last}.",
            hint=f"Use: --engine vllm@{last.rpartition('.')[0]}, or another engine.",
        )
    if "since" in known and release < since(known.get("transformers", known["since"])):
        raise UnsupportedError(
            f"vLLM {version} does not know {name}: needs vLLM >= {known['since']}.",
            hint=newer_release(model, known["since"]),
        )
    if rules_of(release).engine == "V1" and "v1" in known:
        _check_v1(model, version, known["v1"])


def newer_release(model: ModelSpec, first: str) -> str:
    """What to type for the first release whose V1 engine runs the class of the model: ``first``, if V0 never ran it alone."""
    first = _releases().get(model.architecture or "", {}).get("v1", first)
    if first == _NEVER_ON_V1:
        return "Use: --engine transformers"
    first = max(first, PLAIN_HYBRIDS, key=since) if rules_of(since(first)).hybrid_by_hand else first
    return f"Use: --engine vllm@{first}, or a newer version."


def _check_v1(model: ModelSpec, version: str, first: str) -> None:
    if first != _NEVER_ON_V1 and planned_version(version) >= since(first):
        return
    raise UnsupportedError(
        f"vLLM {version} runs {model.architecture} on its older engine (V0), whose pool kvplan does not compute for this model.",
        hint=newer_release(model, first),
    )

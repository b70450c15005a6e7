"""Which formats of weights a release of vLLM reads, and which it makes of the published weights while it loads them.

Sources, in every release since 0.6: ``QuantizationMethods`` of model_executor/layers/quantization/__init__.py, and for the least compute
capability ``get_min_capability`` of awq.py, gptq.py, fp8.py and modelopt.py there and of compressed_tensors/schemes. Where two classes
read a format, it is the higher number: NVFP4 of ModelOpt runs on 7.5 since 0.14, that of compressed-tensors since 0.16.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from hwcalc.engines.vllm.formats import LONG_NAMES
from hwcalc.engines.vllm.versions import since
from hwcalc.errors import UnsupportedError
from hwcalc.model import Note
from hwcalc.profiles.engines import planned_version

if TYPE_CHECKING:
    from hwcalc.engines.vllm.deployment import VllmDeployment

ALWAYS_MADE: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {**{name: ("dtype", long) for name, long in LONG_NAMES.items()}, "fp8": ("quantization", "fp8")}
)
"""Format -> the flag, and its value, with which every release makes it of the published weights."""


class _Made(NamedTuple):
    """The value of ``--quantization`` that makes a format, and the releases that have it, until before ``gone``."""

    value: str
    came: str
    gone: str | None = None


_MADE: Final[Mapping[str, _Made]] = MappingProxyType(
    {
        "int8": _Made("int8_per_channel_weight_only", "0.20"),
        "fp8_block": _Made("fp8_per_block", "0.20"),
        "fp8_channel": _Made("fp8_per_channel", "0.24"),
        "mxfp8": _Made("mxfp8", "0.19"),
        "bnb4": _Made("bitsandbytes", "0.8.2", "0.28"),
    }
)
_BITSANDBYTES: Final = ("bnb4", "bnb4_double", "bnb8")
_CAME: Final[Mapping[str, str]] = MappingProxyType({"nvfp4": "0.8", "mxfp4": "0.10.1", "mxfp8": "0.16"})
"""The first release that reads a checkpoint in this format; all others are older."""
_LEAST_CAPABILITY: Final[Mapping[str, tuple[tuple[str, int], ...]]] = MappingProxyType(
    {
        "nvfp4": (("0.16", 75), ("0.9", 80), ("0.8", 100)),
        "fp8": (("0.14", 75), ("0.6", 80)),
        "int8": (("0.6", 75),),
        "awq": (("0.6", 75),),
        "gptq": (("0.6", 60),),
    }
)
"""Format -> the releases since which NVIDIA's GPUs of a compute capability run it, the newest first."""
_GONE: Final[Mapping[str, str]] = MappingProxyType({"GGUF": "0.24", "bitsandbytes": "0.28"})
"""The first release that reads a family of formats no more."""
_NEVER: Final[Mapping[str, str]] = MappingProxyType({"exl2": "ExLlamaV2", "exl3": "ExLlamaV3", "mlx": "MLX"})
"""The start of a format's name -> the engine that it belongs to."""


def made_of_published(name: str, version: str) -> tuple[str, str] | None:
    """The flag and its value with which this release makes weights of a format; ``None`` if they must be published so."""
    made, release = _MADE.get(name), planned_version(version)
    if made is None or release < since(made.came) or (made.gone is not None and release >= since(made.gone)):
        return ALWAYS_MADE.get(name)
    return "quantization", made.value


@lru_cache(maxsize=256)
def runs_weights(name: str, version: str, capability: int) -> bool:
    """Whether this release runs weights in one of the formats of :data:`_LEAST_CAPABILITY` on NVIDIA's GPUs of a compute capability."""
    least = next((least for came, least in _LEAST_CAPABILITY[name] if planned_version(version) >= since(came)), None)
    return least is not None and capability >= least


def check_weights(deployment: VllmDeployment) -> tuple[Note, ...]:
    """Raise an error for ``--weights`` in a format that this release does not read. A note says if a checkpoint in it is needed."""
    if (
        deployment.model.gguf is not None
        and deployment.model.gguf.tensors
        and planned_version(deployment.version) >= since(_GONE["GGUF"])
    ):
        raise UnsupportedError(
            f"vLLM {deployment.version} does not read GGUF files: they left it with {_GONE['GGUF']}.",
            hint="Use: --engine llamacpp, or give the model that the file was made of.",
        )
    if deployment.setup.weights is None:
        return ()
    from hwcalc.quantization.planned import format_name, planned_scheme

    name = format_name(deployment.setup.weights) or ""
    _check_read(name, deployment.version)
    published = planned_scheme(deployment.model, None)[0]
    if made_of_published(name, deployment.version) is not None or (published is not None and published.name == name):
        return ()
    message = (
        f"Planned as if a checkpoint in {name} were loaded: vLLM does not make {name} of the published weights. "
        "For its command line, give a model that is published so."
    )
    return (Note(code="needs-checkpoint", message=message),)


def _check_read(name: str, version: str) -> None:
    release = planned_version(version)
    owner = next((owner for start, owner in _NEVER.items() if name.startswith(f"{start}_")), None)
    if owner is not None:
        raise UnsupportedError(
            f"vLLM does not read weights in {name}, a format of {owner}.",
            hint="Use: --weights awq, or leave out --engine for the formulas alone.",
        )
    first = _CAME.get(name)
    if first is not None and release < since(first):
        raise UnsupportedError(
            f"vLLM {version} does not read weights in {name}.", hint=f"Use: --engine vllm@{first} or newer, or --weights awq"
        )
    family = "bitsandbytes" if name in _BITSANDBYTES else "GGUF" if _is_gguf(name) else ""
    last = _GONE.get(family)
    if last is not None and release >= since(last):
        raise UnsupportedError(
            f"vLLM {version} does not read weights in {name}: {family} left it with {last}.",
            hint="Use: --weights awq for 4 bits or fp8 for 8, or leave out --engine for the formulas alone.",
        )


def _is_gguf(name: str) -> bool:
    from hwcalc.quantization.mix_names import MIXES

    return name in MIXES

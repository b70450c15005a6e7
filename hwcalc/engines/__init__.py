"""The engines by name. A new engine is one module, and one line in :data:`ENGINES`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UnknownNameError
from hwcalc.model import OLLAMA, ModelSpec
from hwcalc.text import brief, did_you_mean, shown

if TYPE_CHECKING:
    from hwcalc.engines.engine import Engine

__all__ = ["ALL", "AT_HOME", "DEFAULT", "ENGINES", "every_engine", "find_engine", "spelled", "usual_engine"]

ENGINES: dict[str, tuple[str, str]] = {
    "reference": ("hwcalc.engines.reference", "Reference"),
    "transformers": ("hwcalc.engines.transformers", "Transformers"),
    "vllm": ("hwcalc.engines.vllm", "Vllm"),
    "sglang": ("hwcalc.engines.sglang", "Sglang"),
    "llamacpp": ("hwcalc.engines.llamacpp", "Llamacpp"),
    "ollama": ("hwcalc.engines.llamacpp.ollama", "Ollama"),
    "mlx": ("hwcalc.engines.mlx", "Mlx"),
    "tensorrt-llm": ("hwcalc.engines.tensorrt_llm", "TensorrtLlm"),
    "lmdeploy": ("hwcalc.engines.lmdeploy", "Lmdeploy"),
    "mistral-rs": ("hwcalc.engines.mistral_rs", "MistralRs"),
    "tgi": ("hwcalc.engines.tgi", "Tgi"),
}
"""Name -> module and class. The module is imported when somebody asks for the engine."""

ALL: Final = "all"
"""In a list of engines: every one of them."""
DEFAULT: Final = "reference"
"""The engine of a model that is no file of another one's."""
AT_HOME: Final = "llamacpp"
"""The engine of GGUF files, by which one looks for what runs on a machine of one's own."""
_SPELLINGS: Final = {
    **dict.fromkeys(("llamacpp", "llamacppserver", "llamaserver", "llamacli", "llamacpppython"), "llamacpp"),
    **dict.fromkeys(("tensorrtllm", "tensorrt", "trt", "trtllm", "trtllmserve"), "tensorrt-llm"),
    **dict.fromkeys(("mlxlm", "mlxlmserver", "mlxlmgenerate"), "mlx"),
    **dict.fromkeys(("mistralrs", "mistralrsserve"), "mistral-rs"),
    **dict.fromkeys(("textgenerationinference", "textgenerationlauncher", "huggingfacetgi"), "tgi"),
}
"""Other spellings, by their letters: ``llama.cpp``, ``llama-cpp``, ``llama-server``."""
_RUNS_LLAMACPP: Final = frozenset(
    {
        *("llama", "ggml", "gguf", "lmstudio", "lms", "koboldcpp", "kobold", "gptall", "jan", "llamafile", "localai", "lemonade"),
        *("oobabooga", "textgenerationwebui", "ikllamacpp", "ikllama", "msty", "ramalama", "llamaswap", "nodellamacpp"),
    }
)
"""Programs that run llama.cpp, by the letters of their names."""
_GGUF: Final = (
    "It runs GGUF files with llama.cpp: --engine llamacpp, with the program's own settings by --seq, --users and --engine-option."
)


def spelled(name: str) -> str:
    """The name of an engine that a spelling stands for; the spelling itself if it is none.

    >>> spelled("llama.cpp"), spelled("vllm")
    ('llamacpp', 'vllm')
    """
    return name if name in ENGINES else _SPELLINGS.get(_letters(name), name)


def every_engine(named: Iterable[str]) -> tuple[str, ...]:
    """A list of engines with :data:`ALL` written out, each once.

    >>> every_engine(["vllm@0.25", "all"])[:3]
    ('vllm@0.25', 'reference', 'transformers')
    """
    each = (ENGINES if name.lower() == ALL else (name,) for name in named)
    return tuple(dict.fromkeys(name for names in each for name in names))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def usual_engine(model: ModelSpec) -> str:
    """The name of the engine by which a model is planned where the user names none: of the program that runs its file, if it is one."""
    if (model.gguf is None or not model.gguf.tensors) and model.weights_format is None:
        return DEFAULT
    return "ollama" if model.id.startswith(OLLAMA) else AT_HOME


@lru_cache(maxsize=16)
def _load(name: str) -> Engine:
    module, attribute = ENGINES[name]
    engine: Engine = getattr(import_module(module), attribute)()
    return engine


def find_engine(spelling: str | None) -> tuple[Engine, str | None]:
    """The engine that ``transformers`` or ``transformers@5.14`` names, and the requested version; ``None`` is the formulas."""
    spelling = DEFAULT if spelling is None else spelling
    given, at, version = spelling.strip().lower().partition("@")
    name = spelled(given)
    if name == ALL or "," in given:
        raise UnknownNameError(
            f"--engine {shown(given, 40)} names several engines, and this command takes one.",
            option="engine",
            hint="All engines have no version in common. Use: --engine all"
            if name == ALL and version
            else f"Side by side: kvplan compare MODEL --engine {ALL if name == ALL else 'A,B'}",
        )
    if name not in ENGINES:
        known = f"Known: {', '.join(ENGINES)}. See: kvplan engines"
        raise UnknownNameError(
            f"--engine {shown(given, 40)} is not known.",
            option="engine",
            hint=f"{_GGUF} {known}" if _letters(given) in _RUNS_LLAMACPP else f"{did_you_mean(given, ENGINES)}{known}",
        )
    if at and not version:
        raise UnknownNameError(
            f"--engine {brief(spelling.strip(), 40)} names no version.",
            option="engine",
            hint=f"Use: --engine {name}, or {name}@VERSION",
        )
    return _load(name), version or None

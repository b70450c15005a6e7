"""The engines by name. A new engine is one module, and one line in :data:`ENGINES`."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from typing import Final

from hwcalc.engines.base import Engine
from hwcalc.errors import UnknownNameError
from hwcalc.text import brief, shown

__all__ = ["ENGINES", "find_engine"]

ENGINES: dict[str, tuple[str, str]] = {
    "reference": ("hwcalc.engines.reference", "Reference"),
    "transformers": ("hwcalc.engines.transformers", "Transformers"),
    "vllm": ("hwcalc.engines.vllm", "Vllm"),
    "llamacpp": ("hwcalc.engines.llamacpp", "Llamacpp"),
}
"""Name -> module and class. The module is imported when somebody asks for the engine."""


_OF_GGUF: Final = frozenset({"llama", "llamacpppython", "llamaserver", "ollama", "lmstudio", "koboldcpp", "ggml", "gguf"})
"""Programs that run GGUF files, by the letters of their names."""
_GGUF: Final = "Use: --engine llamacpp."


@lru_cache(maxsize=16)
def _load(name: str) -> Engine:
    module, attribute = ENGINES[name]
    engine: Engine = getattr(import_module(module), attribute)()
    return engine


def find_engine(spelling: str) -> tuple[Engine, str | None]:
    """The engine that ``transformers`` or ``transformers@5.14`` names, and the requested version."""
    name, at, version = spelling.strip().lower().partition("@")
    if name not in ENGINES:
        known = f"Known: {', '.join(ENGINES)}. See: kvplan engines"
        raise UnknownNameError(
            f"--engine {shown(name, 40)} is not known.",
            option="engine",
            hint=f"{_GGUF} {known}" if re.sub(r"[^a-z]", "", name) in _OF_GGUF else known,
        )
    if at and not version:
        raise UnknownNameError(
            f"--engine {brief(spelling.strip(), 40)} names no version.",
            option="engine",
            hint=f"Use: --engine {name}, or {name}@VERSION",
        )
    return _load(name), version or None

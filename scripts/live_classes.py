"""The model classes of transformers that generate text, built small and without weights on the meta device.

What ``scripts/class_defaults.py`` measures and ``scripts/class_mutations.py`` compares with is built here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

LANGUAGE_KEYS: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder_config",
    "decoder",
    "vlm_config",
)
"""Keys of the language model in a document of several parts."""

_LAYERS: Final = re.compile(
    r"^(num_hidden_layers|n_layers?|num_layers|depth|(encoder|decoder)_layers|num_(encoder|decoder)_(hidden_)?layers)$"
)
_FEW: Final = 4
"""Layers of a language model that is built small; towers have half of them."""


@lru_cache(maxsize=1)
def generating() -> Mapping[str, str]:
    """Model type -> the class with a head for text, that of whole documents before the language model's own."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, str] = {}
    for mapping in (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    ):
        for model_type, names in mapping.items():
            found.setdefault(model_type, names if isinstance(names, str) else names[0])
    return found


def config_class(model_type: str) -> Any:
    """The config class of a type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def few_layers(cls: Any, most: int = _FEW) -> dict[str, Any]:
    """A document of this config class with few layers, and nothing else than its class's defaults; empty if these make no config."""
    from transformers import PreTrainedConfig

    try:
        config = cls()
    except Exception:  # what a class refuses is its own affair
        return {}
    out: dict[str, Any] = {}
    for key, value in vars(config).items():
        if _LAYERS.match(key) and isinstance(value, int) and key not in cls.attribute_map:
            out[key] = min(value, most)
        elif isinstance(value, PreTrainedConfig):
            inner = few_layers(type(value), most if key in LANGUAGE_KEYS else most // 2)
            if inner:
                out[key] = {"model_type": value.model_type, **inner} if value.model_type else inner
    return out


def language_path(cls: Any) -> tuple[str, ...]:
    """The keys that lead to the language model in a document of this class; empty where it is the document."""
    from transformers import PreTrainedConfig

    try:
        level: Any = cls()
    except Exception:
        return ()
    path: list[str] = []
    while key := next((key for key in LANGUAGE_KEYS if isinstance(getattr(level, key, None), PreTrainedConfig)), None):
        path.append(key)
        level = getattr(level, key)
    return tuple(path)


def language_level(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The level of a document at this path, made where it is absent."""
    for key in path:
        document = document.setdefault(key, {})
    return document


def built(model_type: str, document: Mapping[str, Any]) -> Any:
    """The model that transformers makes of a document, without weights. Whatever its classes raise is passed on."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    plain = {key: value for key, value in document.items() if key not in ("model_type", "architectures")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = config_class(model_type)(**plain)
        cls = getattr(transformers, generating()[model_type])
        with torch.device("meta"):
            return cls._from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()


def parameters(model: Any) -> int:
    """The parameters of a model, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())

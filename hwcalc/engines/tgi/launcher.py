"""What TGI's launcher takes from a config by its own few keys: the width of a head, and the tokens of the warm-up.

Read, not run: ``get_head_dim``, ``compute_optimal``, ``vram_maximum`` and the default of ``max_batch_prefill_tokens`` in
``launcher/src/main.rs`` of 3.3.6-dev0 (commit db931fcf42da).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.models import model_classes
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec
    from hwcalc.profiles.hardware_file import Gpu

_TERA: Final = 10**12
_FLOPS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("h100-sxm5-80gb", "h100-nvl-94gb"), 900 * _TERA),
        "h200-sxm-141gb": 989 * _TERA,
        **dict.fromkeys(("a100-sxm4-80gb", "a100-sxm4-40gb", "a100-pcie-80gb"), 312 * _TERA),
        "l4": 121 * _TERA,
        "l40": 181 * _TERA,
        "l40s": 363 * _TERA,
        "a10g": 125 * _TERA,
        "a40": 149 * _TERA,
    }
)
"""GPU whose name the launcher knows -> what it takes for its speed."""
_LEAST: Final = 100
_DEFAULT: Final = 4096
_ITEM_BYTES: Final = 2
_GEMMA3_WIDTH: Final = 256


def head_width(config: Mapping[str, Any]) -> int | None:
    """``head_dim``, or the hidden width shared out over the heads; ``None`` where the keys have other names, or stand in ``text_config``.

    >>> head_width({"hidden_size": 4096, "num_attention_heads": 32}), head_width({"n_embd": 768, "n_head": 12})
    (128, None)
    """
    text = config.get("text_config")
    hidden = _number(config, "hidden_size", 0) or _number(config, "n_embd", 0)
    heads = _number(config, "num_attention_heads", 0)
    shared = hidden // heads if hidden and heads and hidden % heads == 0 else 0
    inner = _number(text, "head_dim", 0) if isinstance(text, Mapping) else 0
    special = _GEMMA3_WIDTH if inner == 0 and isinstance(text, Mapping) and config.get("model_type") == "gemma3" else 0
    return _number(config, "head_dim", 0) or shared or inner or special or None


def prefill_tokens(model: ModelSpec, gpu: Gpu | None, shards: int, share: float) -> int:
    """The default of ``max_batch_prefill_tokens``: by the speed of a GPU that it knows, at most the model's length and what memory holds.

    ``share`` is that of all memory; without ``TGI_WIGGLE_ROOM`` the launcher leaves a twentieth free, and the server a tenth.
    """
    config = model.config
    tokens = _optimal(config, gpu, shards) or int(model_classes("tgi").row(model).words.get("prefill_tokens", _DEFAULT))
    limits = [tokens, model.max_position_embeddings, _held(config, gpu, shards, share)]
    return min(limit for limit in limits if limit is not None)


def _optimal(config: Mapping[str, Any], gpu: Gpu | None, shards: int) -> int | None:
    flops, sizes = None if gpu is None else _FLOPS.get(gpu.id), _sizes(config)
    if flops is None or sizes is None or "vision_config" in config:
        return None
    heads, kv_heads, width, hidden, inner, layers = sizes
    used = _number(config, "num_experts_per_tok", 1) + _number(config, "n_shared_experts", 0)
    attention = 2 * (3 * heads + 2 * kv_heads) * width * hidden
    each = (attention + 6 * hidden * inner * used) * layers
    most_tokens = flops * shards // each
    return most_tokens if most_tokens > _LEAST else None


def _held(config: Mapping[str, Any], gpu: Gpu | None, shards: int, share: float) -> int | None:
    sizes, vocabulary = _sizes(config), config.get("vocab_size")
    if gpu is None or gpu.id not in _FLOPS or gpu.memory_total_mib is None or sizes is None:
        return None
    if not isinstance(vocabulary, int) or config.get("quantization_config"):
        return None
    heads, kv_heads, width, hidden, inner, layers = sizes
    experts = _number(config, "num_local_experts", 1)
    layer = 3 * inner * experts * hidden + (heads + 2 * kv_heads) * width + heads * width * hidden
    weights = _ITEM_BYTES * (layer * layers + 2 * hidden * vocabulary)
    token = 4 * kv_heads * width * layers + 3 * _ITEM_BYTES * (inner + inner // 2) * experts
    left = int(gpu.memory_total_mib * MIB * share) * shards - weights
    return left // token if left > 0 else None


def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int, int, int] | None:
    """Heads, key/value heads, their width, hidden and inner width, and layers; ``None`` where a key is not there."""
    hidden = _number(config, "hidden_size", 0) or _number(config, "n_embd", 0)
    heads = _number(config, "num_attention_heads", 0)
    inner, layers = (_number(config, name, 0) for name in ("intermediate_size", "num_hidden_layers"))
    sizes = (heads, _number(config, "num_key_value_heads", heads), head_width(config) or 0, hidden, inner, layers)
    return sizes if all(sizes) else None


def _number(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value >= 0 else default

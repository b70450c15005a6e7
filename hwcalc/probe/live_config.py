"""Shrink a config: fewer layers, a small vocabulary, short windows, few experts, and if necessary fewer heads and channels.

These are pure functions from dictionaries to dictionaries. What a cache keeps for each token (heads, widths, states, latents) stays the
same unless ``factor`` divides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from hwcalc.formulas import Stack
from hwcalc.formulas.record import Record

__all__ = ["MOST_LAYERS", "WINDOW", "Change", "Small", "clean", "pick_layers", "shrink"]

WINDOW: Final = 16
"""Positions of every window and chunk: so few that a short sequence exceeds them."""
MOST_LAYERS: Final = 12
_VOCABULARY: Final = 256
_FEED_FORWARD: Final = 64
_EXPERTS: Final = 4

_DROPPED: Final = frozenset(
    {
        "architectures",
        "attn_implementation",
        "auto_map",
        "compression_config",
        "custom_pipelines",
        "dtype",
        "experts_implementation",
        "id2label",
        "kernel_config",
        "label2id",
        "num_labels",
        "quantization_config",
        "torch_dtype",
        "transformers_version",
        "use_kernels",
    }
)
"""Keys that do not describe layers, or that name code, kernels, or formats of weights."""

_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
_ENCODER_COUNTS: Final = ("encoder_layers", "num_encoder_layers")
_VOCABULARIES: Final = ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size", "ngram_vocab_size")
_IDS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None}
_WINDOWS: Final = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "sliding_window_size")
_FEED_FORWARDS: Final = (
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "intermediate_size_mlp",
    "dense_intermediate_size",
    "expert_ffn_hidden_size",
    "ffn_hidden_size",
    "intermediate_size",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_dim",
    "d_ff",
    "n_inner",
)
_EXPERT_COUNTS: Final = {
    "num_experts": _EXPERTS,
    "num_local_experts": _EXPERTS,
    "n_routed_experts": _EXPERTS,
    "moe_num_experts": _EXPERTS,
    "zero_expert_num": 1,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_top_k": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "num_nextn_predict_layers": 0,
    "mtp_num_layers": 0,
}
_DIVIDED: Final = (
    "hidden_size",
    "n_embd",
    "d_model",
    "word_embed_proj_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "num_global_key_value_heads",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "multi_query_group_num",
    "num_kv_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "mamba_n_heads",
    "mamba_num_heads",
    "n_mamba_heads",
    "mamba_d_ssm",
    "mamba_intermediate_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "lru_width",
    "attention_hidden_size",
    "embedding_size",
    "conv_dim",
    "conv_dim_out",
    "time_step_rank",
    "mamba_dt_rank",
    "block_dim",
    "block_ff_dim",
    "block_multiple_of",
)
"""Numbers of heads and channels. They are all divided by the same factor, which keeps their ratios. Widths of heads and latents stay."""
_SINGLE: Final = frozenset({"num_key_value_heads", "num_global_key_value_heads", "num_kv_heads", "multi_query_group_num"})
"""Keys that are not divided if they are 1: a single key/value head."""


class Change(Record):
    """A number of the config that was made smaller."""

    key: str
    was: str
    now: str


class Small(Record):
    """The small config, and the changes that lead to it."""

    config: Mapping[str, Any]
    layers: tuple[int, ...]
    """The numbers of the model's layers that it keeps."""
    changes: tuple[Change, ...]


def clean(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without private keys, remote code and formats of weights; the same for nested configs."""
    return {
        key: clean(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if isinstance(key, str) and not key.startswith("_") and key not in _DROPPED
    }


def pick_layers(stack: Stack) -> tuple[int, ...]:
    """The fewest first layers that include every kind; if those are too many, the first layer of each combination of kinds.

    >>> from hwcalc.formulas import FullAttention, Mamba2, Stack
    >>> a = FullAttention(num_attention_heads=4, num_key_value_heads=2, head_dim=16, v_head_dim=16)
    >>> b = FullAttention(num_attention_heads=4, num_key_value_heads=1, head_dim=16, v_head_dim=16)
    >>> pick_layers(Stack(((a,), (a,), (b,), (a,))))
    (0, 1, 2)
    """
    layers = stack.layers
    for same in (lambda kind: kind, type):
        every = {same(kind) for layer in layers for kind in layer}
        seen: set[object] = set()
        for number, layer in enumerate(layers[:MOST_LAYERS]):
            seen |= {same(kind) for kind in layer}
            if seen == every:
                return tuple(range(number + 1))
    first: dict[object, int] = {}
    for number, layer in enumerate(layers):
        first.setdefault(tuple(type(kind) for kind in layer), number)
    return tuple(sorted(first.values()))


def shrink(config: Mapping[str, Any], layers: Sequence[int], count: int, *, factor: int = 1, narrow: bool = True) -> Small | None:
    """The config with only these of its ``count`` layers, and with heads and channels divided by ``factor``.

    ``None`` if ``factor`` does not divide them all. ``narrow`` makes feed-forward networks small, which does not work for the few models
    whose states are as wide as these.
    """
    out, changes = dict(config), []

    def change(key: str, value: Any) -> None:
        if key in out and out[key] != value:
            changes.append(Change(key=key, was=_text(out[key]), now=_text(value)))
            out[key] = value

    for key, value in config.items():
        if isinstance(value, (list, str)) and len(value) == count and not isinstance(value[:1], dict):
            part = [value[number] for number in layers]
            if isinstance(value, list) or key == "hybrid_override_pattern":
                change(key, part if isinstance(value, list) else "".join(part))
        elif key.endswith(("_indices", "_ids", "_idxs", "_idx")) and _whole_list(value):
            change(key, [layers.index(number) for number in value if number in layers])
    for key in _LAYER_COUNTS:
        if _whole(config.get(key)) and config[key] == count:
            change(key, len(layers))
    for key in _ENCODER_COUNTS if config.get("is_encoder_decoder") else ():
        change(key, 1)
    if config.get("is_encoder_decoder") and "num_decoder_layers" in config:
        change("num_layers", 1)
    _limits(dict(out), change, narrow=narrow)
    _thresholds(config, layers, count, change)
    for key, part in config.items():
        if isinstance(part, Mapping) and key == "per_layer_config":
            change(key, {str(layers.index(int(number))): value for number, value in part.items() if int(number) in layers})
        elif isinstance(part, Mapping):
            _nested(key, part, layers, change, narrow=narrow)
    if factor > 1 and not _divide(out, factor, (*_DIVIDED, *(() if narrow else _FEED_FORWARDS)), change):
        return None
    return Small(config=out, layers=tuple(layers), changes=tuple(changes))


def _limits(config: Mapping[str, Any], change: Any, *, narrow: bool) -> None:
    for key in _VOCABULARIES:
        if _whole(config.get(key)):
            change(key, min(config[key], _VOCABULARY))
    for key, value in _IDS.items():
        if config.get(key) is not None:
            change(key, value)
    for key in _WINDOWS:
        if _whole(config.get(key)) and config[key] > 0:
            change(key, min(config[key], WINDOW))
    for key, most in _EXPERT_COUNTS.items():
        if _whole(config.get(key)):
            change(key, min(config[key], most))
    for key in _FEED_FORWARDS if narrow else ():
        value = config.get(key)
        if _whole(value):
            change(key, min(value, _FEED_FORWARD))
        elif _whole_list(value):
            change(key, [min(number, _FEED_FORWARD) for number in value])


def _thresholds(config: Mapping[str, Any], layers: Sequence[int], count: int, change: Any) -> None:
    """Adjust numbers that count the first or last layers with some property."""
    for key in ("first_k_dense_replace", "max_window_layers", "num_dense_layers"):
        if _whole(config.get(key)):
            change(key, sum(number < config[key] for number in layers))
    shared = config.get("num_kv_shared_layers")
    if _whole(shared) and shared:
        change("num_kv_shared_layers", sum(number >= count - shared for number in layers))


def _nested(key: str, part: Mapping[str, Any], layers: Sequence[int], change: Any, *, narrow: bool) -> None:
    """Shrink a nested config: experts, feed-forward widths, and lists of layer numbers that start from one."""
    inner = dict(part)

    def set_inner(name: str, value: Any) -> None:
        if name in inner:
            inner[name] = value

    _limits(part, set_inner, narrow=narrow)
    for name, value in part.items():
        if name.endswith("_layers") and _whole_list(value):
            inner[name] = [layers.index(number - 1) + 1 for number in value if number - 1 in layers]
    change(key, inner)


def _divide(out: Mapping[str, Any], factor: int, keys: Iterable[str], change: Any) -> bool:
    for key in keys:
        value = out.get(key)
        if not _whole(value) or value <= 0 or (value == 1 and key in _SINGLE):
            continue
        if value % factor:
            return False
        change(key, value // factor)
    return True


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_list(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(_whole(item) for item in value)


def _text(value: Any) -> str:
    """A short text for a value."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"{len(list(value)):,} entries"
    return f"{value:,}" if _whole(value) else f"{value!s:.40}"

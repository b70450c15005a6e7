"""Plain attention on every layer, with heads counted in keys of the model's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims

__all__ = ["read"]


def _equal(config: Config, kv_heads: int, heads: int | None = None) -> AttentionDims:
    heads = heads or config.integer("num_attention_heads")
    head_dim = config.integer("hidden_size") // heads
    return AttentionDims(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def _falcon(config: Config) -> AttentionDims:
    """``num_kv_heads``, unless ``multi_query`` (the default) makes it one; the new decoder architecture ignores that flag.

    Falcon-7B has num_kv_heads 71 and multi_query true: one key/value head, not 71.
    """
    given = config.maybe_integer("num_kv_heads") or config.integer("num_attention_heads")
    multi_query = config.flag("multi_query")
    return _equal(config, given if config.flag("new_decoder_architecture") or not multi_query else 1)


def _gpt_bigcode(config: Config) -> AttentionDims:
    """``multi_query``, true by default, is one head."""
    config.ignore("num_key_value_heads")
    return _equal(config, 1 if config.flag("multi_query") else config.integer("num_attention_heads"))


def _nested_kv_heads(config: Config) -> AttentionDims:
    """DBRX and MPT keep ``kv_n_heads`` in ``attn_config``; absent or null there is all heads (DBRX: one)."""
    nested = config.sub("attn_config")
    config.ignore("num_key_value_heads")
    if nested is not None:
        nested.ignore("attn_type")
    kv_heads = nested.maybe_integer("kv_n_heads") if nested is not None else None
    if kv_heads is None:
        kv_heads = 1 if config.model_type == "dbrx" else config.integer("num_attention_heads")
    return _equal(config, kv_heads)


def _jetmoe(config: Config) -> AttentionDims:
    """Each key/value head serves one query head of each expert in use; the experts share the keys and values."""
    kv_heads = config.integer("num_key_value_heads")
    head_dim = config.integer("head_dim")
    per_token = config.integer("num_experts_per_tok")
    config.ignore("num_attention_heads")
    return AttentionDims(
        num_attention_heads=kv_heads * per_token, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
    )


def _gpt_neo(config: Config) -> AttentionDims:
    """Local layers mask, but keep every token: the cache is full on all layers."""
    config.ignore("attention_types", "attention_layers", "window_size")
    return _equal(config, config.integer("num_attention_heads"))


def _hrm(config: Config) -> AttentionDims:
    config.ignore("L_bp_cycles", "H_cycles", "L_cycles")
    return attention_dims(config)


_DIMS: Final[dict[str, Callable[[Config], AttentionDims]]] = {
    "falcon": _falcon,
    "gpt_bigcode": _gpt_bigcode,
    "dbrx": _nested_kv_heads,
    "mpt": _nested_kv_heads,
    "jetmoe": _jetmoe,
    "gpt_neo": _gpt_neo,
    "hrm_text": _hrm,
}


def _passes(config: Config) -> int:
    """How often each layer runs on a token, keeping keys and values of its own each time.

    HRM runs its stack H_cycles x (L_cycles + 1) times: 16 layers with 2 and 3 keep 128 caches. A file with
    ``num_layers_per_stack`` has multiplied already.
    """
    if config.model_type != "hrm_text" or config.maybe_integer("num_layers_per_stack") is not None:
        return 1
    cycles = config.integer("H_cycles", maximum=1000) * (config.integer("L_cycles", maximum=1000) + 1)
    return config.checked_integer("H_cycles x (L_cycles + 1)", cycles, maximum=10_000)


def read(config: Config) -> Reading:
    """Read a config whose layers are all alike and all full."""
    count = config.number_of_layers()
    dims = _DIMS[config.model_type or ""](config)
    layer = (dims.full(),) * _passes(config)
    readings = {}
    if config.model_type == "falcon" and config.flag("new_decoder_architecture"):
        # transformers repeats each key/value head for its query heads before it caches them (modeling_falcon.py).
        repeated = replace(dims, num_key_value_heads=dims.num_attention_heads)
        readings["transformers"] = ((repeated.full(),),) * count
    return Reading(layers=(layer,) * count, config=config, readings=readings)

"""Models whose layers differ in heads, share a cache, or run several times; their code lives with the model.

- nemotron-nas (Llama-Nemotron; class DeciLM): ``block_configs`` has one entry for each layer. The model's
  ``variable_cache.py``: ``attention.no_op`` or ``replace_with_linear`` keeps nothing; ``n_heads_in_group`` query heads
  share one key/value head (64 heads in groups of 8 keep 8); ``window_length`` is a sliding window, or with
  ``num_sink_tokens`` the whole of sinks and window together, unless ``unshifted_sink``, which masks but forgets nothing.
- deci, decilm (DeciLM-6B and -7B): ``num_key_value_heads_per_layer``.
- openelm: ``num_query_heads`` and ``num_kv_heads`` are lists, ``head_dim`` is one number (``modeling_openelm.py``).
- hunyuan (Hunyuan-Large, -A13B): with ``use_cla`` only layers whose index is a multiple of ``cla_share_factor`` project
  keys and values, and the others read theirs (``modeling_hunyuan.py``; vLLM's ``hunyuan_v1.py``, ``_get_cla_factor``). The
  factor stands in every file and says nothing where ``use_cla`` is false (A13B).
- ouro: the stack runs ``total_ut_steps`` times with the same weights, and each run keeps its own keys and values
  (``modeling_ouro.py``: cache index = step x layers + layer).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from hwcalc.formulas import Layer, NoCache, SharedCache
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import AttentionDims, Reading, attention_dims

__all__ = ["read"]


def _block(config: Config, block: Any, index: int, dims: AttentionDims) -> Layer:
    """One entry of ``block_configs``."""
    key = f"block_configs[{index}]"
    if not isinstance(block, Mapping):
        raise config.error(key, block, "an object with an object 'attention'")
    given = block.get("attention")
    if not isinstance(given, Mapping):
        raise config.error(f"{key}.attention", given, "an object")
    attention = Config(given, config.model_type, f"{config.where}.{key}.attention" if config.where else f"{key}.attention")
    config.children.append(attention)
    attention.ignore("use_prefill_window_in_sink_attention")
    for unknown in ("sparsify", "llama4", "mamba"):
        if attention.get(unknown):
            raise attention.error(unknown, given[unknown], "null: attention of this kind is not known")
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        return (NoCache(),)
    group = attention.integer("n_heads_in_group")
    if group > dims.num_attention_heads:
        raise attention.error("n_heads_in_group", group, f"at most the number of heads ({dims.num_attention_heads})")
    own = replace(dims, num_key_value_heads=dims.num_attention_heads // group)
    window = attention.maybe_integer("window_length")
    sinks = attention.maybe_integer("num_sink_tokens", minimum=0)
    unshifted = attention.flag("unshifted_sink")
    if window is None:
        return (own.full(),)
    if sinks is None:
        return (own.sliding(window),)
    if unshifted:
        return (own.full(),)
    if sinks >= window:
        raise attention.error("num_sink_tokens", sinks, f"less than window_length ({window})")
    return (own.sink(sinks, window - sinks) if sinks else own.sliding(window),)


def _decilm(config: Config) -> Reading:
    """By ``block_configs``, by heads per layer, or all alike."""
    count = config.number_of_layers()
    dims = attention_dims(config)
    blocks = config.sequence("block_configs", length=count)
    if blocks is not None:
        return Reading(layers=tuple(_block(config, block, i, dims) for i, block in enumerate(blocks)), config=config)
    heads = _per_layer(config, "num_key_value_heads_per_layer", count)
    if heads is None:
        return Reading(layers=((dims.full(),),) * count, config=config)
    return Reading(layers=tuple((replace(dims, num_key_value_heads=n).full(),) for n in heads), config=config)


def _per_layer(config: Config, key: str, count: int) -> list[int] | None:
    """One number for each layer: a list of them, or one for all."""
    value = config.get(key)
    if isinstance(value, (list, tuple)):
        return config.integers(key, length=count, minimum=1)
    number = config.maybe_integer(key)
    return None if number is None else [number] * count


def _openelm(config: Config) -> Reading:
    count = config.number_of_layers()
    query = _per_layer(config, "num_attention_heads", count)
    if query is None:
        raise config.missing("num_query_heads")
    key_value = _per_layer(config, "num_key_value_heads", count) or query
    head_dim = config.integer("head_dim")
    # num_gqa_groups made the lists above when the file was written.
    config.ignore("num_gqa_groups")
    return Reading(
        layers=tuple(
            (AttentionDims(num_attention_heads=q, num_key_value_heads=kv, head_dim=head_dim, v_head_dim=head_dim).full(),)
            for q, kv in zip(query, key_value, strict=True)
        ),
        config=config,
    )


def _hunyuan(config: Config) -> Reading:
    count = config.number_of_layers()
    dims = attention_dims(config)
    factor = config.maybe_integer("cla_share_factor") or 1
    if not config.flag("use_cla"):
        factor = 1
    if config.flag("use_mla"):
        raise config.error("use_mla", config.get("use_mla"), "false: a hunyuan model with latent attention is not known")
    return Reading(
        layers=tuple((SharedCache(),) if index % factor else (dims.full(),) for index in range(count)),
        config=config,
    )


def _ouro(config: Config) -> Reading:
    count = config.number_of_layers()
    steps = config.integer("total_ut_steps", maximum=100)
    dims = attention_dims(config)
    if config.flag("use_sliding_window"):
        raise config.error(
            "use_sliding_window", config.get("use_sliding_window"), "false: an ouro model with a window is not known"
        )
    config.ignore("layer_types", "max_window_layers", "sliding_window")
    return Reading(layers=((dims.full(),) * steps,) * count, config=config)


_READERS: Final[Mapping[str, Callable[[Config], Reading]]] = {
    "deci": _decilm,
    "decilm": _decilm,
    "hunyuan": _hunyuan,
    "nemotron-nas": _decilm,
    "openelm": _openelm,
    "ouro": _ouro,
}


def read(config: Config) -> Reading:
    """Read one of the models above."""
    return _READERS[config.model_type or ""](config)

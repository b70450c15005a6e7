"""The keys of a GGUF file, read as the loader of each architecture reads them: ``llama_model_base::load_hparams`` (src/llama-model.cpp)
and ``load_arch_hparams`` (src/models/*.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hwcalc.parsers.gguf.architectures import Architecture, Window
from hwcalc.parsers.gguf.keys import MAX_LAYERS, Keys

if TYPE_CHECKING:
    from hwcalc.model import GgufTensor

__all__ = ["read_values"]


def read_values(file: Keys, row: Architecture, tensors: Sequence[GgufTensor]) -> dict[str, Any]:
    """The fields of :class:`~hwcalc.parsers.gguf.hparams.Hparams` by name."""
    layers = file.whole("block_count", None, minimum=1, maximum=MAX_LAYERS)
    nextn = _draft_layers(file, row, layers, tensors)
    heads = file.per_layer("attention.head_count", layers, (0,) * layers)
    read: dict[str, Any] = {
        "arch": file.architecture,
        "n_layer_all": layers,
        "n_layer_nextn": nextn,
        "n_embd": file.whole(row.width_key, None, minimum=1),
        "n_vocab": file.vocabulary() or _rows_of_the_embedding(tensors),
        "n_ctx_train": file.whole("context_length", None),
        "causal": row.causal and file.switch("attention.causal", default=True),
        "n_head": heads,
        "n_head_kv": file.per_layer("attention.head_count_kv", layers, heads),
        "n_ff": file.per_layer("feed_forward_length", layers, (0,) * layers),
        "dec_n_layer": file.whole("decoder_block_count", layers - nextn, maximum=MAX_LAYERS) if row.encoder_decoder else 0,
        "n_embd_per_layer": file.whole("embedding_length_per_layer_input"),
    }
    read |= _head_widths(file, row, read)
    read |= _latents(file, row) | _states(file, row, read) | _experts(file, layers)
    recurrent = _recurrent_layers(file, row, read)
    read |= {"is_recurrent": recurrent} | _window(file, row, layers - nextn, layers, recurrent)
    read |= _indexer(file, row, layers, layers - nextn, read["n_ctx_train"])
    if row.cached_layers is not None:
        read["kv_from_start"] = row.cached_layers
    elif row.shared_layers:
        read["kv_from_start"] = layers - file.whole("attention.shared_kv_layers", maximum=layers)
    return read | _unrolled(file, row, read)


def _draft_layers(file: Keys, row: Architecture, layers: int, tensors: Sequence[GgufTensor]) -> int:
    """Trailing blocks for multi-token prediction. A DeepSeek-V4 file may name them and not have them."""
    nextn = file.whole("nextn_predict_layers", maximum=layers)
    probe = f"blk.{layers - nextn}.nextn.eh_proj.weight"
    if row.memory == "compressed" and tensors and all(tensor.name != probe for tensor in tensors):
        return 0
    return nextn


def _rows_of_the_embedding(tensors: Sequence[GgufTensor]) -> int:
    table = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    return table.shape[-1] if table is not None and len(table.shape) > 1 else 0


def _head_widths(file: Keys, row: Architecture, read: Mapping[str, Any]) -> dict[str, int]:
    """Widths of keys and values. A first layer without heads makes them 0 for the whole model, except where the loader asks again."""
    first = read["n_head"][0]
    each = read["n_embd"] // first if first else 0
    asked = bool(first) or row.widths_without_heads
    key = file.whole("attention.key_length", each) if asked else 0
    value = file.whole("attention.value_length", each) if asked else 0
    rotary = file.whole("rope.dimension_count", key) if first else 0
    rotary_swa = file.whole("rope.dimension_count_swa", rotary)
    return {
        "head_k": key,
        "head_v": value,
        "head_k_swa": file.whole("attention.key_length_swa", key),
        "head_v_swa": file.whole("attention.value_length_swa", value),
        "n_rot": rotary // 2 if row.rotates_half else rotary,
        "n_rot_swa": rotary_swa,
    }


def _latents(file: Keys, row: Architecture) -> dict[str, Any]:
    if row.latents == "none":
        return {}
    out = {"kv_lora_rank": file.whole("attention.kv_lora_rank", None), "q_lora_rank": file.whole("attention.q_lora_rank")}
    if row.latents == "never":
        return out
    default = None if row.latents == "required" else 0
    out |= {f"{name}_mla": file.whole(f"attention.{name}_mla", default) for name in ("key_length", "value_length")}
    if row.memory == "dsa-window":
        names = ("kv_lora_rank", "key_length_mla", "value_length_mla")
        out |= {f"{name}_swa": file.whole(f"attention.{name}_swa", None) for name in names}
    return out


def _states(file: Keys, row: Architecture, read: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a recurrent state, from the keys that the architecture reads and no others."""
    states = row.states
    if states in ("mamba1", "mamba2", "delta"):
        names = {"conv": "conv_kernel", "inner": "inner_size", "state": "state_size"}
        out: dict[str, Any] = {f"ssm_d_{name}": file.whole(f"ssm.{key}", None) for name, key in names.items()}
        out["ssm_dt_rank"] = file.whole("ssm.time_step_rank", None)
        if states != "mamba1":
            out["ssm_n_group"] = file.whole("ssm.group_count", None)
        return out | (_ngrams(file, read) if row.ngrams else {})
    if states == "kda":
        return {"ssm_d_conv": file.whole("ssm.conv_kernel", None), "kda_head_dim": file.whole("kda.head_dim", None)} | (
            {"hyper_connections": file.whole("hyper_connection.count")}
        )
    if states == "wkv":
        shifts = file.whole("token_shift_count", 2)
        return {"wkv_head_size": file.whole("wkv.head_size", None, minimum=1), "token_shift_count": shifts}
    if states == "short-conv":
        return {"shortconv_l_cache": file.whole("shortconv.l_cache", None, minimum=1)}
    return {"head_la": read["head_k"]} if states == "lightning" else {}


def _ngrams(file: Keys, read: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the layer that looks n-grams up: (kernel - 1) x n inputs of every residual stream."""
    streams = file.whole("hyper_connection.count", None, minimum=2)
    out: dict[str, Any] = {"hyper_connections": streams}
    layers = file.numbers("ple.layers")
    if layers:
        if len(layers) != 1 or layers[0] >= read["n_layer_all"]:
            raise file.error("ple.layers", list(layers), f"one layer from 0 to {read['n_layer_all'] - 1}")
        size = file.whole("ple.ngram_size", None, minimum=2, maximum=8)
        kernel = file.whole("ple.conv_kernel", None, minimum=1)
        out |= {"ple_layer": layers[0], "ple_conv_state": (kernel - 1) * size * streams * read["n_embd"]}
    return out


def _experts(file: Keys, layers: int) -> dict[str, int]:
    """Numbers of experts; the most of any layer where layers differ."""
    none = (0,) * layers
    return {
        "n_expert": file.whole("expert_count"),
        "n_expert_used": max(file.per_layer("expert_used_count", layers, none)),
        "n_expert_shared": file.whole("expert_shared_count"),
        "n_ff_exp": max(file.per_layer("expert_feed_forward_length", layers, none)),
        "n_ff_shexp": file.whole("expert_shared_feed_forward_length"),
        "n_layer_dense_lead": file.whole("leading_dense_block_count"),
    }


def _recurrent_layers(file: Keys, row: Architecture, read: Mapping[str, Any]) -> tuple[bool, ...]:
    """Which layers have a recurrent state. Those for multi-token prediction have none."""
    count: int = read["n_layer_all"]
    trunk = count - read["n_layer_nextn"]
    rule = row.recurrence
    if rule in ("all", "beside"):
        return (True,) * count
    if rule == "interval":
        if file.has("attention.recurrent_layers"):
            return tuple(map(bool, file.per_layer("attention.recurrent_layers", count)))
        interval = file.whole("full_attention_interval", row.interval, minimum=1)
        return tuple(layer < trunk and (layer + 1) % interval != 0 for layer in range(count))
    if rule == "none":
        return (False,) * count
    fed = read["n_ff"] if rule == "no-keys-no-ffn" else (0,) * count
    asked = count if row.recurrent_drafts else trunk
    return tuple(layer < asked and not read["n_head_kv"][layer] and not fed[layer] for layer in range(count))


def _window(file: Keys, row: Architecture, trunk: int, layers: int, recurrent: tuple[bool, ...]) -> dict[str, Any]:
    """The window, and the layers that have it."""
    key, window = "attention.sliding_window", row.window
    named = file.whole(key)
    none = {"sliding_window": named, "n_swa": 0, "is_swa": (False,) * layers}
    if window is None:
        return none
    if window.only_layers not in (None, trunk):
        slides = _layers_with_a_window(file, window, trunk, layers, recurrent, streams=False) if named else ()
        return none | {"n_swa": named, "named_swa": slides}
    streams = window.pattern == "streams" and file.whole("hyper_connection.count") > 0
    required = not window.optional or streams
    size = file.whole(key, window.default if required or window.default is not None else 0)
    if not size and (window.optional or window.forced):
        return none
    return {
        "sliding_window": named or size,
        "n_swa": window.forced or size,
        "swa_type": window.kind,
        "is_swa": _layers_with_a_window(file, window, trunk, layers, recurrent, streams=streams),
        **({"hyper_connections": file.whole("hyper_connection.count")} if streams else {}),
    }


def _layers_with_a_window(
    file: Keys, window: Window, trunk: int, layers: int, recurrent: tuple[bool, ...], *, streams: bool
) -> tuple[bool, ...]:
    key, pattern = "attention.sliding_window_pattern", window.pattern
    if pattern == "all" or streams:
        return (True,) * layers
    if pattern == "attention":
        return tuple(layer < trunk and not recurrent[layer] for layer in range(layers))
    if file.is_list(key):
        # llama.cpp takes a list of any length: layers behind its end are full.
        listed = file.numbers(key)[:layers]
        return (*map(bool, listed), *(False,) * (layers - len(listed)))
    if pattern != "period":
        raise file.missing(key) if not file.has(key) else file.error(key, file.get(key), "a list with one entry for each layer")
    period = file.whole(key, window.period)
    return tuple(layer < trunk and _slides(layer, period, dense_first=window.dense_first) for layer in range(layers))


def _slides(layer: int, period: int, *, dense_first: bool) -> bool:
    """Whether a layer has the window: all of a period but its last, or its first. With period 0 all layers have it.

    >>> [_slides(layer, 3, dense_first=False) for layer in range(4)]
    [True, True, False, True]
    """
    if not period:
        return True
    return layer % period != 0 if dense_first else layer % period < period - 1


def _indexer(file: Keys, row: Architecture, layers: int, trunk: int, trained: int) -> dict[str, Any]:
    """The indexer, and the layers that have one of their own; others use the choice of the layer before."""
    if not row.indexer:
        return {}
    needed = None if row.memory != "dsa-or-attention" else 0
    out: dict[str, Any] = {
        "indexer_n_head": file.whole("attention.indexer.head_count", needed),
        "indexer_head_size": file.whole("attention.indexer.key_length", needed),
        "indexer_top_k": file.whole("attention.indexer.top_k", needed),
    }
    key = "attention.indexer.types"
    full: tuple[int, ...] = (1,) * trunk
    if row.memory == "compressed":
        ratios = file.numbers("attention.compress_ratios")
        if len(ratios) < layers:
            raise file.error_in_words("attention.compress_ratios", f"a list of {len(ratios):,}", f"a list of at least {layers:,}")
        out["compress_ratios"] = ratios[:layers]
    elif row.indexers_by_context:
        full = file.per_layer(key, trunk, full if trained < _GLM_5_2_CONTEXT else tuple(map(_glm_5_2_indexer, range(trunk))))
    elif row.pooled_indexer:
        out["indexer_kpool"] = file.whole("attention.indexer.kpool", None, minimum=2)
        full = file.per_layer(key, trunk, full)
    elif row.memory == "dsa-or-attention" and out["indexer_top_k"]:
        full = file.per_layer(key, trunk, (0,) * trunk)
    elif row.memory == "dsa-window":
        full = (*file.numbers(key), *(0,) * trunk)[:trunk]
    return out | {"indexer_full": (*map(bool, full), *(False,) * (layers - trunk))}


_GLM_5_2_CONTEXT: Final = 1_048_576
"""From this training context on, a GLM file without a list of indexers is GLM-5.2 (src/models/glm-dsa.cpp)."""


def _glm_5_2_indexer(layer: int) -> bool:
    """Whether a layer of GLM-5.2 has an indexer of its own: the first two, and then every fourth up to layer 77."""
    return layer < 2 or (layer % 4 == 2 and layer < 78)


def _unrolled(file: Keys, row: Architecture, read: Mapping[str, Any]) -> dict[str, Any]:
    """The layers of a model that runs its blocks several times, or that has one more than the file counts."""
    trunk = read["n_layer_all"] - read["n_layer_nextn"]
    if row.loops:
        loops = file.whole("num_loops", 1, minimum=1, maximum=MAX_LAYERS)
        if loops * trunk > MAX_LAYERS:
            raise file.error("num_loops", loops, f"a number that makes at most {MAX_LAYERS} layers")
        if loops == 1:
            return {}
        return {"n_layer_all": loops * trunk, "loops": loops} | {name: read[name][:trunk] * loops for name in _ROUTER_LAYER}
    if row.router_block:
        more = {name: (*read[name][:trunk], last) for name, last in _ROUTER_LAYER.items()}
        return {"n_layer_all": trunk + 1, "n_layer_nextn": 1, "router_layer": trunk} | more
    return {}


_ROUTER_LAYER: Final[Mapping[str, int | bool]] = {"n_head": 1, "n_head_kv": 1, "n_ff": 0, "is_swa": False, "is_recurrent": False}

"""Memory that a policy takes beside the cache while it works."""

from __future__ import annotations

from math import ceil
from typing import Final

from hwcalc.model import Definition
from hwcalc.policies.base import EAGER, Chosen, Extra, InPrefill, LayerShape, Setting

__all__ = [
    "AT_LEAST",
    "BY_WINDOW",
    "SMALL",
    "chunk_scores",
    "eager_scores",
    "looking",
    "page_keys",
    "query_statistics",
    "repeats",
    "similarity",
    "statistics_bytes",
    "weight_bytes",
    "window_bytes",
    "window_scores",
    "window_tensors",
]

_FIT: Final = "peaks of transformers 5.2.0 on the CPU, fitted over 256, 512 and 1,024 tokens"
_INDEX: Final = 8
"""Bytes of a position."""

SMALL: Final = InPrefill()
"""Smaller than the tensors of the MLP."""
AT_LEAST: Final = InPrefill(complete=False)
"""Perhaps more than what is counted."""


def window_tensors(window: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    """The last queries, their scores of so many keys with mask and softmax, and keys repeated for each head.

    Eager attention has made the scores already.
    """
    if setting.attention == EAGER:
        return 0
    size, batch = setting.element_bytes, setting.batch
    repeated = batch * keys * shape.heads * shape.head_dim * size if repeats(shape) else 0
    scores = batch * shape.heads * window * keys
    rows = batch * window * shape.heads * shape.head_dim * size
    return rows + repeated + max(3 * scores * size + _INDEX + size, scores * window_bytes(size))


def _window(chosen: Chosen, queries: int, keys: int, shape: LayerShape, setting: Setting) -> int:
    window = chosen["window_size"]
    return 0 if window is None else window_tensors(window, keys, shape, setting)


BY_WINDOW: Final = InPrefill(bytes=_window)
"""The scores of the last ``window_size`` queries."""


def looking(chosen: Chosen) -> tuple[Chosen, ...]:
    """The policy and those inside that look at the keys: none where nothing is to go."""
    made = chosen.policy.in_prefill
    return chosen.whole if chosen.ratio or (made is not None and made.always) else ()


def weight_bytes(element_bytes: int) -> int:
    """Bytes of a score and of its weight while eager attention makes one of the other.

    In fp32 that is 4 + 4; in 16 bits the score, an fp32 copy and an fp32 softmax, 2 + 4 + 4.
    """
    return 2 * element_bytes if element_bytes >= 4 else element_bytes + 8


def window_bytes(element_bytes: int) -> int:
    """Bytes of a score of a window with its weight: as :func:`weight_bytes`, and the score with a mask on it."""
    return element_bytes + weight_bytes(element_bytes)


def repeats(shape: LayerShape) -> bool:
    """Whether keys are copied for each query head. A single one is looked at from all heads."""
    return 1 < shape.kv_heads < shape.heads


def statistics_bytes(chosen: Chosen, queries: int, shape: LayerShape, setting: Setting) -> int:
    """What Expected Attention makes of the queries of so many tokens: their mean and covariance, and rotations of positions to come."""
    size, batch, dim = setting.element_bytes, setting.batch, shape.head_dim
    ahead: int = chosen["n_future_positions"]
    width = shape.heads * dim * size
    rows: int = batch * max(0, queries - chosen["n_sink"]) * width
    statistics = batch * width + rows + (rows + batch * width * dim if chosen["use_covariance"] else 0)
    return statistics + ahead * (_INDEX + 2 * dim * size) + (2 + 3 * ahead) * dim * dim * size


def eager_scores(tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The scores, their softmax and a mask that eager attention makes in a layer, each tokens x tokens.

    In fp32 that is 8 bytes a head and 4 of a mask, in 16 bits 10 and 2.
    At 32,768 tokens and 32 heads of fp32: 260 x 32,768 x 32,768 bytes = 260 GiB.
    """
    if not setting.layers:
        return ()
    size = setting.element_bytes
    heads = max(layer.heads for layer in setting.layers)
    a_head = weight_bytes(size)
    return (
        Extra(
            name="eager attention scores",
            bytes=setting.batch * (a_head * heads + size) * tokens * tokens,
            formula=f"batch x ({a_head} x heads + {size}) x n x n",
            when="in the prefill, one layer at a time",
            definition=Definition.MEASURED,
            source=_FIT,
            by_query=True,
        ),
    )


def window_scores(window: int, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The scores of the last queries, a mask and an fp32 softmax: window x tokens each. In 16 bits there is an fp32 copy of the scores too.

    Where heads share keys, the keys are repeated for each head before.
    """
    if not setting.layers:
        return ()
    window = min(window, tokens)
    size, widest = setting.element_bytes, max(setting.layers, key=lambda layer: layer.heads)
    a_score = window_bytes(size)
    repeated = widest.head_dim * size if repeats(widest) else 0
    keys = f" + {widest.head_dim:,} x {size}" if repeated else ""
    return (
        Extra(
            name="scores of the window",
            bytes=setting.batch * widest.heads * tokens * (window * a_score + repeated),
            formula=f"batch x heads x n x ({window:,} x {a_score}{keys})",
            when="while a layer is scored",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, compute_window_attention: repeat_kv, scores, mask and fp32 softmax",
        ),
    )


def query_statistics(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The queries of the prompt, made once more and centred, with their covariance: of the tokens whose hidden states are at hand."""
    if not setting.layers:
        return ()
    widest, size = max(setting.layers, key=lambda layer: layer.heads), setting.element_bytes
    sinks, ahead = chosen["n_sink"], chosen["n_future_positions"]
    rows = f"2 x (n - {sinks:,}) + 1 + head_dim" if chosen["use_covariance"] else f"n - {sinks:,} + 1"
    turned = f"{ahead:,} x ({_INDEX} + 2 x head_dim x {size}) + {2 + 3 * ahead:,} x head_dim x head_dim x {size}"
    return (
        Extra(
            name="statistics of queries",
            bytes=statistics_bytes(chosen, tokens, widest, setting),
            formula=f"batch x heads x head_dim x {size} x ({rows}) + {turned}",
            when="in the prefill, one layer at a time",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, ExpectedAttentionPress.get_query_statistics",
            by_query=True,
        ),
    )


def chunk_scores(chunk: int, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """Scores of the tokens of each chunk of a prompt with each other, without a mask, and the queries and repeated keys that make them."""
    if not setting.layers:
        return ()
    size, widest = setting.element_bytes, max(setting.layers, key=lambda layer: layer.heads)
    padded, copies = ceil(tokens / chunk) * chunk, 2 if repeats(widest) else 1
    numbers = f"{chunk:,} x {weight_bytes(size)} + {copies} x head_dim x {size}"
    return (
        Extra(
            name="scores of chunks",
            bytes=setting.batch * widest.heads * padded * (chunk * weight_bytes(size) + copies * widest.head_dim * size),
            formula=f"batch x heads x ceil(n / {chunk:,}) x {chunk:,} x ({numbers})",
            when="in the prefill, one layer at a time",
            definition=Definition.ESTIMATE,
            source="kvpress 0.5.5, NonCausalAttnPress.non_causal_chunked_attn",
            by_query=True,
        ),
    )


def similarity(tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The matrix of similarities between all keys of a head, for all heads of a layer."""
    heads = max((layer.kv_heads for layer in setting.layers), default=0)
    size = setting.batch * heads * tokens * tokens * setting.element_bytes
    return (
        Extra(
            name="similarities of keys",
            bytes=size,
            formula=f"batch x kv_heads x n x n x {setting.element_bytes}",
            when="at each cut, one layer at a time",
            definition=Definition.ESTIMATE,
            source="Zefan-Cai/R-KV d15c976, cal_similarity",
        ),
    )


def page_keys(chosen: Chosen, tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The least and the greatest key of every page, in all layers: two keys for a page of keys and values."""
    page = chosen["chunk_size"]
    elements = sum(2 * layer.kv_heads * layer.head_dim for layer in setting.layers)
    return (
        Extra(
            name="keys of pages",
            bytes=setting.batch * ceil(tokens / page) * elements * setting.element_bytes,
            formula=f"batch x ceil(n / {page:,}) x 2 x kv_heads x head_dim x {setting.element_bytes} x layers",
            when="always, all layers",
            definition=Definition.ENGINE,
            source="mit-han-lab/Quest 01c1623",
            lasting=True,
        ),
    )

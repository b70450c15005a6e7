"""Memory that a policy takes beside the cache while it works."""

from __future__ import annotations

from math import ceil
from typing import Final

from hwcalc.model import Definition
from hwcalc.policies.base import Chosen, Extra, Setting

__all__ = ["eager_scores", "page_keys", "similarity", "window_scores"]

_FIT: Final = "peaks of transformers 5.2.0 on the CPU, fitted over 256, 512 and 1,024 tokens"


def eager_scores(tokens: int, setting: Setting) -> tuple[Extra, ...]:
    """The scores, their softmax and a mask that eager attention makes in a layer, each tokens x tokens.

    In fp32 that is 4 + 4 bytes a head and 4 of a mask; in 16 bits the scores, an fp32 copy and an fp32 softmax, 2 + 4 + 4, and 2.
    At 32,768 tokens and 32 heads of fp32: 260 x 32,768 x 32,768 bytes = 260 GiB.
    """
    if not setting.layers:
        return ()
    size = setting.element_bytes
    heads = max(layer.heads for layer in setting.layers)
    a_head = 2 * size if size >= 4 else size + 8
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
    a_score = 2 * size + (4 if size >= 4 else 8)
    repeated = widest.head_dim * size if widest.heads > widest.kv_heads else 0
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

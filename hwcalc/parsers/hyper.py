"""Hyper-connections: learned weights mix several residual streams around every attention and MLP, and before the last norm."""

from __future__ import annotations

from hwcalc.formulas.weights import Weight, parameter
from hwcalc.parsers.config import Config

__all__ = ["hyper_connection", "hyper_connections", "hyper_head"]


def hyper_connection(path: str, streams: int, hidden_size: int, outputs: int) -> tuple[Weight, ...]:
    """The weights that mix ``streams`` residual streams around an attention or MLP: into it and out of it.

    With three outputs the streams are also mixed with each other, which takes streams x streams rows more.

    >>> sum(weight.elements for weight in hyper_connection("hc", 4, 2, 3))
    219

    (2 x 4 + 4 x 4) x (4 x 2) = 192 weights, 24 biases and 3 scales.
    """
    rows = 2 * streams + (streams * streams if outputs == 3 else 0)
    return (
        *parameter(f"{path}.fn", rows, streams * hidden_size),
        *parameter(f"{path}.base", rows),
        *parameter(f"{path}.scale", outputs),
    )


def hyper_connections(config: Config, outputs: int) -> tuple[Weight, ...]:
    """The weights that mix the streams around the attention and around the MLP of a layer."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return hyper_connection("attn_hc", streams, hidden, outputs) + hyper_connection("ffn_hc", streams, hidden, outputs)


def hyper_head(config: Config) -> tuple[Weight, ...]:
    """The weights that mix the streams before the last norm."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return (
        *parameter("hc_head.hc_fn", streams, streams * hidden),
        *parameter("hc_head.hc_base", streams),
        *parameter("hc_head.hc_scale", 1),
    )

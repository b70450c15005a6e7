"""Hyper-connections: several residual streams, which learned weights mix around every block and before the last norm."""

from __future__ import annotations

from hwcalc.formulas.weights import Weight, parameter
from hwcalc.parsers.config import Config

__all__ = ["hyper_connection", "hyper_connections", "hyper_head"]


def hyper_connection(path: str, streams: int, hidden_size: int, outputs: int) -> tuple[Weight, ...]:
    """A block's mixing of ``streams`` residual streams: what goes in, what comes out, and with three outputs also how the
    streams mix among themselves, which takes streams x streams weights.

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
    """The mixing around the attention and around the MLP of a layer."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return hyper_connection("attn_hc", streams, hidden, outputs) + hyper_connection("ffn_hc", streams, hidden, outputs)


def hyper_head(config: Config) -> tuple[Weight, ...]:
    """The mixing of the streams before the last norm."""
    streams, hidden = config.integer("hc_mult"), config.integer("hidden_size")
    return (
        *parameter("hc_head.hc_fn", streams, streams * hidden),
        *parameter("hc_head.hc_base", streams),
        *parameter("hc_head.hc_scale", 1),
    )

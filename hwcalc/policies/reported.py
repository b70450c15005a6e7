"""The compression ratio that a press of kvpress reports behind a prefill, which is not always what it drops."""

from __future__ import annotations

import struct
from math import prod

from hwcalc.policies.base import KVPRESS, Chosen, Role, Setting, State

__all__ = ["reported_ratio"]


def reported_ratio(chosen: Chosen | None, before: State, setting: Setting) -> float | None:
    """The ``compression_ratio`` of the press; ``None`` where it has none, or where the text decides.

    ``before`` is the cache that the policy finds. Masked tokens count as dropped, and half of the zeroed channels.
    """
    if chosen is None:
        return 0.0
    policy = chosen.policy
    if not policy.press or policy.role is Role.DECODING or setting.rules != KVPRESS:
        return None
    rule = _OWN.get(policy.name)
    return chosen.ratio if rule is None else rule(chosen, before, setting)


def _streaming(chosen: Chosen, before: State, setting: Setting) -> float | None:
    """The share of the streaming heads, as a float of 32 bits, times the share that one of them masks: below 0 for a short prompt."""
    heads = sum(shape.kv_heads for shape in setting.layers)
    if not heads:
        return None
    sinks, recent = (chosen["_duo"] or (chosen["sink_size"], chosen["recent_size"]))[:2]
    share: float = struct.unpack("f", struct.pack("f", round(heads * chosen["head_compression_ratio"]) / heads))[0]
    return share * (1 - int(sinks + recent) / before.layers[-1].stored.high)


def _masked(chosen: Chosen, before: State, setting: Setting) -> float | None:
    """How many pairs lie under a threshold depends on the text, unless the window spares them all."""
    spared = all(layer.stored.high <= chosen["sliding_window_size"] for layer in before.layers)
    return 0.0 if spared and all(layer.masked is None for layer in before.layers) and not chosen["decoding"] else None


def _channels(chosen: Chosen, before: State, setting: Setting) -> float:
    ratio: float = chosen["key_channel_compression_ratio"]
    return ratio / 2


def _by_layer(chosen: Chosen, before: State, setting: Setting) -> float:
    ratios: tuple[float, ...] = chosen["compression_ratios"]
    return sum(ratios) / len(ratios)


def _lazy(chosen: Chosen, before: State, setting: Setting) -> float | None:
    """The mean over the layers. One token is taken to stay that goes: kvpress counts with an ``n_last`` of 1."""
    threshold, first, recent, last = (chosen[name] for name in ("lazy_threshold", "n_initial", "n_recent", "n_last"))
    found = []
    for layer in before.layers:
        tokens = layer.stored.high
        touched = threshold != 1 and tokens > first + recent + last
        if touched and (threshold or not layer.stored.is_exact):
            return None
        found.append((tokens - first - recent + 1) / tokens if touched else 0.0)
    return sum(found) / len(found) if found else None


def _one_after_the_other(chosen: Chosen, before: State, setting: Setting) -> float | None:
    shares = []
    for inner in chosen["presses"]:
        ratio = reported_ratio(inner, before, setting)
        if ratio is None:
            return None
        shares.append(1 - ratio)
        before = inner.policy.prefill(inner, before, setting)
    return 1 - prod(shares, start=1.0)


_OWN = {
    "duoattention": _streaming,
    "dms": _masked,
    "think": _channels,
    "perlayercompression": _by_layer,
    "simlayerkv": _lazy,
    "composed": _one_after_the_other,
}
"""Presses whose ratio is not the option of this name, their own or that of the scorer inside."""

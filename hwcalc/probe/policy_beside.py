"""Memory beside the cache while a policy scores: the same operations with real tensors, where that fits."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.model import Definition
from hwcalc.policies.base import Chosen, Extra, LayerShape, Setting
from hwcalc.policies.outcome import extras_of
from hwcalc.probe.devices import Device
from hwcalc.probe.meter import Meter
from hwcalc.probe.policy_result import BYTES, PolicyFigure
from hwcalc.text import brief

__all__ = ["beside_for_real"]

_LEAST_TOKENS: Final = 64
_MOST_TOKENS: Final = 2**31
_ESTIMATE: Final = 0.25
"""How far an estimate may be off: engines make copies that its formula leaves out."""
_MEASURED: Final = 0.02
"""The rest of a fit: terms that do not grow with the square."""
_FLOATS: Final = {4: "float32", 2: "bfloat16", 8: "float64"}


class _Scoring(Record):
    """One layer that is scored, of ``setting.batch`` sequences of so many tokens."""

    chosen: Chosen
    setting: Setting
    tokens: int
    device: Device
    meter: Meter

    @property
    def torch(self) -> Any:
        """The library."""
        return self.device.torch

    @property
    def dtype(self) -> Any:
        """The format of the model."""
        return getattr(self.torch, _FLOATS.get(self.setting.element_bytes, "float32"))

    @property
    def layer(self) -> LayerShape:
        """The layer whose scores are the largest."""
        return _widest(self.setting)

    def zeros(self, *shape: int) -> Any:
        """Numbers of the model's format."""
        return self.torch.zeros((self.setting.batch, *shape), dtype=self.dtype, device=self.device.label)

    def option(self, name: str) -> int:
        """An option of the policy, or of one inside it."""
        found = (one.get(name) for one in self.chosen.whole)
        return next((int(value) for value in found if value), 1)


def beside_for_real(
    beside: Sequence[Extra], chosen: Chosen, prompt: int, setting: Setting, device: Device, meter: Meter, most_bytes: int
) -> list[PolicyFigure]:
    """Each memory beside the cache that the plan names, for as many tokens as fit into ``most_bytes``."""
    figures = []
    for planned in beside:
        make = _MAKERS.get(planned.name)
        if make is None:
            figures.append(PolicyFigure.known(planned.name, BYTES, planned.bytes, None, "not measured"))
            continue
        tokens, batch = _tokens_of(chosen, prompt, setting, planned), setting.batch
        asked = tokens
        extra = _named(chosen, tokens, setting, planned.name)
        while extra is not None and _needed(extra, tokens, batch, setting) > most_bytes:
            tokens, batch = (tokens, 1) if batch > 1 else (tokens // 2, 1)
            extra = _named(chosen, tokens, replace(setting, batch=batch), planned.name) if tokens >= _LEAST_TOKENS else None
        if extra is None:
            figures.append(
                PolicyFigure.known(planned.name, BYTES, planned.bytes, None, f"not measured: more than {most_bytes:,} B")
            )
            continue
        scoring = _Scoring(chosen=chosen, setting=replace(setting, batch=batch), tokens=tokens, device=device, meter=meter)
        start = meter.now
        given = make(scoring)
        measured = meter.peak - start - sum(one.untyped_storage().nbytes() for one in given)
        del given
        figures.append(
            _judged(extra, measured, "" if (tokens, batch) == (asked, setting.batch) else f"of {batch:,} x {tokens:,} tokens")
        )
    return figures


def _tokens_of(chosen: Chosen, prompt: int, setting: Setting, planned: Extra) -> int:
    """The tokens of which the plan speaks: those of the prompt, or more where a cut of later text takes more."""
    low, step = 0, 1
    while step:
        extra = _named(chosen, low + step, setting, planned.name) if low + step < _MOST_TOKENS else None
        if extra is not None and extra.bytes <= planned.bytes:
            low, step = low + step, 2 * step
        else:
            step //= 2
    found = _named(chosen, low, setting, planned.name) if low else None
    return low if found is not None and found.bytes == planned.bytes else prompt


def _named(chosen: Chosen, tokens: int, setting: Setting, name: str) -> Extra | None:
    return next((one for one in extras_of(chosen, tokens, setting) if one.name == name), None)


def _needed(extra: Extra, tokens: int, batch: int, setting: Setting) -> int:
    """The bytes of the scores, and of the queries and keys from which they are made."""
    layer = _widest(setting)
    return extra.bytes + batch * tokens * (layer.heads + layer.kv_heads) * layer.head_dim * setting.element_bytes


def _judged(extra: Extra, measured: int, remark: str) -> PolicyFigure:
    share = {Definition.ESTIMATE: _ESTIMATE, Definition.MEASURED: _MEASURED}.get(extra.definition, 0.0)
    slack = share * extra.bytes
    return PolicyFigure(
        name=extra.name,
        unit=BYTES,
        predicted=extra.bytes,
        measured=measured,
        least=extra.bytes - slack,
        most=extra.bytes + slack,
        remark="; ".join(filter(None, (remark, f"{extra.definition.value}: {brief(extra.formula, 80)}"))),
    )


def _widest(setting: Setting) -> LayerShape:
    """The layer whose scores are the largest."""
    return max(setting.layers, key=lambda layer: (layer.heads, layer.kv_heads))


def _eager(one: _Scoring) -> tuple[Any, ...]:
    """As transformers: queries by keys, scaled, masked, and a softmax in fp32 that goes back to the format of the model."""
    layer, torch = one.layer, one.torch
    queries, keys = (one.zeros(layer.heads, one.tokens, layer.head_dim) for _ in range(2))
    one.meter.restart()
    mask = one.zeros(1, one.tokens, one.tokens)
    scores = torch.matmul(queries, keys.transpose(2, 3)) * layer.head_dim**-0.5
    scores = scores + mask
    scores = torch.softmax(scores, dim=-1, dtype=torch.float32).to(one.dtype)
    return queries, keys


def _window(one: _Scoring) -> tuple[Any, ...]:
    """As kvpress: keys repeated for each head, the last queries by all keys, a mask that is made and added, and a softmax in fp32."""
    layer, torch = one.layer, one.torch
    window = min(one.option("window_size"), one.tokens)
    queries, keys = one.zeros(layer.heads, window, layer.head_dim), one.zeros(layer.kv_heads, one.tokens, layer.head_dim)
    one.meter.restart()
    repeated = keys
    if layer.heads > layer.kv_heads:
        repeated = keys.repeat_interleave(layer.heads // layer.kv_heads, dim=1)
    scores = torch.matmul(queries, repeated.transpose(2, 3)) / layer.head_dim**0.5
    mask = torch.ones_like(scores) * float("-inf")
    mask = torch.triu(mask, diagonal=one.tokens - window + 1)
    scores += mask
    scores = torch.softmax(scores, dim=-1, dtype=torch.float32).to(one.dtype)
    return queries, keys


def _similarities(one: _Scoring) -> tuple[Any, ...]:
    """As R-KV: every key of a head by every other."""
    keys = one.zeros(one.layer.kv_heads, one.tokens, one.layer.head_dim)
    one.meter.restart()
    one.torch.matmul(keys, keys.transpose(2, 3))
    return (keys,)


def _pages(one: _Scoring) -> tuple[Any, ...]:
    """As Quest: the least and the greatest key of each page, of all layers."""
    pages = ceil(one.tokens / one.option("chunk_size"))
    one.meter.restart()
    for _ in [[one.zeros(layer.kv_heads, pages, layer.head_dim) for _ in range(2)] for layer in one.setting.layers]:
        pass
    return ()


_MAKERS: Final = {
    "eager attention scores": _eager,
    "scores of the window": _window,
    "similarities of keys": _similarities,
    "keys of pages": _pages,
}

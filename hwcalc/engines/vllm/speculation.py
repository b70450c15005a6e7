"""Speculative decoding as vLLM's options name it: who drafts, and how many tokens at a time."""

from __future__ import annotations

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec
from hwcalc.units import parse_tokens

__all__ = ["Speculation", "read_speculation"]


@frozen
class Speculation:
    """``method`` drafts ``tokens`` at a time; ``model`` names the draft's own model, where it has one."""

    method: str
    tokens: int
    model: str | ModelSpec | None = None


def read_speculation(value: str | None, draft: ModelSpec | None) -> Speculation | None:
    """``--draft MODEL`` is ``speculative=draft:MODEL``; the option says more."""
    if value is None:
        return None if draft is None else Speculation(method="draft", tokens=1, model=draft)
    if draft is not None:
        raise UsageError("--draft and the engine option speculative both name a draft.", hint="Give one of them.")
    method, _, rest = value.partition(":")
    if method in ("ngram", "mtp"):
        return Speculation(method=method, tokens=parse_tokens(rest or "1", f"engine option speculative={method}:N"))
    if method in ("eagle", "draft") and rest:
        name, _, count = rest.rpartition(":")
        if name and count.isdecimal():
            return Speculation(method=method, tokens=parse_tokens(count), model=name)
        return Speculation(method=method, tokens=1, model=rest)
    raise UsageError(
        f"engine option speculative={value[:60]} is not known.", hint="Allowed: ngram:N, mtp:N, eagle:MODEL[:N], draft:MODEL[:N]."
    )

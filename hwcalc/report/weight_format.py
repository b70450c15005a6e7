"""A format of weights in words."""

from __future__ import annotations

from hwcalc.library.weight_format import WeightFormatFacts, weight_format
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.report.text import broken, filled
from hwcalc.units import human_bytes


def format_text(text: str, columns: int) -> str:
    """What a format of ``--weights`` is, in lines; empty where it is none."""
    facts = weight_format(text)
    if facts is None:
        return ""
    also = f" (also: {', '.join(facts.aliases)})" if facts.aliases else ""
    lines = [filled(f"{facts.name}{also}: a format of weights, --weights {facts.name}", columns)]
    lines += [f"  {line}" for said in _said(facts) for line in broken(said, columns - 2)]
    return "\n".join(lines) + "\n"


def _said(facts: WeightFormatFacts) -> list[str]:
    """Its bits, its makers, its engines, and where it is a format of the cache too."""
    stored = "" if facts.mostly == facts.name else f", as {facts.mostly}"
    out = [
        f"{facts.bits:g} bits for most weights{stored}, scales included",
        f"{facts.model} takes {human_bytes(facts.model_bytes)} in it: {facts.model_bits:g} bits a weight, over all of them",
        f"made by {facts.made_by}" if facts.made_by else "made in training: most models are published in it",
        f"engines: {', '.join(facts.engines)}" if facts.engines else "engines: none here, so that its size alone is planned",
    ]
    return [*out, f"The cache may have it too: kvplan dtypes {facts.name}"] if find_dtype(facts.name) is not None else out

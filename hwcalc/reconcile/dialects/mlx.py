"""What mlx-lm prints: its peak of memory, and its warning of a model that is close to the limit of the Mac.

``mlx_lm.generate`` ends with ``Peak memory: 4.905 GB``, where a GB is 10^9 bytes; the warning has whole MiB, rounded down.
Source: mlx-lm 0.32.2 generate.py (generate, wired_limit).
"""

from __future__ import annotations

import re
from typing import Final

from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.memory import Section
from hwcalc.model import Note
from hwcalc.reconcile.facts import Dialect, Range, Row, compared, named_budget, total
from hwcalc.units import MIB

_PEAK: Final = re.compile(r"^Peak memory: ([0-9]{1,6})\.([0-9]{1,6}) GB")
_TOKENS: Final = re.compile(r"^(Prompt|Generation): ([0-9]{1,12}) tokens, [0-9.]{1,20} tokens-per-sec")
_CLOSE: Final = re.compile(
    r"model that requires ([0-9]{1,9}) MB which is close to the maximum recommended size of ([0-9]{1,9}) MB"
)
_GB: Final = 10**9


class MlxLog(Dialect):
    """Reads the output line by line."""

    name = "mlx"
    engine = "mlx"
    sought = (
        "Prompt: 11 tokens, 98.762 tokens-per-sec",
        "Generation: 100 tokens, 35.4 tokens-per-sec",
        "Peak memory: 4.905 GB",
        "[WARNING] Generating with a model that requires 15000 MB which is close to the maximum recommended size of 16384 MB",
    )

    def read(self, text: str) -> None:
        """Add the facts that one line states."""
        self.facts.text = text = text.strip()
        peak, tokens, close = _PEAK.match(text), _TOKENS.match(text), _CLOSE.search(text)
        if peak is not None:
            unit = _GB // 10 ** len(peak[2])
            size = int(peak[1] + peak[2]) * unit
            self.facts.add("peak_bytes", size, "bytes", low=size - unit // 2, high=size + unit // 2)
        if tokens is not None:
            self.facts.add(f"{tokens[1].lower()}_tokens", int(tokens[2]), "tokens")
        if close is not None:
            self.facts.add_floor("model_bytes", int(close[1]), MIB)
            self.facts.add_floor("limit_bytes", int(close[2]), MIB)

    def inputs(self) -> tuple[dict[str, object], dict[str, str]]:
        """The length: prompt and answer, which comes token by token."""
        prompt, generated = self.facts.last("prompt_tokens"), self.facts.last("generation_tokens")
        if prompt is None or not isinstance(prompt.value, int):
            return {}, {}
        more = generated.value if generated is not None and isinstance(generated.value, int) else 0
        stated: dict[str, object] = {"seq": prompt.value + more}
        return stated | ({"prompt": prompt.value} if more else {}), {}

    def compare(self, occupancy: Occupancy, tolerance: float) -> tuple[list[Row], list[Note]]:
        """A row for every figure that the output and the plan have."""
        facts, budget = self.facts, named_budget(occupancy)
        parts = (occupancy.told(occupancy.weights) if budget is None else budget.parts) or ()
        weights = total(part for part in parts if part.section is Section.WEIGHTS)
        rows = compared("weights", facts.last("model_bytes"), weights, tolerance, "estimate", "weights of the model")
        if budget is None:
            message = "Name the Mac with --gpu to compare the peak and the limit."
            unread = "peak_bytes" in facts or "limit_bytes" in facts
            return rows, [Note(code="no-gpu", message=message)] if unread else []
        limit = Range(low=budget.total_low_bytes, expected=budget.total_bytes, high=budget.total_high_bytes)
        meaning = "memory that Metal recommends to use at most"
        rows += compared("device memory", facts.last("limit_bytes"), limit, tolerance, "profile", meaning)
        working = total(part for part in parts if part.section is Section.ACTIVATIONS)
        if weights is not None and working is not None:
            low, expected, high = (
                occupancy.needed_bytes + getattr(weights, end) + getattr(working, end) for end in ("low", "expected", "high")
            )
            peak = Range(low=low, expected=expected, high=high)
            meaning = "weights, cache and activations at the fullest"
            rows += compared("peak", facts.last("peak_bytes"), peak, tolerance, "estimate", meaning)
        return rows, []

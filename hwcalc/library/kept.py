"""What :func:`~hwcalc.library.keep.keep` returns."""

from __future__ import annotations

from typing import Any

from hwcalc.answers import Answer
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note
from hwcalc.policies.base import Effect, Extra, Quality
from hwcalc.policies.scratch import Peak
from hwcalc.units import human_bytes

__all__ = ["Kept", "MaskedPairs"]


class MaskedPairs(Record):
    """Pairs of keys and values that are stored without weight, in all layers and heads. ``definition`` is that of their division."""

    low: int
    high: int
    definition: Definition


class Kept(Answer, Record):
    """What a policy keeps of a prompt and of the text behind it.

    Lengths are tokens in each head of a layer, one number for each layer of the model; a layer without a cache of its own has 0. Where the text
    decides, ``per_layer`` is the most and ``per_layer_low`` the least, and bytes follow from the most. ``masked_per_layer_head`` adds up; which
    head has how many is exact only if ``masked.definition`` is not ``estimate``. ``series`` is the first layer that the policy acts on.
    """

    schema_version: str
    kvplan_version: str
    model: str
    policy: str
    effect: Effect | None
    rules: str
    attention: str
    kv_dtype: str
    prompt: int
    decode: int
    batch: int
    definition: Definition
    layers_acted_on: int
    per_layer: list[int]
    per_layer_low: list[int]
    after_decode_per_layer: list[int]
    masked_per_layer_head: list[list[int]] | None
    masked_bounds_per_layer_head: list[list[list[int]]] | None
    """The least and the most that each head of each layer can have masked."""
    masked: MaskedPairs | None
    read_per_layer: list[int] | None
    read_per_layer_low: list[int] | None
    kept_ranges: list[list[int]] | None
    """Kept positions, from start to end, where the rule alone says them."""
    first_decode_position: int
    full_bytes: int
    cache_bytes: int
    cache_low_bytes: int
    storage_bytes: int
    after_decode_bytes: int
    frees_memory: bool
    """Whether less is stored behind the prefill than without the policy."""
    series: list[int]
    """Tokens behind each decode step."""
    most_tokens: int
    """The most behind the prefill or a step, in one layer."""
    most_tokens_within_step: int
    """The same within a step, before it cuts."""
    cuts: list[list[int]]
    """Step, tokens before and behind, of each step that cuts."""
    prefill_peak: Peak | None
    """The most bytes at once in the prefill, above the weights: as transformers and kvpress allocate on the CPU, without the last matrix."""
    reported_compression_ratio: float | None
    """What kvpress itself says that it dropped; masked tokens count."""
    beside: tuple[Extra, ...]
    quality: tuple[Quality, ...]
    notes: tuple[Note, ...]

    @property
    def prefill_peak_bytes(self) -> int | None:
        """The high end of the peak."""
        return None if self.prefill_peak is None else self.prefill_peak.high

    def headline(self) -> str:
        """The answer in one line."""
        saved = f"{human_bytes(self.storage_bytes)} of {human_bytes(self.full_bytes)} behind a prompt of {self.prompt:,}"
        effect = "keeps everything" if self.effect is None else self.effect.text
        return f"{self.model}, {self.policy}: {saved} ({effect})"

    def records(self) -> list[dict[str, Any]]:
        """A row for each layer."""
        return [
            {
                "layer": number,
                "kept": tokens,
                "kept_low": low,
                "after_decode": after,
                "masked": None if self.masked_per_layer_head is None else sum(self.masked_per_layer_head[number]),
                "read": None if self.read_per_layer is None else self.read_per_layer[number],
            }
            for number, (tokens, low, after) in enumerate(
                zip(self.per_layer, self.per_layer_low, self.after_decode_per_layer, strict=True)
            )
        ]

    __repr__ = Answer.__repr__

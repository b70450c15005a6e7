"""Ways of allocating a cache side by side: the answer of :func:`hwcalc.strategies`."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.documents import Answer
from hwcalc.engines.steps import Step
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note
from hwcalc.profiles.links import HostLink
from hwcalc.units import human_bytes

_MOST: Final = 2**63 - 1


class Strategy(Record):
    """One way of allocating the cache of all sequences.

    ``full_bytes`` is what lies on the device between steps when every sequence has all its tokens, ``held_bytes`` with the lengths asked
    for, and ``wasted_bytes`` what no token of those needs; ``definition`` is that of these three. ``most_wasted_bytes`` is the most that is wasted
    whatever the lengths, if each sequence has one token. ``peak_bytes`` is the most within a step
    on the way to the full length, with copies. ``host_bytes`` lies in host memory when all is full, and ``bus_bytes_per_step`` comes from there in
    a step. ``copied_bytes`` are written anew in all steps together, though they were in the cache before.

    Operations and bytes of a step are those of the last one, for all sequences; ``total_flops`` are those of all passes. Null is not known, as
    operations are if the weights are not. ``attention_`` counts without weights. Seconds are bounds by the accelerator's peaks.
    """

    name: str
    title: str
    full_bytes: int
    held_bytes: int | None
    wasted_bytes: int | None
    most_wasted_bytes: int | None = None
    definition: Definition
    peak_bytes: int
    peak_definition: Definition
    host_bytes: int = 0
    bus_bytes_per_step: int = 0
    bus_s_bound: float | None = None
    copied_bytes: int = 0
    cache_bytes_per_step: int
    weight_bytes_per_step: int | None
    attention_flops_per_step: int
    flops_per_step: int | None
    attention_total_flops: int
    total_flops: int | None
    step_s_bound: float | None
    trades: str
    used_by: str
    steps: tuple[Step, ...]


class HeadChoice(Record):
    """The same model with other key/value heads, or with its latent multiplied out; ``own`` is as published.

    ``share`` is of the model's own bytes. ``parameters_difference`` counts projections of keys and values; null is not known.
    """

    name: str
    num_key_value_heads: int | None
    own: bool
    full_bytes: int
    share: float
    parameters_difference: int | None


class PairCounts(Record):
    """Pairs of tokens that full attention works on in one layer and head, for one sequence that grows from the prompt to ``tokens`` tokens.

    ``recomputed`` begins anew in each pass and ``cached`` does not; both count what a causal mask leaves. ``recomputed_scores`` counts whole
    squares, masked or not. ``quoted_recomputed`` and ``quoted_cached`` are the cube and the square of the tokens, as they are often quoted: what
    all passes take if each were as long as the last one and masked nothing.
    """

    tokens: int
    prompt: int
    cached: int
    recomputed: int
    recomputed_scores: int
    quoted_cached: int
    quoted_recomputed: int


class Strategies(Answer, Record):
    """The strategies for one model, length and number of sequences.

    ``lengths`` says in words which lengths ``held_bytes`` is about: those given, a share ``fill`` of the full length, or a distribution.
    ``needed_bytes`` is what the tokens of those lengths need.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    engine_version: str | None
    gpu: str | None
    seq: int
    batch: int
    prompt: int
    encoder_seq: int
    kv_dtype: str
    block_size: int
    lengths: str
    fill: float | None
    needed_bytes: int
    definition: Definition
    host_link: HostLink | None
    pairs: PairCounts
    strategies: tuple[Strategy, ...]
    heads: tuple[HeadChoice, ...]
    notes: tuple[Note, ...]

    def headline(self) -> str:
        """The answer in one line."""
        most = max(self.strategies, key=lambda one: one.peak_bytes)
        return f"{self.model}: {len(self.strategies)} strategies, {human_bytes(self.needed_bytes)} needed, {most.name} up to {human_bytes(most.peak_bytes)}"

    def records(self) -> list[dict[str, Any]]:
        """A row for each strategy, without the steps of its numbers. Numbers that 64 bits do not hold are floats, for data frames."""
        from hwcalc.documents import document_of

        rows = [{name: value for name, value in document_of(strategy).items() if name != "steps"} for strategy in self.strategies]
        large = {name for row in rows for name, value in row.items() if isinstance(value, int) and value > _MOST}
        return [
            {name: float(value) if name in large and value is not None else value for name, value in row.items()} for row in rows
        ]

    __repr__ = Answer.__repr__

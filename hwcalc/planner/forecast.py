"""How fast requests are served: the time to the first token, between tokens and in all, from the times of steps.

``concurrency`` requests are served at once, and when one ends the next begins. Each reads a prompt of ``prompt`` tokens, of which
``cached_prefix`` lie in the cache already, and writes ``output`` tokens.

- A prompt that is alone takes the time of :meth:`~hwcalc.planner.step_time.StepTimes.prompt`: chunk after chunk.
- A step decodes all sequences. Where the engine mixes prompts in, those of the other requests are computed between the tokens of a request:
  every ``output`` steps each of them brings a new prompt. Otherwise all prompts of a batch are computed before its first step.
- A request that arrives waits for prompts that are computed just then, as in a queue with one server and constant times (M/D/1: Kendall
  1953, doi:10.1214/aoms/1177728975): half of their time, times their share of the time, by the share that is left.

Replicas work by themselves, and pipeline stages each on a part of the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.planner.step_time import shortest

if TYPE_CHECKING:
    from hwcalc.planner.step_time import StepTime, StepTimes

Number = Any
"""A number, or an array of numbers."""


class Quantity(Struct, frozen=True):
    """One quantity: the bound that nothing beats, the expected value and its range. All but the bound are ``None`` in a class without measurements.

    ``low`` and ``high`` are the slow and the fast end for tokens per second, and the short and the long one for times: low is the smaller
    number.
    """

    bound: Number
    expected: Number
    low: Number
    high: Number

    def per_s(self, tokens: Number) -> Quantity:
        """The rate of something that takes this time for so many tokens."""
        bound = tokens / self.bound
        if self.expected is None:
            return Quantity(bound, None, None, None)
        return Quantity(bound, tokens / self.expected, tokens / self.high, tokens / self.low)


def quantity_of(time: StepTime) -> Quantity:
    """The time of a step, or of a prompt."""
    return Quantity(time.bound, time.expected, time.low, time.high)


class Forecast(Struct, frozen=True):
    """The quantities of requests that are served at once."""

    prefill_s: Quantity
    """A prompt that is computed alone."""
    step_s: Quantity
    """A step in which every sequence gains a token, or as many as are accepted, with no prompt in it."""
    ttft_s: Quantity
    """From a request to its first token."""
    itl_s: Quantity
    """The mean between two tokens of a request, with what other prompts take of it."""
    e2e_s: Quantity
    """From a request to its last token."""
    cycle_s: Quantity
    """In which the engine serves as many requests as it has at once."""
    step_terms: Mapping[str, Number]
    """The seconds of each term of ``step_s``; empty in a class without measurements."""
    prompt_terms: Mapping[str, Number]
    """Those of ``prefill_s``."""


def forecast(
    times: StepTimes,
    prompt: Number,
    output: Number,
    concurrency: Number = 1,
    cached_prefix: Number = 0,
    users: Number | None = None,
) -> Forecast:
    """The forecast for a deployment under a load. Numbers may be arrays that broadcast.

    ``users`` are all who have sent a request, if more than are served at once: the others wait until one ends.
    """
    new = prompt - cached_prefix
    requests = larger(concurrency / times.servers, 1)
    each = larger(requests / times.pp, 1)
    # Of a sequence that grows from its prompt to its end, half of the output lies in the cache on average.
    context = prompt + (output + 1) // 2
    step = times.decode(concurrency, context)
    alone = times.prompt(new, cached_prefix)
    # With speculation a step adds several tokens to each sequence.
    steps = larger(output - 1, 0) / times.accepted_tokens
    others = requests - 1
    prefill_bound = larger(alone.reading, alone.computing)
    whole_bound = prefill_bound + steps * step.bound
    # Prompts of others may be computed with the same reading of weights: what is sure of them is that they are computed.
    busy_bound = larger(whole_bound, steps * step.computing + requests * alone.computing)
    if step.expected is None:
        unknown = None, None, None
        return Forecast(
            prefill_s=Quantity(alone.bound, *unknown),
            step_s=Quantity(step.bound, *unknown),
            ttft_s=Quantity(alone.bound, *unknown),
            itl_s=Quantity(step.bound / times.accepted_tokens, *unknown),
            e2e_s=Quantity(whole_bound, *unknown),
            cycle_s=Quantity(busy_bound, *unknown),
            step_terms={},
            prompt_terms={},
        )
    if times.mixes_prompts:
        # Prompts of others come as chunks: small ones together, long ones in parts.
        chunk = smaller(larger(new, others * new / output * times.accepted_tokens / times.pp), times.chunk)
        busy_step = times.with_prompts(chunk, new, cached_prefix, each, context)
        added = others * new / chunk * (busy_step.expected - step.expected) / times.pp
        itl = step.expected / times.accepted_tokens + added / output
        cycle = alone.expected + steps * step.expected + added
        busy = smaller(others * alone.expected / cycle, 0.9)
        first = alone.expected + busy * alone.expected / (2 * (1 - busy))
    else:
        itl = step.expected / times.accepted_tokens
        first = requests * alone.expected
        cycle = first + steps * step.expected
    low, high = times.range_of("serving") if times.mixes_prompts else times.range_of("decode")
    slow, fast = times.range_of("prompt")
    queued = 0.0 if users is None else cycle * (users - concurrency) / concurrency

    def within(value: Number, bound: Number, ends: tuple[float, float]) -> Quantity:
        return Quantity(bound, value, shortest(value, bound, ends[1]), value / ends[0])

    return Forecast(
        prefill_s=quantity_of(alone),
        step_s=quantity_of(step),
        ttft_s=within(first + queued, alone.bound, (slow, fast)),
        itl_s=within(itl, step.bound / times.accepted_tokens, (low, high)),
        e2e_s=within(cycle + queued, whole_bound, (low, high)),
        cycle_s=within(cycle, busy_bound, (low, high)),
        step_terms=step.terms,
        prompt_terms=alone.terms,
    )

"""The expected speed of a plan, next to its bound: from the times of its steps, with the figures that an explanation shows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines import DEFAULT
from hwcalc.engines.steps import Step, step
from hwcalc.errors import KvplanError, UsageError
from hwcalc.model import Note, answers_with_vectors
from hwcalc.planner.forecast import Quantity, forecast, quantity_of
from hwcalc.planner.speed import bound_of
from hwcalc.planner.speed_result import Expected, SpeedInfo
from hwcalc.planner.step_time import TERMS, speed_class_of, step_times
from hwcalc.units import few_digits

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

FIGURES: Final = {
    "weights": "reading_weights_s",
    "experts": "reading_experts_s",
    "cache": "reading_cache_s",
    "copies": "copying_s",
    "unpacking": "unpacking_s",
    "matrices": "matrices_s",
    "attention": "attention_s",
    "launches": "launches_s",
    "exchange": "exchange_s",
}
"""What the terms of a step are called in a formula."""


def decode_rate(opened: Occupancy) -> float | None:
    """The tokens a second that each sequence is expected to decode; ``None`` where nothing is expected."""
    with suppress(KvplanError):
        info = speed_of(opened)
        each = None if info is None else info.tokens_per_s_each
        return None if each is None else each.expected
    return None


def speed_words(opened: Occupancy) -> str:
    """The expected speed of decoding, with how many sequences it is of; empty where nothing is expected."""
    rate, batch = decode_rate(opened), opened.load.batch
    return "" if rate is None else f"{few_digits(rate)} tokens/s{f' each of {batch:,}' if batch > 1 else ''}"


def speed_of(opened: Occupancy, at_most: int = 0) -> SpeedInfo | None:
    """The speed of a plan: the bound, and what is expected of the engine on this accelerator; ``None`` without a GPU.

    ``at_most`` is how many sequences fit. The note ``speed-not-measured`` says where nothing is expected. Of a model for embeddings it is
    that of a prompt alone.
    """
    info = _speed_of(opened, at_most)
    if info is None or not answers_with_vectors(opened.model.id):
        return info
    of_all = {"definition", "source", "steps", "speed_class", "expected_source"}
    decoding: dict[str, Any] = {
        name: None for name in info.__struct_fields__ if not name.startswith("prefill") and name not in of_all
    }
    steps = tuple(one for one in info.steps if "prompt" in one.name or one.name == "prefill_s")
    return replace(info, **decoding, steps=steps)


def _speed_of(opened: Occupancy, at_most: int) -> SpeedInfo | None:
    bound = bound_of(opened)
    if bound is None or bound.decode_step_s_bound is None or opened.load.sharing.asked or opened.load.lengths:
        return bound
    times = step_times(opened)
    if times is None:
        return bound
    found = times.speed_class
    if found is None:
        return bound
    sequences, prompt = opened.batch, opened.load.prompt_tokens
    output = opened.tokens - prompt
    stated = opened.load.prompt is not None and output >= 1
    measured: str | None = opened.setup.others.get("measured")
    source = found.text
    if measured is not None:
        from hwcalc.planner.aiconfigurator import averaged

        if not stated:
            raise UsageError(
                f"--measured {measured} needs the tokens of the prompt and of the answer.", hint="Give --prompt, less than --seq."
            )
        times, by = averaged(opened, times, prompt=prompt, output=output, concurrency=sequences, cached_prefix=0)
        source = f"{by}; {source}"
    decoding = times.decode(sequences, opened.tokens)
    alone = times.prompt(prompt)
    # The bound of the plan also knows what lies on the host and what a policy drops.
    step_bound, prompt_bound = bound.decode_step_s_bound, bound.prefill_s_bound or alone.bound
    one_step, first = above(quantity_of(decoding), step_bound), above(quantity_of(alone), prompt_bound)
    steps = (*bound.steps, *term_steps("expected_step_s", decoding.terms))
    info = replace(
        bound,
        decode_tokens_per_s=expected(one_step.per_s(sequences)),
        tokens_per_s_each=expected(one_step.per_s(1)),
        prefill_s=expected(first),
        prefill_tokens_per_s=expected(first.per_s(prompt)),
        speed_class=found.id,
        expected_source=source,
        steps=(*steps, *term_steps("expected_prompt_s", alone.terms)),
    )
    if at_most > 0:
        info = replace(info, each_at_most=expected(quantity_of(times.decode(at_most, opened.tokens)).per_s(1)))
    if not stated:
        return info
    load = forecast(times, prompt, output, sequences)
    return replace(
        info,
        output_tokens_per_s=expected(load.cycle_s.per_s(sequences * output)),
        ttft_s=expected(above(load.ttft_s, prompt_bound)),
        itl_s=expected(load.itl_s),
        e2e_s=expected(load.e2e_s),
    )


def not_measured(opened: Occupancy, info: SpeedInfo | None) -> tuple[Note, ...]:
    """A note where a plan names an engine and an accelerator of which no measurements are known, or a model that decodes no tokens."""
    gpu = opened.setup.hardware.gpu
    if info is not None and answers_with_vectors(opened.model.id):
        message = f"{opened.model.id} is a model for embeddings or ranks, by its name: it decodes no tokens, so only a prompt has a speed."
        return (Note(code="embeds", message=message),)
    if info is None or gpu is None or info.decode_step_s_bound is None or opened.engine.name == DEFAULT:
        return ()
    if speed_class_of(opened) is not None:
        return ()
    return (unmeasured(opened),)


def unmeasured(opened: Occupancy) -> Note:
    """The note of an engine and an accelerator of which no measurements are known."""
    gpu = opened.setup.hardware.gpu
    what = f"{opened.engine.label} on {gpu.id if gpu is not None else 'this machine'}"
    message = f"No expected speed of {what}: no measurements of it are known. The bound holds all the same."
    return Note(code="speed-not-measured", message=message)


def above(quantity: Quantity, bound: float) -> Quantity:
    """A time whose bound is this, if that is longer: nothing of it is shorter then."""
    least = max(quantity.bound, bound)
    values: dict[str, Any] = {name: max(least, getattr(quantity, name)) for name in ("expected", "low", "high")}
    return Quantity(least, **values)


def expected(quantity: Quantity) -> Expected:
    """A quantity as a plan shows it."""
    return Expected(
        bound=float(quantity.bound), expected=float(quantity.expected), low=float(quantity.low), high=float(quantity.high)
    )


def term_steps(name: str, terms: Mapping[str, float]) -> tuple[Step, ...]:
    """The figure of a step's or a prompt's time: the sum of its terms, without those that take no time."""
    values = {FIGURES[term]: float(terms[term]) for term in TERMS if terms[term]}
    if not values:
        return ()
    return (step(name, " + ".join(values), sum(values.values()), unit="s", **values),)

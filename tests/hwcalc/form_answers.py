"""What a closed form says of a length and a number of sequences, in the words of a plan; and where the two differ, which they never may."""

from __future__ import annotations

from typing import Any

from hwcalc.engines.forms import MemoryForm
from hwcalc.engines.memory import Section
from hwcalc.planner.result import Plan
from hwcalc.planner.solve import closed_form, last_yes
from hwcalc.planner.verdict import UNLIMITED, Verdict

form_of = closed_form


def verdict(form: MemoryForm, tokens: int, sequences: int) -> Verdict:
    """Whether so many sequences of so many tokens fit, and how sure that is."""
    memory = form.at(tokens, sequences)
    return Verdict.of(*(memory.holds(end) for end in ("expected", "low", "high")))


def longest(form: MemoryForm, tokens: int, sequences: int, end: str = "expected", at_most: int = UNLIMITED) -> int:
    """The most tokens that each sequence can have, up to the model's maximum or the planned ``tokens`` if that is more."""
    bound = UNLIMITED if form.model_tokens is None else max(form.model_tokens, tokens)
    return last_yes(lambda length: form.holds(length, sequences, end), min(bound, at_most), tokens)


def most(form: MemoryForm, tokens: int, sequences: int, end: str = "expected", at_most: int = UNLIMITED) -> int:
    """The most sequences of so many tokens that fit at once; ``sequences`` is where the search begins."""
    bound = UNLIMITED if form.most_sequences is None else min(UNLIMITED, form.most_sequences)
    return last_yes(lambda number: form.holds(tokens, number, end), min(bound, at_most), sequences)


def fit(form: MemoryForm, tokens: int, sequences: int) -> dict[str, Any]:
    """The numbers of a verdict, with the names of its JSON, and its limits."""
    memory = form.at(tokens, sequences)
    needed, usable = memory.needed_bytes, form.usable[1]
    low, expected, high = (memory.left(end) for end in ("low", "expected", "high"))
    likely_seq, likely_batch = longest(form, tokens, sequences), most(form, tokens, sequences)
    return {
        "usable_bytes": usable,
        "needed_bytes": usable - expected + needed,
        "needed_low_bytes": max(0, usable - high + needed),
        "needed_high_bytes": usable - low + needed,
        "headroom_bytes": expected - needed,
        "verdict": verdict(form, tokens, sequences).value,
        "max_seq": longest(form, tokens, sequences, "low", likely_seq),
        "expected_max_seq": likely_seq,
        "max_batch": most(form, tokens, sequences, "low", likely_batch),
        "expected_max_batch": likely_batch,
    }


def answer(form: MemoryForm, tokens: int, sequences: int) -> dict[str, Any]:
    """The numbers of a plan, with the names of its JSON; those of ``Answer`` in the page's types."""
    needed = form.at(tokens, sequences).needed_bytes
    parts = {section.value: form.at(tokens, sequences).parts_bytes("expected", section.value) for section in Section}
    return {
        "cache": {"total_bytes": form.curve.total_bytes(tokens, sequences), "per_gpu_bytes": needed},
        "per_gpu": {**parts, "cache": needed, "total": sum(parts.values()) + needed},
        "fit": fit(form, tokens, sequences),
    }


def differences(form: MemoryForm, plan: Plan) -> dict[str, tuple[Any, Any]]:
    """The numbers in which a form is not its plan: by name, what the form says and what the plan says."""
    found, document = answer(form, plan.request.seq, plan.request.batch), plan.to_dict()
    planned = {"cache": document["cache"], "per_gpu": document["memory"]["per_gpu"], "fit": document["fit"]}
    return {
        f"{group}.{name}": (value, planned[group][name])
        for group, values in found.items()
        for name, value in values.items()
        if value != planned[group][name]
    }

"""What a form says at some lengths and numbers of sequences, beside the requests themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hwcalc import KvplanError, load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS
from hwcalc.library.plan import plan_loaded
from hwcalc.planner import solve
from hwcalc.planner.context import open_request
from hwcalc.profiles.catalog import list_models
from tests.hwcalc.form_answers import differences, form_of

LENGTHS: Final = (1, 2, 15, 16, 17, 63, 64, 65, 128, 129, 1_000, 4_095, 4_096, 8_193, 40_961, 131_073, 1_000_001)
BATCHES: Final = (1, 2, 3, 7, 33, 256, 1_025, 2_048, 2_049, 4_096, 4_097, 100_000)


class Compared(NamedTuple):
    """Of one family: whether it has a form, or a curve alone; what was compared; and each place where something differs."""

    has_form: bool
    verdicts: set[tuple[bool, ...]]
    unlike: list[tuple[int, int, dict[str, Any]]]


class Sampled(NamedTuple):
    """Of a sample of requests: how many have a form, how many a curve, and the verdicts of all points."""

    forms: int
    curves: int
    verdicts: set[tuple[bool, ...]]


def open_drawn(model: str, draw: random.Random, **asked: Any) -> Occupancy | None:
    """A request of some length and batch; ``None`` if the engine refuses it."""
    try:
        return open_request(load_model(model, offline=True), seq=draw.choice(LENGTHS), batch=draw.choice(BATCHES), **asked)
    except KvplanError:
        return None


def compare(opened: Occupancy, draw: random.Random, points: int) -> Compared | None:
    """Its form at all lengths and batches as arrays, and at some of them one by one; ``None`` if the request has no curve."""
    form, curve, dp = opened.form(), opened.curve(), opened.setup.parallel.dp
    if curve is None:
        return None

    def answers(tokens: Any, sequences: Any) -> dict[str, Any]:
        own = -(-sequences // dp)
        found = {"needed": curve.needed_bytes(tokens, own), "total": curve.total_bytes(tokens, sequences)}
        if form is not None:
            found |= {end: form.at(tokens, sequences).left(end) for end in ENDS}
            found |= {f"holds {end}": form.holds(tokens, sequences, end) for end in ENDS}
        return found

    def of_request(tokens: int, sequences: int) -> dict[str, Any]:
        asked = opened.sized(seq=tokens, batch=sequences)
        found: dict[str, Any] = {"needed": asked.needed_bytes, "total": asked.stored_bytes}
        if form is not None:
            found |= {end: solve.budget_bytes(asked, end) for end in ENDS}
            found |= {f"holds {end}": solve.holds(asked, end) for end in ENDS}
        return found

    every = answers(np.array(LENGTHS)[:, None], np.array(BATCHES)[None, :])
    places = {name: np.broadcast_to(array, (len(LENGTHS), len(BATCHES))) for name, array in every.items()}
    unlike, verdicts = [], set()
    for _ in range(points):
        row, column = draw.randrange(len(LENGTHS)), draw.randrange(len(BATCHES))
        tokens, sequences = LENGTHS[row], BATCHES[column]
        planned, alone = of_request(tokens, sequences), answers(tokens, sequences)
        there = {name: array[row, column].item() for name, array in places.items()}
        verdicts.add(tuple(planned[f"holds {end}"] for end in ENDS) if form is not None else ())
        if not planned == alone == there:
            unlike.append((tokens, sequences, {name: (value, alone[name], there[name]) for name, value in planned.items()}))
    return Compared(has_form=form is not None, verdicts=verdicts, unlike=unlike)


def compare_sample(
    count: int, points: int, unlike: Sequence[str], asked_of: Callable[[random.Random], dict[str, Any]]
) -> Sampled:
    """So many requests by chance, half of them about models that are ``unlike``, each at some points: nothing may differ."""
    draw, forms, curves = random.Random(18), 0, 0  # noqa: S311 - a sample
    verdicts: set[tuple[bool, ...]] = set()
    models = sorted(list_models())
    for _ in range(count):
        name, asked = draw.choice((draw.choice(models), draw.choice(unlike))), asked_of(draw)
        opened = open_drawn(name, draw, **asked)
        if opened is None:
            continue
        compared = compare(opened, draw, points)
        assert compared is not None
        assert compared.unlike == [], (name, asked)
        forms, curves, verdicts = forms + compared.has_form, curves + 1, verdicts | compared.verdicts
    return Sampled(forms, curves, verdicts)


def compare_plans(name: str, engine: str, *, many: int) -> None:
    """All numbers of four plans of a model on eight GPUs, one of them for ``many`` sequences, beside those of its form, which no page draws."""
    draw, model = random.Random(name), load_model(name, offline=True)  # noqa: S311 - a sample
    asked: dict[str, Any] = {"engine": engine, "gpu": "h200-sxm-141gb", "tp": 8}
    form = form_of(open_request(model, **asked, seq=1_000))

    assert form is not None
    assert not form.drawable
    for seq, batch in ((1, 1), (4_097, draw.randint(1, 60)), (draw.randint(2, 200_000), 1), (draw.randint(2, 2_000), many)):
        assert differences(form, plan_loaded(model, {**asked, "seq": seq, "batch": batch})) == {}, (seq, batch)

"""A form is its plans: at every length and for every number of sequences it gives the same bytes and the same budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hwcalc import KvplanError, load_model
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS, MemoryForm, Term
from hwcalc.errors import UsageError
from hwcalc.formulas import SharedCache, Stack
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.profiles.calibration import Measured, Measurement, overheads_kind, save_reading
from hwcalc.profiles.catalog import list_models
from hwcalc.profiles.engines import runtime_profile
from tests.effort import cases
from tests.formulas.strategies import kinds
from tests.hwcalc.command import QWEN

GPU: Final = "h100-sxm5-80gb"
ENGINES: Final = ("reference", "transformers")
SAMPLED: Final = cases(16, 40)
LAYOUTS: Final[tuple[dict[str, int], ...]] = (
    {}, {"tp": 2}, {"tp": 8}, {"dp": 2}, {"tp": 2, "dp": 4}, {"pp": 2}, {"tp": 4, "pp": 2, "dp": 3}, {"tp": 16, "dcp": 2},
)  # fmt: skip
CACHES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"cache": "static"},
    {"cache": "static", "max_cache_len": "5000"},
    {"cache": "offloaded"},
    {"cache": "quantized"},
    {"cache": "quantized", "nbits": "2", "q_group_size": "32"},
    {"cache": "quantized", "quant_backend": "hqq", "nbits": "3"},
    {"cache": "quantized", "quant_backend": "fp8"},
)
ROUGH: Final = (1, 2, 3, 5, 31, 37, 127, 1000, 4999, 5000, 99_991, 1_000_003)


def opened(model: ModelSpec, **options: Any) -> Occupancy | None:
    """The request; ``None`` if the engine refuses it."""
    try:
        return open_request(model, **{"seq": 1000, "gpu": GPU, **options})
    except KvplanError:
        return None


def form_of(request: Occupancy) -> MemoryForm | None:
    """The engine's form of a request; ``None`` if it refuses what it stores."""
    try:
        return request.form()
    except KvplanError:
        return None


def terms_of(form: MemoryForm) -> Iterator[Term]:
    """All terms of the cache."""
    yield from form.curve.total
    for terms in form.curve.gpus:
        yield from terms


def lengths(form: MemoryForm, longest: int | None) -> set[int]:
    """Rough lengths, powers of two, the model's own, and every edge of a stair, with their neighbours."""
    edges = {1 << power for power in range(0, 22, 3)} | {longest or 1, *ROUGH}
    for term in terms_of(form):
        for stair in (stair for sums in term.stairs for stair in sums):
            edges |= {stair.per - stair.add, (stair.most or 0) * stair.per - stair.add}
    return {length for edge in edges for length in (edge - 1, edge, edge + 1) if length >= 1}


def unlike(form: MemoryForm, request: Occupancy, tokens: int, sequences: int) -> dict[str, tuple[object, object]]:
    """What a form says of a length and a number of sequences, where the engine says something else."""
    asked = request.sized(seq=tokens, batch=sequences)
    if form.curve.most_tokens is not None and tokens > form.curve.most_tokens:
        with pytest.raises(UsageError):
            _ = asked.needed_bytes
        return {}
    budget = asked.budget
    assert budget is not None
    found = {
        "needed": (form.at(tokens, sequences).needed_bytes, asked.needed_bytes),
        "total": (form.curve.total_bytes(tokens, sequences), asked.stored_bytes),
        **{end: (form.at(tokens, sequences).left(end), getattr(budget, end)) for end in ENDS},
    }
    for part, planned in zip(form.parts, budget.parts, strict=True):
        own = form.replica(sequences)
        found |= {f"{part.name} {end}": (getattr(part, end).at(tokens, own), getattr(planned, end)) for end in ENDS}
    return {name: both for name, both in found.items() if both[0] != both[1]}


def differences(request: Occupancy, batches: tuple[int, ...] = (1, 7)) -> dict[tuple[int, int], object]:
    """Where the form of a request is not its plans."""
    form = form_of(request)
    if form is None:
        return {}
    points = [(tokens, batch) for tokens in lengths(form, request.model.max_position_embeddings) for batch in batches]
    return {point: found for point in points if (found := unlike(form, request, *point))}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_catalog(engine: str) -> None:
    """Of some models drawn from the catalog, in one layout each."""
    draw = random.Random(16)  # noqa: S311 - a sample
    for name in draw.sample(list_models(), SAMPLED):
        request = opened(load_model(name, offline=True), engine=engine, **draw.choice(LAYOUTS))

        assert request is None or differences(request) == {}, name


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=cases(24, 60), deadline=None)
@given(
    layers=st.lists(st.lists(kinds(), min_size=1, max_size=2).map(tuple), min_size=2, max_size=4),
    layout=st.sampled_from(LAYOUTS),
    cache=st.sampled_from(CACHES),
    batch=st.integers(1, 9),
)
@example(layers=[(SharedCache(),)] * 2, layout={}, cache={"cache": "static", "max_cache_len": "5000"}, batch=1)
def test_every_kind(engine: str, layers: list[Any], layout: dict[str, int], cache: dict[str, str], batch: int) -> None:
    """Of layers of any kind with any dimensions, in any cache."""
    model = replace(load_model(QWEN), stack=Stack(tuple(layers)))
    request = opened(model, engine=engine, **layout, engine_options=cache if engine == "transformers" else {})

    assert request is None or differences(request, (batch,)) == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_measured(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in the form where a forward pass is as large as the measured one, and the estimate everywhere else."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    model, full = load_model(QWEN), int(runtime_profile().estimate("activation.chunk_tokens").expected)
    for number, (tokens, rows) in enumerate(((2000, 2), (1000, 1), (full, 1), (2000, 2))):
        where: dict[str, int | str] = {"model": model.id, "tp": 1, "pp": 1, "ep": 1, "tokens": tokens, "rows": rows}
        values = {"activation_bytes": 10**8 + number, "context_bytes": 3 * 10**8}
        read_on = Measured(device="H100", date="2026-11-20", source="a log")
        save_reading(GPU, overheads_kind(engine), Measurement(values=values, measured=read_on, conditions=where))
    request = opened(model, engine=engine)
    assert request is not None
    form = form_of(request)
    assert form is not None

    points = [(tokens, batch) for tokens in (999, 1000, 1001, 2000, full, 10 * full) for batch in (1, 2, 4)]
    for tokens, batch in points:
        budget = request.sized(seq=tokens, batch=batch).budget
        assert budget is not None
        assert [form.at(tokens, batch).left(end) for end in ENDS] == [getattr(budget, end) for end in ENDS]
    assert form.at(1000, 1).parts_bytes("expected", "activations") >= 10**8 + 1
    measured = {
        tokens for tokens, batch in points if form.at(tokens, batch).parts_bytes("low", "activations") in (10**8 + 1, 10**8 + 2)
    }
    assert measured == ({1000, full, 10 * full} if engine == "reference" else {1000, full})

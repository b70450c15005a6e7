"""One place says what each device holds of a context: whoever asks for bytes gets those of the layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from hwcalc import compare, explain, fit, load_model, plan, sweep
from hwcalc.engines.llamacpp import graph, layers, layout
from hwcalc.units import MIB

MODEL: Final = "Qwen/Qwen3-8B"
MORE: Final = 64 * MIB
AUTO: Final[Mapping[str, Any]] = {"gpu": "l4", "seq": 4096, "weights": "q4_k_m"}
ALL: Final[Mapping[str, Any]] = {**AUTO, "engine_options": {"n_gpu_layers": "all"}}


def needed(engine: str, asked: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of a GPU by everybody who says them."""
    made = plan(MODEL, engine=engine, offline=True, **asked)
    assert made.fit is not None
    (point,) = sweep([MODEL], engine=engine, offline=True, **asked)
    (row,) = compare(MODEL, engine=[engine], offline=True, **asked).variants
    told = explain(MODEL, engine=engine, offline=True, **asked).plan
    assert told.fit is not None
    assert row.total_per_gpu_bytes is not None
    assert point.total_per_gpu_bytes is not None
    return {
        "plan": made.fit.needed_bytes,
        "sweep": point.total_per_gpu_bytes,
        "compare": row.total_per_gpu_bytes,
        "explain": told.fit.needed_bytes,
    }


def listed(engine: str) -> int:
    """The bytes of a model in the list of those that run on a GPU."""
    rows = fit("qwen3-8b", gpu="l4", engine=engine, seq=4096, weights="q4_k_m", every=True).models
    return min(row.needed_bytes for row in rows)


def cache_and_more(cache: Any, *settings: Any) -> Any:
    """The bytes of a cache, and some more for each that is there."""
    return CACHE_BYTES(cache, *settings) + (MORE if cache else 0)


CACHE_BYTES: Final[Callable[..., int]] = layers.cache_bytes
ROUNDED: Final[Callable[[Any, str], int]] = graph._rounded


@pytest.mark.parametrize("engine", ["llamacpp", "ollama"])
def test_a_larger_buffer_is_larger_for_everybody(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB more in each compute buffer: in the plan, its explanation, a comparison, a sweep and the list of what runs."""
    before, row = needed(engine, AUTO), listed(engine)
    monkeypatch.setattr(graph, "_rounded", lambda size, end: ROUNDED(size, end) + MORE)
    assert needed(engine, AUTO) == {name: size + MORE for name, size in before.items()}
    assert listed(engine) == row + MORE


@pytest.mark.parametrize("engine", ["llamacpp", "ollama"])
def test_a_larger_cache_is_larger_for_everybody(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of the cache on a device."""
    before, row = needed(engine, AUTO), listed(engine)
    monkeypatch.setattr(layout, "cache_bytes", cache_and_more)
    assert needed(engine, AUTO) == {name: size + MORE for name, size in before.items()}
    assert listed(engine) == row + MORE


def test_a_page_draws_what_a_layout_has() -> None:
    """The closed form of layers that stay on the GPU says at each length what the layout says."""
    from hwcalc.planner.asked import read_options
    from hwcalc.planner.context import open_request

    asked = read_options({"engine": "llamacpp", **ALL}).keywords()
    occupancy: Any = open_request(load_model(MODEL, offline=True), **asked)
    form = occupancy.form()
    assert form.drawable
    for tokens, sequences in ((1, 1), (300, 2), (4096, 1), (40_000, 7)):
        made = occupancy.deployment.layout_at(tokens, sequences)
        assert form.at(tokens, sequences).needed_bytes == made.needed_bytes
        for end in ("low", "expected", "high"):
            whole = form.at(tokens, sequences).needed_bytes + form.at(tokens, sequences).parts_bytes(end)
            assert whole == made.needed_on(0, end)
            assert form.holds(tokens, sequences, end) == (made.hold(made.main, form.usable[0], end) and made.host_holds(end))

"""One place says how many bytes a load takes, and one what a budget holds: changed there, every answer of the engine changes alike.

A row of :data:`WRITERS` names such a place of an engine and puts another rule there. Each answer is a number of sequences, tokens or bytes,
so that all who speak of it must say the same number, before and after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import compare, explain, fit, load_model, plan, recommend, sweep
from hwcalc.engines import ENGINES, find_engine, pooled
from hwcalc.engines.forms import Blocks, MemoryForm
from hwcalc.engines.llamacpp import layers, layout
from hwcalc.engines.mlx.layers import Grown
from hwcalc.engines.pool import Try
from hwcalc.engines.sglang.engine import SglangDeployment
from hwcalc.engines.sglang.pools import LayerPools
from hwcalc.engines.tensorrt_llm.layout import Layout
from hwcalc.engines.tensorrt_llm.pool import Needs
from hwcalc.engines.vllm.pool import BlockPool
from hwcalc.engines.vllm.specs import FullSpec
from hwcalc.explore.build import PageModel, payload_of
from hwcalc.explore.runs import PageAxes, PageLayout
from hwcalc.formulas.tensor import Full
from hwcalc.units import GIB
from tests.hwcalc.explore.evaluate import form_at
from tests.hwcalc.form_answers import answer, longest, most

MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"
GPU: Final = "rtx-5090"
GPUS: Final = {"tgi": "rtx-4090"}
"""TGI has no code for Blackwell."""
TOKENS: Final = 4000
MORE: Final = 64
"""More sequences of so many tokens than the GPU holds by any engine."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # `kvplan fit` chooses among files where no format is named.
    "reference": {"weights": "bf16"},
    "mlx": {"weights": "bf16"},
    # With all layers on the GPU, none changes its place.
    "llamacpp": {"weights": "bf16", "engine_options": {"n_gpu_layers": "all"}},
    "ollama": {"weights": "bf16", "engine_options": {"num_gpu": "99"}},
}
Change = Callable[[pytest.MonkeyPatch], None]


def answers(engine: str) -> dict[str, dict[str, int | None]]:
    """The most sequences that surely fit, the most tokens that one can have, and its bytes, by everybody who says it."""
    asked: dict[str, Any] = {"engine": engine, "gpu": GPUS.get(engine, GPU), "seq": TOKENS, **OPTIONS.get(engine, {})}
    planned = plan(MODEL, **asked)
    single, pool = planned.fit, planned.pool
    assert single is not None
    # Twice as many as fit, and one more: what is offered in their place is more than an eighth of them.
    many = plan(MODEL, batch=2 * (single.expected_max_batch or 0) + 1, **asked).fit
    assert many is not None
    (variant,) = compare([MODEL], **asked).variants
    points = list(sweep(MODEL, **{**asked, "seq": [TOKENS], "batch": [*range(1, MORE)]}))
    limits = {limit.name: limit.value for limit in explain(MODEL, **asked).limits}
    (offer,) = recommend(MODEL, max_gpus=1, **{**asked, "gpu": [asked["gpu"]]}).offers
    (listed,) = fit(MODEL, **asked).models
    found: dict[str, dict[str, int | None]] = {
        "most": {
            "plan": single.max_batch,
            "compare": variant.max_batch,
            "sweep": sum(point.fits == "fits" for point in points),
            "explain": limits["at once"],
            "recommend": offer.max_batch,
            "advice": advised(many.suggestions),
        },
        "longest": {
            "plan": single.max_seq,
            "compare": variant.max_seq,
            "explain": limits["longest"],
            "recommend": offer.max_seq,
            "fit": listed.max_seq,
        },
        "bytes": {
            "plan": single.needed_bytes,
            "compare": variant.total_per_gpu_bytes,
            "sweep": points[0].total_per_gpu_bytes,
            "recommend": offer.needed_bytes,
            "fit": listed.needed_bytes,
        },
    }
    held = None if pool is None else pool.max_requests if pool.at_once is None else pool.at_once
    # The pool of mistral.rs is that of the planned load, whose activations are fewer than those of the most sequences.
    if pool is not None and held is not None and engine != "mistral-rs":
        counted = [int(step.expected) for step in pool.steps if step.unit == "requests"]
        found["expected"] = {
            "plan": single.expected_max_batch,
            "compare": variant.expected_max_batch,
            "explain": limits.get("at once, expected", limits["at once"]),
            "pool": held,
            "steps": counted[-1] if counted else held,
        }
    if find_engine(engine)[0].facts.choices is not None:
        page = drawn(engine)
        found["most"]["page"] = most(page, TOKENS, 1, "low")
        found["longest"]["page"] = longest(page, TOKENS, 1, "low")
        found["bytes"]["page"] = answer(page, TOKENS, 1)["fit"]["needed_bytes"]
    return found


def drawn(engine: str) -> MemoryForm:
    """The form that a page has of the same server, read back from what is written into the page."""
    axes = PageAxes(gpus=(GPUS.get(engine, GPU),), engines=(engine,), layouts=(PageLayout(count=1, tp=1),))
    payload = payload_of([PageModel(spec=load_model(MODEL), argument=MODEL)], axes)
    form = form_at(payload, payload["models"][0], engine, (0, 0, 0, 0))
    assert isinstance(form, MemoryForm), form
    return form


def advised(suggestions: Iterable[Try]) -> int:
    """How many sequences the advice offers in place of too many, with nothing else changed."""
    (line,) = (each for each in suggestions if re.fullmatch(r"\d+ at once instead of \d+.*", each.effect))
    return int(line.effect.split()[0])


def changed(owner: Any, name: str, *, rule: Callable[[Any], Any]) -> Change:
    """``rule`` of what a function or method returns, in its place."""

    def change(monkeypatch: pytest.MonkeyPatch) -> None:
        said = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: rule(said(*given, **named)))

    return change


def doubled(owner: Any, name: str) -> Change:
    """Twice the number."""
    return changed(owner, name, rule=lambda number: 2 * number)


def doubled_stairs(owner: Any) -> Change:
    """Twice the positions or blocks of every sequence."""
    return changed(owner, "stairs", rule=lambda stairs: tuple(stair._replace(times=2 * stair.times) for stair in stairs))


def of_half(owner: Any, name: str) -> Change:
    """The first argument of a method is half of what it is."""

    def change(monkeypatch: pytest.MonkeyPatch) -> None:
        rule = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, budget, *more, **named: rule(self, budget // 2, *more, **named))

    return change


def more_null_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 blocks that no sequence gets, where vLLM has one."""
    made = BlockPool.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[BlockPool], *given: Any) -> BlockPool | None:
        pool: BlockPool | None = made(cls, *given)
        return None if pool is None else replace(pool, null_blocks=500)

    monkeypatch.setattr(BlockPool, "of", classmethod(of))


WRITERS: Final[tuple[tuple[str, str, Change], ...]] = (
    ("reference", "Full.stairs", doubled_stairs(Full)),
    ("reference", "Blocks.holds", of_half(Blocks, "holds")),
    ("transformers", "Full.stairs", doubled_stairs(Full)),
    ("transformers", "Blocks.holds", of_half(Blocks, "holds")),
    ("vllm", "FullSpec.stairs", doubled_stairs(FullSpec)),
    ("vllm", "BlockPool.null_blocks", more_null_blocks),
    (
        "sglang",
        "SglangDeployment.demand",
        changed(SglangDeployment, "demand", rule=lambda demand: demand._replace(places=2 * demand.places)),
    ),
    ("sglang", "LayerPools.figures", of_half(LayerPools, "figures")),
    ("llamacpp", "units_of", changed(layers, "units_of", rule=lambda units: {name: 2 * each for name, each in units.items()})),
    ("llamacpp", "_left_free", changed(layout, "_left_free", rule=lambda free: free._replace(value=4 * GIB))),
    ("ollama", "units_of", changed(layers, "units_of", rule=lambda units: {name: 2 * each for name, each in units.items()})),
    ("ollama", "_left_free", changed(layout, "_left_free", rule=lambda free: free._replace(value=4 * GIB))),
    ("mlx", "Grown.stairs", doubled_stairs(Grown)),
    ("mlx", "Blocks.holds", of_half(Blocks, "holds")),
    ("tensorrt-llm", "Layout.blocks", doubled(Layout, "blocks")),
    ("tensorrt-llm", "Needs.holds", of_half(Needs, "holds")),
    ("lmdeploy", "BlockPool.demand", doubled(pooled.BlockPool, "demand")),
    ("lmdeploy", "BlockPool.free", of_half(pooled.BlockPool, "free")),
    ("mistral-rs", "BlockPool.demand", doubled(pooled.BlockPool, "demand")),
    ("mistral-rs", "BlockPool.free", of_half(pooled.BlockPool, "free")),
    ("tgi", "BlockPool.demand", doubled(pooled.BlockPool, "demand")),
    ("tgi", "BlockPool.free", of_half(pooled.BlockPool, "free")),
)
"""An engine, the name of the place, and what is put there: of what a load takes, and of what a budget holds."""


def test_every_engine_has_its_writers() -> None:
    """One of bytes or blocks, and one of what holds them."""
    assert {engine: sum(row[0] == engine for row in WRITERS) for engine in ENGINES} == dict.fromkeys(ENGINES, 2)


@cache
def unchanged(engine: str) -> dict[str, dict[str, int | None]]:
    """What everybody says by the rules as they are."""
    return answers(engine)


@pytest.mark.parametrize(("engine", "change"), [pytest.param(row[0], row[2], id=f"{row[0]} {row[1]}") for row in WRITERS])
def test_one_writer(engine: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """All say one number before and a smaller one after: plan, compare, sweep, page, fit, recommend, explain and advice."""
    before = unchanged(engine)
    change(monkeypatch)
    after = answers(engine)
    for told in (before, after):
        assert all(len({*says.values()}) == 1 for says in told.values()), told
    for name in ("most", "longest"):
        assert 0 < (after[name]["plan"] or 0) < (before[name]["plan"] or 0), (name, before, after)

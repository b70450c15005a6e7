"""llama.cpp's memory in the normal form: the same integers as the plan, over a sample of the catalog."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hwcalc import load_model, plan
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.forms import ENDS, OPPOSITE, Curve, Fullest, Memory, MemoryForm, Moment, Product
from hwcalc.engines.llamacpp.settings import CELLS
from hwcalc.engines.memory import Section
from hwcalc.errors import KvplanError
from hwcalc.formulas.stairs import Stair
from hwcalc.planner import solve
from hwcalc.planner.asked import read_options
from hwcalc.planner.context import open_request
from hwcalc.profiles.catalog import list_models
from tests.effort import cases
from tests.hwcalc.form_answers import differences, form_of

PLANNED, SEARCHED, SAMPLED, PLACED = cases(25, 40), cases(14, 20), cases(50, 150), cases(35, 75)
"""So many requests are planned, which takes the solvers, and searched both ways; of so many the bytes alone are compared, at several
lengths and batches, and so many have layers where the engine places them."""
UNLIKE = (
    "google/gemma-3-27b-it",
    "google/gemma-4-E2B-it",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-Coder-Next",
    "openai/gpt-oss-20b",
    "ai21labs/AI21-Jamba2-3B",
    "state-spaces/mamba-130m-hf",
    "LiquidAI/LFM2-1.2B",
)
"""Models whose layers keep different things."""
GPUS = ("h100-sxm5-80gb", "l4", "rtx-4090", "mi300x", "arc-b580", "apple-m4-max-40c", "dgx-spark-gb10", "gh200-96gb")
DTYPES = ("f16", "q8_0", "q4_0", "q8_0:q4_0")
WEIGHTS = (None, "q4_k_m", "q8_0")
COUNTS = (1, 1, 2, 3, 8)
LENGTHS = (1, 127, 128, 255, 256, 257, 400, 511, 512, 513, 1_000, 4_096, 8_193, 32_768, 100_001, 131_072, 1_000_000)
BATCHES = (1, 1, 2, 3, 8, 33, 256)
OPTIONS: tuple[Mapping[str, str], ...] = (
    {}, {}, {}, {"swa_full": "true"}, {"flash_attn": "off"}, {"n_ubatch": "1024"}, {"n_batch": "256"}, {"tensor_split": "3,1"},
    {"split_mode": "row"}, {"split_mode": "none"}, {"host_memory": "2GiB"}, {"n_gpu_layers": "9999"},
)  # fmt: skip


def asked_of(draw: random.Random) -> dict[str, Any]:
    """Options by chance, without length and batch."""
    options = {"n_gpu_layers": "all", **draw.choice(OPTIONS)}
    count = max(2, draw.choice(COUNTS)) if "tensor_split" in options else draw.choice(COUNTS)
    dtype = "f16" if "flash_attn" in options else draw.choice(DTYPES)
    chosen = {"gpu": draw.choice(GPUS), "gpus": count, "dtype": dtype, "weights": draw.choice(WEIGHTS)}
    return {"engine": "llamacpp", "engine_options": options, **{name: value for name, value in chosen.items() if value}}


def opened_of(model: str, asked: Mapping[str, Any], seq: int, batch: int) -> Occupancy:
    """A request by the options of the command line."""
    spec = load_model(model, offline=True, headers=False)
    return open_request(spec, **read_options({**asked, "seq": seq, "batch": batch}).keywords())


def sample(name: str, count: int) -> list[tuple[str, dict[str, Any], random.Random]]:
    """Models and options, the same in every run."""
    draw = random.Random(name)  # noqa: S311 - a sample
    models = sorted(list_models())
    return [(draw.choice((draw.choice(models), draw.choice(UNLIKE))), asked_of(draw), draw) for _ in range(count)]


def test_a_form_is_its_plan() -> None:
    """All numbers of the answer, with the solvers."""
    compared = 0
    for model, asked, draw in sample("plans", PLANNED):
        seq, batch = draw.choice(LENGTHS), draw.choice(BATCHES)
        try:
            planned = plan(model, seq=seq, batch=batch, offline=True, **asked)
        except KvplanError:
            continue
        form = form_of(opened_of(model, asked, seq, batch))
        assert (form is None) == (planned.fit is None), (model, asked)
        if form is not None:
            assert differences(form, planned) == {}, (model, asked, seq, batch)
            compared += 1
    assert compared > PLANNED * 3 // 4


def test_a_search_on_a_form_is_that_by_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest length and the most sequences, wherever layers lie: as the options say, and as llama.cpp fits them by itself."""
    compared = 0
    for model, drawn, draw in sample("searches", SEARCHED):
        options = drawn["engine_options"]
        fitted = {name: value for name, value in options.items() if name != "n_gpu_layers"}
        asked = {**drawn, "engine_options": draw.choice((options, fitted))}
        seq, batch, end = draw.choice(LENGTHS[:-1]), draw.choice(BATCHES), draw.choice(ENDS)
        try:
            opened = opened_of(model, asked, seq, batch)
        except KvplanError:
            continue
        if opened.form() is None:
            continue
        found = searched(opened, end)
        with monkeypatch.context() as patched:
            patched.setattr(solve, "_form_for_search", lambda *_: None)
            assert found == searched(opened_of(model, asked, seq, batch), end), (model, asked, seq, batch, end)
        compared += 1
    assert compared > SEARCHED // 2


def searched(opened: Occupancy, end: str) -> tuple[object, ...]:
    """All three searches at one end of the budget."""
    bound = opened.model.max_position_embeddings or 4096
    by_holds = (solve.largest(opened, "seq", bound, end), solve.largest(opened, "batch", 300, end))
    return solve.longest(opened, end=end), solve.most(opened, end=end), *by_holds


def test_a_form_has_the_bytes_of_every_device() -> None:
    """At lengths and batches far from the one it was asked for."""
    compared = 0
    for model, asked, draw in sample("bytes", SAMPLED):
        try:
            opened = opened_of(model, asked, 4096, 1)
        except KvplanError:
            continue
        form = form_of(opened)
        assert (form is None) == (opened.budget is None), (model, asked)
        for _ in range(6 if form is not None else 0):
            seq, batch = draw.choice((*LENGTHS, draw.randint(1, 1_500), draw.randint(1, 4_000_000))), draw.choice(BATCHES)
            compare(form, opened.sized(seq=seq, batch=batch))
            compared += 1
    assert compared > SAMPLED * 4


def compare(form: MemoryForm | None, opened: Occupancy) -> None:
    """The fullest GPU by cache and parts, all GPUs together, and what is lacking at each end."""
    placement = opened.devices.placement()
    assert form is not None
    assert placement is not None
    assert opened.budget is not None
    size, fullest = (opened.tokens, opened.batch), placement.gpus[placement.fullest]
    assert form.at(*size).needed_bytes == opened.needed_bytes == fullest.cache_bytes
    assert form.curve.total_bytes(*size) == opened.stored_bytes
    for end in ENDS:
        assert form.at(*size).left(end) == getattr(opened.budget, end)
        parts = sum(getattr(part, OPPOSITE[end]) for part in fullest.parts)
        assert form.at(*size).parts_bytes(OPPOSITE[end]) == fullest.weights_bytes + parts
        held = opened.devices.lacking(end) is None and opened.holds(getattr(opened.budget, end))
        assert form.holds(*size, end) == held, (opened.model.id, opened.request, end)


ANYWHERE: tuple[Mapping[str, str], ...] = (
    {}, {}, {}, {}, {"n_gpu_layers": "7"}, {"swa_full": "true"}, {"flash_attn": "off"}, {"n_ubatch": "64"}, {"split_mode": "none"},
    {"no_kv_offload": "true"}, {"cpu_moe": "true"}, {"n_cpu_moe": "5"}, {"override_tensor": "ffn=CPU"}, {"n_rs_seq": "2"},
    {"fit_target": "4000"}, {"main_gpu": "1", "split_mode": "none"}, {"host_memory": "2GiB"},
)  # fmt: skip
OLLAMA: tuple[Mapping[str, str], ...] = ({}, {}, {}, {"flash_attention": "0"}, {"num_batch": "128"}, {"num_gpu": "3"})


def placed_by(draw: random.Random) -> dict[str, Any]:
    """Options by chance with which layers lie where the engine puts them; a half of it without a GPU, or on one that is too small."""
    engine = draw.choice(("llamacpp", "ollama"))
    options = draw.choice(ANYWHERE if engine == "llamacpp" else OLLAMA)
    gpu = draw.choice((*GPUS, "rtx-4060-ti-16gb", "rtx-4060-ti-16gb", "cpu-64gb", None))
    count = 1 if gpu == "cpu-64gb" else max(2 if "main_gpu" in options else 1, draw.choice(COUNTS))
    dtype = "f16" if options.keys() & {"flash_attn", "flash_attention"} else draw.choice(DTYPES[:3])
    chosen = {"gpu": gpu, "gpus": count, "dtype": dtype, "weights": draw.choice(("q4_k_m", *WEIGHTS))}
    return {"engine": engine, "engine_options": options, **{name: value for name, value in chosen.items() if value}}


def test_a_form_places_layers_as_the_engine_does() -> None:
    """Options of any kind, with default ones most of all: every byte of every device, at lengths and batches by chance; arrays too."""
    draw, compared, moved, kinds = random.Random("placed"), 0, set(), set()  # noqa: S311 - a sample
    models = sorted(list_models())
    for _ in range(PLACED):
        model, asked = draw.choice((draw.choice(models), draw.choice(UNLIKE))), placed_by(draw)
        try:
            opened = opened_of(model, asked, 4096, 1)
        except KvplanError:
            continue
        form = opened.form()
        curve = opened.curve() if form is None else form.curve
        assert curve is not None, (model, asked)
        assert (form is None) == ("gpu" not in asked), (model, asked)
        slots = curve.most_sequences or 1
        points = [(draw.choice((*LENGTHS, draw.randint(1, 9_000))), min(slots, draw.choice(BATCHES))) for _ in range(4)]
        for tokens, batch in points:
            found = opened.sized(seq=tokens, batch=batch)
            needed = curve.needed_bytes(tokens, batch) if form is None else form.at(tokens, batch).needed_bytes
            assert needed == found.needed_bytes, (model, asked, tokens, batch)
            assert curve.total_bytes(tokens, batch) == found.stored_bytes, (model, asked, tokens, batch)
            if form is not None:
                moved.add((model, str(asked), compare_devices(form, found)))
            compared += 1
        compare_arrays(form, curve, points)
        kinds.add((asked["engine"], type(form or curve)))
    assert compared > PLACED * 2
    assert len(kinds) == 5
    # Of the same model and options, other layers lie on the GPUs at other lengths.
    assert len(moved) > len({(model, options) for model, options, _ in moved})


def compare_devices(form: MemoryForm, opened: Occupancy) -> int | None:
    """All that a row of a sweep says; the layers on GPUs."""
    placement, size = opened.devices.placement(), (opened.tokens, opened.batch)
    assert placement is not None
    fullest = placement.devices[placement.fullest]
    assert form.at(*size).devices_bytes == sum(share.needed() for share in placement.devices)
    assert form.at(*size).needed_bytes == fullest.cache_bytes
    for end in ENDS:
        assert form.at(*size).left(end) == getattr(opened.budget, end)
        for section in Section:
            parts = sum(getattr(part, end) for part in fullest.parts if part.section is section)
            weights = fullest.weights_bytes if section is Section.WEIGHTS else 0
            assert form.at(*size).parts_bytes(end, section) == parts + weights, (section, end)
        assert form.holds(*size, end) == solve.holds(opened, end), (opened.model.id, opened.request, end)
    return placement.gpu_layers


def compare_arrays(form: MemoryForm | None, curve: Curve, points: list[tuple[int, int]]) -> None:
    """Of arrays of points as of each point."""
    asked: list[Any] = [curve.needed_bytes, curve.total_bytes]
    if form is not None:
        asked += [lambda *point: form.at(*point).needed_bytes, lambda *point: form.at(*point).devices_bytes]
        rules = (Memory.left, Memory.holds, Memory.parts_bytes)
        asked += [lambda *point, rule=rule, end=end: rule(form.at(*point), end) for rule in rules for end in ENDS]
    tokens, batches = (np.array(column) for column in zip(*points, strict=True))
    for rule in asked:
        alone = [rule(*point) for point in points]
        assert np.broadcast_to(rule(tokens, batches), tokens.shape).tolist() == alone
        every = np.broadcast_to(rule(tokens[:, None], batches[None, :]), (len(points), len(points)))
        assert every.diagonal().tolist() == alone


@pytest.mark.parametrize("options", [{}, {"n_gpu_layers": "20"}, {"n_gpu_layers": "all", "n_ubatch": "64"}])
def test_a_page_draws_no_form_whose_layers_move(options: Mapping[str, str]) -> None:
    """Nor one whose batch may be smaller than the number of sequences."""
    form = form_of(opened_of("Qwen/Qwen3-8B", {"engine": "llamacpp", "gpu": "l4", "engine_options": options}, 4096, 1))
    assert form is not None
    assert not form.drawable


@pytest.mark.parametrize("engine", ["ollama", "llamacpp"])
def test_a_planned_request_keeps_its_layers(engine: str) -> None:
    """What a plan says of other lengths and batches is of the layers where it has them: so is the form that is made of it."""
    asked: dict[str, Any] = {"engine": engine, "gpu": "rtx-4060-ti-16gb", "weights": "q4_k_m"}
    opened = opened_of("Qwen/Qwen3-32B", asked, 8_192, 1)
    form = form_of(opened)
    assert form is not None
    planned = plan("Qwen/Qwen3-32B", seq=8_192, offline=True, **asked)
    assert differences(form, planned) == {}
    assert form.at(300, 2).needed_bytes < opened.sized(seq=300, batch=2).needed_bytes


@pytest.mark.parametrize(
    "options",
    [
        {"n_gpu_layers": "all", "n_ctx": "65536"},
        {"n_gpu_layers": "all", "n_seq_max": "4"},
        {"kv_unified": "true"},
        {"n_gpu_layers": "all", "defaults": "api"},
    ],
)
def test_there_is_no_form_where_options_fix_the_context(options: Mapping[str, str]) -> None:
    """Its sizes do not follow from length and number of sequences alone."""
    opened = opened_of("Qwen/Qwen3-8B", {"engine": "llamacpp", "gpu": "l4", "engine_options": options}, 4096, 1)
    assert form_of(opened) is None
    assert opened.curve() is None


def test_ollama_gives_some_architectures_one_slot() -> None:
    """More sequences are refused."""
    forms = [
        form_of(opened_of(name, {"engine": "ollama", "gpu": "l4"}, 4096, 1)) for name in ("Qwen/Qwen3-8B", "LiquidAI/LFM2-1.2B")
    ]
    assert [form and (form.most_sequences, form.refuses_more) for form in forms] == [(256, True), (1, True)]


def test_terms_name_kinds_layers_and_cells() -> None:
    """A strip can show each layer by itself."""
    asked = {"engine": "llamacpp", "gpu": "h100-sxm5-80gb", "engine_options": {"n_gpu_layers": "all"}}
    form = form_of(opened_of("google/gemma-3-27b-it", asked, 4096, 1))
    assert form is not None
    window, full = form.curve.total
    # A full layer after five with a window of 1,024 tokens; 2 x 16 heads x 128 numbers of two bytes.
    assert (full.kind, full.count, full.layers.text[:8]) == ("full_attention", 10, "5,11,17,")
    assert (window.kind, window.count, window.layers.text[:8]) == ("sliding_attention", 52, "0-4,6-10")
    assert full.unit_bytes == window.unit_bytes == 2 * 16 * 128 * 2
    assert [full.units(tokens) for tokens in (1, 256, 257, 100_000)] == [256, 256, 512, 391 * CELLS]
    assert [window.units(tokens) for tokens in (1, 300, 1_500, 100_000)] == [256, 512, 1_536, 1_536]
    assert (full.rule, window.rule) == ("roundup(n, 256)", "roundup(min(n, window 1,024 + n_ubatch 512), 256)")


def test_the_fullest_moment() -> None:
    """Tokens that are passed, sequences, the passed tokens of one sequence, and whether there is one alone."""
    cells = (Stair(times=256, per=256, add=255),)
    small = Moment(share=1.5, products=(Product(1, ("passed", "each")), Product(7, ("alone",))))
    large = Moment(share=1.0, products=(Product(2, ("sequences",), cells), Product(5)))
    up, down = (Fullest(moments=(small, large), chunk=20, up=up) for up in (True, False))
    # One sequence of 3 tokens: 1.5 x (3 x 3 + 7) = 24 and 2 x 256 + 5. Of 19 tokens, 1.5 x (19 x 19 + 7) = 552.
    assert (up.at(3, 1), up.at(19, 1)) == (517, 552)
    # Two sequences of 19 tokens have 20 in a batch, 10 each: 1.5 x 200 = 300, and 2 x 2 x 256 + 5.
    assert up.at(19, 2) == 1_029
    alone = Fullest(moments=(small,), chunk=None, up=True)
    assert (alone.at(3, 1), alone.at(1, 2)) == (24, 3)
    odd = Moment(share=0.5, products=(Product(3),))
    assert [Fullest(moments=(odd,), chunk=None, up=one).at(1, 1) for one in (True, False)] == [2, 1]
    assert down.at(3, 1) == 517


def test_the_matrix_of_lightning_attention_is_an_input_and_alive_once_more() -> None:
    """64 heads x 4 bytes for each token of the batch and each of its own sequence."""
    asked = {"engine": "llamacpp", "gpu": "h100-sxm5-80gb", "engine_options": {"n_gpu_layers": "all"}}
    form = form_of(opened_of("MiniMaxAI/MiniMax-Text-01", asked, 4096, 1))
    assert form is not None
    buffer = next(part for part in form.parts if part.name == "compute buffer").expected
    assert isinstance(buffer, Fullest)
    matrices = [product.bytes for product in buffer.moments[0].products if product.factors == ("each", "passed")]
    assert matrices == [2 * 64 * 4]

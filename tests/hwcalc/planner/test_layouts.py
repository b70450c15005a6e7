"""The layouts that are offered are those that people run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from hwcalc import load_model, plan, recommend
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import KvplanError
from hwcalc.planner.context import open_request
from hwcalc.planner.layouts import counts, layouts
from hwcalc.planner.recommend_result import Offer
from hwcalc.planner.verdict import Layout
from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.gpus import find_gpu, list_gpus
from tests.hwcalc.command import Capture, run

DEEPSEEK = "deepseek-ai/DeepSeek-V3"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
MODELS = (
    "Qwen/Qwen2.5-0.5B",  # 14 heads
    "Qwen/Qwen3-8B",
    LLAMA_70B,
    "Qwen/Qwen3-30B-A3B",  # experts, 4 key/value heads
    DEEPSEEK,
    "tiiuae/falcon-7b",  # 71 heads
    "tiiuae/falcon-mamba-7b",
)


def opened(model: str, gpu: str = "h100", **options: Any) -> Occupancy:
    """A request with hardware."""
    return open_request(load_model(model), gpu=gpu, **{"seq": 4096, "batch": 8, **options})


@pytest.mark.parametrize("engine", ["reference", "vllm", "transformers"])
@pytest.mark.parametrize("model", MODELS)
def test_laws(model: str, engine: str) -> None:
    """Every layout uses all its GPUs, keeps tp in a node and in the heads, and has stages over nodes only, or where tp cannot go."""
    for gpu in ("h100", "gb200", "dgx-spark"):
        if engine == "vllm" and "mamba" in model:
            continue
        request, node = opened(model, gpu, engine=engine), find_gpu(gpu).node
        heads = {int(group.kind.dims().get("num_attention_heads", 0)) for group in request.model.stack.groups} - {0}
        experts = model in (DEEPSEEK, "Qwen/Qwen3-30B-A3B")
        for gpus in counts(64, node):
            inside = min(gpus, node)
            widest = max(tp for tp in (1, 2, 4, 8) if inside % tp == 0 and not any(number % tp for number in heads))
            found = layouts(request, gpus)
            assert found
            assert len({*found}) == len(found)
            for layout in found:
                assert layout.gpus == gpus
                assert inside % layout.tp == 0
                assert not any(number % layout.tp for number in heads)
                assert layout.pp == 1 or layout.tp == widest
                assert layout.pp == 1 or gpus > node or widest < inside
                dealt = experts and engine != "transformers" and layout.dp > 1
                assert layout.ep == (layout.tp * layout.dp if dealt else 1)


@pytest.mark.parametrize("engine", ["reference", "vllm"])
@pytest.mark.parametrize("model", [LLAMA_70B, "Qwen/Qwen3-30B-A3B", DEEPSEEK])
def test_what_is_offered_is_sold(model: str, engine: str) -> None:
    """1, 2, 4 or 8 GPUs of a node, or whole nodes; and no machine that cannot be linked is joined."""
    for offer in recommend(model, seq="16k", batch=16, engine=engine, limit=0, max_gpus=64, offline=True).offers:
        gpu = find_gpu(offer.gpu)
        assert offer.gpus in (1, 2, 4, 8) or offer.gpus % gpu.node == 0
        assert offer.gpus in counts(64, gpu.node)
        assert offer.tp <= gpu.node
        assert offer.gpus <= gpu.node or not gpu.whole_machine
        assert offer.pp == 1 or offer.gpus > gpu.node


def test_numbers_of_gpus() -> None:
    """Powers of two in a node, then every number of nodes; any number in a node only if it is asked for."""
    assert counts(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert counts(7) == (1, 2, 4)
    assert counts(16, node=4) == (1, 2, 4, 8, 12, 16)
    assert counts(2, node=2) == (1, 2)
    assert counts(24, any_layout=True) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)


@pytest.mark.parametrize(("gpu", "gpus"), [("h200", 8), ("b200", 8), ("mi300x", 8), ("mi325x", 8), ("mi355x", 8)])
@pytest.mark.parametrize(
    ("batch", "layout"),
    # Of vLLM's recipe: tensor parallel for few requests, data parallel with expert parallel for many.
    [(2, {"tp": 8, "pp": 1, "dp": 1}), (32, {"tp": 1, "pp": 1, "dp": 8, "ep": 8})],
)
def test_deepseek_as_in_the_recipes(gpu: str, gpus: int, batch: int, layout: dict[str, int]) -> None:
    """The FP8 checkpoint on eight of them, as vLLM's recipe has it (docs/layouts.md); four where these hold its 688 GB and few sequences."""
    (best, *_) = layouts(opened(DEEPSEEK, gpu, seq=65_536, batch=batch, engine="vllm"), gpus)
    found = offer(DEEPSEEK, gpu, seq="64k", batch=batch)

    assert asdict(best).items() >= layout.items()
    assert found.verdict == "fits"
    assert found.gpus == gpus or (found.gpus == 4 and find_gpu(gpu).memory_marketing_gb * 4 > 700)  # type: ignore[operator]
    scaled = {name: size if size == 1 else found.gpus for name, size in layout.items()}
    assert {name: getattr(found, name) for name in layout} == scaled


@pytest.mark.parametrize("gpu", ["h200", "b200", "mi300x"])
def test_the_case_of_many_long_requests(gpu: str) -> None:
    """32 requests of 64k tokens are 8 GPUs with data-parallel attention; seven stages, as was once offered, nobody runs."""
    found = offer(DEEPSEEK, gpu, seq="64k", batch=32)

    assert (found.gpus, found.tp, found.pp, found.dp, found.ep) == (8, 1, 1, 8, 8)


def offer(model: str, gpu: str, **wanted: Any) -> Offer:
    """The first offer of one accelerator with vLLM."""
    return recommend(model, gpu=gpu, engine="vllm", offline=True, **wanted).offers[0]


@pytest.mark.parametrize(("batch", "layout"), [(2, "tp 8, dp 2, ep 16"), (1, "tp 8, pp 2")])
def test_deepseek_over_two_nodes(batch: int, layout: str) -> None:
    """On 16 H100 (recipes: tensor parallel in a node, replicas or stages over nodes) and 8 of a GB200 rack."""
    fit = plan(DEEPSEEK, gpu="h100", seq="8k", batch=batch, engine="vllm", offline=True).fit

    assert fit is not None
    assert fit.min_layout is not None
    assert (fit.min_gpus, fit.min_layout.text) == (16, layout)


def test_odd_sizes_are_asked_for() -> None:
    """Seven stages hold what eight GPUs would hold with more to spare, and nobody sells seven."""
    wanted: dict[str, Any] = {"seq": "64k", "batch": 32, "engine": "vllm", "gpu": "h200", "offline": True}

    assert {one.gpus for one in recommend(DEEPSEEK, **wanted).offers} == {8}
    assert {(one.gpus, one.pp) for one in recommend(DEEPSEEK, any_layout=True, **wanted).offers} == {(7, 7)}


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "layout"),
    [
        (LLAMA_70B, 8, 32, "tp 8"),
        # Four key/value heads: eight ranks would keep each twice.
        ("Qwen/Qwen3-30B-A3B", 8, 32, "tp 4, dp 2, ep 8"),
        ("Qwen/Qwen3-30B-A3B", 8, 1, "tp 8"),
        # One latent for all ranks.
        (DEEPSEEK, 8, 32, "dp 8, ep 8"),
        (DEEPSEEK, 8, 4, "tp 8"),
        # 14 heads: no more than two ranks.
        ("Qwen/Qwen2.5-0.5B", 4, 1, "tp 2, pp 2"),
        ("Qwen/Qwen2.5-0.5B", 4, 2, "tp 2, dp 2"),
    ],
)
def test_which_is_preferred(model: str, gpus: int, batch: int, layout: str) -> None:
    """Tensor parallelism first; data-parallel attention instead of copies, if there are sequences for all replicas."""
    assert layouts(opened(model, batch=batch, engine="vllm"), gpus)[0].text == layout


def test_an_engine_without_shared_experts() -> None:
    """transformers, and releases of vLLM before --data-parallel-size, have replicas with experts of their own."""
    for model, engine in (("Qwen/Qwen3-30B-A3B", "transformers"), (DEEPSEEK, "vllm@0.8.2")):
        assert {layout.ep for layout in layouts(opened(model, engine=engine), 8)} == {1}


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ((LLAMA_70B, "--gpu", "h100", "--gpus", "4"), "4 GPUs are planned as tp 4."),
        ((LLAMA_70B, "--gpu", "h100", "--gpus", "16"), "16 GPUs are planned as tp 8, pp 2."),
        ((LLAMA_70B, "--instance", "p5.48xlarge"), "8 GPUs are planned as tp 8."),
        (("Qwen/Qwen2.5-0.5B", "--gpu", "l4", "--gpus", "4"), "4 GPUs are planned as tp 2, pp 2."),
        ((DEEPSEEK, "--gpu", "h200", "--gpus", "8", "--engine", "vllm"), "8 GPUs are planned as tp 8."),
        ((DEEPSEEK, "--gpu", "h100", "--gpus", "16", "--ep", "16"), "16 GPUs are planned as tp 8, dp 2, ep 16."),
    ],
)
def test_a_layout_that_was_chosen_is_said(words: tuple[str, ...], layout: str, capsys: Capture) -> None:
    """It was not given: a note says what was taken and how to give another."""
    out = " ".join(run(capsys, *words, "--seq", "4k")[1].split())

    assert layout in out
    assert "Another layout: --tp" in out
    assert "are planned as" not in run(capsys, LLAMA_70B, "--gpu", "h100", "--gpus", "4", "--tp", "4", "--seq", "4k")[1]


def test_fewest_names_its_layout(capsys: Capture) -> None:
    """In the table and in JSON; null where there is none."""
    words = (DEEPSEEK, "--gpu", "h200", "--seq", "64k", "--engine", "vllm")
    out = run(capsys, *words)[1]
    fit = json.loads(run(capsys, *words, "--json")[1])["fit"]

    assert "fewest   8 x h200-sxm-141gb (tp 8)" in out
    assert (fit["min_gpus"], fit["min_layout"]) == (8, {"tp": 8, "pp": 1, "dp": 1, "ep": 1})
    mac = plan(LLAMA_70B, gpu="m4-max-64", seq=1024).fit
    assert mac is not None
    assert (mac.fits, mac.min_gpus, mac.min_layout) == (False, None, None)


def test_gpus_alone_are_laid_out_so_that_they_hold(capsys: Capture) -> None:
    """Eight ranks with a copy of the cache each hold too few; eight replicas hold all, and nobody said that there must be ranks."""
    words = (DEEPSEEK, "--gpu", "h200", "--gpus", "8", "--seq", "64k", "--users", "32", "--engine", "vllm")
    status, out, _ = run(capsys, *words)

    assert status == 0
    assert "8 GPUs are planned as dp 8, ep 8." in out
    status, out, _ = run(capsys, *words, "--tp", "8")
    assert status == 1
    assert "fewest   8 x h200-sxm-141gb (dp 8, ep 8)" in out


@pytest.mark.parametrize(
    ("model", "gpu", "seq"), [(DEEPSEEK, "h200", "16k"), ("Qwen/Qwen3-235B-A22B", "h100", "16k"), (LLAMA_70B, "h100", "64k")]
)
def test_what_no_layout_holds_is_laid_out_so_that_most_are_held(model: str, gpu: str, seq: str) -> None:
    """With more users than any layout holds a node has the layout that holds the most; more users never lower what it holds at once."""
    options: dict[str, Any] = {"engine": "vllm", "gpu": gpu, "gpus": 8, "seq": seq}
    named: list[dict[str, Any]] = [
        {"tp": 8},
        {"tp": 4, "dp": 2, "ep": 8},
        {"tp": 4, "dp": 2},
        {"dp": 8, "ep": 8},
        {"tp": 8, "ep": 8},
    ]
    held = []
    for sizes in named:
        try:
            fit = plan(model, **{**options, "users": 5000, **sizes}).fit
        except KvplanError:
            continue
        assert fit is not None
        held.append(fit.max_batch or 0)
    at_once = []
    for users in (1, 2, 8, 22, 60, 217, 500, 5000):
        fit = plan(model, users=users, **options).fit
        assert fit is not None
        assert fit.verdict.fits or fit.max_batch == max(held), (users, fit.max_batch, held)
        at_once.append(fit.max_batch or 0)
    assert at_once == sorted(at_once)


def test_the_fewest_fit_as_they_say() -> None:
    """The layout, planned, fits."""
    for gpu in ("l4", "h100", "gb200", "dgx-spark", "rtx-4090", "mi300x"):
        for model in ("Qwen/Qwen3-30B-A3B", LLAMA_70B, "google/gemma-3-27b-it"):
            asked: dict[str, Any] = {"gpu": gpu, "seq": "16k", "batch": 8, "engine": "vllm", "offline": True}
            fit = plan(model, **asked).fit
            assert fit is not None
            if fit.min_layout is not None:
                again = plan(model, **asked, **asdict(fit.min_layout)).fit
                assert again is not None
                assert again.fits
                assert again.gpus == fit.min_gpus


def test_words_of_a_layout() -> None:
    """Sizes above one."""
    assert Layout().text == ""
    assert Layout(tp=8, dp=2, ep=16).text == "tp 8, dp 2, ep 16"


@pytest.mark.parametrize(
    "words",
    [
        ("Qwen/Qwen3-8B",),
        ("compare", "Qwen/Qwen3-8B"),
        ("sweep", "Qwen/Qwen3-8B"),
        ("recommend", "Qwen/Qwen3-8B"),
        ("explain", "Qwen/Qwen3-8B"),
    ],
)
def test_an_assumed_size_of_memory_is_said(words: tuple[str, ...], capsys: Capture) -> None:
    """And the others by names that can be given; not where the size is in the name."""
    _, out, err = run(capsys, *words, "--seq", "4k", "--gpu", "m4")
    said = "m4: planned 32 GB of memory; also m4-16gb, m4-24gb"

    assert said in " ".join((out + err).split())
    _, out, err = run(capsys, *words, "--seq", "4k", "--gpu", "m4-16gb")
    assert "planned 16 GB" not in out + err
    assert "also m4" not in out + err


def test_a_check_says_an_assumed_size_of_memory(tmp_path: Any, capsys: Capture) -> None:
    """Below the check that names the accelerator."""
    path = tmp_path / "kvplan.yaml"
    path.write_text("schema_version: 1\nchecks:\n  - {model: Qwen/Qwen3-8B, seq: 4k, gpu: m4}\n")

    for format_ in ("table", "markdown"):
        assert "m4-16gb, m4-24gb" in run(capsys, "check", str(path), "--format", format_)[1]


@pytest.mark.parametrize(
    ("name", "node"),
    [("h200", 8), ("l4", 8), ("rtx-4090", 8), ("gb200", 4), ("dgx-spark", 2), ("m4-max-128", 1), ("rtx-5090-laptop", 1)],
)
def test_a_node(name: str, node: int) -> None:
    """A server has eight, a tray of a rack four; two DGX Spark are linked, and no Macs or laptops."""
    assert find_gpu(name).node == node


def test_every_profile_has_a_node() -> None:
    """A power of two with a source, and one machine where machines cannot be linked."""
    for name in list_gpus():
        gpu = find_gpu(name)
        assert gpu.node in (1, 2, 4, 8)
        text = Path(built_in("gpus", f"{name}.yaml")).read_text(encoding="utf-8")
        assert ("\ngpus_per_node: " in text) is ("\n  node: " in text)
        assert (gpu.node == 1) <= gpu.whole_machine

"""``kvplan recommend``: each offer fits by its own plan, nothing smaller fits, and no fitting hardware is missing."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hwcalc import KvplanError, plan, recommend
from hwcalc.documents import document_of
from hwcalc.errors import ConfigError, UnsupportedError, UsageError
from hwcalc.planner.recommend_result import Offer, Recommendation
from hwcalc.profiles.engine_hardware import Answer, runs_on
from hwcalc.profiles.gpus import find_gpu, list_gpus, visible_memory
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import QWEN, Capture, read_plan, run

LLAMA_8B = "meta-llama/Llama-3.1-8B"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
WEIGHTS_8B = 2 * 8_030_261_248
WEIGHTS_70B = 2 * 70_553_706_496
TOKEN_8B = 32 * 2 * 8 * 128 * 2
TOKEN_70B = 80 * 2 * 8 * 128 * 2
"""Layers x keys and values x heads x numbers x bytes."""


def offers(model: str, **wanted: Any) -> tuple[Offer, ...]:
    """All of them."""
    return recommend(model, offline=True, limit=0, **wanted).offers


@cache
def everything() -> tuple[Offer, ...]:
    """Every accelerator that holds one sequence of 8,192 tokens of 70 billion parameters."""
    return offers(LLAMA_70B, seq="8k")


def layouts(gpus: int, *, any_layout: bool = True) -> list[tuple[int, int, int]]:
    """Every tp x pp x dp of so many GPUs of a node; those without stages where the model's 64 heads are cut evenly."""
    sizes = range(1, gpus + 1)
    every = [(tp, pp, dp) for tp in sizes for pp in sizes for dp in sizes if tp * pp * dp == gpus]
    return [layout for layout in every if any_layout or layout[1] == 1]


def fits(gpu: str, gpus: int, *, any_layout: bool = True, **wanted: Any) -> bool:
    """Whether a plan of any layout says so."""
    for tp, pp, dp in layouts(gpus, any_layout=any_layout):
        try:
            fit = plan(LLAMA_70B, gpu=gpu, tp=tp, pp=pp, dp=dp, **wanted).fit
        except KvplanError:
            continue
        if fit is not None and fit.fits:
            return True
    return False


@pytest.mark.parametrize("engine", ["vllm", "reference"])
def test_every_offer_is_a_plan_that_fits(engine: str) -> None:
    """The same request, planned by itself with the offer's hardware and layout, gives the offer's numbers."""
    for offer in offers(LLAMA_70B, seq="8k", batch=4, engine=engine, gpu=["l4,h100", "mi300x", "a100-sxm4-40gb"]):
        made = plan(
            LLAMA_70B, seq="8k", batch=4, engine=engine, gpu=offer.gpu, tp=offer.tp, pp=offer.pp, dp=offer.dp, offline=True
        )
        assert made.fit is not None
        assert made.speed is not None
        assert (made.fit.verdict, made.fit.needed_bytes, made.fit.usable_bytes, made.fit.max_batch, made.fit.max_seq) == (
            offer.verdict,
            offer.needed_bytes,
            offer.usable_bytes,
            offer.max_batch,
            offer.max_seq,
        )
        assert made.speed.row().items() <= document_of(offer).items()
        assert made.fit.fits
        assert offer.gpus == offer.tp * offer.pp * offer.dp == made.fit.gpus


@pytest.mark.parametrize("any_layout", [False, True])
@pytest.mark.parametrize("gpu", ["l4", "h100-sxm5-80gb", "a100-sxm4-40gb", "rtx-4090", "mi300x"])
def test_nothing_smaller_would_do(gpu: str, any_layout: bool) -> None:
    """Tried one by one, no layout of fewer GPUs fits; where none is offered, no layout of up to eight does."""
    wanted: dict[str, Any] = {"seq": 8192, "batch": 4, "engine": "vllm"}
    found = offers(LLAMA_70B, gpu=gpu, any_layout=any_layout, **wanted)
    sold = range(1, 9) if any_layout else (1, 2, 4, 8)
    fewest = next((gpus for gpus in sold if fits(gpu, gpus, any_layout=any_layout, **wanted)), None)

    assert min((offer.gpus for offer in found), default=None) == fewest


@pytest.mark.parametrize("model", [LLAMA_70B, "Qwen/Qwen3-235B-A22B"])
@pytest.mark.parametrize("users", [150, 200, 250, 350])
def test_no_more_nodes_than_servers_of_one_node_would_take(model: str, users: int) -> None:
    """Replicas of what a node holds are a layout, so that a server never takes more nodes than it would take servers; nor does a plan's fewest."""
    wanted: dict[str, Any] = {"seq": "16k", "engine": "vllm", "gpu": "h100"}
    node = plan(model, **wanted, gpus=8).fit
    alone = plan(model, **wanted, batch=users).fit
    (offer,) = offers(model, **wanted, batch=users, sort="cost", max_gpus=64)
    assert node is not None
    assert node.max_batch is not None
    assert alone is not None
    assert alone.sure_min_layout is not None

    assert offer.verdict == "fits"
    assert offer.gpus <= 8 * -(-users // node.max_batch)
    assert alone.sure_min_layout.gpus == offer.gpus


def test_three_nodes_where_two_are_too_few() -> None:
    """200 sequences of 16,384 tokens are 1,000 GiB, and the weights 131: more than 16 H100 may use, 1,166 GiB, less what each keeps for itself."""
    (offer,) = offers(LLAMA_70B, seq="16k", batch=200, engine="vllm", gpu="h100", price={"h100": "2.5/h"})

    assert not fits("h100", 16, seq="16k", batch=200, engine="vllm")
    assert (offer.gpus, offer.nodes, offer.dp) == (24, 3, 3)
    assert offer.cost is not None
    assert offer.cost.usd_per_hour == 24 * 2.5


def test_weights_and_cache_fit_what_is_there() -> None:
    """Whatever the layout, each number of the weights is somewhere, and each token's keys and values."""
    least = WEIGHTS_70B + 8 * 32_768 * TOKEN_70B
    found = offers(LLAMA_70B, seq="32k", batch=8, engine="vllm")

    assert len(found) > 20
    for offer in found:
        assert offer.total_bytes >= least
        assert offer.gpus * offer.needed_bytes >= least


def test_no_note_is_about_a_missing_gpu() -> None:
    """A T4 computes in fp16, others in bf16, so that no note is shared: those of the request say nothing of an H100 either."""
    answer = recommend("Qwen/Qwen3-8B", seq="8k", batch=2, engine="vllm", gpu="l4,h100,t4", offline=True)

    assert [note.code for note in answer.notes] == ["default-dtype"]


def test_everything_large_enough_is_there() -> None:
    """With half of the memory to spare, every data centre GPU of 40 GB and more that vLLM runs on holds 8 billion parameters."""
    least = 2 * (WEIGHTS_8B + 8192 * TOKEN_8B)
    large = set()
    for name in list_gpus():
        gpu = find_gpu(name)
        memory = visible_memory(gpu)
        runs = gpu.vendor in ("nvidia", "amd") and runs_on("vllm", "0.33", gpu).answer is Answer.RUNS
        if runs and gpu.category == "datacenter" and memory is not None and memory.low_bytes >= least:
            large.add(name)
    alone = {offer.gpu for offer in offers(LLAMA_8B, seq="8k", engine="vllm", category="datacenter") if offer.gpus == 1}

    assert len(large) > 20
    assert large <= alone


def test_smallest_first_and_what_is_not_sure_last() -> None:
    """Certain ones come first; within each part memory never falls."""
    found = offers(LLAMA_70B, seq="8k", sort="memory")
    probable = [offer.verdict == "probably" for offer in found]

    assert set(probable) == {True, False}
    assert probable == sorted(probable)
    for one, other in pairwise(found):
        assert one.verdict != other.verdict or one.total_bytes <= other.total_bytes


def test_what_is_not_sure_disagrees_at_the_ends() -> None:
    """It fits as expected and not at the high end; what is sure fits there as well."""
    for offer in everything():
        assert offer.needed_low_bytes <= offer.needed_bytes <= offer.usable_bytes
        assert offer.verdict.certain is (offer.needed_high_bytes <= offer.usable_bytes)


def test_strict_leaves_out_what_is_not_sure() -> None:
    """And says how many."""
    strict = recommend(LLAMA_70B, seq="8k", limit=0, offline=True, strict=True)

    assert [offer for offer in everything() if offer.verdict.certain] == list(strict.offers)
    assert strict.unsure_left_out == len(everything()) - len(strict.offers) > 0


def test_a_limit_says_how_many_more() -> None:
    """The first ones of the whole list."""
    every = recommend(LLAMA_8B, seq="8k", limit=0, offline=True, engine="vllm", sort="memory")
    few = recommend(LLAMA_8B, seq="8k", limit=3, offline=True, engine="vllm", sort="memory")

    assert [offer.gpu for offer in few.offers] == [offer.gpu for offer in every.offers[:3]]
    assert few.more == len(every.offers) - 3
    assert every.more == 0


def test_nothing_is_lost() -> None:
    """Every candidate is offered, too small, refused or unknown."""
    found = recommend(LLAMA_70B, seq="32k", batch=8, engine="vllm", limit=0, offline=True)

    offered = {offer.gpu for offer in found.offers}
    assert found.considered == len(offered) + found.too_small + found.refused + found.unknown
    assert not any(find_gpu(name).vendor in ("apple", "google") for name in offered)
    assert found.refused > 50


def test_an_alias_is_listed_by_what_it_stands_for() -> None:
    """Two names of one accelerator are one candidate, under its id."""
    assert {offer.gpu for offer in offers(LLAMA_8B, seq="8k", gpu="h100,H100-SXM5,h100-sxm5-80gb")} == {"h100-sxm5-80gb"}


def test_filters() -> None:
    """Makers and categories narrow the list; a word that nothing has is an error that says what there is."""
    found = offers(LLAMA_8B, seq="8k", vendor=["AMD"], category="datacenter")

    assert found
    assert {(offer.vendor, offer.category) for offer in found} == {("amd", "datacenter")}
    with pytest.raises(UsageError, match="vendor 'nobody'") as error:
        offers(LLAMA_8B, seq="8k", vendor="nobody")
    assert "nvidia" in error.value.hint
    with pytest.raises(UsageError, match="h1000"):
        offers(LLAMA_8B, seq="8k", gpu="h1000")


def test_sizes_of_memory_are_told_apart() -> None:
    """An accelerator that is sold with several sizes of memory is listed with those that do."""
    names = {offer.gpu for offer in offers(LLAMA_8B, seq="8k", vendor="apple")}

    assert "apple-m4-pro-48gb" in names
    assert "apple-m1-8gb" not in names


def test_instances() -> None:
    """All GPUs of an instance in their best layout, or it is not listed."""
    found = offers(LLAMA_70B, seq="8k", engine="vllm", instances="aws", gpu="h100")

    assert {(offer.instance, offer.gpus) for offer in found} == {("aws/p5.48xlarge", 8)}
    one = found[0]
    made = plan(LLAMA_70B, seq="8k", engine="vllm", instance="p5.48xlarge", tp=one.tp, pp=one.pp, dp=one.dp, offline=True)
    assert made.fit is not None
    assert made.fit.needed_bytes == one.needed_bytes
    clouds = {str(offer.instance).partition("/")[0] for offer in offers(LLAMA_8B, seq="8k", engine="vllm", instances="all")}
    assert {"aws", "azure", "gcp"} <= clouds
    with pytest.raises(UsageError, match="no known cloud"):
        offers(LLAMA_8B, seq="8k", instances="nowhere")


def test_nothing_fits(capsys: Capture) -> None:
    """Exit status 1, what came nearest, and changes that were planned before they are offered."""
    words = ("recommend", LLAMA_70B, "--seq", "128k", "--users", "64", "--gpu", "l4,t4", "--engine", "vllm")
    status, out, _ = run(capsys, *words)
    found = recommend(LLAMA_70B, seq="128k", batch=64, gpu=["l4", "t4"], engine="vllm", offline=True)

    assert status == 1
    assert "Nothing holds it" in out
    assert found.nearest is not None
    assert found.nearest.gpu == "l4"
    # Four nodes are tried where one is not enough.
    assert found.nearest.gpus == 32
    assert found.nearest.needed_bytes > found.nearest.usable_bytes
    assert found.message in out.replace("\n  ", " ")
    assert all(one.flag in out for one in found.suggestions)


def test_the_changes_keep_how_the_model_is_read() -> None:
    """What if it had 16 heads: the command that is offered asks the same, with the same draft and options."""
    found = recommend(
        LLAMA_70B, engine="vllm", seq="8k", batch=100, gpu="l4", max_gpus=8, kv_heads=16, draft=QWEN, offline=True,
        engine_options={"max_num_seqs": "100"},
    )  # fmt: skip
    assert not found.offers
    assert found.suggestions
    for one in found.suggestions:
        name, given = read_plan(one.command)
        assert name == LLAMA_70B
        assert (given["kv_heads"], given["draft"], given["offline"]) == ("16", QWEN, True)
        assert given["engine_options"]["max_num_seqs"] == "100"


@pytest.mark.parametrize("hardware", [(), ("--instances", "aws")])
def test_what_is_nearest_stays_readable(capsys: Capture, monkeypatch: pytest.MonkeyPatch, hardware: tuple[str, ...]) -> None:
    """2^30 tokens x 2^20 sequences are more than a million GiB for each GPU: the row is one line, in the columns of its header."""
    monkeypatch.setenv("COLUMNS", "100")
    words = ("recommend", QWEN, "--seq", "1G", "--concurrency", "1M", *hardware)
    status, out, _ = run(capsys, *words)
    header, row, after, *_ = out.partition("Nearest:\n\n")[2].splitlines()

    assert (status, after) == (1, "")
    assert ">999,999" in row
    assert row.index("none") + len("none") == header.index("free") + len("free")
    assert max(map(len, out.splitlines())) <= 100
    nearest = json.loads(run(capsys, *words, "--json")[1])["nearest"]
    assert nearest["needed_bytes"] > 10**6 * 2**30


def test_an_engine_that_runs_on_none_of_them() -> None:
    """Hardware that the engine refuses is not the same as too little memory: exit status 3."""
    with pytest.raises(UnsupportedError, match="on none of the"):
        recommend(LLAMA_8B, seq="8k", engine="vllm", vendor="apple", offline=True)


def test_unknown_weights_are_an_error() -> None:
    """Without the weights nothing can be said of any hardware, and the message says so."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        "quantization_config": {"quant_method": "nobody's"},
    }
    with pytest.raises(UnsupportedError, match="not known") as error:
        recommend(config, seq=100)
    assert "--weights" in error.value.hint
    assert recommend(config, seq=100, weights="fp8", limit=1).offers


def test_a_user_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """An accelerator of the user's own is a candidate; a broken file of theirs is left out by name, and is an error if it is asked for."""
    folder = tmp_path / "kvplan" / "profiles" / "gpus"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = "schema_version: 1\nid: mine\nname: Mine\nvendor: acme\nmemory_marketing_gb: 48\nsource: {box: printed on it}\n"
    (folder / "mine.yaml").write_text(text)

    (found,) = offers(LLAMA_8B, seq="8k", vendor="acme")
    assert (found.gpu, found.gpus, found.decode_tokens_per_s_bound) == ("mine", 1, None)
    assert any(note.code == "user-profile" for note in recommend(LLAMA_8B, seq="8k", vendor="acme", offline=True).notes)

    (folder / "mine.yaml").write_text(text + "memory_marketing_gb: -1\n")
    found_without = recommend(LLAMA_8B, seq="8k", limit=0, offline=True)
    (note,) = (note for note in found_without.notes if note.code == "broken-profile")
    assert "mine.yaml" in note.message
    assert found_without.offers
    assert "mine" not in {offer.gpu for offer in found_without.offers}
    for words in ((), ("--json",), ("--format", "csv"), ("--quiet",), ("--instances", "aws", "--gpu", "l4")):
        status, out, err = run(capsys, "recommend", LLAMA_8B, "--seq", "8k", *words)
        assert (status, bool(out)) == (0, True)
        assert err.count("mine.yaml") == (0 if "--instances" in words else 1), words
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        offers(LLAMA_8B, seq="8k", gpu="l4,mine")


@pytest.mark.parametrize(
    "wanted",
    [
        {"max_gpus": 0},
        {"max_gpus": 65},
        {"max_gpus": "many"},
        {"limit": -1},
        {"limit": "x"},
        {"limit": 2**70},
        {"sort": "price"},
        {"sort": 5},
        {"gpu": 5},
        {"gpu": [5]},
        {"gpu": "../../etc/passwd"},
        {"gpu": ""},
        {"vendor": None},
        {"vendor": "google", "category": "laptop"},
        {"instances": "aws", "gpu": "rtx-4090"},
        {"instances": 5},
        {"instances": "../aws"},
        {"tp": 2},
        {"gpus": 2},
        {"kv_memory": "1GiB"},
        {"seq": "nan"},
        {"batch": 0},
        {"batch": None},
        {"memory_utilization": float("nan")},
        {"margin": float("inf")},
        {"engine": "nobody"},
    ],
    ids=str,
)
def test_wrong_requests(wanted: dict[str, Any]) -> None:
    """Each is a usage error with a message, before anything is searched."""
    with pytest.raises(UsageError) as error:
        recommend(LLAMA_8B, offline=True, **({"seq": "8k"} | wanted))
    assert error.value.message


def test_json(capsys: Capture) -> None:
    """One document by its schema, with what the library gives; also where nothing fits, and on errors."""
    validator = jsonschema.Draft202012Validator(json_schema("recommend"))
    words = ("recommend", LLAMA_8B, "--seq", "8k", "--engine", "vllm", "--vendor", "nvidia", "--limit", "2", "--json")
    status, out, err = run(capsys, *words)
    document = json.loads(out)

    assert (status, err) == (0, "")
    validator.validate(document)
    library: Recommendation = recommend(LLAMA_8B, seq="8k", engine="vllm", vendor="nvidia", limit=2, offline=True)
    assert [offer["gpu"] for offer in document["offers"]] == [offer.gpu for offer in library.offers]
    assert document["more"] == library.more

    status, out, _ = run(capsys, "recommend", LLAMA_70B, "--seq", "8k", "--gpu", "t4", "--max-gpus", "1", "--json")
    assert status == 1
    validator.validate(json.loads(out))
    assert json.loads(out)["nearest"]["headroom_bytes"] < 0

    status, out, _ = run(capsys, "recommend", LLAMA_70B, "--gpu", "nothing", "--json")
    assert status == 2
    assert json.loads(out)["error"]["type"] == "usage"


def test_csv_and_markdown(capsys: Capture) -> None:
    """The same rows as numbers, and as a pipe table."""
    words = ("recommend", LLAMA_8B, "--seq", "8k", "--engine", "vllm", "--limit", "4")
    _, out, err = run(capsys, *words, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    library = recommend(LLAMA_8B, seq="8k", engine="vllm", limit=4, offline=True)

    assert [(row["gpu"], int(row["needed_bytes"])) for row in rows] == [(one.gpu, one.needed_bytes) for one in library.offers]
    assert f"{library.more:,} more" in err
    _, out, _ = run(capsys, *words, "--format", "markdown")
    assert out.count("\n| ") == 2 * 2 + len(library.offers)  # what is rented, and what is sold
    assert all(f"| {one.gpu} |" in out for one in library.offers)


def test_table(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is wider than a terminal of a hundred columns, those that are not sure included; the rest of the list is one option away."""
    monkeypatch.setenv("COLUMNS", "100")
    status, out, _ = run(capsys, "recommend", LLAMA_70B, "--seq", "8k", "--limit", "0")

    assert status == 0
    assert "Probably fits:" in out
    assert "tight" not in out.lower()
    assert max(map(len, out.splitlines())) <= 100
    _, out, _ = run(capsys, "recommend", LLAMA_70B, "--seq", "8k", "--limit", "1")
    assert "more: --limit 0" in out
    _, quiet, _ = run(capsys, "recommend", LLAMA_70B, "--seq", "8k", "--limit", "1", "-q")
    assert len(quiet) < len(out)


def test_the_fewest_of_many_gpus_are_found_soon() -> None:
    """A search among 16,384 GPUs tries 512 of them; where none of those counts will do, the fewest are not known."""
    small = plan("Qwen/Qwen3-8B", seq=1000, gpu="l4", margin="10%", tp=4096, pp=4).fit
    large = plan("Qwen/Qwen3-8B", seq=1, gpu="ascend-910b", margin="99%", tp=4096, pp=4).fit

    assert small is not None
    assert large is not None
    assert (small.fits, small.min_gpus) == (True, 1)
    assert (large.fits, large.min_gpus) == (True, None)


def test_a_packed_dtype_that_the_model_cannot_have() -> None:
    """A packed layout holds a latent: for a model with keys and values it is refused before any candidate is tried."""
    with pytest.raises(UnsupportedError, match="packs a latent and its rotary key"):
        recommend("Qwen/Qwen3-8B", seq=1000, dtype="fp8_ds_mla", gpu="l4")

"""What people do with the page: find hardware, make a model fit, compare, start it, take numbers and pictures along."""

from __future__ import annotations

import csv
import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from hwcalc import compare, plan
from hwcalc.hardware.prices import money
from hwcalc.report.columns import HOURLY, MONTHLY, PER_MILLION, cost_cells
from hwcalc.report.emit import commands_to_start
from tests.hwcalc.explore.browser.conftest import made
from tests.hwcalc.explore.browser.watched import Watched, opened
from tests.hwcalc.explore.planned import agree, plan_of, planned

START: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "engine": "vllm", "gpu": "l4", "count": 1, "tp": 1, "pp": 1, "seq": 32_768, "batch": 8,
    "dtype": "bf16", "weights": "as published", "policy": None, "hand": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def usual_file(shared: Path, browser: Any) -> Path:
    """A page whose GPUs nobody named."""
    return made(shared / "kvplan-usual.html", ["Qwen/Qwen3-0.6B"], engine="vllm")


def test_it_opens_on_the_smallest_gpu_that_fits(browser: Any, usual_file: Path) -> None:
    """At 8k tokens, and it says that nobody chose the GPU, until somebody does. Of those sold with as much memory it is the one that has less."""
    with opened(browser, made(usual_file.with_name("kvplan-24gb.html"), ["Qwen/Qwen3-8B"], engine="vllm").as_uri()) as page:
        # An L4 and an RTX 4090 are sold with 24 GB each; of the L4 1.5 GB less are to be seen.
        assert page.run("() => kvplan.state().gpu") == "l4"
    with opened(browser, usual_file.as_uri()) as page:
        state, rows = page.run("() => [kvplan.state(), kvplan.payload.gpus.map((gpu) => [gpu.id, Number(gpu.memory)])]")
        fits = page.run(
            "() => kvplan.payload.gpus.filter(({ id }) => kvplan.answer({ gpu: id }).fit?.verdict === 'fits').map(({ id }) => id)"
        )
        assert "smallest of this page that surely holds it" in page.page.locator("#answer").inner_text()
        page.set(gpu="h100-sxm5-80gb")
        assert "smallest of this page" not in page.page.locator("#answer").inner_text()

    sizes = dict(rows)
    assert state["seq"] == 8_192
    assert sizes[state["gpu"]] == min(sizes[gpu] for gpu in fits)


def test_it_opens_on_as_many_of_the_named_gpus_as_fit(browser: Any, shared: Path) -> None:
    """Weights of 61 GiB lie on no L4: of those that the user names, and of one alone, it is the smallest number that surely holds them."""
    for gpus, least in (("l4,h100", {"gpu": "h100-sxm5-80gb", "count": 1}), ("l4", {"gpu": "l4", "count": 4})):
        file = made(shared / f"kvplan-named-{len(gpus)}.html", ["Qwen/Qwen3-32B"], engine="vllm", gpu=gpus, seq="2k")
        with opened(browser, file.as_uri()) as page:
            state, verdict = page.run("() => [kvplan.state(), kvplan.answer({}).fit.verdict]")

            assert (state | least, verdict) == (state, "fits")


def test_it_opens_on_the_first_named_node_that_fits(browser: Any, shared: Path) -> None:
    """61 GiB of weights lie on no L4, and on four of them. Side by side each node has its own number of GPUs, with the plan's verdict."""
    nodes = (("l4", 1), ("l4", 4), ("h100-sxm5-80gb", 1))
    named = ",".join(f"{count}x{gpu}" for gpu, count in nodes)
    file = made(shared / "kvplan-nodes.html", ["Qwen/Qwen3-32B"], engine="vllm", gpu=named, seq="2k")
    verdicts = [
        one.fit.verdict.text
        for gpu, count in nodes
        if (one := plan("Qwen/Qwen3-32B", engine="vllm", gpu=gpu, gpus=count, seq="2k")).fit is not None
    ]
    with opened(browser, file.as_uri()) as page:
        state = page.run("() => kvplan.state()")
        rows = page.page.locator("#gpus .bar-row").all_inner_texts()

        assert verdicts == ["does not fit", "fits", "fits"]
        assert (state["gpu"], state["count"]) == ("l4", 4)
        assert "Chosen for you: 4 " in page.page.locator("#answer").inner_text()
        assert [verdict in row for verdict, row in zip(verdicts, rows, strict=True)] == [True] * 3
        assert [row.partition(" ")[0] for row in rows] == ["1", "4", "1"]

        page.settle(count=2)
        assert page.page.locator("#gpus .bar-row").count() == 2


def test_what_makes_it_fit(small: Watched) -> None:
    """Each button leads to a state with the verdict that it shows; where it fits there is none."""
    small.set(**START)
    assert small.run("() => kvplan.answer().fit.verdict") == "no"
    buttons = small.page.locator("#answer button[name=mend]")
    said = buttons.all_inner_texts()
    assert any("GPUs" in words for words in said)
    for number, words in enumerate(said):
        small.set(**START)
        buttons.nth(number).click()
        small.frame()
        verdict = small.run("() => kvplan.payload.verdicts[kvplan.answer().fit.verdict].words")
        assert words.endswith(verdict)
    small.set(**{**START, "seq": 1024, "batch": 1, "gpu": "h100-sxm5-80gb"})
    assert buttons.count() == 0


def test_gpus_side_by_side(small: Watched) -> None:
    """A row for each GPU with the plan's verdict; its name chooses it."""
    small.settle(**START)
    rows = small.page.locator("#gpus .bar-row")
    assert rows.count() == 2
    small.page.locator("button[name=gpu-row][value=h100-sxm5-80gb]").click()
    small.frame()
    state = small.run("() => kvplan.state()")
    words = small.run("() => kvplan.payload.verdicts[kvplan.answer().fit.verdict].words")
    assert (state["gpu"], state["engine"]) == ("h100-sxm5-80gb", "vllm")
    assert words in rows.nth(1).inner_text()


@pytest.mark.parametrize(("gpu", "count"), [("h100-sxm5-80gb", 2), ("l4", 1), ("l4", 4)])
def test_models_side_by_side(browser: Any, shared: Path, gpu: str, count: int) -> None:
    """A row for each model, which says verdict, how many at once and cost as compare does with the same prices; its name chooses it."""
    models = ["Qwen/Qwen3-8B", "google/gemma-3-12b-it", "openai/gpt-oss-20b"]
    priced: dict[str, Any] = {"price": {"h100": "2.5/h"}, "own": "2xl4", "kwh": "0.15", "use": "60%"}
    file = made(shared / "kvplan-priced.html", models, gpu="l4,h100", **priced)
    compared = compare(models, engine="vllm", gpu=gpu, gpus=count, seq=16_384, batch=20, **priced)
    expected = []
    for variant in compared.variants:
        assert variant.verdict is not None
        cost = cost_cells(variant.cost)
        cells = [cost[title] or "-" for title in (HOURLY, MONTHLY, PER_MILLION)]
        expected.append([variant.model, variant.verdict.text, f"{variant.max_batch:,}", *cells])
    with opened(browser, file.as_uri()) as page:
        page.settle(model=models[0], engine="vllm", gpu=gpu, count=count, seq=16_384, batch=20)
        page.page.locator("#each-model").scroll_into_view_if_needed()
        page.frame()
        found = [row.locator("th, td").all_inner_texts()[:6] for row in page.page.locator("#each-model tbody tr").all()]
        page.page.locator("button[name=model-row]").nth(2).click()
        page.frame()
        chosen, command = page.run("() => [kvplan.state().model, kvplan.command()]")

    assert found == expected
    assert chosen == models[2]
    assert all(word in command for word in ("--price h100=2.5/h", "--own 2xl4", "--kwh 0.15", "--use 60%"))


def test_runs_of_layers(small: Watched) -> None:
    """Pipeline parallel is a choice, and its numbers are those of the command line."""
    small.set(**{**START, "count": 4, "tp": 2, "pp": 2})
    answer, command = small.run("() => [kvplan.answer(), kvplan.command()]")
    assert "--tp 2 --pp 2" in command
    assert agree(answer, planned(command))
    small.set(engine="mlx")
    assert "divided by layers" in small.answer() or "refused" in small.run("() => kvplan.answer()")


@pytest.mark.parametrize("gpu", ["l4", "h100-sxm5-80gb"])
def test_a_policy_on_every_gpu(small: Watched, gpu: str) -> None:
    """Bytes and verdict are the plan's on each GPU of the page; of the limits it says what it knows."""
    small.set(**{**START, "engine": "reference", "gpu": gpu, "batch": 1, "policy": "snapkv:compression_ratio=0.5"})
    answer, command = small.run("() => [kvplan.answer(), kvplan.command()]")
    expected = planned(command)
    assert not isinstance(expected, str)
    for section in ("cache", "per_gpu"):
        assert answer[section] == expected[section]
    same = ("usable_bytes", "needed_bytes", "needed_low_bytes", "needed_high_bytes", "headroom_bytes", "verdict")
    assert {name: answer["fit"][name] for name in same} == {name: expected["fit"][name] for name in same}
    assert "Of the lengths that the page knows under a policy" in small.page.locator("#answer").inner_text()


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_what_starts_it(small: Watched, engine: str) -> None:
    """The command is the plan's, and stands there only where the state fits."""
    small.settle(**{**START, "engine": engine, "gpu": "h100-sxm5-80gb", "batch": 3, "dtype": "", "weights": "as published"})
    options = {"n_gpu_layers": "all"} if engine == "llamacpp" else None
    lines = commands_to_start(plan("Qwen/Qwen3-8B", engine=engine, gpu="h100", seq=32_768, batch=3, engine_options=options))
    assert small.page.locator("#start-line").inner_text() == "\n".join(command for _, command, _ in lines)
    small.page.locator("#copy-start").click()
    small.page.wait_for_function("() => /copied|selected/i.test(document.querySelector('#command').innerText)")
    small.settle(seq=1 << 20, batch=64)
    assert not small.page.locator("#start-line").is_visible()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"batch": 200, "seq": 2_000},
        {"dtype": "fp8", "weights": "fp8", "count": 4, "tp": 2, "batch": 3},
        {"count": 4, "tp": 1, "pp": 4, "batch": 64},
        {"engine": "llamacpp", "count": 2, "batch": 5},
        {"engine": "reference", "model": "google/gemma-3-12b-it", "count": 8, "tp": 4, "seq": 100_000},
        {"engine": "transformers", "model": "google/gemma-3-12b-it", "seq": 500},
    ],
)
def test_tokens_a_second(small: Watched, change: dict[str, Any]) -> None:
    """What is expected is the plan's, and so is the bound, which is said to be one where it fits; below it is the price of the GPUs with its day."""
    small.set(**{**START, "gpu": "h100-sxm5-80gb", **change})
    speed, command = small.run("() => [kvplan.speed(), kvplan.command()]")
    plan = plan_of(command)
    planned_speed = plan.speed
    assert planned_speed is not None
    assert plan.fit is not None
    assert speed["tokens"] == pytest.approx(planned_speed.decode_tokens_per_s_bound, rel=1e-9)
    assert speed["by"] == planned_speed.bound_by
    likely = planned_speed.decode_tokens_per_s
    assert (speed["expected"] or {}).get("low") == (likely and pytest.approx(likely.low, rel=1e-9))
    told = small.page.locator("#answer .limits").inner_text()
    assert ("Speed: " in told, "at most" in told) == (plan.fit.fits, plan.fit.fits)
    assert (") for a million tokens at 40% use" in told) == (plan.fit.fits and likely is not None)
    if plan.fit.fits and likely is not None and likely.expected is not None:
        # Dollars an hour x 1,000,000 / (3,600 s x tokens a second x use).
        million = 2.69 * change.get("count", 1) * 1e6 / (3600 * likely.expected * 0.4)
        assert f", ${million:.2f} (" in told
    # One costs 2.69 dollars an hour.
    assert f"Price: ${2.69 * change.get('count', 1):.2f} an hour" in told
    assert "(runpod/pod community, on demand, 2026-11-09)." in told


def test_a_link_can_be_copied(small: Watched) -> None:
    """It is said where the link is."""
    small.set(**START)
    small.page.locator("#copy-link").click()
    small.page.wait_for_function("() => /the link is/i.test(document.querySelector('#command').innerText)")


def test_what_is_saved(small: Watched, tmp_path: Path) -> None:
    """The numbers as CSV with the page's integers, the chart as a PNG, the bar as an SVG that needs no style sheet."""
    small.settle(**{**START, "seq": 4096, "batch": 2})
    saved = {}
    for key in ("save-csv", "save-png", "save-svg"):
        with small.page.expect_download() as waiting:
            small.page.locator(f"#{key}").click()
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        saved[path.suffix] = path.read_bytes()
    rows = dict(row[:2] for row in csv.reader(io.StringIO(saved[".csv"].decode())))
    answer, command = small.run("() => [kvplan.answer(), kvplan.command()]")
    assert int(rows["per_gpu.cache"]) == answer["per_gpu"]["cache"]
    assert (rows["model"], rows["command"]) == ("Qwen/Qwen3-8B", command)
    # What the answer says of speed and price, with the names of a plan's JSON.
    said = small.page.locator("#answer .limits").inner_text()
    expected, hour = float(rows["speed.decode_tokens_per_s_expected"]), float(rows["cost.usd_per_hour"])
    assert re.search(rf"Speed.*: {expected:,.3g}|Speed.*: {expected:,.0f} tokens a second", said)
    assert f"{money(hour)} an hour" in said
    million = hour / 3600 / expected / float(rows["cost.use"]) * 1e6
    assert float(rows["cost.usd_per_million_tokens"]) == pytest.approx(million)
    assert f"${million:,.2f} (" in said
    assert saved[".png"].startswith(b"\x89PNG")
    assert saved[".svg"].startswith(b"<svg")
    assert re.search(rb'fill="rgb', saved[".svg"])


def test_numbers_that_are_not_possible_are_said(small: Watched) -> None:
    """Seven key/value heads divide no 32 query heads: eight are taken, and the page says so, and why."""
    small.settle(**START)
    small.page.locator("#hand").check()
    small.page.locator("#kv_heads-exact").fill("7")
    small.page.locator("#kv_heads-exact").press("Enter")
    small.frame()
    said = small.page.locator("#answer .lacking").inner_text()
    assert small.run("() => kvplan.state().hand.kv_heads") == 8
    assert 'By hand the page has no "7" key/value heads: shown is 8.' in said
    assert "heads must be a multiple of kv_heads" in said
    small.set(hand=None, batch=3000)
    assert small.run("() => kvplan.state().batch") == 3000


@pytest.mark.parametrize("shown", ["cache", "total"])
def test_no_words_of_the_chart_cover_others(small: Watched, shown: str) -> None:
    """On a linear scale, where nothing fits, all of them are at its lower left."""
    small.settle(**{**START, "gpu": "l4", "batch": 256, "seq": 16384})
    small.run("""() => {
      globalThis.written = [];
      const write = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        if (/[a-z]{3}/.test(text)) written.push([text, x, x + this.measureText(text).width, y]);
        return write.call(this, text, x, y, ...rest);
      };
    }""")
    small.page.locator(f"#lengths input[value={shown}]").check()
    small.page.locator("#lengths input[value=linear]").check()
    small.frame()
    words = {text: place for text, *place in small.run("() => written")}
    for value in ("cache", "log"):
        small.page.locator(f"#lengths input[value={value}]").check()

    assert len(words) >= 3
    for (one, first), (other, second) in itertools.combinations(words.items(), 2):
        assert first[0] >= second[1] or second[0] >= first[1] or abs(first[2] - second[2]) >= 11, (one, other)


def test_states_side_by_side(small: Watched) -> None:
    """A pinned state stays in sight beside the chosen one, can be shown again and removed."""
    small.settle(**START)
    small.page.locator("#pin").click()
    small.settle(seq=1024)
    rows = small.page.locator("#pins .bar-row")
    assert rows.count() == 2
    assert "32,768 tokens" in rows.nth(1).inner_text()
    small.page.locator("button[name=pin-show]").click()
    small.frame()
    assert small.run("() => kvplan.state().seq") == 32_768
    small.page.locator("button[name=pin-drop]").click()
    assert rows.count() == 0


def test_a_linear_scale(small: Watched) -> None:
    """The axis of bytes begins at nothing."""
    small.settle(**START)
    small.page.locator("#lengths").scroll_into_view_if_needed()
    picture = "() => document.querySelector('#lengths canvas').toDataURL()"
    before = small.run(picture)
    small.page.locator("input[name=lengths-scale][value=linear]").check()
    small.frame()
    assert small.run(picture) != before
    small.page.locator("input[name=lengths-scale][value=log]").check()


def test_panels_fold(small: Watched) -> None:
    """A title folds its panel, and the contents unfold it and lead there."""
    small.settle(**START)
    title = small.page.locator("button[name=fold][value=saved]")
    assert title.get_attribute("aria-expanded") == "false"
    small.page.get_by_role("navigation", name="Contents").get_by_text("What the cache saves").click()
    assert title.get_attribute("aria-expanded") == "true"
    assert small.page.locator("#saved-body").is_visible()
    title.click()
    assert not small.page.locator("#saved-body").is_visible()


def test_words_are_explained(small: Watched) -> None:
    """Terms of the answer and of the controls have their meaning on hover."""
    small.settle(**START)
    for place in ("#gauge .bar-legend .term", "#controls .term", "#variants .term"):
        terms = small.page.locator(place)
        assert terms.count() >= 3
        terms.first.hover()
        assert small.page.locator("#hint").inner_text()
    small.page.mouse.move(0, 0)


def test_the_slider_stops_at_round_lengths(small: Watched) -> None:
    """Each stop is a multiple of 128 tokens, or the model's own maximum, which has a tick."""
    small.set(**START)
    slider = small.page.locator("#seq")
    slider.focus()
    stops = []
    for _ in range(12):
        slider.press("ArrowRight")
        small.frame()
        stops.append(small.run("() => kvplan.state().seq"))
    assert all(stop % 128 == 0 for stop in stops)
    assert small.page.locator("#seq-ticks option").get_attribute("label") == "40k"

"""Every control of the page does something: the answer is another one, or the page says why there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hwcalc.explore.browser.watched import Watched, opened

CHANGES = {
    "model": "model",
    "seq": "seq",
    "seq-exact": "seq",
    "batch": "batch",
    "batch-exact": "batch",
    "dtype": "dtype",
    "weights": "weights",
    "policy": "policy",
    "engine": "engine",
    "gpu": "gpu",
    "count": "count",
    "count-exact": "count",
    "tp": "tp",
    "tp-exact": "tp",
    "pp": "pp",
    "pp-exact": "pp",
    "hand": "hand",
    "layers": "hand",
    "layers-exact": "hand",
    "heads": "hand",
    "heads-exact": "hand",
    "kv_heads": "hand",
    "kv_heads-exact": "hand",
    "head_dim": "hand",
    "head_dim-exact": "hand",
}
"""Controls, and what of the state each one changes."""
OTHERS = {
    "model-search": "test_a_long_list_of_models_is_searched",
    "theme": "test_the_colours_can_be_chosen",
    "copy": "test_the_command_line_can_be_copied",
    "layer": "test_a_layer_has_its_formula",
    "line": "test_a_line_can_be_hidden",
    "lengths-shown": "test_the_cache_alone_or_all",
    "lengths-scale": "test_a_linear_scale",
    "copy-start": "test_what_starts_it",
    "copy-link": "test_a_link_can_be_copied",
    "save-csv": "test_what_is_saved",
    "save-png": "test_what_is_saved",
    "save-svg": "test_what_is_saved",
    "pin": "test_states_side_by_side",
    "pin-show": "test_states_side_by_side",
    "pin-drop": "test_states_side_by_side",
    "mend": "test_what_makes_it_fit",
    "gpu-row": "test_gpus_side_by_side",
    "model-row": "test_models_side_by_side",
    "fold": "test_panels_fold",
    "live-model": "test_live.py",
    "live-show": "test_live.py",
}
"""Controls that change nothing of the state, and the test of each."""
START: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "engine": "vllm", "gpu": "h100-sxm5-80gb", "count": 4, "tp": 2, "pp": 1, "seq": 4096, "batch": 8,
    "policy": None, "hand": None,
}  # fmt: skip
ALIKE = {"gpu", "policy"}
"""What need not change the answer of :data:`START`."""
KEY = "(e) => e.id || e.name"


def value_of(page: Watched, key: str) -> Any:
    """What a control stands at, and what it can be moved to: an option, another number."""
    return page.run(
        "(key) => { const e = document.getElementById(key); return { tag: e.localName, type: e.type, value: e.value,"
        " options: e.localName === 'select' ? [...e.options].map((option) => option.value) : [] }; }",
        key,
    )


def move(page: Watched, key: str) -> None:
    """Move a control as a person does, with the keyboard or a click."""
    control, now = page.page.locator(f"#{key}"), value_of(page, key)
    control.focus()
    if now["tag"] == "select":
        control.select_option(next(value for value in now["options"] if value != now["value"]))
    elif now["type"] == "checkbox":
        control.press("Space")
    elif now["type"] == "range":
        control.press("End")
        if value_of(page, key)["value"] == now["value"]:
            control.press("ArrowLeft")
    else:
        control.fill(str(int(now["value"].replace(",", "")) * 2))
        control.press("Enter")


def keys(page: Watched) -> set[str]:
    """All controls of the page: but for the summaries of tables, which have a test of their own."""
    found = page.run(
        f"() => [...document.querySelectorAll('input, select, button, textarea, [contenteditable], [role=slider]')].map({KEY})"
    )
    return set(found)


def test_every_control_has_a_test(small: Watched) -> None:
    """A new control is in one of the tables of this file, or fails here; so does one that is gone."""
    for state in (START, {**START, "model": "google/gemma-3-12b-it", "engine": "llamacpp"}):
        small.set(**state)
        assert keys(small) - CHANGES.keys() - OTHERS.keys() == set()
    assert (CHANGES.keys() | OTHERS.keys()) - keys(small) <= {"live-model", "live-show", "mend", "pin-show", "pin-drop"}


@pytest.mark.parametrize("key", CHANGES)
def test_it_moves(small: Watched, key: str) -> None:
    """The state has what was chosen, and the page another answer, the words of a refusal, or the same for what is alike."""
    name, page = CHANGES[key], small
    hand = page.run("() => kvplan.payload.models[0].hand")
    assert isinstance(hand, dict), hand
    page.set(**START)
    if name == "hand" and key != "hand":
        page.set(hand={dimension: one["value"] for dimension, one in hand["dimensions"].items()})
    before, shown, answer = page.run("() => kvplan.state()"), page.answer(), page.run("() => kvplan.answer()")
    move(page, key)
    page.frame()
    after, then = page.run("() => kvplan.state()"), page.run("() => kvplan.answer()")

    assert before[name] != after[name]
    if "refused" in then:
        assert then["refused"] in page.answer()
    elif key != "hand":
        assert then != answer or name in ALIKE
        assert page.answer() != shown or name in ALIKE
    page.page.wait_for_function("(seq) => location.hash.includes(`seq=${seq}`)", arg=after["seq"])


def test_a_long_list_of_models_is_searched(browser: Any, small_file: Path) -> None:
    """From 13 models on there is a field in place of the list; a name that the page does not have is said to be none."""
    with opened(browser, small_file.as_uri()) as page:
        page.run(
            "() => { const { models } = kvplan.payload;"
            " models.push(...Array.from({ length: 11 }, (_, number) => ({ ...models[1], id: `copy ${number}` }))); }"
        )
        page.set(**START)
        search = page.page.locator("#model-search")
        assert not page.page.locator("#model").is_visible()
        search.fill("copy 3")
        search.press("Enter")
        page.frame()
        assert page.run("() => kvplan.state().model") == "copy 3"
        search.fill("copy 99")
        search.press("Enter")
        assert "does not have that model" in page.run("() => document.getElementById('model-search').validationMessage")
        assert page.run("() => kvplan.state().model") == "copy 3"


@pytest.mark.parametrize(
    ("typed", "seq"), [("32k", 32_768), ("1M", 1 << 20), ("5,000", 5_000), ("99999999999", 1 << 20), ("1", 128)]
)
def test_lengths_as_the_command_line_takes_them(small: Watched, typed: str, seq: int) -> None:
    """What is typed is read like an option; beyond the ends it is the end."""
    small.set(**START)
    field = small.page.locator("#seq-exact")
    field.fill(typed)
    field.press("Enter")
    small.frame()

    assert seq == small.run("() => kvplan.state().seq")
    assert f"{seq:,}" == field.input_value()


@pytest.mark.parametrize("typed", ["x", "", "-5", "1e999", "0", "32 GB", "<img src=x>", "9" * 400])
def test_no_lengths(small: Watched, typed: str) -> None:
    """What is no length is marked as wrong, said so in words, and changes nothing."""
    small.set(**START)
    field = small.page.locator("#seq-exact")
    field.fill(typed)
    field.press("Enter")
    small.frame()

    assert small.run("() => kvplan.state().seq") == START["seq"]
    assert small.run("() => document.getElementById('seq-exact').validationMessage")


def test_the_colours_can_be_chosen(small: Watched) -> None:
    """Light and dark, beside what the machine asks for."""
    colour = "() => getComputedStyle(document.body).backgroundColor"
    before = small.run(colour)
    small.page.locator("#theme").click()
    small.frame()

    assert small.run(colour) != before


def test_the_command_line_can_be_copied(small: Watched) -> None:
    """The button copies the line, or marks it where a page from disk may not write to the clipboard; both are said."""
    small.page.locator("#copy").click()
    small.page.wait_for_function(
        "() => document.getSelection().toString().includes('kvplan plan') || /copied/i.test(document.querySelector('main').innerText)"
    )


def test_a_layer_has_its_formula(small: Watched) -> None:
    """Each cell of the strip shows its layer's numbers on focus, and the arrow keys go from cell to cell."""
    small.settle(**{**START, "model": "google/gemma-3-12b-it"})
    cells = small.page.locator("button[name=layer]")
    assert cells.count() == 48
    cells.first.focus()
    first = small.page.locator("main").inner_text()
    small.page.keyboard.press("ArrowRight")
    small.page.wait_for_function("() => document.activeElement === document.querySelectorAll('button[name=layer]')[1]")
    small.page.wait_for_function("(first) => document.querySelector('main').innerText !== first", arg=first)


def test_the_cache_alone_or_all(small: Watched) -> None:
    """The chart shows the cache, or everything on the GPU."""
    small.settle(**START)
    radios = small.page.locator("input[name=lengths-shown]")
    assert radios.count() == 2
    before = small.page.locator("main").inner_text()
    radios.nth(1).check()
    small.frame()

    assert radios.nth(1).is_checked()
    assert small.page.locator("main").inner_text() != before


def test_a_line_can_be_hidden(small: Watched) -> None:
    """The legend has a button for each model, which says whether its line is drawn."""
    small.settle(**START)
    entry = small.page.locator("button[name=line]").last
    before = entry.get_attribute("aria-pressed")
    entry.click()
    small.frame()
    after = entry.get_attribute("aria-pressed")
    entry.click()

    assert {before, after} == {"true", "false"}


def test_tables_behind_charts(small: Watched) -> None:
    """Every chart has its numbers as a table, which opens with the keyboard and has rows and a caption."""
    small.settle(**{**START, "count": 1, "tp": 1})
    small.run("() => document.querySelectorAll('details').forEach((table) => { table.open = false; })")
    summaries = small.page.locator("summary:visible")
    assert summaries.count() >= 6
    for number in range(summaries.count()):
        summaries.nth(number).press("Enter")
        inside = summaries.nth(number).locator("xpath=..")
        # What an engine refuses, and why, is a list.
        inside.locator("tbody tr, li").first.wait_for(state="attached")
        assert inside.locator("caption").count() == inside.locator("table").count()


def test_the_console_sees_what_the_page_shows(small: Watched) -> None:
    """``kvplan.answer()`` has the numbers of the page."""
    small.set(**START)
    answer = small.run("() => kvplan.answer()")
    small.run("() => document.querySelectorAll('details').forEach((table) => { table.open = true; })")
    small.frame()

    assert f"{answer['per_gpu']['cache']:,}" in small.answer()
    assert f"{answer['fit']['needed_bytes']:,}" in small.answer()
    assert json.dumps(answer)

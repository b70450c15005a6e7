"""A draft that an engine option names is read like the model itself: from the same places, with the same rights, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan, recommend, sweep
from hwcalc.cli import main
from hwcalc.engines import ENGINES, find_engine
from hwcalc.errors import ModelNotFoundError, UsageError
from tests.hub.repositories import MODEL
from tests.hub.server import Hub

QWEN = "Qwen/Qwen3-8B"


@pytest.mark.parametrize("method", ["draft", "eagle"])
def test_it_is_read_with_the_token_and_from_the_endpoint_of_the_caller(
    hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A gated draft on a Hub of the caller's own."""
    loopback.add("org/draft", MODEL, token="hf_secret")
    monkeypatch.delenv("HF_ENDPOINT")
    access = {"token": "hf_secret", "endpoint": loopback.address}
    options = {"speculative": f"{method}:org/draft:3"}
    made = plan(QWEN, seq=4096, gpu="h100", engine="vllm", engine_options=options, **access)  # type: ignore[arg-type]

    assert {asked.token for asked in loopback.asked} == {"Bearer hf_secret"}
    assert made.fit is not None
    assert made.fit.budget is not None
    assert "draft weights" in {part.name for part in made.fit.budget.parts}
    # Two layers of the draft lie in the pool besides.
    assert sum(group.count for group in made.cache.groups) == 36 + 2
    assert made.request.draft is None


@pytest.mark.parametrize("how", ["option", "HF_HUB_OFFLINE"])
def test_offline_is_offline(
    hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """Nobody is asked for a draft either: exit status 3, as for a model."""
    loopback.add("org/draft", MODEL)
    if how != "option":
        monkeypatch.setenv(how, "1")
    options = {"speculative": "eagle:org/draft"}
    for planned in (plan, recommend):
        with pytest.raises(ModelNotFoundError, match="org/draft"):
            planned(QWEN, seq=4096, engine="vllm", engine_options=options, offline=how == "option")
    words = ["plan", QWEN, "--seq", "4k", "--engine", "vllm", "--engine-option", "speculative=eagle:org/draft"]

    assert main([*words, *(["--offline"] if how == "option" else [])]) == 3
    assert "org/draft" in capsys.readouterr().err
    assert loopback.asked == []


def test_no_two_drafts(hub: Path, loopback: Hub) -> None:
    """The option's draft is not even looked for where ``--draft`` names one."""
    options = {"speculative": "draft:org/draft"}
    with pytest.raises(UsageError, match="both name a draft"):
        plan(QWEN, seq=4096, engine="vllm", draft="Qwen/Qwen3-4B", engine_options=options)
    assert loopback.asked == []


def test_which_options_name_a_model() -> None:
    """Those of vLLM that draft with one; other engines have none."""
    named = find_engine("vllm")[0].requests.draft_named

    assert named({"speculative": "eagle:org/draft:5"}) == named({"speculative": "draft:org/draft"}) == "org/draft"
    assert named({"speculative": "draft:C:\\models\\draft"}) == "C:\\models\\draft"
    assert {named({"speculative": value}) for value in ("ngram:3", "mtp:1", "eagle", "eagle:", "magic:org/draft")} == {None}
    assert {find_engine(name)[0].requests.draft_named({}) for name in ENGINES} == {None}


@pytest.mark.parametrize("given", [{"draft": "org/draft"}, {"engine_options": {"speculative": "draft:org/draft"}}], ids=str)
def test_a_sweep_reads_its_draft_once(hub: Path, loopback: Hub, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    """With the rights of the caller, whatever the number of points; the rows are those of the plans."""
    from hwcalc.library import load as loading

    loopback.add("org/draft", MODEL, token="hf_secret")
    monkeypatch.delenv("HF_ENDPOINT")
    read = []
    resolve = loading.load

    def counted(model: Any, *words: Any, **more: Any) -> Any:
        read.append(model)
        return resolve(model, *words, **more)

    for place in ("hwcalc.library.plan.load", "hwcalc.sweep.rows.load"):
        monkeypatch.setattr(place, counted)
    access: dict[str, Any] = {"token": "hf_secret", "endpoint": loopback.address}
    rows = list(sweep(QWEN, seq="1k,2k,4k,8k", batch="1,2", engine="vllm", gpu="h100", **given, **access))

    assert read.count("org/draft") == 1
    assert len(rows) == 8
    assert rows[2].cache_total_bytes == plan(QWEN, seq=2048, engine="vllm", gpu="h100", **given, **access).cache.total_bytes


@pytest.mark.parametrize("words", [["--draft", "org/none"], ["--engine-option", "speculative=draft:org/none"]], ids=str)
@pytest.mark.parametrize("command", ["plan", "sweep", "compare"])
def test_a_draft_that_does_not_exist(
    hub: Path, loopback: Hub, capsys: pytest.CaptureFixture[str], command: str, words: list[str]
) -> None:
    """One plain error, and no row."""
    status = main([command, QWEN, "--seq", "4k", "--engine", "vllm", "--offline", *words])
    out, err = capsys.readouterr()

    assert (status, out) == (3, "")
    assert err.startswith("kvplan: ")
    assert "org/none" in err

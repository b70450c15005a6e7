"""What a person with one card reads where a part of the model lies in host memory: how much, what it costs, and what to do first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hwcalc import compare, fit, plan
from hwcalc.report.compare import comparison_text
from hwcalc.report.fitting import fit_text
from hwcalc.report.verdict import fit_lines
from hwcalc.report.view import View
from tests.hwcalc.command import Capture
from tests.hwcalc.command import run as command

CARD = "rtx-4060-ti-16gb"


def _speed(**changes: Any) -> str:
    given: dict[str, Any] = {"gpu": CARD, "weights": "q8_0"} | changes
    lines = dict(fit_lines(plan("Qwen/Qwen3-14B", engine="llamacpp", seq=16384, **given)))
    return lines["speed"]


def test_a_comparison_says_how_many_layers_lie_on_the_card() -> None:
    """Two files that both fit are not the same if one of them leaves layers to the host."""
    both = compare("Qwen/Qwen3-14B", engine="llamacpp", weights="q8_0,q4_k_m", gpu=CARD, seq=16384)
    text = comparison_text(both, View(width=160))
    assert "layers on GPU" in text
    assert "35 of 41" in text
    assert "41 of 41" in text
    split, whole = both.variants
    assert (split.gpu_layers, split.all_layers, whole.host_bytes) == (35, 41, 0)
    assert split.decode_tokens_per_s_bound is not None
    assert whole.decode_tokens_per_s_bound is not None
    assert split.decode_tokens_per_s_bound < whole.decode_tokens_per_s_bound


def test_a_comparison_of_other_engines_has_no_such_columns() -> None:
    """An engine that splits nothing needs none."""
    both = compare("Qwen/Qwen3-14B", engine="vllm", dtype="bf16,fp8", gpu="l40s", seq=16384)
    assert "layers on GPU" not in comparison_text(both, View(width=160))


def test_the_speed_says_what_host_memory_costs() -> None:
    """Where all is on the card, its own memory bounds the speed."""
    assert "of the time for what is in host memory" in _speed()
    assert "bound by memory bandwidth" in _speed(weights="q4_k_m")


def test_one_memory_costs_no_more_on_the_host() -> None:
    """A Mac's GPU and its host read the same memory."""
    assert "host memory" not in _speed(gpu="apple-m4-16gb", weights="q6_k")


def test_what_costs_no_money_comes_first() -> None:
    """Of a model in 16 bits that does not fit, nobody buys four cards before taking the file that everybody runs."""
    tries = plan("google/gemma-3-12b-it", engine="llamacpp", seq=32768, gpu=CARD).fit.suggestions  # type: ignore[union-attr]
    assert "--weights q" in tries[0].command
    assert "--gpus" not in tries[0].command


def test_where_all_layers_were_asked_for_the_host_comes_before_another_card() -> None:
    """llama.cpp leaves layers to the host by itself, if it is let."""
    asked = {"n_gpu_layers": "99"}
    dense = plan(
        "meta-llama/Llama-3.1-8B", engine="llamacpp", weights="q4_k_m", seq=131072, gpu="rtx-3060-12gb", engine_options=asked
    )
    assert dense.fit is not None
    places = [place for place, one in enumerate(dense.fit.suggestions) if "n_gpu_layers=auto" in one.command]
    cards = [place for place, one in enumerate(dense.fit.suggestions) if "--gpus" in one.command]
    assert places
    assert places[0] < cards[0]


def test_a_context_too_short_to_use_is_no_advice() -> None:
    """A smaller file with 512 tokens helps nobody."""
    tries = plan("google/gemma-3-27b-it", engine="llamacpp", weights="q4_k_m", seq=4096, gpu=CARD).fit.suggestions  # type: ignore[union-attr]
    assert tries
    assert not any("--seq 512" in one.command for one in tries)


def test_experts_on_the_host_are_no_whole_model() -> None:
    """All layers of gpt-oss-120b are on a card of 16 GB only without most of their experts; a narrow terminal says so too."""
    found = fit("gpt-oss-120b", gpu=CARD, seq=8192)
    (row,) = found.models
    assert row.gpu_layers == row.all_layers
    assert row.host_experts
    assert not row.whole
    for width in (160, 80):
        text = " ".join(fit_text(found, View(width=width)).split())
        assert "those of N layers are in host memory" in text
        assert "fits" in text.partition("openai/")[0]
    assert not fit("gpt-oss-120b", gpu=CARD, seq=8192, only_fits=True).models


@pytest.mark.parametrize("lines", [24, 50])
@pytest.mark.parametrize(
    "words", [("--gpu", "rtx-4070-12gb"), ("--gpu", "h100", "--seq", "32k"), ("--gpu", "rtx-4090", "--ttft", "2s")]
)
def test_a_screen_holds_the_best_models(
    words: tuple[str, ...], lines: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The first are not gone by, and with them stands how to see the others."""
    monkeypatch.setenv("COLUMNS", "80")
    piped = command(capsys, "fit", *words, "--json")[1]
    monkeypatch.setattr("hwcalc.cli.compare.on_terminal", lambda: True)
    monkeypatch.setattr("hwcalc.cli.compare.output_lines", lambda: lines)
    _, shown, _ = command(capsys, "fit", *words)

    best = [row["id"].rpartition("/")[2] for row in json.loads(piped)["models"]]
    assert shown.count("\n") < lines
    assert all(name in shown for name in best[: lines - 17])
    assert "what is left out: --limit 30" in shown
    assert "Order" in command(capsys, "fit", *words, "--limit", "30")[1]

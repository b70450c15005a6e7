"""What helps a plan for a machine of one's own: the engine of ``fit``, and more memory of the host. Each offer is followed."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, Final

import pytest

from hwcalc.engines import AT_HOME
from hwcalc.errors import UsageError
from hwcalc.library.compare import compare
from hwcalc.library.fit import fit
from hwcalc.library.plan import plan
from hwcalc.planner.asked import engines_with_host
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.gpus import usual_host_gb
from hwcalc.quantization.planned import bits_of
from hwcalc.report.compare import comparison_text
from hwcalc.report.view import View
from hwcalc.units import few_digits
from tests.effort import sample
from tests.hwcalc.command import Capture, read_plan, run

MODELS: Final = ("openai/gpt-oss-20b", "openai/gpt-oss-120b", "Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it")
CARDS: Final = ("rtx-4070", "rtx-4060-ti-16gb", "rtx-3090", "rx-7900-xtx", "m3-pro-18gb", "m4-24gb")


def followed(command: str) -> Plan:
    """The plan of an offered line."""
    model, options = read_plan(command)
    return plan(model, **options)


def is_as_said(effect: str, planned: Plan) -> bool:
    """True if the plan has its layers where the effect says, decodes as fast, and fits as surely."""
    assert planned.fit is not None
    speed = planned.speed
    decodes = "" if speed is None or speed.tokens_per_s_each is None else few_digits(speed.tokens_per_s_each.expected or 0)
    sure = planned.fit.verdict is (Verdict.PROBABLY if "probably fits" in effect else Verdict.FITS)
    return sure and planned.places in effect and (not decodes or f"; {decodes} tokens/s" in effect)


@pytest.mark.parametrize(("model", "gpu", "seq"), sample([*product(MODELS, CARDS, (8192, 32768))], 20))
def test_a_plan_without_an_engine_offers_what_fit_lists(model: str, gpu: str, seq: int) -> None:
    """Where the formulas do not surely fit, the first offer is the row of fit, in its format, with its verdict and speed."""
    bare = plan(model, gpu=gpu, seq=seq, offline=True)
    assert bare.fit is not None
    rows = [row for row in fit(model, gpu=gpu, seq=seq, every=True, limit=0).models if model in (row.id, *row.also)]
    offered = [one for one in bare.fit.suggestions if one.settings.get("engine") is not None]

    if bare.fit.verdict is Verdict.FITS:
        assert not offered
        return
    # Three bits and fewer are the last resort, as among other changes.
    few = bool(offered) and (bits_of(offered[0].settings["weights"] or "") or 0) < 4
    assert not offered or offered == [bare.fit.suggestions[-1 if few else 0]]
    if rows:
        (row,), (one,) = rows, offered
        if row.verdict is Verdict.FITS:
            assert one.settings == {"engine": AT_HOME, "weights": row.weights}
    if offered:
        planned = followed(offered[0].command)
        assert planned.request.engine == AT_HOME
        assert (planned.request.seq, planned.request.batch) == (seq, 1)
        assert is_as_said(offered[0].effect, planned)


def test_a_format_of_gguf_files_is_offered_the_engine_that_reads_them() -> None:
    """With the format that was named; and so is a length that nobody named, which the engine would shorten."""
    named = plan("Qwen/Qwen3-14B", gpu="rtx-4070", weights="q4_k_m", seq="16k", offline=True)
    whole = plan("Qwen/Qwen3-14B", gpu="rtx-4070", offline=True)
    assert named.fit is not None
    assert whole.fit is not None

    assert named.fit.suggestions[0].settings == {"engine": AT_HOME}
    assert followed(whole.fit.suggestions[0].command).request.seq == whole.request.seq


@pytest.mark.parametrize(
    "options", [{"engine": "reference"}, {"weights": "awq"}, {"dtype": "fp8"}, {"gpu": "l4"}, {"draft": "Qwen/Qwen3-0.6B"}]
)
def test_no_other_engine_is_offered_to_who_asked_for_more(options: dict[str, Any]) -> None:
    """Who names an engine gets that one, a format that the other engine does not read is kept, and a data center runs servers."""
    bare = plan("Qwen/Qwen3-32B", **{"gpu": "rtx-4070", "seq": 16384, "offline": True, **options})
    assert bare.fit is not None

    assert all("engine" not in one.settings for one in bare.fit.suggestions)


@pytest.mark.parametrize("engine", engines_with_host())
@pytest.mark.parametrize(
    ("model", "gpu", "ram"),
    [
        ("openai/gpt-oss-120b", "rtx-4070", None),
        ("openai/gpt-oss-120b", "rtx-4070", "40"),
        ("Qwen/Qwen3-235B-A22B", "rtx-4090", "64"),
        ("Qwen/Qwen3-32B", "rtx-4070", None),
    ],
)
def test_the_least_usual_memory_is_offered(engine: str, model: str, gpu: str, ram: str | None) -> None:
    """It surely fits with it, and with the next smaller size that is sold it does not."""
    asked: dict[str, Any] = {"engine": engine, "gpu": gpu, "seq": "8k", "weights": "q4_k_m", "offline": True}
    planned = plan(model, ram=ram, **asked)
    assert planned.fit is not None
    if planned.fit.verdict is Verdict.FITS:
        assert "ram" not in {name for one in planned.fit.suggestions for name in one.settings}
        return
    first = planned.fit.suggestions[0]
    size = int(first.settings["ram"] or 0)
    smaller = max((other for other in usual_host_gb() if other < size), default=1)

    assert size in usual_host_gb()
    assert is_as_said(first.effect, followed(first.command))
    less = plan(model, ram=str(smaller), **asked).fit
    assert less is not None
    assert less.verdict is not Verdict.FITS
    if ram is not None:
        assert size > int(ram)


def test_a_given_memory_is_no_guess(capsys: Capture) -> None:
    """Of a memory that is given, nobody says what is likely; of one that is not, nobody says that it is there."""
    line = ["openai/gpt-oss-120b", "--seq", "16k", "--gpu", "rtx-4070", "--engine", "llamacpp", "--offline"]
    _, given, _ = run(capsys, *line, "--ram", "52")
    _, guessed, _ = run(capsys, *line)

    assert "likely" not in given
    assert "more than the 52GiB of the host hold" in given
    assert "more than the host has, or is likely to have" in guessed
    for out in (given, guessed):
        assert re.search(r"try +kvplan openai/gpt-oss-120b .*--ram 64( --offline)?\n", out)


def test_a_machine_with_one_memory_is_offered_no_other() -> None:
    """A Mac cannot take more."""
    for weights in (None, "q8_0"):
        planned = plan("Qwen/Qwen3-32B", gpu="m3-pro-18gb", engine=AT_HOME, weights=weights, seq=8192, offline=True)
        bare = plan("Qwen/Qwen3-32B", gpu="m3-pro-18gb", weights=weights, seq=8192, offline=True)
        assert planned.fit is not None
        assert bare.fit is not None
        assert all("ram" not in one.settings for one in (*planned.fit.suggestions, *bare.fit.suggestions))


@pytest.mark.parametrize("gpu", ["rtx-4070", "rtx-4060", "rtx-4090", "m3-pro-18gb"])
def test_the_foot_of_fit_counts_what_more_memory_runs(gpu: str, capsys: Capture) -> None:
    """As many as with the option that it names; nothing is said where that runs no more, or the host has no memory of its own."""
    plain = fit(gpu=gpu, seq="16k")
    (_, out, _), said = (
        run(capsys, "fit", "--gpu", gpu, "--seq", "16k"),
        [one for one in plain.notes if one.code == "more-memory"],
    )
    if gpu == "m3-pro-18gb":
        assert not said
        assert "--ram" not in out
        return
    richer = fit(gpu=gpu, seq="16k", ram="64")
    more = plain.too_large - richer.too_large

    assert [one.message for one in said] == (
        []
        if more <= 0
        else [f"{more} of those that do not fit {'runs' if more == 1 else 'run'} on a machine with 64 GB of memory: --ram 64"]
    )
    assert not [one for one in richer.notes if one.code == "more-memory"]
    assert all(one.message in " ".join(out.split()) for one in said)


def test_a_comparison_takes_the_memory_of_the_host_where_it_is_of_use() -> None:
    """Each row is the plan of its command, with the memory or without; where none has a use for it, that is said."""
    options: dict[str, Any] = {"gpu": "rtx-4070,m3-pro-18gb", "seq": "16k", "ram": "64", "weights": "q4_k_m"}
    comparison = compare("Qwen/Qwen3-32B", engine="llamacpp,ollama,reference", **options)

    assert len(comparison.variants) == 6
    for one in comparison.variants:
        model, given = read_plan(one.command or "")
        planned = plan(model, **given)
        assert planned.fit is not None
        assert (one.verdict, one.max_seq) == (planned.fit.verdict, planned.fit.max_seq)
        assert ("ram" in given and given["ram"] is not None) == (one.engine in engines_with_host() and one.gpu == "rtx-4070")
    with pytest.raises(UsageError, match="on the GPU alone"):
        compare("Qwen/Qwen3-32B", engine="vllm,reference", **options)


def test_every_engine_side_by_side_takes_it_too(capsys: Capture) -> None:
    """The engines that leave a part to the host have it there."""
    _, out, said = run(capsys, "Qwen/Qwen3-14B", "--engine", "all", "--gpu", "rtx-4070", "--seq", "16k", "--ram", "64")

    assert not said
    assert re.search(r"^llamacpp +fits ", out, re.MULTILINE)
    assert re.search(r"^vllm +does not fit ", out, re.MULTILINE)


def test_what_is_only_likely_is_not_zero() -> None:
    """Without a word on the host, a plan that probably fits holds what is expected."""
    comparison = compare("Qwen/Qwen3-14B", engine="llamacpp", gpu="rtx-4070,m3-max-40c-48gb", seq="16k")
    first = comparison.variants[0]
    text = comparison_text(comparison, View(format="table", width=100))

    assert first.verdict is Verdict.PROBABLY
    assert first.max_seq == 0
    assert first.expected_max_seq
    assert f"~{first.expected_max_seq:,}" in text
    assert "~: expected, where none is sure" in text

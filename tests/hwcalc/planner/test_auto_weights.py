"""``--weights auto``: the best format that fits, and what is said about it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from hwcalc import load_model, plan, recommend, sweep
from hwcalc.errors import UsageError
from hwcalc.planner.recommend_result import Recommendation
from hwcalc.planner.result import Plan
from hwcalc.planner.verdict import Verdict
from hwcalc.quantization.gguf import PUBLISHED_MIXES, published_formats
from tests.hwcalc.command import Capture, run
from tests.hwcalc.sources.gguf import given

QWEN = "Qwen/Qwen3-8B"
CARDS = ("rtx-3050-6gb", "rtx-4060", "rtx-3060-12gb", "rtx-4060-ti-16gb", "rtx-4090")


def chosen(model: str, gpu: str, seq: int | str, engine: str = "reference") -> Plan:
    """The plan in the format that was chosen."""
    return plan(model, gpu=gpu, seq=seq, weights="auto", engine=engine)


@pytest.mark.parametrize("gpu", CARDS)
def test_the_largest_that_surely_fits(gpu: str) -> None:
    """By every plan of a format that is named: the chosen one fits, and none that takes more surely does."""
    auto = chosen(QWEN, gpu, "16k")
    named = {name: plan(QWEN, gpu=gpu, seq="16k", weights=name) for name in PUBLISHED_MIXES}
    sizes = {name: one.memory.weights.bytes or 0 for name, one in named.items()}
    sure = [name for name, one in named.items() if one.fit is not None and one.fit.verdict is Verdict.FITS]

    assert auto.request.weights == max(sure or [min(sizes, key=lambda name: sizes[name])], key=lambda name: sizes[name])
    assert auto.memory == named[auto.request.weights].memory


def test_more_context_never_takes_a_larger_format() -> None:
    """Nor does a smaller card."""
    for gpu in CARDS:
        sizes = [chosen(QWEN, gpu, seq).memory.weights.bytes or 0 for seq in ("1k", "4k", "16k", "40960")]
        assert all(longer <= shorter for shorter, longer in pairwise(sizes))
    by_card = [chosen(QWEN, gpu, "16k").memory.weights.bytes or 0 for gpu in CARDS]
    assert all(smaller <= larger for smaller, larger in pairwise(by_card))


def test_it_says_what_it_took() -> None:
    """The format and what the next larger one lacks; changes that are offered keep the format."""
    auto = chosen("Qwen/Qwen3-32B", "m4-24gb", "16k")
    note = next(note.message for note in auto.notes if note.code == "auto-weights")
    assert auto.fit is not None

    assert "iq3_xxs" in note
    assert "GiB too much" in note
    assert auto.fit.suggestions
    assert all("--weights auto" not in one.command for one in auto.fit.suggestions)

    fits = chosen(QWEN, "rtx-3060-12gb", "16k")
    note = next(note.message for note in fits.notes if note.code == "auto-weights")
    assert "q6_k" in note
    assert "q8_0 lacks" in note


@pytest.mark.parametrize(
    ("model", "formats"),
    [
        # ggml-org publishes these two with the experts as they are; 2,880 columns leave no smaller mix.
        ("openai/gpt-oss-20b", ("mxfp4_moe",)),
        ("openai/gpt-oss-120b", ("mxfp4_moe",)),
        ("deepseek-ai/DeepSeek-V4-Flash", ("mxfp4_moe", "q3_k_l", "q3_k_m", "iq3_m", "q3_k_s", "iq3_xxs")),
        # A copy in NVFP4: files are made of the model itself.
        ("nvidia/Qwen3-235B-A22B-NVFP4", PUBLISHED_MIXES),
        (QWEN, PUBLISHED_MIXES),
        ("deepseek-ai/DeepSeek-V3", PUBLISHED_MIXES),
    ],
)
def test_weights_in_four_bits_stay_as_they_are(model: str, formats: tuple[str | None, ...]) -> None:
    """What the checkpoint has decides: to quantise four bits again for as many or more loses and gains nothing."""
    assert published_formats(load_model(model, offline=True)) == formats


@pytest.mark.parametrize("engine", ["llamacpp", "reference"])
def test_the_published_file_of_gpt_oss(engine: str) -> None:
    """It is the one to take, though a card has room for a mix of more bits."""
    for gpu in ("rtx-4060-ti", "rtx-pro-6000-ws"):
        auto = chosen("openai/gpt-oss-20b", gpu, "16k", engine=engine)

        assert auto.request.weights == "mxfp4_moe"
        assert auto.fit is not None
        assert auto.fit.verdict is Verdict.FITS


def test_a_file_stays_as_it_is(tmp_path: Path) -> None:
    """Of a GGUF file none is made in more bits, and the note says what the file is."""
    path = tmp_path / "small.gguf"
    path.write_bytes(given.gguf_bytes({**given.KEYS, "general.file_type": 15}))
    auto = plan(str(path), gpu="rtx-3060", seq=512, weights="auto", engine="llamacpp")

    assert auto.request.weights is None
    assert "q4_k_m, as the file is" in next(note.message for note in auto.notes if note.code == "auto-weights")


def test_formats_that_vllm_reads() -> None:
    """As published, then eight bits, then four."""
    assert chosen(QWEN, "l4", "4k", engine="vllm").request.weights is None
    assert chosen(QWEN, "rtx-4060-ti", "16k", engine="vllm").request.weights == "fp8"
    assert chosen(QWEN, "rtx-4060", "2k", engine="vllm").request.weights == "awq"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "none is named"),
        ({"kv_memory": "4GiB"}, "kv_memory gives"),
        ({"kv_memory": "4GiB", "gpu": "l4"}, "kv_memory gives"),
    ],
)
def test_it_needs_a_gpu(options: dict[str, str], says: str) -> None:
    """The error says what to type."""
    with pytest.raises(UsageError, match=says) as caught:
        plan(QWEN, weights="auto", seq=1024, **options)  # type: ignore[arg-type]

    assert "--weights q4_k_m" in caught.value.hint


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_a_recommendation_takes_the_best_format_of_each(engine: str) -> None:
    """That of the fewest GPUs which hold it in any: no format that is named needs fewer, and none before it does with as many."""
    names = ("rtx-4070", "l4", "h100", "mi300x")
    formats = (None, "fp8", "awq") if engine == "vllm" else ("q8_0", "q6_k", "q4_k_m")

    def listed(weights: str | None) -> Recommendation:
        return recommend(QWEN, gpu=names, weights=weights, seq="16k", batch=4, engine=engine, strict=True, limit=0, offline=True)

    named = {name: listed(name).offers for name in formats}
    fewest = {name: {offer.gpu: offer.gpus for offer in offers} for name, offers in named.items()}
    auto = listed("auto")

    assert auto.weights == "auto"
    assert len(auto.offers) == 4
    for offer in auto.offers:
        assert offer.gpus == min(each[offer.gpu] for each in fewest.values() if offer.gpu in each)
        first = next(name for name in formats if fewest[name].get(offer.gpu) == offer.gpus)
        if engine == "vllm":
            assert offer.weights == first
        else:
            sizes = {name: plan(QWEN, weights=name, seq=1024).memory.weights.bytes or 0 for name in (first, offer.weights)}
            assert sizes[offer.weights] >= sizes[first]


def test_commands_that_plan_many_gpus_refuse_it(capsys: Capture) -> None:
    """A sweep needs one format."""
    with pytest.raises(UsageError, match="more than one GPU"):
        sweep(QWEN, weights="auto", seq=1024)

    status, _, error = run(capsys, "sweep", QWEN, "--weights", "auto")
    assert status == 2
    assert "--weights q4_k_m" in error

"""The numbers of a picture are those of plans."""

from __future__ import annotations

from typing import Any

import pytest

import hwcalc
from hwcalc.errors import UsageError
from hwcalc.library.layer_bytes import layer_bytes
from hwcalc.plot.build import MOST_MODELS

GEMMA = "google/gemma-3-12b-it"
QWEN = "Qwen/Qwen3-8B"


def some(xs: tuple[int, ...]) -> tuple[int, ...]:
    """A few places of a line, both ends among them."""
    return (*range(0, len(xs), max(1, len(xs) // 6)), len(xs) - 1)


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm", "llamacpp"])
def test_memory_is_that_of_the_plan(engine: str) -> None:
    """With a GPU: everything on the fullest GPU with both ends, the cache alone, and the length to which it fits."""
    asked: dict[str, Any] = {"engine": engine, "gpu": "l4", "weights": "fp8", "batch": 2} | (
        {"weights": "q8_0"} if engine == "llamacpp" else {}
    )
    chart = hwcalc.plot(QWEN, **asked).chart
    (total,) = chart.lines
    assert [area.label for area in total.areas][-1] == "cache"

    for place in some(total.xs):
        planned = hwcalc.plan(QWEN, seq=total.xs[place], **asked)
        assert planned.fit is not None
        assert (total.low[place], total.ys[place], total.high[place]) == (
            planned.fit.needed_low_bytes,
            planned.fit.needed_bytes,
            planned.fit.needed_high_bytes,
        )
        assert total.areas[-1].ys[place] == planned.cache.per_gpu_bytes
        assert sum(area.ys[place] for area in total.areas) == total.ys[place]
        assert [level.bytes for level in chart.levels] == [planned.fit.usable_bytes]
        if total.mark is not None:
            assert total.mark.x == planned.fit.expected_max_seq
    assert (total.mark is not None) is (engine in ("transformers", "vllm"))


def test_the_cache_of_several_models() -> None:
    """Without a GPU: the bytes of all sequences, to each model's own maximum, with a point where a window is full."""
    gemma, qwen = hwcalc.plot([GEMMA, QWEN], batch=3).chart.lines

    assert {1_024, 1_025} <= set(gemma.xs)
    assert (gemma.xs[-1], qwen.xs[-1]) == (131_072, 40_960)
    for line, model in ((gemma, GEMMA), (qwen, QWEN)):
        for place in some(line.xs):
            assert line.ys[place] == hwcalc.plan(model, seq=line.xs[place], batch=3).cache.total_bytes


@pytest.mark.parametrize(
    ("seq", "ends"),
    [("1k..100k", (1_024, 102_400)), ("4k,16k", (4_096, 16_384)), ([2_000, "8k"], (2_000, 8_192)), ("8k", (32, 8_192))],
)
def test_lengths_have_two_ends(seq: Any, ends: tuple[int, int]) -> None:
    """A range or a list begins at its least length; one length is the end."""
    (line,) = hwcalc.plot(GEMMA, seq=seq).chart.lines

    assert (line.xs[0], line.xs[-1]) == ends


def test_the_frontier_is_that_of_the_plan() -> None:
    """The most sequences, for certain and expected; the line ends where not one fits."""
    (line,) = hwcalc.plot("Qwen/Qwen3-32B", kind="frontier", engine="vllm", gpu="h100").chart.lines

    assert line.xs[-1] < 40_960
    for place in some(line.xs):
        fit = hwcalc.plan("Qwen/Qwen3-32B", seq=line.xs[place], engine="vllm", gpu="h100").fit
        assert fit is not None
        assert (line.ys[place], line.low[place]) == (fit.expected_max_batch, fit.max_batch)


@pytest.mark.parametrize("model", [QWEN, GEMMA, "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.2"])
@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_layers_add_up(model: str, engine: str) -> None:
    """The layers of a profile and what lies beside them are the whole cache; every layer is there once."""
    planned = hwcalc.plan(model, seq=4_096, engine=engine)
    layers = layer_bytes(planned)
    beside = sum(tensor.bytes for tensor in planned.cache.tensors if not tensor.layers)

    assert sum(layer.bytes for layer in layers) + beside == planned.cache.total_bytes
    assert [layer.number for layer in layers] == list(range(len(layers)))
    assert hwcalc.plot(model, kind="layers", seq=4_096, engine=engine).chart.profiles[0].layers == layers


def test_a_given_budget_is_the_line() -> None:
    """With ``kv_memory`` the picture is of the cache alone."""
    chart = hwcalc.plot(QWEN, kv_memory="2GiB").chart

    assert [line.areas for line in chart.lines] == [()]
    assert [level.bytes for level in chart.levels] == [2 << 30]
    assert chart.lines[0].mark is not None
    assert chart.lines[0].mark.x == (2 << 30) // 147_456


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "pie"}, "kind='pie' is not known"),
        ({"scale": "cubic"}, "scale='cubic' is not known"),
        ({"seq": "1k..x"}, "seq is not a number"),
        ({"kind": "frontier"}, "needs the memory of a GPU"),
        ({"weights": "auto"}, "auto"),
        ({"models": ["Qwen/*"]}, f"at most {MOST_MODELS} models"),
        ({"nothing": 1}, "takes no"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    """What cannot be drawn is an error that says what can."""
    with pytest.raises(UsageError, match=words):
        hwcalc.plot(**({"models": QWEN} | options))


def test_a_picture_has_the_layout_of_what_fits() -> None:
    """No layout holds 50 sequences of 128k tokens; the picture is laid out as the plan of the longest length that fits."""
    asked: dict[str, Any] = {"engine": "vllm", "gpu": "8xh200", "batch": 50}
    chart = hwcalc.plot("deepseek-ai/DeepSeek-V3", seq="1k..128k", **asked).chart
    fit = hwcalc.plan("deepseek-ai/DeepSeek-V3", seq="16k", **asked).fit

    assert "dp 8" in chart.caption
    assert fit is not None
    assert chart.lines[0].mark is not None
    assert chart.lines[0].mark.x == fit.expected_max_seq

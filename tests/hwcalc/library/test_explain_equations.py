"""The printed equations of a cache give its bytes in every engine, and say how blocks are counted."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import explain, plan
from hwcalc.engines import ENGINES
from hwcalc.engines.steps import value_of
from hwcalc.engines.vllm.specs import ChunkSpec, CrossSpec, FullSpec, Limits, StateSpec, WindowSpec
from hwcalc.errors import KvplanError
from hwcalc.library.explained import names_in, numbers_in
from hwcalc.profiles.glossary import meaning_of
from hwcalc.text import TIMES
from tests.hwcalc.command import Capture, run
from tests.hwcalc.library.test_explain import OLDER, check, value


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("engine", [*sorted(ENGINES), *OLDER])
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", {"tp": 4}),
        ("google/gemma-3-27b-it", {}),
        ("openai/gpt-oss-20b", {"tp": 2}),
        ("deepseek-ai/DeepSeek-V3", {"tp": 8}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"tp": 4}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"tp": 16}),
        ("openai/whisper-large-v3", {}),
        ("google/gemma-4-26B-A4B-it", {"tp": 2, "dp": 2}),
        ("deepseek-ai/DeepSeek-V3", {"tp": 8, "dcp": 8}),
        ("Qwen/Qwen2.5-7B-Instruct", {"dtype": "fp8", "pp": 2}),
    ],
)
def test_equations_of_the_cache(model: str, layout: dict[str, Any], engine: str, batch: int) -> None:
    """What is printed for a tensor gives its bytes, for one sequence and for several, in every engine and on several GPUs."""
    try:
        told = explain(model, seq=448 if "whisper" in model else 9_000, batch=batch, engine=engine, **layout)
    except KvplanError:
        return

    check(told)
    assert told.plan.cache.total_bytes == sum(tensor.bytes for kind in told.kinds for tensor in kind.tensors)


@pytest.mark.parametrize(
    "options", [{}, {"quant_backend": "hqq"}, {"quant_backend": "fp8"}, {"quant_backend": "quanto", "nbits": "2"}]
)
def test_equations_of_a_quantised_cache(options: dict[str, str]) -> None:
    """Numbers are packed in groups, with a scale and a shift for each."""
    told = explain("Qwen/Qwen3-8B", seq="8k", batch=3, engine="transformers", engine_options={"cache": "quantized", **options})

    check(told)


def test_blocks_say_how_they_are_counted(capsys: Capture) -> None:
    """A request holds the window and the batches in flight, 1,023 + 16,384 tokens, in blocks of 16, and one begun before them."""
    _, out, _ = run(
        capsys, "explain", "google/gemma-3-27b-it", "--seq", "32k", "--users", "4", "--engine", "vllm", "--gpu", "h100"
    )

    counted = f"ceil(min(1,024 - 1 + 2 {TIMES} 8,192, 32,768) / 16) + 1 = {-(-(1023 + 16384) // 16) + 1:,}"
    assert f"ceil(min(window - 1 + batches_in_flight {TIMES} batched_tokens, seq) / block_size) + 1 = {counted}" in out
    assert "blocks of a sequence: ceil(seq / block_size) = ceil(32,768 / 16) = 2,048" in out
    assert "int8" not in out
    assert "source: vllm\n" not in out


def test_every_rule_of_blocks_has_meanings() -> None:
    """Every spec of vLLM counts its blocks by symbols that are explained, and the count is its own."""
    limits = Limits(batches=2, batched_tokens=25, retained=3, dcp=2, encoder_tokens=1500)
    specs = (
        FullSpec(block_size=16, page=512),
        WindowSpec(block_size=16, page=512, limit=100),
        ChunkSpec(block_size=16, page=512, limit=100),
        CrossSpec(block_size=16, page=512),
        StateSpec(block_size=16, page=512, states=2),
        StateSpec(block_size=16, page=512, states=2, every=True),
    )
    for spec in specs:
        for length in (1, 100, 5000):
            told = spec.counted(length, limits)
            numbers = numbers_in(told.formula, {term.name: term.expected for term in told.terms})
            assert value(numbers) == told.expected == spec.blocks(length, limits)
            assert all(map(meaning_of, names_in(told.formula)))


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("Qwen/Qwen3-8B", {}),
        ("openai/gpt-oss-20b", {"tp": 2}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"tp": 4}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"tp": 4, "gpu": "b200-180gb"}),
    ],
)
def test_steps_give_what_the_engine_computes(model: str, layout: dict[str, Any], engine: str) -> None:
    """Where an engine computes a figure in an order of its own, the formula that is told of it gives the same."""
    for batch in (1, 64):
        try:
            planned = plan(model, seq="8k", batch=batch, engine=engine, **{"gpu": "h100", **layout})
        except KvplanError:
            continue
        steps = [] if planned.pool is None else list(planned.pool.steps)
        if planned.fit is not None and planned.fit.budget is not None:
            steps += [one for part in planned.fit.budget.parts for one in part.steps]
        for one in steps:
            given = value_of(one.formula, {term.name: term.expected for term in one.terms})
            assert given is not None, one
            # Bytes are whole.
            assert abs(given - one.expected) < 1, one

"""A plan in a format that the checkpoint has in as few bits says what it takes as published."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.planner.published import NO_SMALLER
from hwcalc.planner.result import Plan
from hwcalc.quantization.planned import bits_of
from hwcalc.report.exports import plan_markdown
from hwcalc.report.table import plan_table
from hwcalc.units import few_digits, human_bytes
from tests.hwcalc.command import Capture, run

GPT = "openai/gpt-oss-20b"
NEMOTRON = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
ROOM: dict[str, Any] = {"gpu": "rtx-pro-6000-ws", "seq": "16k", "offline": True}


def hints(planned: Plan) -> list[str]:
    """The sentences of the note."""
    return [note.message for note in planned.notes if note.code == NO_SMALLER]


@pytest.mark.parametrize(
    ("model", "engine", "weights"),
    [
        (GPT, "llamacpp", "q4_k_m"),
        (GPT, "ollama", "q4_k_m"),
        (GPT, "llamacpp", "q4_0"),
        (GPT, "vllm", "fp8"),
        ("openai/gpt-oss-120b", "ollama", "q4_k_m"),
        (NEMOTRON, "vllm", "fp8"),
    ],
)
def test_what_is_published_in_as_few_bits_is_told_with_its_own_numbers(model: str, engine: str, weights: str) -> None:
    """They are those of the plan without the option, whose weights have no more bits for the most part."""
    named, published = (plan(model, engine=engine, weights=form, **ROOM) for form in (weights, None))
    sums: dict[int, int] = {}
    for one in (form for part in published.memory.weights.parts for form in part.formats):
        sums[one.bits] = sums.get(one.bits, 0) + one.parameters
    (said,) = hints(named)
    assert published.memory.weights.bytes is not None
    assert named.memory.weights.bytes is not None
    assert published.speed is not None
    assert published.speed.tokens_per_s_each is not None

    assert max(sums, key=sums.__getitem__) <= (bits_of(weights) or 0)
    assert f"{human_bytes(published.memory.weights.bytes)} instead of {human_bytes(named.memory.weights.bytes)}" in said
    rate = re.search("([0-9.,]+) tokens/s instead", said)
    assert rate is None or rate[1] == few_digits(published.speed.tokens_per_s_each.expected or 0)
    assert ("less loss" in said) == (published.memory.weights.bytes > named.memory.weights.bytes)
    assert published.fit is not None
    assert published.fit.fits


@pytest.mark.parametrize(
    ("model", "engine", "weights"),
    [
        # Fewer bits than the checkpoint's; its own format; a format that people publish; weights of 16 bits; nothing gained.
        (GPT, "llamacpp", "q3_k_m"),
        (GPT, "llamacpp", "mxfp4_moe"),
        (NEMOTRON, "llamacpp", "q4_k_m"),
        ("Qwen/Qwen3-14B", "llamacpp", "q4_k_m"),
        ("Qwen/Qwen3-14B", "vllm", "fp8"),
        (GPT, "llamacpp", "q8_0"),
    ],
)
def test_who_gains_nothing_is_told_nothing(model: str, engine: str, weights: str) -> None:
    """Nor who takes what ``--weights auto`` chooses."""
    assert hints(plan(model, engine=engine, weights=weights, **ROOM)) == []
    assert hints(plan(model, engine=engine, weights="auto", **ROOM)) == []


def test_what_does_not_fit_as_published_is_not_told() -> None:
    """12.83 GiB of Ollama's own file are no help where 4 GB of the host are all there is beside a card of 8."""
    small: dict[str, Any] = {"engine": "ollama", "gpu": "rtx-4060-ti-8gb", "ram": "4GB", "seq": "4k", "offline": True}
    published = plan(GPT, **small)

    assert published.fit is not None
    assert not published.fit.fits
    assert hints(plan(GPT, weights="q4_k_m", **small)) == []


def test_the_hint_is_beside_the_answer_once(capsys: Capture) -> None:
    """On the first screen and not among the notes again; quiet has none, and a document has it among its notes."""
    planned = plan(GPT, engine="llamacpp", weights="q4_k_m", **ROOM)
    (said,) = hints(planned)
    small, whole = (plan_table(planned, width=200, detail=detail) for detail in ("screen", "full"))

    assert small.count(said) == whole.count(said) == 1
    assert f"  hint     {said}\n" in small
    assert said not in plan_table(planned, width=200, quiet=True)
    assert "Published mostly in mxfp4" in plan_markdown(planned)
    out = run(capsys, GPT, "--engine", "llamacpp", "--gpu", "rtx-4090", "--seq", "4k", "--weights", "q4_k_m", "--brief")[1]
    assert "  hint     Published mostly in mxfp4" in out

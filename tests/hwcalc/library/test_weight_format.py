"""What kvplan says of a format of weights: true for every format that it takes."""

from __future__ import annotations

import json

import pytest

from hwcalc.engines import DEFAULT, ENGINES
from hwcalc.errors import KvplanError
from hwcalc.library.plan import plan
from hwcalc.library.weight_format import weight_format
from hwcalc.quantization.planned import spellings, weight_formats
from hwcalc.report.weight_format import format_text
from tests.hwcalc.command import Capture, run


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        # README.md of llama.cpp's tools/quantize, "bits/weight" of the block; the OCP specification of MX formats; AWQ of groups of 128.
        ("q8_0", 8.5),
        ("q6_k", 6.56),
        ("q5_k_m", 5.5),
        ("q4_k_m", 4.5),
        ("iq4_xs", 4.25),
        ("iq2_xxs", 2.06),
        ("mxfp4_moe", 4.25),
        ("mxfp4", 4.25),
        ("awq", 4 + (16 + 4) / 128),
        ("bf16", 16),
        ("mlx_4bit", 4 + 32 / 64),
    ],
)
def test_the_bits_of_a_weight_have_their_scales(name: str, bits: float) -> None:
    """As the makers of the formats document them."""
    facts = weight_format(name)

    assert facts is not None
    assert facts.bits == pytest.approx(bits, abs=0.006)


@pytest.mark.parametrize("name", weight_formats())
def test_what_is_said_of_a_format_is_planned(name: str) -> None:
    """The example takes so many bytes, the engines that are named take ``--weights``, and no other one does."""
    facts = weight_format(name)

    assert facts is not None
    assert facts.name == name
    assert plan(facts.model, weights=name).memory.weights.bytes == facts.model_bytes
    for engine in ENGINES:
        if engine == DEFAULT:
            continue
        try:
            plan(facts.model, engine=engine, weights=name, seq=4096)
        except KvplanError:
            assert engine not in facts.engines
        else:
            assert engine in facts.engines
    for spelled in (name, *spellings(name), name.upper().replace("_", "-")):
        assert format_text(spelled, 80) == format_text(name, 80)
    said = format_text(name, 80)
    assert f"--weights {name}\n" in said
    assert all(len(line) <= 80 for line in said.splitlines())


@pytest.mark.parametrize("words", [["help", "q4_k_m"], ["help", "MXFP4_MOE"], ["dtypes", "mxfp4_moe"], ["dtypes", "iq4-xs"]])
def test_the_command_explains_a_format(words: list[str], capsys: Capture) -> None:
    """By help, and where the formats of a cache are listed."""
    status, out, _ = run(capsys, *words)

    assert status == 0
    assert out == format_text(words[1], 100)


def test_a_format_of_weights_is_told_from_one_of_the_cache(capsys: Capture) -> None:
    """In JSON, the one is in ``weights`` and the other in ``dtypes``."""
    found = json.loads(run(capsys, "dtypes", "q4_k", "--json")[1])
    cache = json.loads(run(capsys, "dtypes", "q8_0", "--json")[1])

    assert (found["dtypes"], found["weights"]) == ([], ["q4_k_m"])
    assert ([one["name"] for one in cache["dtypes"]], cache["weights"]) == (["q8_0"], [])

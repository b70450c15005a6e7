"""Checkpoints whose name says a quantised format that their config does not state: no weights, rather than twice too many."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc import load_model, plan
from hwcalc.profiles.catalog import list_models
from hwcalc.quantization.planned import bits_of, named_format

SILENT: Final = {"nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": "fp8"}
"""The catalog's, with the format that the note proposes. Neither its config nor a public text says which modules are in fp8."""


def test_the_catalog_has_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other entry with such a name states its format."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    named = [model_id for model_id in list_models() if named_format(model_id)]
    assert {model_id for model_id in named if load_model(model_id).quantization is None} == set(SILENT)
    assert len(named) > len(SILENT)


@pytest.mark.parametrize("model_id", SILENT)
def test_weights_are_unknown_until_a_format_is_given(model_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note says why and which option helps; the option it proposes works, and so does a plain one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    silent = plan(model_id, seq=100)
    assert silent.memory.weights.bytes is None
    assert silent.memory.total_bytes is None
    notes = [note.message for note in silent.notes if note.code == "weights-unknown"]
    assert len(notes) == 1
    assert notes[0].endswith(f"--weights {SILENT[model_id]}.")
    given = plan(model_id, seq=100, weights=SILENT[model_id]).memory.weights.bytes
    plain = plan(model_id, seq=100, weights="bf16").memory.weights.bytes
    assert given is not None
    assert plain is not None
    assert given < 0.7 * plain
    assert silent.cache == plan(model_id, seq=100, weights="bf16").cache


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("me/Mine-7B-AWQ", "awq"),
        ("me/Mine-7B-GPTQ-Int4", "gptq"),
        ("me/mine.w4a16", "int4"),
        ("me/mine-quantized.w8a8", "int8"),
        ("me/mine_fp8_dynamic", "fp8"),
        ("me/mine-bnb-4bit", "bnb4"),
        ("fp8/mine", None),
        ("me/Mine-7B", None),
        ("me/Mine-BF16", None),
        ("me/Hawq-7B", None),
        ("me/mine-14bit", None),
        ("mine-nvfp4", "nvfp4"),
    ],
)
def test_names(name: str, proposed: str | None) -> None:
    """Whole words of the name alone, in any case; the organisation says nothing."""
    found = named_format(name)
    assert (None if found is None else found[1]) == proposed


def test_a_file_of_ones_own_is_taken_at_its_word() -> None:
    """A config dict has no publisher's name."""
    config = {**load_model("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8").config}
    assert plan(config, seq=100).memory.weights.bytes is not None


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (16, "bf16 fp16 f16"),
        (8, "q8_0 fp8 int8 bnb8 mlx_8bit"),
        (4, "q4_0 q4_1 q4_k_m iq4_xs iq4_nl mxfp4 mxfp4_moe nvfp4 awq gptq bnb4 mlx_4bit exl3_4bpw"),
        (3, "q3_k_l q3_k_s iq3_m iq3_xxs exl2_3bpw"),
        (2, "q2_k iq2_m tq2_0"),
        (None, "nothing"),
    ],
)
def test_bits_of_a_number(bits: int | None, names: str) -> None:
    """The figure in the name of a format, or of the type that most matrices of a mix have."""
    assert {name: bits_of(name) for name in names.split()} == dict.fromkeys(names.split(), bits)

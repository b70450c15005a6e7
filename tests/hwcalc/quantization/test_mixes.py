"""The type of every tensor against llama.cpp's own: what ``llama_model_quantize`` chose, in 25 files, 32 file types, with and without a
matrix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from hwcalc.formulas import Stack
from hwcalc.library.load import load_model
from hwcalc.model import GgufFacts, GgufTensor, ModelSpec
from hwcalc.quantization.ggml import BY_IMATRIX, MIXES
from hwcalc.quantization.gguf import PUBLISHED_MIXES, file_tensors, gguf_file
from hwcalc.quantization.mixes import refused
from tests.effort import sample
from tests.paths import GOLDEN


@cache
def golden() -> Mapping[str, Any]:
    """The file, which says where it comes from."""
    document: Mapping[str, Any] = json.loads((GOLDEN / "llamacpp_quantize.json").read_text(encoding="utf-8"))
    return document


def numbers(text: str) -> list[int]:
    """``0-2,5`` as numbers; one that stands for no layer if there is none."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found or [-1]


def model_of(row: Mapping[str, Any]) -> ModelSpec:
    """The file of a row, read as a GGUF file is."""
    arch = row["architecture"]
    keys = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in row["keys"].items()}
    tensors = tuple(
        GgufTensor(name=stem if number < 0 else f"blk.{number}.{stem}", type=form, shape=tuple(shape), bytes=0)
        for stem, form, shape, layers in row["families"]
        for number in numbers(layers)
    )
    return ModelSpec(
        id=row["model"], source="gguf", location="", revision=None, model_type=arch, architecture=arch, stack=Stack(()),
        gguf=GgufFacts(keys=keys, tensors=tensors),
    )  # fmt: skip


def chosen(row: Mapping[str, Any], text: str) -> Iterator[tuple[str, str]]:
    """Name and type of each tensor, as llama.cpp chose."""
    cells = text.split("|")
    cells += [""] * (len(row["families"]) - len(cells))
    for (stem, form, _, layers), cell in zip(row["families"], cells, strict=True):
        most, *others = cell.split(";")
        other = {number: name for part in others for name, _, text in (part.partition(":"),) for number in numbers(text)}
        for number in numbers(layers):
            yield stem if number < 0 else f"blk.{number}.{stem}", other.get(number, most or form)


@pytest.mark.parametrize("name", sample(MIXES, 16))
def test_every_tensor_of_every_file(name: str) -> None:
    """All of them; rows that llama.cpp refuses are refused here."""
    compared = 0
    for row in golden()["models"]:
        model = model_of(row)
        recorded = row["types"][name]
        for text, imatrix in zip([recorded] * 2 if isinstance(recorded, str) else recorded, (False, True), strict=True):
            file = gguf_file(model)
            assert file is not None
            assert (text == "refused") == (refused(file.families, file.placed, file.facts, name) is not None)
            if text == "refused":
                continue
            found = file_tensors(model, name, imatrix=imatrix)
            assert found is not None
            assert {one.name: one.type for one in found} == dict(chosen(row, text)), (row["model"], imatrix)
            compared += len(found)
    assert compared > 20_000


def test_what_a_matrix_changes() -> None:
    """Only the mixes that are listed, and each of them in some file."""
    changed = {name for row in golden()["models"] for name, text in row["types"].items() if not isinstance(text, str)}
    assert changed == BY_IMATRIX


def test_the_file_is_whole() -> None:
    """25 files, 32 file types."""
    counts = golden()["counts"]
    assert counts["models"] == len(golden()["models"]) == 25
    assert counts["runs"] == 25 * 2 * len(MIXES)
    assert set(PUBLISHED_MIXES) <= set(MIXES)


def test_qwen2_of_80_layers_without_shared_heads() -> None:
    """Eighty layers of Qwen2 are a model of 70B whatever its heads (src/models/qwen2.cpp): no values in four bits. Of Llama they are one
    of 65B (src/models/llama.cpp).
    """
    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 1024,
    }

    def values(kind: str) -> set[str]:
        model = load_model({"model_type": kind, "num_hidden_layers": 80, **sizes})
        return {one.type for one in file_tensors(model, "q4_k_m") or () if one.name.endswith("attn_v.weight")}

    assert values("qwen2") == {"q5_k", "q6_k"}
    assert values("llama") == {"q4_k", "q6_k"}

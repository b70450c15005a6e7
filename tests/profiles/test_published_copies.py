"""The repositories of the Hub that commands to start name for a model in another format."""

import re
from functools import cache
from typing import Any

import pytest
from msgspec import convert

from hwcalc import plan
from hwcalc.profiles.catalog import list_models
from hwcalc.profiles.compiled import record
from hwcalc.profiles.engines import PublishedFile, published_copy
from hwcalc.quantization.planned import format_name, named_format
from hwcalc.sources.gguf.hub import base_models

RENAMED = {"meta-llama/Llama-3.1-8B-Instruct": "NousResearch/Meta-Llama-3.1-8B-Instruct"}
"""A model whose publisher left out a word of its name later, and its copy in the catalog under the name that it had."""


@cache
def rows(engine: str) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Model, repository and formats of each row."""
    file = convert(record("engines", f"{engine}/published"), PublishedFile)
    return tuple(
        (model, name, formats)
        for table in (file.models, file.in_parts)
        for model, copies in table.items()
        for name, formats in copies.items()
    )


@pytest.mark.parametrize("engine", ["llamacpp", "mlx"])
def test_each_row_is_of_a_model_of_the_catalog_in_formats_that_weights_takes(engine: str) -> None:
    """And no format is in two repositories of a model: the first is the one that is named."""
    assert {model for model, _, _ in rows(engine)} <= set(list_models())
    named = [(model, form) for model, _, formats in rows(engine) for form in formats]
    assert len(named) == len(set(named))
    assert all(format_name(form) == form for _, form in named)
    assert all(published_copy(engine, model, form) == name for model, name, formats in rows(engine) for form in formats)


def test_the_names_of_repositories_are_those_of_their_models() -> None:
    """A repository of GGUF files is read as the model's; one of MLX's has its name and the width."""
    for model, name, _ in rows("llamacpp"):
        word = named_format(model)
        if word is None:
            assert base_models(name)[0] in (model, RENAMED.get(model))
        else:
            # Files are made of the checkpoint in 16 bits, which the catalog lacks.
            stem = model.rpartition("/")[2].partition(f"-{word[0]}")[0]
            assert name.rpartition("/")[2] in (f"{stem}-GGUF", f"{stem.removeprefix('NVIDIA-')}-GGUF")
    for model, name, (form,) in rows("mlx"):
        stem = RENAMED.get(model, model).rpartition("/")[2] if "/Meta-" in name else model.rpartition("/")[2]
        assert re.fullmatch(f"{re.escape(stem)}-{form.removeprefix('mlx_')}s?", name.rpartition("/")[2], re.IGNORECASE), name


@pytest.mark.parametrize("model", ["Qwen/Qwen3-14B", "google/gemma-3-4b-it", "meta-llama/Llama-3.1-8B-Instruct"])
def test_the_copy_is_planned_as_the_model_is(model: str) -> None:
    """Who asks for the repository that a command names gets the plan that named it."""
    asked: dict[str, Any] = {"engine": "llamacpp", "seq": 8192, "offline": True}
    for weights in ("q4_k_m", "q8_0"):
        name = published_copy("llamacpp", model, weights)
        copy, own = plan(f"{name}:{weights.upper()}", **asked).memory, plan(model, weights=weights, **asked).memory
        assert (copy.per_gpu, copy.weights.bytes, copy.cache.bytes) == (own.per_gpu, own.weights.bytes, own.cache.bytes)


def test_no_copy_of_an_unknown_model_or_format() -> None:
    """``None`` stands for what the table lacks."""
    assert published_copy("llamacpp", "org/unknown", "q4_k_m") is None
    assert published_copy("mlx", "Qwen/Qwen3-8B", "mlx_2bit") is None
    assert published_copy("mlx", "Qwen/Qwen3-8B", "") is None

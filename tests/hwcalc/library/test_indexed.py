"""The index of the catalog, against the catalog and the models in it."""

from __future__ import annotations

import json
import random

import pytest

from hwcalc import load_model
from hwcalc.engines.llamacpp.tensors import weight_groups
from hwcalc.library.candidates import naming, naming_of
from hwcalc.library.indexing import formats_at, placed_model
from hwcalc.parsers.gguf.hparams import hparams_of
from hwcalc.planner.layouts import has_experts
from hwcalc.profiles.catalog import find_entry, list_models
from hwcalc.profiles.model_index import details, format_names, model_index, placing, shapes, weights
from hwcalc.quantization.gguf import usual_beside_host
from hwcalc.sources.built_in import facts_of
from scripts import build_model_index


def test_the_index_has_the_catalog() -> None:
    """Every model is in it, with what its file says."""
    index = model_index()
    assert set(index) == set(list_models())
    for name, row in index.items():
        entry = find_entry(name)
        assert entry is not None
        facts = facts_of(name, entry.data)
        assert (row.released, row.modality) == (facts.released, facts.modality)


@pytest.mark.parametrize("name", random.Random(14).sample(list_models(), 12))  # noqa: S311 - any choice will do
def test_the_index_is_up_to_date(name: str) -> None:
    """What it has of a model is what is worked out now; ``python scripts/build_model_index.py`` writes it anew."""
    entry = find_entry(name)
    assert entry is not None
    row, made = build_model_index.indexed(name, entry.data)
    kept = model_index()[name]

    assert row == kept._replace(shape=None, placed=None)
    found = None
    if kept.shape is not None and kept.placed is not None:
        head = {**shapes()[kept.shape], "formats": format_names(kept.shape)}
        each = [weights(kept.shape, name) for name in head["formats"]]
        found = [head, {"about": details(kept.shape), "weights": each}, placing(kept.placed)]
    assert (None if made is None else json.loads(json.dumps(made))) == found


@pytest.mark.parametrize("name", random.Random(15).sample(list_models(), 12))  # noqa: S311 - any choice will do
def test_the_index_has_what_places_a_model(name: str) -> None:
    """The hyperparameters, the tensors and the layers are those that are read of the model."""
    row = model_index()[name]
    if row.shape is None:
        return
    model, formats = load_model(name, offline=True, headers=False), formats_at(row.shape).names
    for form in {formats[-1], usual_beside_host(formats) if has_experts(model) else formats[-1]}:
        placed = placed_model(row, form)

        assert placed is not None
        assert hparams_of(placed) == hparams_of(model)
        assert weight_groups(placed, form) == weight_groups(model, form)
        assert placed.stack == model.stack


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B-Base", "google/gemma-2-2b", "nvidia/Qwen3-235B-A22B-NVFP4", "unsloth/no-such-model"]
)
def test_the_index_says_of_a_name_what_the_name_says(name: str) -> None:
    """Whether the catalog has it or not."""
    assert naming(name) == naming_of(name)

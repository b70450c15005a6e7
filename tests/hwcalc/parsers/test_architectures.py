"""A config without a model type that is known: read by its architecture, to the same number, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import KvplanError
from hwcalc.profiles.catalog import list_models
from tests.catalog import find_model
from tests.effort import sample


def config_of(model_id: str) -> dict[str, Any]:
    """The catalog's config."""
    found = find_model(model_id)
    assert found is not None
    config: dict[str, Any] = dict(found["config"])
    return config


@pytest.mark.parametrize("model_id", sample(list_models(), 120))
def test_same_number_or_an_error(model_id: str) -> None:
    """Without its model_type a config gives the bytes it gives with it, or an error: never another number."""
    config = config_of(model_id)
    stripped = {key: value for key, value in config.items() if key != "model_type"}
    whole = plan(config, seq=100, dtype="bf16").cache.total_bytes
    try:
        result = plan(stripped, seq=100, dtype="bf16")
    except KvplanError:
        return

    assert whole == result.cache.total_bytes
    assert "by-architecture" in {note.code for note in result.notes} or "text_config" in config


def test_an_unknown_type_is_said() -> None:
    """A model type of one's own is read by its architecture, and a note says so."""
    config = {
        "model_type": "my_llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "hidden_size": 8192,
    }
    result = plan(config, seq=1024, dtype="bf16")

    assert 80 * 2 * 64 * 128 * 1024 * 2 == result.cache.total_bytes
    assert "my_llama" in next(note.message for note in result.notes if note.code == "by-architecture")

"""Single facts of the catalog's models that many depend on, as they were published."""

from __future__ import annotations

import re

import pytest

from hwcalc.profiles.catalog import list_models
from tests.catalog import find_model


@pytest.mark.parametrize("model", [name for name in list_models() if re.search(r"Llama-3\.[123]-\d+B", name)])
def test_llama_3_is_stretched(model: str) -> None:
    """As in the published files of 3.1 and later: by 8, and by 32 in the small ones of 3.2."""
    found = find_model(model)
    assert found is not None
    config = found["config"]
    scaling = config.get("text_config", config).get("rope_scaling")
    small = re.search(r"3\.2-[13]B", model) is not None
    wanted = {"rope_type": "llama3", "factor": 32.0 if small else 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert scaling == wanted | {"original_max_position_embeddings": 8192}

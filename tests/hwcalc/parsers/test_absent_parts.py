"""A document without the config of its language model is read as its class of transformers builds it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hwcalc import load_model
from hwcalc.parsers.config import class_defaults

TYPES = (
    *("fast_vlm", "fun_asr_nano", "glmasr", "got_ocr2", "idefics2", "lighton_ocr", "mistral3", "moss_transcribe_diarize"),
    *("nemo_speechlm", "paligemma", "pp_chart2table", "qwen3_asr", "voxtral", "voxtral_realtime", "vision-encoder-decoder"),
)


def read(document: dict[str, Any]) -> tuple[Any, ...]:
    """Parameters, layers and the longest sequence."""
    model = load_model(document)
    layers = tuple((group.count, group.kind) for group in model.stack.groups)
    return None if model.counted is None else model.counted.total, layers, model.max_position_embeddings


@pytest.mark.parametrize("model_type", TYPES)
def test_as_its_class_builds_it(model_type: str) -> None:
    """The class's own config, written out, says the same as the type alone."""
    from transformers.models.auto import configuration_auto

    written = json.loads(configuration_auto.CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    assert read({"model_type": model_type}) == read({**written, "model_type": model_type, "architectures": None})
    known = class_defaults(model_type)
    assert known is not None
    assert known.absent


def test_keys_that_the_file_has_count() -> None:
    """PaliGemma: 18 layers by its class, and four where an old file keeps the keys of its language model at the top."""
    assert len(load_model({"model_type": "paligemma"}).stack) == 18
    assert len(load_model({"model_type": "paligemma", "num_hidden_layers": 4}).stack) == 4

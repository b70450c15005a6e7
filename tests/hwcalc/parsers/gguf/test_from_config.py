"""The keys for a config are those that llama.cpp's converter writes, and no config makes them anything but an answer or an error."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from hwcalc import KvplanError, load_model
from hwcalc.errors import UnsupportedError
from hwcalc.model import GGUF_ARCHITECTURE
from hwcalc.parsers.gguf.from_config import ROWS, gguf_keys, row_for
from hwcalc.parsers.gguf.hparams import read_hparams
from hwcalc.profiles.catalog import list_models
from hwcalc.text import quoted
from tests.effort import cases, sample
from tests.hwcalc.parsers.gguf.converted import Converted, converted, effective, refused
from tests.hwcalc.parsers.remote_configs import PANGU_7B, SMALLTHINKER_4B
from tests.hwcalc.parsers.test_fuzz import STRANGE, configs, places
from tests.paths import GOLDEN

_MULTI_QUERY: Final = (
    "attention.head_count_kv",
    """transformers' class fills num_kv_heads in with 71, which the converter takes although multi_query says 1. It cannot cut the
    fused projection of (71 + 2) x 64 rows into that many, and the files that exist have 1.""",
)
MISSES: Final[Mapping[str, tuple[str, str]]] = {
    "tiiuae/falcon-7b": _MULTI_QUERY,
    "tiiuae/falcon-7b-instruct": _MULTI_QUERY,
    "FalconForCausalLM": _MULTI_QUERY,
    "ibm-granite/granite-4.0-micro": (
        "ssm.",
        "A Granite 4 without states becomes a plain Granite, whose loader reads no ssm keys; the converter leaves them in the file.",
    ),
}
"""Keys that differ from the converter's, with the reason."""

NOT_RUN: Final = frozenset(
    {
        "dots-studio/dots3-note-prev",
        "meta-models/Muse-Glimmer-30B",
        "stepfun-ai/Step-3.7-Flash",
        "stepfun-ai/Step-3.7-Flash-FP8",
    }
)
"""Models whose config in the catalog lacks keys that the converter demands, or has them under the names of transformers' class."""

NOT_RECORDED: Final = "embedding_length_per_layer_input"
"""A key that the converter writes for Gemma 3n and 4, and that the recorded runs leave out; published files have it."""

NAMED_OTHERWISE: Final = frozenset({each.name for each in converted()} | NOT_RUN) & frozenset(refused())
"""Models whose reconstructed config names a class that is not the published file's: their type says how they are converted."""


@pytest.mark.parametrize("run", sample(converted(), 140), ids=lambda run: run.name)
def test_keys_are_those_of_the_converter(run: Converted) -> None:
    """Every key that llama.cpp reads for memory says the same, and so does llama.cpp's reading of all of them."""
    own = gguf_keys(load_model(run.name if run.config is None else run.config))
    theirs, ours = effective(run.keys), effective(own)
    different = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key) and not _beside(key, theirs)}
    miss = MISSES.get(run.name)
    if miss is not None:
        assert different, miss[1]
        assert all(key.startswith(miss[0]) for key in different), miss[1]
        return
    assert {key: (theirs.get(key), ours.get(key)) for key in different} == {}
    theirs_too = {key: value for key, value in own.items() if key.endswith(NOT_RECORDED)}
    read, expected = read_hparams(own), read_hparams({**run.keys, **theirs_too})
    assert {key: (value, asdict(read)[key]) for key, value in asdict(expected).items() if value != asdict(read)[key]} == {}


def _beside(key: str, theirs: Mapping[str, Any]) -> bool:
    """Keys that only one side has and that say nothing more, or that were not recorded."""
    if key == NOT_RECORDED:
        return True
    return key == "attention.value_length" and "attention.kv_lora_rank" in theirs and key not in theirs


@pytest.mark.parametrize("model_id", sorted(set(refused()) - NAMED_OTHERWISE))
def test_models_that_the_converter_refuses(model_id: str) -> None:
    """They are an error that names the class and another engine."""
    model = load_model(model_id)
    with pytest.raises(UnsupportedError, match=r"llama\.cpp converts") as raised:
        gguf_keys(model)
    assert raised.value.exit_code == 3
    assert quoted(model.architecture) in raised.value.message
    assert "--engine reference" in raised.value.hint


def test_every_model_of_the_catalog_was_run() -> None:
    """Each is converted, refused, or named with a reason."""
    run = {each.name for each in converted() if each.config is None}
    assert len(NAMED_OTHERWISE) == 6
    assert sorted(list_models()) == sorted(run | set(refused()) | NOT_RUN)
    assert all(GGUF_ARCHITECTURE in gguf_keys(load_model(name)) for name in NAMED_OTHERWISE | NOT_RUN)


def test_every_row_is_reached() -> None:
    """Each row of the table is that of some model, of a class with its defaults, or of a config that was run besides."""
    refusing = set(refused()) - NAMED_OTHERWISE
    models = [load_model(name) for name in list_models() if name not in refusing]
    models += [load_model(run.config) for run in converted() if run.config]
    models += [load_model(PANGU_7B), load_model(SMALLTHINKER_4B)]
    reached = {row_for(model) for model in models}
    assert [(row.arch, row.classes) for row in ROWS if row not in reached] == []


@settings(max_examples=cases(100, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_config_gives_keys_or_an_error(data: st.DataObject) -> None:
    """A config of the catalog with strange values in it."""
    document = copy.deepcopy(data.draw(st.sampled_from(sorted(configs().items())))[1])
    spots = list(places(document))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(spots))
        if key in container if isinstance(container, dict) else key < len(container):
            container[key] = copy.deepcopy(data.draw(st.sampled_from(STRANGE)))
    try:
        keys = gguf_keys(load_model(document))
        read_hparams(keys)
    except KvplanError:
        return
    assert isinstance(keys[GGUF_ARCHITECTURE], str)


@pytest.mark.parametrize(("name", "width"), [("google/gemma-4-E2B-it", 256), ("google/gemma-4-31B-it", 0)])
def test_the_width_of_embeddings_of_each_layer(name: str, width: int) -> None:
    """As the keys of published files, of which libllama made the contexts of ``llamacpp.json``."""
    cases = json.loads((GOLDEN / "llamacpp.json").read_text(encoding="utf-8"))["cases"]
    row = next(
        case for case in cases if case["model"] == name.split("/")[1].lower().removesuffix("-it").replace("gemma-4-", "gemma4-")
    )
    assert row["hparams"][NOT_RECORDED] == width
    assert gguf_keys(load_model(name))[f"gemma4.{NOT_RECORDED}"] == width

"""The law: a config and the GGUF metadata that llama.cpp's converter makes of it agree in every figure of the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import KvplanError, load_model, plan
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import FullAttention, LayerKind, SlidingAttention, Stack
from hwcalc.model import GGUF_ARCHITECTURE, ModelSpec
from hwcalc.parsers.gguf.from_config import gguf_keys
from hwcalc.profiles.catalog import list_models
from tests.effort import sample
from tests.hwcalc.parsers.gguf.converted import converted

REQUESTS: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("reference", {"seq": 5_000, "batch": 3}),
    ("llamacpp", {"seq": 5_000, "batch": 3}),
    ("llamacpp", {"seq": 300, "dtype": "q8_0"}),
)

NO_WINDOW: Final = frozenset({"llama", "mistral3", "plamo2", "starcoder2"})
"""Architectures whose converter leaves the window of the config out, and whose layers llama.cpp keeps whole."""


LESS_SAID: Final = {
    "LagunaForCausalLM": "The converter drops the list of layer types, and llama.cpp takes three of four layers to slide.",
    "NemotronHForCausalLM": "The converter knows no type 'mlp' in a list of layer types, and llama.cpp takes that layer for a state.",
}
"""Defaults of classes, like no published model, of which the file says something else than the config."""


def _whole(kind: LayerKind) -> LayerKind:
    if not isinstance(kind, SlidingAttention):
        return kind
    return FullAttention(**{key: value for key, value in kind.dims().items() if key != "window"})


def _changed(model: ModelSpec, change: Callable[[LayerKind], LayerKind]) -> ModelSpec:
    return replace(model, stack=Stack(tuple(tuple(map(change, layer)) for layer in model.stack)))


def _as_in_the_file(model: ModelSpec, arch: str) -> ModelSpec:
    """The model without what no key of its file says.

    The converter makes float16 of single precision, unless it is told otherwise. Layers of HRM run several times, and a file has every
    time as a block.
    """
    model = replace(model, dtype="fp16") if model.dtype == "fp32" else model
    if arch in NO_WINDOW:
        return _changed(model, _whole)
    if arch == "hrm_text":
        return replace(model, stack=Stack(tuple((kind,) for layer in model.stack for kind in layer)))
    return model


@lru_cache(maxsize=1)
def pairs() -> Mapping[str, tuple[ModelSpec, ModelSpec]]:
    """Every model of the catalog, and every config that the converter was run with, as it is and as a GGUF file."""
    given: dict[str, Any] = {name: name for name in list_models()}
    given |= {run.name: run.config for run in converted() if run.config is not None}
    found = {}
    for name, source in given.items():
        model = load_model(source)
        try:
            keys = dict(gguf_keys(model))
        except UnsupportedError:
            continue
        found[name] = _as_in_the_file(model, keys[GGUF_ARCHITECTURE]), load_model(keys)
    return found


def _cache(model: ModelSpec, engine: str, request: Mapping[str, Any]) -> dict[str, Any] | str:
    """All figures of the cache, or why there are none; ``definition`` says how the model is known, and so differs."""
    try:
        figures: dict[str, Any] = plan(model, engine=engine, **request).to_dict()["cache"]
    except KvplanError as error:
        return error.message.replace(model.id, "the model")
    return {key: value for key, value in figures.items() if key != "definition"}


def test_config_and_file_agree() -> None:
    """Bytes in all, per token and per sequence, states, and every tensor: by the formulas, and by llama.cpp's rules.

    A file that says less than its config differs; one that does so no longer is struck off the list.
    """
    tried = {*sample(sorted(pairs()), 100), *LESS_SAID}
    differ = {
        name
        for name, (config, file) in pairs().items()
        if name in tried and any(_cache(config, engine, request) != _cache(file, engine, request) for engine, request in REQUESTS)
    }
    assert differ == LESS_SAID.keys()


def test_hardly_a_model_is_refused() -> None:
    """Models that agree in being refused prove little. Mellum names a window that no layer has, on which llama.cpp's loader stops."""
    refused = [name for name, (config, _) in pairs().items() if isinstance(_cache(config, *REQUESTS[1]), str)]
    assert refused == ["JetBrains/Mellum2-12B-A2.5B-Base", "MellumForCausalLM"]


def test_most_of_the_catalog_takes_part() -> None:
    """A model that drops out of the law is noticed."""
    assert len(pairs().keys() & set(list_models())) == 511


@pytest.mark.parametrize("arch", sorted(NO_WINDOW))
def test_windows_are_left_out(arch: str) -> None:
    """An exception without a model would be none."""
    found = [run for run in converted() if run.keys[GGUF_ARCHITECTURE] == arch]
    assert all(f"{arch}.attention.sliding_window" not in run.keys for run in found)
    stacks = [load_model(run.name if run.config is None else run.config).stack for run in found]
    assert any(isinstance(kind, SlidingAttention) for stack in stacks for layer in stack for kind in layer)

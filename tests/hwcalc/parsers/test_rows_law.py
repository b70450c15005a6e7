"""What every model caches and weighs comes from one reading of its config, so the rows of both are equal, layer by layer.

The laws are in ``rows_law.py``. Here they are asked of the catalog, of each model type with its class's defaults and with
other dimensions than those, of files whose code lives with the model, and of the models that transformers itself built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import hwcalc
from hwcalc import load_model
from hwcalc.errors import KvplanError
from hwcalc.formulas import AttentionKind, FullAttention, Stack
from hwcalc.model import ModelSpec
from hwcalc.profiles.catalog import list_models
from tests import paths
from tests.effort import sample
from tests.hwcalc.parsers import remote_configs
from tests.hwcalc.parsers.rows_law import LAWS, WITHOUT_A_LAW, violations, without_numbers

GOLDEN: Final = paths.GOLDEN / "transformers.json"
SMALL: Final = {
    "num_hidden_layers": 7,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "intermediate_size": 512,
}
"""Keys that a file of any type may have. What a class does not read must change neither cache nor weights, or both."""
WINDOWED: Final = {
    **SMALL,
    "head_dim": 48,
    "sliding_window": 64,
    "use_sliding_window": True,
    "max_window_layers": 3,
    "attention_bias": True,
}

_PAIR: Final = {"decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}}
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "encoder-decoder": _PAIR,
    "speech-encoder-decoder": _PAIR,
    "vision-encoder-decoder": _PAIR,
}
"""Types whose defaults build no model that runs: the decoder of a pair needs its cross-attention."""


@lru_cache(maxsize=1)
def model_types() -> Mapping[str, str | None]:
    """Each model type that has a config class, and one class that it builds."""
    path = Path(hwcalc.__file__).with_name("parsers") / "class_defaults.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    classes: dict[str, str] = {}
    for name, model_type in table["architectures"].items():
        classes.setdefault(model_type, name)
    return {model_type: classes.get(model_type) for model_type in sorted(table["model_types"])}


def counted(config: Mapping[str, Any]) -> ModelSpec | None:
    """A model, ``None`` where it has no cache or no counted weights."""
    try:
        spec = load_model(dict(config))
    except KvplanError:
        return None
    return None if spec.counted is None else spec


def of_type(model_type: str, **keys: Any) -> ModelSpec | None:
    """A model of this type as its class builds it, with other keys than its defaults."""
    architecture = model_types()[model_type]
    named = {} if architecture is None else {"architectures": [architecture]}
    return counted({"model_type": model_type, **CONFIGS.get(model_type, {}), **named, **keys})


def lawful(spec: ModelSpec | None) -> bool:
    """Whether a model's cache and weights agree; a model without one of the two has nothing to disagree."""
    for one in () if spec is None else (spec, *spec.variants.values()):
        assert violations(one) == []
        assert without_numbers(one) == []
    return spec is not None


def remote() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Files of models whose code lives with the model."""
    for name, config in vars(remote_configs).items():
        if isinstance(config, dict) and "model_type" in config:
            yield name, config


@pytest.mark.parametrize("model_id", sample(list_models(), 120))
def test_catalog_models(model_id: str) -> None:
    """Every model of the catalog whose weights are counted."""
    spec = load_model(model_id)
    lawful(spec if spec.counted is not None else None)


@pytest.mark.parametrize("model_type", sample(list(model_types()), 80))
def test_model_types(model_type: str) -> None:
    """Every model type with its class's defaults, and with other dimensions at the top or in the language model's part."""
    for keys in ({}, SMALL, {"text_config": SMALL}, WINDOWED):
        lawful(of_type(model_type, **keys))


OTHER_HEADS: Final = {"num_attention_heads": 16, "num_attention_groups": 4, "head_dim": 32}
IN_TURN: Final = ["full_attention", "sliding_attention"] * 3 + ["full_attention"]


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("step3p5", {"attention_other_setting": OTHER_HEADS, "layer_types": IN_TURN}),
        ("step3p5", {"num_sliding_attention_heads": 16, "layer_types": IN_TURN}),
        ("mimo_v2_flash", {"swa_head_dim": 16}),
        ("mimo_v2_flash", {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 1, "swa_v_head_dim": 24}),
        ("deepseek_v32", {"index_topk_freq": 2}),
    ],
)
def test_layers_that_once_were_read_twice(model_type: str, keys: dict[str, Any]) -> None:
    """Keys of which one reading of the config knew and the other did not, by the model itself and as each engine builds it."""
    assert lawful(of_type(model_type, **{**SMALL, **keys}))


@pytest.mark.parametrize("name", [name for name, _ in remote()])
def test_models_with_code_of_their_own(name: str) -> None:
    """Every file of the tests of these models."""
    lawful(counted(dict(remote())[name]))


def test_models_that_transformers_built() -> None:
    """Every config of the golden file, which has what a saved file adds."""
    cases = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    assert sum(lawful(counted(case["config"])) for case in cases if "config" in case) > 150


def test_the_law_is_asked_of_many() -> None:
    """Most models have both cache and weights: 300 and more of the catalog, 300 and more types."""
    assert sum(load_model(model_id).counted is not None for model_id in list_models()) > 300
    assert sum(of_type(model_type) is not None for model_type in model_types()) > 300


def broken(spec: ModelSpec, number: int, **dims: int) -> ModelSpec:
    """A model of which one layer keeps something else than its weights make."""
    layers = list(spec.stack.layers)
    layers[number] = tuple(replace(kind, **{k: v for k, v in dims.items() if k in kind.dims()}) for kind in layers[number])
    return replace(spec, stack=Stack(tuple(layers)))


@pytest.mark.parametrize(
    ("model_type", "number", "dims", "expected"),
    [
        ("llama", 3, {"num_key_value_heads": 8}, "layer 3: full_attention keeps keys of 1024, the weights make [4096]"),
        ("gpt2", 0, {"head_dim": 32}, "layer 0: full_attention keeps keys and values of 1152, the weights make [1920]"),
        ("deepseek_v3", 5, {"kv_lora_rank": 256}, "layer 5: latent_attention keeps latent and rope key of 320"),
        ("deepseek_v32", 5, {"index_head_dim": 64}, "layer 5: sparse_indexer keeps indexer key of 64"),
        ("mamba2", 1, {"d_state": 64}, "layer 1: mamba2 keeps convolution of 9216, the weights make [10240]"),
        ("qwen3_next", 0, {"num_key_heads": 8}, "layer 0: gated_delta_net keeps convolution of 6144"),
        ("bart", 2, {"num_key_value_heads": 4}, "layer 2: full_attention keeps keys of 256"),
    ],
)
def test_the_law_can_fail(model_type: str, number: int, dims: dict[str, int], expected: str) -> None:
    """A layer that is read otherwise than it is weighed is found, and no other."""
    spec = of_type(model_type)
    assert spec is not None
    found = violations(broken(spec, number, **dims))
    assert found
    assert found[0].startswith(expected)
    assert all(entry.startswith(f"layer {number}: ") for entry in found)


def test_weights_in_the_wrong_layer_are_found() -> None:
    """A layer whose weights stand elsewhere makes nothing."""
    spec = of_type("llama")
    assert spec is not None
    assert spec.counted is not None
    blocks = [
        replace(block, layers=tuple(number + 1 for number in block.layers or ())) if block.kind == "attention" else block
        for block in spec.counted.blocks
    ]
    kept = [replace(block, layers=tuple(n for n in block.layers or () if n < len(spec.stack.layers))) for block in blocks]
    moved = replace(spec, counted=replace(spec.counted, blocks=tuple(kept)))
    assert violations(moved) == ["layer 0: full_attention keeps keys and values of 8192, the weights make none"]


def test_every_kind_has_a_law_or_a_reason() -> None:
    """No kind of layer slips through: each that a model type keeps is named here."""
    specs = (of_type(model_type) for model_type in model_types())
    kinds = {type(kind) for spec in specs if spec is not None for layer in spec.stack.layers for kind in layer}
    nameless = {kind for kind in kinds if kind not in LAWS and kind not in WITHOUT_A_LAW and not issubclass(kind, AttentionKind)}
    assert nameless == set()
    assert FullAttention in kinds

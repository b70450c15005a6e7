"""Small configs: fewer layers of the same kinds."""

from __future__ import annotations

import json

import pytest

from hwcalc import load_model
from hwcalc.formulas import FullAttention, Mamba2, SlidingAttention, Stack
from hwcalc.probe.live_model import NotRun, clean, full_config, make, pick_layers, shrink, smaller
from hwcalc.profiles.catalog import list_models
from tests.effort import cases, sample

FULL = FullAttention(num_attention_heads=8, num_key_value_heads=2, head_dim=16, v_head_dim=16)
SLIDING = SlidingAttention(num_attention_heads=8, num_key_value_heads=2, head_dim=16, v_head_dim=16, window=64)
STATE = Mamba2(num_heads=4, head_dim=16, d_state=8, n_groups=1, d_conv=4)

NOT_BUILT = {"ernie4_5_vl_moe", "mllama", "step3p7", "zamba"}
"""Types of the catalog that transformers has and that are not run: decoders of pairs, without a class of their own, or, as Zamba's, with shared
layers whose numbers the class expects."""


def test_first_layers_with_every_kind() -> None:
    """Five windowed layers and a full one: six."""
    assert tuple(range(6)) == pick_layers(Stack(((SLIDING,),) * 5 + ((FULL,),) + ((SLIDING,),) * 20))


def test_kinds_that_come_late() -> None:
    """Behind more layers than are taken, one of each."""
    assert (0, 40) == pick_layers(Stack(((STATE,),) * 40 + ((STATE, FULL),) * 2))


def test_lists_of_layers_are_cut() -> None:
    """Lists with an entry for each layer keep those of the layers, lists of layer numbers count anew."""
    config = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "c", "d"],
        "attn_layer_indices": [1, 3],
        "linear": {"kda_layers": [1, 3], "num_heads": 4},
    }

    small = shrink(config, (1, 2), 4)

    assert small is not None
    assert {
        "num_hidden_layers": 2,
        "layer_types": ["b", "c"],
        "attn_layer_indices": [0],
        "linear": {"kda_layers": [2], "num_heads": 4},
    } == small.config


def test_shared_layers_are_counted_from_the_end() -> None:
    """Of ten layers the last four share: of the first seven the last one does."""
    small = shrink({"num_hidden_layers": 10, "num_kv_shared_layers": 4}, range(7), 10)

    assert small is not None
    assert {"num_hidden_layers": 7, "num_kv_shared_layers": 1} == small.config


@pytest.mark.parametrize(("factor", "heads"), [(2, (4, 1)), (4, None), (3, None)])
def test_ratios_stay(factor: int, heads: tuple[int, int] | None) -> None:
    """A factor that does not divide every number of heads is not taken."""
    small = shrink({"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2}, (0,), 1, factor=factor)

    assert heads == (None if small is None else (small.config["num_attention_heads"], small.config["num_key_value_heads"]))


def test_clean_goes_inside() -> None:
    """Private keys and names of code are dropped from every part."""
    assert {"a": 1, "text_config": {"b": 2}} == clean(
        {"a": 1, "_x": 1, "auto_map": {}, "text_config": {"b": 2, "_attn_implementation": "x"}}
    )


def test_the_catalog_can_be_made_small() -> None:
    """A type that the library has gets a config with all its kinds of layers, small enough to build: a share of them in every run. No weights are made."""
    import torch

    types = {model.model_type: model for model in (load_model(name, offline=True) for name in list_models())}
    failed, built = {}, 0
    tried = {*sample(types, 50), *NOT_BUILT}
    for model_type in tried:
        model = types[model_type]
        try:
            full = full_config(model)
        except NotRun as reason:
            assert "no model type" in str(reason)  # noqa: PT017 - the others are counted
            continue
        try:
            small, _, spec, size = smaller(
                full,
                model,
                lambda config, device: make(config, dtype=torch.float32, device=device, attention="eager", seed=0),
                2**29,
            )
        except NotRun as reason:
            failed[model_type] = str(reason)
            continue
        built += 1
        wanted = {kind.name for layer in model.stack_for("transformers") for kind in layer}
        assert wanted == {kind.name for layer in spec.stack_for("transformers") for kind in layer}, model_type
        assert size <= 2**29
        assert len(small.layers) <= 12
        json.dumps(small.config)
    assert NOT_BUILT == set(failed), failed
    assert built >= cases(30, 90)

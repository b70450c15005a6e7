"""``params.json`` as the config that says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.errors import ConfigError, KvplanError, UnsupportedError
from hwcalc.sources import resolve
from hwcalc.sources.document import config_from_params

# As published with Mistral-7B-v0.1, Mixtral-8x7B-v0.1 and Llama-2-70B.
MISTRAL: dict[str, Any] = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "norm_eps": 1e-05,
    "sliding_window": 4096,
    "vocab_size": 32000,
}
MIXTRAL = MISTRAL | {"sliding_window": None, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}
LLAMA: dict[str, Any] = {
    "dim": 8192,
    "multiple_of": 4096,
    "ffn_dim_multiplier": 1.3,
    "n_heads": 64,
    "n_kv_heads": 8,
    "n_layers": 80,
    "norm_eps": 1e-05,
    "vocab_size": -1,
}


def test_a_folder_with_params_json(tmp_path: Path) -> None:
    """Its cache is that of the same model's config.json: 32 layers x 8 heads x 2 x 128 x 2 bytes, 4,096 positions at most."""
    (tmp_path / "params.json").write_text(json.dumps(MISTRAL), encoding="utf-8")

    assert plan(str(tmp_path), seq=32768, dtype="bf16").cache.total_bytes == 32 * 8 * 2 * 128 * 2 * 4096
    assert resolve(str(tmp_path)).id == tmp_path.name


def test_experts_make_it_a_mixtral() -> None:
    """And no window is no window, not the class's own."""
    config = config_from_params(MIXTRAL, "x")

    assert (config["model_type"], config["num_local_experts"], config["num_experts_per_tok"]) == ("mixtral", 8, 2)
    assert config["sliding_window"] is None


def test_metas_own_format() -> None:
    """8 x 8,192 // 3 = 21,845; x 1.3 = 28,398; the next multiple of 4,096 is 28,672, as published."""
    config = config_from_params(LLAMA, "x")

    assert (config["model_type"], config["intermediate_size"], config["num_key_value_heads"]) == ("llama", 28672, 8)
    assert (config["head_dim"], "vocab_size" in config) == (128, False)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"dim": None}, ConfigError),
        ({"q_lora_rank": 1536, "kv_lora_rank": 512}, UnsupportedError),
        ({"sliding_window": [None, 32768]}, UnsupportedError),
        ({"moe": {"num_experts": 8, "first_k_dense_replace": 3}}, UnsupportedError),
        ({"moe": [1]}, ConfigError),
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], error: type[KvplanError]) -> None:
    """The keys are named."""
    with pytest.raises(error) as raised:
        config_from_params(MISTRAL | change, "params.json of org/name")
    assert raised.value.message.startswith("params.json of org/name")


@pytest.mark.parametrize("value", [None, -1, 0, 1.5, "4", True, [], {}, 2**70, float("nan")])
@pytest.mark.parametrize(
    "key", ["dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "sliding_window", "moe", "multiple_of"]
)
def test_strange_values_give_a_plan_or_an_error_in_words(tmp_path: Path, key: str, value: Any) -> None:
    """As those of any config."""
    for params in (MISTRAL, LLAMA):
        (tmp_path / "params.json").write_text(json.dumps(params | {key: value}), encoding="utf-8")
        try:
            assert plan(str(tmp_path), seq=64).cache.total_bytes >= 0
        except KvplanError as error:
            assert error.message  # noqa: PT017 - either is right

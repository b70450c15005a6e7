"""A config without a model type that is known: read by its architecture, to the same number, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import ConfigError, KvplanError, UnknownArchitectureError, UnreadKeysError
from hwcalc.model import UNREAD_KEYS
from hwcalc.parsers.sketch import UNKNOWN
from hwcalc.profiles.catalog import list_models
from tests.catalog import find_model
from tests.effort import sample
from tests.hwcalc.command import Capture, run


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
    assert "by-architecture" in {note.code for note in result.warnings} or "text_config" in config


LLAMA: Final[dict[str, Any]] = {
    "model_type": "my_llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "vocab_size": 128_256,
    "rope_theta": 500_000.0,
}


@pytest.mark.parametrize("named", [{}, {"model_type": None}])
def test_an_unknown_type_is_said(named: dict[str, Any], capsys: Capture, tmp_path: Path) -> None:
    """A file whose every key is known is read by its architecture, and a warning says so, also in the shortest answer."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | named), "utf-8")
    result = plan(path, seq=1024, dtype="bf16")
    said = "model_type 'my_llama' is not known" if not named else "The config has no model_type"

    assert 80 * 2 * 64 * 128 * 1024 * 2 == result.cache.total_bytes
    assert [note.message.partition(":")[0] for note in result.warnings] == [said]
    assert f"warning  {said}" in run(capsys, str(path), "--seq", "1k", "--brief")[1]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "OrionForCausalLM"])
@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"lat": 384, "rot": 64}, "lat, rot"), ({"window_every": 4}, "window_every"), ({"mixer": "mla"}, "mixer"), ({"sizes": [384] * 80}, "sizes"),
        ({"text": {"inner": {"lat": 384}}}, "text.inner.lat"), ({"share": 0.5}, "share"), ({"n_layer": 40}, "n_layer"),
        # Llama's own class has the key, and no use for it.
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)  # fmt: skip
def test_what_an_unknown_type_adds_is_an_error(architecture: str, keys: dict[str, Any], named: str) -> None:
    """Its own code may read what no model of that architecture has. The layers that are offered are open, and what is assumed is called so."""
    config = LLAMA | {"architectures": [architecture], "num_key_value_heads": 8, "head_dim": 128} | keys
    if architecture.startswith("Orion") and "n_layer" in keys:
        named = "num_hidden_layers"
    with pytest.raises(ConfigError, match=named) as caught:
        load_model(config)
    if isinstance(caught.value, UnreadKeysError):
        assert caught.value.written is not None
        assert UNKNOWN in caught.value.written[1]["layers_of"]
        assert caught.value.command is not None
        assumed = plan(config, seq=1024, assume=caught.value.command[1]["assume"], dtype="bf16")
        assert 80 * 2 * 8 * 128 * 1024 * 2 == assumed.cache.total_bytes
        assert "assumed" == assumed.cache.definition
        assert UNREAD_KEYS in {note.code for note in assumed.warnings}
    # A class that passes them over, and whose type is named, is read as it is built.
    if architecture.startswith("Llama") and named in ("lat, rot", "mixer", "sizes", "share"):
        assert not load_model(config | {"model_type": "llama"}).warnings


@pytest.mark.parametrize(
    ("architecture", "keys", "lacks"),
    [
        ("LlamaForCausalLM", {"num_attention_heads": ...}, "num_attention_heads 32"), ("LlamaForCausalLM", {"hidden_size": ...}, "hidden_size 4096"),
        # Without a rank nobody knows the latent of another class than DeepSeek's own.
        ("DeepseekV3ForCausalLM", {"num_key_value_heads": 8}, "kv_lora_rank 512, qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 128"), ("MistralForCausalLM", {"num_key_value_heads": 8}, "sliding_window 4096"),
        # A class without layers in the file is read by nobody.
        ("LlamaForCausalLM", {"num_hidden_layers": ...}, "num_hidden_layers 32"),
    ],
)  # fmt: skip
def test_an_unknown_type_has_no_numbers_of_another_class(architecture: str, keys: dict[str, Any], lacks: str) -> None:
    """What transformers' class of the architecture fills in is not what a type of another name fills in: the error names the numbers."""
    config = {key: value for key, value in (LLAMA | keys).items() if value is not ...} | {"architectures": [architecture]}
    with pytest.raises(UnknownArchitectureError, match=f"leaves out {lacks}: so says that class") as caught:
        load_model(config)
    assert caught.value.written is None, "no layers of a file that does not say them"
    assert (caught.value.command is None) == ("num_hidden_layers" in lacks)
    if caught.value.command is not None:
        assert load_model(config, assume=caught.value.command[1]["assume"]).assumed
    # A window that no layer has is nobody's business: Qwen2 has 4,096 tokens, and does not use them.
    assert not load_model(LLAMA | {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 8}).assumed


@pytest.mark.parametrize("architecture", ["ZephForCausalLM", "LlamaForCausalLM"])
def test_code_of_its_own_may_read_what_the_type_does_not(architecture: str) -> None:
    """A file of a known type may name a class that lives with the model. A class of transformers passes over what it does not know."""
    config = LLAMA | {
        "model_type": "llama",
        "architectures": [architecture],
        "auto_map": {"AutoModelForCausalLM": f"a.{architecture}"},
    }
    assert 80 * 2 * 64 * 128 * 2 == plan(config, seq=1, dtype="bf16").cache.total_bytes
    if architecture == "LlamaForCausalLM":
        assert not load_model(config | {"lat": 384}).assumed
        return
    with pytest.raises(UnreadKeysError, match="type llama does not have: lat"):
        load_model(config | {"lat": 384})


def test_an_unknown_type_has_no_groups_of_another_class() -> None:
    """Transformers' Mamba2Config has 8 groups where a file names none: 3 x (64 x 64 + 2 x groups x 128) numbers of each layer depend on them."""
    states = {
        "model_type": "my_mamba", "architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 4, "hidden_size": 2048, "vocab_size": 1000,
        "num_heads": 64, "head_dim": 64, "state_size": 128, "conv_kernel": 4, "expand": 2,
    }  # fmt: skip
    with pytest.raises(UnknownArchitectureError, match="leaves out n_groups 8: so says that class"):
        load_model(states)
    kept = plan(states | {"n_groups": 1}, seq=8, dtype="bf16").cache
    assert 4 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 128) * 2) == kept.total_bytes

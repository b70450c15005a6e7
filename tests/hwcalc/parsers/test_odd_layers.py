"""Layers that the weights of a model type have no formula for: the cache is counted, and a note says why the weights are not."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

import hwcalc.parsers
from hwcalc import KvplanError, load_model, plan
from hwcalc.errors import ConfigError
from hwcalc.parsers.registry import known_families
from tests.effort import sample
from tests.tiny_configs import TINY_LLAMA

MAMBA: Final = {
    "model_type": "mamba",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "state_size": 16,
    "conv_kernel": 4,
    "vocab_size": 100,
}
LAYERS: Final = ("full_attention", "linear_attention", "hybrid", "mlp", "moe", "mamba", "attention")


def _note(config: dict[str, Any]) -> str:
    model = load_model(config)
    assert model.counted is None
    return next(note.message for note in model.notes if note.code == "weights-unknown")


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"model_type": "kimi_k3", "text_config": TINY_LLAMA}, "full_attention"),
        ({"model_type": "kimi_k3", "text_config": MAMBA}, "mamba1"),
        ({"model_type": "hy_v4", "use_mla": False}, "full_attention"),
        ({"model_type": "axk2", "use_mla": False}, "full_attention"),
    ],
)
def test_layers_of_another_model(config: dict[str, Any], kept: str) -> None:
    """The note names the model type and what the layer keeps; the cache is planned all the same."""
    assert _note(config).endswith(f"a {config['model_type']} model have no formula for a layer that keeps {kept}.")
    assert plan(config, seq=100).cache.total_bytes > 0


@pytest.mark.parametrize("model_type", ["zamba", "zamba2"])
@pytest.mark.parametrize("key", ["layer_types", "layers_block_type"])
def test_zamba_with_any_layers(model_type: str, key: str) -> None:
    """Every pair of types that a hybrid may have is counted, or the note says why not."""
    for pair in product(LAYERS, repeat=2):
        model = load_model({"model_type": model_type, "num_hidden_layers": 4, key: [*pair, *pair]})
        assert model.counted is not None or "weights-unknown" in {note.code for note in model.notes}


@pytest.mark.parametrize("model_type", sample(sorted(known_families()), 74))
@pytest.mark.parametrize("inner", [TINY_LLAMA, MAMBA], ids=["llama", "mamba"])
def test_every_type_around_another_model(model_type: str, inner: dict[str, Any]) -> None:
    """A language model of another kind under any of the keys is read or refused."""
    for key in ("text_config", "decoder", "llm_config"):
        try:
            model = load_model({"model_type": model_type, key: inner})
        except KvplanError:
            continue
        assert model.stack.layers


def test_no_layers() -> None:
    """A list of no layers is refused before the weights are counted."""
    with pytest.raises(ConfigError):
        load_model({"model_type": "nemotron_h", "layers_block_type": []})


@pytest.mark.parametrize("path", sorted(Path(hwcalc.parsers.__file__).parent.rglob("*.py")), ids=lambda path: path.stem)
def test_no_parser_asserts(path: Path) -> None:
    """What a file says is refused with an error, never asserted: ``kind_in`` narrows what a layer keeps."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)] == []

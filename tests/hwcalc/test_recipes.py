"""The recipes in the folders' READMEs work: each is followed to the letter."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hwcalc.engines
from hwcalc import ModelSpec, plan
from hwcalc.engines import ENGINES, transformers, transformers_layers
from hwcalc.errors import ConfigError, UnreadKeysError, UnsupportedError, UsageError
from hwcalc.formulas import KINDS, Stack
from hwcalc.parsers import registry
from tests.paths import ROOT

Follow = Callable[[str, str], ModuleType]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Put the module that a README shows into its package, for one test."""
    added: list[str] = []

    def put(package: str, name: str) -> ModuleType:
        readme = (ROOT / package / "README.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"(?ms)^ +```python\n(.*?)^ +```", readme)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        parent = importlib.import_module(package.replace("/", "."))
        monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(tmp_path)])
        added.append(f"{parent.__name__}.{name}")
        return importlib.import_module(added[-1])

    yield put
    for module in added:
        del sys.modules[module]


@pytest.mark.parametrize("folder", ["formulas", "hwcalc/parsers", "hwcalc/engines"])
def test_a_recipe_has_at_most_five_steps(folder: str) -> None:
    """Numbered from 1 without gaps; the files that it names exist."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    steps = re.findall(r"(?m)^(\d)\. \*\*", text)

    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    assert 1 < len(steps) <= 5
    for path in re.findall(r"`((?:formulas|hwcalc|tests|scripts)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


def test_a_layer_kind(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind is registered, its docstring holds, the reference plans it, and transformers takes it once it has a rule."""
    known = dict(KINDS)
    module = follow("formulas", "retention")
    kind: Any = KINDS.pop("retention")
    try:
        assert known == KINDS
        assert doctest.testmod(module).failed == 0
        layer = kind(num_heads=4, key_head_dim=64, value_head_dim=128)
        model = ModelSpec(
            id="retnet",
            source="python",
            location="",
            revision=None,
            model_type="retnet",
            architecture=None,
            stack=Stack(((layer,),) * 12),
            dtype="bf16",
        )

        # 12 layers x 4 heads x 64 x 128 x 4 bytes, however long the sequence
        assert plan(model, seq=1).cache.total_bytes == plan(model, seq="1M").cache.total_bytes == 12 * 4 * 64 * 128 * 4

        with pytest.raises(UnsupportedError, match="retention"):
            plan(model, seq=1, engine="transformers")
        rules: Any = {**transformers_layers.RULES, kind: transformers_layers._plain}
        monkeypatch.setattr(transformers, "RULES", rules)
        assert plan(model, seq=1, engine="transformers").cache.total_bytes == 12 * 4 * 64 * 128 * 4
    finally:
        KINDS.clear()
        KINDS.update(known)


def test_a_model_type(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model type is planned and weighed; a missing, a wrong and an unread key are errors that name it."""
    index: Any = {**registry._index(), "language": {"globals_first": {"globals_first": "GLOBALS_FIRST"}}}
    monkeypatch.setattr(registry, "_index", lambda: index)
    registry._rows.cache_clear()
    config = {
        "model_type": "globals_first",
        "num_hidden_layers": 10,
        "num_global_layers": 2,
        "sliding_window": 100,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "hidden_size": 256,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    try:
        follow("hwcalc/parsers", "globals_first")

        planned = plan(config, seq=1000)
        # 2 layers of 1,000 tokens and 8 of 100, each 4 heads x (64 + 64) x 2 bytes
        assert planned.cache.total_bytes == (2 * 1000 + 8 * 100) * 4 * (64 + 64) * 2
        # Queries and output 8 heads, keys and values 4 each, of 64; a norm of 64 for both; three matrices; two norms
        layer = 256 * 64 * (8 + 8 + 4 + 4) + 2 * 64 + 3 * 256 * 512 + 2 * 256
        assert planned.memory.weights.bytes == 2 * (1000 * 256 + 10 * layer + 256)
        with pytest.raises(ConfigError, match="num_global_layers is missing"):
            plan({key: value for key, value in config.items() if key != "num_global_layers"}, seq=1000)
        with pytest.raises(ConfigError, match="num_global_layers is 11"):
            plan({**config, "num_global_layers": 11}, seq=1000)
        with pytest.raises(UnreadKeysError, match="attention_sink_window"):
            plan({**config, "attention_sink_window": 4}, seq=1000)
    finally:
        monkeypatch.undo()
        registry._rows.cache_clear()


def test_an_engine(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine plans by name, with its option; an option that it does not have is an error that lists those it has."""
    module = follow("hwcalc/engines", "paged")
    monkeypatch.setitem(ENGINES, "paged", (module.__name__, "Paged"))
    config = {"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 256}
    try:
        # 17 tokens are two pages of 16, or five of 4; 3 layers x 4 heads x (64 + 64) x 2 bytes
        assert plan(config, seq=17, engine="paged", dtype="bf16").cache.total_bytes == 32 * 3 * 4 * (64 + 64) * 2
        smaller = plan(config, seq=17, engine="paged", dtype="bf16", engine_options={"block_size": 4})
        assert smaller.cache.total_bytes == 20 * 3 * 4 * (64 + 64) * 2
        # Registered, it has the whole equation and the solvers: 4 ranks keep a head each, in pages, and the longest fills one.
        sized = config | {"vocab_size": 100, "intermediate_size": 512, "max_position_embeddings": 2**20}
        shared = plan(sized, seq=17, engine="paged", dtype="bf16", gpu="l4", tp=4)
        assert shared.cache.per_gpu_bytes * 4 == shared.cache.total_bytes
        assert shared.fit is not None
        assert shared.fit.verdict == "fits"
        by_hand = plan(sized, seq=17, engine="paged", dtype="bf16", kv_memory=100 * 3 * 4 * 128 * 2).fit
        assert by_hand is not None
        assert (by_hand.max_seq, by_hand.max_batch) == (96, 3)
        with pytest.raises(UsageError, match="page_size") as caught:
            plan(config, seq=17, engine="paged", engine_options={"page_size": 4})
        assert "block_size" in caught.value.hint
    finally:
        hwcalc.engines._load.cache_clear()

"""Absent, null and given: every key that decides a decoder's cache is read as transformers' own config object has it.

For each model type the document has that one key more or less than the type alone, and the layers are compared with the cache that
transformers makes for the object: full or sliding, the window, key/value heads and their width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import pytest

from hwcalc import load_model
from hwcalc.errors import KvplanError
from hwcalc.formulas import FullAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.sliding import ChunkedAttention, SlidingAttention
from hwcalc.parsers.class_table import class_defaults
from hwcalc.parsers.config import Config

GIVEN: Final[Mapping[str, Any]] = {
    "attention_chunk_size": 96,
    "global_attn_every_n_layers": 3,
    "head_dim": 48,
    "max_window_layers": 2,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "sliding_window": 77,
    "sliding_window_pattern": 3,
    "sliding_window_size": 77,
    "use_sliding_window": True,
}
ELSEWHERE: Final[Mapping[str, str]] = {
    "falcon": "its model reads multi_query, not the number of key/value heads",
    "hrm_text": "each of its layers runs several times, with a cache of its own",
    "mimo_v2_flash": "its sliding layers double the key/value heads, which no key says",
    "step3p5": "transformers reads these keys in text_config only",
}
"""Model types whose config object does not say what its model caches."""

Layer = tuple[int | None, int | None, int | None]


def decoders() -> list[str]:
    """Model types of plain decoders that transformers has a config class for."""
    rooms = json.loads(files("hwcalc.parsers").joinpath("index.json").read_text(encoding="utf-8"))["language"]
    types = {name for room, names in rooms.items() if room.startswith("decoder.") for name in names}
    return sorted(name for name in types - set(ELSEWHERE) if class_defaults(name) is not None)


def documents(model_type: str) -> dict[str, dict[str, Any]]:
    """The type alone, and with each of its keys null and given."""
    known = class_defaults(model_type)
    assert known is not None
    keys = [key for key in GIVEN if key in known.defaults]
    named = {"absent": {}} | {f"{key} null": {key: None} for key in keys} | {f"{key} given": {key: GIVEN[key]} for key in keys}
    return {name: {"model_type": model_type, **own} for name, own in named.items()}


def theirs(document: Mapping[str, Any]) -> list[Layer] | None:
    """The layers of the cache that transformers makes; ``None`` where the class refuses the document."""
    from transformers import CONFIG_MAPPING, DynamicCache

    keys = {key: value for key, value in document.items() if key != "model_type"}
    try:
        config: Any = CONFIG_MAPPING[document["model_type"]](**keys)
        layers = DynamicCache(config=config).layers
    except Exception:  # noqa: BLE001 - classes refuse in many ways
        return None
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    own = getattr(config, "num_key_value_heads", heads)
    return [(getattr(layer, "sliding_window", None), own, size) for layer in layers]


def ours(document: Mapping[str, Any]) -> list[Layer] | None:
    """The layers by kvplan; ``None`` where it refuses the document."""
    try:
        stack = load_model(dict(document)).stack_for("transformers")
    except KvplanError:
        return None
    kept: dict[int, Layer] = {}
    for group in stack.groups:
        kind = group.kind
        assert isinstance(kind, AttentionKind)
        window = kind.window if isinstance(kind, SlidingAttention) else kind.chunk if isinstance(kind, ChunkedAttention) else None
        assert window is not None or isinstance(kind, FullAttention)
        kept |= dict.fromkeys(group.layers, (window, kind.num_key_value_heads, kind.head_dim))
    return [layer for _, layer in sorted(kept.items())]


@pytest.mark.parametrize("model_type", decoders())
def test_the_layers_are_those_of_the_config_object(model_type: str) -> None:
    """What the class accepts gives the same layers here, or an error: never other ones."""
    pytest.importorskip("transformers")
    for name, document in documents(model_type).items():
        expected, found = theirs(document), ours(document)
        if expected is not None and found is not None and all(layer[1] is not None for layer in expected):
            assert expected == found, name


def test_most_documents_are_compared() -> None:
    """The law is not empty: over 400 documents that both sides read, nulls among them."""
    pytest.importorskip("transformers")
    both = [
        name
        for model_type in decoders()
        for name, document in documents(model_type).items()
        if theirs(document) is not None and ours(document) is not None
    ]

    assert len(both) >= 400
    assert {"sliding_window null", "num_key_value_heads null", "head_dim null"} <= set(both)


@pytest.mark.parametrize("model_type", decoders())
def test_null_is_not_absent(model_type: str) -> None:
    """An absent key is the class's default, a null is null, a value is that value, whatever the class's default is."""
    known = class_defaults(model_type)
    assert known is not None
    for key in (key for key in GIVEN if key in known.defaults and key not in known.aliases):
        assert known.defaults[key] == Config({}, model_type).get(key)
        assert Config({key: None}, model_type).get(key, "no default") is None
        assert GIVEN[key] == Config({key: GIVEN[key]}, model_type).get(key)

"""Absent, null and given: every key that decides a decoder's cache is read as transformers' own config object has it.

For each model type the document has that one key more or less than the type alone, and the layers are compared with the cache that
transformers makes for the object: full or sliding, the window, key/value heads and their width. Every type gets every key, also those
that only other types have: a file may have them, and the library's object keeps them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.errors import KvplanError, UnreadKeysError
from hwcalc.formulas import FullAttention
from hwcalc.formulas.attention import AttentionKind, ChunkedAttention, SlidingAttention
from hwcalc.parsers.config import Config, class_defaults
from tests.effort import sample

GIVEN: Final[Mapping[str, Any]] = {
    "attention_chunk_size": 96,
    "attention_window_size": 77,
    "global_attn_every_n_layers": 3,
    "head_dim": 48,
    "local_attention": 154,
    "max_window_layers": 2,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "sliding_window": 77,
    "sliding_window_pattern": 3,
    "sliding_window_size": 77,
    "use_sliding_window": True,
    "v_head_dim": 24,
    "window_size": 77,
}
ELSEWHERE: Final[Mapping[str, str]] = {
    "blt": "it keeps entries of patches of bytes, and is refused",
    "falcon": "its model reads multi_query, not the number of key/value heads",
    "hrm_text": "each of its layers runs several times, with a cache of its own",
    "mllama_text_model": "some of its layers attend to the image, and keep nothing without one",
    "mimo_v2_flash": "its sliding layers double the key/value heads, which no key says",
    "step3p5": "transformers reads these keys in text_config only",
}
"""Model types whose config object does not say what its model caches."""

Layer = tuple[int | None, int | None, int | None, int | None]


def decoders() -> list[str]:
    """Model types of plain decoders that transformers has a config class for."""
    rooms = json.loads(files("hwcalc.parsers").joinpath("index.json").read_text(encoding="utf-8"))["language"]
    types = {name for room, names in rooms.items() if room.startswith("decoder.") for name in names}
    return sorted(name for name in types - set(ELSEWHERE) if class_defaults(name) is not None)


def documents(model_type: str) -> dict[str, dict[str, Any]]:
    """The type alone, and with each of its keys null and given."""
    known = class_defaults(model_type)
    assert known is not None
    foreign = [key for key in GIVEN if key not in known.defaults]
    named = {"absent": {}} | {f"{key} null": {key: None} for key in GIVEN} | {f"{key} given": {key: GIVEN[key]} for key in GIVEN}
    if "sliding_window" in known.defaults and "attention_chunk_size" in foreign:
        named["chunks without a window"] = {"sliding_window": None, "attention_chunk_size": 96}
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
    heads, known = config.num_attention_heads, widths_of(document["model_type"])
    if any(key not in known for key in keys if key in ("num_key_value_heads", "head_dim")):
        return None
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    own = getattr(config, "num_key_value_heads", heads)
    values = config.v_head_dim if "v_head_dim" in known else size
    return [(getattr(layer, "sliding_window", None), own, size, values) for layer in layers]


@cache
def widths_of(model_type: str) -> frozenset[str]:
    """Which widths the model itself has: those of its config object, and a width of heads that its attention asks the object for.

    Other models build their heads without the key, or do not run with it.
    """
    from transformers import CONFIG_MAPPING

    plain = CONFIG_MAPPING[model_type]()
    configuration = Path(str(import_module(type(plain).__module__).__file__))
    modeling = configuration.with_name(configuration.name.replace("configuration", "modeling"))
    asks = modeling.exists() and 'self.head_dim = getattr(config, "head_dim"' in modeling.read_text(encoding="utf-8")
    own = {key for key in ("num_key_value_heads", "head_dim", "v_head_dim") if hasattr(plain, key)}
    return frozenset(own | {"head_dim"} if asks else own)


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
        kept |= dict.fromkeys(group.layers, (window, kind.num_key_value_heads, kind.head_dim, kind.v_head_dim))
    return [layer for _, layer in sorted(kept.items())]


@pytest.mark.parametrize("model_type", sample(decoders(), 26))
def test_the_layers_are_those_of_the_config_object(model_type: str) -> None:
    """What the class accepts gives the same layers here, or an error: never other ones."""
    for name, document in documents(model_type).items():
        expected, found = theirs(document), ours(document)
        if expected is not None and found is not None and all(layer[1] is not None for layer in expected):
            assert expected == found, name


def test_most_documents_are_compared() -> None:
    """The law is not empty: of every twelfth type both sides read over 150 documents, nulls and keys of other types among them."""
    both = [
        name
        for model_type in decoders()[::12]
        for name, document in documents(model_type).items()
        if theirs(document) is not None and ours(document) is not None
    ]

    assert len(both) >= 150
    assert {"sliding_window null", "num_key_value_heads null", "head_dim null", "chunks without a window"} <= set(both)


@pytest.mark.parametrize("model_type", sample(decoders(), 26))
def test_null_is_not_absent(model_type: str) -> None:
    """An absent key is the class's default, a null is null, a value is that value, whatever the class's default is."""
    known = class_defaults(model_type)
    assert known is not None
    for key in (key for key in GIVEN if key in known.defaults and key not in known.aliases):
        assert known.defaults[key] == Config({}, model_type).get(key)
        assert Config({key: None}, model_type).get(key, "no default") is None
        assert GIVEN[key] == Config({key: GIVEN[key]}, model_type).get(key)


SMALL: Final[Mapping[str, Any]] = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 99, "num_experts": 4, "num_experts_per_tok": 2, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("cohere2", "head_dim", 32),
        ("ernie4_5_moe", "sliding_window", 8),
        ("llama", "attention_chunk_size", 8),
        ("minimax_m2", "sliding_window", 8),
        ("qwen3_moe", "attention_chunk_size", 8),
    ],
)
def test_a_key_that_the_class_does_not_have_bears_all_the_same(model_type: str, key: str, value: int) -> None:
    """A small model is built and run: it has as many parameters, and its cache takes as many bytes, as planned."""
    import torch
    import transformers

    known = class_defaults(model_type)
    assert known is not None
    assert known.defaults.get(key) is None
    given = {**SMALL, key: value}
    config = transformers.CONFIG_MAPPING[model_type](**given)
    model, cache = transformers.AutoModelForCausalLM.from_config(config).eval(), transformers.DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 40, dtype=torch.long), cache=cache)
    stored = sum(tensor.numel() * tensor.element_size() for layer in cache.layers for tensor in (layer.keys, layer.values))
    document = {"model_type": model_type, **given}
    parameters = load_model(document).parameters

    assert plan(document, seq=40, engine="transformers").cache.total_bytes == stored
    assert parameters is not None
    assert parameters.total == sum(weight.numel() for weight in model.parameters())


def test_chunks_of_the_config_object_alone_are_not_in_vllm() -> None:
    """The library's cache has the chunks of any config object; vLLM's Llama code has none."""
    model = load_model({"model_type": "llama", **SMALL, "attention_chunk_size": 8})

    assert isinstance(model.stack_for("transformers").groups[0].kind, ChunkedAttention)
    assert isinstance(model.stack_for("vllm").groups[0].kind, FullAttention)


@pytest.mark.parametrize("key", ["v_head_dim", "local_attention", "global_attn_layers"])
def test_a_width_or_window_of_other_models_is_refused(key: str) -> None:
    """The Llama class has no such key and builds the model without it: what the file means is not known."""
    with pytest.raises(UnreadKeysError, match=key):
        load_model({"model_type": "llama", **SMALL, key: 8})
    assert (
        load_model({"model_type": "llama", **SMALL, "v_head_dim": 16}).stack == load_model({"model_type": "llama", **SMALL}).stack
    )

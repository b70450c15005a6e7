"""Any JSON document as a config gives a plan of whole bytes or a documented error, never anything else."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hwcalc import KvplanError, Plan, load_model, plan, profiles
from hwcalc.formulas import NoCache
from hwcalc.parsers.registry import known_families
from tests.effort import sample

CATALOG: Final = Path(str(profiles.__file__)).parent / "models"
REQUESTS: Final = (
    {"engine": "reference"},
    {"engine": "reference", "dtype": "q8_0:q4_0", "batch": 3},
    {"engine": "reference", "dtype": "fp8_ds_mla"},
    {"engine": "transformers"},
    {"engine": "transformers@5.13", "batch": 2},
    {"engine": "transformers", "engine_options": {"cache": "static", "max_cache_len": 5000}},
    {"engine": "transformers", "engine_options": {"cache": "quantized"}},
)
MODEL_TYPES: Final = sorted(known_families())

# Numbers that files hold by accident, and those that break arithmetic.
STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2, 7, 10**6, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf"),
    "", "8", "full_attention", "null", "\ud800", [], [0], [None], [-1, 2], [[]], ["full_attention"], ["mamba", 3], [1] * 40,
    {}, {"model_type": "llama"}, {"": None}, {"a": {"b": [{}]}},
)  # fmt: skip

JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@lru_cache(maxsize=1)
def configs() -> Mapping[str, Mapping[str, Any]]:
    """The catalog's configs by id."""
    found = {}
    for path in sorted(CATALOG.glob("*/*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        found[document["id"]] = document["config"]
    return found


@lru_cache(maxsize=1)
def keys() -> list[str]:
    """Every key that a config of the catalog has, at any depth."""
    return sorted({key for config in configs().values() for mapping, key in places(config) if isinstance(mapping, dict)})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document that holds a value: its container and its key or index."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from places(item)


def check(config: Any) -> None:
    """Every request gives whole bytes that are not negative, or an error that says what is wrong."""
    for assume in (None, "gqa"):
        _read_or_refused(config, REQUESTS, seq=4097, assume=assume)


def _read_or_refused(config: Any, requests: Iterable[Mapping[str, Any]], *, seq: int, assume: str | None = None) -> None:
    """How a config is read does not depend on what is asked then: it is read once."""
    try:
        model = load_model(config, assume=assume)
    except KvplanError as refused:
        message = refused.message
    else:
        for request in requests:
            _planned_or_refused(model, seq=seq, **request)
        return
    assert 0 < len(message) < 2000


def _planned_or_refused(model: Any, **request: Any) -> None:
    try:
        planned = plan(model, **request)
    except KvplanError as refused:
        message = refused.message
    else:
        _whole(planned)
        return
    assert 0 < len(message) < 2000


def _whole(planned: Plan) -> None:
    cache = planned.cache
    sizes = [cache.bytes_per_token, cache.state_bytes_per_sequence, cache.bytes_per_sequence, cache.total_bytes]
    sizes += [tensor.bytes for tensor in cache.tensors]
    assert all(type(size) is int and size >= 0 for size in sizes)
    json.dumps(planned.to_dict(), allow_nan=False)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=6))
@example({})
@example({"model_type": None})
@example({"model_type": []})
@example({"model_type": {}, "architectures": {}})
@example({"architectures": [None]})
@example({"architectures": [[]]})
@example({"text_config": {"text_config": {"text_config": {"text_config": {"model_type": "llama"}}}}})
def test_any_object(config: dict[str, Any]) -> None:
    """Objects that have nothing to do with a model."""
    check(config)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_values_for_known_keys(data: st.DataObject) -> None:
    """A known model type with any values under keys that configs really have."""
    config = data.draw(st.dictionaries(st.sampled_from(keys()), st.sampled_from(STRANGE) | JSON, max_size=12))
    config["model_type"] = data.draw(st.sampled_from(MODEL_TYPES))
    check(config)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_real_configs(seed: int) -> None:
    """Real configs with keys dropped, values replaced, and values moved to other keys."""
    chance = random.Random(seed)  # noqa: S311
    for config in chance.sample([*configs().values()], 12):
        for _ in range(4):
            damaged = copy.deepcopy(dict(config))
            for _ in range(chance.choice((1, 1, 2, 5))):
                _damage(damaged, chance)
            check(damaged)


def _damage(config: dict[str, Any], chance: random.Random) -> None:
    spots = list(places(config))
    if not spots:
        return
    container, key = chance.choice(spots)
    match chance.randrange(4):
        case 0:
            del container[key]
        case 1:
            container[key] = copy.deepcopy(chance.choice(STRANGE))
        case 2:
            container[key] = copy.deepcopy(_value(chance.choice(spots)))
        case _:
            container[key] = _value((container, key)) * chance.choice((-1, 3, 1000)) if _is_integer(container[key]) else None


def _value(spot: tuple[Any, Any]) -> Any:
    container, key = spot
    return container[key]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@pytest.mark.parametrize("model_type", sample(MODEL_TYPES, 74))
def test_every_model_type_stands_every_strange_value(model_type: str) -> None:
    """Alone, with an eighth of the strange values for each key that matters most, the type is planned or refused."""
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim", "layer_types", "sliding_window"):
        for value in STRANGE[len(model_type + key) % 8 :: 8]:
            _read_or_refused({"model_type": model_type, key: value}, REQUESTS[::3], seq=100)


@pytest.mark.parametrize("model", sample(configs(), 120))
def test_every_catalog_model_is_planned(model: str) -> None:
    """Each model of the catalog has a plan by the formulas, as it is, and one for a longer sequence that takes no less."""
    short, long = (plan(configs()[model], seq=seq) for seq in (1000, 10_000))

    _whole(short)
    assert short.cache.total_bytes <= long.cache.total_bytes
    # An encoder keeps nothing from one token to the next.
    keeps = any(layers.kind != NoCache.name for layers in short.model.layers)
    assert (short.cache.total_bytes > 0) == keeps


@pytest.mark.parametrize("depth", [100, 5_000])
def test_deep_nesting(depth: int) -> None:
    """A document nested deeper than any model is refused like any other."""
    config: dict[str, Any] = {"model_type": "llama"}
    for _ in range(depth):
        config = {"text_config": config, "layer_types": [config]}
    check(config)


@pytest.mark.parametrize("digits", [100, 5_000])
def test_numbers_too_long_to_print(digits: int) -> None:
    """An integer that Python refuses to write out is refused by name."""
    for key in ("num_hidden_layers", "head_dim", "sliding_window", "max_position_embeddings", "vocab_size"):
        check({"model_type": "llama", key: 10**digits})


def test_a_document_that_is_no_object() -> None:
    """A list, a number or nothing is no config."""
    documents: tuple[Any, ...] = ([], 1, None, True, 1.5)
    for document in documents:
        with pytest.raises(KvplanError):
            plan(document)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"")
@example(b"null")
@example(b"\xff\xfe{")
@example(b'{"model_type": "llama", "num_hidden_layers": 1' + b"0" * 5000 + b"}")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"model_type": "llama", "num_hidden_layers": NaN, "hidden_size": Infinity, "head_dim": -Infinity}')
@example(b'{"model_type": "llama", "model_type": "mamba"}')
@example(b"GGUF" + bytes(20))
def test_any_bytes(document: bytes) -> None:
    """A file of anything is a config or refused."""
    for stream in (io.BytesIO(document), io.StringIO(document.decode("utf-8", "replace"))):
        _planned_or_refused(stream, seq=17)

"""Laws that hold for every layer kind, length, batch and dtype, whatever the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from hwcalc import ModelSpec, Plan
from hwcalc.formulas import (
    BlockSparseAttention,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    GatedLinearAttention,
    LayerKind,
    LightningAttention,
    MatrixLSTM,
    MetaTokens,
    SinkAttention,
    SlidingAttention,
    Stack,
    StreamConvolutions,
)
from hwcalc.planner.plan import plan_model
from hwcalc.profiles.dtypes import dtype_names
from tests.formulas.strategies import attention, dimensions, kinds

TOKENS: Final = st.integers(1, 5_000)
BATCH: Final = st.integers(1, 9)
DTYPES: Final = st.sampled_from(dtype_names())
STACKS: Final = st.lists(kinds(), min_size=1, max_size=4)
NOT_IN_TRANSFORMERS: Final = (SinkAttention, StreamConvolutions)
NEVER_STATIC: Final = (BlockSparseAttention, CompressedAttention, GatedLinearAttention, LightningAttention, MetaTokens)


def model(*layers: LayerKind) -> ModelSpec:
    """A model of these layers, in bf16, with an encoder of 77 tokens where one is asked for."""
    return ModelSpec(
        id="law",
        source="python",
        location="",
        revision=None,
        model_type="law",
        architecture=None,
        stack=Stack(tuple((layer,) for layer in layers)),
        dtype="bf16",
        encoder_tokens=77,
    )


def planned(*layers: LayerKind, **request: Any) -> Plan:
    """A plan of a model of these layers."""
    return plan_model(model(*layers), **request)


def total(*layers: LayerKind, **request: Any) -> int:
    """Its bytes."""
    return planned(*layers, **request).cache.total_bytes


@given(kinds(), TOKENS, TOKENS, DTYPES)
def test_more_tokens_never_take_less(kind: LayerKind, tokens: int, more: int, dtype: str) -> None:
    """The reference is monotone in length for every kind."""
    assert total(kind, seq=tokens, dtype=dtype) <= total(kind, seq=tokens + more, dtype=dtype)


@given(STACKS, TOKENS)
def test_bytes_per_token_is_the_next_token(layers: list[LayerKind], tokens: int) -> None:
    """What the plan calls growth is the difference between two plans."""
    now, then = planned(*layers, seq=tokens).cache, planned(*layers, seq=tokens + 1).cache

    assert now.bytes_per_token == then.total_bytes - now.total_bytes


@given(STACKS, STACKS, TOKENS, DTYPES)
def test_layers_add_up(some: list[LayerKind], others: list[LayerKind], tokens: int, dtype: str) -> None:
    """A model takes what its layers take one by one."""
    request = {"seq": tokens, "dtype": dtype}

    assert total(*some, *others, **request) == sum(total(layer, **request) for layer in (*some, *others))


@given(kinds(), TOKENS, st.integers(1, 64), DTYPES)
def test_a_rank_never_holds_less_than_its_share(kind: LayerKind, tokens: int, ranks: int, dtype: str) -> None:
    """All ranks together hold at least the whole, and none holds more than it; a rank more never makes a rank fuller."""
    whole, rank = total(kind, seq=tokens, dtype=dtype), total(kind.shard(ranks), seq=tokens, dtype=dtype)
    assert rank <= whole <= rank * ranks
    assert total(kind.shard(ranks + 1), seq=tokens, dtype=dtype) <= rank


@given(STACKS, TOKENS, BATCH)
def test_sequences_add_up(layers: list[LayerKind], tokens: int, batch: int) -> None:
    """The reference is linear in the batch."""
    many = planned(*layers, seq=tokens, batch=batch).cache

    assert many.total_bytes == batch * many.bytes_per_sequence == batch * total(*layers, seq=tokens)


@given(kinds(without=(*NOT_IN_TRANSFORMERS, MatrixLSTM)), TOKENS, BATCH)
def test_transformers_keeps_one_cache_per_sequence(kind: LayerKind, tokens: int, batch: int) -> None:
    """So does its dynamic cache; only xLSTM has a counter that the whole batch shares."""
    once = total(kind, seq=tokens, engine="transformers")

    assert total(kind, seq=tokens, batch=batch, engine="transformers") == batch * once


@given(
    kinds(without=(*NOT_IN_TRANSFORMERS, *NEVER_STATIC)),
    TOKENS,
    st.integers(0, 5_000),
)
def test_a_static_cache_is_never_smaller(kind: LayerKind, tokens: int, spare: int) -> None:
    """Preallocated positions are at least those in use, and more of them never take less."""
    dynamic = total(kind, seq=tokens, engine="transformers")
    static = [
        total(kind, seq=tokens, engine="transformers", engine_options={"cache": "static", "max_cache_len": str(length)})
        for length in (tokens, tokens + spare)
    ]

    assert dynamic <= static[0] <= static[1]


@given(attention(), dimensions(), TOKENS, DTYPES)
def test_grouped_queries_stand_between_one_head_and_all(mha: FullAttention, heads: int, tokens: int, dtype: str) -> None:
    """One key/value head takes least, one for each query head most."""
    queries = max(heads, mha.num_key_value_heads)
    multi = replace(mha, num_attention_heads=queries, num_key_value_heads=queries)
    grouped = replace(multi, num_key_value_heads=min(heads, mha.num_key_value_heads))
    single = replace(multi, num_key_value_heads=1)

    one, some, every = (total(kind, seq=tokens, dtype=dtype) for kind in (single, grouped, multi))

    assert one <= some <= every == queries * one


@given(attention(), TOKENS, DTYPES)
def test_twice_the_heads_take_twice_the_bytes(kind: FullAttention, tokens: int, dtype: str) -> None:
    """Also in block dtypes, whose blocks run along a head and not across heads."""
    doubled = replace(kind, num_key_value_heads=2 * kind.num_key_value_heads)

    assert total(doubled, seq=tokens, dtype=dtype) == 2 * total(kind, seq=tokens, dtype=dtype)


@given(attention(), dimensions(), dimensions(), TOKENS, DTYPES)
def test_looking_back_less_never_takes_more(full: FullAttention, window: int, sink: int, tokens: int, dtype: str) -> None:
    """Window, chunk and sinks are never above full attention, and equal to it while nothing has been let go."""
    request = {"seq": tokens, "dtype": dtype}
    dims = asdict(full)
    sliding = total(SlidingAttention(**dims, window=window), **request)
    chunked = total(ChunkedAttention(**dims, chunk=window), **request)
    sinking = total(SinkAttention(**dims, sink=sink, window=window), **request)
    everything = total(full, **request)

    assert sliding == chunked <= sinking <= everything
    assert (sliding == everything) == (tokens <= window)
    assert (sinking == everything) == (tokens <= sink + window)


@given(attention(CrossAttention), TOKENS, st.integers(0, 5_000))
def test_cross_attention_is_as_long_as_the_encoder_input(kind: CrossAttention, tokens: int, encoded: int) -> None:
    """Decoded tokens add nothing; encoder tokens take what tokens of full attention take."""
    full = FullAttention(**asdict(kind))

    assert total(kind, seq=tokens, encoder_seq=encoded) == (total(full, seq=encoded) if encoded else 0)


@given(attention(), TOKENS, DTYPES, DTYPES)
def test_key_and_value_dtypes_split_the_bytes(kind: FullAttention, tokens: int, key: str, value: str) -> None:
    """K:V takes the keys of one plan and the values of the other."""

    def part(plan: Plan, role: str) -> int:
        return sum(tensor.bytes for tensor in plan.cache.tensors if tensor.role == role)

    both = planned(kind, seq=tokens, dtype=f"{key}:{value}")

    assert part(both, "key") == part(planned(kind, seq=tokens, dtype=key), "key")
    assert part(both, "value") == part(planned(kind, seq=tokens, dtype=value), "value")


def _numbers(document: object) -> list[object]:
    if isinstance(document, Mapping):
        return [number for value in document.values() for number in _numbers(value)]
    if isinstance(document, list):
        return [number for value in document for number in _numbers(value)]
    return [document] if isinstance(document, (int, float)) and not isinstance(document, bool) else []


@given(STACKS, TOKENS, BATCH, DTYPES)
def test_json_holds_whole_numbers(layers: list[LayerKind], tokens: int, batch: int, dtype: str) -> None:
    """Every number of the document is an integer and not negative; the tensors add up to the total; the state is part of it."""
    document = planned(*layers, seq=tokens, batch=batch, dtype=dtype).to_dict()
    cache = document["cache"]

    assert all(isinstance(number, int) and number >= 0 for number in _numbers(document))
    assert sum(tensor["bytes"] for tensor in cache["tensors"]) == cache["total_bytes"]
    assert cache["state_bytes_per_sequence"] <= cache["bytes_per_sequence"]
    assert json.loads(json.dumps(document, allow_nan=False)) == document

"""What a rank allocates: the bytes that were planned for it, in the engines' shapes."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import pytest

from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import ITEM_BYTES, Allocation
from hwcalc.engines.stored import fullest_stage
from hwcalc.errors import KvplanError
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request
from hwcalc.planner.plan import stored_layers
from hwcalc.sources.listing import known_ids
from tests.effort import cases, sample

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_size": 128,
    "torch_dtype": "bfloat16",
}


def opened(model: Any, **options: Any) -> Occupancy:
    """An opened request."""
    return open_request(load_model(model), **options)


def total(allocations: tuple[Allocation, ...]) -> int:
    """The bytes of all allocations."""
    return sum(one.bytes for one in allocations)


def test_contiguous_layers() -> None:
    """Keys and values of each layer are [batch, heads, tokens, head_dim]: 3 x 4 x 100 x 16 numbers of 2 bytes."""
    context = opened(LLAMA, seq=100, batch=3)
    made = context.allocation(0)

    assert [one.name for one in made[:3]] == ["layers.0.keys", "layers.0.values", "layers.1.keys"]
    assert (made[0].shape, made[0].dtype, made[0].bytes) == ((3, 4, 100, 16), "bf16", 38_400)
    assert len(made) == 10


def test_stages_and_shards() -> None:
    """Five layers over two stages are three and two; four heads over tp 2 are two each."""
    context = opened(LLAMA, seq=100, batch=3, tp=2, pp=2)
    first, last = (context.allocation(stage) for stage in (0, 1))

    assert [len(first), len(last)] == [6, 4]
    assert {one.layer for one in first} == {0, 1, 2}
    assert first[0].shape == (3, 2, 100, 16)
    assert fullest_stage(context) == 0
    assert total(first) == context.needed_bytes


def test_a_latent_is_whole_on_every_rank() -> None:
    """DeepSeek-V3: 61 layers of 512 + 64 numbers a token, whatever tp."""
    for tp in (1, 8):
        context = opened("deepseek-ai/DeepSeek-V3", seq=10, tp=tp)
        assert total(context.allocation(0)) == 61 * 10 * 576 * 2


def test_packed_formats_are_rows_of_bytes() -> None:
    """q8_0 keeps 32 numbers in 34 bytes: heads of 64 take rows of 68."""
    context = opened({**LLAMA, "head_dim": 64}, seq=10, dtype="q8_0")

    assert context.allocation(0)[0].shape == (1, 4, 10, 68)
    assert context.allocation(0)[0].dtype == "uint8"


def test_tokens_over_dcp() -> None:
    """With seven tokens on two ranks, the fullest rank has four."""
    context = opened(LLAMA, seq=7, tp=8, dcp=2)

    assert context.allocation(0)[0].shape == (1, 1, 4, 16)


def test_a_quantized_cache_has_its_scales() -> None:
    """int4 by quanto: 4 heads x 16 tokens x 16 numbers in half a byte each, and 16 groups of 64 with a scale and a shift."""
    context = opened(LLAMA, seq=16, engine="transformers", engine_options={"cache": "quantized"})
    keys, scale, shift = context.allocation(0)[:3]

    assert (keys.bytes, keys.dtype) == (512, "uint8")
    assert scale.shape == shift.shape == (16,)
    assert scale.dtype == "bf16"


def test_a_pool_is_one_buffer_a_layer() -> None:
    """100 tokens are seven blocks of 16, three sequences 21, and one is the null block; a page is 16 x 4 x 2 x 16 x 2 bytes."""
    context = opened({**LLAMA, "architectures": ["LlamaForCausalLM"]}, seq=100, batch=3, engine="vllm")
    made = context.allocation(0)

    assert [one.shape for one in made] == [(22, 4096)] * 5
    assert {one.dtype for one in made} == {"int8"}


def test_groups_share_buffers() -> None:
    """Gemma-3-27B: seven groups of at most ten layers lie in ten buffers, each of 131,072 bytes a block (1,310,720 in all)."""
    context = opened("google/gemma-3-27b-it", seq=4096, engine="vllm", kv_memory=1_310_720 * 50)
    made = context.allocation(0)

    assert [one.shape for one in made] == [(50, 131_072)] * 10


def test_a_given_number_of_blocks() -> None:
    """num_gpu_blocks_override sets the number of blocks, whatever the budget."""
    context = opened("Qwen/Qwen3-8B", seq=100, engine="vllm", engine_options={"num_gpu_blocks_override": "7"})

    assert {one.blocks for one in context.allocation(0)} == {7}


@cache
def one_of_each() -> tuple[str, ...]:
    """One model of the catalog for each model type and set of layer kinds."""
    found: dict[object, str] = {}
    for name in known_ids():
        model = load_model(name)
        found.setdefault((model.model_type, frozenset(type(group.kind) for group in model.stack.groups)), name)
    return tuple(found.values())


def null_block(one: Allocation) -> int:
    """Bytes of the block on top of the planned sequences; a tensor without blocks has none."""
    return one.bytes // one.blocks if one.blocks else 0


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("sizes", [{}, {"tp": 4, "pp": 3, "dp": 2, "batch": 3}], ids=str)
def test_ranks_hold_what_is_planned(engine_name: str, sizes: dict[str, int]) -> None:
    """For every type of model, the shapes give the bytes, and the fullest rank has the bytes of the plan."""
    checked = 0
    if find_engine(engine_name)[0].facts.splits_layers:
        sizes = {name: size for name, size in sizes.items() if name in ("pp", "batch")}
    try:
        opened(LLAMA, seq=300, engine=engine_name, **sizes)
    except KvplanError:
        # An engine without pipeline stages.
        sizes = {name: size for name, size in sizes.items() if name != "pp"}
    for name in sample(one_of_each(), 70):
        try:
            context = opened(name, seq=300, engine=engine_name, **sizes)
        except KvplanError:
            continue
        made = [context.allocation(stage) for stage in range(context.setup.parallel.pp)]
        for one in (one for stage in made for one in stage):
            assert one.bytes == prod(one.shape) * ITEM_BYTES[one.dtype] > 0, (name, one)
        everything = sum(count * tensor.bytes for _, _, count, tensor in stored_layers(context))
        assert everything == context.stored_bytes
        planned = context.needed_bytes
        if context.engine.facts.pooled:
            kinds = {one.blocks for stage in made for one in stage if one.blocks}
            held = max(sum(one.bytes - null_block(one) for one in stage) for stage in made)
            pool = context.pool(planned).value
            # Blocks of one kind are as many as the sequences need; several pools, or one of states alone, each get a share.
            shares = len(kinds) > 1 or (bool(kinds) and pool is not None and pool.bytes_per_token == 0)
            assert held <= planned if shares else held == planned, name
        else:
            assert planned == max(map(total, made)), name
        checked += 1
    assert checked > cases(6, 20)


def test_an_offloaded_cache_is_not_on_the_device() -> None:
    """An offloaded cache is refused, since it is not on the device."""
    context = opened(LLAMA, seq=100, engine="transformers", engine_options={"cache": "offloaded"})

    with pytest.raises(KvplanError, match="host memory"):
        context.allocation(0)

"""Sequences that share tokens: vLLM's own block manager, a simulator of block tables with reference counts, and laws."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc import plan
from hwcalc.engines.deployment import Occupancy, without_sharing
from hwcalc.engines.stored import Blocks, held_blocks
from hwcalc.engines.vllm.deployment import VllmOccupancy
from hwcalc.errors import UsageError
from hwcalc.formulas import Span
from hwcalc.formulas.tensor import Chunk, Full, Sink, Strided, Window
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request

ROWS: Final = json.loads((Path(__file__).parents[2] / "golden" / "vllm_sharing.json").read_text(encoding="utf-8"))["rows"]
STEPS: Final = [(row, lengths, used) for row in ROWS for lengths, used in row["steps"]]
QWEN: Final = "Qwen/Qwen3-8B"
ROW: Final = 36 * 2 * 8 * 128 * 2
"""Bytes of a token of Qwen3-8B: 36 layers, keys and values, 8 heads of 128 in 16 bits."""


def _opened(model: str, **options: Any) -> Occupancy:
    return open_request(load_model(model), **options)


def _in_vllm(model: str, **options: Any) -> VllmOccupancy:
    opened = _opened(model, **options)
    assert isinstance(opened, VllmOccupancy)
    return opened


def _together(row: dict[str, Any], lengths: list[int]) -> VllmOccupancy:
    """The plan of the sequences that run in a step of vLLM's scheduler."""
    options = {**row["options"], "block_size": str(row["block_size"])} if len(row["kinds"]) == 1 else row["options"]
    common = {"engine": "vllm", "prompt": row["prompt"], "engine_options": options}
    if len(set(lengths)) == 1:
        return _in_vllm(row["model"], seq=lengths[0], samples=len(lengths), **common)
    return _in_vllm(row["model"], lengths=tuple(lengths), batch=len(lengths), shared_prefix=row["prompt"], **common)


@pytest.mark.parametrize(("row", "lengths", "used"), STEPS, ids=lambda value: value["name"] if isinstance(value, dict) else "")
def test_blocks_are_those_of_vllm(row: dict[str, Any], lengths: list[int], used: int) -> None:
    """Blocks in use after a step of its own scheduler. Windows and states count what a sequence may hold at its most."""
    planned = _together(row, lengths)
    if len(row["kinds"]) == 1:
        assert planned.all_blocks == used
        return
    full = next(group for group in planned.layout.groups if group.specs[0].form == "full")
    others = len(row["kinds"]) - 1
    # A state of each sequence, or as many blocks of a window that is still open.
    beside = others * len(lengths) if "Mamba" in row["kinds"] else planned.held_in(full).total
    assert planned.held_in(full).total + beside == used
    assert planned.all_blocks >= used


def _simulated(tokens: int, prompt: int, prefix: int, requests: int, branches: int, block: int) -> int:
    """Blocks in use, counted by block tables: a block is found by all tokens up to its end, but the last token of a prompt never is."""
    pool: dict[tuple[Any, ...], int] = {}
    counts: Counter[int] = Counter()
    for request in range(requests):
        for _ in range(branches):
            words: list[Any] = [("all", place) for place in range(prefix)]
            words += [("request", request, place) for place in range(prefix, prompt)]
            found = True
            for number in range(-(-tokens // block)):
                end = (number + 1) * block
                key = tuple(words[:end])
                found = found and end < prompt and key in pool
                if not found:
                    table = len(counts)
                    # A second block of the same tokens is not merged with the first.
                    if end <= prompt:
                        pool.setdefault(key, table)
                    counts[table] += 1
                else:
                    counts[pool[key]] += 1
    assert sum(counts.values()) == requests * branches * -(-tokens // block)
    return len(counts)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_simulator_of_block_tables_agrees(data: st.DataObject) -> None:
    """Random requests, samples, prefixes and blocks."""
    block = data.draw(st.sampled_from([1, 2, 3, 8, 16]))
    tokens = data.draw(st.integers(1, 60))
    prompt = data.draw(st.integers(1, tokens))
    prefix = data.draw(st.integers(0, prompt))
    requests, branches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    whole = -(-tokens // block)
    by_all, by_request = min(prefix, prompt - 1) // block, (prompt - 1) // block
    held = held_blocks([(Blocks(whole, whole, by_all, by_request), requests, requests * branches)], 1)

    assert held.total == _simulated(tokens, prompt, prefix, requests, branches, block)


@pytest.mark.parametrize("span", [Full(), Window(7), Sink(2, 5), Chunk(6), Strided(4)], ids=repr)
@settings(max_examples=100, deadline=None)
@given(first=st.integers(0, 40), tokens=st.integers(1, 40))
def test_what_a_span_keeps_of_the_first_tokens(span: Span, first: int, tokens: int) -> None:
    """It is a part of all that is kept, grows with the first tokens, and of all tokens is nearly all."""
    kept = span.positions(tokens)
    assert 0 <= span.of_first(first, tokens) <= kept
    assert span.of_first(first, tokens) <= span.of_first(first + 1, tokens)
    if not isinstance(span, Chunk):
        assert span.of_first(tokens, tokens) == kept


def test_places_of_a_window() -> None:
    """Of ten tokens a window of 7 keeps the last seven, 3 to 9; of the first five these are 3 and 4."""
    assert Window(7).of_first(5, 10) == 2
    assert Sink(2, 5).of_first(6, 10) == 3  # 0, 1 and 5
    assert Chunk(6).of_first(8, 10) == 2  # the chunk began at 6


def test_tokens_of_the_reference() -> None:
    """A prefix of 2,048 once, 952 of each of 8 prompts, and 1,096 of each of 32 samples."""
    made = plan(QWEN, seq=4096, prompt=3000, shared_prefix=2048, samples=4, batch=8)
    assert made.cache.total_bytes == (2048 + 8 * 952 + 32 * 1096) * ROW
    assert made.sharing is not None
    assert made.sharing.unshared_bytes == 32 * 4096 * ROW
    assert made.cache.bytes_per_sequence == 4096 * ROW
    assert made.cache.read_bytes_per_step == 32 * 4096 * ROW


def test_replicas_have_a_prefix_each() -> None:
    """Two replicas of four requests each."""
    made = plan(QWEN, seq=4096, prompt=3000, shared_prefix=2048, samples=4, batch=8, dp=2)
    assert made.cache.total_bytes == (2 * 2048 + 8 * 952 + 32 * 1096) * ROW
    assert made.cache.per_gpu_bytes == (2048 + 4 * 952 + 16 * 1096) * ROW


def test_blocks_of_vllm() -> None:
    """70 tokens are 4 whole blocks and a part of one: each of four samples has two of its own. One that asks for 64 finds three."""
    made = plan(QWEN, seq=86, prompt=70, samples=4, engine="vllm")
    assert made.cache.total_bytes == (4 + 4 * 2) * 16 * ROW
    made = plan(QWEN, seq=80, prompt=64, samples=4, engine="vllm")
    assert made.cache.total_bytes == (3 + 4 * 2) * 16 * ROW


def test_beams_may_part_at_the_first_token() -> None:
    """The plan has room for that. While they have all but the last token in common, 63 blocks are kept once."""
    made = plan(QWEN, seq=1024, prompt=512, beams=4, engine="vllm")
    assert made.sharing is not None
    assert made.cache.total_bytes == (31 + 4 * 33) * 16 * ROW
    assert made.sharing.low_bytes == (63 + 4) * 16 * ROW


def test_what_shares_nothing() -> None:
    """Without prefix caching, and in a library that repeats the batch."""
    alone = plan(QWEN, seq=86, prompt=70, samples=4, engine="vllm", engine_options={"enable_prefix_caching": "false"})
    repeated = plan(QWEN, seq=86, prompt=70, samples=4, engine="transformers")
    for made, size in ((alone, 4 * 6 * 16 * ROW), (repeated, 4 * 86 * ROW)):
        assert made.sharing is not None
        assert (made.cache.total_bytes, made.sharing.saved_bytes, made.sharing.offered) == (size, 0, False)


def test_unlike_lengths() -> None:
    """To the token, in blocks, and padded to the longest."""
    asked: dict[str, Any] = {"lengths": "100,200,800"}
    assert plan(QWEN, **asked).cache.total_bytes == 1100 * ROW
    assert plan(QWEN, engine="vllm", **asked).cache.total_bytes == (7 + 13 + 50) * 16 * ROW
    padded = plan(QWEN, engine="transformers", **asked)
    assert padded.cache.total_bytes == 3 * 800 * ROW
    assert padded.sharing is not None
    assert padded.sharing.padded_tokens == 3 * 800 - 1100
    assert plan(QWEN, lengths=[100, 200, 800], batch=5).cache.total_bytes == (2 * 800 + 2 * 200 + 100) * ROW


def test_sequences_are_limited_and_requests_solved() -> None:
    """1,024 sequences at once are 256 requests of four."""
    made = plan(QWEN, seq=32, prompt=16, samples=4, engine="vllm", kv_memory="40GiB")
    assert made.fit is not None
    assert (made.fit.max_batch, made.fit.limiting) == (256, "max_num_seqs")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_most_requests_are_the_most(data: st.DataObject) -> None:
    """One more does not fit, and the figures of the log stay as they are."""
    seq = data.draw(st.integers(100, 5000))
    prompt = data.draw(st.integers(1, seq))
    asked: dict[str, Any] = {"seq": seq, "engine": "vllm", "kv_memory": "6GiB"}
    sharing: dict[str, Any] = {
        "prompt": prompt,
        "shared_prefix": data.draw(st.integers(0, prompt)),
        "samples": data.draw(st.integers(1, 6)),
    }
    plain, shared = plan(QWEN, **asked), plan(QWEN, **asked, **sharing)
    assert plain.pool is not None
    assert shared.pool is not None
    assert (plain.pool.tokens, plain.pool.max_concurrency) == (shared.pool.tokens, shared.pool.max_concurrency)
    most = shared.pool.max_requests or 0
    for requests in {max(1, most), most + 1}:
        opened = _in_vllm(QWEN, seq=seq, engine="vllm", batch=requests, **sharing)
        assert (opened.all_blocks <= (shared.pool.blocks or 0) - 1) == (requests <= most)


MODELS: Final = (
    QWEN,
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "mistralai/Mistral-7B-v0.1",
)


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm", "vllm@0.10", "vllm@0.27"])
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_sharing_never_costs(model: str, engine: str, data: st.DataObject) -> None:
    """Never more than without; less with a longer prefix; a request with one sample is none; more requests take no less."""
    if engine == "vllm@0.10" and model in {"Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-20b"}:
        return
    seq = data.draw(st.integers(2, 4000))
    prompt = data.draw(st.integers(1, seq))
    prefix = data.draw(st.integers(0, prompt))
    batch, samples = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))

    def held(prefix: int, samples: int, batch: int = batch) -> int:
        return _opened(
            model, seq=seq, prompt=prompt, engine=engine, shared_prefix=prefix, samples=samples, batch=batch
        ).stored_bytes

    alone = _opened(model, seq=seq, engine=engine, batch=batch).stored_bytes
    assert held(0, 1) == alone
    assert held(prefix, samples) <= alone * samples
    assert held(prefix, samples) <= held(prefix, samples + 1)
    assert held(prefix, samples) <= held(prefix, samples, batch + 1)
    if engine in {"reference", "transformers"} or model in {QWEN, "deepseek-ai/DeepSeek-V3"}:
        assert held(prefix, samples) <= held(prefix // 2, samples)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"seq": 100, "shared_prefix": 101}, "shared_prefix is 101 tokens"),
        ({"seq": 100, "prompt": 50, "shared_prefix": 51}, "the prompt has 50"),
        ({"lengths": "100,200", "shared_prefix": 150}, "the shortest sequence has 100"),
        ({"seq": 100, "samples": 2}, "how many tokens they have in common"),
        ({"seq": 100, "prompt": 50, "samples": 2, "beams": 2, "engine": "vllm"}, "not both"),
        ({"seq": 100, "prompt": 50, "samples": 2, "beams": 2, "engine": "transformers"}, "not both"),
        ({"seq": 100, "lengths": "100,200"}, "in the place of seq"),
        ({"lengths": "100,200,300", "batch": 2}, "fewer than the 3 lengths"),
        ({"lengths": "100,,300"}, "lengths"),
        ({"seq": 2**20, "prompt": 5, "samples": 2**40, "batch": 2}, "sequences"),
        ({"seq": 100, "prompt": 50, "shared_prefix": 50, "policy": "knorm:compression_ratio=0.5"}, "behind the shared prefix"),
        ({"lengths": "100,200", "policy": "knorm:compression_ratio=0.5"}, "one length"),
        (
            {"seq": 9000, "prompt": 5000, "shared_prefix": 50, "policy": "triattention:kv_budget=2048", "engine": "vllm@0.18"},
            "prefix caching off",
        ),
    ],
)
def test_what_is_refused(asked: dict[str, Any], says: str) -> None:
    """With what was given."""
    with pytest.raises(UsageError) as raised:
        plan(QWEN, **asked)
    assert says in str(raised.value)
    assert raised.value.hint


def test_a_policy_acts_behind_the_prefix() -> None:
    """Half of 2,000 tokens of the prompt behind 1,000 that stay."""
    asked: dict[str, Any] = {
        "seq": 4096,
        "prompt": 3000,
        "policy": "knorm:compression_ratio=0.5",
        "shared_prefix": 1000,
        "samples": 3,
    }
    assert plan(QWEN, **asked).cache.total_bytes == (1000 + 1000 + 3 * 1096) * ROW
    # In blocks, samples keep what is left of the prompt each for itself: 3,096 tokens in 194 blocks, of which 62 are the prefix.
    made = plan(QWEN, engine="vllm", **asked)
    assert made.cache.total_bytes == (62 + 3 * (194 - 62)) * 16 * ROW


@pytest.mark.parametrize("engine", ["reference", "transformers", "vllm", "llamacpp"])
@pytest.mark.parametrize(
    "asked", [{}, {"gpu": "l4"}, {"shared_prefix": 16}, {"policy": "knorm:compression_ratio=0.5"}, {"policy": "quest"}], ids=str
)
def test_a_plan_can_be_copied_and_pickled(engine: str, asked: dict[str, Any]) -> None:
    """With the rules that are an engine's own too, so that plans go between processes."""
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
        "intermediate_size": 128, "vocab_size": 100, "torch_dtype": "bfloat16",
    }  # fmt: skip
    found = plan(config, seq=512, batch=2, engine=engine, **asked)

    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found  # noqa: S301 - its own


@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"engine": "transformers", "samples": 3, "prompt": 20}])
def test_nothing_in_common_is_planned_once(options: dict[str, Any]) -> None:
    """Sequences by themselves are the planned ones already: no second request is opened for them."""
    opened = _opened(QWEN, seq=40, **{"engine": "vllm", **options})

    assert without_sharing(opened) is opened

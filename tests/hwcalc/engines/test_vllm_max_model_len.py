"""``--seq 8k --max-model-len 32k``: what users send, and what the server allows."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc import plan, sweep
from hwcalc.errors import UsageError
from hwcalc.planner.result import Plan
from hwcalc.report.emit import emitted
from tests.hwcalc.command import QWEN, Capture, run

TOKEN = 36 * 2 * 8 * 128 * 2
"""Qwen3-8B: layers x keys and values x heads x numbers x bytes."""
BLOCK = 16 * TOKEN


def planned(size: int, allowed: str | None = None, **more: Any) -> Plan:
    """Sequences of 8,192 tokens in a pool of so many bytes, on a server that allows others."""
    options = {} if allowed is None else {"max_model_len": allowed}
    return plan(QWEN, **{"seq": "8k", "engine": "vllm", "kv_memory": size, "engine_options": options, "offline": True, **more})


def test_requests_take_what_they_have_and_one_of_the_longest_must_fit() -> None:
    """8,192 tokens are 512 blocks, 32,768 are 2,048. With 2,048 blocks and the null block the server starts and holds 4 requests."""
    made = planned(2049 * BLOCK, "32k", batch=4)
    assert made.fit is not None
    assert made.pool is not None
    assert made.fit.fits
    assert made.cache.total_bytes == 4 * 8192 * TOKEN
    assert (made.fit.max_batch, made.pool.blocks_per_request) == (4, 512)
    assert made.pool.tokens == 2049 * 16
    assert made.pool.max_concurrency == 2049 / 2048
    assert made.pool.needed_bytes == 2048 * BLOCK


def test_the_server_refuses_to_start() -> None:
    """2,000 blocks hold 3 requests of 8,192 tokens, and not one of 32,768, for which vLLM asks before it starts."""
    for batch in (1, 3):
        made = planned(2001 * BLOCK, "32k", batch=batch)
        assert made.fit is not None
        assert made.pool is not None
        assert not made.fit.fits
        assert made.fit.max_batch == 0
        assert "max seq len (32768)" in (made.pool.message or "")
        alone = planned(2001 * BLOCK, batch=batch)
        assert alone.fit is not None
        assert alone.fit.fits


def test_what_helps_is_a_server_that_allows_less() -> None:
    """Shorter requests do not help it to start, and ``--max-model-len`` names no length of requests."""
    made = planned(2001 * BLOCK, "32k", batch=2)
    assert made.fit is not None
    first = made.fit.suggestions[0]
    assert first.flag == "--max-model-len 8192"
    assert "--seq 8k" in first.command
    assert "--engine-option max_model_len=8192" in first.command
    full = planned(2049 * BLOCK, "32k", batch=8)
    assert full.fit is not None
    (shorter,) = (one for one in full.fit.suggestions if "tokens instead of" in one.effect)
    assert shorter.flag == ""
    assert "--seq 4k --users 8" in shorter.command


def test_the_longest_sequence_is_what_the_server_allows() -> None:
    """However much memory there is."""
    made = planned(40_960 * BLOCK, "10k")
    assert made.fit is not None
    assert made.fit.max_seq == 10_240


def test_the_same_value_is_the_same_plan() -> None:
    """``max_model_len`` of the planned length says what is planned anyway."""
    one, other = planned(3000 * BLOCK, "8k", batch=2), planned(3000 * BLOCK, batch=2)
    assert one.fit is not None
    assert other.fit is not None
    assert (one.cache, one.fit.verdict, one.fit.max_batch) == (other.cache, other.fit.verdict, other.fit.max_batch)
    assert one.pool == other.pool


@pytest.mark.parametrize("model", ["google/gemma-3-12b-it", "ai21labs/Jamba-v0.1", "openai/gpt-oss-20b"])
def test_windows_and_states(model: str) -> None:
    """A longer maximum never frees memory, and requests take no more than they have."""
    asked: dict[str, Any] = {"engine": "vllm", "seq": "8k", "gpu": "h200-sxm-141gb", "offline": True, "batch": 4}
    plain, longer = (plan(model, **asked, engine_options=more) for more in ({}, {"max_model_len": "64k"}))
    assert plain.fit is not None
    assert longer.fit is not None
    assert longer.fit.needed_bytes >= plain.fit.needed_bytes
    assert (longer.fit.max_batch or 0) <= (plain.fit.max_batch or 0)
    assert (longer.fit.max_batch or 0) > 0


def test_longer_than_allowed() -> None:
    """A clear error, with what to type."""
    with pytest.raises(UsageError, match=r"8,192 tokens.*allows 4,096") as raised:
        planned(2**33, "4k")
    assert raised.value.hint.startswith("Use: --engine-option max_model_len=8192")


def test_alone_it_is_the_planned_length() -> None:
    """As it is with the flag alone."""
    made = plan(QWEN, engine="vllm", engine_options={"max_model_len": "8k"}, offline=True)
    assert made.request.seq == 8192


def test_both_flags_of_the_command_line(capsys: Capture) -> None:
    """The flag is vLLM's: 32k is 32,000. Without ``--seq`` it is the planned length; the written command has it again."""
    words = [QWEN, "--engine", "vllm", "--kv-memory", "8GiB", "--emit", "vllm"]
    assert "--max-model-len 32000 " in run(capsys, *words, "--max-model-len", "32k")[1]
    status, out, err = run(capsys, *words, "--seq", "8k", "--max-model-len", "32k")
    assert (status, out.count("--max-model-len 32000 ")) == (0, 1)
    assert "32,000" in err
    assert run(capsys, *words, "--max-model-len=32768", "--seq=8k")[1].count("--max-model-len 32768") == 1
    assert run(capsys, *words, "--lengths", "2k,8k", "--max-model-len", "32768")[1].count("--max-model-len 32768") == 1
    assert run(capsys, QWEN, "--seq", "8k", "--max-model-len", "32768")[0] == 2
    assert "--max-model-len 32768" in emitted(planned(2**33, "32k"), "vllm")


def test_explain_names_the_two_requests(capsys: Capture) -> None:
    """The log's concurrency is of requests of ``max_model_len``, the requests that are held are the planned ones."""
    words = ["explain", QWEN, "--engine", "vllm", "--gpu", "l40s", "--seq", "8k", "--max-model-len", "32768", "--quiet"]
    out = run(capsys, *words)[1]
    assert "blocks / blocks_of_longest" in out
    assert "times the longest request that the server allows" in out
    assert "floor(usable_blocks / blocks_per_request)" in out
    assert " max_model_len)" in out


def test_a_sweep_of_lengths() -> None:
    """Each row is the plan of its length."""
    rows = sweep(
        [QWEN], seq="4k,8k", engine="vllm", gpu="h100-sxm5-80gb", engine_options={"max_model_len": "32k"}, offline=True
    ).records()
    for row in rows:
        made = plan(
            QWEN, seq=row["seq"], engine="vllm", gpu="h100-sxm5-80gb", engine_options={"max_model_len": "32k"}, offline=True
        )
        assert made.cache.total_bytes == row["cache_total_bytes"]

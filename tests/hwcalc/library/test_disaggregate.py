"""Prefill and decode apart: the transfer and the balance by hand, and what the pools serve against their steps."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.errors import UsageError
from hwcalc.library.disaggregate import disaggregate
from hwcalc.planner.apart import Apart, balanced
from hwcalc.report.apart import apart_text
from hwcalc.report.view import View

ASKED: dict[str, Any] = {"engine": "vllm", "gpu": "h100-sxm5-80gb", "seq": 8192, "prompt": 7680, "offline": True}


@pytest.fixture(scope="module")
def found() -> Apart:
    """Llama 3.1 8B on H100."""
    return disaggregate(
        "meta-llama/Llama-3.1-8B", **ASKED, ttft="1s", itl="25ms", link="ib-ndr", prefill_servers=2, decode_servers=3
    )


def test_the_cache_of_a_prompt_moves(found: Apart) -> None:
    """128 KiB a token x 7,680 tokens are 960 MiB, over 400 Gbit/s in 20 ms: 2 x 32 layers x 8 heads x 128 x 2 bytes = 131,072 a token."""
    assert found.transfer.bytes_per_gpu == 131_072 * 7680
    assert found.transfer.seconds == pytest.approx(131_072 * 7680 / 50e9)


def test_each_pool_serves_what_its_steps_allow(found: Apart) -> None:
    """A server for prompts has one for each of their times while it is busy; one for tokens has its users for each of theirs.

    The first token is within its limit at the busy share: waiting of M/D/1, the prompt and the transfer.
    """
    prompts, tokens = found.prefill, found.decode
    assert prompts.busy is not None
    assert prompts.step_s.expected is not None
    assert tokens.users is not None
    assert tokens.step_s.expected is not None

    assert prompts.requests_per_s == pytest.approx(2 * prompts.busy / prompts.step_s.expected)
    assert tokens.requests_per_s == pytest.approx(3 * tokens.users / (511 * tokens.step_s.expected))
    assert found.requests_per_s == min(prompts.requests_per_s, tokens.requests_per_s)
    assert tokens.step_s.expected <= 0.025
    waiting = prompts.busy * prompts.step_s.expected / (2 * (1 - prompts.busy))
    assert waiting + prompts.step_s.expected + found.transfer.seconds <= 1 + 1e-9
    assert found.ttft_s <= 1 + 1e-9
    assert found.requests_per_s_low < found.requests_per_s


@pytest.mark.parametrize(
    ("prompts", "decoded", "gpus", "total", "rate", "servers"),
    [
        # One server for prompts keeps two for tokens busy.
        (2.0, 1.0, (1, 1), None, None, (1, 2)),
        (2.0, 1.0, (1, 1), 6, None, (2, 4)),
        # Servers for tokens have four GPUs each: of ten, two are for prompts.
        (1.0, 1.0, (1, 4), 10, None, (2, 2)),
        (1.5, 1.0, (1, 1), None, 3.1, (3, 4)),
    ],
)
def test_balance(
    prompts: float, decoded: float, gpus: tuple[int, int], total: int | None, rate: float | None, servers: tuple[int, int]
) -> None:
    """The numbers of servers that serve most for each GPU, with all there are, or the fewest for a rate."""
    assert balanced(prompts, decoded, gpus, total, rate) == servers


def test_unlike_pools_and_unlike_gpus() -> None:
    """Servers for tokens may be others; then there is no one pool to compare with."""
    found = disaggregate("meta-llama/Llama-3.1-8B", **ASKED, itl="25ms", rate=5, decode_gpu="h200-sxm-141gb", decode_tp=2)

    assert (found.prefill.gpu, found.decode.gpu, found.decode.tp) == ("h100-sxm5-80gb", "h200-sxm-141gb", 2)
    assert found.decode.gpus == 2 * found.decode.servers
    assert found.requests_per_s >= 5
    assert found.together is None


def test_what_no_number_of_servers_can() -> None:
    """A first token within less than its prompt takes is not served, and so it is said."""
    found = disaggregate("meta-llama/Llama-3.1-8B", **ASKED, ttft="10ms")

    assert not found.holds
    assert (found.requests_per_s, found.limiting) == (0, "prefill")
    # No number of servers helps, so none is offered.
    found = disaggregate("meta-llama/Llama-3.1-8B", **ASKED, ttft="10ms", rate=10)
    assert (found.holds, found.prefill.servers) == (False, 1)
    assert "no requests are served within the limits" in apart_text(found, View())
    assert "prompts" in apart_text(found, View(quiet=True))


@pytest.mark.parametrize(
    ("options", "words"), [({"link": "pigeon"}, "pigeon"), ({"prefill_servers": 2}, "servers"), ({"gpu": None}, "accelerators")]
)
def test_wrong_usage(options: dict[str, Any], words: str) -> None:
    """The error says what is allowed."""
    with pytest.raises(UsageError, match=words):
        disaggregate("meta-llama/Llama-3.1-8B", **{**ASKED, **options})

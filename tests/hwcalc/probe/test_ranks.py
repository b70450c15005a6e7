"""Several processes: who each is, what it allocates, and one table of all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hwcalc.errors import UsageError
from hwcalc.library.load import load_model
from hwcalc.planner.context import open_request
from hwcalc.probe.run import World, stage_of, world_of
from tests.hwcalc.command import REPOSITORY

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_size": 128,
    "torch_dtype": "bfloat16",
}


def together(count: int, *words: str, **more: str) -> list[subprocess.CompletedProcess[str]]:
    """``count`` processes of the probe with the variables that torchrun sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        **more,
    }

    def one(rank: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hwcalc.probe", *words, "--device", "cpu", "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            cwd=REPOSITORY,
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def config(tmp_path: Any, **changes: Any) -> str:
    """A config file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return str(path)


def sums(document: dict[str, Any]) -> list[int]:
    """Measured bytes of each rank."""
    return [sum(tensor["measured_bytes"] for tensor in rank["tensors"]) for rank in document["probe"]["ranks"]]


def test_two_uneven_stages(tmp_path: Any) -> None:
    """Five layers over two stages are three and two, each 2 x 4 heads x 100 tokens x 16 numbers x 2 bytes; rank 0 prints both."""
    first, second = together(2, config(tmp_path), "--seq", "100", "--pp", "2", "--fill")

    assert (first.returncode, second.returncode, second.stdout) == (0, 0, ""), first.stderr + second.stderr
    document = json.loads(first.stdout)
    layer = 2 * 4 * 100 * 16 * 2
    assert sums(document) == [3 * layer, 2 * layer]
    assert document["probe"]["agrees"] is True
    assert [(rank["rank"], rank["stage"], rank["filled"]) for rank in document["probe"]["ranks"]] == [(0, 0, True), (1, 1, True)]


def test_a_latent_on_every_rank() -> None:
    """DeepSeek-V2-Lite over tp 2: 27 layers of 512 + 64 numbers a token, all of it on both."""
    first, _ = together(2, "deepseek-ai/DeepSeek-V2-Lite", "--seq", "100", "--tp", "2", HF_HUB_OFFLINE="1")

    assert sums(json.loads(first.stdout)) == [27 * 100 * 576 * 2] * 2


def test_heads_divided_and_a_receipt_of_both(tmp_path: Any) -> None:
    """Pages of vLLM on tp 2 are half as wide; the receipt is written once and holds both ranks."""
    receipt = tmp_path / "receipt.json"
    words = ("--seq", "100", "--tp", "2", "--engine", "vllm", "--receipt", str(receipt))
    first, second = together(2, config(tmp_path), *words)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    document = json.loads(receipt.read_text())
    # Eight blocks (seven and the null block) x five layers x 16 tokens x 2 heads x 2 x 16 numbers x 2 bytes.
    assert sums(document) == [8 * 5 * 2048] * 2
    assert {tuple(tensor["shape"]) for rank in document["probe"]["ranks"] for tensor in rank["tensors"]} == {(8, 2048)}


def test_too_few_processes(tmp_path: Any) -> None:
    """Two processes for four ranks: one error, with what to type."""
    first, second = together(2, config(tmp_path), "--seq", "100", "--tp", "4")

    assert (first.returncode, second.returncode) == (2, 0)
    assert "--nproc-per-node 4" in json.loads(first.stdout)["error"]["hint"]


def test_an_error_of_a_rank_is_said_by_the_first(tmp_path: Any) -> None:
    """A limit that holds no layer: rank 0 says so, and nobody waits."""
    first, _ = together(2, config(tmp_path), "--seq", "100", "--pp", "2", "--max-bytes", "1")

    assert first.returncode == 2
    assert json.loads(first.stdout)["error"]["message"].startswith("rank 0: ")


def test_who_a_process_is() -> None:
    """By torchrun's variables; without them it is alone, and a launcher without local ones means one machine."""
    assert world_of({}) is None
    assert world_of({"RANK": "1"}) is None
    everything = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert world_of(everything) == World(rank=5, size=8, local_rank=1, local_size=4)
    assert world_of({"RANK": "1", "WORLD_SIZE": "2"}) == World(rank=1, size=2, local_rank=1, local_size=2)


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "two"},
        {"RANK": "0", "WORLD_SIZE": "0"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "9"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "3"},
        {"RANK": "0", "WORLD_SIZE": "999999999"},
        {"RANK": "", "WORLD_SIZE": "2"},
    ],
    ids=str,
)
def test_variables_that_make_no_sense(environment: dict[str, str]) -> None:
    """They are an error of usage."""
    with pytest.raises(UsageError):
        world_of(environment)


def test_the_stage_of_a_rank() -> None:
    """With tp 2 x pp 3 x dp 2: ranks 0 and 1 are the first stage, 4 and 5 the last, and 6 begins the second replica."""
    context = open_request(load_model(LLAMA), seq=10, tp=2, pp=3, dp=2)

    assert [stage_of(context.request, rank) for rank in range(12)] == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]

"""Adapters that are served together: what each engine reserves on the GPU and keeps in host memory, by the arithmetic of its own code.

Llama 3.1 8B has 32 layers with seven matrices: q and o of 4,096 x 4,096, k and v of 1,024 x 4,096, gate, up and down of 14,336 and 4,096.
Their inputs and outputs add up to 2 x 8,192 + 2 x 5,120 + 3 x 18,432 = 81,920 numbers a rank and layer. The vocabulary has 128,256 rows.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

import hwcalc
from hwcalc import plan
from hwcalc.engines.options import parse_lora
from hwcalc.engines.subjects import AdaptersInfo
from hwcalc.engines.weights_beside import pinned_lora_bytes
from hwcalc.errors import KvplanError, UnsupportedError, UsageError
from hwcalc.library.load import load_model
from hwcalc.planner.command_input import command_text

LLAMA: Final = "meta-llama/Llama-3.1-8B"
ADAPTER: Final = 32 * 81_920 * 2
"""Bytes a rank of one adapter in bf16."""


def adapters(engine: str, lora: str, **options: Any) -> AdaptersInfo:
    """The adapters of a plan on H100."""
    found = plan(LLAMA, engine=engine, gpu="h100", seq=1024, lora=lora, offline=True, **options).memory.adapters
    assert found is not None
    return found


def test_sglang_has_buffers_for_tables_too() -> None:
    """``all`` modules include the embedding, whole, and the output layer, whose 128,256 rows two ranks share (lora/mem_pool.py)."""
    alone = adapters("sglang", "rank=16,count=4")
    assert alone.gpu_bytes == 4 * 16 * (ADAPTER + 2 * (128_256 + 4096) * 2)
    # Two ranks: A of q, k, v, gate and up is whole, of o and down cut; B the other way round.
    cut = 32 * (4096 * 5 + (4096 + 2048 + 14_336 * 2) // 2 + (4096 + 14_336) // 2 + 4096 * 2)
    tables = (128_256 + 4096) + (128_256 // 2 + 4096)
    assert adapters("sglang", "rank=16,count=4", tp=2).gpu_bytes == 4 * 16 * (cut + tables) * 2
    assert adapters("sglang@0.5.9", "rank=16,count=4").gpu_bytes == 4 * 16 * ADAPTER
    older = adapters("sglang@0.5.7", "rank=16,count=4")
    assert older.host_bytes == older.host_high_bytes == 4 * 16 * ADAPTER
    assert adapters("sglang", "rank=16,count=4,targets=mlp").gpu_bytes == 4 * 16 * 32 * 3 * 18_432 * 2


def test_tensorrt_llm_takes_pages_of_the_narrowest_module() -> None:
    """Pages of 5,120 numbers: 4 a rank of the widest module, 18 of all seven (``PeftCacheManager::getPageManagerConfig``).

    Slots: rank 16 x 32 layers x 7 modules x 4 adapters x 4 = 57,344. A page has 8 x 18 x 32 = 4,608 of them: 13 pages.
    """
    found = adapters("tensorrt-llm", "rank=16,count=4,loaded=8")
    assert found.gpu_bytes == 13 * 4608 * 5120 * 2
    assert (found.host_bytes, found.loaded) == (25 * 4608 * 5120 * 2, 8)
    assert adapters("tensorrt-llm", "rank=16,count=4").host_bytes == 1 << 30


@pytest.mark.parametrize(
    ("rank", "tp", "padded"), [(4, 1, 8), (8, 1, 8), (9, 1, 16), (16, 1, 16), (17, 1, 32), (8, 2, 16), (16, 2, 16), (24, 4, 32)]
)
def test_tgi_pads_ranks_and_divides_all(rank: int, tp: int, padded: int) -> None:
    """``pad_rank`` of utils/sgmv.py: up to 8 a GPU, or to a multiple of 16. ``shard_lora_weights`` cuts A and B."""
    assert adapters("tgi", f"rank={rank},count=3", tp=tp).gpu_bytes == 3 * padded * ADAPTER // tp


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_adapters_that_wait_are_whole_in_each_process(engine: str) -> None:
    """32 adapters in each of two processes; B of gate and up, and A of down, of 458,752 bytes take 524,288 as pinned memory."""
    found = adapters(engine, "rank=16,count=2,loaded=32", tp=2)
    rounded = 32 * 3 * (524_288 - 14_336 * 16 * 2)
    assert (found.reserved, found.loaded) == (True, 32)
    assert found.host_bytes == 2 * 32 * 16 * ADAPTER
    assert found.host_high_bytes == 2 * 32 * (16 * ADAPTER + rounded)


def test_pinned_blocks_are_powers_of_two() -> None:
    """Rank 8 of a layer of 4,096 x 4,096 in fp32: A and B of 131,072 bytes, which are powers of two."""
    found = pinned_lora_bytes(load_model(LLAMA, offline=True), parse_lora("rank=8,targets=attention,dtype=fp32"))
    # k and v: B of 1,024 x 8 x 4 = 32,768 bytes.
    assert found == (32 * (6 * 131_072 + 2 * 32_768),) * 2


def test_others_load_each_as_it_is() -> None:
    """LMDeploy, mistral.rs and transformers reserve nothing, and keep nothing in host memory."""
    for engine in ("lmdeploy", "mistral-rs", "transformers"):
        found = adapters(engine, "rank=16,count=4")
        assert (found.gpu_bytes, found.host_bytes, found.reserved) == (4 * 16 * ADAPTER, 0, False)


@pytest.mark.parametrize(
    ("engine", "lora", "options", "said"),
    [
        ("ollama", "rank=16,count=2", {}, "Ollama serves no adapters together"),
        ("mlx", "rank=16,count=2", {"gpu": "m3-max"}, "MLX serves no adapters together"),
        ("lmdeploy", "rank=16", {"engine_options": {"backend": "turbomind"}}, "TurboMind loads no adapters"),
        ("tgi", "rank=16,loaded=4", {}, "TGI keeps no adapters in host memory"),
        ("llamacpp", "rank=16,loaded=4", {}, "llama.cpp keeps no adapters in host memory"),
    ],
)
def test_what_an_engine_does_not_serve_is_refused_by_name(engine: str, lora: str, options: dict[str, Any], said: str) -> None:
    """With what to use instead."""
    with pytest.raises(UnsupportedError, match=said) as caught:
        plan(LLAMA, **{"engine": engine, "gpu": "h100", "seq": 1024, "lora": lora, "offline": True, **options})
    assert caught.value.hint


def test_a_draft_that_tgi_cannot_load_is_refused() -> None:
    """Its drafts are Medusa heads and n-grams (``--speculate`` of launcher/src/main.rs)."""
    with pytest.raises(KvplanError, match="TGI loads no draft model"):
        plan("Qwen/Qwen3-8B", engine="tgi", gpu="h100", seq=1024, draft="Qwen/Qwen3-0.6B", offline=True)


def test_fewer_loaded_than_at_once_is_an_error() -> None:
    """As vLLM and SGLang refuse it."""
    assert str(parse_lora("rank=8,count=2,loaded=4")) == "rank=8,count=2,targets=all,dtype=bf16,loaded=4"
    for text in ("rank=8,count=4,loaded=2", "rank=8,loaded=0"):
        with pytest.raises(UsageError, match="loaded"):
            parse_lora(text)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("vllm serve {} --enable-lora --max-lora-rank 16 --max-loras 2", "--max-cpu-loras 32"),
        (
            "python -m sglang.launch_server --model-path {} --enable-lora --max-lora-rank 16 --max-loras-per-batch 2 --lora-target-modules all",
            "--max-loaded-loras 32",
        ),
    ],
    ids=["vllm", "sglang"],
)
def test_the_command_says_how_many_wait(command: str, flag: str) -> None:
    """It is read as the same adapters, and written for them."""
    (server,) = hwcalc.read_launch(f"{command.format(LLAMA)} {flag}")
    lora = plan(server, gpu="h100", offline=True).request.lora
    assert lora is not None
    assert parse_lora(lora) == parse_lora("rank=16,count=2,loaded=32")
    engine = "vllm" if command.startswith("vllm") else "sglang"
    assert flag in command_text(plan(LLAMA, engine=engine, lora=lora, gpu="h100", seq=1024, offline=True))

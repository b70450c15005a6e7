"""What a policy takes in the prefill, in engines whose cache is not cut layer after layer, or whose passes take a part of a prompt."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import explain, plan
from hwcalc.engines.policies import PART

MODEL: Final = "Qwen/Qwen3-8B"
TOKEN: Final = 36 * 4096
"""Bytes of a token in all layers: 36 x 8 heads x (128 + 128) x 2."""
ROW: Final = (10 * 32 + 2) * 4096
"""Bytes of a row of eager scores of 4,096 keys: of 32 heads 2, 4 and 4 bytes each, and a mask of 2."""


def planned(policy: str | None, engine: str, **options: Any) -> Any:
    """8,192 tokens behind a prompt of 4,096 on an H100."""
    return plan(MODEL, seq=8192, prompt=4096, policy=policy, engine=engine, gpu="h100", **options)


def part(found: Any) -> Any:
    """The part of the memory equation that is the policy's."""
    return next(one for one in found.fit.budget.parts if one.name == PART)


@pytest.mark.parametrize("engine", ["reference", "transformers@4.57", "vllm", "vllm@0.8", "llamacpp", "ollama"])
@pytest.mark.parametrize("batch", [1, 8])
def test_page_keys_are_all_that_quest_adds(engine: str, batch: int) -> None:
    """A sixteenth of the cache lies beside it, and of the prompt alone in the prefill: 4,096 tokens or fewer, whatever cache the engine has."""
    found = planned("quest:token_budget=512", engine, batch=batch)

    more = found.policy.prefill_peak_bytes - found.policy.full_prefill_peak_bytes
    assert more == batch * 4096 * TOKEN // 16
    assert part(found).expected == batch * 8192 * TOKEN // 16


@pytest.mark.parametrize("engine", ["reference", "transformers@5.2", "vllm", "llamacpp"])
@pytest.mark.parametrize(
    "policy", ["h2o:budget=512", "snapkv:compression_ratio=0.5", "adakv:press=(knorm:compression_ratio=0.5)"]
)
def test_masks_need_no_second_cache(engine: str, policy: str) -> None:
    """What lies beside the cache is the whole difference, where the cache itself is the same, and never more than that where it is cut."""
    found = planned(policy, engine)
    info = found.policy
    beside = sum(extra.bytes for extra in info.beside)

    assert info.prefill_peak_bytes - info.full_prefill_peak_bytes <= beside
    if info.most_bytes == info.full_bytes:
        assert info.prefill_peak_bytes - info.full_prefill_peak_bytes == beside


@pytest.mark.parametrize(
    ("engine", "options", "batch", "rows"),
    [
        ("vllm", {"max_num_batched_tokens": "2048"}, 1, 2048),
        ("vllm", {"max_num_batched_tokens": "2048"}, 8, 2048),
        ("vllm", {"max_num_batched_tokens": "16384"}, 2, 8192),
        ("llamacpp", {}, 1, 512),
        ("llamacpp", {"n_ubatch": "2048"}, 4, 2048),
        ("llamacpp", {"kv_unified": "true"}, 4, 4 * 512),
        ("ollama", {"num_batch": "256"}, 1, 256),
    ],
)
def test_a_pass_has_a_row_of_scores_for_each_of_its_tokens(engine: str, options: dict[str, str], batch: int, rows: int) -> None:
    """VLLM takes max_num_batched_tokens of all requests together, llama.cpp n_ubatch; in one buffer each row has all cells."""
    found = planned("h2o:budget=512", engine, batch=batch, engine_options=options)

    assert [extra.bytes for extra in found.policy.beside] == [rows * ROW]


@pytest.mark.parametrize("engine", ["reference", "transformers@5.2", "vllm", "llamacpp"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_equation_and_the_policy_say_the_same(engine: str, batch: int) -> None:
    """The part of the memory equation is what the policy says that is beyond the cache."""
    found = planned("h2o:budget=512", engine, batch=batch)
    told = {one.name: one for one in found.policy.steps}

    assert part(found).expected == told["policy_prefill"].expected
    assert part(found).high == told["policy_prefill"].high


def test_llamacpp_is_shown_to_lose() -> None:
    """Fewer cells save 576 MiB; 512 rows of scores take 644 MiB."""
    plain, found = planned(None, "llamacpp"), planned("h2o:budget=512", "llamacpp")
    saved = plain.cache.total_bytes - found.cache.total_bytes

    assert (saved, part(found).expected) == (4096 * TOKEN, 512 * ROW)
    assert found.policy.loses
    assert found.memory.per_gpu.total > plain.memory.per_gpu.total


def test_llamacpp_scores_where_the_cache_is() -> None:
    """On the GPUs that hold the layers, 19 and 17 with the output, or on the host that holds the cache."""
    parts = [
        {
            device.device: device.activations
            for device in planned(policy, "llamacpp", engine_options=options, gpus=2).memory.devices
        }
        for options in ({}, {"no_kv_offload": "true"})
        for policy in (None, "quest:token_budget=512")
    ]
    keys = 8192 * TOKEN // 16

    assert {name: parts[1][name] - parts[0][name] for name in parts[0]} == {
        "gpu0": keys * 19 // 36,
        "gpu1": keys * 17 // 36,
        "host": 0,
    }
    assert {name: parts[3][name] - parts[2][name] for name in parts[2]} == {"gpu0": 0, "gpu1": 0, "host": keys}


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("reference", "batch x (10 x heads + 2) x scored_tokens x scored_tokens"),
        ("llamacpp", "(10 x heads + 2) x score_rows x scored_tokens"),
    ],
)
def test_rows_of_a_pass_are_explained(engine: str, said: str) -> None:
    """The formula of the scores has its numbers, in whole prompts and in passes."""
    told = explain(MODEL, seq=8192, prompt=4096, policy="h2o:budget=512", engine=engine, batch=3)
    figure = next(one for section in told.sections for one in section.figures if one.name.startswith("eager attention scores"))

    assert figure.formula.replace("\N{MULTIPLICATION SIGN}", "x") == said

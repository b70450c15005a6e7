"""Each rule of vLLM's planner changes in the release that the table names: what a plan says before and since, with its arithmetic."""

from __future__ import annotations

from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.engines import find_engine
from hwcalc.engines.versions import Rule, rules_in
from hwcalc.engines.vllm.rules import Rules, resolve, rules_of
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.planner.command_input import command_input
from hwcalc.profiles.engines import planned_version, since
from hwcalc.units import GIB
from tests.hwcalc.engines.vllm_cases import RELEASES, Case, answer
from tests.hwcalc.engines.vllm_layer_cases import LAYER_CASES
from tests.hwcalc.engines.vllm_pool_cases import LLAMA, LLAMA_BLOCK, POOL_CASES
from tests.hwcalc.engines.vllm_release_cases import LASTING_CASES, RELEASE_CASES
from tests.hwcalc.engines.vllm_rows import groups, pool, rows
from tests.hwcalc.engines.vllm_sharing_cases import SHARING_CASES

CASES: Final = (*POOL_CASES, *LAYER_CASES, *RELEASE_CASES, *SHARING_CASES)
TABLE: Final = rules_in(Rules)
BOUNDARIES: Final = {(name, since) for name, rule in TABLE.items() for since, _ in rule.entries[:-1]}
"""Every rule with every release in which it changed."""


def _name(asked: Case) -> str:
    return f"{asked.rule}-{asked.since}"


@pytest.mark.parametrize("asked", CASES, ids=_name)
def test_a_rule_changes_what_a_plan_says(asked: Case) -> None:
    """The last release before it and the first one with it."""
    before, since = asked.releases
    assert asked.before != asked.after
    assert answer(asked, before) == asked.before
    assert answer(asked, since) == asked.after


@pytest.mark.parametrize("asked", LASTING_CASES, ids=_name)
def test_a_rule_leaves_the_rest_as_it_was(asked: Case) -> None:
    """What both releases say."""
    assert (asked.before, asked.after) == tuple(answer(asked, release) for release in asked.releases)


def test_every_change_of_every_rule_has_a_case() -> None:
    """And no case names a rule or a release that the table lacks."""
    assert BOUNDARIES == {(each.rule, each.since) for each in CASES}


@pytest.mark.parametrize(("name", "rule"), TABLE.items(), ids=TABLE)
def test_a_rule_has_one_value_in_each_release(name: str, rule: Rule) -> None:
    """A release has the value of the newest entry that holds."""
    for release in map(planned_version, RELEASES):
        held = [value for first, value in rule.entries if since(first) <= release]
        assert held[0] == getattr(rules_of(release), name)


@pytest.mark.parametrize(
    ("spelled", "version"),
    [
        ("0.20", "0.20"),
        ("v0.20.1", "0.20.1"),
        ("0.20.1.post1", "0.20.1"),
        ("0.8.5.post1", "0.8.5"),
        ("0.9.0.1", "0.9.0.1"),
        ("0.6", "0.6"),
        ("0.33.0", "0.33.0"),
    ],
)
def test_spellings_of_a_version(spelled: str, version: str) -> None:
    """A ``v`` before it and a post release after it change nothing."""
    assert resolve(spelled) == version


@pytest.mark.parametrize(
    "spelled", ["0.5", "0.34", "1.0", "0.x", "", "0", "v", "latest", "0.20.", "0.20.1rc1", "0.20.1.2.3", "-0.20"]
)
def test_what_is_no_version(spelled: str) -> None:
    """The error says which versions there are."""
    with pytest.raises(UnknownNameError) as caught:
        resolve(spelled)
    assert caught.value.exit_code == 2
    assert "0.6 to 0.33" in caught.value.hint


def test_a_version_without_a_patch_is_its_last_one() -> None:
    """0.20 has the log of 0.20.1, 0.20.0 that of 0.19; 0.9.0.1 comes after 0.9.0 and before 0.9.1."""
    assert rules_of(planned_version("0.20")) == rules_of(planned_version("0.20.2"))
    assert rules_of(planned_version("0.20")) != rules_of(planned_version("0.20.0"))
    assert (
        planned_version("0.9.0") < planned_version("0.9.0.1") < planned_version("0.9.1") < planned_version("0.9") < since("0.10")
    )


@pytest.mark.parametrize("version", ["0.6", "0.6.0", "0.7"])
def test_v0_has_no_null_block(version: str) -> None:
    """8 GiB are 4,096 blocks of 32 layers x 16 tokens x 8 heads x 256 x 2 bytes: 8 requests of 8,192 tokens, one of 65,536, none more."""
    assert LLAMA_BLOCK == 32 * 16 * 8 * 256 * 2
    made = plan(LLAMA, engine=f"vllm@{version}", seq=8192, kv_memory="8GiB").pool
    assert made is not None
    assert made.blocks == 8 * GIB // LLAMA_BLOCK == 4096
    assert (made.tokens, made.max_seq, made.max_requests, made.max_concurrency) == (4096 * 16, 4096 * 16, 8, 65_536 / 8192)
    assert pool(LLAMA, 8 * GIB, seq=65_536, version=version).fits
    longer = pool(LLAMA, 8 * GIB, seq=65_537, version=version)
    assert longer.message == (
        "The model's max seq len (65537) is larger than the maximum number of tokens that can be stored in KV cache (65536)."
    )


def test_v0_keeps_windows_whole() -> None:
    """Mistral-7B-v0.1 has a window of 4,096; 32,768 tokens take all of their 2,048 blocks."""
    assert pool("mistralai/Mistral-7B-v0.1", seq=32_768, version="0.7").blocks_per_request == 32_768 // 16


@pytest.mark.parametrize(
    ("model", "fields", "says"),
    [
        ("ai21labs/Jamba-v0.1", {"version": "0.6"}, r"older engine \(V0\)"),
        ("ai21labs/Jamba-v0.1", {"version": "0.10.0"}, r"older engine \(V0\)"),
        ("whisper-large-v3", {"version": "0.6"}, ">= 0.7.0"),
        ("whisper-large-v3", {"version": "0.7"}, r"older engine \(V0\)"),
        ("whisper-large-v3", {"version": "0.10.1"}, r"older engine \(V0\)"),
        ("deepseek-ai/DeepSeek-V3", {"version": "0.6", "tp": 8}, "came with 0.7.1"),
        ("deepseek-ai/DeepSeek-V3", {"version": "0.6.5", "tp": 8}, ">= 0.6.6"),
        ("deepseek-ai/DeepSeek-V3", {"version": "0.7.0", "tp": 8}, "came with 0.7.1"),
        ("openai/gpt-oss-20b", {"version": "0.10.0"}, ">= 0.10.1"),
        ("Qwen/Qwen3.5-122B-A10B", {"version": "0.16"}, ">= 0.17.0"),
        ("deepseek-ai/DeepSeek-V3.2", {"version": "0.10.2", "tp": 8}, ">= 0.11.0"),
        ("allenai/Olmo-3-7B-Instruct", {"version": "0.9.2"}, ">= 0.11.0"),
    ],
)
def test_a_release_refuses_what_it_has_not(model: str, fields: dict[str, Any], says: str) -> None:
    """Exit 3, and the version that has it."""
    config = rows()["whisper-large-v3"]["config"] if model == "whisper-large-v3" else model
    with pytest.raises(UnsupportedError, match=says) as caught:
        pool(config, seq=448, **fields)
    assert caught.value.exit_code == 3
    assert "--engine vllm@" in caught.value.hint


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("openai/gpt-oss-20b", {"version": "0.10.1"}),
        ("Qwen/Qwen3.5-122B-A10B", {"version": "0.17.0"}),
        ("deepseek-ai/DeepSeek-V3.2", {"version": "0.11.0", "tp": 8}),
        ("ai21labs/Jamba-v0.1", {"version": "0.10.1"}),
        ("deepseek-ai/DeepSeek-V3", {"version": "0.7.1", "tp": 8}),
    ],
)
def test_the_first_release_with_a_class_plans_it(model: str, fields: dict[str, Any]) -> None:
    """The other side of the refusals."""
    assert pool(model, seq=448, **fields).fits


def test_a_class_that_the_registry_lacks_runs_through_the_transformers_backend() -> None:
    """Olmo-3 came with 0.11; 0.10.2 runs it from transformers, with the same three groups of windows and one of full layers."""
    sizes = [
        (group.count, group.blocks_per_request) for group in groups("allenai/Olmo-3-7B-Instruct", seq=32_768, version="0.10.2")
    ]
    assert sizes == [(8, -(-(4095 + 8192) // 16) + 1)] * 3 + [(8, 32_768 // 16)]


@pytest.mark.parametrize(
    ("gpu", "version", "backend", "runs"),
    [
        # v0.11 platforms/cuda.py is_kv_cache_dtype_supported: FlashInfer takes fp8, Triton from compute capability 8.9 on.
        ("l40s", "0.11.0", "FLASHINFER", True),
        ("l40s", "0.11.0", "flashinfer", True),
        ("l40s", "0.10.2", "FLASHINFER", True),
        ("a100-pcie-40gb", "0.11.0", "FLASHINFER", True),
        ("l40s", "0.11.0", "TRITON_ATTN", True),
        ("a100-pcie-40gb", "0.11.0", "TRITON_ATTN", False),
        ("l40s", "0.11.0", "FLASH_ATTN", False),
        ("l40s", "0.11.0", "FLEX_ATTENTION", False),
        # flash_attn_supports_fp8: FlashAttention 3 on SM90 alone, in every release.
        ("l40s", "0.20.0", "FLASH_ATTN", False),
        ("l40s", "0.33.0", "FLASH_ATTN", False),
        ("h100-sxm5-80gb", "0.11.0", "FLASH_ATTN", True),
        ("l40s", "0.20.0", "TRITON_ATTN", True),
    ],
)
def test_a_back_end_of_attention_that_is_chosen(gpu: str, version: str, backend: str, *, runs: bool) -> None:
    """It keeps an fp8 cache, or is named in the refusal. The command chooses it: by a variable, and by a flag since 0.13."""
    asked: dict[str, Any] = {
        "engine": f"vllm@{version}",
        "gpu": gpu,
        "seq": 4096,
        "engine_options": {"attention_backend": backend},
    }
    if not runs:
        with pytest.raises(UnsupportedError, match=f"keeps no fp8 cache .* with the back end {backend}"):
            plan(LLAMA, dtype="fp8", **asked)
        assert plan(LLAMA, **asked).fit is not None
        return
    made = plan(LLAMA, dtype="fp8", **asked)
    variable, flag = f"VLLM_ATTENTION_BACKEND={backend.upper()}", ["--attention-backend", backend]
    assert made.request.environment == (() if version == "0.20.0" else (variable,))
    words = find_engine("vllm")[0].command.words(command_input(made))
    assert [each for each in words if each in flag] == (flag if version == "0.20.0" else [])


def test_no_back_end_keeps_latents_in_fp8_before_hopper() -> None:
    """FlashMLA and CUTLASS_MLA alone did before 0.12, and need SM90 and SM10x."""
    with pytest.raises(UnsupportedError, match="for latent attention"):
        plan(
            "deepseek-ai/DeepSeek-V2-Lite",
            engine="vllm@0.11.0",
            gpu="l40s",
            seq=4096,
            dtype="fp8",
            engine_options={"attention_backend": "FLASHINFER"},
        )

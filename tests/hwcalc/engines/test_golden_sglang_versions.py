"""What the releases of SGLang before 0.5.23 themselves resolved and computed (``tests/golden/sglang_versions.json``) is planned alike."""

from __future__ import annotations

import json
from itertools import product
from typing import Any, Final

import pytest

from hwcalc import load_model, plan
from hwcalc.engines import find_engine
from hwcalc.engines.setup import Hardware, Parallel, Request
from hwcalc.engines.sglang.engine import SglangOccupancy
from hwcalc.engines.sglang.memory import default_fraction
from hwcalc.engines.sglang.rules import ARGUMENTS_SINCE, NEWEST, VERSIONS, resolve
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.profiles.gpus import find_gpu
from tests.paths import GOLDEN

_CASES: Final = json.loads((GOLDEN / "sglang_versions.json").read_text(encoding="utf-8"))["cases"]


def _planned(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of a case."""
    parallel = Parallel(**{name: case.get(name, 1) for name in ("tp", "pp", "dp")})
    request = Request.of(
        seq=1024,
        dtype=case.get("dtype"),
        parallel=parallel,
        hardware=Hardware(gpu=find_gpu(case["gpu"])),
        options=case.get("options", {}),
        engine_version=case["version"],
    )
    opened = find_engine("sglang")[0].open(load_model(case["model"]), request)
    assert isinstance(opened, SglangOccupancy)
    sizes, own = opened.sizes(case["budget_bytes"]), opened.settings
    return {
        "page_size": own.page_size,
        "chunk": own.chunk,
        "fraction": default_fraction(opened.deployment),
        "tokens": sizes.tokens,
        "swa": sizes.swa_tokens,
        "running": sizes.running,
        "slots": sizes.slots,
        "each": opened.deployment.slots,
    }


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_release_is_planned_as_it_computes_itself(version: str) -> None:
    """Pages, tokens of a prompt, share of the memory, pools, slots and requests of every case."""
    unlike, cases = {}, [case for case in _CASES if case["version"] == version]
    for case in cases:
        planned = _planned(case)
        differ = {
            name: (planned[name], value) for name, value in case["found"].items() if planned[name] != pytest.approx(value, 1e-12)
        }
        if differ:
            unlike[case["gpu"], case["model"], str(case.get("options")), str(case.get("dtype"))] = differ
    assert not unlike
    assert len(cases) > (90 if version in VERSIONS[:8] else 15)


def test_every_release_has_an_argument_that_came_with_it() -> None:
    """By which a log tells its release."""
    assert tuple(ARGUMENTS_SINCE) == VERSIONS


def test_spellings_of_a_release() -> None:
    """A line is its newest release; what was mended after a release has its rules; others are refused with a list of the known ones."""
    assert (resolve("0.5"), resolve("v0.5.18"), resolve("0.5.16.post1")) == (NEWEST, "0.5.18", "0.5.16")
    for unknown in ("0.5.5", "0.5.24", "0.4.9", "0.5.16rc1", "main"):
        with pytest.raises(UnknownNameError, match="no rules for that version") as raised:
            resolve(unknown)
        assert "0.5.6 to 0.5.23" in str(raised.value.hint)


def test_a_class_that_came_later_is_refused() -> None:
    """Granite with windows came with 0.5.19."""
    with pytest.raises(UnsupportedError, match=r"SGLang 0\.5\.17 has no class .*, which came with 0\.5\.19") as raised:
        plan("ibm-granite/granite-swash-2b", engine="sglang@0.5.17", seq=4096, kv_memory="8GiB")
    assert str(raised.value.hint).startswith("Use: --engine sglang@0.5.19")


def test_a_small_gpu_before_and_since() -> None:
    """512 + 1.5 x 2,048 + 128 + 2 x 24 + 8 x 42 MiB of 32,607 until 0.5.19; chunks of 4,096, graphs of 48 and 50 lengths since."""
    for version, reserved in (("0.5.19", 512 + 3072 + 128 + 48 + 336), ("0.5.20", 512 + 6144 + 128 + 96 + 400)):
        case = {"version": version, "gpu": "rtx-5090", "model": "Qwen/Qwen3-8B", "budget_bytes": 2**33}
        assert _planned(case)["fraction"] == round((32_607 - reserved) / 32_607, 3)


def test_four_bits_before_and_since_methods_of_their_own() -> None:
    """Qwen2.5-1.5B: 28 layers x 2 heads x 128 x 2 numbers of half a byte and a scale for each 16 are 8,064 bytes.

    Until 0.5.20 one layer is unpacked beside them: 512 bytes more.
    """
    for version, size in (("0.5.20", 8064 + 512), ("0.5.21", 8064)):
        made = plan(
            "Qwen/Qwen2.5-1.5B-Instruct", engine=f"sglang@{version}", seq=8192, dtype="fp4_mx_block16", kv_memory=size * 1_000_000
        )
        assert made.pool is not None
        assert made.pool.tokens == 1_000_000
    old = plan("Qwen/Qwen2.5-1.5B-Instruct", engine="sglang@0.5.15", seq=8192, dtype="fp4_e2m1", kv_memory=8064 * 1_000_000)
    assert old.pool is not None
    assert old.pool.tokens == 1_000_000
    for word in ("fp4_mx_block16", "nvfp4", "mxfp8"):
        with pytest.raises(UnknownNameError, match=r"0\.5\.15 does not take it"):
            plan("Qwen/Qwen2.5-1.5B-Instruct", engine="sglang@0.5.15", seq=8192, dtype=word, kv_memory="8GiB")
    for version in ("0.5.16", "0.5.20", NEWEST):
        with pytest.raises(UnknownNameError, match="releases before"):
            plan("Qwen/Qwen2.5-1.5B-Instruct", engine=f"sglang@{version}", seq=8192, dtype="fp4_e2m1", kv_memory="8GiB")


def test_a_draft_before_and_since_its_layers_were_counted() -> None:
    """Llama 3.1 8B: 32 layers x 2 x 8 heads x 128 x 2 bytes are 131,072 a token; one layer more since 0.5.14. On an H100 of 81,559 MiB
    13,904 are kept, and 4,096 more for the draft until 0.5.13.
    """
    drafting = {"speculative": "eagle:1:4"}
    for version, cell, kept in (("0.5.13", 131_072, 13_904 + 4096), ("0.5.14", 131_072 * 33 // 32, 13_904)):
        case = {"version": version, "gpu": "h100-sxm5-80gb", "model": "meta-llama/Llama-3.1-8B-Instruct"}
        found = _planned({**case, "budget_bytes": cell * 100_000, "options": drafting})
        assert found["tokens"] == 100_000
        assert found["fraction"] == round((81_559 - kept) / 81_559, 3)


def test_requests_that_are_named_before_and_since_tokens_limit_them() -> None:
    """64 MiB are 512 tokens of Llama 3.1 8B: 256 requests at two tokens each, where 400 are named since 0.5.14."""
    for version, running in (("0.5.13", 400), ("0.5.14", 256)):
        case = {"version": version, "gpu": "h100-sxm5-80gb", "model": "meta-llama/Llama-3.1-8B-Instruct", "budget_bytes": 2**26}
        assert _planned({**case, "options": {"max_running_requests": "400"}})["running"] == running


def test_states_of_drafts_before_and_since_they_follow_the_slots() -> None:
    """Qwen3-Next in 40 GiB: 36 layers of (32 x 128 x 128 x 4 + 3 x 8,192 x 2) bytes are 77,266,944 a slot, and 48 drafts of four tokens have
    192 until 0.5.12. Of the rest 0.9 / 1.9 are slots: 172 of 4 a request. Since, a request of 5 slots has four more: 146.
    """
    slot, budget = 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2), 40 * 2**30
    before, since = (int(left * 0.9 / 1.9 / size) for left, size in ((budget - 192 * slot, slot), (budget, slot * (1 + 4 / 5))))
    options = {"mamba_scheduler_strategy": "extra_buffer", "page_size": "64", "speculative": "eagle:1:4"}
    for version, slots in (("0.5.9", before), ("0.5.14", since)):
        case = {"version": version, "gpu": "h100-sxm5-80gb", "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "budget_bytes": budget}
        assert _planned({**case, "options": options})["slots"] == slots


def test_a_stage_with_windows_counts_a_layer_of_the_next_one() -> None:
    """GPT-OSS has 24 layers of 2,048 bytes a token, every other with a window. Of 13 seven keep 0.8 of the tokens until 0.5.20; of 12 six.

    The first stage begins with a window.
    """
    for version, full, windows in (("0.5.20", 6, 7), ("0.5.21", 6, 6)):
        case = {"version": version, "gpu": "h100-sxm5-80gb", "model": "openai/gpt-oss-20b", "pp": 2, "budget_bytes": 40 * 2**30}
        assert _planned(case)["tokens"] == int(40 * 2**30 / (2048 * (full + 0.8 * windows)))


def test_deepseek_v4_before_its_compressors_were_those_of_requests() -> None:
    """0.5.14 counts 15,897 bytes a token, and 0.5.12 a layer more: its draft's, at a tenth of 584 bytes."""
    sizes = {}
    for version in ("0.5.12", "0.5.14"):
        case = {"version": version, "gpu": "h100-sxm5-80gb", "model": "deepseek-ai/DeepSeek-V4-Flash", "budget_bytes": 40 * 2**30}
        sizes[version] = 40 * 2**30 / _planned(case)["tokens"]
    assert sizes["0.5.14"] == pytest.approx(15_897, rel=1e-3)
    assert sizes["0.5.12"] - sizes["0.5.14"] == pytest.approx(58.4, rel=0.05)


_REFUSED: Final[tuple[tuple[str, str, str | None, dict[str, str], str], ...]] = (
    ("0.5.23", "Qwen/Qwen3-Next-80B-A3B-Instruct", None, {"mamba_scheduler_strategy": "no_buffer"}, "overlap schedule"),
    (
        "0.5.23",
        "tiiuae/Falcon-H1-34B-Instruct",
        None,
        {"mamba_scheduler_strategy": "no_buffer", "disable_overlap_schedule": "true", "page_size": "64"},
        "page_size=1",
    ),
    ("0.5.23", "LiquidAI/LFM2-1.2B", None, {"page_size": "64"}, "page_size=1"),
    ("0.5.13", "Qwen/Qwen3.5-35B-A3B", None, {"speculative": "eagle:1:4"}, "not compatible with radix cache"),
    ("0.5.23", "meta-llama/Llama-3.1-8B-Instruct", "fp4_mx_block16", {}, "fa3 of this model does not read it"),
    (
        "0.5.23",
        "deepseek-ai/DeepSeek-V3",
        "fp4_mx_block16",
        {"attention_backend": "triton"},
        "triton of this model does not read it",
    ),
    ("0.5.14", "meta-llama/Llama-3.1-8B-Instruct", "fp4_e2m1", {"attention_backend": "flashinfer"}, "does not read it"),
    ("0.5.6", "Qwen/Qwen3-Next-80B-A3B-Instruct", None, {"mamba_scheduler_strategy": "no_buffer"}, "it came with 0.5.7"),
)


@pytest.mark.parametrize(("version", "model", "dtype", "options", "words"), _REFUSED)
def test_what_sglang_refuses_on_an_h100(version: str, model: str, dtype: str | None, options: dict[str, str], words: str) -> None:
    """As its own resolution of arguments did: each of these ends in an assertion or a ValueError there."""
    case = {"version": version, "gpu": "h100-sxm5-80gb", "model": model, "budget_bytes": 2**33, "options": options}
    with pytest.raises(UnsupportedError, match=words) as raised:
        _planned(case if dtype is None else {**case, "dtype": dtype})
    assert raised.value.hint


def test_a_kernel_that_reads_no_single_tokens_turns_off_the_cache_of_states() -> None:
    """Where nobody names requests 0.5.8 then has 512 slots, one for a request. 0.5.6 looks at Qwen3-Next alone."""
    case = {"gpu": "b200", "model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "budget_bytes": 40 * 2**30}
    for version, slots, each in (("0.5.8", 512, 1), ("0.5.6", 414, 3)):
        found = _planned({**case, "version": version, "options": {"attention_backend": "trtllm_mha"}})
        assert (found["slots"], found["each"]) == (slots, each)


def test_a_release_that_ends_on_consumer_gpus() -> None:
    """0.5.6 takes ``trtllm_mha`` on a GeForce of Blackwell and says that only B200 has it, unless another kernel is named."""
    case: dict[str, Any] = {
        "version": "0.5.6",
        "gpu": "rtx-5090",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "budget_bytes": 2**33,
    }
    with pytest.raises(UnsupportedError, match="takes trtllm_mha on"):
        _planned(case)
    assert _planned({**case, "options": {"attention_backend": "flashinfer"}})["tokens"] == 2**33 // 131_072


def test_states_that_nothing_copies_where_nothing_overlaps() -> None:
    """``no_buffer`` with overlap off: 3 slots for a request."""
    options = {"mamba_scheduler_strategy": "no_buffer", "disable_overlap_schedule": "true"}
    case = {"version": NEWEST, "gpu": "h100-sxm5-80gb", "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "budget_bytes": 40 * 2**30}
    found = _planned({**case, "options": options})
    assert (found["each"], found["tokens"], found["page_size"]) == (3, 920_754, 1)


@pytest.mark.parametrize("version", ["0.5.6", "0.5.8", "0.5.10", "0.5.13"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        *product(
            ("openai/gpt-oss-20b", "meta-llama/Llama-3.1-8B-Instruct"),
            ({}, {"max_running_requests": "3500"}, {"page_size": "64"}),
        ),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"speculative": "eagle:1:4", "max_running_requests": "3500"}),
    ],
    ids=str,
)
def test_the_least_budget_holds_what_is_asked_of_it(version: str, model: str, options: dict[str, str]) -> None:
    """And a byte less does not: by the rules of each release, also where windows are solved from whole tokens."""
    opened = find_engine("sglang")[0].open(load_model(model), Request.of(seq=1024, options=options, engine_version=version))
    assert isinstance(opened, SglangOccupancy)
    for tokens, sequences in ((1000, 3), (8192, 100), (131, 3000)):
        budget = opened.deployment.curve.needed_bytes(tokens, sequences)
        assert opened.deployment.hold(budget, tokens, sequences)
        assert not opened.deployment.hold(budget - 1, tokens, sequences)

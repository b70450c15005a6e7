"""The flags of ``vllm serve`` by release: ``--emit vllm`` prints only what the planned release knows."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.engines.vllm.rules import RELEASES, nearest_release, resolve
from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.profiles.engines import planned_version, since
from hwcalc.report.emit import emitted
from tests.hwcalc.command import Capture, run
from tests.hwcalc.engines import vllm_cases

LLAMA = "meta-llama/Llama-3.1-8B"
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"
HYBRID = "tiiuae/Falcon-H1-0.5B-Base"
LATENT = "deepseek-ai/DeepSeek-V3.2"

# The first release with each flag. Read by a search for its literal in engine/arg_utils.py of each release; a switch has a form with
# --no- where argparse.BooleanOptionalAction makes it, which is by the literal up to 0.8.4 and by the type of the field from 0.8.5 on.
FIRST: Final = {
    **dict.fromkeys(("--max-model-len", "--kv-cache-dtype", "--tensor-parallel-size", "--pipeline-parallel-size"), "0.6.0"),
    **dict.fromkeys(("--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--dtype", "--quantization"), "0.6.0"),
    **dict.fromkeys(("--gpu-memory-utilization", "--enable-lora", "--max-loras", "--max-lora-rank"), "0.6.0"),
    **dict.fromkeys(("--num-gpu-blocks-override", "--cpu-offload-gb", "--enforce-eager", "--enable-prefix-caching"), "0.6.0"),
    "--revision": "0.6.0",
    "--no-enable-prefix-caching": "0.6.5",
    "--enable-expert-parallel": "0.8.0",
    "--speculative-config": "0.8.2",
    "--data-parallel-size": "0.8.3",
    "--no-enforce-eager": "0.9.0",
    "--disable-hybrid-kv-cache-manager": "0.9.1",
    "--no-disable-hybrid-kv-cache-manager": "0.9.1",
    "--async-scheduling": "0.10.0",
    "--no-async-scheduling": "0.10.0",
    "--mamba-cache-dtype": "0.10.1",
    "--mamba-ssm-cache-dtype": "0.10.1",
    "--kv-cache-memory-bytes": "0.10.2",
    "--decode-context-parallel-size": "0.10.2",
    "--all2all-backend": "0.11.1",
    "--kv-offloading-size": "0.11.1",
    "--kv-offloading-backend": "0.11.1",
    "--gdn-prefill-backend": "0.18.0",
}
# A request that needs the flag, and what the command of a release without it is: an error, or the same command without the flag.
REQUESTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("--kv-cache-dtype", {"dtype": "fp8"}),
    ("--tensor-parallel-size", {"tp": 2}),
    ("--pipeline-parallel-size", {"pp": 2}),
    ("--data-parallel-size", {"dp": 2}),
    ("--decode-context-parallel-size", {"tp": 16, "dcp": 2}),
    ("--enable-expert-parallel", {"model": MIXTRAL, "tp": 2, "ep": 2}),
    ("--gpu-memory-utilization", {"memory_utilization": 0.8, "gpu": "h100"}),
    ("--kv-cache-memory-bytes", {"kv_memory": "8GiB"}),
    ("--quantization", {"weights": "fp8"}),
    ("--dtype", {"weights": "fp16"}),
    ("--enable-lora", {"lora": "rank=16,count=2"}),
    ("--speculative-config", {"engine_options": {"speculative": "ngram:2"}}),
    ("--block-size", {"engine_options": {"block_size": "32"}}),
    ("--max-num-batched-tokens", {"engine_options": {"max_num_batched_tokens": "8192"}}),
    ("--max-num-seqs", {"engine_options": {"max_num_seqs": "64"}}),
    ("--enable-prefix-caching", {"engine_options": {"enable_prefix_caching": "true"}}),
    ("--async-scheduling", {"engine_options": {"async_scheduling": "true"}}),
    ("--disable-hybrid-kv-cache-manager", {"engine_options": {"disable_hybrid_kv_cache_manager": "true"}}),
    ("--enforce-eager", {"engine_options": {"enforce_eager": "true"}}),
    ("--gdn-prefill-backend", {"engine_options": {"gdn_prefill_backend": "triton"}}),
    ("--all2all-backend", {"engine_options": {"all2all_backend": "allgather_reducescatter"}}),
    ("--mamba-cache-dtype", {"engine_options": {"mamba_cache_dtype": "fp32"}}),
    ("--mamba-ssm-cache-dtype", {"engine_options": {"mamba_ssm_cache_dtype": "float32"}}),
    ("--num-gpu-blocks-override", {"engine_options": {"num_gpu_blocks_override": "5000"}}),
    ("--cpu-offload-gb", {"engine_options": {"cpu_offload_gb": "4"}}),
    ("--kv-offloading-size", {"engine_options": {"kv_offloading_size": "4"}}),
)
OFF: Final = ("enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager", "enforce_eager")


def command(version: str, model: str = LLAMA, **asked: Any) -> list[str]:
    """The words that ``--emit vllm`` prints."""
    return emitted(plan(model, engine=f"vllm@{version}", **{"seq": 4096, **asked}), "vllm").split()


def flags(words: list[str]) -> set[str]:
    """The flags among the words of a command."""
    return {word for word in words if word.startswith("--")}


def has(version: str, flag: str) -> bool:
    """Whether a release has a flag, by its own code."""
    return planned_version(version) >= since(FIRST[flag])


@pytest.mark.parametrize(("flag", "asked"), REQUESTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_flag_is_printed_by_the_releases_that_have_it(flag: str, asked: dict[str, Any]) -> None:
    """All others refuse the request and name the first release, or a newer one that the request needs for another reason."""
    for version in RELEASES:
        if has(version, flag):
            words = flags(command(version, **asked))
            assert flag in words
            assert all(has(version, each) for each in words), (version, words)
            continue
        with pytest.raises(UnsupportedError) as caught:
            command(version, **asked)
        named = re.search(r"vllm@([\d.]*\d)", caught.value.hint)
        assert named, caught.value.hint
        assert planned_version(named[1]) >= since(FIRST[flag])
        assert has(named[1], flag)


@pytest.mark.parametrize("name", OFF)
def test_a_switch_that_is_off(name: str) -> None:
    """It is said where the release can, and left out where the release has no such thing or only a flag to turn it on."""
    negated = f"--no-{name.replace('_', '-')}"
    for version in RELEASES:
        words = flags(command(version, engine_options={name: "false"}))
        assert (negated in words) == has(version, negated), version
        assert all(has(version, each) for each in words)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"engine_options": {"dtype": "fp16"}}, ["--dtype", "float16"]),
        ({"engine_options": {"dtype": "bf16"}}, ["--dtype", "bfloat16"]),
        ({"engine_options": {"dtype": "auto"}}, []),
        ({"engine_options": {"mamba_ssm_cache_dtype": "fp32"}}, ["--mamba-ssm-cache-dtype", "float32"]),
        ({"engine_options": {"mamba_cache_dtype": "bf16"}}, ["--mamba-cache-dtype", "bfloat16"]),
        ({"engine_options": {"gdn_prefill_backend": "auto"}}, []),
        ({"engine_options": {"dtype": "fp16"}, "dtype": "fp16"}, ["--kv-cache-dtype", "float16", "--dtype", "float16"]),
        ({"dtype": "bf16"}, ["--kv-cache-dtype", "bfloat16"]),
    ],
)
def test_dtypes_as_the_flags_take_them(asked: dict[str, Any], expected: list[str]) -> None:
    """ModelDType, MambaDType and CacheDType of 0.33 have float16, bfloat16 and float32; --gdn-prefill-backend has no auto."""
    assert command("0.33", **asked)[5:] == expected


@pytest.mark.parametrize(
    ("version", "name", "value", "first"),
    [
        # MambaDType of config/cache.py: float32 with 0.10.1, float16 with 0.13.0, bfloat16 with 0.22.0.
        ("0.12.0", "mamba_cache_dtype", "float16", "0.13"),
        ("0.21.0", "mamba_ssm_cache_dtype", "bf16", "0.22"),
        # The choices of --gdn-prefill-backend: cutedsl with 0.22.0. BlockSize: 256 with 0.11.1, any number with 0.18.0.
        ("0.21.0", "gdn_prefill_backend", "cutedsl", "0.22"),
        ("0.11.0", "block_size", "256", "0.11.1"),
        ("0.17.1", "block_size", "800", "0.18"),
        # config/speculative.py: "mtp" stands for every model's own name since 0.11.0.
        ("0.10.2", "speculative", "mtp:1", "0.11"),
    ],
)
def test_a_value_that_a_release_does_not_take(version: str, name: str, value: str, first: str) -> None:
    """The error names the first release that does, and that release prints it."""
    model = LATENT.replace("V3.2", "V3") if value.startswith("mtp") else LLAMA
    with pytest.raises(UnsupportedError) as caught:
        command(version, model, engine_options={name: value})
    assert f"vllm@{first} " in caught.value.hint
    assert f"--{name.replace('_', '-')}".removesuffix("ulative") in " ".join(command(first, model, engine_options={name: value}))


@pytest.mark.parametrize(("version", "words"), [("0.10", []), ("0.11", ["--kv-cache-dtype", "bfloat16"])])
def test_a_cache_in_the_dtype_of_the_model(version: str, words: list[str]) -> None:
    """CacheDType has bfloat16 since 0.11.0; before, a model without a dtype of its own for the cache has it for auto."""
    assert command(version, dtype="bf16")[5:] == words


def test_the_default_of_the_cache_needs_no_flag() -> None:
    """``auto`` is what vLLM takes without a flag, also where it is fp8_ds_mla; bf16 that is asked for is said."""
    assert "--kv-cache-dtype" not in command("0.11.0", LATENT)
    assert command("0.11.1", LATENT, dtype="fp8")[5:7] == ["--kv-cache-dtype", "fp8_ds_mla"]
    assert command("0.11.0", LATENT, dtype="fp8")[5:7] == ["--kv-cache-dtype", "fp8"]
    assert command("0.33", LATENT, dtype="bf16")[5:7] == ["--kv-cache-dtype", "bfloat16"]


def test_offloading_names_its_backend_before_0_14() -> None:
    """config/cache.py: kv_offloading_backend is None up to 0.13.0, and nothing is offloaded; native since 0.14.0."""
    option = {"kv_offloading_size": "4"}
    assert command("0.13.0", engine_options=option)[5:] == ["--kv-offloading-size", "4", "--kv-offloading-backend", "native"]
    assert command("0.14.0", engine_options=option)[5:] == ["--kv-offloading-size", "4"]


def test_the_block_of_a_hybrid_in_0_9_2() -> None:
    """0.9.2 does not enlarge it, so that it must be named; the flag has the choices 1 to 128, which a block of 800 is not among."""
    options = {"enforce_eager": "true", "enable_prefix_caching": "false"}
    with pytest.raises(UnsupportedError, match="at least 800 tokens"):
        command("0.9.2", HYBRID, engine_options=options)
    with pytest.raises(UnsupportedError, match="does not take --block-size 800"):
        command("0.9.2", HYBRID, engine_options={**options, "block_size": "800"})
    words = command("0.9.2", "Zyphra/Zamba2-2.7B", engine_options={**options, "block_size": "64"})
    assert words[5:] == ["--enforce-eager", "--no-enable-prefix-caching", "--block-size", "64"]


@pytest.mark.parametrize("version", ["0.6", "0.8.5", "0.20.1", "0.32", "0.33", "0.33.0"])
def test_a_known_release_needs_no_note(version: str) -> None:
    """Rules and flags are those of the release."""
    codes = {note.code for note in plan(LLAMA, engine=f"vllm@{version}", seq=4096).notes}
    assert not codes & {"older-version", "version-unknown"}


@pytest.mark.parametrize(("version", "nearest"), [("0.20.99", "0.20.2"), ("0.33.1", "0.33.0"), ("0.15.0", "0.15.1")])
def test_a_release_that_is_not_known(version: str, nearest: str) -> None:
    """A note says which release's rules are used, and the plan is that release's."""
    made, known = (plan(LLAMA, engine=f"vllm@{one}", seq=4096, kv_memory="8GiB") for one in (version, nearest))
    assert nearest_release(version) == nearest
    assert [note.message for note in made.notes if note.code == "version-unknown"] == [
        f"The code of vLLM {version} was not read: the rules of the nearest release that was, {nearest}, are used."
    ]
    assert made.pool == known.pool


def test_the_releases_are_those_that_were_read() -> None:
    """Oldest first, and the same as those of the cases."""
    assert all(planned_version(older) < planned_version(newer) for older, newer in pairwise(RELEASES))
    assert RELEASES == vllm_cases.RELEASES


@pytest.mark.parametrize(
    ("spelled", "release"),
    [("0.11.0rc1", "0.11.0"), ("0.20.1+cu128", "0.20.1"), ("v0.20.1.dev3", "0.20.1"), ("0.20.1.dev3+g1234567", "0.20.1")],
)
def test_what_is_no_release_names_one(spelled: str, release: str) -> None:
    """Candidates, development versions and local builds are refused with the release to type."""
    with pytest.raises(UnknownNameError) as caught:
        resolve(spelled)
    assert f"Use: --engine vllm@{release}." in caught.value.hint


@pytest.mark.parametrize("spelled", ["0.34.0rc1", "0.5.0.dev1", "1.0.0rc1"])
def test_what_is_near_no_release_names_none(spelled: str) -> None:
    """Versions outside of the known ones get the list alone."""
    with pytest.raises(UnknownNameError) as caught:
        resolve(spelled)
    assert "vllm@" not in caught.value.hint


@pytest.mark.parametrize(
    ("model", "release"),
    [
        ("facebook/bart-large", None),
        ("ai21labs/Jamba-v0.1", "0.10.1"),
        ("google/gemma-3-27b-it", "0.8.1"),
        (HYBRID, "0.10"),
        ("microsoft/Phi-4-mini-flash-reasoning", None),
    ],
)
def test_v0_names_a_release_that_runs_the_model(capsys: Capture, model: str, release: str | None) -> None:
    """By the registries: BART and Phi-4-mini-flash run on V0 alone, Jamba on V1 since 0.10.1; 0.9.2 runs hybrids by hand."""
    code, _, err = run(capsys, model, "--engine", "vllm@0.7", "--seq", "512", "--kv-memory", "40GiB")

    assert code == 3
    assert ("--engine transformers" if release is None else f"--engine vllm@{release},") in err
    if release is not None:
        assert plan(model, engine=f"vllm@{release}", seq=512, kv_memory="40GiB").pool is not None

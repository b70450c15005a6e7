"""Advice: what is offered, in which order, with which words, and what is never offered."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import asdict

from hwcalc import plan, recommend
from hwcalc.engines.pool import Try
from hwcalc.hardware.candidates import larger_gpus
from hwcalc.library.plan import plan_loaded
from hwcalc.planner.asked import read_options
from hwcalc.planner.command_line import CommandLine
from hwcalc.planner.options import OPTIONS
from hwcalc.planner.result import FitInfo
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.gpus import UNCOMMON, find_gpu
from hwcalc.report.summary import advice_pair
from hwcalc.units import parse_tokens
from tests.hwcalc.command import QWEN, Capture, run

LLAMA = "meta-llama/Llama-3.1-8B"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "torch_dtype": "bfloat16",
}


def fit_of(model: Any, **asked: Any) -> FitInfo:
    """The verdict of a plan with hardware."""
    fit = plan(model, **asked).fit
    assert fit is not None
    return fit


def advice(model: Any, **asked: Any) -> Sequence[Try]:
    """What is offered."""
    return fit_of(model, **asked).suggestions


def options(command: str) -> dict[str, str]:
    """The options of a command line with their values."""
    words = shlex.split(command)
    return {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def test_twenty_users_on_four_gpus() -> None:
    """A cache of fp8 does it and takes nothing away; then more GPUs, fewer users, shorter conversations, and weights of four bits."""
    found = advice(LLAMA_70B, engine="vllm", gpu="h100-sxm5-80gb", gpus=4, seq="32k", batch=20)

    assert found[0].command == f"kvplan {LLAMA_70B} --seq 32k --users 20 --dtype fp8 --engine vllm --gpu h100-sxm5-80gb --gpus 4"
    assert found[0].flag == "--kv-cache-dtype fp8"
    assert found[0].effect.startswith("fp8 cache; holds 26 instead of 13; ")
    usual = {"--seq": "32k", "--users": "20", "--dtype": None, "--weights": None, "--gpu": "h100-sxm5-80gb", "--gpus": "4"}
    kinds = [
        next(name for name, value in usual.items() if options(one.command).get(name) != value)
        for one in found
        if not one.effect.endswith("probably fits")
    ]
    assert kinds == ["--dtype", "--gpus", "--gpu", "--users", "--seq"]
    assert all("instead of" in one.effect or re.search("; holds 20; .*; probably fits$", one.effect) for one in found)


def test_numbers_hold_for_certain_and_one_more_does_not() -> None:
    """The length that is offered fits at the low end of the budget. One token more is at best probable."""
    asked: dict[str, Any] = {"gpu": "rtx-4090", "batch": 4}
    shorter = next(one for one in advice(QWEN, seq="32k", **asked) if " tokens instead of " in one.effect)
    tokens = int(options(shorter.command)["--seq"])

    assert fit_of(QWEN, seq=tokens, **asked).verdict == Verdict.FITS
    assert fit_of(QWEN, seq=tokens + 1, **asked).verdict != Verdict.FITS


@pytest.mark.parametrize(
    "limits", [{}, {"ttft": "1s", "itl": "40ms"}, {"itl": "60ms"}], ids=["memory", "a first token of 8 s", "between tokens"]
)
def test_less_than_an_eighth_is_no_offer(limits: dict[str, str]) -> None:
    """Two cards of 48 GB hold two of twenty users for sure, and a prompt of 24,576 takes them eight seconds: 6 tokens are no help."""
    asked = {"engine": "vllm", "gpu": "l40s", "gpus": 2, "seq": 24_576, "batch": 20}
    found = [options(one.command) for one in advice("Qwen/Qwen3-32B", **asked, **limits)]

    assert found
    for one in found:
        assert parse_tokens(one["--seq"], "seq") >= 24_576 / 8
        assert int(one["--users"]) >= 20 / 8


def test_two_changes_where_none_alone_does_it() -> None:
    """Neither eight bits of cache nor of weights are enough on this GPU; both are, and they come before anything that costs more."""
    found = advice(QWEN, engine="reference", gpu="rtx-4090", seq="32k", batch=4)

    assert found[0].effect.startswith("fp8 cache, fp8 weights; ")
    assert fit_of(QWEN, gpu="rtx-4090", seq="32k", batch=4, dtype="fp8").verdict != Verdict.FITS
    assert fit_of(QWEN, gpu="rtx-4090", seq="32k", batch=4, weights="fp8").verdict != Verdict.FITS


def test_what_probably_fits_gets_sure() -> None:
    """A plan that the low end of the budget does not hold is offered changes that it holds."""
    budget = fit_of(QWEN, gpu="rtx-4090", seq=1024).budget
    assert budget is not None
    found = fit_of(QWEN, gpu="rtx-4090", seq=1024, batch=(budget.low + budget.expected) // 2 // (1024 * 147_456))

    assert found.fits
    assert found.verdict != Verdict.FITS
    assert found.suggestions
    assert all("probably" not in one.effect for one in found.suggestions)


def test_nothing_is_offered_to_what_fits() -> None:
    """Nor to a plan without hardware, nor to those of a comparison or a sweep, which do not show it."""
    assert advice(QWEN, gpu="h100", seq=1024) == ()
    assert plan(QWEN, seq=1024).fit is None
    from hwcalc import load_model

    silent = plan_loaded(load_model(QWEN), {"gpu": "rtx-4090", "seq": "32k", "batch": 4}).fit
    assert silent is not None
    assert not silent.fits
    assert silent.suggestions == ()


@pytest.mark.parametrize("gpu", ["apple-m4-pro", "rtx-4090-laptop", "jetson-agx-orin-64gb"])
def test_there_is_no_second_laptop(gpu: str) -> None:
    """A whole machine is never joined with another."""
    found = advice(LLAMA_70B, gpu=gpu, seq="32k", batch=4)

    assert all(
        int(options(one.command).get("--gpus", "1")) == 1
        for one in found
        if find_gpu(options(one.command)["--gpu"]).whole_machine
    )


@pytest.mark.parametrize("engine", ["reference", "vllm", "transformers"])
@pytest.mark.parametrize("gpu", ["a100-sxm4-40gb", "rtx-3090", "t4", "v100-sxm2-32gb"])
def test_no_fp8_before_ada(engine: str, gpu: str) -> None:
    """Ampere and older GPUs do not compute in fp8: neither the cache nor the weights are offered in it, unless with another GPU."""
    # The last release of vLLM that runs on a V100.
    engine = "vllm@0.19" if (engine, gpu) == ("vllm", "v100-sxm2-32gb") else engine
    for seq, batch in (("8k", 8), ("32k", 20)):
        for one in advice(LLAMA, engine=engine, gpu=gpu, seq=seq, batch=batch):
            assert "fp8" not in one.command, one


def test_another_gpu_does_what_the_plan_asks_for() -> None:
    """A cache of fp8 moves from an L4 to a GPU that computes in fp8, and not to a larger one of the generation before."""
    found = advice(LLAMA, engine="vllm", gpu="l4", seq="128k", batch=4, dtype="fp8")
    others = {options(one.command)["--gpu"] for one in found} - {"l4"}

    assert others
    assert all(find_gpu(gpu).fp8_kv == "native" for gpu in others)


@pytest.mark.parametrize(
    ("gpu", "larger"),
    [
        ("h100-sxm5-80gb", "h200-sxm-141gb"),
        ("a100-sxm4-40gb", "a100-sxm4-80gb"),
        ("l4", "a100-pcie-40gb"),
        ("rtx-4090", "rtx-5090"),
        ("apple-m4-pro-48gb", "apple-m4-pro-64gb"),
        ("mi300x", "mi325x"),
    ],
)
def test_the_next_larger_gpu(gpu: str, larger: str) -> None:
    """More memory of the same maker and kind, and nothing that is slower, such as a card for export or an older generation."""
    own = find_gpu(gpu)
    assert own.memory_marketing_gb is not None
    found = [one.id for one in larger_gpus(own, (own.memory_marketing_gb + 1) * 2**30, 6)]

    assert larger in found[:2]
    sizes = [(find_gpu(one).category, find_gpu(one).memory_marketing_gb) for one in found]
    assert len(set(sizes)) == len(found)


def test_an_instance_stays_what_it_is() -> None:
    """It has as many GPUs as it has. More of them are a larger instance of the same cloud, by its name."""
    found = advice(LLAMA, engine="vllm", instance="g6.xlarge", seq="128k", batch=4)
    given = [options(one.command) for one in found]

    assert given
    assert {one["--instance"] for one in given} <= {"g6.xlarge", "g6.12xlarge"}
    assert all("--gpu" not in one for one in given)
    larger = next(one for one in given if one["--instance"] == "g6.12xlarge")
    assert (larger["--gpus"], larger["--tp"]) == ("4", "4")


def test_never_longer_than_the_model() -> None:
    """A length beyond the model's maximum, which vLLM refuses, is shortened to it."""
    longest = 40_960
    for one in advice(QWEN, engine="vllm", gpu="l4", seq="1M"):
        assert read_options({"seq": options(one.command)["--seq"]}).values["seq"] <= longest


def test_a_limit_of_the_engine_is_lifted_first() -> None:
    """Four requests at once are the user's own limit: to set it to what is planned costs nothing."""
    asked: dict[str, Any] = {"engine": "vllm", "gpu": "h100", "seq": 4096, "batch": 8, "engine_options": {"max_num_seqs": 4}}
    first = advice(LLAMA, **asked)[0]

    assert first.command.endswith("--engine-option max_num_seqs=8")
    assert first.flag == "--max-num-seqs 8"


def test_a_share_of_the_user_goes_back_to_the_default() -> None:
    """Half of the GPU is left alone by the user's own wish: without it the plan fits."""
    first = advice(QWEN, gpu="rtx-4090", seq=4096, margin="50%")[0]

    assert first.command == f"kvplan {QWEN} --seq 4k --gpu rtx-4090"
    assert first.effect.startswith("the default of --margin; ")


def test_every_option_comes_back(tmp_path: Any) -> None:
    """All options of the table can be written and are read as the same value; a token never is written."""
    given: dict[str, Any] = {
        "seq": "3k", "batch": 7, "dtype": "fp8", "weights": "fp8", "engine": "vllm@0.11", "gpu": "l4", "gpus": 8, "instance": "g6.48xlarge",
        "tp": 2, "pp": 2, "dp": 2, "dcp": 2, "ep": 4, "memory_utilization": 0.87, "kv_memory": "1234567", "margin": "2.5%",
        "lora": "rank=16,count=2", "draft": QWEN, "encoder_seq": 0, "engine_options": {"block_size": "32", "a": "b c"},
        "assume": "gqa", "revision": "main", "offline": True, "token": "hf_abcdefghijklmnopqrstuvwxyz", "endpoint": "https://x.test",
        "layers": 2, "heads": 8, "kv_heads": 4, "head_dim": 64, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 4096,
        "parameters": "70B", "prompt": "2k", "policy": "adakv:press=(snapkv:compression_ratio=0.5,window_size=8),alpha_safeguard=0.1",
        "policy_rules": "paper", "compaction": "fill", "shared_prefix": 100, "lengths": "1k,2000", "samples": 4,
        "avg_seq": "2k", "no_calibration": True, "measured": "aiconfigurator", "ttft": "2s", "itl": "50ms", "e2e": "30s", "min_rate": 40, "rate": "90/min", "prefix_hit": "60%", "accepted_tokens": 2.4,
        "cost": True, "spot": True, "price": {"l4": "0.5/h", "p5.48xlarge": "$40/h"}, "prices": "own.csv", "own": "4xh100,l4", "kwh": "$0.15", "use": "60%",
        "beams": 2, "ram": "64GB", "layers_of": "2*full_attention(num_key_value_heads=4,head_dim=64)",
    }  # fmt: skip
    asked = read_options(given)
    values = {name: value for name, value in asked.values.items() if name in asked.given} | asdict(asked.access)
    words = shlex.split(CommandLine(model="a b", given=values).text)

    assert set(given) == {row.name for row in OPTIONS}
    assert words[:2] == ["kvplan", "a b"]
    assert "hf_abc" not in " ".join(words)
    again: dict[str, Any] = {"engine_options": {}, "price": {}}
    by_flag = {row.spellings[0]: row for row in OPTIONS}
    rest = iter(words[2:])
    for word in rest:
        row = by_flag[word]
        if row.type == "flag":
            again[row.name] = True
        elif row.type == "pairs":
            name, _, value = next(rest).partition("=")
            again[row.name][name] = value
        else:
            again[row.name] = next(rest)
    assert read_options({**again, "token": given["token"]}) == asked


def test_a_config_without_an_address(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A config from standard input or from Python is read from standard input again."""
    found = advice(CONFIG, gpu="l4", seq="128k", batch=4)
    assert found
    assert all(one.command.startswith("kvplan - --seq ") for one in found)

    for one in found:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CONFIG).encode())))
        assert run(capsys, *shlex.split(one.command)[1:])[0] == 0, one


def test_a_path_with_blanks(tmp_path: Any, capsys: Capture) -> None:
    """What is typed for the model is typed again, in quotes for a shell."""
    folder = tmp_path / "my model; $(x)"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    found = advice(str(folder), gpu="l4", seq="128k", batch=4)

    assert f"'{folder}'" in found[0].command
    assert run(capsys, *shlex.split(found[0].command)[1:])[0] == 0


@pytest.mark.parametrize("words", [("--format", "table"), ("--format", "markdown")])
def test_a_command_is_one_line(capsys: Capture, words: tuple[str, ...]) -> None:
    """However narrow the page: what is pasted is whole. What it gives stands below, with the engine's own flags."""
    asked = (LLAMA_70B, "--engine", "vllm", "--gpu", "h100", "--gpus", "4", "--seq", "32k", "--users", "20", "--verbose")
    _, out, _ = run(capsys, *asked, *words)
    lines = out.splitlines()

    for one in advice(LLAMA_70B, engine="vllm", gpu="h100", gpus=4, seq="32k", batch=20):
        assert any(one.command in line for line in lines)
    assert "vLLM: --kv-cache-dtype fp8" in out.replace("\\", "")


def test_a_recommendation_shows_the_same(capsys: Capture) -> None:
    """Where nothing holds it, the changes of what is nearest are whole commands too."""
    asked: dict[str, Any] = {"seq": "128k", "batch": 64, "gpu": ["l4", "t4"], "engine": "vllm"}
    found = recommend(LLAMA_70B, **asked, offline=True)
    _, out, _ = run(
        capsys, "recommend", LLAMA_70B, "--seq", "128k", "--users", "64", "--gpu", "l4,t4", "--engine", "vllm", "--offline"
    )

    assert found.suggestions
    assert all(one.command.startswith(f"kvplan {LLAMA_70B} ") and f"try {one.command}\n" in out for one in found.suggestions)


@pytest.mark.parametrize(
    ("words", "works"),
    [
        ("--engine vllm --gpu a100 --tp 3", "--engine vllm --gpu a100 --gpus 2 --tp 2"),
        ("--engine vllm@0.25 --gpu l4 --dtype nvfp4", "--engine vllm@0.25 --gpu l4"),
        ("--engine vllm --gpu l4 --weights q4_k_m", "--weights awq --engine vllm --gpu l4"),
        ("--engine vllm --gpu m4", "--engine llamacpp --gpu m4"),
        ("--engine transformers --gpu h100 --dp 2 --tp 3", "--engine transformers --gpu h100 --gpus 4 --tp 2 --dp 2"),
    ],
)
def test_a_refusal_names_a_command_that_works(capsys: Capture, words: str, works: str) -> None:
    """An engine that refuses a request is answered with the nearest one that it takes."""
    status, _, err = run(capsys, LLAMA, "--seq", "8k", *words.split())
    command = err.rstrip().rpartition("This works: ")[2]

    assert status in {2, 3}
    assert command == f"kvplan {LLAMA} --seq 8k {works}"
    assert run(capsys, *shlex.split(command)[1:])[0] in {0, 1}


def test_the_formulas_alone_are_no_engine_that_works(capsys: Capture) -> None:
    """An accelerator on which no engine runs by known rules gets no command without an engine."""
    err = run(capsys, LLAMA, "--seq", "8k", "--engine", "sglang", "--gpu", "tpu-v5e")[2]
    assert "This works" not in err


def test_a_command_that_is_accepted_and_does_not_fit_says_so(capsys: Capture) -> None:
    """A release refuses the model. Another one takes it, but 64 times 32k tokens are too much for an L4."""
    status, _, err = run(capsys, QWEN, "--engine", "vllm@0.6.6", "--gpu", "l4", "--seq", "32k", "--users", "64")
    command = err.rstrip().rpartition("The engine accepts this line, which does not fit on this hardware and says what to try: ")[
        2
    ]

    assert status == 3
    assert "This works" not in err
    assert run(capsys, *shlex.split(command)[1:])[0] == 1


def test_a_mistyped_word_is_not_worked_around(capsys: Capture) -> None:
    """Whoever writes a name that does not exist is told the names."""
    _, _, err = run(capsys, LLAMA, "--seq", "8k", "--engine", "vllm", "--dtype", "fp9")

    assert "This works" not in err


@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb", "a100-sxm4-40gb", "rx-7900-xtx", "rtx-3090", "l4"])
def test_no_larger_gpu_is_one_that_few_can_get(gpu: str) -> None:
    """Cards for one country, chips with a processor of their own, and what is announced only are no advice, and all are in the catalog."""
    found = {one.id for one in larger_gpus(find_gpu(gpu), 0, 8)}

    assert found
    assert not found & UNCOMMON
    assert all(find_gpu(name).id == name for name in UNCOMMON)


def test_who_has_an_uncommon_gpu_is_offered_its_kin() -> None:
    """Whoever has an H20 can get the larger one."""
    assert "h20-3e-141gb" in [one.id for one in larger_gpus(find_gpu("h20-96gb"), 0, 8)]


@pytest.mark.parametrize(
    ("gpu", "weights", "offered"),
    [("rtx-4060-ti-16gb", "q4_k_m", "q2_k"), ("gtx-1080", None, "q2_k"), ("rtx-4090", None, "q4_k_m"), ("l4", "q8_0", "q3_k_m")],
)
def test_fewer_bits_in_the_formats_that_people_load(gpu: str, weights: str | None, offered: str) -> None:
    """GGUF names on the GPUs of a desk, and still fewer bits than those that were given."""
    model = "Qwen/Qwen3-8B" if gpu == "gtx-1080" else "Qwen/Qwen3-32B"
    commands = [one.command for one in advice(model, seq="8k", gpu=gpu, weights=weights)]

    assert any(f"--weights {offered} " in command for command in commands)
    assert not any(f"--weights {name} " in command for command in commands for name in ("int4", "int8"))


def test_lengths_of_one_kind_are_compared() -> None:
    """What only probably fits is compared with what is expected of the plan itself, not with what is sure."""
    asked: dict[str, Any] = {"seq": "8k", "gpu": "rtx-4060-ti-16gb", "weights": "q4_k_m"}
    planned = plan("Qwen/Qwen3-14B", **{**asked, "seq": "38k"})
    assert planned.fit is not None
    unsure = [
        one.effect for one in planned.fit.suggestions if one.effect.endswith("probably fits") and " instead of " in one.effect
    ]

    assert all(f"instead of {planned.fit.expected_max_seq:,};" in effect for effect in unsure if effect.startswith("q"))


def test_a_config_from_standard_input_is_given_again() -> None:
    """The command alone would read an empty standard input."""
    one = Try(flag="", effect="holds 2 instead of 1", command="kvplan - --seq 8k")

    assert advice_pair(one, "reference")[1].endswith("give the config again: < FILE")

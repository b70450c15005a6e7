"""``--emit`` writes every engine option that was given, its numbers in full, or refuses it, or leaves it out for a reason that is named here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc import plan
from hwcalc.engines import find_engine
from hwcalc.errors import KvplanError, UsageError
from hwcalc.report.emit import commands_to_start, emitted, emitters, remarks_on
from hwcalc.report.plan import plan_report
from tests.hwcalc.command import QWEN, Capture, run
from tests.tiny_configs import TINY_LLAMA

VALUES: Final = (
    "true", "false", "on", "off", "2", "8", "16", "32", "64", "4k", "0.5", "32k", "64GiB", "fp8", "float32", "auto", "ngram:4", "1,1", "v1",
    "q8_0", "fa3", "triton", "all", "paged", "flashdecoding", "no_buffer", "extra_buffer",
)  # fmt: skip
"""Something for each type of option; what a check refuses is passed over."""
ON_THE_MACHINE: Final = {"host_bandwidth", "host_memory", "flash_mla", "fp32_mamba_ssm_dtype", "mmproj", "mtp_layers"}
"""Options that say what a machine has, what is installed there, or what a file holds, and that no server is told."""
ITSELF: Final = {"ollama", "backend", "defaults"}
"""Options that say whose defaults are planned."""
OF_OTHER_MODELS: Final = {"load_mtp"}
"""Options that this model is refused with."""


@cache
def line(engine: str, *options: tuple[str, str]) -> str:
    """The command of Qwen3-8B on this engine with engine options."""
    asked: dict[str, Any] = {"weights": "q4_k_m"} if engine in ("llamacpp", "ollama") else {}
    gpu = "m4-max-128gb" if engine == "mlx" else "h100-sxm5-80gb"
    return emitted(plan(QWEN, seq=4096, engine=engine, gpu=gpu, engine_options=dict(options), offline=True, **asked), engine)


def accepted(engine: str, name: str) -> Iterator[str]:
    """The values that the option takes."""
    for value in VALUES:
        try:
            find_engine(engine)[0].options[name].check(name, value)
        except KvplanError:
            continue
        yield value


@pytest.mark.parametrize("engine", emitters())
def test_every_engine_option_is_written(engine: str) -> None:
    """Some value of each option changes the command, and no number is written with a letter that the engine reads otherwise."""
    for name in find_engine(engine)[0].options:
        lines = {}
        for value in accepted(engine, name):
            try:
                lines[value] = line(engine, (name, value))
            except KvplanError:
                continue
            assert not {"4k", "32k", "64GiB"} & set(lines[value].replace("=", " ").split()), (engine, name, value)
        told = {value for value, words in lines.items() if words != line(engine)}
        assert told or not lines or name in ON_THE_MACHINE | ITSELF | OF_OTHER_MODELS, (engine, name, lines)


def test_numbers_are_written_in_full() -> None:
    """4k is 4,000 to vLLM, and 4 to llama-server."""
    assert "--max-num-batched-tokens 4096" in line("vllm", ("max_num_batched_tokens", "4k"))
    assert "-b 4096" in line("llamacpp", ("n_batch", "4k"))
    assert "num_ctx 4096" in line("ollama", ("num_ctx", "4k"))
    assert "host_cache_size: 68719476736" in line("tensorrt-llm", ("host_cache_size", "64GiB"))


@pytest.mark.parametrize(("name", "value"), [("lora", "rank=16"), ("draft", "Qwen/Qwen3-0.6B")])
def test_ollama_is_told_of_no_file_that_is_not_there(name: str, value: str) -> None:
    """A Modelfile without the adapter or the draft would start another server than the planned one."""
    made = plan(QWEN, seq=4096, engine="ollama", gpu="l4", weights="q4_k_m", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{name} names no file"):
        emitted(made, "ollama")


def test_ollama_has_no_word_for_a_margin_of_llamacpp() -> None:
    """``fit_target`` is a flag of llama-server alone."""
    with pytest.raises(UsageError, match="fit_target"):
        line("ollama", ("fit_target", "2048"))


@pytest.mark.parametrize(
    ("engine", "sizes", "flags"),
    [
        ("vllm", {"dp": 16}, "--data-parallel-size-local 8 --data-parallel-address ADDRESS"),
        ("vllm", {"tp": 8, "pp": 2}, "--nnodes 2 --node-rank RANK (from 0) --master-addr ADDRESS"),
        ("sglang", {"tp": 8, "pp": 2}, "--nnodes 2 --node-rank RANK (from 0) --dist-init-addr ADDRESS:PORT"),
    ],
)
def test_a_server_over_two_nodes_says_so(engine: str, sizes: dict[str, int], flags: str) -> None:
    """Servers have eight H100, so that sixteen are two nodes, each of which is told its part; eight are one."""
    wide = plan("Qwen/Qwen3-30B-A3B", engine=engine, gpu="h100", gpus=16, seq=4096, **sizes)  # type: ignore[arg-type]
    remark = commands_to_start(wide)[0][2]

    assert remark.startswith(f"Spans 2 nodes of 8 GPUs. On each: {flags}")
    assert remark in remarks_on(wide, engine)
    assert commands_to_start(plan(QWEN, engine=engine, gpu="h100", gpus=8, seq=4096))[0][2] == ""


def test_a_rented_machine_of_sixteen_is_one_node() -> None:
    """Google's a2-megagpu-16g has sixteen A100, where servers usually have eight."""
    assert commands_to_start(plan(QWEN, engine="vllm", instance="a2-megagpu-16g", seq=4096))[0][2] == ""


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "vllm serve REPOSITORY --max-model-len 4096"),
        ("sglang", "python -m sglang.launch_server --model-path REPOSITORY"),
        ("tensorrt-llm", "trtllm-serve REPOSITORY --max_seq_len 4096"),
        ("lmdeploy", "lmdeploy serve api_server REPOSITORY --backend pytorch --session-len 4096"),
    ],
)
def test_a_checkpoint_that_no_engine_makes_is_to_be_put_in(engine: str, words: str) -> None:
    """The server is told of no format, since a checkpoint says its own, and the remark says where checkpoints are."""
    [(label, command, remark)] = commands_to_start(plan(QWEN, engine=engine, gpu="h100", seq=4096, weights="awq"))

    assert (label, command) == ("start", words)
    assert "https://huggingface.co/models?search=Qwen3-8B-awq" in remark
    assert "llm-compressor" in remark


def test_a_checkpoint_of_the_catalog_is_named() -> None:
    """NVIDIA publishes Qwen3-235B-A22B in NVFP4, which the catalog has."""
    made = plan("Qwen/Qwen3-235B-A22B", engine="vllm", gpu="b200", gpus=4, seq=4096, weights="nvfp4")
    [(_, command, remark)] = commands_to_start(made)

    assert command == "vllm serve nvidia/Qwen3-235B-A22B-NVFP4 --max-model-len 4096 --tensor-parallel-size 4"
    assert remark.endswith("kvplan nvidia/Qwen3-235B-A22B-NVFP4")
    with pytest.raises(UsageError, match="published so: nvidia/Qwen3-235B-A22B-NVFP4"):
        emitted(made, "vllm")


@pytest.mark.parametrize(
    ("engine", "asked", "why"),
    [
        ("llamacpp", {"lora": "rank=16"}, "--lora names no GGUF file"),
        ("sglang", {"kv_memory": "10GiB"}, "no flag for the bytes of its pools"),
        ("sglang", {"weights": "q4_k_m"}, "does not make q4_k_m weights"),
        ("vllm", {"policy": "snapkv:budget=1024"}, "vLLM has no cache policy snapkv:budget=1024"),
        ("transformers", {}, "transformers is a library"),
    ],
)
def test_a_plan_that_no_command_starts_says_why(engine: str, asked: dict[str, Any], why: str) -> None:
    """In the line where the command would stand, with what to leave out."""
    made = plan(QWEN, engine=engine, gpu="h100", seq=4096, **asked)
    [(label, command, remark)] = commands_to_start(made)

    assert (label, command, remark[:6]) == ("start", "", "none: ")
    assert why in remark
    for form in ("table", "markdown"):
        assert why in plan_report(made, form, color=False, width=400).replace("\\", ""), form


@pytest.mark.parametrize(("weights", "form"), [("q4_k_m", "Q4_K_M"), ("q2_k_s", "Q2_K_S"), ("fp16", "F16"), (None, "BF16")])
def test_files_of_llamacpp_are_found_or_made(weights: str | None, form: str, tmp_path: Path) -> None:
    """A repository of GGUF files is named, or the Hub finds one by library and name; of a folder here nobody published one.

    There convert_hf_to_gguf.py writes 16 bits, of which llama-quantize makes mixes.
    """
    asked: dict[str, Any] = {"engine": "llamacpp", "gpu": "l4", "seq": 4096, "weights": weights}
    [(_, command, remark)] = commands_to_start(plan(QWEN, **asked))

    copies = {"Q4_K_M": "Qwen/Qwen3-8B-GGUF", "BF16": "unsloth/Qwen3-8B-GGUF"}
    assert command == f"llama-server -hf {copies.get(form, 'REPOSITORY')}:{form} -c 4096 -np 1"
    search = "for REPOSITORY write the name of one of https://huggingface.co/models?library=gguf&search=Qwen3-8B"
    assert remark == ("" if form in copies else search)

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA), encoding="utf-8")
    [(_, command, remark)] = commands_to_start(plan(folder, **asked))
    assert command == f"llama-server -m ./mine-{form}.gguf -c 4096 -np 1"
    made = f"convert_hf_to_gguf.py {folder} --outtype {form.lower()} --outfile ./mine-{form}.gguf"
    mixed = f"convert_hf_to_gguf.py {folder} --outfile F.gguf, then llama-quantize F.gguf ./mine-{form}.gguf {form}"
    assert remark == f"{mixed if form.startswith('Q') else made}, both of https://github.com/ggml-org/llama.cpp"


def test_ollama_says_what_its_library_runs() -> None:
    """``ollama run qwen3.5:9b`` is Q4_K_M: a plan of the checkpoint's 16 bits starts other weights, and says which the library has."""
    options: dict[str, Any] = {"engine": "ollama", "gpu": "h100", "seq": 4096}
    [*_, (_, whole, remark)] = commands_to_start(plan("Qwen/Qwen3.5-9B", **options))
    [*_, (_, mixed, _)] = commands_to_start(plan("Qwen/Qwen3.5-9B", weights="q4_k_m", **options))

    assert whole == "ollama run hf.co/bartowski/Qwen_Qwen3.5-9B-GGUF:BF16"
    assert mixed == "ollama run qwen3.5:9b-q4_K_M"
    assert remark == "ollama run qwen3.5:9b-q4_K_M runs other weights: --weights q4_k_m plans them."


def test_ollama_is_given_no_file_in_parts() -> None:
    """It refuses one that llama-server loads: bf16 of Qwen3-32B lies in two files."""
    options: dict[str, Any] = {"gpu": "h200", "seq": 4096}
    [(_, command, _)] = commands_to_start(plan("Qwen/Qwen3-32B", engine="llamacpp", **options))
    [*_, (_, run, remark)] = commands_to_start(plan("Qwen/Qwen3-32B", engine="ollama", **options))
    assert command == "llama-server -hf unsloth/Qwen3-32B-GGUF:BF16 -c 4096 -np 1"
    assert run == "ollama run hf.co/REPOSITORY:BF16"
    assert "library=gguf&search=Qwen3-32B" in remark


def test_ollamas_server_comes_first_and_is_one_command() -> None:
    """A variable on a line of its own, without a backslash before the next, would not reach the server."""
    made = plan("Qwen/Qwen3-14B", engine="ollama", gpu="h100", seq="16k", dtype="q8_0", weights="q4_k_m", batch=2)
    (_, server, _), (_, started, _) = commands_to_start(made)
    shown = plan_report(made, "table", width=60, quiet=True)

    assert server.split() == [
        "OLLAMA_CONTEXT_LENGTH=16384",
        "OLLAMA_KV_CACHE_TYPE=q8_0",
        "OLLAMA_NUM_PARALLEL=2",
        "ollama",
        "serve",
    ]
    assert started == "ollama run qwen3:14b-q4_K_M"
    assert f"  first    {server}\n" in shown.replace(" \\\n             ", " ")
    assert shown.index("ollama serve") < shown.index("ollama run")


@pytest.mark.parametrize("gpu", ["rtx-4090", "m4-24gb"])
def test_a_server_that_runs_already_needs_no_variable(gpu: str, capsys: Capture) -> None:
    """The Modelfile that is named has the context, so that no server is told; who needs no variable starts no server."""
    words = (QWEN, "--engine", "ollama", "--gpu", gpu, "--weights", "q4_k_m")
    (_, server, about), _ = commands_to_start(plan(QWEN, engine="ollama", gpu=gpu, seq="16k", weights="q4_k_m"))
    (label, *_), *others = commands_to_start(plan(QWEN, engine="ollama", gpu=gpu, weights="q4_k_m"))
    _, file, _ = run(capsys, *words, "--seq", "16k", "--emit", "ollama")

    assert server == "OLLAMA_CONTEXT_LENGTH=16384 ollama serve"
    assert "--emit ollama > Modelfile" in about
    assert "PARAMETER num_ctx 16384\n" in file
    assert "OLLAMA_" not in file
    assert (label, others) == ("start", [])


def test_a_variable_that_no_modelfile_has_is_set_for_the_server() -> None:
    """The format of the cache is one: the line says where it is set, and no line of it is half a command."""
    (_, _, about), _ = commands_to_start(plan(QWEN, engine="ollama", gpu="rtx-4090", seq="16k", dtype="q8_0", weights="q4_k_m"))

    assert "https://docs.ollama.com/faq#how-do-i-configure-ollama-server" in about
    assert "--emit" not in about
    assert "=" not in about


def test_a_command_is_that_of_the_named_engine(capsys: Capture) -> None:
    """``--emit command``, as a fleet takes it, is the command of ``--engine``."""
    words = (QWEN, "--gpu", "h100", "--seq", "8k", "--engine", "sglang")

    assert run(capsys, *words, "--emit", "command") == run(capsys, *words, "--emit", "sglang")

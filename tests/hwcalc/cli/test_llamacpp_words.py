"""llama-server's own flags on a line of kvplan."""

from __future__ import annotations

import shlex

import pytest

from hwcalc.cli.completion import engine_options
from hwcalc.cli.line import translated
from tests.hwcalc.command import QWEN, Capture, run

HUB = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("-c 32768", "--seq 32768"),
        ("--ctx-size=8192 -np 4", "--seq 2048 --users 4"),
        ("-np 4 -c 8192", "--seq 2048 --users 4"),
        ("-c 1000 -np 3", "--seq 333 --users 3 --engine-option n_ctx=1000 --engine-option n_seq_max=3"),
        ("-c 0", "--engine-option n_ctx=0"),
        ("-np -1", ""),
        ("-ngl 20", "--engine-option n_gpu_layers=20"),
        ("--n-gpu-layers all", "--engine-option n_gpu_layers=all"),
        ("-ngl auto", ""),
        ("-ctk q8_0 -ctv q8_0 -fa on", "--engine-option type_k=q8_0 --engine-option type_v=q8_0 --engine-option flash_attn=on"),
        ("-fa -ub 1024", "--engine-option flash_attn=on --engine-option n_ubatch=1024"),
        ("--n-cpu-moe 12", "--engine-option n_cpu_moe=12"),
        ("-cmoe", "--engine-option cpu_moe=true"),
        ("-ts 3,1", "--engine-option tensor_split=3,1"),
        ("-ot exps=CPU -ot attn=CUDA0", "--engine-option override_tensor=exps=CPU,attn=CUDA0"),
        ("-kvu --swa-full", "--engine-option kv_unified=true --engine-option swa_full=true"),
        ("-nkvo -fit off", "--engine-option no_kv_offload=true --engine-option fit=off"),
        ("--spec-type draft-mtp", "--engine-option load_mtp=true"),
        ("-md small.gguf -ctkd q8_0", "--draft small.gguf --engine-option type_k_draft=q8_0"),
        ("--spec-draft-n-max 5 --spec-type draft-mtp", "--engine-option load_mtp=true --engine-option n_rs_seq=5"),
        ("--spec-type ngram-simple", ""),
        ("-ub 256 -ub 512", "--engine-option n_ubatch=512"),
    ],
)
@pytest.mark.parametrize("engine", ["llamacpp", "llama.cpp", "ollama"])
def test_a_flag_is_an_option(given: str, ours: str, engine: str) -> None:
    """As llama-server reads it; ``-c`` is the context of all slots."""
    line, _ = translated([QWEN, "--engine", engine, *shlex.split(given)])

    assert line == ["plan", *shlex.split(ours), QWEN, "--engine", engine]


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ("-m ./model.gguf", "./model.gguf"),
        (f"-hf {HUB}", HUB),
        (f"-hf {HUB}:Q6_K -ngl 99", f"{HUB}:Q6_K"),
        (f"-hff model-q4.gguf -hf {HUB}:Q6_K", f"{HUB}:model-q4.gguf"),
    ],
)
def test_the_model_of_a_line(given: str, model: str) -> None:
    """A line of llama-server's names its model by an option, and needs no engine."""
    assert translated([*shlex.split(given), "--gpu", "l4"])[0][:2] == ["plan", model]
    assert translated(["explain", *shlex.split(given)])[0][:2] == ["explain", model]


def test_a_file_brings_its_flags() -> None:
    """The engine of a GGUF file is llama.cpp; with another engine named they are not read."""
    assert translated(["model.gguf", "-ngl", "3"])[0] == ["plan", "--engine-option", "n_gpu_layers=3", "model.gguf"]
    assert translated(["ollama:qwen3:8b", "-ngl=3"])[0][2] == "n_gpu_layers=3"


def test_what_is_left_out_or_planned_otherwise(capsys: Capture) -> None:
    """One line each on standard error."""
    line, remarks = translated([QWEN, "--engine", "llamacpp", "-c", "4096", "--jinja", "-t", "8", "--temp", "0.7", "-a", "me"])

    assert line == ["plan", "--seq", "4096", QWEN, "--engine", "llamacpp"]
    assert remarks[0].startswith("-c 4,096 is planned for one slot, -np 1;")
    assert "--jinja" in remarks[1]
    assert "me" not in remarks[1].split()


def test_a_context_beside_a_length() -> None:
    """The server has a context, and its users send sequences of another length."""
    line, remarks = translated([QWEN, "--engine", "llamacpp", "-c", "32768", "--seq", "8k"])
    assert line == ["plan", "--engine-option", "n_ctx=32768", QWEN, "--engine", "llamacpp", "--seq", "8k"]
    assert remarks[0].startswith("-c 32,768 is planned for one slot, -np 1;")


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ("--engine llamacpp -ngl", "-ngl has no value", "Write: -ngl N"),
        ("--engine llamacpp -ngl -fa", "-ngl has no value", "Write: -ngl N"),
        ("--engine llamacpp -c many", "-c many is not a number as llama.cpp writes it", "--seq 32k"),
        ("--engine llamacpp -np 2 --users 2", "-np and --users are the same option", "one of them"),
        ("--engine llamacpp --swa-full=1", "--swa-full takes no value", "Write: --swa-full"),
        ("--engine llamacpp -m model.gguf", "both name the model", "Leave one of them out"),
        ("--engine llamacpp --xyzzy", "has no option --xyzzy", "See: kvplan plan --help"),
        ("--engine vllm -ngl 3", "plan has no option -ngl", "--engine llamacpp -ngl N"),
        ("--engine lmstudio", "is not known", "--engine llamacpp"),
        ("--engine koboldcpp", "is not known", "--engine llamacpp"),
    ],
)
def test_what_is_wrong(capsys: Capture, given: str, said: str, hint: str) -> None:
    """Exit 2, with what to write instead."""
    status, _, err = run(capsys, QWEN, *shlex.split(given))

    assert status == 2
    assert said in err
    assert hint in err


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("n_ub", ["n_ubatch="]),
        ("type_k=q8", ["type_k=q8_0"]),
        ("defaults=", ["defaults=server", "defaults=api"]),
        ("n_gpu_layers=a", ["n_gpu_layers=auto", "n_gpu_layers=all"]),
        ("speculative=", ["speculative=mtp"]),
        ("host_memory=", []),
        ("n_ubatch=", []),
    ],
)
def test_completions_of_options(typed: str, words: list[str]) -> None:
    """Names, and behind the sign the words that are values."""
    assert engine_options(typed) == words


def test_emit_names_the_engine_where_no_option_does(capsys: Capture) -> None:
    """``--emit ollama`` of any model is a plan of Ollama's; with an engine of another name it stays an error."""
    status, out, _ = run(capsys, QWEN, "--weights", "q4_k_m", "--seq", "8k", "--emit", "ollama")
    assert status == 0
    assert "PARAMETER num_ctx 8192" in out
    status, _, err = run(capsys, QWEN, "--engine", "vllm", "--seq", "8k", "--emit", "ollama")
    assert (status, "Add: --engine ollama" in err) == (2, True)

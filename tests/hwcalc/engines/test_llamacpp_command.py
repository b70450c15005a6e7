"""The command line of llama-server and the Modelfile of Ollama."""

from __future__ import annotations

from typing import Any

import pytest

from hwcalc.cli.line import translated
from hwcalc.cli.llamacpp import MODEL_FLAGS, SERVER_FLAGS
from hwcalc.engines.llamacpp.command import flag_text, modelfile, ollama_flag, serve
from hwcalc.engines.options import CommandInput
from hwcalc.engines.setup import Parallel
from hwcalc.errors import UsageError
from hwcalc.profiles.engine_flags import engine_flags
from tests.paths import GOLDEN

HUB = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"
KNOWN = dict(
    line.split() for line in (GOLDEN / "llamacpp_flags.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
)
"""Flag of llama-server -> whether its handler takes a value."""


def planned(**change: Any) -> CommandInput:
    """A plan of a file on the Hub."""
    values: dict[str, Any] = {
        "version": None, "model": HUB, "revision": None, "seq": 8192, "batch": 1, "kv_dtype": "fp16", "kv_dtype_named": False,
        "parallel": Parallel(), "memory_utilization": None, "kv_memory": None, "weights": None, "lora": None, "draft": None, "options": {},
        "requires": (),
    }  # fmt: skip
    return CommandInput(**values | change)


def test_the_flags_are_llama_servers_own() -> None:
    """Each is in the table of its parser, and has a value or none as there."""
    assert {
        KNOWN[each]
        for flag in engine_flags("llamacpp").flags
        if flag.engine_option and flag.takes != "switch"
        for each in flag.spellings
    } == {"value"}
    switches = {flag_text(name, "true") for name in ("kv_unified", "swa_full", "cpu_moe", "no_kv_offload", "no_extra_bufts")}
    assert {KNOWN[flag] for flag in (*switches, flag_text("kv_unified", "false"))} == {"switch"}
    assert {KNOWN[flag] for flag in MODEL_FLAGS} == {"value"}


COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({}, f"-hf {HUB} -c 8192 -np 1"),
    ({"seq": 2048, "batch": 4}, f"-hf {HUB} -c 8192 -np 4"),
    ({"batch": 4, "options": {"kv_unified": "true"}}, f"-hf {HUB} -c 32768 -np 4 -kvu"),
    ({"kv_dtype": "q8_0"}, f"-hf {HUB} -c 8192 -np 1 -ctk q8_0 -ctv q8_0"),
    ({"kv_dtype": "q8_0:fp16"}, f"-hf {HUB} -c 8192 -np 1 -ctk q8_0"),
    ({"options": {"type_k": "q5_1", "type_v": "f16"}}, f"-hf {HUB} -c 8192 -np 1 -ctk q5_1"),
    ({"options": {"flash_attn": "auto", "n_gpu_layers": "auto"}}, f"-hf {HUB} -c 8192 -np 1"),
    ({"options": {"flash_attn": "0", "swa_full": "1"}}, f"-hf {HUB} -c 8192 -np 1 -fa off --swa-full"),
    ({"options": {"defaults": "api"}}, f"-hf {HUB} -c 8192 -np 1 --swa-full"),
    (
        {"options": {"n_batch": "4096", "n_ubatch": "1024", "n_gpu_layers": "all", "n_cpu_moe": "12", "tensor_split": "3,1"}},
        f"-hf {HUB} -c 8192 -np 1 -b 4096 -ub 1024 -ngl all -ncmoe 12 -ts 3,1",
    ),
    ({"draft": "/models/small.gguf"}, f"-hf {HUB} -c 8192 -np 1 -md /models/small.gguf"),
    ({"options": {"load_mtp": "1", "type_k_draft": "q8_0"}}, f"-hf {HUB} -c 8192 -np 1 --spec-type draft-mtp -ctkd q8_0"),
    ({"options": {"load_mtp": "1", "n_rs_seq": "4"}}, f"-hf {HUB} -c 8192 -np 1 --spec-type draft-mtp --spec-draft-n-max 4"),
    ({"options": {"n_ctx": "1000", "n_seq_max": "3"}}, f"-hf {HUB} -c 1000 -np 3"),
    ({"path": "./my model.gguf", "model": "my model"}, "-m ./my model.gguf -c 8192 -np 1"),
    ({"model": "org/repo:dir/file.gguf"}, "-hf org/repo -hff dir/file.gguf -c 8192 -np 1"),
    ({"model": "Qwen/Qwen3-32B", "weights": "q4_k_m", "made": True}, "-hf Qwen/Qwen3-32B-GGUF:Q4_K_M -c 8192 -np 1"),
    ({"model": "org/Qwen3-32B", "weights": "q4_k_m", "made": True}, "-hf REPOSITORY:Q4_K_M -c 8192 -np 1"),
    ({"model": "Qwen/Qwen3-32B", "weights": "q2_k_s", "made": True}, "-hf REPOSITORY:Q2_K_S -c 8192 -np 1"),
    # ggml-org's and others' files are gpt-oss-20b-mxfp4.gguf, which -hf finds by MXFP4 and not by llama-quantize's MXFP4_MOE.
    (
        {"model": "openai/gpt-oss-20b", "made": True, "published": "MXFP4_MOE"},
        "-hf ggml-org/gpt-oss-20b-GGUF:MXFP4 -c 8192 -np 1",
    ),
    ({"model": "./my-model", "weights": "q4_k_m", "made": True}, "-m ./my-model-Q4_K_M.gguf -c 8192 -np 1"),
]


@pytest.mark.parametrize(("change", "words"), COMMANDS)
def test_the_command(change: dict[str, Any], words: str) -> None:
    """Context and slots always, and besides what is not llama-server's default."""
    command = serve(planned(**change))

    assert " ".join(command) == f"llama-server {words}"
    for word in command[1:]:
        assert not word.startswith("-") or word in KNOWN


@pytest.mark.parametrize(
    ("stem", "base"),
    [
        ("model-Q4_K_M", "model"),
        ("model.f16", "model"),
        ("model_mxfp4", "model"),
        ("a-tq1_0.bf16", "a-tq1_0"),
        ("model-q8_0-iq2_xxs", "model-q8_0"),
        ("Q4_K_M", "Q4_K_M"),
        ("model-q9", "model-q9"),
        ("model-q4-large", "model-q4-large"),
        ("model-q4_groß", "model-q4_groß"),
        ("model-q4²", "model-q4²"),
    ],
)
def test_a_format_at_the_end_of_a_name_gives_way_to_that_of_the_plan(stem: str, base: str) -> None:
    """A mix or a float type of llama.cpp, in letters of any size; what only begins like one stays."""
    command = serve(planned(path=f"models/{stem}.gguf", weights="q5_k_m", made=True))

    assert command[1:3] == ["-m", f"./{base}-Q5_K_M.gguf"]


@pytest.mark.parametrize(("change", "words"), [row for row in COMMANDS if "options" not in row[0]])
def test_kvplan_reads_the_command(change: dict[str, Any], words: str) -> None:
    """Pasted behind ``kvplan``, less its first word, the command is the request again."""
    line, remarks = translated([*serve(planned(**change))[1:], "--engine", "llamacpp"])
    given = planned(**change)

    assert [f"--seq {given.seq}", f"--users {given.batch}"] == [
        f"{name} {line[line.index(name) + 1]}" for name in ("--seq", "--users")
    ]
    assert not remarks


@pytest.mark.parametrize("change", [{"options": {"ctx_type": "mtp"}}, {"lora": "rank=8,count=1"}, {"draft": "org/draft"}])
def test_what_has_no_flag(change: dict[str, Any]) -> None:
    """An error, and no command that would do something else."""
    with pytest.raises(UsageError):
        serve(planned(**change))


@pytest.mark.parametrize(
    ("change", "text", "environment"),
    [
        ({}, f"FROM hf.co/{HUB}\nPARAMETER num_ctx 8192\n", ()),
        ({"library": "llama3.1:8b"}, "FROM llama3.1:8b\nPARAMETER num_ctx 8192\n", ()),
        (
            {"path": "/models/a.gguf", "batch": 4, "kv_dtype": "q8_0", "options": {"flash_attn": "on"}},
            "FROM /models/a.gguf\nPARAMETER num_ctx 8192\n",
            ("OLLAMA_KV_CACHE_TYPE=q8_0", "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=4"),
        ),
        (
            {"options": {"n_gpu_layers": "all", "n_ubatch": "256"}},
            f"FROM hf.co/{HUB}\nPARAMETER num_ctx 8192\nPARAMETER num_gpu 999\nPARAMETER num_batch 256\n",
            (),
        ),
    ],
)
def test_the_modelfile(change: dict[str, Any], text: str, environment: tuple[str, ...]) -> None:
    """``num_ctx`` is the context of one slot; what no parameter says is a variable of the server."""
    file = modelfile(planned(**change))

    assert (file.name, file.text, file.environment) == ("Modelfile", text, environment)
    assert file.command[:2] == ("ollama", "create")
    assert file.command[3:] == ("-f", "Modelfile")


def test_a_name_for_ollama() -> None:
    """``ollama create`` takes few letters."""
    assert modelfile(planned()).command[2] == "meta-llama-3.1-8b-instruct-gguf-8k"
    assert modelfile(planned(library="qwen3:8b", seq=5000)).command[2] == "qwen3-8b-5000"


def test_ollama_keeps_one_format() -> None:
    """``OLLAMA_KV_CACHE_TYPE`` is passed to both."""
    with pytest.raises(UsageError, match="one format"):
        modelfile(planned(kv_dtype="q8_0:fp16"))


@pytest.mark.parametrize(
    ("name", "value", "flag", "ollama"),
    [
        ("dtype", "q8_0", "-ctk q8_0 -ctv q8_0", "OLLAMA_KV_CACHE_TYPE=q8_0"),
        ("dtype", "q8_0:q5_1", "-ctk q8_0 -ctv q5_1", "OLLAMA_KV_CACHE_TYPE=q8_0"),
        ("n_ctx", 8192, "-c 8192", "num_ctx 8192"),
        ("n_ubatch", "256", "-ub 256", "num_batch 256"),
        ("n_gpu_layers", "all", "-ngl all", "num_gpu 999"),
        ("swa_full", "false", "", ""),
        ("kv_unified", "true", "-kvu", ""),
        ("n_cpu_moe", "8", "-ncmoe 8", ""),
        ("weights", "iq4_xs", "", ""),
    ],
)
def test_the_flag_of_an_option(name: str, value: object, flag: str, ollama: str) -> None:
    """In both programs' own words; empty where there are none."""
    assert flag_text(name, value) == flag
    assert ollama_flag(name, value) == ollama


def test_every_written_flag_is_read() -> None:
    """A line of ``--emit llamacpp`` can be planned."""
    for change, _ in COMMANDS:
        for word in serve(planned(**change))[1:]:
            assert not word.startswith("-") or word in SERVER_FLAGS or word.startswith("--spec-")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"library": "llama3.1:8b"}, ("ollama", "run", "llama3.1:8b")),
        ({"library": "llama3.1:8b", "options": {"n_gpu_layers": "20"}}, None),
        ({"path": "/models/a.gguf"}, None),
        ({"model": "Qwen/Qwen3-14B", "made": True, "weights": "q4_k_m"}, ("ollama", "run", "qwen3:14b-q4_K_M")),
        ({"model": "Qwen/Qwen3-14B", "made": True, "weights": "iq3_xxs"}, ("ollama", "run", "hf.co/REPOSITORY:IQ3_XXS")),
        ({"model": "Qwen/Qwen3-14B", "made": True}, ("ollama", "run", "hf.co/unsloth/Qwen3-14B-GGUF:BF16")),
        ({"model": "openai/gpt-oss-20b", "made": True, "published": "MXFP4_MOE"}, ("ollama", "run", "gpt-oss:20b")),
        (
            {"model": "openai/gpt-oss-20b", "made": True, "published": "MXFP4_MOE", "weights": "q8_0"},
            ("ollama", "run", "hf.co/bartowski/openai_gpt-oss-20b-GGUF:Q8_0"),
        ),
    ],
)
def test_a_model_of_ollama_runs_as_it_is(change: dict[str, Any], words: tuple[str, ...] | None) -> None:
    """Who plans what Ollama does by itself needs no Modelfile: it fetches files of its library, and of repositories of the Hub."""
    assert modelfile(planned(**change)).as_is == words

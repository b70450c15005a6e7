"""How a command line is read, completed, and how fast it starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hwcalc.cli import completion, main
from hwcalc.cli.line import aliases, translated
from hwcalc.cli.options import COMMANDS, PLANNING
from hwcalc.cli.output import wants_json
from hwcalc.errors import UsageError
from tests.hwcalc.command import QWEN, REPOSITORY, python, read

# --- how a line is read -----------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        *COMMANDS,
        *(flag for option in PLANNING for flag in option.flags),
        *(f"{flag}=8" for option in PLANNING for flag in option.flags),
        QWEN, "-", "--", "8", "32k", "", "a=b", "--help", "-h", "--version", "-x", "-qq", "--se", "--json=1",
    ]
)  # fmt: skip
_FOREIGN = st.sampled_from(
    [*aliases(PLANNING), *(f"{flag}=8" for flag in aliases(PLANNING)), "--users", "-c", "gpu", "vllm", "--engine", "-1", "-tp2"]
)


@settings(max_examples=150, deadline=None)
@example(["plan", "plan", "plan", "--kv-cache-dtype", "-h"])
@given(st.lists(st.one_of(_WORDS, _FOREIGN), max_size=7))
def test_a_translated_line_is_kvplans_own(words: list[str]) -> None:
    """It needs no second translation, and what cannot be translated is wrong usage."""
    try:
        line, _ = translated(words)
    except UsageError:
        return
    assert translated(line) == (line, ())


@pytest.mark.parametrize("flag", ["--dtype", "--kv-cache-dtype", "--seq", "--tensor-parallel-size"])
@pytest.mark.parametrize("help_", ["-h", "--help"])
def test_help_in_the_place_of_a_value_is_help(flag: str, help_: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No value is called so, and whoever types it does not know which there are."""
    assert main([QWEN, flag, help_]) == 0

    assert capsys.readouterr().out.startswith("Usage: kvplan plan MODEL")


@pytest.mark.parametrize("option", [option for option in PLANNING if option.flags], ids=lambda option: option.name)
def test_every_option_of_a_plan_is_read(option: Any) -> None:
    """Every option of a plan, so that adding one needs no second place."""
    for flag in option.flags:
        line = read([QWEN, flag] if option.kind == "flag" else [QWEN, flag, "8"])

        assert line is not None
        assert line[1][option.name] == {"flag": True, "list": ["8"], "text": "8"}[option.kind]


def test_json_is_recognised_in_wrong_lines() -> None:
    """An error must be JSON even where the line cannot be read."""
    assert wants_json(["--json"])
    assert wants_json(["x", "--format", "json", "--nonsense"])
    assert wants_json(["x", "--format=json"])
    assert not wants_json(["x", "--", "--json"])
    assert not wants_json(["x", "--format", "csv"])


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["e"], {"explain", "explore", "engines"}),
        (["Qwen/Qwen3-8"], {QWEN, f"{QWEN}-Base"}),
        (["explain", "Qwen/Qwen3-8"], {QWEN, f"{QWEN}-Base"}),
        (["--dtype", "q8"], {"q8_0"}),
        (["--dtype", "q8_0:q4"], {"q8_0:q4_1", "q8_0:q4_0"}),
        (["--engine", "t"], {"transformers", "tensorrt-llm", "tgi"}),
        ([QWEN, "--engine-option", "nb"], {"nbits="}),
        ([QWEN, "--format", "m"], {"markdown"}),
        ([QWEN, "--assume", "deepseek_v32"], {"deepseek_v32"}),
        ([QWEN, "--assume", "mamba2+g"], {"mamba2+gqa"}),
        (["engines", "r"], {"reference"}),
        (["dtypes", "nv"], {"nvfp4"}),
        (["policies", "sn"], {"snapkv"}),
        (["plot", "--kind", "f"], {"frontier"}),
        (["schema", "er"], {"error"}),
        (["--se"], {"--seq"}),
        (["--tensor"], {"--tensor-parallel-size"}),
        ([QWEN, "--max-num-s"], {"--max-num-seqs"}),
        ([QWEN, "--kv-cache-dtype", "q8"], {"q8_0"}),
        ([QWEN, "-tp", "2", "--engine", "v"], {"vllm"}),
        (["he"], {"help"}),
        (["help", "pl"], {"plan", "plot"}),
        (["vers"], {"version"}),
    ],
)
def test_completion(words: list[str], expected: set[str]) -> None:
    """Commands, models, engines, dtypes, options: what a shell asks for on a key press."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "_KVPLAN_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["kvplan", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = python("-m", "hwcalc", env=environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == expected


def test_gguf_files_and_ollamas_models_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this folder by their names, Ollama's behind their prefix."""
    (tmp_path / "manifests/registry.ollama.ai/library/llama3.1").mkdir(parents=True)
    (tmp_path / "manifests/registry.ollama.ai/library/llama3.1/8b").write_text("{}", encoding="utf-8")
    (tmp_path / "own-Q4_K_M.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))

    assert completion.models("OWN") == ["own-Q4_K_M.gguf"]
    assert completion.models("ollama:ll") == ["ollama:llama3.1:8b"]
    assert completion.models("Qwen/Qwen3-8") == [QWEN, f"{QWEN}-Base"]


def test_completion_can_be_shown() -> None:
    """The script for the shell in use."""
    done = python("-m", "hwcalc", "--show-completion", "bash")

    assert "_KVPLAN_COMPLETE" in done.stdout or "shell" in (done.stdout + done.stderr).lower()


# --- start-up ---------------------------------------------------------------------------------------------------------

HEAVY = ("torch", "huggingface_hub", "numpy", "transformers")


@pytest.mark.parametrize("words", [[QWEN, "--seq", "32k", "--json"], ["explain", QWEN, "--json"], ["no/model", "--json"]])
def test_json_imports_nothing_heavy(words: list[str]) -> None:
    """The path that scripts and CI take loads no package that takes long to import."""
    code = (
        "import sys; from hwcalc.cli import main; main(sys.argv[1:]); "
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    done = python("-c", code, *words)

    assert json.loads(done.stdout)
    assert done.stderr.strip() == "[]"


def test_errors_and_help_import_nothing_heavy() -> None:
    """Neither needs a package that takes long to import."""
    code = (
        "import sys; from hwcalc.cli import main; main(['--help']); main(['x/y', '--nonsense', '--json']); "
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )

    assert python("-c", code).stderr.strip() == "[]"

"""The command line: what goes where, exit codes, errors."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwcalc import load_model, plan
from hwcalc.cli import output
from hwcalc.cli import run as run_module
from hwcalc.cli.options import COMMANDS, find_command
from hwcalc.errors import OutputError
from hwcalc.formulas import Role
from hwcalc.planner.context import open_request
from tests.hwcalc.command import QWEN, REPOSITORY, Capture, python, run

# 36 layers x 32,768 tokens x 8 heads x (128 + 128) x 1 byte.
QWEN_32K_FP8 = 36 * 32_768 * 8 * (128 + 128)


def error_of(text: str) -> dict[str, Any]:
    """The error of an error document, which must be the only thing in the text."""
    document = json.loads(text)

    assert list(document) == ["schema_version", "error"]
    assert list(document["error"]) == ["code", "type", "message", "hint"]
    error: dict[str, Any] = document["error"]
    return error


# --- the main job -----------------------------------------------------------------------------------------------------


def test_plan_is_the_default_command(capsys: Capture) -> None:
    """A first word that is no command is a MODEL; ``kvplan plan MODEL`` is the same."""
    short = run(capsys, QWEN, "--seq", "32k", "--dtype", "fp8", "--json")
    long = run(capsys, "plan", QWEN, "--seq", "32k", "--dtype", "fp8", "--json")

    assert short == long
    assert (short[0], short[2]) == (0, "")
    assert json.loads(short[1])["cache"]["total_bytes"] == QWEN_32K_FP8


@pytest.mark.parametrize(
    "words", [["-"], ["reconcile", "-"], ["check", "-"], ["launch", "-"], ["probe", "--verify", "-"], ["fleet", "-"]]
)
def test_a_terminal_is_not_read(capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Nobody types a file there: the command would wait for ever and say nothing."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    status, _, err = run(capsys, *words)

    assert status == 2
    assert err.startswith("kvplan: standard input is a terminal.\nPipe a ")
    assert err.rstrip().partition(": kvplan ")[2].startswith(" ".join(words))


@pytest.mark.parametrize(
    "words",
    [
        ["--seq", "32k", "--dtype", "fp8", "--json", QWEN],
        ["--seq=32k", "--json", QWEN, "--dtype=fp8"],
        ["--json", "plan", QWEN, "--seq", "32k", "--dtype", "fp8"],
        ["--seq", "32768", "plan", "--json", "--dtype", "fp8", QWEN],
        ["plan", "--json", "--dtype", "fp8", "--seq", "32k", "--", QWEN],
        ["--json", "--dtype", "fp8", "--seq", "32k", "--", QWEN],
    ],
)
def test_options_may_stand_anywhere(capsys: Capture, words: list[str]) -> None:
    """Options before the model, behind it, before the command, with and without an equals sign."""
    status, out, _ = run(capsys, *words)

    assert status == 0
    assert json.loads(out)["cache"]["total_bytes"] == QWEN_32K_FP8


def test_batch_and_concurrency_are_one_option(capsys: Capture) -> None:
    """Both spellings multiply."""
    one = json.loads(run(capsys, QWEN, "--json", "--users", "3")[1])
    two = json.loads(run(capsys, QWEN, "--json", "--concurrency", "3")[1])

    assert one == two
    assert one["cache"]["total_bytes"] == 3 * one["cache"]["bytes_per_sequence"]


def test_standard_input_is_a_model(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads a config."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "dtype": "float16"}
    binary = io.BytesIO(json.dumps(config).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(binary))

    status, out, _ = run(capsys, "-", "--seq", "10", "--json")

    assert status == 0
    # 2 layers x 10 tokens x 4 heads x (16 + 16) x 2 bytes.
    assert json.loads(out)["cache"]["total_bytes"] == 2 * 10 * 4 * 32 * 2


def test_engine_options_reach_the_engine(capsys: Capture) -> None:
    """Repeatable K=V pairs, told back in the request."""
    words = ("--engine", "transformers", "--engine-option", "cache=static", "--engine-option", "max_cache_len=64")
    status, out, _ = run(capsys, QWEN, "--seq", "32", "--json", *words)

    assert status == 0
    assert json.loads(out)["request"]["options"] == {"cache": "static", "max_cache_len": "64"}


# --- help -------------------------------------------------------------------------------------------------------------


def test_alone_it_prints_help(capsys: Capture) -> None:
    """``kvplan`` is ``kvplan --help``."""
    assert run(capsys) == run(capsys, "--help")
    assert run(capsys)[0] == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys: Capture, command: str) -> None:
    """Its own sentence, every option with a text, and its line in the list of commands."""
    status, out, err = run(capsys, command, "--help-all")

    assert (status, err) == (0, "")
    assert f"kvplan {command}" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    assert f"  {command} " in run(capsys, "--help-all")[1]
    for option in find_command(command).options:
        assert option.help.endswith(".")
        assert all(flag in out for flag in option.flags)


def test_version(capsys: Capture) -> None:
    """One line."""
    from hwcalc import __version__

    assert run(capsys, "--version") == (0, f"kvplan {__version__}\n", "")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "type_"),
    [
        ([QWEN, "--seq", "many"], 2, "usage"),
        ([QWEN, "--seq", "-1"], 2, "usage"),
        ([QWEN, "--seq", "0"], 2, "usage"),
        ([QWEN, "--seq", "9" * 5000], 2, "usage"),
        ([QWEN, "--users", "1.5"], 2, "usage"),
        ([QWEN, "--dtype", "fp7"], 2, "usage"),
        ([QWEN, "--engine", "nothing"], 2, "usage"),
        ([QWEN, "--engine", "transformers@1"], 2, "usage"),
        ([QWEN, "--engine-option", "cache"], 2, "usage"),
        ([QWEN, "--engine-option", "=static"], 2, "usage"),
        ([QWEN, "--engine", "transformers", "--engine-option", "cache=static", "--engine-option", "cache=static"], 2, "usage"),
        ([QWEN, "--assume", "luck"], 2, "usage"),
        ([QWEN, "--nonsense"], 2, "usage"),
        ([QWEN, "--seq"], 2, "usage"),
        ([QWEN, "second/model"], 2, "usage"),
        ([QWEN, "--format", "xml"], 2, "usage"),
        ([QWEN, "--format", "csv"], 2, "usage"),
        (["plan"], 2, "usage"),
        (["--seq", "32k"], 2, "usage"),
        (["engines", "nothing"], 2, "usage"),
        (["dtypes", "nothing"], 2, "usage"),
        (["schema", "nothing"], 2, "usage"),
        (["no-such/model-at-all"], 3, "model-not-found"),
        (["./no-such-file.json"], 3, "model-not-found"),
        ([""], 3, "model-not-found"),
        (["\x1b[31mred"], 3, "model-not-found"),
        (["a" * 10_000], 3, "model-not-found"),
        (["\ud800"], 3, "model-not-found"),
    ],
)
def test_an_error_is_one_json_document(capsys: Capture, words: list[str], status: int, type_: str) -> None:
    """With ``--json`` on standard output, and nothing beside it; without, a line on standard error and nothing else."""
    code, out, err = run(capsys, *words, "--json")

    assert (code, err) == (status, "")
    error = error_of(out)
    assert (error["code"], error["type"]) == (status, type_)
    assert error["message"]

    if "csv" not in words:
        code, out, err = run(capsys, *words)
        assert (code, out) == (status, "")
        assert err.startswith("kvplan: ")
        assert "Traceback" not in err
        assert "\x1b" not in err


@pytest.mark.parametrize("words", [[], ["--version"], ["--help"]])
def test_no_document_for_help(capsys: Capture, words: list[str]) -> None:
    """Help and version are text."""
    assert run(capsys, *words)[1].startswith(("Usage: kvplan", "kvplan "))


def test_a_command_with_a_typing_error(capsys: Capture) -> None:
    """It is no model that is looked for in the network; the hint says which command may have been meant."""
    status, _, err = run(capsys, "engine")

    assert status == 2
    assert "kvplan engines" in err


def test_unknown_architectures_are_refused_unless_assumed(capsys: Capture, tmp_path: Path) -> None:
    """Exit 3 without ``--assume``; with it a plan whose every number says that it is assumed."""
    path = tmp_path / "config.json"
    config = {"model_type": "from_the_future", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    path.write_text(json.dumps(config))

    status, _, err = run(capsys, str(path), "--seq", "8")
    assert status == 3
    assert "--assume gqa" in err

    status, out, _ = run(capsys, str(path), "--seq", "8", "--assume", "gqa", "--json")
    assert status == 0
    assert json.loads(out)["cache"]["definition"] == "assumed"
    assert "ASSUMED" in run(capsys, str(path), "--seq", "8", "--assume", "gqa")[1]


def test_the_known_types(capsys: Capture) -> None:
    """Every type with the kinds of its layers, searched by either, as a table, JSON and CSV."""
    status, out, err = run(capsys, "models", "--types")
    assert status == 0
    assert "deepseek_v32" in out
    assert "mla+indexer" in out
    assert "types" in err
    document = json.loads(run(capsys, "models", "--types", "mamba2", "gqa", "--json")[1])
    assert {"model_type": "zamba2", "families": ["mamba2+gqa"]} in document["types"]
    assert all(any("mamba2" in family for family in row["families"]) for row in document["types"])
    assert run(capsys, "models", "--types", "deepseek", "--format", "csv")[1].startswith("type,layers\n")
    status, _, err = run(capsys, "models", "--types", "no such thing")
    assert status == 3
    assert "kvplan models --types" in err


def test_the_command_that_an_unknown_architecture_proposes(capsys: Capture, tmp_path: Path) -> None:
    """What the hint says to type is a plan; the warning is shown with -q too."""
    path = tmp_path / "config.json"
    mla = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
    config = {"model_type": "new", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 100, **mla}
    path.write_text(json.dumps(config))
    _, _, err = run(capsys, str(path), "--seq", "8")
    proposed = err.partition(f"kvplan {path} --seq 8 --assume ")[2].partition(";")[0]

    status, out, _ = run(capsys, str(path), "--assume", proposed, "--seq", "8", "-q")
    assert status == 0
    assert "latent attention (MLA)" in out
    out = run(capsys, str(path), "--assume", "gqa", "--seq", "8", "-q")[1]
    assert "warning" in out
    assert "kv_lora_rank" in out
    assert "kv_lora_rank" in json.dumps(
        json.loads(run(capsys, str(path), "--assume", "gqa", "--seq", "8", "--json")[1])["warnings"]
    )


def test_a_fault_of_ours_is_exit_70(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody expected: a message without a traceback, which ``KVPLAN_DEBUG`` adds on standard error."""

    def broken(words: list[str]) -> Any:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(run_module, "_answer", broken)
    monkeypatch.delenv("KVPLAN_DEBUG", raising=False)

    status, out, err = run(capsys, QWEN, "--json")
    assert (status, err) == (70, "")
    assert error_of(out)["type"] == "internal"
    assert "the sky fell" in error_of(out)["message"]

    monkeypatch.setenv("KVPLAN_DEBUG", "1")
    status, out, err = run(capsys, QWEN, "--json")
    assert status == 70
    assert error_of(out)["code"] == 70
    assert "Traceback" in err


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_interrupts_are_quiet(capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], status: int) -> None:
    """Ctrl-C and a reader that went away say nothing."""

    def stopped(words: list[str]) -> Any:
        raise error

    monkeypatch.setattr(run_module, "_answer", stopped)
    monkeypatch.setattr(run_module, "discard", lambda _: None)

    assert run(capsys, QWEN) == (status, "", "")


def test_a_full_disk_is_exit_74(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where standard output cannot be written, standard error says so even under ``--json``."""
    write = output.write

    def full(stream: Any, *words: Any, **more: Any) -> None:
        if stream is sys.stdout:
            raise OutputError("the output could not be written: No space left on device.")
        write(stream, *words, **more)

    monkeypatch.setattr(run_module, "write", full)
    status, out, err = run(capsys, QWEN, "--json")

    assert (status, out) == (74, "")
    assert "No space left" in err


def test_a_closed_reader_costs_nothing() -> None:
    """``kvplan ... | head -1`` ends without a word on standard error, as if SIGPIPE had ended it."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-m", "hwcalc", "models", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (141, b"")


# --- output -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [[QWEN], ["explain", QWEN], [QWEN, "--json"], ["models"], ["engines", "transformers"], ["dtypes"]]
)
def test_output_that_is_not_unicode(capsys: Capture, words: list[str]) -> None:
    """An ASCII standard output gets ASCII, whole."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"}
    done = python("-m", "hwcalc", *words, env=environment)

    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "?" not in done.stdout


def test_quiet_leaves_out_notes(capsys: Capture) -> None:
    """Numbers and warnings stay."""
    loud = run(capsys, QWEN, "--seq", "1M")[1]
    quiet = run(capsys, QWEN, "--seq", "1M", "-q")[1]

    assert "  note  " in loud
    assert "  note  " not in quiet
    assert "  warning  " in quiet


@pytest.mark.parametrize("command", ["models", "engines", "dtypes"])
@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
def test_lists_in_every_format(capsys: Capture, command: str, format_: str) -> None:
    """Data on standard output; a pipe table, a CSV with a header, a JSON document."""
    status, out, err = run(capsys, command, "--format", format_, "-q")

    assert (status, err) == (0, "")
    if format_ == "json":
        assert json.loads(out)["schema_version"] == "1"
    else:
        assert {"markdown": out.startswith("| "), "csv": "," in out.splitlines()[0], "table": "|" not in out}[format_]


def test_one_engine(capsys: Capture) -> None:
    """Its options with their defaults and meanings."""
    out = run(capsys, "engines", "transformers")[1]
    document = json.loads(run(capsys, "engines", "transformers", "--json")[1])

    assert all(option["name"] in out and option["default"] in out for option in document["engines"][0]["options"])
    assert document["engines"][0]["options"]


def test_dtypes_say_what_is_stored(capsys: Capture) -> None:
    """By name or alias; scales are counted: q8_0 takes 34 bytes for 32 elements, 8.5 bits each."""
    (q8,) = json.loads(run(capsys, "dtypes", "q8_0", "--json")[1])["dtypes"]
    assert (q8["block_elements"], q8["block_bytes"]) == (32, 34)
    assert "8.5" in run(capsys, "dtypes", "q8_0")[1]

    (bf16,) = json.loads(run(capsys, "dtypes", "bfloat16", "--json")[1])["dtypes"]
    assert bf16["name"] == "bf16"


@pytest.mark.parametrize(
    ("engine", "named"), [("vllm", "int8_per_token_head"), ("sglang", "fp4_mx_block16"), ("lmdeploy", "turbo_quant")]
)
def test_every_format_that_an_engine_names_is_explained(engine: str, named: str, capsys: Capture) -> None:
    """Each that the error of a wrong one lists, by both commands; the bits are those of its rows in a model with heads of 128."""
    hint = json.loads(run(capsys, QWEN, "--engine", engine, "--dtype", "wrong", "--json")[1])["error"]["hint"]
    floats = {"auto", "float16", "bfloat16", "fp16", "bf16"}
    listed = [name for name in re.findall(r"[a-z]+[0-9]\w*|turbo\w+", hint.partition("Known: ")[2]) if name not in floats]
    assert named in listed
    for name in listed:
        [found] = json.loads(run(capsys, "dtypes", name, "--json")[1])["dtypes"]
        [own] = [one for one in found["engines"] if one["engine"] == engine] or [None]
        assert run(capsys, "help", name)[0] == run(capsys, "dtypes", name)[0] == 0
        if own is None:
            continue
        since = f" since {own['since']}" if own["since"] else ""
        assert f"{since}: {own['bits']:g} bits a value" in run(capsys, "dtypes", name)[1]
        model, roles = QWEN, (Role.KEY, Role.VALUE)
        if name.endswith("_ds_mla"):
            model, roles = "deepseek-ai/DeepSeek-V3.2", (Role.LATENT, Role.ROPE)
        opened: Any = open_request(load_model(model), engine=engine, seq=4096, dtype=name)
        numbers = [128, 128] if roles[0] is Role.KEY else [512, 64]
        stored = [opened.dtypes.roles[role] for role in roles]
        if engine == "lmdeploy":
            # Its scales are pieces of their own: those of a whole cache of 36 layers with 8 heads are in its bytes.
            total = plan(QWEN, engine=engine, seq=4096, dtype=name).cache.total_bytes
            assert own["bits"] == pytest.approx(8 * total / (4096 * 36 * 8 * 256), abs=0.005)
            continue
        bits = sum(8 * each.block_bytes / each.block_elements * count for each, count in zip(stored, numbers, strict=True))
        assert own["bits"] == pytest.approx(bits / sum(numbers), abs=0.005)


def test_the_word_of_one_engine_for_eight_bits_is_explained(capsys: Capture) -> None:
    """What mistral.rs calls f8e4m3 takes a byte a value, as in its plan."""
    [found] = json.loads(run(capsys, "dtypes", "f8e4m3", "--json")[1])["dtypes"]
    opened: Any = open_request(load_model(QWEN), engine="mistral-rs", seq=4096, dtype="f8e4m3", gpu="h100")

    assert [one["bits"] / 8 for one in found["engines"]] == [opened.dtypes.roles[Role.KEY].block_bytes]
    assert run(capsys, "help", "f8e4m3")[0] == 0


def test_models_are_searched(capsys: Capture) -> None:
    """Every word must occur; nothing found is an error on paper and an empty list in JSON."""
    document = json.loads(run(capsys, "models", "qwen3", "8b", "--json")[1])

    assert QWEN in {model["id"] for model in document["models"]}
    assert all("qwen3" in (model["id"] + (model["model_type"] or "")).lower() for model in document["models"])
    assert run(capsys, "models", "no such thing")[0] == 3
    assert json.loads(run(capsys, "models", "no such thing", "--json")[1])["models"] == []

"""Hostile text in every place that takes text: no line of an answer controls a terminal or a runner, shows a token or fills a log."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from hwcalc import load_model, plan
from hwcalc.cli.options import COMMANDS, find_command
from hwcalc.engines.vllm.engine import flag_words
from hwcalc.errors import ConfigError, UsageError
from hwcalc.masking import without_tokens
from hwcalc.model import Note
from hwcalc.report.emit import emitted
from hwcalc.report.text import csv_text
from hwcalc.report.view import View
from hwcalc.text import LONGEST_MESSAGE, clean, csv_cell, lines_for, message, operand, shell_word, shown
from tests.effort import ALL, sample
from tests.hwcalc.check.files import TINY, check_file, tiny_model, write
from tests.hwcalc.cli.hostile import HOSTILE, LONG, SECRET, SHEET, TOKENS, faults
from tests.hwcalc.command import Capture, run

_FEW: Final = 1
"""Texts that are put in each place, chosen with a seed; all of them (minutes) with ``KVPLAN_TESTS=all``."""
# What each command needs besides: an answer where the hostile text is taken, an error where it is not.
_BASE: Final = {
    "diff": ["gpt2", "Qwen/Qwen3-8B"],
    "sweep": ["gpt2", "--seq", "1k"],
    "explore": ["--gpu", "l4"],
    **{name: ["gpt2"] for name in ("plan", "explain", "compare", "recommend", "reconcile", "probe")},
}
_REPORTS: Final = (
    ["plan"], ["plan", "--json"], ["plan", "--format", "markdown"], ["plan", "--format", "csv"], ["explain"], ["explain", "--format", "markdown"],
    ["plan", "--engine", "vllm", "--gpu", "l4"], ["plan", "--engine", "vllm", "--emit", "vllm"], ["plan", "--assume", "dense"],
    ["compare", "--dtype", "bf16,fp8"], ["compare", "--dtype", "bf16,fp8", "--format", "csv"], ["sweep", "--keep-going", "--seq", "1k"],
    ["sweep", "--keep-going", "--json", "--seq", "1k"], ["recommend"], ["recommend", "--format", "csv"], ["diff", "gpt2"],
)  # fmt: skip
_CONFIGS: Final[tuple[Callable[[str], dict[str, Any]], ...]] = (
    lambda text: {"model_type": text},
    lambda text: {"architectures": [text]},
    lambda text: {"architectures": [text], "model_type": text, "auto_map": {text: text}},
    lambda text: {"layer_types": [text, text]},
    lambda text: {"torch_dtype": text},
    lambda text: {"quantization_config": {"quant_method": text}},
    lambda text: {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {text: {"weights": {"type": text}}}}
    },
    lambda text: {"_name_or_path": text, "hidden_act": text, "rope_scaling": {"rope_type": text}},
    lambda text: {text: 1, f"kv_{text}": text},
    lambda text: {"hidden_size": text},
    lambda text: {"text_config": {"model_type": text}},
)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, in an empty folder, with no settings of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def texts(seed: str, few: int = _FEW) -> tuple[str, ...]:
    """Hostile texts for one place."""
    return tuple(some(HOSTILE, few, seed))


def some(choices: Sequence[Any], few: int, seed: str) -> Sequence[Any]:
    """A few of these, the same ones for the same seed; all of them where every text is wanted."""
    return choices if ALL else random.Random(ascii(seed)).sample(choices, few)  # noqa: S311 - nothing is secret here


def harmless(capsys: Capture, *words: str, commands: bool = False, longest: int | None = 4200) -> str:
    """Run a command line, whose answer must be harmless in every line; its standard output."""
    status, out, err = run(capsys, *words)

    assert status != 70, err
    assert faults(out, commands=commands, longest=longest) == [], [word[:60] for word in words]
    assert faults(err) == [], [word[:60] for word in words]
    return out


def _options() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        for option in find_command(name).options:
            if option.kind != "flag" and option.name not in {"output", "receipt"}:
                yield name, option.flags[0] if option.flags else ""


@pytest.mark.parametrize(("name", "flag"), sample(list(_options()), 120))
def test_every_option(capsys: Capture, name: str, flag: str) -> None:
    """As text and, once, as JSON."""
    chosen = texts(f"{name} {flag}")
    for number, text in enumerate(chosen):
        words = [name, *_BASE.get(name, []), f"{flag}={text}"] if flag else [name, "--", text]
        harmless(capsys, *words)
        if flag and number == 0:
            harmless(capsys, *words, "--json", longest=None)


@pytest.mark.parametrize("number", range(len(_CONFIGS)))
def test_every_string_of_a_config(tmp_path: Path, capsys: Capture, number: int) -> None:
    """Whether it is understood or refused. JSON and CSV keep what is long."""
    for text in texts(f"config {number}"):
        tiny_model(tmp_path, **_CONFIGS[number](text))
        for words in some(_REPORTS, 5, text):
            harmless(capsys, *words, "./tiny", longest=None if {"--json", "csv", "markdown"} & set(words) else 4200)


def _file_name(text: str) -> str:
    return os.fsdecode(text.replace("/", "_").encode("utf-8", "surrogateescape"))[:80]


def test_every_name_of_a_folder(tmp_path: Path, capsys: Capture) -> None:
    """It is the model's name in all reports."""
    for text in texts("folder", few=6):
        try:
            name = _file_name(text)
            write(tmp_path / name / "config.json", TINY)
        except (OSError, UnicodeError):
            continue
        for words in some(_REPORTS, 6, name):
            harmless(capsys, *words, "--", f"./{name}")


@pytest.mark.parametrize(
    "key", ["name", "model", "seq", "dtype", "engine", "gpu", "weights", "max_cache", "draft", "engine_options", ""]
)
def test_every_string_of_a_check(tmp_path: Path, capsys: Capture, key: str) -> None:
    """In every format; only annotations speak to a runner, and say nothing but what they mean to."""
    for text in texts(f"check {key}"):
        given = {key: {text: text} if key == "engine_options" else text} if key else {text: text}
        path = check_file(tmp_path, {"name": "one", "model": "./tiny", "seq": 1024, "max_cache": 1, "engine": "vllm", **given})
        for format_ in ("table", "json", "markdown", "csv", "junit", "sarif", "github"):
            speaks = format_ == "github"
            out = harmless(
                capsys,
                "check",
                "--offline",
                "--format",
                format_,
                path,
                commands=speaks,
                longest=4200 if format_ == "table" else None,
            )
            if speaks:
                assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in out.splitlines())


def test_names_of_check_files(tmp_path: Path, capsys: Capture) -> None:
    """Those that are there, those that are not, and those that are written."""
    for text in texts("file", few=8):
        try:
            name = _file_name(text)
            check_file(tmp_path, {"name": "one", "model": "./tiny", "seq": 1024, "max_cache": 1}, name=name)
        except (OSError, UnicodeError):
            continue
        for format_ in ("table", "junit", "sarif", "github"):
            harmless(capsys, "check", "--offline", "--format", format_, "--", name, commands=format_ == "github")
        harmless(capsys, "check", "--lock", "--", name)
        harmless(capsys, "check", "--", f"no/{name}")
        harmless(capsys, "sweep", "gpt2", "--seq", "1k", "--format", "csv", "-o", f"no/{name}")


def test_lines_of_a_log(tmp_path: Path, capsys: Capture) -> None:
    """In what is read of it, and in what is not understood."""
    for text in texts("log", few=10):
        lines = (
            f"INFO non-default args: {{'model': '{text}', 'api_key': '{text}'}}\nAvailable KV cache memory: 8.00 GiB {text}\n"
            f"Initializing a V1 LLM engine (v0.11.0) with config: model='{text}', max_seq_len=1024, kv_cache_dtype={text}\n{text}\n"
        )
        (tmp_path / "log").write_text(lines, encoding="utf-8", errors="replace")
        for words in (["--verbose"], ["--json"], ["--format", "csv"], ["--format", "markdown", "--verbose"]):
            harmless(capsys, "reconcile", "gpt2", "--log", "log", *words)


@pytest.mark.parametrize(
    "variable", ["HF_ENDPOINT", "HF_TOKEN", "HF_HOME", "XDG_CONFIG_HOME", "KVPLAN_CALIBRATION", "TERM", "COLUMNS"]
)
def test_the_environment(capsys: Capture, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """It is never echoed as it is."""
    for text in texts(variable):
        try:
            monkeypatch.setenv(variable, text)
        except (UnicodeError, ValueError):
            continue
        for words in (["nosuch/model"], ["nosuch/model", "--json"], ["gpt2", "--gpu", "l4", "--engine", "vllm"]):
            harmless(capsys, *words)


# --- the pieces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_a_message_is_harmless(text: str) -> None:
    """Of an error, its hint, and a note, however it is made; doing it twice changes nothing."""
    error = UsageError(f"no {text}", hint=f"Try {text}")
    error.hint = error.hint + text
    note = Note(code="x", message=text)

    for said in (error.message, str(error), error.hint, note.message, shown(text), clean(text), lines_for(text)):
        assert faults(lines_for(said), longest=None) == []
        assert without_tokens(said) == said
    assert max(len(error.message), len(error.hint), len(note.message)) <= LONGEST_MESSAGE
    assert len(ConfigError(text).message) <= LONGEST_MESSAGE
    assert message(message(text)) == message(text)
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize("text", TOKENS)
def test_no_token_is_left(text: str) -> None:
    """Wherever it stands, and where a value is cut."""
    for before in ("", "a ", "'", "x" * 30 + " ", "/p/", "model="):
        assert SECRET not in without_tokens(before + text)
        assert SECRET[:12] not in shown(before + text, 20)
        assert SECRET[:12] not in UsageError(f"{before}{text} is not known.").message


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B", "org/sk-learn-pipeline-7b", "hf_transfer", "hf_quant_config.json", "vllm@0.10.1", "org/name@main",
        "eyJafar/model", "K:V", "q8_0:f16", "draft:org/model@main:4", "see https://huggingface.co/docs?x=1&y=2", "npm_config", "risk-based-model-v2",
        "a.b@c.d", "Bearer of news", "task-1234567890123456", "deepseek-ai/DeepSeek-V3.2-Exp",
    ],
)  # fmt: skip
def test_names_are_no_tokens(name: str) -> None:
    """Names of models, options and addresses stay."""
    assert without_tokens(name) == name


@pytest.mark.parametrize("text", [*SHEET, "=1", "\u2212x", " =x", "'=x", "\r=x", "\u200b=x", "a\n=x"])
def test_csv_has_no_formulas(text: str) -> None:
    """A spreadsheet reads text; numbers, signed ones too, stay numbers."""
    written = csv_text(("a", *"bcdefg"), [(text, -5, 1.5, "-5", "-1,024", "+3.5 %", "-")])
    ((cell, *numbers),) = list(csv.reader(io.StringIO(written)))[1:]

    assert re.match('(?:.*;)?[\\s"?]*[=+@\uff1d\u2212-]', cell) is None
    assert cell.isprintable()
    assert numbers == ["-5", "1.5", "-5", "-1,024", "+3.5 %", "-"]
    assert csv_cell(csv_cell(text)) == csv_cell(text)


def test_wrapped_lines_are_no_commands(tmp_path: Path, capsys: Capture) -> None:
    """A name that is wrapped just before ``::``, at every width that a terminal can have; the columns stay where they were."""
    for filler in range(60, 101):
        name = f"{'x' * filler} ::error file=a::b"
        path = check_file(tmp_path, {"name": name, "model": "./tiny", "seq": 1024, "max_cache": 1})
        harmless(capsys, "check", "--offline", path)
    assert lines_for("a\n   ::error::x\n") == "a\n   ?:error::x\n"
    assert lines_for("::notice::x\n", commands=True) == "::notice::x\n"


def test_json_keeps_values(tmp_path: Path, capsys: Capture) -> None:
    """Escapes in the text, the same value to a reader; but for tokens."""
    name = "a\u202e\u05d0 ##[error] \u200b ::error::"
    path = check_file(tmp_path, {"name": "one", "model": "./tiny", "seq": 1024, "max_cache": 1, "engine": "reference"})
    out = harmless(capsys, "check", "--offline", "--json", path)
    assert json.loads(out)["checks"][0]["name"] == "one"
    tiny_model(tmp_path, architectures=[name])
    out = harmless(capsys, "plan", "--json", "./tiny")
    assert json.loads(out)["model"]["architecture"] == name
    tiny_model(tmp_path, architectures=[f"x hf_{SECRET}"])
    assert json.loads(harmless(capsys, "plan", "--json", "./tiny"))["model"]["architecture"] == "x ***"


# --- command lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a b'c\"d", "$(touch pwned)", "`x`", "a;b|c&d>e", "-x", "--output", "--", "%s", "[x]", "*", "~", "a\\b", "org/name"]
)
def test_a_hint_can_be_typed(name: str) -> None:
    """A shell reads the name as one word, and no option."""
    assert shlex.split(shell_word(name)) == [name]
    words = shlex.split(f"kvplan {operand(name)}")
    assert words[-1] == name
    assert (words[1] == "--") is name.startswith("-")


@pytest.mark.parametrize("name", ["plain", "a b'c\"d", "$(touch pwned)", "a;b|c", "-x", "--output", "org--name"])
def test_emit_names_a_folder_by_its_path(tmp_path: Path, capsys: Capture, name: str) -> None:
    """Not by the name in its config, which may be a model of someone else; one word, and no option."""
    write(tmp_path / name / "config.json", {**TINY, "architectures": ["LlamaForCausalLM"], "_name_or_path": "other/model"})
    for given, named in (
        (f"./{name}", f"./{name}"),
        (str(tmp_path / name), str(tmp_path / name)),
        (f"./{name}/config.json", f"./{name}"),
    ):
        status, out, err = run(capsys, "plan", "--engine", "vllm", "--emit", "vllm", given)
        words = shlex.split(out)

        assert (status, err, out.count("\n")) == (0, "", 1)
        assert words[:3] == ["vllm", "serve", named]
        assert "--revision" not in words


def test_emit_of_a_name_like_a_flag() -> None:
    """It stands behind ``--``, where no parser takes it for a flag; a value like a flag is bound to its flag."""
    planned = plan(load_model({**TINY, "architectures": ["LlamaForCausalLM"]}), engine="vllm", seq=1024)
    words = shlex.split(emitted(replace(planned, model=replace(planned.model, id="-x y")), "vllm"))
    parser = ArgumentParser()
    serve = parser.add_subparsers().add_parser("serve")
    serve.add_argument("model_tag", nargs="?")
    serve.add_argument("--max-model-len")

    assert words[-2:] == ["--", "-x y"]
    assert parser.parse_args(words[1:]).model_tag == "-x y"
    assert flag_words("revision", "0.11", "-r") == ["--revision=-r"]


def test_colours_are_kept_on_a_terminal() -> None:
    """And only theirs."""
    assert lines_for("\x1b[31mred\x1b[0m \x1b]0;t\x07", color=True) == "\x1b[31mred\x1b[0m ?]0;t?"
    assert lines_for("\x1b[31mred") == "?[31mred"
    assert View().color is False


@pytest.mark.parametrize(
    "text", [*LONG, "hf_" * 50_000, "://" * 50_000, "##" * 50_000, "\n" * 50_000, "a:" * 50_000 + "@", "\u0301" * 50_000]
)
def test_cleaning_takes_no_time(text: str) -> None:
    """Linear in the text: patterns that look back and forth would take minutes."""
    import time

    start = time.process_time()
    for clean_up in (message, lines_for, clean, csv_cell, shown):
        clean_up(text)
    assert time.process_time() - start < 3


def test_a_token_without_a_space_before_it_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that holds another, as text does that was put together twice."""
    inner = "hf_" + "aB3" * 11
    monkeypatch.setenv("HF_TOKEN", inner)

    assert without_tokens(f"schema_version{inner}") == "schema_version***"
    assert without_tokens(f"schema_versionhf_{'xY' * 12}{inner}Zz") == "schema_version******Zz"

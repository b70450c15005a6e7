"""The ``.env`` beside a text, by the rules of Docker Compose ("Set, use, and manage variables in a Compose file with interpolation"; "Syntax for
environment files"): it fills in ``${A}`` of a Compose file, ``--env-file`` takes its place, no container has it, and nobody reads it for other texts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc.launch.env_file import variables_in
from hwcalc.launch.read import read_launch
from tests.hwcalc.command import QWEN, Capture, run

COMPOSE: Final = f"""\
services:
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: --model {QWEN} --max-model-len ${{MAX_LEN:-4096}}
"""
SCRIPT: Final = f"#!/bin/sh\nvllm serve {QWEN} --max-model-len ${{MAX_LEN:-4096}}\n"
KUBERNETES: Final = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: chat}}
spec: {{containers: [{{name: a, image: "vllm/vllm-openai:v0.11.0", args: [--model, {QWEN}, --max-model-len, "${{MAX_LEN:-4096}}"]}}]}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _both(capsys: Capture, *words: str) -> tuple[dict[str, Any], Any, str]:
    """The check, the server and the bytes of its plan that ``kvplan FILE`` has, and what both say of files."""
    _, out, _ = run(capsys, "check", *words, "--json")
    document = json.loads(out)
    _, planned, _ = run(capsys, *words, "--json")
    _, _, said = run(capsys, *words, "--brief")
    [check], notes = document["checks"], document["files"][0]["notes"]
    assert [note for note in notes if note["code"] == "env-file"] == json.loads(planned)["notes"]
    return check, json.loads(planned)["servers"][0], "\n".join((*(note["message"] for note in notes), said))


@pytest.mark.parametrize(
    "service",
    [
        "command: --model {0} --max-model-len ${{MAX_LEN:-4096}}",
        'command: ["--model", "{0}", "--max-model-len", "$MAX_LEN"]',
        'entrypoint: ["sh", "-c", "vllm serve {0} --max-model-len ${{MAX_LEN}}"]',
        'environment: {{MAX_LEN: "${{MAX_LEN}}"}}\n    entrypoint: ["sh", "-c", "vllm serve {0} --max-model-len $$MAX_LEN"]',
        'environment: [MAX_LEN]\n    entrypoint: ["sh", "-c", "vllm serve {0} --max-model-len $$MAX_LEN"]',
    ],
)
def test_a_compose_file_is_filled_in(service: str, folder: Path, capsys: Capture) -> None:
    """It is planned and checked as the file in which the value stands."""
    (folder / ".env").write_text("MAX_LEN=8192 # of two pages\n", encoding="utf-8")
    text = f"services:\n  chat:\n    image: vllm/vllm-openai:v0.11.0\n    {service.format(QWEN)}\n"
    (folder / "compose.yaml").write_text(text, encoding="utf-8")
    written = f"services:\n  chat:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model {QWEN} --max-model-len 8192\n"
    (folder / "kvplan").mkdir()
    (folder / "kvplan" / "compose.yaml").write_text(written, encoding="utf-8")
    check, server, said = _both(capsys, "compose.yaml", "--gpu", "l4")
    other, as_written, nothing = _both(capsys, "kvplan/compose.yaml", "--gpu", "l4")

    assert check["plan"] == other["plan"]
    assert server["plan"]["memory"] == as_written["plan"]["memory"]
    assert said.count(".env is read, as Docker Compose does: MAX_LEN.") == 2
    assert ".env" not in nothing
    # A text without a path has no file beside it.
    assert read_launch(text)[0].max_model_len != 8192


@pytest.mark.parametrize(
    ("more", "length"),
    [
        ([], 8192),
        (["--set", "MAX_LEN=2048"], 2048),
        (["--env-file", "other.env"], 4096),
        (["--env-file", "other.env", "--set", "MAX_LEN=2048"], 2048),
    ],
)
def test_what_the_user_gives_counts_more(more: list[str], length: int, folder: Path, capsys: Capture) -> None:
    """``--set`` counts more than the file, and ``--env-file`` takes its place, as in Compose, where the process has no such variable."""
    (folder / ".env").write_text("MAX_LEN=8192\n", encoding="utf-8")
    (folder / "other.env").write_text("OTHER=1\n", encoding="utf-8")
    (folder / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    check, server, said = _both(capsys, "compose.yaml", "--gpu", "l4", *more)

    assert check["server"]["max_model_len"] == server["server"]["max_model_len"] == length
    assert (".env is read" in said) is (not more)


def test_no_container_has_it(folder: Path, capsys: Capture) -> None:
    """What Compose fills in with is no variable of a container, unless the file gives it one."""
    (folder / ".env").write_text("MAX_LEN=262144\nVLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n", encoding="utf-8")
    (folder / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    refused = run(capsys, "check", "compose.yaml", "--gpu", "h100")
    (folder / "compose.yaml").write_text(f"{COMPOSE}    environment: [VLLM_ALLOW_LONG_MAX_MODEL_LEN]\n", encoding="utf-8")
    allowed = run(capsys, "check", "compose.yaml", "--gpu", "h100")

    assert (refused[0], "VLLM_ALLOW" in refused[1], allowed[0]) == (1, True, 0)


def test_no_container_has_what_the_user_gives(folder: Path, capsys: Capture) -> None:
    """Compose fills in with the shell and with ``--env-file``, and gives a container neither by itself: what the server refuses stays refused."""
    (folder / "other.env").write_text("MAX_LEN=262144\nVLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n", encoding="utf-8")
    (folder / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    given = [("--env-file", "other.env"), ("--set", "MAX_LEN=262144", "--set", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")]
    for words in given:
        assert run(capsys, "check", "compose.yaml", "--gpu", "h100", *words)[0] == 1
    (folder / "compose.yaml").write_text(f"{COMPOSE}    environment: [VLLM_ALLOW_LONG_MAX_MODEL_LEN]\n", encoding="utf-8")
    for words in given:
        assert run(capsys, "check", "compose.yaml", "--gpu", "h100", *words)[0] == 0


def test_an_edit_names_the_file(folder: Path, capsys: Capture) -> None:
    """It is not written by ``--fix``, which says what to write there. That done, the check passes."""
    (folder / ".env").write_text("MAX_LEN=262144\n", encoding="utf-8")
    (folder / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    words = ("check", "compose.yaml", "--gpu", "h100")
    _, out, _ = run(capsys, *words)
    status, diff, err = run(capsys, *words, "--fix")
    told = re.search(r"MAX_LEN of \.env, and --fix changes no such file: write (MAX_LEN=\d+) there", err)

    assert "(MAX_LEN of .env)" in out
    assert (status, "+++" in diff, told is not None) == (1, False, True)
    assert told is not None
    (folder / ".env").write_text(told[1], encoding="utf-8")
    assert run(capsys, *words)[0] == 0


def test_other_servers_of_the_file_are_mended(folder: Path, capsys: Capture) -> None:
    """``--fix --write`` reads its text again with the same values, and says again which they are."""
    (folder / ".env").write_text("MAX_LEN=8192\n", encoding="utf-8")
    other = f"  long:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model {QWEN} --max-model-len 262144\n"
    (folder / "compose.yaml").write_text(COMPOSE + other, encoding="utf-8")
    _, out, _ = run(capsys, "check", "compose.yaml", "--gpu", "h100", "--fix", "--write", "--json")
    document = json.loads(out)

    assert [check["status"] for check in document["checks"]] == ["pass", "pass"]
    assert document["checks"][0]["server"]["max_model_len"] == 8192
    assert [note["code"] for note in document["files"][0]["notes"]] == ["env-file"]


def test_each_file_has_that_of_its_folder(folder: Path, capsys: Capture) -> None:
    """A folder with two projects, and one without such a file."""
    for name, length in (("a", "MAX_LEN=8192\n"), ("b", "MAX_LEN=2048\n"), ("c", "")):
        (folder / name).mkdir()
        (folder / name / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
        if length:
            (folder / name / ".env").write_text(length, encoding="utf-8")
    _, out, _ = run(capsys, "check", ".", "--gpu", "l4", "--json")
    found = {check["file"][-14]: check["server"]["max_model_len"] for check in json.loads(out)["checks"]}

    assert found == {"a": 8192, "b": 2048, "c": 4096}


@pytest.mark.parametrize(("name", "text"), [("serve.sh", SCRIPT), ("pod.yaml", KUBERNETES)])
def test_nobody_reads_it_for_other_texts(name: str, text: str, folder: Path, capsys: Capture) -> None:
    """A note names each variable with which the text would be another one, with the words that read it; of the same values it says nothing."""
    (folder / ".env").write_text("MAX_LEN=8192\nHF_TOKEN=hidden\nUNUSED=1\n", encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    check, server, said = _both(capsys, name, "--gpu", "l4")
    told = re.findall(r"\.env has other values of MAX_LEN than are taken .*To read it add: (.+)", said)

    assert check["server"]["max_model_len"] == server["server"]["max_model_len"] == 4096
    assert len(told) == 2
    check, _, said = _both(capsys, name, "--gpu", "l4", *shlex.split(told[0]))
    assert (check["server"]["max_model_len"], ".env" in said) == (8192, False)
    (folder / ".env").write_text("MAX_LEN=4096\n", encoding="utf-8")
    assert ".env" not in _both(capsys, name, "--gpu", "l4")[2]


def test_no_secret_is_shown(folder: Path, capsys: Capture) -> None:
    """Not where it stands at a flag that is refused either: it is not taken."""
    (folder / ".env").write_text("API_KEY=abcdefgh\nHF_TOKEN=ijklmnop\nSIZE=hf_abcdefghijklMNOP12\n", encoding="utf-8")
    text = COMPOSE.replace("${MAX_LEN:-4096}", "$HF_TOKEN --gpu-memory-utilization $SIZE --foo=$API_KEY --api-key ${API_KEY}")
    (folder / "compose.yaml").write_text(text, encoding="utf-8")
    for words in (("check", "compose.yaml", "--fix"), ("compose.yaml",), ("check", "compose.yaml", "--json")):
        _, out, err = run(capsys, *words, "--gpu", "l4")
        assert not any(secret in out + err for secret in ("abcdefgh", "ijklmnop", "MNOP12"))


def _outside(file: Path) -> None:
    other = file.parent.parent / "outside.env"
    other.write_text("MAX_LEN=8192\n", encoding="utf-8")
    file.symlink_to(other)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_outside, "it is a link that leads out of its folder"),
        (lambda file: file.symlink_to("nowhere"), "it cannot be read: No such file"),
        (lambda file: file.symlink_to(".env"), "it cannot be read: "),
        (lambda file: file.mkdir(), "it is a folder"),
        (os.mkfifo, "it is a pipe or a device"),
        (lambda file: file.write_bytes(b"MAX_LEN=8192\n" * 2**16), "it is larger than 256 KiB"),
        (lambda file: file.write_bytes(b"MAX_LEN=\xff\n"), "it is not UTF-8 text"),
        (lambda file: file.write_bytes(b"MAX_LEN=8192\0\n"), "it is no text"),
    ],
)
def test_what_is_no_such_file_is_not_read(made: Callable[[Path], None], why: str, folder: Path, capsys: Capture) -> None:
    """A checkout is somebody else's folder. A note says so, and the default is taken."""
    project = folder / "project"
    project.mkdir()
    (project / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    made(project / ".env")
    check, server, said = _both(capsys, "project/compose.yaml", "--gpu", "l4")

    assert check["server"]["max_model_len"] == server["server"]["max_model_len"] == 4096
    assert said.count(f"project/.env is not read, as Docker Compose would: {why}") == 2


def test_a_link_inside_the_folder_is_read(folder: Path, capsys: Capture) -> None:
    """As in ``.env -> .env.production``."""
    (folder / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    (folder / ".env.production").write_text("MAX_LEN=8192\n", encoding="utf-8")
    (folder / ".env").symlink_to(".env.production")
    assert _both(capsys, "compose.yaml", "--gpu", "l4")[0]["server"]["max_model_len"] == 8192


def test_a_command_names_the_file_that_takes_its_place(folder: Path, capsys: Capture) -> None:
    """What a message offers is checked with the same variables, and not with those of ``.env``."""
    (folder / ".env").write_text("MAX_LEN=8192\n", encoding="utf-8")
    (folder / "other.env").write_text("USED=1\n", encoding="utf-8")
    (folder / "compose.yaml").write_text(COMPOSE, encoding="utf-8")
    words = ("check", "compose.yaml", "--gpu", "l4", "--env-file", "other.env", "--baseline", "none.json", "--json")
    _, out, _ = run(capsys, *words)
    hint = next(
        check["error"]["hint"] for check in json.loads(out)["checks"] if check["error"] and "none.json" in check["error"]["hint"]
    )
    typed = shlex.split(hint.partition("kvplan ")[2])

    assert "--env-file" in typed
    assert json.loads(run(capsys, *typed, "--json")[1])["checks"][0]["server"]["max_model_len"] == 4096


@pytest.mark.parametrize(
    ("lines", "variables"),
    [
        ("A=1\n\n# B=2\nC = 3 ", {"A": "1", "C": "3"}),
        ("A=VAL # comment\nB=VAL# no comment", {"A": "VAL", "B": "VAL# no comment"}),
        ("A='VAL # no comment'\nB=\"VAL\" # comment", {"A": "VAL # no comment", "B": "VAL"}),
        ("export A: 1\r\nA=2\r\n", {"A": "2"}),
        ("A='$OTHER'\nB=${A:-x}\nC=\"${NONE-y}z\"", {"A": "$OTHER", "B": "$OTHER", "C": "yz"}),
        ("A=\"some\\tvalue\"\nB='let\\'s go'", {"A": "some\tvalue", "B": "let's go"}),
        ("A='two\nlines=1'\nB=3", {"A": "two\nlines=1", "B": "3"}),
        ("A=\nB='open\nC=1", {"A": "", "B": "'open", "C": "1"}),
        ("no variable\n=1\n1A=2\n", {}),
    ],
)
def test_lines_of_a_file(lines: str, variables: dict[str, str]) -> None:
    """The examples of Docker's page on the syntax of such files, and lines that it refuses, which are left out."""
    assert variables_in(lines) == variables


@pytest.mark.parametrize(
    "lines",
    [
        "".join(f"A{number}=$A{number - 1}$A{number - 1}x\n" for number in range(1, 16_000)),
        f"A={'x' * 32_000}\nB={'$A' * 100_000}\n",
        f"A={'x' * 32_000}\n" + "".join(f"B{number}=$A\n" for number in range(20_000)),
    ],
)
def test_values_of_values_stay_small(lines: str) -> None:
    """A file of a few hundred KiB in somebody else's folder takes no gigabytes."""
    tracemalloc.start()
    found = variables_in(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert sum(map(len, found.values())) <= 2 * len(lines) + 256 * 1024
    assert peak < 64 * 1024**2

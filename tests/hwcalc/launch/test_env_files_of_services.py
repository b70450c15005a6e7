"""``env_file`` of a service, by Compose's reference ("env_file"; "Environment variables precedence"): the container has what the file sets, below
``environment``; later files count more; a file that must be there and is not is refused; ``format: raw`` keeps values as they are written.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from hwcalc.launch.read import Given, read_launch
from tests.hwcalc.command import QWEN, Capture, run

OLLAMA: Final = "image: ollama/ollama:0.11.0"
TGI: Final = f"image: ghcr.io/huggingface/text-generation-inference:3.3.4\n    command: --model-id {QWEN}"
SCRIPT: Final = f"image: vllm/vllm-openai:v0.11.0\n    entrypoint: [sh, -c, vllm serve {QWEN} --max-model-len $$MAX_LEN]"
PLAIN: Final = f"image: vllm/vllm-openai:v0.11.0\n    command: --model {QWEN} --max-model-len 262144"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _text(service: str, more: str = "") -> str:
    return f"services:\n  chat:\n    {service}\n{f'    {more}{chr(10)}' if more else ''}"


def _read(text: str, path: str = "compose.yaml", given: Given | None = None) -> tuple[dict[str, Any], str]:
    """The server of a Compose file, and all that is said of files."""
    filled, said = (given or Given.of([])).with_beside(text, path)
    [server] = filled.servers(text, path)
    return server.to_dict(), "\n".join((*said, *(f"{name}: {why}" for name, why in server.unplanned.items())))


@pytest.mark.parametrize(
    "named", ["env_file: a.env", "env_file: [./a.env]", "env_file: [{path: a.env}]", 'env_file: ["${DIR:-.}/a.env"]']
)
@pytest.mark.parametrize(
    ("service", "variable"),
    [
        (OLLAMA, "OLLAMA_NUM_PARALLEL=8"),
        (TGI, "MAX_TOTAL_TOKENS=8192"),
        (SCRIPT, "MAX_LEN=8192"),
        (PLAIN, "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
    ],
)
def test_a_container_has_what_its_file_sets(named: str, service: str, variable: str, folder: Path, capsys: Capture) -> None:
    """It is the server, and the verdict, of the text in which ``environment`` says the same; a note names the variable."""
    (folder / "a.env").write_text(f"# of the team\n{variable}\nOTHER=1\n", encoding="utf-8")
    text, written = _text(service, named), _text(service, f'environment: ["{variable}"]')
    (folder / "compose.yaml").write_text(text, encoding="utf-8")
    (folder / "written.yaml").write_text(written, encoding="utf-8")
    server, said = _read(text)
    words = ("--gpu", "h100", "--set", f"chat.model={QWEN}", "--json")
    results = [json.loads(run(capsys, "check", name, *words)[1]) for name in ("compose.yaml", "written.yaml")]
    plans = [json.loads(run(capsys, name, *words)[1])["servers"][0] for name in ("compose.yaml", "written.yaml")]

    assert server == read_launch(written)[0].to_dict()
    assert said == f"a.env is read for a service that names it, as Docker Compose does: {variable.partition('=')[0]}."
    assert results[0]["checks"][0]["status"] == results[1]["checks"][0]["status"]
    assert results[0]["checks"][0]["plan"] == results[1]["checks"][0]["plan"]
    assert plans[0]["plan"] == plans[1]["plan"]
    assert said in run(capsys, "check", "compose.yaml", *words[:-1])[1]
    assert said in run(capsys, "compose.yaml", *words[:-1], "--brief")[2]


@pytest.mark.parametrize(
    ("more", "slots"),
    [
        ("env_file: a.env", 8),
        ("env_file: [a.env, b.env]", 4),
        ("env_file: [b.env, a.env]", 8),
        ("env_file: a.env\n    environment: {OLLAMA_NUM_PARALLEL: 2}", 2),
        ("env_file: a.env\n    environment: [OLLAMA_NUM_PARALLEL]", None),
        ("env_file: [a.env, {path: none.env, required: false}]", 8),
        ("extends: base\n    env_file: b.env", 4),
        ("extends: base", 8),
    ],
)
def test_what_counts_more(more: str, slots: int | None, folder: Path) -> None:
    """``environment`` counts more than files, also as a name that the shell gives no value; later files more; those of an extended service come first."""
    (folder / "a.env").write_text("OLLAMA_NUM_PARALLEL=8\n", encoding="utf-8")
    (folder / "b.env").write_text("export OLLAMA_NUM_PARALLEL='4' # fewer\n", encoding="utf-8")
    base = "  base: {env_file: a.env, image: busybox}\n" if "extends" in more else ""
    filled, said = Given.of([]).with_beside(text := f"{_text(OLLAMA, more)}{base}", "compose.yaml")
    [server] = filled.servers(text, "compose.yaml")

    assert server.settings.get("slots") == slots
    assert ("OLLAMA_NUM_PARALLEL" in " ".join(said)) is (slots in (8, 4))
    assert not server.unplanned


@pytest.mark.parametrize(
    ("lines", "named", "slots"),
    [
        ("OLLAMA_NUM_PARALLEL=${N}", "a.env", 4),
        ("OLLAMA_NUM_PARALLEL=${N:-2}", "{path: a.env}", 4),
        ("OLLAMA_NUM_PARALLEL", "a.env", 16),
        ("N=8\nOLLAMA_NUM_PARALLEL=${N}", "a.env", 4),
        ("M=8\nOLLAMA_NUM_PARALLEL=$M", "a.env", 8),
        ("OLLAMA_NUM_PARALLEL=2", "a.env", 2),
        ("OLLAMA_NUM_PARALLEL='$N'", "{path: a.env, format: raw}", None),
    ],
)
def test_values_are_filled_in(lines: str, named: str, slots: int | None, folder: Path) -> None:
    """By what fills in the text, which counts more than the lines above; a name alone has its value from there. Raw values are not read so."""
    (folder / "a.env").write_text(lines, encoding="utf-8")
    (folder / ".env").write_text("N=4\n", encoding="utf-8")
    server, _ = _read(_text(OLLAMA, f"env_file: [{named}]"), given=Given.of(["OLLAMA_NUM_PARALLEL=16"]))
    assert (server["slots"] if isinstance(server["slots"], int) else None) == slots


def _outside(file: Path) -> None:
    other = file.parent.parent / "outside.env"
    other.write_text("OLLAMA_NUM_PARALLEL=8\n", encoding="utf-8")
    file.symlink_to(other)


@pytest.mark.parametrize(
    ("name", "made", "why"),
    [
        ("a.env", lambda _: None, "it is not there"),
        ("a.env", _outside, "it is a link that leads out of its folder"),
        ("../outside.env", lambda file: file.write_bytes(b"OLLAMA_NUM_PARALLEL=8"), "it lies outside the folder of the text"),
        ("/dev/zero", lambda _: None, "it lies outside the folder of the text"),
        ("a.env", lambda file: file.symlink_to("a.env"), "it cannot be read: "),
        ("a.env", lambda file: file.mkdir(), "it is a folder"),
        ("a.env", os.mkfifo, "it is a pipe or a device"),
        ("a.env", lambda file: file.write_bytes(b"OLLAMA_NUM_PARALLEL=8\n" * 2**16), "it is larger than 256 KiB"),
        ("a.env", lambda file: file.write_bytes(b"OLLAMA_NUM_PARALLEL=\xff\n"), "it is not UTF-8 text"),
        ("a.env", lambda file: file.write_bytes(b"OLLAMA_NUM_PARALLEL=8\0\n"), "it is no text"),
    ],
)
def test_what_is_not_read_is_named(name: str, made: Callable[[Path], None], why: str, folder: Path, capsys: Capture) -> None:
    """A checkout is somebody else's folder. Both commands say which file the plan is without."""
    (folder / "project").mkdir()
    (folder / "project" / "compose.yaml").write_text(_text(OLLAMA, f"env_file: {name}"), encoding="utf-8")
    made(folder / "project" / name) if not name.startswith("/") else None
    words = ("project/compose.yaml", "--gpu", "h100", "--set", f"chat.model={QWEN}")
    _, checked, _ = run(capsys, "check", *words)
    _, _, planned = run(capsys, *words, "--brief")
    [server] = json.loads(run(capsys, *words, "--json")[1])["servers"]

    assert f"the env_file {name}" in checked
    assert why in checked
    assert f"the env_file {name}" in planned
    assert server["server"]["slots"] is None
    assert why in server["unplanned"][f"the env_file {name}"]


def test_a_text_without_a_path_has_no_such_file(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input and a text in Python: what is not read is named."""
    import io

    (folder / "a.env").write_text("OLLAMA_NUM_PARALLEL=8\n", encoding="utf-8")
    text = _text(OLLAMA, "env_file: a.env")
    for words in (("check", "-"), ("launch", "-")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
        _, out, err = run(capsys, *words, "--gpu", "h100", "--set", f"chat.model={QWEN}")
        assert "the env_file a.env, which may bear on memory: a text without a path has no folder" in " ".join(
            (out + err).split()
        )
    [server] = read_launch(text)
    assert (server.settings.get("slots"), [*server.unplanned]) == (None, ["the env_file a.env"])


def test_no_secret_is_kept(folder: Path) -> None:
    """Neither a secret nor what no plan reads is in the server, in a note, or in what the command knows."""
    (folder / "a.env").write_text("HF_TOKEN=abcdefgh\nMY_API_KEY=ijkl\nDATABASE=mnop\nMAX_LEN=8192\n", encoding="utf-8")
    text = _text(SCRIPT.replace("$$MAX_LEN", "$$MAX_LEN --api-key $$MY_API_KEY"), "env_file: a.env")
    filled, said = Given.of([]).with_beside(text, "compose.yaml")
    [server] = filled.servers(text, "compose.yaml")
    everything = f"{filled.env_files} {said} {server.variables} {server.words} {server.places} {server.to_dict()}"

    assert "8192" in everything
    assert not any(secret in everything for secret in ("abcdefgh", "ijkl", "mnop"))


def test_an_edit_names_the_file(folder: Path, capsys: Capture) -> None:
    """The finding stands where the service names it, ``--fix`` changes nothing and says what to write there. That done, the check passes."""
    (folder / "a.env").write_text("MAX_LEN=262144\n", encoding="utf-8")
    (folder / "compose.yaml").write_text(_text(SCRIPT, "env_file: a.env"), encoding="utf-8")
    words = ("check", "compose.yaml", "--gpu", "h100")
    _, out, _ = run(capsys, *words)
    status, diff, err = run(capsys, *words, "--fix")
    told = re.search(r"is MAX_LEN of a\.env, and --fix changes no such file: write (MAX_LEN=\d+) there", err)

    assert "MAX_LEN of a.env" in out
    assert "compose.yaml:5" in out
    assert (status, "+++" in diff, told is not None) == (1, False, True)
    assert told is not None
    (folder / "a.env").write_text(told[1], encoding="utf-8")
    assert run(capsys, *words)[0] == 0


def test_an_edit_names_the_other_servers_of_the_file(folder: Path, capsys: Capture) -> None:
    """A value of a file that two services name is that of both."""
    (folder / "a.env").write_text("MAX_LEN=262144\n", encoding="utf-8")
    both = f"{_text(SCRIPT, 'env_file: a.env')}{_text(SCRIPT, 'env_file: [a.env]').removeprefix('services:').replace('chat', 'long')}"
    (folder / "compose.yaml").write_text(both.replace("\n\n", "\n"), encoding="utf-8")
    _, out, _ = run(capsys, "check", "compose.yaml", "--gpu", "h100")
    assert "MAX_LEN of a.env, also of long" in out


def test_many_variables_of_many_services_take_no_minutes(folder: Path) -> None:
    """A file of somebody else may have thousands, and a text thousands of services: what is not read is named there too."""
    (folder / "a.env").write_text("".join(f"A_ALLOW_{number}=1\n" for number in range(10_000)), encoding="utf-8")
    text = "services:\n" + "".join(f"  s{number}: {{{OLLAMA}, env_file: a.env}}\n" for number in range(400))
    filled, _ = Given.of([]).with_beside(text, "compose.yaml")
    servers = filled.servers(text, "compose.yaml")

    assert sum(len(server.variables) for server in servers) <= 100_000
    assert not servers[0].unplanned
    assert servers[-1].unplanned == {"the env_file a.env": "the text names too many"}

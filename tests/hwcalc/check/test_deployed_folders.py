"""``kvplan check`` of folders and patterns: which of their files start a server, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hwcalc.check.files import DEPLOYMENT, SERVICE, checked
from tests.hwcalc.command import QWEN, Capture, run


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Launch texts and check files at any depth; what starts nothing, is hidden or is no text is left out."""
    monkeypatch.chdir(tmp_path)
    serve = f"vllm serve {QWEN} --max-model-len 4096\n"
    texts = {
        "a/b/serve.sh": serve, "a/run": f"#!/bin/sh\n{serve}", "a/notes.md": serve, "a/LICENSE": serve, "service.yaml": SERVICE,
        "chat.service": f"[Service]\nExecStart={serve}", "requirements.txt": "vllm==0.11.0\n", ".git/x.sh": serve, "node_modules/x.sh": serve,
        "kvplan.yaml": f"schema_version: 1\nchecks: [{{model: {QWEN}, gpu: l4, engine: vllm, seq: 4k}}]\n",
        "values.yaml": "checks: {}\n", "data.json": "{}", "broken.yaml": "a: [",
    }  # fmt: skip
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    Path("picture.txt").write_bytes(b"\xff\xfe\x00")

    status, found = checked(capsys, ".", "--gpu", "h100")
    assert status == 0
    assert [file["path"] for file in found["files"]] == ["chat.service", "kvplan.yaml", "a/run", "a/b/serve.sh"]
    status, found = checked(capsys, "a/**/*.sh", "--gpu", "h100")
    assert (status, [file["path"] for file in found["files"]]) == (0, ["a/b/serve.sh"])

    # A fault of one file is a result among others.
    Path("a/kvplan-2.yaml").write_text("schema_version: 1\nchecks: 3\n", encoding="utf-8")
    Path("a/bomb.yaml").write_text(f"{SERVICE}x: {'[' * 100}", encoding="utf-8")
    status, found = checked(capsys, ".", "a/b/serve.sh", "--gpu", "h100")
    assert status == 3
    assert [(file["path"], file["checks"]) for file in found["files"][2:]] == [
        ("a/bomb.yaml", 0), ("a/kvplan-2.yaml", 0), ("a/run", 1), ("a/b/serve.sh", 1),
    ]  # fmt: skip

    status, _, err = run(capsys, "check", ".", "--gpu", "h100", "--output=github=a/b/serve.sh")
    assert (status, Path("a/b/serve.sh").read_text(encoding="utf-8")) == (2, serve)
    assert "is a file that is read" in err

    Path("empty").mkdir()
    status, found = checked(capsys, "empty")
    assert (status, found["checks"][0]["error"]["message"]) == (3, "nothing in empty starts a server that kvplan knows.")


def test_a_file_that_starts_nothing(tmp_path: Path, capsys: Capture) -> None:
    """Named, as a hook names every file of a folder, it is no fault; what may be meant as a check file still is one."""
    path = tmp_path / "service.yaml"
    path.write_text(SERVICE, encoding="utf-8")
    status, found = checked(capsys, str(path))
    assert (status, found["checks"]) == (0, [])
    assert found["files"][0]["notes"][0]["code"] == "no-server"

    path.write_text("image: {repository: nginx}\nports: [&p 80, *p]\n", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 0
    path.write_text("check: []\n", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 2
    path.write_text(f"model: {QWEN}\ngpu: l4\nmin_users: 8\n", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 2
    path.write_text("image: [", encoding="utf-8")
    assert checked(capsys, str(path))[0] == 3


@pytest.mark.parametrize(
    "text", ["layers: 2*full(heads=8, head_dim=64)\nhidden_size: 512\n", '{"hidden_size": 512, "model_type": "llama"}']
)
def test_a_model_in_place_of_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, text: str) -> None:
    """A gate that names it would pass for ever. The error says what to write, which is a check of it."""
    monkeypatch.chdir(tmp_path)
    Path("my model.yaml").write_text(text, encoding="utf-8")
    status, found = checked(capsys, "my model.yaml")
    error = found["checks"][0]["error"]
    assert (status, error["message"]) == (3, "my model.yaml is a model, and no check file: it holds nothing to check.")
    Path("kvplan.yaml").write_text(error["hint"].partition(": ")[2], encoding="utf-8")
    status, found = checked(capsys, "kvplan.yaml")
    assert [check["model"] for check in found["checks"]] == ["my model.yaml"]


def test_the_files_of_a_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Each line of a server that holds names its file, and a row says what fails where the server fits."""
    monkeypatch.chdir(tmp_path)
    for name, length in (("a.sh", 2048), ("b.sh", 2048), ("c.sh", 50000)):
        Path(name).write_text(f"#!/bin/sh\nvllm serve {QWEN} --max-model-len {length}\n", encoding="utf-8")
    _, table, _ = run(capsys, "check", ".", "--gpu", "h100")
    _, markdown, _ = run(capsys, "check", ".", "--gpu", "h100", "--format", "markdown")

    for name in ("a.sh", "b.sh"):
        assert f"ok       {name}:2: vllm {QWEN}  fits" in table
        assert f"| ok | {name}:2: vllm {QWEN} | fits |" in markdown
    assert f"| FAIL | c.sh:2: vllm {QWEN} | fits; fails length |" in markdown


@pytest.mark.parametrize(
    "name", ["compose.yaml", "docker-compose.yml", "Dockerfile", "serve.sh", "run", "k8s.yaml", "kvplan.yaml"]
)
def test_what_a_gate_writes_into_a_folder_is_not_checked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A lock and a baseline lie beside what they are of: a folder has its one check before and after, and the lock is used."""
    monkeypatch.chdir(tmp_path)
    serve = f"vllm serve {QWEN} --max-model-len 4096\n"
    texts = {
        "compose.yaml": f"services: {{chat: {{image: 'vllm/vllm-openai:v0.11.0', command: --model {QWEN} --max-model-len 4096}}}}\n",
        "Dockerfile": f"FROM vllm/vllm-openai:v0.11.0\nCMD {serve}",
        "run": f"#!/bin/sh\n{serve}",
        "k8s.yaml": DEPLOYMENT.replace('"2"', '"1"'),
        "kvplan.yaml": f"schema_version: 1\nchecks: [{{name: chat, model: {QWEN}, gpu: l4, engine: vllm, seq: 4k}}]\n",
    }
    path = Path("deploy", name)
    path.parent.mkdir()
    path.write_text(texts.get(name, texts["compose.yaml"] if name.endswith("yml") else serve), encoding="utf-8")
    lock = path.with_name(f"{name}.lock")

    status, first = checked(capsys, "deploy", "--gpu", "l4", "--lock")
    assert (status, first["files"][0]["lock"], lock.is_file()) == (0, str(lock), True)
    Path("deploy/before.json").write_text(json.dumps(first, indent=2), encoding="utf-8")
    for given in (["deploy"], ["deploy", "--baseline", "deploy/before.json", "--strict"], [f"deploy/{name}*"]):
        status, found = checked(capsys, *given, "--gpu", "l4")
        assert (status, found["summary"]["checks"], found["summary"]["errors"]) == (0, 1, 0)
        assert [file["lock"] for file in found["files"]] == [str(lock)]

    # By another name it is a lock still, and so is one that is named.
    lock.rename("deploy/copy.yaml")
    assert [file["path"] for file in checked(capsys, "deploy", "--gpu", "l4")[1]["files"]] == [str(path)]
    for named, is_ in (("copy.yaml", "a lock"), ("before.json", "a result of kvplan")):
        status, found = checked(capsys, f"deploy/{named}")
        assert (status, f"deploy/{named} is {is_}" in found["checks"][0]["error"]["message"]) == (3, True)


def test_a_folder_with_a_lock_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """``--fix --write`` changes the text alone, and the lock says what it was before."""
    monkeypatch.chdir(tmp_path)
    compose = f"services:\n  chat:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model {QWEN} --max-model-len 4096\n"
    Path("compose.yaml").write_text(compose, encoding="utf-8")
    assert checked(capsys, ".", "--gpu", "l4", "--lock")[0] == 0
    lock = Path("compose.yaml.lock").read_bytes()
    Path("compose.yaml").write_text(compose.replace("4096", "32768"), encoding="utf-8")
    status, found = checked(capsys, ".", "--gpu", "l4")
    assert (status, [change["before"] for change in found["checks"][0]["changes"]]) == (1, ["4096"])

    status, found = checked(capsys, ".", "--gpu", "l4", "--fix", "--write")
    assert (status, [fix["path"] for fix in found["fixes"]], found["summary"]["checks"]) == (0, ["compose.yaml"], 1)
    assert Path("compose.yaml.lock").read_bytes() == lock


def test_what_stands_for_the_files_that_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A hook is given what has changed: a lock is checked with its file, and a ``.env`` with the Compose files beside it, each once."""
    monkeypatch.chdir(tmp_path)
    compose = f"services:\n  chat: {{image: 'vllm/vllm-openai:v0.11.0', command: --model {QWEN} --max-model-len $MAX_LEN}}\n"
    texts = {
        "kvplan.yaml": f"schema_version: 1\nchecks: [{{name: a, model: {QWEN}, gpu: l4, engine: vllm, seq: 4k}}]\n",
        "deploy/compose.yaml": compose, "deploy/docker-compose.prod.yml": compose, "deploy/other.yaml": SERVICE, "deploy/broken.yml": "a: [",
        "deploy/.env": "MAX_LEN=4096\n", "empty/.env": "A=1\n", "uv.lock": "version = 1\n",
    }  # fmt: skip
    for name, text in texts.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")

    def files(*words: str) -> tuple[int, list[str]]:
        status, found = checked(capsys, *words, "--gpu", "h100")
        return status, [file["path"] for file in found["files"]]

    both = ["deploy/compose.yaml", "deploy/docker-compose.prod.yml"]
    assert files("deploy/.env") == (0, both)
    assert files("deploy/compose.yaml", "deploy/.env") == (0, both)
    Path("deploy/.env").write_text("MAX_LEN=40960000\n", encoding="utf-8")
    assert files("deploy/.env") == (1, both)
    assert files("empty/.env") == (0, ["empty/.env"])
    assert files("uv.lock") == (0, ["uv.lock"])

    assert run(capsys, "check", "--lock")[0] == 0
    assert run(capsys, "check", "kvplan.yaml.lock", "kvplan.yaml")[:2] == run(capsys, "check", "kvplan.yaml")[:2]
    lock = Path("kvplan.yaml.lock")
    lock.write_text(lock.read_text(encoding="utf-8").replace("4096", "8192"), encoding="utf-8")
    status, found = checked(capsys, "kvplan.yaml.lock")
    assert status == 3
    assert "digest" in found["checks"][0]["error"]["message"]
    Path("kvplan.yaml").unlink()
    assert run(capsys, "check", "kvplan.yaml.lock")[0] == 3

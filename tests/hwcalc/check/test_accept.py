"""``kvplan check --accept``: what is planned now becomes the baseline, by the command that a finding names."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwcalc.check.command import check
from hwcalc.errors import UsageError
from hwcalc.report.check import FORMATS
from tests.hwcalc.check.files import check_file, tiny_model, write
from tests.hwcalc.check.test_baseline import CHECK, saved
from tests.hwcalc.command import QWEN, Capture
from tests.hwcalc.command import run as command

SERVE = f"vllm serve {QWEN} --max-model-len {{}}\n"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def accepting(said: str) -> list[str]:
    """The words of the command that an output names."""
    plain = " ".join(html.unescape(said).replace("\\", "").split())
    told = re.findall(r"kvplan (check (?:(?!kvplan check).)*? --baseline \S+ --accept)", plain)
    assert told, said
    return shlex.split(told[-1])


def names(baseline: str = "b.json") -> list[tuple[str, str]]:
    """The files and names of the checks of a baseline."""
    return [(each["file"], each["name"]) for each in json.loads(Path(baseline).read_text(encoding="utf-8"))["checks"]]


def test_what_has_grown_is_accepted(tmp_path: Path, capsys: Capture) -> None:
    """The command has all that was typed. Done as it says, the check passes, and the baseline is what ``--json`` would have written."""
    tiny_model(tmp_path)
    write(tmp_path / "serve.sh", "vllm serve ./tiny --max-model-len $LENGTH")
    typed = ["check", "serve.sh", "--set", "LENGTH=2048", "--gpu", "l4"]
    assert command(capsys, *[word.replace("2048", "1024") for word in typed], "--baseline", "b.json", "--accept")[0] == 0
    status, said, _ = command(capsys, *typed, "--baseline", "b.json")

    assert status == 1
    assert accepting(said) == [*typed, "--baseline", "b.json", "--accept"]
    status, said, _ = command(capsys, *accepting(said))
    assert (status, "Wrote b.json with 1 check." in said) == (0, True)
    written, planned = json.loads(Path("b.json").read_text(encoding="utf-8")), json.loads(command(capsys, *typed, "--json")[1])
    assert (written["checks"], written["summary"]) == (planned["checks"], planned["summary"])
    # Notes of the run would meet in merges.
    assert [file["notes"] for file in written["files"]] == [[]]
    assert command(capsys, *typed, "--baseline", "b.json")[0] == 0


@pytest.mark.parametrize("locked", [[], ["a.yaml"], ["a.yaml", "b.yaml"]])
def test_locks_are_renewed_too(locked: list[str], tmp_path: Path, capsys: Capture) -> None:
    """Those that are there: no file gets a lock that had none, and then nothing is said any more."""
    files = ["a.yaml", "b.yaml"]
    for file in files:
        check_file(tmp_path, {"name": file, "model": "./tiny", "gpu": "l4", "seq": 1024}, name=file)
    for file in locked:
        command(capsys, "check", file, "--lock")
    command(capsys, "check", *files, "--baseline", "b.json", "--accept")
    silent = command(capsys, "check", *files, "--baseline", "b.json")
    check_file(tmp_path, {"name": "a.yaml", "model": "./tiny", "gpu": "l4", "seq": 2048}, name="a.yaml")
    _, said, _ = command(capsys, "check", *files, "--baseline", "b.json")
    command(capsys, *accepting(said))

    assert sorted(tmp_path.glob("*.lock")) == [tmp_path / f"{file}.lock" for file in locked]
    status, said, _ = command(capsys, "check", *files, "--baseline", "b.json")
    assert (status, said.splitlines()[1:]) == (0, silent[1].splitlines()[1:])


def test_one_command_is_for_check_files_and_deployments(capsys: Capture) -> None:
    """A check file says its hardware itself: its lock is written without the options of deployments."""
    checks = f"schema_version: 1\nchecks: [{{name: c, model: {QWEN}, gpu: l40s, engine: vllm, seq: 8k, concurrency: 4}}]\n"
    Path("kvplan.yaml").write_text(checks, encoding="utf-8")
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    files = ("kvplan.yaml", "serve.sh", "--gpu", "h100", "--baseline", "b.json")
    assert command(capsys, "check", "kvplan.yaml", "--lock")[0] == 0
    assert command(capsys, "check", *files, "--accept")[0] == 0
    Path("kvplan.yaml").write_text(checks.replace("concurrency: 4", "concurrency: 5"), encoding="utf-8")
    status, said, _ = command(capsys, "check", *files)
    assert status == 1
    assert command(capsys, *accepting(said))[0] == 0
    status, said, _ = command(capsys, "check", *files)
    assert (status, "since the" in said) == (0, False)
    assert not Path("serve.sh.lock").exists()


@pytest.mark.parametrize("ending", ["sh", "yaml"])
def test_other_files_of_the_baseline_stay_as_they_are(ending: str, tmp_path: Path, capsys: Capture) -> None:
    """A run of one file, as a hook makes it, does not know the options of the others."""

    def written(name: str, seq: int) -> None:
        if ending == "sh":
            Path(f"{name}.sh").write_text(SERVE.format(seq), encoding="utf-8")
        else:
            check_file(tmp_path, {**CHECK, "name": name, "seq": seq}, name=f"{name}.yaml")

    written("a", 8192)
    written("b", 8192)
    first, other = (("--gpu", "h100"), ("--gpu", "l40s")) if ending == "sh" else ((), ())
    assert command(capsys, "check", f"a.{ending}", *first, "--baseline", "b.json", "--accept")[0] == 0
    assert command(capsys, "check", f"b.{ending}", *other, "--baseline", "b.json", "--accept")[0] == 0
    assert {file for file, _ in names()} == {f"a.{ending}", f"b.{ending}"}
    written("a", 16_384)
    status, said, _ = command(capsys, "check", f"a.{ending}", *first, "--baseline", "b.json")
    assert status == 1
    status, said, _ = command(capsys, *accepting(said))
    assert (status, "as they were, 1 check of other files" in " ".join(said.split())) == (0, True)
    # Each check stays where it was.
    assert [file for file, _ in names()] == [f"a.{ending}", f"b.{ending}"]
    for file, options in (("a", first), ("b", other)):
        assert command(capsys, "check", f"{file}.{ending}", *options, "--baseline", "b.json", "--strict")[0] == 0


@pytest.mark.parametrize("strict", [True, False])
def test_a_new_server_is_added(strict: bool, capsys: Capture) -> None:
    """A manifest has no name to give: the command that is told makes a baseline with which nothing is missing."""
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    words = ("check", "serve.sh", "--gpu", "h100", "--baseline", "b.json", *(["--strict"] if strict else []))
    command(capsys, *words[:4], "--baseline", "b.json", "--accept")
    Path("serve.sh").write_text(SERVE.format(8192) + SERVE.format(4096).replace(QWEN, f"{QWEN} --port 1"), encoding="utf-8")
    status, said, _ = command(capsys, *words)

    assert status == int(strict)
    assert command(capsys, *accepting(said))[0] == 0
    status, said, _ = command(capsys, *words)
    assert (status, "o baseline has" in said) == (0, False)


@pytest.mark.parametrize("strict", [True, False])
def test_what_does_not_fit_is_not_accepted(strict: bool, capsys: Capture) -> None:
    """Nor does its finding name the command: whoever follows it would keep the failing state as the good one."""
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    words = ("check", "serve.sh", "--gpu", "l4", "--baseline", "b.json", *(["--strict"] if strict else []))
    assert command(capsys, "check", "serve.sh", "--gpu", "l4", "--lock")[0] == 0
    assert command(capsys, *words, "--accept")[0] == 0
    before = {path: path.read_bytes() for path in (Path("b.json"), Path("serve.sh.lock"))}
    Path("serve.sh").write_text(SERVE.format(40_960), encoding="utf-8")
    status, said, _ = command(capsys, *words)
    assert (status, "--accept" in said) == (1, False)
    status, said, _ = command(capsys, *words, "--accept")
    assert (status, "b.json was not written, and no lock" in " ".join(said.split())) == (1, True)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"error": {}}', '{"checks": [{}]}', "#!/bin/sh\n"])
def test_no_other_file_is_written_over(content: str, capsys: Capture) -> None:
    """What is no baseline stays as it is."""
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    Path("b.json").write_text(content, encoding="utf-8")
    assert command(capsys, "check", "serve.sh", "--gpu", "l4", "--baseline", "b.json", "--accept")[0] == 3
    assert Path("b.json").read_text(encoding="utf-8") == content


def test_no_lock_is_written_where_the_baseline_cannot_be(capsys: Capture) -> None:
    """It has a check that this kvplan cannot write again: both stay as they are."""
    words = ("check", "serve.sh", "--gpu", "l4", "--baseline", "b.json")
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    assert command(capsys, *words[:4], "--lock")[0] == 0
    assert command(capsys, *words, "--accept")[0] == 0
    document = json.loads(Path("b.json").read_text(encoding="utf-8"))
    document["checks"][0]["notes"] = 5
    Path("b.json").write_text(json.dumps(document), encoding="utf-8")
    Path("serve.sh").write_text(SERVE.format(4096), encoding="utf-8")
    before = {path: path.read_bytes() for path in (Path("b.json"), Path("serve.sh.lock"))}
    status, said, _ = command(capsys, *words, "--accept")
    assert (status, "written by another kvplan" in " ".join(said.split())) == (3, True)
    assert {path: path.read_bytes() for path in before} == before


def test_no_link_leads_out_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A checkout may have a link to any file of the user in the place of its baseline."""
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    words = ("check", "serve.sh", "--gpu", "l4", "--baseline", "b.json", "--accept")
    assert command(capsys, *words)[0] == 0
    outside = Path("b.json").rename(tmp_path / "outside.json")
    Path("b.json").symlink_to(outside)
    before = outside.read_bytes()
    status, _, error = command(capsys, *words)
    assert (status, "a link leads out" in error) == (74, True)
    assert outside.read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"baseline": ["b.json", "c.json"]},
    ],
)
def test_one_baseline_is_written(options: dict[str, Any]) -> None:
    """Which of several, or of none, is not guessed."""
    with pytest.raises(UsageError, match="writes one baseline"):
        check("kvplan.yaml", accept=True, **options)


@pytest.mark.parametrize("more", [(), ("--baseline", "b.json", "--fix"), ("--baseline", "b.json", "--max-growth", "5%")])
def test_options_that_contradict_it(more: tuple[str, ...], capsys: Capture) -> None:
    """Exit 2, before anything is read or written."""
    assert command(capsys, "check", "kvplan.yaml", "--accept", *more)[0] == 2
    assert not Path("b.json").exists()


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("file", ["kvplan.yaml", "gone.yaml"])
def test_a_check_that_is_gone_is_said(tmp_path: Path, capsys: Capture, file: str, format_: str) -> None:
    """Out of a file that is read, or with its file, in every format. With ``--strict`` it fails, and once the run is accepted nothing is said."""
    known = json.loads(Path(saved(tmp_path, CHECK, {**CHECK, "name": "two"})).read_text(encoding="utf-8"))
    known["checks"] = [check | {"file": name} for check, name in zip(known["checks"], ("kvplan.yaml", file), strict=True)]
    write(tmp_path / "baseline.json", known)
    check_file(tmp_path, CHECK)

    def checked(*more: str) -> tuple[int, str]:
        return command(capsys, "check", "kvplan.yaml", "--baseline", "baseline.json", "--format", format_, *more)[:2]

    (status, said), (strict_status, strict) = checked(), checked("--strict")
    assert (status, strict_status) == (0, 1)
    for text, rest in ((said, "With --strict that fails"), (strict, "where that is meant: kvplan check")):
        words = " ".join(re.sub(r"&#?\w+;|`", "", text).split())
        assert f"check 'two' of {file}, which is not there any more" in words
        assert rest in words
    if file == "gone.yaml" and format_ in ("text", "markdown", "github"):
        assert "kvplan.yaml:" not in strict
    assert command(capsys, *accepting(strict))[0] == 0
    assert names("baseline.json") == [("kvplan.yaml", "one")]
    assert checked("--strict")[0] == 0
    assert "not there" not in checked("--strict")[1]


def test_no_command_shows_a_secret(tmp_path: Path, capsys: Capture) -> None:
    """A file of variables holds tokens too: a command that is shown in a log has those that are planned alone."""
    tiny_model(tmp_path)
    write(tmp_path / "serve.sh", "HF_TOKEN=$HF_TOKEN vllm serve ./tiny --max-model-len $MAX_TOKENS --api-key $KEY")
    secrets = "HF_TOKEN=abcdefgh\nKEY=ijklmnop\nDB_PASSWORD=qrstuvwx\n"
    typed = ["check", "serve.sh", "--env-file", "e.env", "--gpu", "l4", "--baseline", "b.json"]
    write(tmp_path / "e.env", f"{secrets}MAX_TOKENS=1024\n")
    command(capsys, *typed, "--accept")
    write(tmp_path / "e.env", f"{secrets}MAX_TOKENS=2048\n")
    said = " ".join(command(capsys, *typed)[1].split())

    assert "kvplan check serve.sh --env-file e.env --gpu l4 --baseline b.json --accept" in said
    assert not any(secret in said + Path("b.json").read_text(encoding="utf-8") for secret in ("abcdefgh", "ijklmnop", "qrstuvwx"))


def test_what_a_lock_lacks_is_seen_before_it_is_accepted(capsys: Capture) -> None:
    """A server of another model: once the lock has it, its growth is told, with the command that accepts that."""
    words = ("check", "serve.sh", "--gpu", "h100", "--set", "TP=1", "--users", "4", "--baseline", "b.json")
    text = SERVE.format("8192 --tensor-parallel-size $TP")
    Path("serve.sh").write_text(text, encoding="utf-8")
    assert command(capsys, *words[:-2], "--lock")[0] == 0
    assert command(capsys, *words, "--accept")[0] == 0
    Path("serve.sh").write_text(text.replace(QWEN, "Qwen/Qwen3-14B"), encoding="utf-8")
    status, said, _ = command(capsys, *words)
    told = re.search(r"Add it: kvplan (check .*? --lock)", " ".join(said.split()))
    assert (status, "--accept" in said, told is not None) == (3, False, True)
    assert told is not None
    assert command(capsys, *shlex.split(told[1]))[0] == 0
    status, said, _ = command(capsys, *words)
    assert (status, "grew since the baseline" in said) == (1, True)
    assert command(capsys, *accepting(said))[0] == 0
    assert command(capsys, *words, "--strict")[0] == 0


@pytest.mark.parametrize("accept", [(), ("--accept",)])
def test_a_setting_of_a_server_that_is_gone_is_an_error(accept: tuple[str, ...], capsys: Capture) -> None:
    """Under its new name the server would be checked on the accelerator of all others, and accepted so."""
    words = ("check", "compose.yaml", "--gpu", "h100", "--set", "chat.gpu=l4", "--set", "MAX_LEN=8192", "--baseline", "b.json")
    Path("compose.yaml").write_text(COMPOSE, encoding="utf-8")
    assert command(capsys, *words, "--accept")[0] == 0
    before = Path("b.json").read_bytes()
    Path("compose.yaml").write_text(COMPOSE.replace("chat:", "agent:"), encoding="utf-8")
    status, said, _ = command(capsys, *words, *accept)
    assert (status, "If it is called agent now: --set agent.gpu=l4" in " ".join(said.split())) == (2, True)
    # It stands at that server, and nothing else is said of it, nor is anything to be accepted.
    assert ("compose.yaml:3" in said, "1 check: 1 could not be checked" in said, "changed nothing" in said) == (True, True, False)
    assert not re.search(r"--accept|o baseline has", said)
    assert Path("b.json").read_bytes() == before
    renamed = [word.replace("chat.", "agent.") for word in words]
    # It is the same server, and compared.
    assert command(capsys, *renamed, "--strict")[0] == 0
    assert command(capsys, *renamed, "--accept")[0] == 0
    assert names() == [("compose.yaml", "agent")]
    # Of a server that is gone it is left out.
    Path("compose.yaml").write_text(COMPOSE.replace("chat:", "other:").replace(QWEN, "Qwen/Qwen3-0.6B"), encoding="utf-8")
    assert command(capsys, *renamed)[0] == 2
    assert command(capsys, *words[:4], *words[6:])[0] == 0
    Path("compose.yaml").unlink()
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    assert command(capsys, "check", "serve.sh", *renamed[2:])[0] == 2


def test_a_command_has_what_counts_for_its_files(capsys: Capture) -> None:
    """A hook has one list of options for all files, and is given locks and files of variables beside them."""
    Path("compose.yaml").write_text(COMPOSE, encoding="utf-8")
    Path("prod.env").write_text("MAX_LEN=8192\n", encoding="utf-8")
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    options = (
        "--env-file",
        "prod.env",
        "--set",
        "chat.gpu=h100",
        "--set",
        "other.gpu=l4",
        "--gpu",
        "l40s",
        "--baseline",
        "b.json",
    )
    files = ("compose.yaml", "serve.sh")
    assert command(capsys, "check", *files, *options[:-2], "--lock")[0] == 0
    assert command(capsys, "check", *files, *options, "--accept")[0] == 0
    Path("prod.env").write_text("MAX_LEN=16384\n", encoding="utf-8")
    status, said, _ = command(capsys, "check", "prod.env", "compose.yaml.lock", *options)
    assert status == 1
    told = ["check", "compose.yaml", "--env-file", "prod.env", "--set", "chat.gpu=h100", "--gpu", "l40s", "--baseline", "b.json"]
    assert accepting(said) == [*told, "--accept"]
    assert command(capsys, *accepting(said))[0] == 0
    assert command(capsys, "check", *files, *options, "--strict")[0] == 0


COMPOSE = f"""\
services:
  chat:
    image: vllm/vllm-openai:v0.33.0
    command: --model {QWEN} --max-model-len ${{MAX_LEN}}
"""


@pytest.mark.parametrize("others", ["", "vllm serve Qwen/Qwen3-0.6B --port 2\n"])
def test_a_script_with_another_model_is_compared(others: str, capsys: Capture) -> None:
    """Its server is called by engine and model. What has changed is the model, and that has grown."""
    text = SERVE.format(8192) + others
    words = ("check", "serve.sh", "--gpu", "h100", "--baseline", "b.json")
    Path("serve.sh").write_text(text, encoding="utf-8")
    assert command(capsys, *words, "--accept")[0] == 0
    Path("serve.sh").write_text(text.replace(QWEN, "Qwen/Qwen3-14B"), encoding="utf-8")
    status, said, _ = command(capsys, *words)

    assert status == 1
    assert f"model {QWEN} -> Qwen/Qwen3-14B" in " ".join(said.split())
    assert "not there any more" not in said
    assert command(capsys, *accepting(said))[0] == 0
    assert command(capsys, *words, "--strict")[0] == 0


def test_two_scripts_with_other_models_are_new(capsys: Capture) -> None:
    """Which was which is not certain."""
    words = ("check", "serve.sh", "--gpu", "h100", "--baseline", "b.json")
    Path("serve.sh").write_text(SERVE.format(8192) + "vllm serve Qwen/Qwen3-0.6B --port 2\n", encoding="utf-8")
    assert command(capsys, *words, "--accept")[0] == 0
    Path("serve.sh").write_text("vllm serve Qwen/Qwen3-14B\nvllm serve Qwen/Qwen3-1.7B --port 2\n", encoding="utf-8")
    status, said, _ = command(capsys, *words)
    assert (status, said.count("No baseline has this check")) == (0, 2)


@pytest.mark.parametrize("text", ["vlm serve {}", "# vllm serve {}", ""])
def test_a_file_of_a_folder_that_starts_nothing_any_more(text: str, capsys: Capture) -> None:
    """Its server is gone, and not merely out of sight: with --strict that fails, and once it is accepted nothing is said."""
    Path("deploy").mkdir()
    for name in ("a", "b"):
        Path(f"deploy/{name}.sh").write_text(SERVE.format(8192), encoding="utf-8")
    words = ("check", "deploy/", "--gpu", "h100", "--baseline", "bl.json")
    assert command(capsys, *words, "--accept")[0] == 0
    Path("deploy/b.sh").write_text(text.format(QWEN), encoding="utf-8")
    status, said, _ = command(capsys, *words, "--strict")
    assert (status, "deploy/b.sh, which is not there any more" in " ".join(said.split())) == (1, True)
    assert command(capsys, *accepting(said))[0] == 0
    assert names("bl.json") == [("deploy/a.sh", f"vllm {QWEN}")]
    assert command(capsys, *words, "--strict")[0] == 0


def test_a_merge_that_is_open_is_told_how_to_end(capsys: Capture) -> None:
    """The command that would make a baseline writes over no other file: what is there is to be taken away first."""
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    words = ("check", "serve.sh", "--gpu", "h100", "--baseline", "b.json")
    Path("b.json").write_text("<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> b\n", encoding="utf-8")
    status, said, _ = command(capsys, *words)
    assert (status, "git checkout --ours b.json" in " ".join(said.split())) == (3, True)
    Path("b.json").unlink()
    assert command(capsys, *accepting(said))[0] == 0
    assert command(capsys, *words)[0] == 0


def test_the_lock_of_a_file_that_is_gone(capsys: Capture) -> None:
    """A hook is given the lock alone; it is of no use any more."""
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    assert command(capsys, "check", "serve.sh", "--gpu", "h100", "--lock")[0] == 0
    Path("serve.sh").unlink()
    status, said, _ = command(capsys, "check", "serve.sh.lock", "--gpu", "h100")
    assert (status, "Delete it: git rm serve.sh.lock" in " ".join(said.split())) == (3, True)


def test_all_that_is_said_of_a_renamed_server_has_its_new_name(capsys: Capture) -> None:
    """Its load too: said of all servers it would count for none of them."""
    Path("compose.yaml").write_text(COMPOSE, encoding="utf-8")
    words = ["check", "compose.yaml", "--gpu", "h100", "--set", "MAX_LEN=8192", "--baseline", "b.json"]
    words += [f"--set=chat.{each}" for each in ("gpu=l4", "seq=4k", "users=2")]
    assert command(capsys, *words, "--accept")[0] == 0
    Path("compose.yaml").write_text(COMPOSE.replace("chat:", "agent:"), encoding="utf-8")
    said = " ".join(command(capsys, *words)[1].split())
    told, _, gone = said.partition("If it is called agent now: ")[2].partition(". If it is gone, leave out: ")
    assert gone.startswith("--set chat.gpu --set chat.seq --set chat.users ")
    assert shlex.split(told)[1::2] == ["agent.gpu=l4", "agent.seq=4k", "agent.users=2"]
    assert command(capsys, *words[:8], *shlex.split(told), "--strict")[0] == 0


def test_a_setting_of_a_file_that_is_not_looked_at_is_no_news(capsys: Capture) -> None:
    """A hook has one list of settings, and is given the files that have changed."""
    Path("compose.yaml").write_text(COMPOSE, encoding="utf-8")
    Path("serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    words = ("--gpu", "h100", "--set", "MAX_LEN=8192", "--set", "chat.gpu=l4", "--baseline", "b.json")
    assert command(capsys, "check", "compose.yaml", "serve.sh", *words, "--accept")[0] == 0
    assert "chat.gpu" not in command(capsys, "check", "serve.sh", *words)[1]
    assert "other.gpu changed nothing" in command(capsys, "check", "serve.sh", *words, "--set", "other.gpu=l4")[1]


BROKEN = {
    "two levels": COMPOSE + f" small:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model {QWEN}\n",
    "a merge": COMPOSE.replace("  chat:", "<<<<<<< HEAD\n  chat:"),
    "a bracket": COMPOSE + "    ports: [8000\n",
    "no colon": COMPOSE.replace("    image:", "    restart\n    image:"),
    "a tab": COMPOSE + "\tports: []\n",
}


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_manifest_that_is_no_yaml_is_an_error(text: str, folder: bool, capsys: Capture) -> None:
    """Docker Compose does not read it, and servers behind the fault are not left out in silence."""
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(text)
    Path("deploy").mkdir()
    Path("deploy/compose.yaml").write_text(text, encoding="utf-8")
    Path("deploy/serve.sh").write_text(SERVE.format(8192), encoding="utf-8")
    status, said, _ = command(
        capsys, "check", "deploy" if folder else "deploy/compose.yaml", "--gpu", "h100", "--set", "MAX_LEN=4096"
    )
    assert (status, "deploy/compose.yaml:" in said, "not YAML" in said) == (3, True, True)


def test_a_change_of_an_option_of_the_engine_has_its_name(tmp_path: Path, capsys: Capture) -> None:
    """In a mapping, and by a key of its own."""
    own = {"name": "c", "model": QWEN, "gpu": "h100", "engine": "vllm", "seq": "8k"}
    check_file(tmp_path, own)
    assert command(capsys, "check", "kvplan.yaml", "--baseline", "b.json", "--accept")[0] == 0
    for more in ({"engine_options": {"enforce_eager": True}}, {"enforce_eager": True}):
        check_file(tmp_path, {**own, "seq": "32k", **more})
        said = " ".join(command(capsys, "check", "kvplan.yaml", "--baseline", "b.json")[1].split())
        assert re.search(r"enforce_eager \(not set\) -> true since the baseline", said), said

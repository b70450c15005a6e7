"""The action and the pre-commit hook: what they run is there, and it does what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hwcalc.cli.options import find_command
from hwcalc.report.check import FORMATS
from tests.hwcalc.check.files import PER_TOKEN, check_file, tiny_model, write
from tests.hwcalc.command import REPOSITORY

ACTION: Final = yaml.safe_load((REPOSITORY / "action.yml").read_text(encoding="utf-8"))
STEP: Final = next(step for step in ACTION["runs"]["steps"] if step.get("id") == "check")
HOOK, DEPLOYMENTS = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
CHECK: Final = {"name": "one", "model": "./tiny", "seq": 1024, "max_cache": 1024 * PER_TOKEN}


def act(folder: Path, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the action's own script as a runner does, with its defaults and these inputs; gives what it wrote for the runner."""
    values = {name: given["default"] for name, given in ACTION["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    environment = {
        variable: values[re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)[1]]  # type: ignore[index]
        for variable, text in STEP["env"].items()
    }
    installed(folder / "temp" / "kvplan")
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("before\n", encoding="utf-8")
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]],
        cwd=folder,
        env={
            **os.environ,
            **environment,
            **{k: str(v) for k, v in files.items()},
            "RUNNER_TEMP": str(folder / "temp"),
            "PYTHONPATH": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done, {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def installed(folder: Path) -> None:
    """An environment with kvplan, as the action's first step makes it: its Python finds the packages by itself."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "kvplan.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")


def parts(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What the runner takes as plain text, between a stop of its commands and the end of that, and what it reads for commands."""
    found = re.fullmatch(r"::stop-commands::([0-9a-f]{32})\n(.*)^::\1::\n(.*)", done.stdout, re.DOTALL | re.MULTILINE)

    assert found is not None, done.stdout
    return found[2], found[3]


def test_the_action_passes(tmp_path: Path) -> None:
    """Table in the log, a summary behind what was there, the exit status as an output."""
    check_file(tmp_path, CHECK)
    done, written = act(tmp_path, sarif="out.sarif", junit="out/junit.xml", strict="true", offline="true")

    assert (done.returncode, done.stderr) == (0, "")
    assert parts(done)[0].startswith("ok       one")
    assert "::notice title=kvplan check::1 check: 1 holds" in parts(done)[1]
    assert written["GITHUB_OUTPUT"] == "before\nexit-code=0\n"
    assert written["GITHUB_STEP_SUMMARY"].startswith("before\n### kvplan check: 1 check: 1 holds")
    assert (tmp_path / "out.sarif").is_file()
    assert (tmp_path / "out" / "junit.xml").is_file()


def test_the_action_fails_where_the_check_does(tmp_path: Path) -> None:
    """With an annotation at the line, and the exit status; without what was switched off."""
    check_file(tmp_path, {**CHECK, "max_cache": 1})
    done, written = act(tmp_path)
    quiet, silent = act(tmp_path, annotations="false", summary="false")

    assert done.returncode == quiet.returncode == 1
    assert "::error file=kvplan.yaml,line=1,col=" in parts(done)[1]
    assert written["GITHUB_OUTPUT"] == "before\nexit-code=1\n"
    assert parts(quiet)[1] == ""
    assert silent["GITHUB_STEP_SUMMARY"] == "before\n"


def test_several_files_and_baselines_of_any_name(tmp_path: Path) -> None:
    """One on a line; a name is never run as a command, and never read as an option."""
    names = ("a b.yaml", "$(touch injected).yaml", "-q.yaml")
    for index, name in enumerate(names):
        check_file(tmp_path, {**CHECK, "name": str(index)}, name=name)
    first, _ = act(tmp_path, file="a b.yaml", junit="", format="json", annotations="false")
    (tmp_path / "base line.json").write_text(parts(first)[0], encoding="utf-8")
    done, _ = act(tmp_path, file="\n".join(names), baseline="base line.json\n", max_growth="5%")

    assert done.returncode == 0, done.stderr
    assert "3 checks: 3 hold" in done.stdout
    assert not (tmp_path / "injected").exists()


def test_the_load_of_deployments(tmp_path: Path) -> None:
    """Of all servers, and of one by its name: a model of 4,096 tokens holds no request of 8,192."""
    tiny_model(tmp_path)
    write(tmp_path / "serve.sh", "vllm serve ./tiny")
    statuses = [
        act(tmp_path, file="serve.sh", gpu="l4", seq=seq, users="4", set=of_one)[0].returncode
        for seq, of_one in (("2k", ""), ("8k", ""), ("8k", "vllm ./tiny.seq=4k\n"))
    ]

    assert statuses == [0, 1, 0]


def test_the_hardware_and_the_variables_of_deployments(tmp_path: Path) -> None:
    """As the options of ``kvplan check``: too few GPUs fail, and the file of variables takes the place of ``.env``."""
    tiny_model(tmp_path)
    words = "--model ./tiny --max-model-len ${SIZE:-1024} --tensor-parallel-size 2"
    write(tmp_path / "compose.yaml", f"services: {{a: {{image: 'vllm/vllm-openai:v0.33.0', command: '{words}'}}}}\n")
    write(tmp_path / ".env", "SIZE=8192\n")
    write(tmp_path / "a file.env", "SIZE=2048\n")
    asked = [
        {"gpu": "l4", "env_file": "a file.env"},
        {"gpu": "l4"},
        {"gpu": "l4", "gpus": "1", "env_file": "a file.env"},
        {"instance": "g6.12xlarge", "env_file": "a file.env"},
        {"env_file": "a file.env"},
    ]
    statuses = [act(tmp_path, file="compose.yaml", **inputs)[0].returncode for inputs in asked]

    assert statuses == [0, 1, 1, 0, 2]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An error among the results, with the file's name."""
    done, written = act(tmp_path, file="gone.yaml")

    assert done.returncode == 3
    assert parts(done)[1].startswith("::error file=gone.yaml,line=1,col=1,title=kvplan%3A gone.yaml::there is no file gone.yaml.")
    assert "1 file cannot be used: 1 fault" in written["GITHUB_STEP_SUMMARY"]


def test_a_baseline_that_is_not_there(tmp_path: Path) -> None:
    """An error at its name, in the summary too; the checks are made."""
    check_file(tmp_path, CHECK)
    act(tmp_path)
    done, written = act(tmp_path, baseline="gone.json")

    assert done.returncode == 3
    assert parts(done)[1].startswith("::error file=gone.json,line=1,col=1,title=kvplan%3A gone.json::")
    assert "gone.json" in written["GITHUB_STEP_SUMMARY"]
    assert written["GITHUB_OUTPUT"] == "before\nexit-code=3\n"


def test_a_check_file_gives_the_runner_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that wraps to ``::error ...`` at the start of a line is no command there; its own annotation is escaped."""
    monkeypatch.setenv("COLUMNS", "100")
    check_file(tmp_path, {**CHECK, "name": f"{90 * 'x'} ::error file=a::b", "max_cache": 1})
    done, _ = act(tmp_path)
    text, commands = parts(done)

    assert any(line.strip().startswith("?:error file=a::b") for line in text.splitlines())
    assert not any(line.strip().startswith("::") for line in text.splitlines())
    assert [line.partition(" ")[0] for line in commands.splitlines()] == ["::error", "::notice"]
    assert "file=a::" not in commands


def test_every_flag_of_the_action_exists() -> None:
    """And every input is used, by way of a variable: text in the script itself would be run."""
    flags = {flag for option in find_command("check").options for flag in option.flags}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", STEP["run"]))
    everything = (REPOSITORY / "action.yml").read_text(encoding="utf-8")

    assert used <= flags
    assert used >= {"--format", "--baseline", "--max-growth", "--strict", "--offline", "--output"}
    assert set(re.findall(r"--output=([a-z]+)=", STEP["run"])) <= set(FORMATS)
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"
    for name in ACTION["inputs"]:
        assert f"${{{{ inputs.{name} }}}}" in everything


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("kvplan.yaml", True),
        ("ci/kvplan.yml", True),
        ("kvplan-prod.yaml", True),
        ("prod.kvplan.yaml", True),
        ("kvplan.json", True),
        ("prod.kvplan.json", True),
        ("kvplan-baseline.json", False),
        ("kvplan.yaml.lock", True),
        ("uv.lock", False),
        ("kvplanner.yaml", False),
        ("mykvplan.yaml", False),
        ("config.yaml", False),
    ],
)
def test_the_hook_takes_check_files(name: str, taken: bool) -> None:
    """And their locks, which somebody may change by hand; neither baselines nor anything else."""
    assert (re.search(HOOK["files"], name) is not None) is taken


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("compose.yaml", True),
        ("stack/docker-compose.prod.yml", True),
        ("Dockerfile", True),
        ("llm/Modelfile.chat", True),
        ("units/chat.service", True),
        ("charts/llm/values-prod.yaml", True),
        ("deploy/a/b.sh", True),
        ("k8s/chat.yaml", True),
        ("stack/.env", True),
        ("stack/compose.yaml.lock", True),
        ("k8s/chat.yaml.lock", True),
        ("Dockerfile.lock", True),
        ("stack/prod.env", False),
        ("kvplan.yaml", False),
        ("src/deploy.py", False),
        ("docs/deployment.md", False),
        ("myvalues.yaml", False),
    ],
)
def test_the_hook_takes_deployments(name: str, taken: bool) -> None:
    """Under the names that they have as a rule; the rest of the two hooks is one."""
    assert (re.search(DEPLOYMENTS["files"], name) is not None) is taken
    assert not (taken and re.search(DEPLOYMENTS["exclude"], name))
    apart = ("id", "name", "description", "files", "exclude")
    assert {key: value for key, value in HOOK.items() if key not in apart} == {
        key: value for key, value in DEPLOYMENTS.items() if key not in apart
    }


@pytest.mark.parametrize(
    ("hook", "name"),
    [
        (DEPLOYMENTS, "deploy/pnpm.lock"),
        (DEPLOYMENTS, "deploy/Pipfile.lock"),
        (DEPLOYMENTS, "deploy/kvplan-baseline.json"),
        (HOOK, ".github/workflows/kvplan.yml"),
    ],
)
def test_the_hooks_leave_out_what_lies_beside(hook: dict[str, Any], name: str) -> None:
    """Whoever says ``files: ^deploy/`` commits locks of other programs and baselines too, and a workflow may be named kvplan.yml."""
    assert re.search(hook["exclude"], name)


def test_the_action_takes_deployments(tmp_path: Path) -> None:
    """A folder beside a check file, with the accelerator and the variables that its texts leave open."""
    check_file(tmp_path, CHECK)
    write(tmp_path / "deploy" / "serve.sh", "vllm serve $MODEL --max-model-len 1024 \\\n --tensor-parallel-size $SIZE\n")
    done, written = act(tmp_path, file="kvplan.yaml\ndeploy", gpu="l4", set="MODEL=../tiny\nSIZE=1", offline="true")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 checks: 2 hold" in written["GITHUB_STEP_SUMMARY"]

    done, _ = act(tmp_path, file="deploy", gpu="l4", set="MODEL=../tiny", offline="true")
    assert done.returncode == 2
    assert "::error file=deploy/serve.sh,line=2,col=2," in parts(done)[1]


def test_the_hook_runs(tmp_path: Path) -> None:
    """Its entry is a command line that takes the names of files."""
    assert HOOK["pass_filenames"] is True
    assert HOOK["language"] == "python"
    words = [*shlex.split(HOOK["entry"]), *HOOK.get("args", [])]
    assert words[0] == "kvplan"
    names = [check_file(tmp_path, {**CHECK, "max_cache": size}, name=f"{size}.yaml") for size in (1, 1024 * PER_TOKEN)]
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", *words[1:], *names],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout.endswith("2 checks: 1 holds, 1 fails\n")


@pytest.mark.parametrize("name", ["--output=kvplan.yaml", "-q.kvplan.yaml", "--lock.kvplan.yaml"])
def test_the_hook_takes_every_name_for_a_file(tmp_path: Path, name: str) -> None:
    """pre-commit puts the names behind the entry and its args as they are: a name like an option is a file all the same."""
    check_file(tmp_path, CHECK, name=name)
    words = [*shlex.split(HOOK["entry"]), *HOOK.get("args", []), name]
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", *words[1:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.endswith("1 check: 1 holds\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "tiny"])


# What Python would import from the working folder, or from PYTHONPATH, if it were let.
LURKING: Final = (
    "pip.py",
    "venv.py",
    "sitecustomize.py",
    "usercustomize.py",
    "ensurepip.py",
    "json.py",
    "hwcalc/__init__.py",
    "hwcalc.py",
)


def test_the_action_imports_nothing_of_the_checkout(tmp_path: Path) -> None:
    """Neither while it installs nor while it checks, whatever PYTHONPATH says."""
    check_file(tmp_path, CHECK)
    for name in LURKING:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("open('run', 'a').write(__name__)\nraise SystemExit(0)\n", encoding="utf-8")
    install = ACTION["runs"]["steps"][0]["run"]
    environment = {"KVPLAN_PYTHON": sys.executable, "KVPLAN_SOURCE": "./nothing-here", "RUNNER_TEMP": str(tmp_path / "first")}
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", install],
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    checked, _ = act(tmp_path)

    assert "nothing-here" in done.stderr
    assert (tmp_path / "first" / "kvplan" / "bin" / "python").exists()
    assert checked.returncode == 0, checked.stderr
    assert not (tmp_path / "run").exists()


def test_the_inputs_of_the_action_are_values(tmp_path: Path) -> None:
    """An input with blanks, or one that begins with a dash, is never an option of its own."""
    check_file(tmp_path, CHECK)
    for format_ in ("table --output x", "--output=x", "-ox"):
        done, _ = act(tmp_path, format=format_)
        assert done.returncode == 2, format_
        assert "is not known" in done.stderr
    assert not (tmp_path / "x").exists()


def test_pre_commit_takes_the_manifest() -> None:
    """By its own reader, where it is installed."""
    clientlib: Any = pytest.importorskip("pre_commit.clientlib")

    hook, _ = clientlib.load_manifest(str(REPOSITORY / ".pre-commit-hooks.yaml"))
    assert hook["id"] == "kvplan-check"

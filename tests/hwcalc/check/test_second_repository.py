"""The action and the hook, used from another repository: both install kvplan from a clone of this one, and check that one's file.

Nothing is fetched: setuptools and what kvplan depends on are those of the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.hwcalc.check.files import PER_TOKEN, check_file, write
from tests.hwcalc.wheel import copy_checkout

CHECK: Final = {"name": "one", "model": "./tiny", "seq": 1024, "max_cache": 1024 * PER_TOKEN}
OFFLINE: Final = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    # A false value of what pip calls compile is its --no-compile; PIP_NO_COMPILE=1 would compile.
    "PIP_COMPILE": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # What pip calls no isolation is set by a false value of this.
    "PIP_NO_BUILD_ISOLATION": "0",
}

pytestmark = [
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
    pytest.mark.skipif(os.name == "nt", reason="the action's steps are for bash"),
]


def git(folder: Path, *words: str) -> str:
    """What git says in a folder, as a committer whom nobody knows and without hooks of the user."""
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
    program = shutil.which("git")
    assert program is not None
    run = subprocess.run([program, *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout


def dependencies() -> str:
    """The folder with the packages of the tests."""
    typer = find_spec("typer")
    assert typer is not None
    return str(Path(str(typer.origin)).parents[1])


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with what is here, as a clone of it has it."""
    folder = tmp_path_factory.mktemp("kvplan")
    copy_checkout(folder, "action.yml", ".pre-commit-hooks.yaml")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")
    return folder


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Another repository, with a check that holds and a server that starts."""
    folder = tmp_path / "theirs"
    check_file(folder, CHECK)
    write(folder / "deploy" / "serve.sh", "#!/bin/sh\nvllm serve ../tiny --max-model-len 1024 --kv-cache-memory-bytes $BYTES\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    return folder


def runner(ours: Path, theirs: Path, temporary: Path) -> list[subprocess.CompletedProcess[str]]:
    """All steps of the action as a runner has them, one after another, each in the repository that uses it."""
    action = yaml.safe_load((ours / "action.yml").read_text(encoding="utf-8"))
    # A Python whose environments have the packages of the tests, in place of an older setuptools that may come with it.
    python = temporary / "python"
    python.write_text(
        f"""#!/bin/sh
{sys.executable} "$@" || exit
for site in "$4"/lib/python*/site-packages; do
  rm -rf "$site"/setuptools* "$site"/_distutils_hack "$site"/distutils-precedence.pth
  echo "{dependencies()}" > "$site/dependencies.pth"
done
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    known = {f"inputs.{name}": given["default"] for name, given in action["inputs"].items()}
    known |= {"inputs.file": "kvplan.yaml\ndeploy", "inputs.set": f"BYTES={1040 * PER_TOKEN}\nMORE=1"}
    known |= {"github.action_path": str(ours), "inputs.python": str(python)}
    files = {name: str(temporary / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = []
    for step in action["runs"]["steps"]:
        given = {name: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], text) for name, text in step["env"].items()}
        done.append(
            subprocess.run(
                ["/bin/bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=theirs,
                env={**os.environ, **OFFLINE, **files, **given, "RUNNER_TEMP": str(temporary)},
                capture_output=True,
                text=True,
                check=False,
            )
        )
    return done


def test_the_action(ours: Path, theirs: Path, tmp_path: Path) -> None:
    """It installs from where it lies, checks the file of the repository that uses it, and leaves nothing there."""
    installed, checked = runner(ours, theirs, tmp_path)

    assert installed.returncode == 0, installed.stderr
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "2 checks: 2 hold" in checked.stdout
    assert (tmp_path / "github_output").read_text(encoding="utf-8") == "exit-code=0\n"
    assert git(theirs, "status", "--porcelain", "--untracked-files=all").splitlines() == [
        "A  deploy/serve.sh",
        "A  kvplan.yaml",
        "A  tiny/config.json",
    ]


def test_the_hook(ours: Path, theirs: Path, tmp_path: Path) -> None:
    """pre-commit clones, installs, and runs it with the files that are committed; a check that fails stops the commit."""
    pytest.importorskip("pre_commit", reason="pre-commit is not installed")
    environment = {**os.environ, **OFFLINE, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "PYTHONPATH": dependencies()}

    hooks = [{"id": "kvplan-check"}, {"id": "kvplan-check-deployments"}]
    config = {"repos": [{"repo": str(ours), "rev": git(ours, "rev-parse", "HEAD").strip(), "hooks": hooks}]}
    write(theirs / ".pre-commit-config.yaml", yaml.safe_dump(config))

    def tried(*files: str) -> subprocess.CompletedProcess[str]:
        which = ("--files", *files) if files else ("--all-files",)
        command = (sys.executable, "-m", "pre_commit", "run", *which, "--color", "never")
        return subprocess.run(command, cwd=theirs, env=environment, capture_output=True, text=True, check=False)

    write(theirs / "deploy" / "serve.sh", f"vllm serve ../tiny --max-model-len 1024 --kv-cache-memory-bytes {1040 * PER_TOKEN}\n")
    git(theirs, "add", "--all")
    holds = tried()
    write(theirs / "deploy" / "serve.sh", f"vllm serve ../tiny --max-model-len 1024 --kv-cache-memory-bytes {1024 * PER_TOKEN}\n")
    check_file(theirs, {**CHECK, "max_cache": 1})
    git(theirs, "add", "--all")
    fails = tried()

    assert holds.returncode == 0, holds.stdout + holds.stderr
    assert holds.stdout.count("Passed") == 2
    assert fails.returncode == 1
    assert "FAIL     one" in fails.stdout
    assert "at deploy/serve.sh:1" in fails.stdout

    # What a file reads is committed without it.
    write(
        theirs / "stack" / "compose.yaml",
        "services:\n  chat: {image: 'vllm/vllm-openai', command: --model ../tiny --max-model-len $LEN}\n",
    )
    write(theirs / "stack" / ".env", f"LEN={10**9}\n")
    git(theirs, "add", "--all")
    of_env = tried("stack/.env")
    write(theirs / "kvplan.yaml.lock", '{"digest": "none"}\n')
    git(theirs, "add", "--all")
    of_lock = tried("kvplan.yaml.lock")

    assert of_env.returncode == of_lock.returncode == 1
    assert "stack/compose.yaml" in of_env.stdout
    assert "kvplan.yaml.lock" in of_lock.stdout

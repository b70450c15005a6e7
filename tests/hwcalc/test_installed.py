"""The wheel, installed, works whatever else is named ``formulas`` or ``profiles``: PyPI has a package, people have files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from hwcalc import __version__
from tests.paths import ROOT

OTHERS: Final = ("formulas", "profiles")
RAISES: Final = 'raise RuntimeError("somebody else\'s file was imported")\n'
PLAN: Final = ("Qwen/Qwen3-8B", "--seq", "32k", "--dtype", "fp8", "--json")
# 36 layers x 8 heads x (128 + 128) numbers x 1 byte x 32,768 tokens
BYTES: Final = 36 * 8 * (128 + 128) * 32_768
LIBRARY: Final = """
import hwcalc, hwcalc.formulas, hwcalc.profiles.catalog, sys
print(hwcalc.__file__, hwcalc.formulas.__file__, hwcalc.profiles.__file__, sep="\\n")
print(hwcalc.plan("Qwen/Qwen3-8B", seq="32k", dtype="fp8").cache.total_bytes)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, wheel_file: Path) -> Path:
    """An environment with the wheel in it and, beside it, packages of the names of our folders."""
    home = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(symlinks=True).create(home)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    # The tests' own pip writes there: the environment needs none.
    pip = (sys.executable, "-m", "pip", "--python", str(python_of(home)), "install", "--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "--no-compile", str(wheel_file)], check=True, capture_output=True, env=without_paths())
    for name in OTHERS:
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(RAISES, encoding="utf-8")
    # What kvplan depends on lies where the tests have it.
    typer = find_spec("typer")
    assert typer is not None
    (packages / "dependencies.pth").write_text(f"{Path(str(typer.origin)).parents[1]}\n", encoding="utf-8")
    return home


def python_of(home: Path) -> Path:
    """The interpreter of an environment."""
    return home / "Scripts" / "python.exe" if os.name == "nt" else home / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder that holds files of the names of our folders."""
    for name in OTHERS:
        (tmp_path / f"{name}.py").write_text(RAISES, encoding="utf-8")
    return tmp_path


def without_paths() -> dict[str, str]:
    """The environment without the caller's PYTHONPATH: pip would take a checkout there for an installation."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def run(*command: str | Path, cwd: Path) -> str:
    """What the command writes; it must succeed."""
    done = subprocess.run([*command], capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False, env=without_paths())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("where", ["working folder", "elsewhere"])
def test_an_installation(site: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory, where: str) -> None:
    """Library, module and command give a plan beside foreign packages, and in a folder of foreign files as well."""
    python, cwd = python_of(site), folder if where == "working folder" else tmp_path_factory.mktemp("empty")

    *files, total = run(python, "-c", LIBRARY, cwd=cwd).splitlines()
    assert all(Path(file).is_relative_to(site) and "hwcalc" in Path(file).parts for file in files)
    assert total == str(BYTES)
    for command in ((python, "-m", "hwcalc"), (python.parent / "kvplan",)):
        assert __version__ in run(*command, "--version", cwd=cwd)
        assert json.loads(run(*command, *PLAN, cwd=cwd))["cache"]["total_bytes"] == BYTES


def test_a_checkout(folder: Path) -> None:
    """So does a checkout, at its root and from a folder of foreign files."""
    *files, total = run(sys.executable, "-c", LIBRARY, cwd=ROOT).splitlines()
    assert [Path(file).parent.name for file in files] == ["hwcalc", *OTHERS]
    assert all(Path(file).is_relative_to(ROOT) for file in files)
    assert total == str(BYTES)
    assert json.loads(run(sys.executable, "-m", "hwcalc", *PLAN, cwd=ROOT))["cache"]["total_bytes"] == BYTES
    here = f"import sys; sys.path.append({str(ROOT)!r})\n"
    assert run(sys.executable, "-c", here + LIBRARY, cwd=folder).splitlines()[-1] == str(BYTES)


def test_a_wheel_on_the_path(wheel_file: Path, tmp_path: Path) -> None:
    """The archive itself, not installed: modules and data files are read out of it."""
    program = f"import sys; sys.path.insert(0, {str(wheel_file)!r})\n{LIBRARY}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=without_paths(), check=True, capture_output=True, text=True
    )
    *places, size = done.stdout.split()

    assert all(place.startswith(str(wheel_file)) for place in places)
    assert int(size) == BYTES

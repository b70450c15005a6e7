"""The project's files agree with each other, and the wheel holds the program and its data and nothing else."""

from __future__ import annotations

import re
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import hwcalc
from tests.paths import INSIDE, ROOT


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    return zipfile.ZipFile(wheel_file)


def _sources() -> set[str]:
    """What git would ship, as the wheel names it: modules, the type marker and data."""
    return {
        f"{'' if package == 'hwcalc' else 'hwcalc/'}{path.relative_to(ROOT).as_posix()}"
        for package in INSIDE.values()
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".md", ".pyc"}
    }


def test_the_wheel_holds_the_packages_and_their_data(wheel: zipfile.ZipFile) -> None:
    """Every module, every data file and ``py.typed``; no test, script, recipe or bytecode."""
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert names == _sources()
    assert "hwcalc/py.typed" in names
    assert {PurePosixPath(name).parts[0] for name in names} == {"hwcalc"}


def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    """One console script, and the full text of the licence."""
    info = next(name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name)

    assert "kvplan = hwcalc.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()


def test_one_version(wheel: zipfile.ZipFile) -> None:
    """The wheel, the installed distribution where there is one, and the changelog name the version of the package."""
    info = next(name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert info == f"hwcalc-{hwcalc.__version__}.dist-info"
    assert f"## [{hwcalc.__version__}]" in changelog
    assert set(re.findall(r"(?m)^## \[(?!Unreleased)(.+?)\]", changelog)) >= {hwcalc.__version__}
    if "hwcalc" in {name.lower() for distribution in metadata.distributions() if (name := distribution.name)}:
        assert metadata.version("hwcalc") == hwcalc.__version__


def test_typer_stays_below_the_release_that_imports_pydantic(project: dict[str, Any]) -> None:
    """The upper bound keeps the start-up time; the oracles are pinned to one release."""
    assert "typer>=0.20,<0.29" in project["project"]["dependencies"]
    assert {"torch==2.13.0", "transformers==5.24.0"} <= set(project["project"]["optional-dependencies"]["test"])


def test_every_lint_exception_has_its_reason() -> None:
    """Each rule that is switched off says why, on the same line."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lint = text[text.index("[tool.ruff.lint]") : text.index("[tool.ruff.lint.isort]")]
    rules = [line for line in lint.splitlines() if re.match(r'\s+"[A-Z]+\d*"', line)]

    assert rules
    assert [line for line in rules if not re.search(r"# \w", line)] == []

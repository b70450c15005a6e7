"""A file of the installation that is missing, unreadable or damaged is one error with one exit status, whatever command reads it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from hwcalc.data import json_data, reading_data
from hwcalc.errors import InstallationError
from tests.paths import ROOT

QWEN = "Qwen/Qwen3-8B"
READ: Final[dict[str, list[tuple[str, ...]]]] = {
    "profiles/compiled.jsonl": [("models",), ("recommend", QWEN, "--seq", "8k"), ("fit", "--gpu", "l4"), (QWEN, "--gpu", "l4")],
    "profiles/dtypes.json": [(QWEN,)],
    "profiles/model_index.json": [("fit", "--gpu", "l4")],
    "hwcalc/report/schemas.jsonl": [("schema", "plan")],
    "hwcalc/parsers/index.json": [(QWEN,)],
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program."""
    folder = tmp_path_factory.mktemp("installed")
    for name in ("hwcalc", "formulas", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.yaml"))
    return folder


@pytest.mark.parametrize("damage", ["gone", "cut", "garbage"])
@pytest.mark.parametrize("name", [*READ])
def test_a_damaged_file_is_one_error(installed: Path, name: str, damage: str) -> None:
    """It names the file, and says that the program must be installed again; it is no fault to report."""
    file = installed / name
    sound = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(sound[:30] if damage == "cut" else b"\x00\xff garbage\n" * 20)
    try:
        for words in READ[name][: 1 if damage == "cut" else None]:
            variables = {**os.environ, "PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}
            command = [sys.executable, "-m", "hwcalc", *words, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=installed, env=variables)
            error = json.loads(done.stdout)["error"]
            assert (done.returncode, error["code"], error["type"]) == (70, 70, "installation"), words
            assert str(file) in error["message"]
            assert "pip install" in error["hint"]
            assert "report" not in error["hint"]
    finally:
        file.write_bytes(sound)


def test_what_is_damaged(tmp_path: Path) -> None:
    """The reason is that of the system, or that the content makes no sense."""
    (tmp_path / "a.json").write_bytes(b"{")
    with pytest.raises(InstallationError, match=r"a\.json is damaged"):
        json_data(str(tmp_path / "module.py"), "a.json")
    with pytest.raises(InstallationError, match=r"cannot be read \(No such file"):
        json_data(str(tmp_path / "module.py"), "b.json")
    with pytest.raises(InstallationError, match="is damaged"), reading_data("x"):
        next(iter(()))

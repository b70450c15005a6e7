"""Run a tool over the repository with every package where an installation has it: ``formulas`` and ``profiles`` inside ``hwcalc``.

    python scripts/as_installed.py mypy [OPTIONS] hwcalc tests scripts benchmarks
    python scripts/as_installed.py lint-imports

The tool runs in a temporary folder of links to the repository's files, beside a copy of ``pyproject.toml``: neither mypy nor
import-linter can be told that parts of one package lie in different folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copytree, ignore_patterns

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "hwcalc": "hwcalc",
    "formulas": "hwcalc/formulas",
    "profiles": "hwcalc/profiles",
    "tests": "tests",
    "scripts": "scripts",
    "benchmarks": "benchmarks",
}
"""Folders of the repository, and where each lies after an installation."""


def lay(folder: Path) -> None:
    """Lay links to all files into ``folder``. The folders are real ones: import-linter follows no linked folder."""
    (folder / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    for source, target in FOLDERS.items():
        copytree(ROOT / source, folder / target, copy_function=os.symlink, ignore=ignore_patterns("__pycache__"))


def main() -> int:
    """Give back the exit status of the tool."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lay(folder)
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        tool = Path(sys.executable).parent / sys.argv[1]
        return subprocess.run([tool, *sys.argv[2:]], cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

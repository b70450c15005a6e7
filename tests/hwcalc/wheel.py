"""A wheel of this checkout, built without network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.paths import INSIDE, ROOT

__all__ = ["build", "copy_checkout"]


def copy_checkout(copy: Path, *others: str) -> None:
    """Copy what a wheel is built from, and other files of this checkout."""
    for name in INSIDE.values():
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", *others):
        shutil.copy(ROOT / name, copy / name)


def build(folder: Path) -> Path:
    """The wheel's file, in ``folder``."""
    with tempfile.TemporaryDirectory() as temporary:
        # setuptools writes beside what it builds: not into this checkout.
        copy = Path(temporary)
        copy_checkout(copy)
        program = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
        subprocess.run([sys.executable, "-c", program, str(folder)], cwd=copy, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path

"""Build the documentation as a site, with the page that runs kvplan in the browser.

    python scripts/build_site.py FOLDER

It needs mkdocs-material (the extra ``docs``), npm for Pyodide, and pip for the wheels that Pyodide loads. The site asks nothing of the
network when it is read: everything lies in its own folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PYODIDE: Final = "314.0.7"
PYTHON: Final = "3.14"
PLATFORM: Final = "pyemscripten_2026_0_wasm32"
"""What this release of Pyodide loads: its Python, and the tag of its wheels."""
FILES: Final = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PURE: Final = ("rich", "typer")
COMPILED: Final = ("msgspec",)
"""Of the packages that kvplan needs, those that a plan imports."""


def main() -> int:
    """Build everything; the first command that fails is the exit status."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    site = Path(sys.argv[1]).resolve()
    try:
        subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)],
            cwd=ROOT,
            check=True,
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        )
        lay_python(site / "browser")
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


def lay_python(folder: Path) -> None:
    """Put Pyodide, and the wheels of kvplan and of what it needs for a plan, into ``folder``."""
    with tempfile.TemporaryDirectory() as scratch:
        npm = [shutil.which("npm") or "npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", scratch]
        subprocess.run([*npm, f"pyodide@{PYODIDE}"], check=True)
        (folder / "pyodide").mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copy(Path(scratch) / "node_modules" / "pyodide" / name, folder / "pyodide" / name)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    pure, compiled = ([need for need in needed if need.startswith(names)] for names in (PURE, COMPILED))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    download = [*pip, "download", "--quiet", "--only-binary=:all:", "--dest", str(folder)]
    target = ["--no-deps", "--platform", PLATFORM, "--python-version", PYTHON, "--implementation", "cp"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    subprocess.run([*download, *pure], check=True)
    subprocess.run([*download, *target, *compiled], check=True)
    wheels = sorted(path.name for path in folder.glob("*.whl"))
    (folder / "wheels.json").write_text(json.dumps(wheels), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

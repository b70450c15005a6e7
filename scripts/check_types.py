"""Run mypy over the whole repository, as the package is installed: ``formulas`` and ``profiles`` inside ``hwcalc``.

    python scripts/check_types.py [MYPY OPTIONS]

mypy knows no package whose folders lie apart, so that it is given a folder of links in which they lie together.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSIDE = ("formulas", "profiles")
BESIDE = ("tests", "scripts", "benchmarks")


def lay(folder: Path) -> None:
    """Links to everything that is checked, laid out as an installation has it."""
    package = folder / "hwcalc"
    package.mkdir()
    for path in (*(ROOT / "hwcalc").iterdir(), *(ROOT / name for name in INSIDE)):
        (package / path.name).symlink_to(path)
    for name in BESIDE:
        (folder / name).symlink_to(ROOT / name)


def main() -> int:
    """Mypy's own exit status."""
    with tempfile.TemporaryDirectory() as folder:
        lay(Path(folder))
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *sys.argv[1:]]
        return subprocess.run([*command, "hwcalc", *BESIDE], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Write the help of kvplan and of each command, as Typer lays it out, to ``hwcalc/cli/help_texts.json``.

    python scripts/build_help.py

A test compares the file with what Typer writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hwcalc.cli.commands import help_of
from hwcalc.cli.kept_help import PATH, WIDTHS
from hwcalc.cli.options import COMMANDS


def texts() -> dict[str, dict[str, list[str]]]:
    """Width of a line -> command, empty for kvplan itself -> lines."""
    return {str(width): {name or "": help_of(name, width).splitlines() for name in (None, *COMMANDS)} for width in WIDTHS}


def main() -> int:
    """Write the file."""
    Path(PATH).write_text(json.dumps(texts(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{PATH}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Draw the picture of the README: a real command in a terminal, as an SVG that rich exports.

python scripts/picture.py           # writes docs/kvplan.svg
python scripts/picture.py --check   # exit status 1 if the picture shows another text than the command prints now
"""

from __future__ import annotations

import html
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "kvplan.svg"
COMMAND: Final = "kvplan Qwen/Qwen3-32B --engine vllm --gpu h100 --gpus 2 --seq 32k --users 8 --brief"
COLUMNS: Final = 100

_FONT_FACE: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_TEXT: Final = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)


def printed() -> str:
    """The output of the command on a terminal with colour, and with neither network nor GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVPLAN", "HF_", "NO_COLOR"))}
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", *shlex.split(COMMAND)[1:], "--color", "always"],
        cwd=ROOT,
        env=kept | {"COLUMNS": str(COLUMNS), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


def drawn() -> str:
    """The SVG. It names no font to load from elsewhere: a page that shows it asks nobody."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False
    )
    console.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")), soft_wrap=False)
    console.print(Text.from_ansi(printed()), end="")
    return _FONT_FACE.sub("", console.export_svg(title="kvplan", theme=MONOKAI, unique_id="kvplan"))


def words(svg: str) -> list[str]:
    """The words that a picture shows, whatever release of rich has drawn it."""
    return html.unescape(" ".join(_TEXT.findall(svg))).split()


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture, or compare its words."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    now = drawn()
    if given == ["--check"]:
        return 0 if words(now) == words(PICTURE.read_text(encoding="utf-8")) else 1
    PICTURE.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

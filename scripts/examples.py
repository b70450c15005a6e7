"""Run the examples of the README and of ``docs``, and compare what they print with what stands below them.

An example is a ``console`` block: lines that begin with ``$ kvplan``, each followed by what it prints, standard error included, on a
terminal of 100 columns without colour, network or GPU. A command may go on behind a backslash. With ``--write`` the pages are brought up to date. Exit status: 0 all agree or
were written, 1 some differ, 2 wrong usage.

    python scripts/examples.py [--write] [PAGE ...]
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hwcalc.cli.output import in_lines
from hwcalc.report.text import continued

ROOT: Final = Path(__file__).resolve().parents[1]
COLUMNS: Final = 100
_BLOCK: Final = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
_PROMPT: Final = "$ "
_SECONDS: Final = 120
_ON_THIS_MACHINE: Final = re.compile(r"(?<=--gpu )\S+(?: --gpus \d+)?(?=\n\s+whether it fits)[^.]*")
"""What depends on the machine: one with a GPU is offered its own."""
_OF_THIS_TORCH: Final = re.compile(r"(?<=^on cpu \()[^)\n]*\), torch \S+", re.MULTILINE)
"""What a probe says of the machine and of its torch."""


class Example(NamedTuple):
    """One command of a page, and what the page shows below it."""

    page: str
    line: int
    command: str
    shown: str


def pages() -> list[Path]:
    """The README and the pages of ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(path: Path) -> list[Example]:
    """The examples of a page, in order."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return [
        Example(page=name, line=text.count("\n", 0, block.start()) + 1 + offset, command=command, shown=shown)
        for block in _BLOCK.finditer(text)
        for offset, command, shown in _commands(block.group())
    ]


def _commands(block: str) -> Iterator[tuple[int, str, str]]:
    """The commands of a block with the line of each, and what follows it."""
    lines = block.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(f"{_PROMPT}kvplan")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = next(number for number in range(start, end) if not lines[number].endswith("\\"))
        command = " ".join(line.strip(" \\") for line in (lines[start].removeprefix(_PROMPT), *lines[start + 1 : last + 1]))
        yield start, command, "\n".join(lines[last + 1 : end]).rstrip()


def environment() -> dict[str, str]:
    """The variables under which an example runs."""
    dropped = ("KVPLAN", "HF_", "_KVPLAN", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    settled = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", "PYTHONPATH": str(ROOT)}
    # A page has the numbers of everybody, not those that were measured or written down on this machine.
    settled |= {"KVPLAN_NO_CALIBRATION": "1", "XDG_CONFIG_HOME": str(ROOT / "nobody")}
    # Prices grow old; those of the pages are read on one day.
    settled |= {"SOURCE_DATE_EPOCH": "1795910400"}
    return kept | settled


def printed(command: str) -> str:
    """The output of a command in a process of its own: see :func:`together`."""
    done = subprocess.run(
        [sys.executable, "-m", "hwcalc", *shlex.split(command)[1:]],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=_SECONDS,
    )
    return together(command, done.returncode, done.stdout, done.stderr)


def together(command: str, status: int, out: str, err: str) -> str:
    """What a command has printed. Raises ``RuntimeError`` if it ended in a fault of its own, or printed a path of this machine."""
    if status not in range(6):
        message = f"{command} ended with {status}: {err[-500:]}"
        raise RuntimeError(message)
    text = "\n".join(filter(None, (out.rstrip("\n"), in_lines(err.rstrip("\n"), COLUMNS))))
    if str(Path.home()) in text:
        message = f"{command} prints a path of this machine: {text[-500:]}"
        raise RuntimeError(message)
    return text


def agree(shown: str, now: str) -> bool:
    """True if two outputs are the same but for what depends on the machine."""
    return _of_no_machine(shown) == _of_no_machine(now)


def _of_no_machine(text: str) -> str:
    return _OF_THIS_TORCH.sub("", _ON_THIS_MACHINE.sub("", text))


def renewed(text: str) -> str:
    """A page's text with what its examples print now."""

    def block(match: re.Match[str]) -> str:
        head = match.group().partition(f"{_PROMPT}kvplan")[0]
        parts = [f"{_PROMPT}{_typed(command)}\n" + (f"{output}\n" if (output := printed(command)) else "")
                 for _, command, _ in _commands(match.group())]  # fmt: skip
        return head + "\n".join(parts) if parts else match.group()

    return _BLOCK.sub(block, text)


def _typed(command: str) -> str:
    """The command in lines that a page has room for."""
    return "\n".join(continued(command, COLUMNS - len(_PROMPT)))


def _differences(path: Path) -> str:
    out = []
    for example in examples(path):
        now = printed(example.command)
        if not agree(example.shown, now):
            lines = difflib.unified_diff(example.shown.splitlines(), now.splitlines(), "page", "printed", lineterm="")
            out.append("\n".join((f"{example.page}:{example.line}: {example.command}", *lines)))
    return "\n".join(out)


def main(words: Sequence[str] | None = None) -> int:
    """Compare or renew the pages that are named; all of them by default."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="bring the pages up to date")
    arguments = parser.parse_args(words)
    differ = False
    for path in arguments.pages or pages():
        if arguments.write:
            before = path.read_text(encoding="utf-8")
            after = renewed(before)
            if after != before:
                path.write_text(after, encoding="utf-8")
                print(f"{path}: written")
        elif differences := _differences(path.resolve()):
            differ = True
            print(differences)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())

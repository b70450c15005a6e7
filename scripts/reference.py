"""Write ``docs/reference.md``: every command with its options, from the tables that the command line is made of.

python scripts/reference.py           # writes the page
python scripts/reference.py --check   # exit status 1 if the page is not what would be written now
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hwcalc.cli.commands import summary
from hwcalc.cli.options import COMMANDS, GROUPS, PANELS, find_command

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
_LINE: Final = 98
"""Characters of a command and its comment that a page has in one line."""


def page() -> str:
    """The text of the page."""
    lines = [
        "# Every command and option",
        "",
        "`kvplan help COMMAND --all` prints the same. `kvplan MODEL` is `kvplan plan MODEL`.",
        "",
    ]
    for title, names in PANELS.items():
        lines += [f"| {title} | |", "| --- | --- |"]
        lines += [*(f"| [`kvplan {name}`](#kvplan-{name}) | {_cell(summary(name))} |" for name in names), ""]
    lines.pop()
    for name in COMMANDS:
        lines += ["", *_command(name)]
    return "\n".join(lines) + "\n"


def _command(name: str) -> Iterator[str]:
    command = find_command(name)
    yield f"## kvplan {name}"
    yield ""
    yield (command.run.__doc__ or "").strip().replace("\n    ", "\n")
    yield ""
    yield "```sh"
    beside = [f"{example.line}  # {example.says}" for example in command.examples]
    if all(len(line) <= _LINE for line in beside):
        yield from beside
    else:
        for example in command.examples:
            yield from (f"# {example.says}", example.line)
    yield "```"
    for group in ("", *GROUPS):
        options = [option for option in command.options if (option.group if option.flags else "") == group]
        if options:
            yield ""
            yield f"| {group or 'argument'} | |"
            yield "| --- | --- |"
            for option in options:
                spelled = ", ".join(f"`{flag}`" for flag in option.flags) or f"`{option.metavar}`"
                value = f" {option.metavar}" if option.flags and option.metavar else ""
                yield f"| {spelled}{_cell(value)} | {_cell(option.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/reference.md is not what the tables say now; run: python scripts/reference.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())

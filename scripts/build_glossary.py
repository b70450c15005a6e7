"""Write ``docs/glossary.md`` from ``profiles/glossary.yaml``. With ``--check`` only say whether it is up to date.

python scripts/build_glossary.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

from hwcalc.cli.options import COMMANDS
from hwcalc.planner.options import ROWS
from hwcalc.profiles.glossary import groups, terms

PAGE: Final = Path(__file__).resolve().parents[1] / "docs/glossary.md"
HEAD: Final = """# Glossary

One name a thing: these are the words of kvplan's output, help and pages, and `kvplan help WORD` prints an entry. In italics stand other words for the same
thing, which kvplan takes and does not print. JSON keeps its keys.
"""
_OPTION: Final = r"--?[a-z][a-z0-9-]+(?: (?:'[^']*'|\w+:[\w.]+|\d+(?:GB|GiB|ms|s)?\b))?"
"""An option, with its value if that is a number or quoted."""
_NAMES: Final = "|".join((*COMMANDS, "MODEL"))
"""What stands behind the name of the program in a command."""


def main(arguments: list[str] | None = None) -> int:
    """Write or compare the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say whether the page is up to date, and write nothing")
    check, written = parser.parse_args(arguments).check, page()
    if not check:
        PAGE.write_text(written, encoding="utf-8")
        return 0
    same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == written
    print("up to date" if same else f"{PAGE.name} is out of date: python scripts/build_glossary.py", file=sys.stderr)
    return 0 if same else 1


def page() -> str:
    """The page in Markdown, a heading for each group and each word."""
    parts = [HEAD]
    for group, title in groups().items():
        parts.append(f"\n## {title}\n")
        for term in terms():
            if term.group == group:
                more = [f"option {', '.join(f'`{ROWS[name].spellings[0]}`' for name in term.options)}"] if term.options else []
                more += [f"JSON {', '.join(f'`{key}`' for key in term.key.split(', '))}"] if term.key else []
                more += [f"see {', '.join(f'[{word}](#{_anchor(word)})' for word in term.see)}"] if term.see else []
                also = f" *{', '.join(term.also)}*" if term.also else ""
                last = f"\n\n{'; '.join(more)[:1].upper()}{'; '.join(more)[1:]}." if more else ""
                parts.append(f"\n### {term.word}\n\n{also.strip()}{chr(10) * 2 if also else ''}{_code(term.text)}{last}\n")
    return "".join(parts)


def _anchor(word: str) -> str:
    return word.lower().replace(" ", "-")


def _code(text: str) -> str:
    """The text with commands and options as code, and with pages as links."""
    linked = re.sub(r"\bdocs/([\w-]+\.md)\b", r"[\1](\1)", text)
    return re.sub(
        rf"(?<![\w`-])(?:kvplan (?:{_NAMES})\b(?: \w+\.yaml| {_OPTION})*|{_OPTION}(?: {_OPTION})*)",
        lambda match: f"`{match[0]}`",
        linked,
    )


if __name__ == "__main__":
    sys.exit(main())

"""The pages in ``docs`` are true: what they name is there, and the numbers are those of the code."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from hwcalc.cli import run as cli_run
from hwcalc.cli.options import COMMANDS
from hwcalc.errors import KvplanError
from tests.paths import ROOT, sources

PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
ROBUSTNESS: Final = (ROOT / "docs/robustness.md").read_text(encoding="utf-8")
ROOMS: Final = [
    ROOT / "docs" / "architecture.md",
    *(path for top in ("formulas", "hwcalc", "profiles") for path in (ROOT / top).rglob("README.md")),
]
CODE: Final = [
    f"/{path.relative_to(ROOT).as_posix()}"
    for top in ("benchmarks", "formulas", "hwcalc", "profiles", "scripts", "tests")
    for path in (ROOT / top).rglob("*.py")
]
FILE: Final = re.compile(r"`(?:python )?((?:tests|scripts|docs|hwcalc|formulas|profiles|benchmarks)/[\w./-]+)(?:::(\w+))?[^`]*`")
UNITS: Final = {"": 1, "bytes": 1, "seconds": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
LIMITS: Final = re.findall(r"^\| [^|]+ \| ([\d,.]+) ?(\w*) \| `([\w.]+):(\w+)` \|$", ROBUSTNESS, re.MULTILINE)


def section(title: str) -> str:
    """The text below a heading, to the next one."""
    return ROBUSTNESS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_what_a_page_names_is_there(page: Path) -> None:
    """Files, the tests in them, and commands."""
    text = page.read_text(encoding="utf-8")
    for path, test in FILE.findall(text):
        assert (ROOT / path).exists(), path
        assert not test or f"\ndef {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"
    commands = set(re.findall(r"`kvplan ([a-z]+)", text))

    assert commands <= COMMANDS.keys()


@pytest.mark.parametrize("page", ROOMS, ids=[page.relative_to(ROOT).as_posix() for page in ROOMS])
def test_what_a_page_says_of_the_code_is_there(page: Path) -> None:
    """Files by the end of their path, and what stands in them: a class, a function, a method or a constant."""
    text = page.read_text(encoding="utf-8")
    for end in set(re.findall(r"`([\w/]+\.py)`", text)):
        assert any(path.endswith(f"/{end}") for path in CODE), end
    for end, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`[^`|(]*)+)", text):
        code = "".join((ROOT / path[1:]).read_text(encoding="utf-8") for path in CODE if path.endswith(f"/{end}"))
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                assert re.search(rf"(?m)^ *(?:class |def )?{part}\b[(:]", code), f"{end}: {name}"


def test_every_promise_names_its_test() -> None:
    """A promise without one is a wish."""
    rows = [row for row in section("Promises").splitlines() if row.startswith("| ")][2:]

    assert len(rows) > 5
    assert [row for row in rows if not FILE.search(row.split(" | ")[1])] == []


def classes(base: type[KvplanError]) -> Iterator[type[KvplanError]]:
    """An error class and all below it."""
    yield base
    for one in base.__subclasses__():
        yield from classes(one)


def test_exit_codes() -> None:
    """The table has every code that the program can end with, and no other."""
    for module in sources():
        if not module.endswith("__main__"):
            import_module(module)
    ours = {one.exit_code for one in classes(KvplanError) if one.__module__.startswith("hwcalc.") and "exit_code" in vars(one)}
    signals = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    every = {0, 1, *ours, cli_run.USAGE, cli_run.INTERNAL, cli_run.INTERRUPTED, cli_run.BROKEN_PIPE, *signals}
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)]

    assert codes == sorted(every)
    assert {int(code) for code in re.findall(r"^ ?(\d+)  ", str(cli_run.__doc__), re.MULTILINE)} == {
        code for code in every if code < 128
    }
    assert {int(code) for code in re.findall(r"\b1\d\d\b", str(cli_run.__doc__))} == {code for code in every if code > 128}


@pytest.mark.parametrize(("number", "unit", "module", "name"), LIMITS, ids=[f"{row[2]}:{row[3]}" for row in LIMITS])
def test_limit(number: str, unit: str, module: str, name: str) -> None:
    """A limit is the constant in the code."""
    assert float(number.replace(",", "")) * UNITS[unit] == getattr(import_module(module), name)


def test_every_limit_names_its_constant() -> None:
    """No row escapes the test above."""
    rows = [row for row in section("Limits").splitlines() if row.startswith("| ")][2:]

    assert len(rows) == len(LIMITS) > 10

"""The help that is kept in a file: it is what Typer writes, and it is printed without Typer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwcalc import __version__
from hwcalc.cli.commands import help_of
from hwcalc.cli.kept_help import PATH, WIDTHS, answered, line_width
from hwcalc.cli.options import COMMANDS
from scripts.build_help import texts
from tests.hwcalc.command import Capture, python, run


def test_the_file_has_what_typer_writes() -> None:
    """Every command at every width; after a change of an option: ``python scripts/build_help.py``."""
    assert json.loads(Path(PATH).read_text(encoding="utf-8")) == texts()


@pytest.mark.parametrize("columns", ["", "0", "20", "47", "80", "81", "100", "240", "many"])
def test_lines_are_as_long_as_typers(monkeypatch: pytest.MonkeyPatch, capsys: Capture, columns: str) -> None:
    """Whether a text of that width is kept or not. ``COLUMNS=0`` and what is no number count as 80 columns, as for every program."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = {"": 100, "0": 78, "20": 50, "47": 50, "80": 78, "81": 79, "100": 98, "240": 98, "many": 78}
    status, printed, errors = run(capsys, "plan", "--help")

    assert line_width() == lines[columns]
    assert (answered(["plan", "--help"]) is not None) == (lines[columns] in WIDTHS)
    assert (status, printed, errors) == (0, help_of("plan", lines[columns]), "")


@pytest.mark.parametrize("columns", ["", "80", "100", "47"])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_spelling_asks_for_the_same(monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, columns: str) -> None:
    """An option before or behind it, and the command ``help``."""
    monkeypatch.setenv("COLUMNS", columns)
    printed = {run(capsys, *words)[1] for words in ([name, "--help"], [name, "-h"], ["help", name])}

    assert printed == {help_of(name)}


def test_no_command_asks_for_the_help_of_all(capsys: Capture) -> None:
    """With an option, without a word, or by the command ``help``."""
    printed = {run(capsys, *words)[1] for words in ([], ["--help"], ["-h"], ["help"])}

    assert printed == {help_of(None)}


@pytest.mark.parametrize(
    "words", [["gpt2"], ["nosuch", "--help"], ["help", "nosuch"], ["plan", "--help", "x"], ["", "--help"], ["-h", "-V"]]
)
def test_every_other_line_is_for_typer(words: list[str]) -> None:
    """Models, mistyped commands, and lines with more in them."""
    assert answered(words) is None


def test_a_completion_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell asks with the words of a line in the environment, and Typer answers."""
    monkeypatch.setenv("_KVPLAN_COMPLETE", "complete_bash")

    assert answered(["--help"]) is None
    assert answered([]) is None


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["help", "fit"], ["--version"], []])
def test_typer_is_not_imported(words: list[str]) -> None:
    """Neither Typer, nor any command with its options."""
    code = (
        "import sys; from hwcalc.cli import main; main(sys.argv[1:]);"
        "print({'typer', 'click', 'rich', 'hwcalc.cli.options', 'hwcalc.cli.plan', 'hwcalc.engines'} & set(sys.modules), file=sys.stderr)"
    )
    done = python("-c", code, *words)

    assert done.stdout == (f"kvplan {__version__}\n" if words == ["--version"] else done.stdout)
    assert done.stdout
    assert done.stderr.strip() == "set()"

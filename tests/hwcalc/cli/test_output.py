"""What decides on colours and widths, and that nothing is cut: for every command."""

from __future__ import annotations

import os
import re
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from hwcalc.cli import output
from hwcalc.cli.options import COMMANDS
from hwcalc.cli.output import colored, on_screen, view_of
from hwcalc.errors import UsageError
from hwcalc.report.text import PIPED_WIDTH
from tests.hwcalc.command import QWEN, Capture, run

# A command line of each command that prints a table.
TABLES: Final = {
    "plan": (QWEN, "--seq", "32k", "--gpu", "l4", "--verbose"),
    "explain": ("explain", QWEN, "--seq", "32k"),
    "diff": ("diff", "Qwen/Qwen3-4B", QWEN),
    "compare": ("compare", QWEN, "meta-llama/Llama-3.1-8B", "--seq", "32k", "--gpu", "l4"),
    "recommend": ("recommend", QWEN, "--seq", "32k", "--gpu", "l4,l40s"),
    "fleet": ("fleet", "docs/fleet.yaml"),
    "fit": ("fit", "qwen3", "--gpu", "rtx-4060-ti", "--seq", "16k"),
    "check": ("check", "tests/readme/kvplan.yaml"),
    "reconcile": (
        "reconcile", "Qwen/Qwen3-235B-A22B-FP8", "--log", "tests/logs/vllm/v1-0.27-qwen3-235b-tp4.log", "--gpu", "h20-96gb",
    ),
    "models": ("models", "llama"),
    "engines": ("engines",),
    "gpus": ("gpus", "rtx-40"),
    "instances": ("instances",),
    "dtypes": ("dtypes",),
    "policies": ("policies",),
    "disaggregate": ("disaggregate", QWEN, "--engine", "vllm", "--gpu", "h100", "--seq", "8k", "--ttft", "1s"),
    "swap": ("swap", QWEN, "Qwen/Qwen3-4B", "--engine", "vllm", "--gpu", "l4", "--seq", "4k"),
    "strategies": ("strategies", QWEN, "--seq", "32k", "--gpu", "l4"),
    "workload": ("workload", "prompt=p50=2k,p95=16k", "output=300", "requests=50", "arrival=poisson=4"),
    "simulate": ("simulate", "Qwen/Qwen3-8B", "--blocks", "600", "--step-time", "25ms", "--trace", "prompt=500 output=20 requests=5"),
    "tune": ("tune", "Qwen/Qwen3-8B", "--gpu", "l4", "--seq", "8k", "--dtype", "auto", "--trace", "prompt=500 output=2 requests=2", "--ttft", "9s"),
}  # fmt: skip
NO_TABLE: Final = {"launch", "sweep", "mcp", "explore", "plot", "probe", "schema", "help", "version"}
CODE: Final = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(name="bare", autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wish of whoever runs the tests."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Terminal:
    """A stream that is a terminal of so many columns, ``None`` if it does not say how many; no other stream is changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stream: str, columns: int | None = 120) -> None:
        self._columns = columns
        self._others = os.get_terminal_size
        monkeypatch.setattr(f"sys.{stream}", self)
        monkeypatch.setattr("os.get_terminal_size", self._size)

    def isatty(self) -> bool:
        """It is one."""
        return True

    def fileno(self) -> int:
        """A number that no open file has."""
        return _NO_FILE

    def _size(self, *fileno: int) -> os.terminal_size:
        if fileno != (_NO_FILE,):
            return self._others(*fileno)
        if self._columns is None:
            raise OSError
        return os.terminal_size((self._columns, 24))


_NO_FILE: Final = 1_000_003
LISTS: Final = ("models", "gpus", "engines")


def test_every_command_is_here() -> None:
    """A new command with a table gets a line above."""
    assert TABLES.keys() | NO_TABLE == COMMANDS.keys()


@pytest.mark.parametrize(
    ("terminal", "term", "option", "no_color", "forced"),
    list(product((False, True), ("xterm", "dumb"), (None, "auto", "always", "never"), ("", "1"), ("", "0", "1"))),
)
def test_who_decides_on_colour(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, term: str, option: str | None, no_color: str, forced: str
) -> None:
    """The option, then NO_COLOR, then FORCE_COLOR, then the terminal; an empty variable counts as not set."""
    if terminal:
        Terminal(monkeypatch, "stdout")
    for name, value in (("TERM", term), ("NO_COLOR", no_color), ("FORCE_COLOR", forced)):
        monkeypatch.setenv(name, value)
    by_terminal = terminal and term != "dumb"
    by_force = {"": by_terminal, "0": False, "1": True}[forced]
    expected = {"always": True, "never": False}.get(option or "auto", False if no_color else by_force)

    assert colored(option) is expected
    assert view_of(color=option).color is expected
    if option != "always":
        assert colored(option, no_color=True) is False


def test_wishes_that_contradict_each_other() -> None:
    """They are usage errors that name both."""
    with pytest.raises(UsageError, match="--no-color and --color always"):
        colored("always", no_color=True)
    with pytest.raises(UsageError, match="--color 'sometimes' is not known"):
        colored("sometimes")
    with pytest.raises(UsageError, match="--brief and --verbose"):
        view_of(brief=True, verbose=True)


@pytest.mark.parametrize(
    ("terminal", "columns", "width"),
    [
        (False, "", PIPED_WIDTH), (False, "40", 40), (False, "0", PIPED_WIDTH), (False, "wide", PIPED_WIDTH), (False, "-5", PIPED_WIDTH),
        (False, "9" * 30, PIPED_WIDTH), (True, "", 120), (True, "70", 70), (True, "200", 200), (True, "0", 120), (False, "1", 20),
    ],
)  # fmt: skip
def test_who_decides_on_width(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, columns: str, width: int) -> None:
    """COLUMNS if it is a number, else the terminal; a pipe has no width."""
    # pytest reads COLUMNS too, for what it prints before a test's changes are undone.
    with monkeypatch.context() as patch:
        if terminal:
            Terminal(patch, "stdout")
        patch.setenv("COLUMNS", columns)
        decided = view_of().width

    assert decided == width


def test_a_terminal_of_unknown_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken for one of 100 columns."""
    for columns in (0, None):
        with monkeypatch.context() as patch:
            Terminal(patch, "stdout", columns)
            width = view_of().width
        assert width == output.WIDTH == 100


@pytest.mark.parametrize("name", TABLES)
def test_colours_and_widths_change_no_character(capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With colours forced through a pipe a command says the same; lists and plans do have colours; JSON never has."""
    status, plain, _ = run(capsys, *TABLES[name], "--color", "never")
    colorful = run(capsys, *TABLES[name], "--color=always")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    forced, document = run(capsys, *TABLES[name])[1], run(capsys, *TABLES[name], "--json", "--color", "always")[1]

    assert "\x1b" not in plain
    assert CODE.search(colorful)
    assert forced == colorful
    assert [line.rstrip() for line in CODE.sub("", colorful).splitlines()] == plain.splitlines()
    assert "\x1b" not in document
    assert run(capsys, *TABLES[name], "--no-color")[:2] == (status, plain)


# These leave columns out, and name them (tests/hwcalc/planner/test_recommend.py, tests/hwcalc/report/test_engine_rows.py, test_newcomers.py).
LESS: Final = {"recommend", "fit", "compare", "instances", "reconcile", "tune"}


@pytest.mark.parametrize("name", [name for name in TABLES if name not in {*LESS, *LISTS}])
def test_no_word_is_cut(capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At any width every word of the pipe is there as a whole: ids, numbers and commands are never wrapped."""
    words = set(run(capsys, *TABLES[name])[1].split())
    for columns in ("40", "60", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        narrow = set(run(capsys, *TABLES[name])[1].split())
        # Bars are as long as there is room for, and the one of a GPU has its legend beside it or is not there.
        assert {word for word in words - narrow - {"rest", "limit"} if not set(word) <= set("█▓▒░│")} == set()


@pytest.mark.parametrize("name", LISTS)
def test_a_list_names_the_columns_that_a_terminal_has_no_room_for(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """At 80 columns no line is longer, and every first cell is there as a whole; the columns of a pipe that are not there are named."""
    piped = run(capsys, name)[1].splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    _, out, said = run(capsys, name)
    narrow = out.splitlines()
    titles, kept = (re.split(r"  +", lines[0].replace("published ", "")) for lines in (piped, narrow))
    left_out = re.search(r"Left out at this width: (.*?)\. All: --format csv\.", said)

    assert max(map(len, narrow)) <= 80
    assert [line.split()[0] for line in piped] == [line.split()[0] for line in narrow if not line.startswith(" ")]
    assert left_out is not None
    assert set(left_out[1].split(", ")) == set(titles) - set(kept) != set()


def test_a_pipe_has_no_width(capsys: Capture) -> None:
    """One line for each model and each note, however long."""
    lines = run(capsys, "models")[1].splitlines()

    assert len(lines) > 100
    assert all(re.match(r"\S+", line) for line in lines)
    _, text, _ = run(capsys, "gpus", "a100-sxm4-80gb")
    assert max(map(len, text.splitlines())) > 150
    assert not any(line.startswith(" ") for line in text.splitlines())


def test_verdicts_and_advice_have_colours(capsys: Capture) -> None:
    """Green fits, red does not, commands are blue; in a comparison too. All are bold."""
    fits = run(capsys, QWEN, "--seq", "1k", "--gpu", "l40s", "--color", "always")[1]
    fails = run(capsys, QWEN, "--gpu", "l4", "--users", "99", "--color", "always")[1]
    both = run(capsys, "compare", QWEN, "--seq", "1k", "--gpu", "l40s,t4", "--color", "always")[1]

    assert "\x1b[1;32m" in fits
    assert "\x1b[1;91m" in fails
    assert "\x1b[1;94m" in fails
    assert "\x1b[1;32mfits" in both
    assert "\x1b[1;91mdoes not fit" in both
    # What a change brings is no aside: it is as bright as the numbers.
    gains = [line for line in fails.splitlines() if " holds " in line and " instead of " in line]
    assert gains
    assert not any("\x1b[2m" in line for line in gains)


def test_brief_and_verbose(capsys: Capture, tmp_path: Path) -> None:
    """One is the beginning of the usual table, the other has more of it; the document is the same with both."""
    words = (QWEN, "--seq", "32k", "--gpu", "l4", "--engine", "vllm")
    usual, brief, verbose = (run(capsys, *words, *more)[1] for more in ((), ("--brief",), ("-v",)))

    # What says how to see more advice is not the same.
    assert usual.startswith("\n".join(line for line in brief.splitlines() if " more to try: -v" not in line))
    assert len(brief.splitlines()) < 24 < len(usual.splitlines()) < len(verbose.splitlines())
    assert run(capsys, *words, "--verbose")[1] == verbose
    assert run(capsys, *words, "--json", "--brief") == run(capsys, *words, "--json", "-v") == run(capsys, *words, "--json")
    assert run(capsys, *words, "--brief", "-v")[0] == 2
    config = tmp_path / "my model.json"
    config.write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}', encoding="utf-8"
    )
    asked = run(capsys, str(config), "--seq", "8", "--token", "hf_secret", "--dtype", "fp16", "--brief")[1]
    assert f"kvplan '{config}' --seq 8 --dtype fp16 --gpu " in asked
    assert "secret" not in asked


def test_the_counts_of_a_check_stand_once_in_a_pipe(capsys: Capture, tmp_path: Path) -> None:
    """They are the last line, however long the answer is; a terminal has them first, too."""
    for checks in (2, 30):
        file = tmp_path / "kvplan.yaml"
        rows = "".join(f"- {{name: n{n}, model: {QWEN}, seq: 1k, max_cache: 1GiB}}\n" for n in range(checks))
        file.write_text(f"schema_version: 1\nchecks:\n{rows}", encoding="utf-8")
        lines = run(capsys, "check", str(file))[1].splitlines()

        assert [number for number, line in enumerate(lines, 1) if line == f"{checks} checks: {checks} hold"] == [len(lines)]


def test_verdicts_of_a_comparison_come_first(capsys: Capture) -> None:
    """Before the bytes that they follow from."""
    text = run(capsys, *TABLES["compare"])[1]

    assert text.index("verdict") < text.index("ratio")


def test_a_terminal_gets_the_answer_and_a_pipe_all_of_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a verdict the answer alone; without one, with ``-v`` and into a pipe what it comes from too."""
    line = (QWEN, "--engine", "vllm", "--gpu", "h100", "--seq", "8k")
    piped = run(capsys, *line)[1]
    brief = run(capsys, *line, "--brief")[1]
    monkeypatch.setenv("COLUMNS", str(PIPED_WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("hwcalc.cli.output.on_terminal", lambda: True)
    screen = run(capsys, *line)[1]

    assert "\neach GPU\n" in piped
    assert screen == f"{brief}\n-v: pool, layers, notes\n"
    assert "  start    vllm serve Qwen/Qwen3-8B --max-model-len 8192\n" in screen
    assert "\neach GPU\n" in run(capsys, *line, "-v")[1]
    assert "\n36 layers: " in run(capsys, QWEN, "--seq", "8k")[1]
    assert run(capsys, "--gpu", "h100", "--", "vllm", "serve", QWEN, "--max-model-len", "8192")[1] == screen


@pytest.mark.parametrize(
    "line",
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "--engine", "tensorrt-llm", "--gpu", "2xl40s", "--seq", "4k"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "--engine", "lmdeploy", "--gpu", "rtx4090"),
        ("openai/gpt-oss-20b", "--engine", "transformers", "--gpu", "t4", "--seq", "4k"),
    ],
)
def test_an_answer_with_limits_keeps_within_a_screen(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...]
) -> None:
    """24 lines of 80 columns, a long command in as many as it takes; what ``-v`` has is left out first."""
    monkeypatch.setattr("hwcalc.cli.output.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    limited = (*line, "--users", "8", "--ttft", "1s", "--itl", "30ms")
    screen, whole = run(capsys, *limited)[1], run(capsys, *limited, "-v")[1]
    rows = sum(-(-max(1, len(row)) // 80) for row in screen.splitlines())

    assert rows < 24
    assert "\n  users " in screen
    assert "\n  cache " in whole
    assert "at most 0" not in whole


def test_notes_on_a_terminal_are_broken_at_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its columns, but for a command, which has a line of its own where it is long; a log has one line for each."""
    note = "kvplan: " + "word " * 30 + "end"
    typed = f"kvplan {QWEN} --seq 4k --engine vllm --gpu h100 --gpus 8 --dtype fp8"
    command = f"{note}. This works: {typed}"
    assert on_screen(note) == note
    with monkeypatch.context() as patch:
        Terminal(patch, "stderr", 60)
        broken, whole = on_screen(note), on_screen(command)
    assert max(map(len, broken.splitlines())) <= 60
    assert broken.split() == note.split()
    assert whole.splitlines()[-1] == f"  {typed}"
    assert whole.split() == command.split()


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ((QWEN, "--policy-rules"), "kvpress, paper"),
        (("check", "--format"), "table, json, markdown, csv, junit, sarif, github"),
        (
            (QWEN, "--emit"),
            "vllm, sglang, llamacpp, ollama, mlx, tensorrt-llm, lmdeploy, mistral-rs, tgi, compose, kubernetes, helm",
        ),
    ],
)
def test_an_option_without_its_value_lists_what_may_stand_there(capsys: Capture, words: tuple[str, ...], known: str) -> None:
    """Where that is a short list, of the command that is typed; a number or a name of hundreds has the help."""
    status, _, said = run(capsys, *words)
    assert (status, said) == (2, f"kvplan: Option '{words[-1]}' requires an argument.\nKnown: {known}.\n")
    assert run(capsys, QWEN, "--seq")[2].endswith("\nWrite: --seq N. See: kvplan help plan --all\n")

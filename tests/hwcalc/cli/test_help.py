"""The help: groups, examples that run, questions, nothing cut; ``kvplan help`` and ``kvplan version``."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from hwcalc import __version__
from hwcalc.cli.check import EXAMPLE
from hwcalc.cli.commands import QUESTIONS, USUAL, summary
from hwcalc.cli.line import VLLM
from hwcalc.cli.options import COMMANDS, GROUPS, PANELS, PLANNING, Example, find_command
from hwcalc.engines import ENGINES
from hwcalc.planner.options import GROUPS as PLAN_GROUPS
from hwcalc.planner.options import OPTIONS as PLAN_OPTIONS
from hwcalc.planner.options import ROWS
from hwcalc.profiles.glossary import Term, find_term, terms
from hwcalc.report.emit import emitters
from hwcalc.report.schema import json_schema
from scripts import build_glossary
from tests.hwcalc.command import QWEN, Capture, python, run
from tests.hwcalc.reconcile.served import VLLM as SERVER
from tests.hwcalc.reconcile.served import Served
from tests.paths import ROOT

EXAMPLES = [
    *((name, example) for name in COMMANDS for example in find_command(name).examples),
    *(("", question) for question in QUESTIONS),
]


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def sections(text: str) -> dict[str, str]:
    """Title -> text below it."""
    parts = re.split(r"^(\w+):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# --- the help of a command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_options_stand_in_groups(capsys: Capture, command: str) -> None:
    """Each option below the title of its group, in 80 columns, no name broken at a hyphen."""
    options = [option for option in find_command(command).options if option.flags]
    out = run(capsys, command, "--help-all")[1]
    found = sections(out)

    assert max(map(len, out.split("Examples:")[0].splitlines())) <= 80
    assert not re.search(r"-[a-z]+-$", out, re.MULTILINE)
    assert [title for title in found if title.lower() in GROUPS] == [
        group.capitalize() for group in GROUPS if group == "output" or group in {option.group for option in options}
    ]
    for option in options:
        assert re.search(rf"^  \S*{option.flags[0]}\b|, {option.flags[0]}\b", found[option.group.capitalize()], re.MULTILINE)


def test_every_option_has_a_group() -> None:
    """One of those that the help knows."""
    assert {row.group for row in PLAN_OPTIONS} == set(PLAN_GROUPS)
    assert {option.group for name in COMMANDS for option in find_command(name).options} == set(GROUPS)


def test_vllms_names_stand_beside_ours(capsys: Capture) -> None:
    """Each in the help of the option that it stands for."""
    text = " ".join(run(capsys, "plan", "--help-all")[1].split())

    for option in PLANNING:
        if option.name in VLLM:
            assert f"vLLM: {', '.join(VLLM[option.name])}." in text
    assert "vLLM's flags are taken too: --max-num-seqs, " in text
    assert "vLLM" not in run(capsys, "gpus", "--help-all")[1]


# --- examples ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that examples name."""
    (tmp_path / "kvplan.yaml").write_text(EXAMPLE)
    shutil.copy(ROOT / "docs/fleet.yaml", tmp_path)
    log = ROOT / "tests/logs/vllm/v0-0.7-llama-3.1-8b-20k.log"
    shutil.copy(log, tmp_path / "vllm.log")
    shutil.copy(ROOT / "tests/receipts/cpu-qwen3-1.7b-reference.json", tmp_path / "receipt.json")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_three_examples(capsys: Capture, name: str) -> None:
    """They are of this command, and the help shows them whole."""
    examples = find_command(name).examples
    out = run(capsys, name, "--help-all")[1]

    assert len(examples) == 3
    for example in examples:
        assert f"  {example.says}\n    {example.line}\n" in out
        assert name in example.line.split()[1].removeprefix("--") or name == "plan"


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example.line for _, example in EXAMPLES])
@pytest.mark.usefixtures("folder")
def test_every_example_runs(capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str, example: Example) -> None:
    """Without network, with status 0, or 1 where the answer is no. A server ends at once."""
    with Served(SERVER) as served:
        monkeypatch.setattr("socketserver.BaseServer.serve_forever", lambda _server: None)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        words = shlex.split(example.line.partition(" > ")[0].replace("http://localhost:8000", served.address))
        status, out, err = run(capsys, *words[1:])

    assert status in {0, 1}, err
    assert out or "-o" in words or words[1:] == ["mcp"]


# --- the help of kvplan -----------------------------------------------------------------------------------------------


def test_questions_with_their_commands(capsys: Capture) -> None:
    """What people ask most stands in ``kvplan --help``, a line each, and with what they answer in ``--help-all``."""
    short, out = run(capsys, "--help")[1], run(capsys, "--help-all")[1]

    assert len(QUESTIONS) == 7
    for question in QUESTIONS:
        assert f"  {question.says}\n    {question.line}\n" in out
        assert re.search(
            rf"^  {re.escape(question.says)} +{re.escape(question.line.replace(QWEN, 'MODEL'))}$", short, re.MULTILINE
        )
    assert max(map(len, out.splitlines())) <= 80


def test_no_summary_is_cut(capsys: Capture) -> None:
    """Each command has one line of the list, a whole sentence."""
    listed, short = sections(run(capsys, "--help-all")[1]), run(capsys, "--help")[1]

    assert [*listed][-len(PANELS) :] == [title.capitalize() for title in PANELS]
    for title, names in PANELS.items():
        assert f"\n  {title:<8}  {', '.join(names)}\n" in short
        for name in names:
            assert f"\n  {name:<{max(map(len, COMMANDS)) + 2}}{summary(name)}\n" in f"\n{listed[title.capitalize()]}"
            assert "..." not in summary(name)


def test_help_and_version_are_commands(capsys: Capture) -> None:
    """What people type first."""
    assert run(capsys, "help") == run(capsys, "--help")
    assert run(capsys, "help", "plan") == run(capsys, "plan", "--help")
    assert run(capsys, "help", "plan", "--all") == run(capsys, "plan", "--help-all") == run(capsys, QWEN, "--help-all")
    assert run(capsys) == run(capsys, "--help")
    assert run(capsys, "help", "--all") == run(capsys, "--help-all")
    assert run(capsys, "version") == run(capsys, "--version") == (0, f"kvplan {__version__}\n", "")
    assert json.loads(run(capsys, "version", "--json")[1]) == {"schema_version": "1", "kvplan_version": __version__}
    assert run(capsys, "help", "nosuch")[0] == 2
    assert run(capsys, "help", "plan", "check")[0] == 2


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_short_help_is_one_screen(capsys: Capture, command: str) -> None:
    """About twenty lines of 80 columns: the usual options, grouped, and two examples."""
    out = run(capsys, *filter(None, (command, "--help")))[1]
    lines = out.splitlines()

    assert len(lines) <= 24, out
    assert max(len(line) for line in lines if not line.startswith("  kvplan ")) <= 80
    if command:
        for example in find_command(command).examples[:2]:
            assert f"  {example.line}\n" in out
        for option in find_command(command).options:
            assert not (option.short and option.flags) or option.flags[0] in out


def test_the_help_of_reconcile_shows_a_server(capsys: Capture) -> None:
    """Its address, and how it is followed, stand on the first screen."""
    out = run(capsys, "reconcile", "--help")[1]

    assert "\n  kvplan reconcile http://localhost:8000\n" in out
    assert re.search(r"^ +--watch \[S\] ", out, re.MULTILINE)


def test_usual_options_are_options() -> None:
    """Those that a short help names are the command's."""
    for command, names in USUAL.items():
        assert set(names) <= {option.name for option in find_command(command).options}


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.word)
def test_a_word_is_explained(capsys: Capture, term: Term) -> None:
    """By its name and by every other word for it; the options are in the table, and what it points to is explained too."""
    status, out, _ = run(capsys, "help", *term.word.split())

    assert status == 0
    assert out.startswith(term.word)
    assert " ".join(term.text.split()) in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert set(term.options) <= ROWS.keys()
    for name in term.also:
        found = find_term(name)
        assert found is not None
        assert found.word == term.word


def test_words_and_options_are_explained(capsys: Capture) -> None:
    """All words in a list; an option by its flag; a mistyped word by the one that is meant."""
    listed = run(capsys, "help", "words")[1]
    assert all(term.word in listed for term in terms())
    assert "Share of the GPU to leave alone" in run(capsys, "help", "--margin")[1]
    assert run(capsys, "help", "concurrency")[1].startswith("batch")
    assert "kvplan help headroom" in run(capsys, "help", "heedroom")[2]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("TTFT", "--ttft T"),
        ("tpot", "--itl, --tpot T"),
        ("PagedAttention", "pool (also: "),
        ("--max-num-batched-tokens", "vllm: tokens in a batch."),
        ("enforce_eager", "--engine-option enforce_eager=VALUE"),
        ("page size", "sglang: tokens in a page."),
        ("kv-cache-dtype", "--dtype D"),
        ("tensor-parallel-size", "--tp N"),
        ("swap-space", "It changes no bytes"),
        ("ngl", "-ngl N"),
        ("SnapKV", "See: kvplan policies SnapKV"),
        ("sglang", "See: kvplan engines sglang"),
        ("h100", "See: kvplan gpus h100"),
        ("check-file", "See: kvplan schema check-file"),
    ],
)
def test_words_of_servers_are_explained(capsys: Capture, word: str, says: str) -> None:
    """What a reader of an engine's documentation looks up, with hyphens or without: a word, an option, an engine's own option."""
    assert says in "".join(run(capsys, "help", *word.split())[1:])


def test_the_glossary_is_written_from_the_words() -> None:
    """``docs/glossary.md`` is what ``scripts/build_glossary.py`` writes, and JSON keys are those of a plan."""
    assert build_glossary.main(["--check"]) == 0
    schema = json.dumps(json_schema("plan"))
    for term in terms():
        for key in (term.key or "").split(", "):
            assert all(f'"{part}"' in schema for part in key.split(".") if part), key


def test_help_reads_no_model_and_no_engine() -> None:
    """It is as fast as a plan."""
    code = (
        "import sys; from hwcalc.cli import main; main(['plan', '--help']); "
        "print([name for name in sys.modules if name.startswith(('hwcalc.engines.vllm', 'hwcalc.parsers', 'hwcalc.sources'))],"
        " file=sys.stderr)"
    )

    assert python("-c", code).stderr.strip() == "[]"


def test_the_help_of_emit_names_who_has_no_command_line() -> None:
    """Every engine but two; a third would have to be named."""
    assert set(ENGINES) - set(emitters()) == {"reference", "transformers"}
    (text,) = (option.help for option in find_command("plan").options if option.name == "emit")
    assert "any engine but reference and transformers" in text

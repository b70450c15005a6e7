"""``kvplan policies``: the list, one policy, and their documents."""

from __future__ import annotations

import csv
import io
import json
import shlex

import jsonschema
import pytest

from hwcalc import keep
from hwcalc.cli import completion
from hwcalc.policies.parse import policies
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import Capture, run


def test_the_list_has_every_policy(capsys: Capture) -> None:
    """A row for each, with what becomes of the memory."""
    status, out, _ = run(capsys, "policies")
    names = [line.split()[0] for line in out.splitlines()[1:] if line.strip()]

    assert status == 0
    assert names == list(policies())


@pytest.mark.parametrize("name", list(policies()))
def test_one_policy_says_all(capsys: Capture, name: str) -> None:
    """What it keeps, its formula, memory, kernel, options and source."""
    status, out, _ = run(capsys, "policies", name, "--format", "markdown")
    policy = policies()[name]

    assert status == 0
    for text in (policy.title, policy.kernel, policy.source, policy.memory):
        assert text.split(":")[0] in out.replace("\\", "")
    assert all(option.name in out.replace("\\", "") for option in policy.options if not option.name.startswith("_"))


def test_names_of_classes_and_whole_policies(capsys: Capture) -> None:
    """``SnapKVPress`` and a policy with options name the same row."""
    expected = run(capsys, "policies", "snapkv")

    assert run(capsys, "policies", "SnapKVPress") == run(capsys, "policies", "snapkv:compression_ratio=0.5") == expected


@pytest.mark.parametrize("words", [["policies"], ["policies", "rkv"]])
def test_documents_fit_their_schema(capsys: Capture, words: list[str]) -> None:
    """``kvplan schema policies``."""
    document = json.loads(run(capsys, *words, "--json")[1])

    jsonschema.Draft202012Validator(json_schema("policies")).validate(document)
    assert len(document["policies"]) == (1 if len(words) > 1 else len(policies()))


@pytest.mark.parametrize(
    "policy",
    [
        None,
        "triattention:kv_budget=64",
        "quest",
        "adakv:press=(knorm:compression_ratio=0.5)",
        "chunkkv:press=(knorm:compression_ratio=0.5)",
    ],
)
def test_what_is_kept_fits_its_schema(policy: str | None) -> None:
    """``kvplan schema keep``."""
    kept = keep("Qwen/Qwen3-8B", policy, prompt=1000, decode=200, offline=True)

    jsonschema.Draft202012Validator(json_schema("keep")).validate(json.loads(json.dumps(kept.to_dict())))


def test_csv_has_a_row_for_each_option(capsys: Capture) -> None:
    """And one for a policy without."""
    rows = list(csv.DictReader(io.StringIO(run(capsys, "policies", "--format", "csv")[1])))

    assert {row["policy"] for row in rows} == policies().keys()
    assert [row["option"] for row in rows if row["policy"] == "random"] == ["compression_ratio", "seed"]


def test_an_unknown_policy(capsys: Capture) -> None:
    """Wrong usage, with the nearest and all that are known."""
    status, out, err = run(capsys, "policies", "snapkw")

    assert (status, out) == (2, "")
    assert "Did you mean snapkv?" in err
    assert "triattention" in err


@pytest.mark.parametrize("name", sorted(policies()))
def test_the_option_of_a_plan_is_named(capsys: Capture, name: str) -> None:
    """Behind each policy stands what to type for a plan with it; it works, but where it needs a value for each layer."""
    line = run(capsys, "policies", name)[2].splitlines()[-1]
    words = shlex.split(line.partition("MODEL ")[2])

    assert words[0] == "--policy"
    assert words[1].partition(":")[0] == name
    if "..." not in words[1]:
        assert run(capsys, "Qwen/Qwen3-0.6B", "--seq", "4k", *words)[0] == 0


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", ["none", "streamingllm"]),
        ("snap", ["snapkv"]),
        ("snapkv:win", ["snapkv:window_size="]),
        ("snapkv:window_size=16,comp", ["snapkv:window_size=16,compression_ratio="]),
        ("adakv:press=(tova:c", ["adakv:press=(tova:compression_ratio="]),
        ("adakv:press=(tova:compression_ratio=0.5),", ["adakv:press=(tova:compression_ratio=0.5),alpha_safeguard="]),
        ("composed:presses=[(snapkv:compression_ratio=0.5),(kn", ["composed:presses=[(snapkv:compression_ratio=0.5),(knorm"]),
        ("decoding:base_press=(ada", ["decoding:base_press=(adakv"]),
        ("finch:rerotate_keys=", ["finch:rerotate_keys=true", "finch:rerotate_keys=false"]),
        ("snapkv:budget=", []),
        ("nosuch:", []),
        ("(((((", []),
        ("adakv:press=(rkv", []),
        ("x" * 5000, []),
    ],
)
def test_a_shell_completes_policies(typed: str, expected: list[str]) -> None:
    """Names, behind a colon options, and in brackets policies again, as far as the outer one takes them."""
    found = completion.policies(typed)

    assert found[: len(expected)] == expected
    assert all(one.startswith(typed) for one in found)
    assert expected or not found


def test_a_shell_completes_words_about_policies() -> None:
    """Whose rules, what becomes of blocks, and bare names for ``kvplan policies``."""
    assert completion.policy_rules("") == ["kvpress", "paper"]
    assert completion.compactions("f") == ["fill"]
    assert completion.policy_names("rk") == ["rkv"]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--policy", "snpkv"], "policy 'snpkv' is not known", "Did you mean snapkv?"),
        (["--policy", "snapkv:ratio=0.5"], "snapkv has no option 'ratio'", "Did you mean compression_ratio?"),
        (["--policy", "adakv:press=(knrom)"], "policy 'knrom' is not known", "Did you mean knorm?"),
        (["--policy", "adakv:pres=knorm"], "adakv has no option 'pres'", "Did you mean press?"),
        (["--policy", "adakv:press=(rkv)"], "takes a scorer", "Known: "),
        (["--policy", "adakv:press=(knorm"], "brackets do not close", "Write: "),
        (["--policy", "snapkv:compression_ratio=1.5"], "out of range", "from 0 to below 1"),
        (["--policy", f"rkv:budget={'9' * 40}"], "not a number", "Allowed: "),
        (["--policy", ""], "is not known", "Known: "),
        (["--policy-rules", "paper"], "there is none", "--policy NAME"),
        (["--compaction", "fill"], "there is none", "--policy NAME"),
        (["--policy", "none", "--compaction", "fill"], "there is none", "--policy NAME"),
        (["--policy", "knorm", "--policy-rules", "papr"], "is not known", "Known: kvpress, paper."),
        (["--policy", "knorm", "--compaction", "yes"], "is not known", "Known: repack, fill, none."),
        (["--prompt", "64k"], "prompt", "--seq"),
        (["--policy", "snapkv:compression_ratio=0.5,window_size=40000"], "more than window_size", "smaller"),
    ],
)
def test_wrong_policies(capsys: Capture, words: list[str], message: str, hint: str) -> None:
    """What was given, what is allowed, what to type: exit status 2, and a document where one was asked for."""
    status, out, _ = run(capsys, "Qwen/Qwen3-8B", "--seq", "32k", *words, "--json")
    error = json.loads(out)["error"]

    assert status == error["code"] == 2
    assert message in error["message"]
    assert hint in error["hint"]


@pytest.mark.parametrize("columns", [60, 80])
def test_the_list_fits_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """A line or two for each policy; why a kernel is needed, and the source, stand with the policy alone."""
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, err = run(capsys, "policies")

    assert max(map(len, out.splitlines())) <= columns
    assert len(out.splitlines()) <= {80: 1.5, 60: 2.4}[columns] * len(policies())
    assert "arXiv" not in out
    assert "arXiv" in run(capsys, "policies", "--format", "markdown")[1]
    assert "no memory comes back" in err


@pytest.mark.parametrize("name", ["triattention", "h2o", "snapkv"])
def test_one_policy_fits_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Published figures too: their source is named once."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, "policies", name)

    assert max(map(len, out.splitlines())) <= 80
    assert out.count("01aed81") <= 1
    assert "numbers           as its " in out


@pytest.mark.parametrize("words", [["--samples", "4"], ["--beams", "4"]])
def test_samples_without_a_prompt_name_one_that_works(capsys: Capture, words: list[str]) -> None:
    """The command to type keeps what was asked for, and gives what it lacks."""
    status, _, err = run(capsys, "Qwen/Qwen3-8B", "--seq", "4k", *words)
    line = shlex.split(err.partition("This works: kvplan ")[2])

    assert status == 2
    assert line[line.index("--prompt") + 1] == "2k"
    assert set(words) <= set(line)
    assert run(capsys, *line)[0] == 0


def test_long_labels_leave_room(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivations of a policy in blocks fit 80 columns, and their formulas have more than half of them."""
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--seq", "16k", "--policy", "snapkv:compression_ratio=0.5", "--engine", "vllm", "--only", "policy")
    lines = run(capsys, "explain", "Qwen/Qwen3-8B", *words)[1].splitlines()

    assert max(map(len, lines)) <= 80
    assert min(line.find("max(1, floor(") for line in lines if "max(1, floor(" in line) <= 40
    meaning = next(number for number, line in enumerate(lines) if line.lstrip().startswith("cache_while_scored  "))
    assert len(lines[meaning + 1]) - len(lines[meaning + 1].lstrip()) == lines[meaning].index("bytes of the cache")

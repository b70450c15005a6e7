"""Policies and sharing in check files: keys, faults, what an engine lacks, and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwcalc import plan
from hwcalc.check.fields import OPTIONS, check_file_schema
from hwcalc.documents import dumps
from tests.hwcalc.check.files import PER_TOKEN, check_file, tiny_model
from tests.hwcalc.command import Capture, run

HALF = {"name": "half", "model": "./tiny", "seq": 1024, "policy": "knorm:compression_ratio=0.5"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a tiny model."""
    tiny_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judged(capsys: Capture, path: str, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the only check of a file."""
    status, out, _ = run(capsys, "check", path, "--json", *words)
    (check,) = json.loads(out)["checks"]
    return status, check


def test_every_option_is_a_key() -> None:
    """With its help, in the schema too."""
    properties = check_file_schema()["properties"]["checks"]["items"]["properties"]

    assert "policy" in OPTIONS
    for name, row in OPTIONS.items():
        assert row.help == properties[name]["description"]


@pytest.mark.parametrize(("limit", "status"), [(512, 0), (511, 1)])
def test_a_limit_under_a_policy(capsys: Capture, folder: Path, limit: int, status: int) -> None:
    """To the byte: half of the tokens of the prompt, and the result names the policy."""
    found, check = judged(capsys, check_file(folder, {**HALF, "max_cache": limit * PER_TOKEN}))

    assert found == status
    assert check["plan"]["policy"] == "knorm:compression_ratio=0.5"
    assert check["plan"]["cache_bytes"] == 512 * PER_TOKEN


def test_a_prompt_and_rules_and_defaults(capsys: Capture, folder: Path) -> None:
    """All of the keys; ``null`` and ``none`` undo a default."""
    own = {"prompt": 512, "policy_rules": "paper", "compaction": "none"}
    path = check_file(folder, {**HALF, **own, "max_cache": 768 * PER_TOKEN})
    assert judged(capsys, path)[0] == 0
    for nothing in (None, "none"):
        plain = {"name": "all", "model": "./tiny", "seq": 1024, "policy": nothing, "max_cache": 1024 * PER_TOKEN}
        status, check = judged(capsys, check_file(folder, plain, defaults={"policy": "knorm:compression_ratio=0.5"}))
        assert (status, check["plan"]["policy"], check["plan"]["cache_bytes"]) == (0, None, 1024 * PER_TOKEN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": "nonsense"}, "policy 'nonsense' is not known"),
        ({"policy": "knorm:compression_ratio=nan"}, "is not a number"),
        ({"policy": "knorm:compression_ratio=0.5,none"}, "one is taken here"),
        ({"policy": "adakv:press=" + "(" * 4000}, "brackets do not close"),
        ({"policy": "x" * 5000}, "policy must be text"),
        ({"policy": ["knorm"]}, "policy must be text"),
        ({"policy_rules": "mine"}, "Known: kvpress, paper."),
        ({"compaction": 5}, "Known: repack, fill, none."),
        ({"prompt": 0}, "prompt"),
        ({"samples": 0}, "samples"),
        ({"shared_prefix": -1}, "shared_prefix"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_fault_has_its_place(capsys: Capture, folder: Path, change: dict[str, Any], said: str) -> None:
    """Line and column, status 2, and no other check is made."""
    status, check = judged(capsys, check_file(folder, {**HALF, **change, "max_cache": 1}))

    assert status == 2
    assert said in f"{check['error']['message']} {check['error']['hint']}"
    assert check["column"] > 1


def test_rules_without_a_policy(capsys: Capture, folder: Path) -> None:
    """As on the command line."""
    check = {key: value for key, value in HALF.items() if key != "policy"}
    status, found = judged(capsys, check_file(folder, {**check, "compaction": "fill", "max_cache": 1}))

    assert (status, found["error"]["code"]) == (2, 2)
    assert "there is none" in found["error"]["message"]


def test_a_policy_that_the_engine_lacks_is_a_warning(capsys: Capture, folder: Path) -> None:
    """In the result, in the table, and as an annotation."""
    path = check_file(folder, {**HALF, "engine": "vllm", "max_cache": "1GiB"})
    status, check = judged(capsys, path)
    (warning,) = [note["message"] for note in check["warnings"] if note["code"].startswith("policy")]

    assert status == 0
    assert check["plan"]["policy_offered"] is False
    assert f"warning: {warning[:30]}" in run(capsys, "check", path)[1]
    assert warning[:30] in run(capsys, "check", path, "--format", "github")[1]


def test_a_plan_is_the_baseline_of_a_check_with_its_policy(capsys: Capture, folder: Path) -> None:
    """Not of the check without one, where both are there; a document that does not know policies is one without."""
    documents = {}
    for name, policy in {"with": "knorm:compression_ratio=0.5", "without": None}.items():
        documents[name] = plan("./tiny", seq=1024, policy=policy).to_dict()
    for name in ("prompt", "policy", "policy_rules", "compaction", "shared_prefix", "lengths", "samples", "beams"):
        del documents["without"]["request"][name]
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(dumps(document), encoding="utf-8")
    plain = {"name": "all", "model": "./tiny", "seq": 1024}
    path = check_file(folder, {**HALF, "max_cache": "1GiB"}, {**plain, "max_cache": "1GiB"})
    _, out, _ = run(capsys, "check", path, "--json", "--baseline", "with.json", "--baseline", "without.json")

    assert [
        next(judged["limit"] for judged in check["requirements"] if judged["name"] == "growth.cache_bytes")
        for check in json.loads(out)["checks"]
    ] == [512 * PER_TOKEN, 1024 * PER_TOKEN]

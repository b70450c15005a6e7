"""``kvplan policies``: the list, one policy, and their documents."""

from __future__ import annotations

import csv
import io
import json

import jsonschema
import pytest

from hwcalc import keep
from hwcalc.policies.table import policies
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

    jsonschema.validate(document, json_schema("policies"))
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

    jsonschema.validate(json.loads(json.dumps(kept.to_dict())), json_schema("keep"))


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

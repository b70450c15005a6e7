"""What CI reads: SARIF, JUnit, annotations, Markdown, CSV and the table, of checks that end in every way.

The rules of the formats are written down here from their standards; with ``KVPLAN_SCHEMAS`` naming a folder that holds the published
``sarif-schema-2.1.0.json`` and ``junit-10.xsd`` (of Jenkins' xUnit plugin), the documents are validated against those as well.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import jsonschema
import junitparser
import pytest
import sarif_pydantic
from msgspec.structs import replace
from xmlschema import XMLSchema

from hwcalc.check.result import CheckDocument, Checked, Edit, Figures, FileInfo, Fit, Judged, KeyChange, Summary
from hwcalc.documents import ErrorInfo
from hwcalc.model import Note
from hwcalc.planner.verdict import Verdict
from hwcalc.report.check import FORMATS, check_report
from hwcalc.report.schema import json_schema
from hwcalc.report.view import View

GIB: Final = 2**30
PROBABLY: Final = "probably fits: 19.00 GiB needed (18.00 GiB to 21.00 GiB)"
NASTY: Final = 'a, b: 100% | <x> & "q" ]]> \x1b[31m\x00\ufffe\u202e `c`\n::error::injected\r\nsecond'


def figures(verdict: Verdict) -> Figures:
    """20 GiB usable, 19 needed, between 18 and 21 where that is an estimate."""
    high = 19 * GIB if verdict.certain else 21 * GIB
    found = Fit(
        gpu="l4",
        gpus=1,
        usable_bytes=20 * GIB,
        needed_bytes=19 * GIB,
        needed_low_bytes=18 * GIB,
        needed_high_bytes=high,
        headroom_bytes=GIB,
        max_seq=4096,
        expected_max_seq=4096,
        max_batch=2,
        expected_max_batch=2,
        min_gpus=1,
    )
    return Figures(
        engine="vllm",
        engine_version="0.25.1",
        seq=1024,
        batch=1,
        kv_dtype="fp8",
        cache_bytes=GIB,
        bytes_per_token=2**20,
        weights_bytes=16 * GIB,
        total_bytes=17 * GIB,
        definition="engine",
        decode_tokens_per_s_bound=None,
        fit=found,
    )


def judged(name: str, *, holds: bool = True, certain: bool = True, message: str = "said") -> Judged:
    """One requirement."""
    return Judged(name=name, unit="bytes", limit=1, got=2, holds=holds, certain=certain, message=message)


LIMIT: Final = replace(
    judged("max_cache", holds=False, message=NASTY),
    line=8,
    column=5,
    edits=(Edit(yaml="seq: 17k", effect="at most 17,472 tokens"),),
)


def checked(name: str, status: str, line: int, *requirements: Judged, error: ErrorInfo | None = None) -> Checked:
    """One check."""
    verdict = None if error else {"warning": Verdict.PROBABLY, "fail": Verdict.NO}.get(status, Verdict.FITS)
    return Checked(
        name=name,
        file="ci/a file.yaml",
        line=line,
        column=5,
        model="org/name",
        status=status,
        verdict=verdict,
        source="catalog",
        revision=None,
        plan=None if verdict is None else figures(verdict),
        requirements=requirements,
        error=error,
        warnings=(Note(code="w", message="a warning"),) if status == "pass" else (),
        notes=(),
    )


@pytest.fixture
def document() -> CheckDocument:
    """Four checks: one that holds, one that probably holds, one that fails in two ways, one that could not be made."""
    failure = ErrorInfo(code=3, type="model-not-found", message=NASTY, hint="try " + "this, " * 100)
    checks = (
        checked("good", "pass", 3, judged("fits")),
        checked("close", "warning", 4, judged("fits", certain=False, message=PROBABLY)),
        checked(NASTY, "fail", 5, LIMIT, judged("growth.total_bytes", holds=False), judged("growth.cache_bytes", holds=False)),
        checked("broken", "error", 6, error=failure),
    )
    return CheckDocument(
        schema_version="1",
        kvplan_version="0.0",
        files=(FileInfo(path="ci/a file.yaml", checks=4, lock=None, lock_written=False, notes=()),),
        checks=checks,
        summary=Summary(checks=4, passed=1, warnings=1, failed=1, errors=1, strict=False, exit_code=3),
    )


def official(name: str) -> Path:
    """A published schema, where the environment names a folder of them."""
    path = Path(os.environ.get("KVPLAN_SCHEMAS", "/nowhere")) / name
    if not path.is_file():
        pytest.skip(f"KVPLAN_SCHEMAS names no folder with {name}")
    return path


# --- other people's readers -------------------------------------------------------------------------------------------


def test_sarif_is_read_by_another_program(document: CheckDocument) -> None:
    """The types of SARIF 2.1.0 by sarif-pydantic."""
    log = sarif_pydantic.Sarif.model_validate_json(check_report(document, View(format="sarif")))

    (run,) = log.runs
    assert [result.level.value for result in run.results or []] == ["warning", "error", "error", "error"]


def test_junit_is_read_by_another_program(document: CheckDocument) -> None:
    """Counts and cases by junitparser."""
    suites = junitparser.JUnitXml.fromstring(check_report(document, View(format="junit")).encode())

    assert (suites.tests, suites.failures, suites.errors) == (4, 1, 1)
    assert [len(suite) for suite in suites] == [4]


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_is_as_its_schema_says(document: CheckDocument) -> None:
    """Every key, and no other."""
    found = json.loads(check_report(document, View(format="json")))
    validator = jsonschema.Draft202012Validator(json_schema("check"))

    validator.validate(found)
    assert found["summary"]["exit_code"] == 3
    assert [check["status"] for check in found["checks"]] == ["pass", "warning", "fail", "error"]
    del found["checks"][0]["verdict"]
    assert not validator.is_valid(found)


# --- SARIF ------------------------------------------------------------------------------------------------------------

TEXT: Final = {
    "type": "object",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {"text": {"type": "string", "minLength": 1}},
}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": required | optional}


LEVEL: Final = {"enum": ["none", "note", "warning", "error"]}
# Sections of the standard, SARIF 2.1.0: 3.13 sarifLog, 3.14 run, 3.18 tool, 3.19 toolComponent, 3.20 invocation, 3.27 result,
# 3.28 location, 3.29 physicalLocation, 3.30 region, 3.49 reportingDescriptor.
SARIF: Final = _object(
    {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": _object(
                {
                    "tool": _object(
                        {
                            "driver": _object(
                                {"name": {"const": "kvplan"}},
                                version={"type": "string"},
                                rules={
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": _object(
                                        {"id": {"type": "string"}},
                                        shortDescription=TEXT,
                                        fullDescription=TEXT,
                                        defaultConfiguration=_object({}, level=LEVEL),
                                    ),
                                },
                            )
                        }
                    ),
                    "results": {
                        "type": "array",
                        "items": _object(
                            {"message": TEXT},
                            ruleId={"type": "string"},
                            ruleIndex={"type": "integer", "minimum": 0},
                            level=LEVEL,
                            locations={
                                "type": "array",
                                "items": _object(
                                    {},
                                    physicalLocation=_object(
                                        {},
                                        artifactLocation=_object({}, uri={"type": "string", "format": "uri-reference"}),
                                        region=_object(
                                            {},
                                            startLine={"type": "integer", "minimum": 1},
                                            startColumn={"type": "integer", "minimum": 1},
                                        ),
                                    ),
                                ),
                            },
                            partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
                        ),
                    },
                },
                invocations={
                    "type": "array",
                    "items": _object(
                        {"executionSuccessful": {"type": "boolean"}},
                        exitCode={"type": "integer"},
                        toolExecutionNotifications={"type": "array", "items": _object({"message": TEXT}, level=LEVEL)},
                    ),
                },
                columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            ),
        },
    }
)


def test_sarif(document: CheckDocument) -> None:
    """One result for each requirement that fails or only probably holds and for each error, at its line, with a rule that is listed."""
    found = json.loads(check_report(document, View(format="sarif")))
    jsonschema.Draft202012Validator(SARIF).validate(found)
    (run,) = found["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    results = run["results"]

    assert [(result["ruleId"], result["level"]) for result in results] == [
        ("fits", "warning"),
        ("max_cache", "error"),
        ("growth", "error"),
        ("error", "error"),
    ]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    places = [result["locations"][0]["physicalLocation"] for result in results]
    assert [place["region"]["startLine"] for place in places] == [4, 8, 5, 6]
    assert {place["artifactLocation"]["uri"] for place in places} == {"ci/a%20file.yaml"}
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 3, "toolExecutionNotifications": []}]
    assert len({result["partialFingerprints"]["kvplanCheck/v1"] for result in results}) == len(results)


def test_the_same_check_of_two_files_is_two_results(document: CheckDocument) -> None:
    """A fingerprint stays with its file, however the file is named and on whatever line the check stands."""

    def fingerprints(**change: Any) -> list[str]:
        checks = tuple(replace(check, **change) for check in document.checks)
        found = json.loads(check_report(replace(document, checks=checks), View(format="sarif")))
        return [result["partialFingerprints"]["kvplanCheck/v1"] for result in found["runs"][0]["results"]]

    here = fingerprints(file="ci/a file.yaml")
    assert fingerprints(file="./ci/a file.yaml", line=99) == here
    assert fingerprints(file=str(Path.cwd() / "ci" / "a file.yaml")) == here
    assert not set(fingerprints(file="ci/other.yaml")) & set(here)


def test_sarif_by_the_published_schema(document: CheckDocument) -> None:
    """The schema of OASIS itself."""
    schema = json.loads(official("sarif-schema-2.1.0.json").read_text(encoding="utf-8"))

    jsonschema.Draft4Validator(schema).validate(json.loads(check_report(document, View(format="sarif"))))


# --- JUnit ------------------------------------------------------------------------------------------------------------

# Element -> attributes it must have, may have, and the elements in it, as Jenkins' xUnit plugin takes them (its junit-10.xsd).
JUNIT: Final[dict[str, tuple[set[str], set[str], set[str]]]] = {
    "testsuites": (set(), {"name", "tests", "failures", "errors", "time"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors"}, {"skipped", "time"}, {"testcase"}),
    "testcase": ({"name"}, {"classname", "time"}, {"failure", "error", "system-out"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}


def test_junit(document: CheckDocument) -> None:
    """The tree that readers expect, sums that agree with it, and nothing that XML cannot hold."""
    text = check_report(document, View(format="junit"))
    root = ET.fromstring(text)  # noqa: S314 - it was written a line above
    for element in root.iter():
        must, may, inner = JUNIT[element.tag]
        assert must <= set(element.attrib) <= must | may, element.tag
        assert {child.tag for child in element} <= inner
    (suite,) = root
    cases = list(suite)

    assert root.tag == "testsuites"
    for node in (root, suite):
        assert [node.get(key) for key in ("tests", "failures", "errors")] == ["4", "1", "1"]
    assert [[child.tag for child in case if child.tag != "system-out"] for case in cases] == [[], [], ["failure"], ["error"]]
    assert PROBABLY in (cases[1].findtext("system-out") or "")
    failure = cases[2].find("failure")
    assert failure is not None
    assert failure.get("type") == "max_cache"
    assert failure.get("message") == "max_cache, growth"
    assert 'a, b: 100% | <x> & "q" ]]>' in (failure.text or "")
    assert "holds with seq: 17k (at most 17,472 tokens)\ngrew since the baseline: said, said\n" in (failure.text or "")
    assert (failure.text or "").endswith("at ci/a file.yaml:8\nat ci/a file.yaml:5")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", text)


def test_junit_by_the_published_schema(document: CheckDocument) -> None:
    """The schema of Jenkins' xUnit plugin itself."""
    path = official("junit-10.xsd")
    schema = XMLSchema(str(path))

    schema.validate(check_report(document, View(format="junit")))


# --- annotations ------------------------------------------------------------------------------------------------------


def test_annotations(document: CheckDocument) -> None:
    """One workflow command a line, errors first; what is in a message cannot start another."""
    lines = check_report(document, View(format="github")).splitlines()

    assert [line.partition(" ")[0] for line in lines] == [*("::error",) * 3, "::warning", "::warning", "::notice"]
    for line in lines[:4]:
        match = re.fullmatch(r"::(?:error|warning) file=([^,:]*),line=(\d+),col=5,title=([^,:]*)::(.*)", line)
        assert match is not None
        assert match[1] == "ci/a file.yaml"
    assert lines[4] == "::warning file=ci/a file.yaml,line=3,col=5,title=kvplan%3A good::a warning"
    assert "%25 | <x>" in lines[1]
    assert "a%2C b%3A 100%25" in lines[1]
    assert "line=8," in lines[1]
    assert lines[2].endswith("::grew since the baseline: said, said%0Aholds with seq: 17k (at most 17,472 tokens)")
    assert "\x1b" not in "".join(lines)


def test_unescaping_gives_the_message_back(document: CheckDocument) -> None:
    """By the rules of the runner: %25, %0D and %0A in a message."""
    line = check_report(document, View(format="github")).splitlines()[3]
    message = line.split("::", 2)[2].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")

    assert message == PROBABLY


def test_what_holds_is_a_remark_behind_what_fails(document: CheckDocument) -> None:
    """In every format, at its own line; ``--strict`` makes it a failure of its own."""
    unsure = replace(judged("max_itl", certain=False, message="22 ms"), line=7)
    failed = replace(judged("min_users", holds=False, message="1 user"), line=9)
    one = replace(document, checks=(checked("one", "fail", 5, unsure, failed),))
    strict = replace(one, summary=replace(one.summary, strict=True))

    lines = check_report(one, View(format="github")).splitlines()
    assert [line.partition(" ")[0] for line in lines[:2]] == ["::error", "::warning"]
    assert "line=9," in lines[0]
    assert lines[0].endswith("::min_users: 1 user")
    assert "line=7," in lines[1]
    assert lines[1].endswith("::max_itl: 22 ms; probably holds")
    for format_ in ("table", "markdown", "junit"):
        text = check_report(one, View(format=format_, width=100)).replace("\\", "")
        assert 0 < text.index("min_users: 1 user") < text.index("max_itl: 22 ms; probably holds"), format_
        assert ":9" in text, format_
        assert ":7" not in text, format_
    (run,) = json.loads(check_report(one, View(format="sarif")))["runs"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [("min_users", "error"), ("max_itl", "warning")]
    lines = check_report(strict, View(format="github")).splitlines()
    assert [line.partition(" ")[0] for line in lines[:2]] == ["::error"] * 2
    assert lines[0].endswith("::max_itl: 22 ms; --strict wants it sure")


# --- text -------------------------------------------------------------------------------------------------------------


def test_markdown_cells_stay_in_their_cells(document: CheckDocument) -> None:
    """Every row of the table has as many bars as its head; no HTML comes through."""
    text = check_report(document, View(format="markdown"))
    rows = [line for line in text.splitlines() if line.startswith("|")]

    assert len(rows) == 2 + 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}
    assert "\n  - holds with seq: 17k (at most 17,472 tokens)\n" in text
    assert "<x>" not in text.replace(r"\<x\>", "")
    assert "4 checks: 1 holds, 1 probably holds, 1 fails, 1 could not be checked" in text


def test_csv_has_a_row_for_each_requirement(document: CheckDocument) -> None:
    """Read by a reader of CSV, whatever is in the cells."""
    rows = list(csv.DictReader(io.StringIO(check_report(document, View(format="csv")))))

    assert [(row["requirement"], row["holds"], row["certain"]) for row in rows] == [
        ("fits", "true", "true"),
        ("fits", "true", "false"),
        ("max_cache", "false", "true"),
        ("growth.total_bytes", "false", "true"),
        ("growth.cache_bytes", "false", "true"),
        ("error", "false", "true"),
    ]
    assert rows[0]["total_bytes"] == str(17 * GIB)


def test_the_table(document: CheckDocument) -> None:
    """One line for each check, then why and where; what probably fits is never called a fit; --quiet leaves out what holds."""
    text = check_report(document, View(format="table", width=100))

    assert text.splitlines()[0].startswith("ok       good  fits: 19.00 GiB needed (18.00 GiB to 19.00 GiB)")
    assert "probably close" in text
    assert PROBABLY in text
    assert "at ci/a file.yaml:6" in text
    assert text.endswith("4 checks: 1 holds, 1 probably holds, 1 fails, 1 could not be checked\n")
    assert "       warning: a warning" in check_report(document, View(format="table", quiet=True))
    calm = replace(document, checks=tuple(replace(check, warnings=()) for check in document.checks))
    assert "good" not in check_report(calm, View(format="table", quiet=True))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_each_edit_has_a_line(document: CheckDocument) -> None:
    """Whoever reads down the lines meets each way out at the begin of one."""
    two = replace(LIMIT, edits=(Edit(yaml="seq: 17k", effect="at most 17,472 tokens"), Edit(yaml="gpus: 2", effect="holds 8")))
    lines = check_report(
        replace(document, checks=(checked("long", "fail", 5, two),)), View(format="table", width=80)
    ).splitlines()
    first = lines.index("         holds with seq: 17k (at most 17,472 tokens)")

    assert lines[first + 1] == "         or gpus: 2 (holds 8)"


def test_a_key_to_leave_out_reads_as_a_sentence(document: CheckDocument) -> None:
    """What the baseline did not have holds without it."""
    one = replace(LIMIT, edits=(Edit(yaml="without gpus", effect="as the baseline has it"),))
    said = check_report(replace(document, checks=(checked("long", "fail", 5, one),)), View(format="table", width=80))

    assert "         holds without gpus (as the baseline has it)\n" in said


def test_the_counts_stand_first_on_a_terminal_alone(document: CheckDocument) -> None:
    """Of an answer that is longer than a screen: a pipe gets each line once."""
    counts, long = (
        "40 checks: 40 hold",
        replace(document, checks=tuple(checked(f"n{line}", "pass", line) for line in range(1, 41))),
    )
    long = replace(long, summary=replace(document.summary, checks=40, passed=40, warnings=0, failed=0, errors=0))
    on_screen = View(detail="screen")
    screen, pipe, short = (
        check_report(of, view).splitlines() for of, view in ((long, on_screen), (long, View()), (document, on_screen))
    )

    assert (screen[0], screen[-1]) == (counts, counts)
    assert (pipe.count(counts), pipe[-1]) == (1, counts)
    assert short[0].startswith("ok ")


def test_colour_only_if_asked_for(document: CheckDocument) -> None:
    """Red for what fails, yellow for what probably holds."""
    text = check_report(document, View(format="table", color=True))

    assert "\x1b[1;91mFAIL" in text
    assert "\x1b[1;33mprobably" in text


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_ends_in_a_newline_and_is_utf8(document: CheckDocument, format_: str) -> None:
    """Whatever is in a name."""
    text = check_report(document, View(format=format_))

    assert text.endswith("\n")
    assert text.encode()


def test_what_was_changed_is_the_first_that_is_said(document: CheckDocument) -> None:
    """In each format for people; a check that does not fit has no second finding for its headroom."""
    change = KeyChange(key="seq", before="16k", after="32k", since="baseline")
    refuted = judged("fits", holds=False, message="does not fit: 30 GiB needed"), judged("headroom", holds=False)
    check = replace(checked("one", "fail", 5, *refuted), changes=(change,))
    only = replace(document, checks=(check,))
    said = "seq 16k -> 32k since the baseline"

    assert f"{said}\n         does not fit: 30 GiB needed\n         at ci/a" in check_report(
        only, View(format="table", width=100)
    )
    assert f"::{said}%0Adoes not fit: 30 GiB needed\n" in check_report(only, View(format="github"))
    (failure,) = ET.fromstring(check_report(only, View(format="junit"))).iter("failure")  # noqa: S314
    assert failure.get("message") == f"does not fit ({said})"
    assert failure.text == f"{said}\ndoes not fit: 30 GiB needed\nat ci/a file.yaml:5"
    (run,) = json.loads(check_report(only, View(format="sarif")))["runs"]
    assert [result["message"]["text"] for result in run["results"]] == [f"one: {said}; does not fit: 30 GiB needed"]
    for format_ in ("table", "markdown", "junit", "github"):
        assert check_report(only, View(format=format_, width=100)).count("30 GiB needed") == 1


@pytest.mark.parametrize("format_", FORMATS)
def test_a_finding_at_another_line_has_the_edits_too(format_: str) -> None:
    """A limit of time that fails beside the memory stands at its own line, where nobody sees the annotation of the other."""
    fits = replace(judged("fits", holds=False), line=8, edits=(Edit(yaml="gpus: 8", effect="", accepting="--max-growth 100%"),))
    late = replace(judged("max_itl", holds=False), line=9)
    check = checked("slow", "fail", 5, fits, late)
    counts = Summary(checks=1, passed=0, warnings=0, failed=1, errors=0, strict=False, exit_code=1)
    info = FileInfo(path=check.file, checks=1)
    run = CheckDocument(schema_version="1", kvplan_version="0", files=(info,), checks=(check,), summary=counts)
    told = check_report(run, View(format=format_)).count("gpus: 8")

    # Once where a reader sees both findings together.
    assert told == (2 if format_ in {"github", "sarif"} else 1)

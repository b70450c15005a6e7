"""Checks as SARIF 2.1.0 (OASIS), for code scanning: a rule for each kind of requirement, a result for each one that fails or only probably holds.

A result points to the line and column of its check. Its fingerprint is made of the file, the check's name and the rule: it does not
change when lines are added above the check.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hwcalc.check.fields import REQUIREMENTS
from hwcalc.check.result import CheckDocument, Checked, Judged
from hwcalc.documents import dumps
from hwcalc.masking import without_tokens
from hwcalc.report.check_text import in_full, reason, what_is_wrong
from hwcalc.text import clean

__all__ = ["check_sarif"]

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_OTHER_RULES: Final = {
    "lock": "The model's config is the same as in the lock beside the check file.",
    "growth.total_bytes": "Weights and cache have not grown more than allowed since the baseline.",
    "growth.cache_bytes": "The cache has not grown more than allowed since the baseline.",
    "growth.weights_bytes": "The weights have not grown more than allowed since the baseline.",
    "growth.bytes_per_token": "One token's bytes have not grown more than allowed since the baseline.",
    "baseline": "A baseline has the check, where --strict demands one.",
    "error": "The check can be made.",
}
_RULES: Final = {**{name: field.help for name, field in REQUIREMENTS.items()}, **_OTHER_RULES}


def check_sarif(document: CheckDocument) -> str:
    """The SARIF log as JSON text."""
    results = [result for check in document.checks for result in _results(check, strict=document.summary.strict)]
    used = [name for name in _RULES if any(result["ruleId"] == name for result in results)]
    for result in results:
        result["ruleIndex"] = used.index(result["ruleId"])
    driver = {
        "name": "kvplan",
        "version": document.kvplan_version,
        "rules": [
            {
                "id": name,
                "shortDescription": {"text": f"kvplan check: {name}"},
                "fullDescription": {"text": _RULES[name]},
                "defaultConfiguration": {"level": "error"},
            }
            for name in used
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": document.summary.errors == 0, "exitCode": document.summary.exit_code}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _results(check: Checked, *, strict: bool) -> list[dict[str, Any]]:
    results = [
        _result(check, item.name, in_full(item, check), level=_level(item, strict=strict)) for item in what_is_wrong(check)
    ]
    if check.error is not None:
        results.append(_result(check, "error", reason(check).replace("\n", " "), level="error"))
    return results


def _level(item: Judged, *, strict: bool) -> str:
    return "error" if strict or not item.holds else "warning"


def _result(check: Checked, rule: str, message: str, *, level: str) -> dict[str, Any]:
    from hashlib import sha256

    uri = _uri(without_tokens(check.file))
    return {
        "ruleId": rule,
        "ruleIndex": 0,
        "level": level,
        "message": {"text": f"{clean(check.name)}: {clean(message)}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": uri},
                    "region": {"startLine": check.line, "startColumn": check.column},
                }
            }
        ],
        "partialFingerprints": {"kvplanCheck/v1": sha256(f"{uri}\n{check.name}\n{rule}".encode()).hexdigest()},
    }


def _uri(path: str) -> str:
    """A path as a URI, relative to the current folder if the file lies in it, as code scanning expects."""
    if path == "-":
        return "standard-input"
    whole = Path(os.path.normpath(path))
    if whole.is_absolute():
        if not whole.is_relative_to(Path.cwd()):
            return whole.as_uri()
        whole = whole.relative_to(Path.cwd())
    return quote(whole.as_posix())

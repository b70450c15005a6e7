"""One input of the fuzzer: the words of a command line, the files beside it, and standard input."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hwcalc.formulas.record import Record

CONFIG_HOME: Final = "home"
"""The folder of a case's files that is the user's configuration: profiles lie in ``home/kvplan/profiles``."""


OUTSIDE: Final = b"what a link may lead to, and nobody may write"
"""The content of ``../outside/file`` of a case with links."""


class Case(Record):
    """What a run of the program reads. ``files`` are paths below the current folder.

    A case of the corpus may also know what comes out: the exit status, and a text on standard output or standard error.
    """

    family: str
    words: tuple[str, ...]
    files: Mapping[str, bytes]
    stdin: bytes = b""
    links: Mapping[str, str] = {}
    """Names of links, and what they lead to."""
    pipes: tuple[str, ...] = ()
    """Names of pipes that nobody writes to."""
    status: int | None = None
    says: str = ""


def write_files(case: Case, folder: Path) -> None:
    """Write the case's files, links and pipes below a folder."""
    for name, data in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if case.links:
        outside = folder.parent / "outside"
        outside.mkdir(exist_ok=True)
        (outside / "file").write_bytes(OUTSIDE)
    for name, target in case.links.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    for name in case.pipes:
        path = folder / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)


def case_document(case: Case) -> dict[str, Any]:
    """A case as JSON: text where the bytes are UTF-8, else base64."""
    return {
        "family": case.family,
        "words": [word.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace") for word in case.words],
        "files": {name: _packed(data) for name, data in case.files.items()},
        "stdin": _packed(case.stdin),
        "links": dict(case.links),
        "pipes": list(case.pipes),
    }


def case_from(document: Mapping[str, Any]) -> Case:
    """The case of :func:`case_document`."""
    return Case(
        family=document["family"],
        words=tuple(document["words"]),
        files={name: _unpacked(data) for name, data in document["files"].items()},
        stdin=_unpacked(document.get("stdin", "")),
        links=document.get("links", {}),
        pipes=tuple(document.get("pipes", ())),
        status=document.get("status"),
        says=document.get("says", ""),
    )


def read_case(path: Path) -> Case:
    """The case in a file of the corpus, or of a fault that was kept."""
    return case_from(json.loads(path.read_text(encoding="utf-8")))


def _packed(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _unpacked(data: str | Sequence[Any] | Mapping[str, Any]) -> bytes:
    """Text; base64; a text that is repeated, so that a large file is small in the corpus; or several of these.

    >>> _unpacked({"before": "[", "each": '"{n}"', "join": ", ", "times": 3, "after": "]"})
    b'["0", "1", "2"]'
    """
    if isinstance(data, str):
        return data.encode()
    if not isinstance(data, Mapping):
        return b"".join(map(_unpacked, data))
    if "base64" in data:
        return base64.b64decode(data["base64"])
    parts = (data["each"].replace("{n}", str(number)) for number in range(int(data["times"])))
    return f"{data.get('before', '')}{data.get('join', '').join(parts)}{data.get('after', '')}".encode()

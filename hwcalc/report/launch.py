"""The JSON document of ``kvplan launch``: each server as it was read, with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, ErrorInfo
from hwcalc.errors import KvplanError
from hwcalc.formulas.record import Record
from hwcalc.launch.env_file import NOTED as ENV_FILE
from hwcalc.launch.server import Server
from hwcalc.masking import without_tokens
from hwcalc.model import Note
from hwcalc.planner.result import Plan


class Launched(Record):
    """A server: what the text says of it, and its plan, or why it has none. ``flags`` of which a plan is without have the reason."""

    name: str
    line: int
    server: dict[str, Any]
    unknown: tuple[str, ...]
    unplanned: dict[str, str]
    asks: tuple[str, ...]
    plan: Plan | None
    error: ErrorInfo | None


class LaunchDocument(Record):
    """All servers of a text. ``notes`` are on the files of variables beside it."""

    schema_version: str
    kvplan_version: str
    servers: tuple[Launched, ...]
    notes: tuple[Note, ...] = ()


def launch_document(
    outcomes: Sequence[tuple[Server, Plan | None, KvplanError | None]], notes: Sequence[str] = ()
) -> LaunchDocument:
    """The document of servers with their plans or errors, and sentences on files of variables."""
    servers = tuple(
        Launched(
            name=server.name,
            line=server.line,
            server=server.to_dict(),
            unknown=tuple(map(without_tokens, server.unknown)),
            unplanned=dict(server.unplanned),
            asks=server.asks,
            plan=plan,
            error=None if error is None else ErrorInfo.of(error),
        )
        for server, plan, error in outcomes
    )
    said = tuple(Note(code=ENV_FILE, message=each) for each in notes)
    return LaunchDocument(schema_version=SCHEMA_VERSION, kvplan_version=__version__, servers=servers, notes=said)

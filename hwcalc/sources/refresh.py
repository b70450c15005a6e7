"""Write the facts of a Hub model to the user's own catalog folder, in the format of the built-in catalog."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hwcalc.errors import HubError, HubUnreachableError, ModelNotFoundError, UnwritableFileError, UsageError
from hwcalc.files import write_atomically
from hwcalc.formulas.record import Record
from hwcalc.model import Note, RawModel
from hwcalc.parsers.parse import parse
from hwcalc.profiles.catalog import SCHEMA_VERSION, ProfileError, find_entry, parse_entry, user_folder
from hwcalc.sources import resolve
from hwcalc.text import printable, shown


class Refreshed(Record):
    """The file that was written, and notes about it."""

    path: Path
    notes: tuple[Note, ...]


def refresh(model_id: str, *, revision: str | None = None, token: str | None = None, endpoint: str | None = None) -> Refreshed:
    """Read a model from the Hub and write ``<user folder>/<org>/<name>.json``.

    Models that no parser knows are refused. If the catalog has weight bytes for the model and the weight files cannot be read
    now, nothing is written. The file is written completely or not at all. Raises a subclass of
    :class:`~hwcalc.errors.KvplanError`.
    """
    folder = user_folder("models")
    if folder is None:
        raise UsageError("there is no folder for your own catalog: the system names no home.", hint="Set XDG_CONFIG_HOME.")
    raw = resolve(model_id, revision=revision, offline=False, token=token, endpoint=endpoint, weights=True, refresh=True)
    _check(raw, model_id)
    path = folder / f"{raw.id}.json"
    counted, weights = parse(raw).counted, raw.weights
    counts = None if counted is None else {"total": counted.total, "active": counted.active, "mtp": counted.mtp or None}
    entry = {
        "schema_version": SCHEMA_VERSION,
        "id": raw.id,
        "released": None,
        "recorded": datetime.now(UTC).date().isoformat(),
        "source": raw.location,
        "fidelity": f"published, revision {raw.revision}" if raw.revision else "published",
        "parameters": None if counts is None else {"definition": "exact", **counts},
        "stored_elements": None if weights is None else weights.total_elements,
        "weight_bytes": None if weights is None else dict(weights.bytes_by_dtype),
        "config": finite(raw.config),
    }
    text = json.dumps(entry, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    parse_entry(text, path)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise UnwritableFileError(
            f"{printable(str(path))} cannot be written: {error.strerror}.",
            hint="Check who may write there, or name another folder for your own catalog: XDG_CONFIG_HOME.",
        ) from error
    return Refreshed(path=path, notes=raw.notes)


def _check(raw: RawModel, model_id: str) -> None:
    """Raise an error if the description is not from the Hub, or if it lacks weight bytes that the catalog already has."""
    if raw.source in {"local", "stdin"}:
        raise UsageError(
            f"--refresh reads models from the Hub, and {shown(model_id)} is a file or folder here: nothing was written.",
            hint="Give an id, org/name. A folder or config.json is planned as it is: kvplan PATH",
        )
    for note in raw.notes:
        if note.code == "hub-unreachable":
            reason = note.message.partition(" Planned from:")[0]
            raise HubUnreachableError(f"{reason} Nothing was written.", hint="Check the network and the address, and try again.")
    if raw.source != "hub":
        raise ModelNotFoundError(
            f"{printable(model_id)} was not read from the Hub, but from {printable(raw.location)}: nothing was written.",
            hint="Check the network and HF_HUB_OFFLINE, and try again.",
        )
    unread = [note.message for note in raw.notes if note.code == "weights"]
    if unread and raw.weights is None:
        entry = None
        with suppress(ProfileError):
            entry = find_entry(raw.id)
        if entry is not None and entry.data.get("weight_bytes"):
            message = f"{unread[0]} Nothing was written: the catalog's entry has exact weight bytes, and stays."
            raise HubError(message, hint="Try again later.")


def finite(value: Any) -> Any:
    """A config for strict JSON: keys whose value is infinite or NaN are left out."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items() if not _infinite(item)}
    if isinstance(value, (list, tuple)):
        return [None if _infinite(item) else finite(item) for item in value]
    return value


def _infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

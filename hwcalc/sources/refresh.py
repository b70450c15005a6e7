"""Keep a Hub model's facts in the user's own catalog folder, in the format of the built-in one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hwcalc.errors import KvplanError, ModelNotFoundError, UsageError
from hwcalc.model import RawModel
from hwcalc.parsers import parse
from hwcalc.sources import resolve
from hwcalc.sources.facts_cache import write_atomically
from hwcalc.sources.wanted import printable
from profiles.catalog import SCHEMA_VERSION, parse_entry, user_folder

__all__ = ["refresh"]


def refresh(model_id: str, *, revision: str | None = None, token: str | None = None, endpoint: str | None = None) -> Path:
    """Read a model from the Hub and write ``<user folder>/<org>/<name>.json``; gives the path.

    The model must be one that kvplan reads: what no parser knows is not kept. Raises a subclass of
    :class:`~hwcalc.errors.KvplanError`; the file is written whole or not at all.
    """
    folder = user_folder()
    if folder is None:
        raise UsageError("there is no folder for your own catalog: the system names no home.", hint="Set XDG_CONFIG_HOME.")
    raw = resolve(model_id, revision=revision, offline=False, token=token, endpoint=endpoint, weights=True, refresh=True)
    if raw.source != "hub":
        raise ModelNotFoundError(
            f"{printable(model_id)} was not read from the Hub, but from {printable(raw.location)}: nothing was written.",
            hint="Check the network and HF_HUB_OFFLINE, and try again.",
        )
    path = folder / f"{raw.id}.json"
    text = json.dumps(_entry(raw), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    parse_entry(text, path)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise KvplanError(f"{printable(str(path))} cannot be written: {error.strerror}.") from error
    return path


def _entry(raw: RawModel) -> dict[str, Any]:
    spec = parse(raw)
    counted = spec.counted
    return {
        "schema_version": SCHEMA_VERSION,
        "id": raw.id,
        "released": None,
        "recorded": datetime.now(UTC).date().isoformat(),
        "source": raw.location,
        "fidelity": f"published, revision {raw.revision}" if raw.revision else "published",
        "parameters": None
        if counted is None
        else {"definition": "exact", "total": counted.total, "active": counted.active, "mtp": counted.mtp or None},
        "stored_elements": None if raw.weights is None else raw.weights.total_elements,
        "weight_bytes": None if raw.weights is None else dict(raw.weights.bytes_by_dtype),
        "config": _finite(raw.config),
    }


def _finite(value: Any) -> Any:
    """A config without what strict JSON cannot hold: a key whose value is infinite or no number is left out."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items() if not _infinite(item)}
    if isinstance(value, (list, tuple)):
        return [None if _infinite(item) else _finite(item) for item in value]
    return value


def _infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

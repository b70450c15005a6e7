"""What the server gives beside the page: which models there are, and the payload of one. The catalog only: no path, no network."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Final

from hwcalc.errors import KvplanError, ModelNotFoundError
from hwcalc.model import ModelSpec
from hwcalc.parsers.parse import parse
from hwcalc.profiles.catalog import find_entry, list_models
from hwcalc.sources.built_in import find_in_catalog, profile_errors
from hwcalc.sources.request import Absent, Wanted
from hwcalc.text import shown

__all__ = ["MOST_KEPT", "BusyError", "Live"]

MOST_KEPT: Final = 32
"""Payloads that are kept, of about 50 kB each."""
_SECONDS: Final = 30.0
"""How long a request waits for its turn."""


class BusyError(KvplanError):
    """Other models are being worked out, and they take long."""

    type = "busy"


class Live:
    """The models of the catalog for a page, one at a time: planning is work for one processor.

    ``build`` gives the JSON text of the payload of one model.
    """

    def __init__(self, build: Callable[[ModelSpec], str]) -> None:
        self._build = build
        self._turn = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    @cached_property
    def _models(self) -> bytes:
        rows = []
        for model_id in list_models():
            with profile_errors():
                entry = find_entry(model_id)
            if entry is not None:
                rows.append({"id": model_id, "parameters": (entry.data.get("parameters") or {}).get("total")})
        return json.dumps({"models": rows}).encode()

    def models(self) -> bytes:
        """The ids of the catalog, each with the published number of parameters, or null."""
        return self._models

    def payload(self, model_id: str) -> bytes:
        """The payload of one model. Raises :class:`~hwcalc.errors.KvplanError` if the catalog lacks it or nothing can be planned."""
        if not self._turn.acquire(timeout=_SECONDS):
            raise BusyError("other models are still being worked out.", hint="Ask again in a moment.")
        try:
            kept = self._kept.get(model_id)
            if kept is None:
                kept = self._build(_spec(model_id)).encode()
                self._kept[model_id] = kept
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(model_id)
            return kept
        finally:
            self._turn.release()


def _spec(model_id: str) -> ModelSpec:
    raw = find_in_catalog(Wanted(id=model_id))
    if isinstance(raw, Absent):
        raise ModelNotFoundError(f"the catalog has no model {shown(model_id, 60)}.", hint="List its models: kvplan models")
    return parse(raw)

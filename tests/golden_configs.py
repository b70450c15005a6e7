"""The configs from which golden rows were run, where the catalog has learned better since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hwcalc.sources import resolve
from tests.paths import GOLDEN

__all__ = ["config_as_run"]


@lru_cache(maxsize=1)
def _changed() -> Mapping[str, Mapping[str, Any]]:
    lines = (GOLDEN / "configs_as_run.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["id"]: entry["config"] for entry in map(json.loads, lines)}


def config_as_run(model_id: str) -> Mapping[str, Any]:
    """The config of this catalog model as the engine got it: the catalog's, unless it was mended after the run.

    A row stays true for the config that it came from. That this config was not the model's own is no fault of the row.
    """
    return _changed().get(model_id) or resolve(model_id).config

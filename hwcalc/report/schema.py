"""JSON Schemas of the documents, from the file in which they are kept: what builds them takes longer than most plans."""

from __future__ import annotations

import json
from typing import Any, Final

from hwcalc.data import data_file, reading_data

DOCUMENTS = (
    "plan", "explain", "diff", "compare", "sweep", "recommend", "fit", "disaggregate", "swap", "fleet", "fleet-file", "check", "check-file", "reconcile", "server", "bench", "models", "types",
    "kinds", "engines", "gpus", "instances", "dtypes", "policies", "keep", "strategies", "workload", "simulate", "simulate-compare", "tune", "launch", "probe", "receipt", "verify", "emit", "error",
)  # fmt: skip
PATH: Final = data_file(__file__, "schemas.jsonl")
"""A line for each document: its name and its schema. ``scripts/build_schemas.py`` writes it."""


def json_schema(document: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one of :data:`DOCUMENTS`. Every key is required and no other key is allowed.

    ``check-file`` is the exception: kvplan reads it, and most of its keys are optional.
    """
    start = f'["{document}", '
    with reading_data(PATH), open(PATH, encoding="utf-8") as file:
        line = next(line for line in file if line.startswith(start))
        schema: dict[str, Any] = json.loads(line)[1]
    return schema

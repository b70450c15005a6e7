"""Write the JSON Schema of every document to ``hwcalc/report/schemas.jsonl``.

    python scripts/build_schemas.py

A test compares the file with what pydantic derives from the classes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hwcalc.report.schema import DOCUMENTS, PATH
from hwcalc.report.schema_built import built_schema


def lines() -> list[str]:
    """The lines of the file."""
    return [json.dumps([document, built_schema(document)], ensure_ascii=False) for document in DOCUMENTS]


def main() -> int:
    """Write the file."""
    Path(PATH).write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
    print(f"{PATH}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

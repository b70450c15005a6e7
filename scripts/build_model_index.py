"""Write ``profiles/model_index.json`` and ``profiles/model_details.jsonl`` from the catalog. With ``--check`` only say whether it is up to date.

python scripts/build_model_index.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hwcalc import load_model
from hwcalc.errors import KvplanError
from hwcalc.library.candidates import naming_of
from hwcalc.library.indexing import shape_of
from hwcalc.profiles.catalog import find_entry, list_models
from hwcalc.profiles.model_index import DETAILS, INDEX, SEPARATOR, IndexedModel
from hwcalc.sources.built_in import facts_of


def main(arguments: list[str] | None = None) -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say whether the file is up to date, and write nothing")
    check = parser.parse_args(arguments).check
    texts = dict(zip((Path(INDEX), Path(DETAILS)), written(list_models()), strict=True))
    if not check:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return 0
    same = all(path.read_text(encoding="utf-8") == text for path, text in texts.items())
    print("up to date" if same else "the index is out of date: python scripts/build_model_index.py", file=sys.stderr)
    return 0 if same else 1


def written(ids: Iterable[str]) -> tuple[str, str]:
    """The texts of the files: one line for each model, each list of formats and each shape, and one for the details of each shape and
    placing.
    """
    shapes: dict[tuple[str, str], int] = {}
    formats: dict[str, int] = {}
    places: dict[str, int] = {}
    models = []
    for model_id in ids:
        entry = find_entry(model_id)
        if entry is None or entry.user:
            continue
        row, shape = indexed(model_id, entry.data)
        if shape is not None:
            head, rest, placing = shape
            names = formats.setdefault(_line(head["formats"]), len(formats))
            lines = _line(head | {"formats": names}), SEPARATOR.join(map(_line, (rest["about"], *rest["weights"])))
            number, placed = shapes.setdefault(lines, len(shapes)), places.setdefault(_line(placing), len(places))
            row = row._replace(shape=number, placed=placed)
        models.append(_line(row))
    parts = {"models": models, "formats": formats, "shapes": [head for head, _ in shapes]}
    index = "{" + ",".join(f'"{name}":[\n{_lines(lines)}\n]' for name, lines in parts.items()) + "}\n"
    return index, "".join(f"{line}\n" for line in (*(details for _, details in shapes), *places))


def indexed(model_id: str, data: Any) -> tuple[IndexedModel, tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None]:
    """The row of a model, without its number, and its shape; ``None`` if llama.cpp does not run it."""
    model = load_model(model_id, offline=True, headers=False)
    facts = facts_of(model_id, data)
    counted = model.parameters
    row = IndexedModel(
        id=model_id,
        model_type=model.model_type,
        parameters=facts.parameters if counted is None else counted.total,
        active=facts.active if counted is None else counted.active,
        released=facts.released,
        modality=facts.modality,
        max_position_embeddings=model.max_position_embeddings,
        architecture=model.architecture,
        shape=None,
        refused=False,
        naming=[*naming_of(model_id)],
        placed=None,
    )
    try:
        return row, shape_of(model)
    except KvplanError:
        return row._replace(refused=True), None


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lines(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

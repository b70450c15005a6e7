"""Write the catalog's files, ``profiles/models/<org>/<name>.json``, from model facts.

::

    python scripts/build_catalog.py FACTS.jsonl                        # write every model of the file
    python scripts/build_catalog.py FACTS.jsonl --check                # exit 1 if a file is missing or differs
    python scripts/build_catalog.py config.json --id org/name          # write one model from its own config.json

A line of FACTS.jsonl is ``{"model_id", "fidelity", "released", "n_params_published", "config"}``, and may have ``source`` (words, for
a config that is not the model's own file) and ``n_params_source``. ``recorded`` is the day a model's facts came in: ``--recorded``
(today), but a file whose facts did not change keeps its own. Files of models that the input does not name are left as they are, and so
are those that ``catalog_mended.yaml`` names: they were mended after they were written, for the reason that stands there. The same input
gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from hwcalc.profiles.catalog import FIELDS, SCHEMA_VERSION, built_in, is_model_id, parse_entry
from hwcalc.sources.document import with_quantization

BUILT_IN = Path(built_in("models"))
WIDTH = 120
MENDED = Path(__file__).with_name("catalog_mended.yaml")

# Clamps of the time step, with an infinite bound that strict JSON cannot write. They bear on no byte.
LEFT_OUT = frozenset({"time_step_limit"})


def pretty(value: Any, indent: int = 0, taken: int = 0) -> str:
    """JSON that people can read and that a diff shows well: what fits on a line stays on one, lists of plain values are filled.

    ``taken`` is how much of the first line is used up. Raises ``ValueError`` on NaN and infinities.
    """
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    plain = not isinstance(value, (dict, list)) or not value
    if plain or (indent and len(flat) + indent + taken <= WIDTH):
        return flat
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        names = [json.dumps(name, ensure_ascii=False) for name in value]
        lines = [f"{name}: {pretty(item, indent + 2, len(name) + 3)}" for name, item in zip(names, value.values(), strict=True)]
        return "{\n" + ",\n".join(inner + line for line in lines) + "\n" + " " * indent + "}"
    lines = []
    for item in value:
        text = pretty(item, indent + 2)
        if lines and not isinstance(item, (dict, list)) and len(inner) + len(lines[-1]) + len(text) + 3 <= WIDTH:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return "[\n" + ",\n".join(inner + line for line in lines) + "\n" + " " * indent + "]"


def ordered(value: Any, where: str = "config") -> Any:
    """The config with its keys in alphabetical order, on every level; what strict JSON cannot hold is an error."""
    if isinstance(value, dict):
        return {key: ordered(value[key], f"{where}.{key}") for key in sorted(value) if key not in LEFT_OUT}
    if isinstance(value, list):
        return [ordered(item, where) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise SystemExit(f"{where} is {value}: the catalog holds finite numbers only.")
    return value


_EXPERT = re.compile(r"(?<=\.experts)\.[0-9]+\.\w+$")
_NEVER_QUANTISED = re.compile(r"(norm|conv1d|bias|\.(weight|bias)|e_score_correction_bias)$")


def shortened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with shorter lists of modules in its quantisation: the experts of a layer are one name.

    Names of norms, convolutions and biases, which nothing quantises, are left out, and so are ModelOpt's ``config_groups`` where
    ``quantized_layers`` says the same.
    """
    section = config.get("quantization_config")
    if not isinstance(section, Mapping):
        return dict(config)
    short = {key: value for key, value in section.items() if key != "producer"}
    if isinstance(short.get("quantized_layers"), Mapping):
        short["quantized_layers"] = {_EXPERT.sub("", name): how for name, how in short["quantized_layers"].items()}
        if short.get("quant_method") == "modelopt":
            short.pop("config_groups", None)
    for key in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"):
        names = short.get(key)
        if isinstance(names, list):
            short[key] = [
                name for name in dict.fromkeys(_EXPERT.sub("", name) for name in names) if not _NEVER_QUANTISED.search(name)
            ]
    return {**config, "quantization_config": short}


def published_counts(row: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The published count, of parameters or of stored elements.

    For a checkpoint in NVFP4 the Hub counts stored elements: two weights share a byte, scales are counted too
    (Qwen3.6-27B-NVFP4: 18.2 billion elements). A round figure is then the name of the model, not a count.
    """
    count = row["n_params_published"]
    if "NVFP4" not in row["model_id"]:
        return count, None
    return None, None if count is not None and count % 10**9 == 0 else count


def entry_of(row: Mapping[str, Any], recorded: str) -> dict[str, Any]:
    """One line of facts as the catalog keeps it."""
    total, elements = published_counts(row)
    address = f"https://huggingface.co/{row['model_id']}"
    copied = f"config.json of {address}" if row["fidelity"].startswith("published") else address
    counts: dict[str, Any] | None = None
    if total:
        counts = {"total": total, "active": None, "mtp": None, "definition": "published"}
        counts |= {"source": row["n_params_source"]} if row.get("n_params_source") else {}
    entry = {
        "schema_version": SCHEMA_VERSION,
        "id": row["model_id"],
        "released": row["released"],
        "recorded": recorded,
        "source": f"{row['source']}, {copied}" if row.get("source") else copied,
        "fidelity": row["fidelity"],
        "parameters": counts,
        "stored_elements": elements,
        "weight_bytes": None,
        "config": ordered(shortened(row["config"])),
    }
    return {name: entry[name] for name in FIELDS}


def rows_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The facts of the input, checked for ids that cannot be files side by side."""
    text = arguments.input.read_text(encoding="utf-8")
    if arguments.id:
        config = json.loads(text)
        if arguments.quantization:
            config, _ = with_quantization(config, json.loads(arguments.quantization.read_text(encoding="utf-8")))
        rows = [
            {
                "model_id": arguments.id,
                "fidelity": "published",
                "released": arguments.released,
                "n_params_published": arguments.parameters,
                "config": config,
            }
        ]
    else:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    seen: dict[str, str] = {}
    for row in rows:
        model_id = row["model_id"]
        if not is_model_id(model_id):
            raise SystemExit(f"{model_id!r} is not an id: it must be org/name.")
        other = seen.setdefault(model_id.lower(), model_id)
        if other is not model_id:
            raise SystemExit(f"{other} and {model_id} differ in case only: file systems that ignore case cannot hold both.")
    return rows


def mended() -> frozenset[str]:
    """The ids whose files are kept as they are."""
    reasons: dict[str, list[str]] = yaml.safe_load(MENDED.read_text(encoding="utf-8"))
    return frozenset(model_id for ids in reasons.values() for model_id in ids)


def files_of(rows: list[dict[str, Any]], target: Path, recorded: str) -> Iterator[tuple[Path, str]]:
    """Path and text of every file; a file whose facts are the same as before keeps the day they came in."""
    for row in rows:
        path = target / f"{row['model_id']}.json"
        entry = entry_of(row, recorded)
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            if old | {"recorded": None} == entry | {"recorded": None}:
                entry["recorded"] = old.get("recorded")
        text = pretty(entry) + "\n"
        parse_entry(text, path)
        yield path, text


def main(words: list[str] | None = None) -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, help="model facts, one JSON object on each line; with --id, a config.json")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument(
        "--recorded", default=datetime.now(tz=UTC).date().isoformat(), help="the day of new facts (default: today)"
    )
    parser.add_argument("--target", type=Path, default=BUILT_IN, help="the folder to write to (default: the catalog)")
    parser.add_argument("--id", help="the input is the config.json of this model")
    parser.add_argument("--released", help="with --id: the day the model came out, YYYY-MM-DD")
    parser.add_argument("--quantization", type=Path, help="with --id: the model's hf_quant_config.json")
    parser.add_argument("--parameters", type=int, help="with --id: the published number of parameters")
    arguments = parser.parse_args(words)
    files = list(files_of(rows_of(arguments), arguments.target, arguments.recorded))
    kept = mended() if arguments.target == BUILT_IN and not arguments.id else frozenset()
    changed = {path for path, text in files if not path.exists() or path.read_text(encoding="utf-8") != text}
    of_hand = {path for path, _ in files if f"{path.parent.name}/{path.name.removesuffix('.json')}" in kept}
    differing = sorted((changed - of_hand) | {path for path in of_hand if not path.exists()})
    if arguments.check:
        for path in sorted(of_hand - changed):
            print(f"{path.parent.name}/{path.name} is as its facts say: take it out of {MENDED.name}", file=sys.stderr)
        for path in differing:
            print(f"{path.parent.name}/{path.name} differs: run scripts/build_catalog.py", file=sys.stderr)
        return 1 if differing or of_hand - changed else 0
    for path, text in files:
        if path in differing:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(f"{len(files)} models, {len(differing)} files written, {len(of_hand)} mended ones kept", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

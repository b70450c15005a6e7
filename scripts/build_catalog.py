"""Write a file of the catalog, ``profiles/models/<org>/<name>.json``, from a model's own ``config.json``.

    python scripts/build_catalog.py config.json --id org/name --released 2026-01-31 --parameters 8190735360

``recorded`` is the day the facts came in: ``--recorded`` (today), but a file whose facts did not change keeps its own. The same input gives
the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hwcalc.profiles.catalog import FIELDS, SCHEMA_VERSION, built_in, is_model_id, parse_entry
from hwcalc.sources.document import with_quantization

BUILT_IN = Path(built_in("models"))
WIDTH = 120

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


def published_counts(model_id: str, count: int | None) -> tuple[int | None, int | None]:
    """The published count, of parameters or of stored elements.

    For a checkpoint in NVFP4 the Hub counts stored elements: two weights share a byte, scales are counted too
    (Qwen3.6-27B-NVFP4: 18.2 billion elements). A round figure is then the name of the model, not a count.
    """
    if "NVFP4" not in model_id:
        return count, None
    return None, None if count is not None and count % 10**9 == 0 else count


def entry_of(
    model_id: str, config: Mapping[str, Any], *, released: str | None, count: int | None, recorded: str
) -> dict[str, Any]:
    """The model as the catalog keeps it. ``count`` is the published number of parameters."""
    total, elements = published_counts(model_id, count)
    entry = {
        "schema_version": SCHEMA_VERSION,
        "id": model_id,
        "released": released,
        "recorded": recorded,
        "source": f"config.json of https://huggingface.co/{model_id}",
        "fidelity": "published",
        "parameters": {"total": total, "active": None, "mtp": None, "definition": "published"} if total else None,
        "stored_elements": elements,
        "weight_bytes": None,
        "config": ordered(shortened(config)),
    }
    return {name: entry[name] for name in FIELDS}


def main(words: list[str] | None = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="the model's config.json")
    parser.add_argument("--id", required=True, help="its id, org/name")
    parser.add_argument("--released", help="the day the model came out, YYYY-MM-DD")
    parser.add_argument("--parameters", type=int, help="the published number of parameters")
    parser.add_argument("--quantization", type=Path, help="the model's hf_quant_config.json")
    parser.add_argument(
        "--recorded", default=datetime.now(tz=UTC).date().isoformat(), help="the day of new facts (default: today)"
    )
    parser.add_argument("--target", type=Path, default=BUILT_IN, help="the folder to write to (default: the catalog)")
    given = parser.parse_args(words)
    if not is_model_id(given.id):
        raise SystemExit(f"{given.id!r} is not an id: it must be org/name.")
    config = json.loads(given.config.read_text(encoding="utf-8"))
    if given.quantization:
        config, _ = with_quantization(config, json.loads(given.quantization.read_text(encoding="utf-8")))
    path = given.target / f"{given.id}.json"
    entry = entry_of(given.id, config, released=given.released, count=given.parameters, recorded=given.recorded)
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if old | {"recorded": None} == entry | {"recorded": None}:
        entry["recorded"] = old.get("recorded")
    text = pretty(entry) + "\n"
    parse_entry(text, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

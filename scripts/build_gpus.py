"""Write the accelerators' files, ``profiles/gpus/<id>.yaml``, from one table of facts.

::

    python scripts/build_gpus.py ACCELERATORS.yaml             # write every accelerator of the table
    python scripts/build_gpus.py ACCELERATORS.yaml --check     # exit 1 if a file is missing or differs

The table has ``retrieved`` (a date), ``sources`` (short name -> words) and ``accelerators``; each of these names its sources.
Files of accelerators that the table does not name are left as they are. The same input gives the same bytes.

``torch_total_mib`` is the lowest reading of a named device. A reading that leaves the driver nothing (within 0.1 % of what
nvidia-smi reports) comes from Windows and is kept in ``torch_total_mib_seen`` only. Where no device was read by name, the lowest
total in an out-of-memory text stands in; such a text tells the capacity, not the device.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.schema import GPU_FIELDS, Rates, parse_gpu, parse_yaml

WIDEST = 10_000
KEPT = {"gpus_per_node": "node", "host_memory": "memory"}
"""A key that is not in the table -> the name of its source in the file."""
NAMED = "a named device, by torch.cuda.get_device_properties"
BY_CAPACITY = "out-of-memory texts, matched by capacity"

# In no file: their content is in another field.
TAKEN_APART = frozenset(
    {
        "memory_total_mib_reported",
        "torch_total_memory_mib_seen",
        "torch_total_memory_bytes_seen",
        "torch_total_gib_in_oom_texts",
        "arch",
        "fp8_kv_supported",
        "gpu_usable",
        "memory_unit",
    }
)


def main(arguments: list[str] | None = None) -> int:
    """Write or check; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is missing or differs")
    parser.add_argument("--folder", type=Path, default=Path(built_in("gpus")), help="where the files are")
    options = parser.parse_args(arguments)
    table = yaml.safe_load(options.table.read_text(encoding="utf-8"))
    used = {name for entry in table["accelerators"] for name in entry["source"]} | elsewhere(table)
    if unused := set(table["sources"]) - used:
        raise SystemExit(f"sources that nothing uses: {', '.join(sorted(unused))}")
    stale = []
    for entry in table["accelerators"]:
        path = options.folder / f"{entry['id']}.yaml"
        text = written({**entry, **kept(path)}, table)
        parse_gpu(parse_yaml(text, path))
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    verb = "differ" if options.check else "written"
    print(
        f"{len(table['accelerators'])} accelerators, {len(stale)} {verb}{': ' + ', '.join(stale) if options.check and stale else ''}"
    )
    return int(options.check and bool(stale))


def kept(path: Path) -> dict[str, Any]:
    """What is not in the table stays as the file has it, and so do the sources of that."""
    data = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        name: value
        for key, source in KEPT.items()
        if key in data
        for name, value in ((key, data[key]), (source, data["source"][source]))
    }


def elsewhere(table: Mapping[str, Any]) -> set[str]:
    """Sources of what is in no accelerator's file: a Mac's limit (``profiles/hardware.yaml``)."""
    return set(table.get("apple_gpu_usable", {}).get("source", ()))


def written(entry: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """The text of one file."""
    facts = converted(entry, table)
    unknown = set(entry) - set(GPU_FIELDS) - TAKEN_APART - set(KEPT.values())
    if unknown:
        raise SystemExit(f"{entry['id']}: no place for {', '.join(sorted(unknown))}")
    source = {"source": {**facts.pop("source"), **{name: entry[name] for name in KEPT.values() if name in entry}}}
    # A note or a source is one line, so that a change of it is one line in a diff.
    body = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=WIDEST, default_flow_style=None)
    return body + yaml.safe_dump(source, sort_keys=False, allow_unicode=True, width=WIDEST, default_flow_style=False)


def converted(entry: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of one accelerator under the names of its file, in their order; a null is written, so that it is seen."""
    lowest, seen, basis = torch_total(entry)
    facts = {
        **entry,
        "schema_version": 1,
        "recorded": table["retrieved"],
        "architecture": entry["arch"],
        "compute_capability": capability(entry["arch"]),
        "memory_total_mib": entry["memory_total_mib_reported"],
        "torch_total_mib": lowest,
        "torch_total_mib_seen": seen,
        "torch_total_basis": basis,
        "tflops_dense": {name: entry["tflops_dense"].get(name) for name in Rates.model_fields},
        "fp8_kv": entry["fp8_kv_supported"],
        "note": " ".join(filter(None, (entry.get("note"), entry.get("gpu_usable")))) or None,
        "source": {name: table["sources"][name] for name in entry["source"]},
    }
    optional = {"memory_options_gb", "devices_per_package", "note", *KEPT}
    return {name: facts.get(name) for name in GPU_FIELDS if name not in optional or facts.get(name) is not None}


def torch_total(entry: Mapping[str, Any]) -> tuple[int | None, list[int] | None, str | None]:
    """What a program sees in MiB: the figure for budgets, all readings as lowest and highest, and what they rest on."""
    named = list(entry["torch_total_memory_mib_seen"] or ())
    if entry.get("torch_total_memory_bytes_seen") and not named:
        named = [entry["torch_total_memory_bytes_seen"] // 2**20]
    texts = [int(gib * 1024) for gib in entry.get("torch_total_gib_in_oom_texts") or ()]
    reported = entry["memory_total_mib_reported"]
    usable = [mib for mib in named if entry["vendor"] != "nvidia" or not reported or mib < reported * 0.999]
    seen = [min(named), max(named)] if named else None
    if usable:
        return min(usable), seen, NAMED
    if texts:
        return min(texts), [min(texts + named), max(texts + named)], BY_CAPACITY
    return None, seen, None


def capability(arch: str | None) -> str | None:
    """``9.0`` for ``sm_90``, ``10.3`` for ``sm_103``."""
    found = re.fullmatch(r"sm_([0-9]+)([0-9])", arch or "")
    return f"{found[1]}.{found[2]}" if found else None


if __name__ == "__main__":
    raise SystemExit(main())

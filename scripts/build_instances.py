"""Write the instances' files, ``profiles/instances/<cloud>/<name>.yaml``, from one table of facts.

::

    python scripts/build_instances.py INSTANCES.yaml             # write every instance of the table
    python scripts/build_instances.py INSTANCES.yaml --check     # exit 1 if a file is missing or differs

The table has ``retrieved`` (a date), ``sources`` (short name -> words) and ``instances``; each of these names its source. Files of
instances that the table does not name are left as they are. The same input gives the same bytes.

A ``fraction`` becomes an exact share: 0.1667 is 1/6. Where the note of one gives what the cloud's interface says of its memory
("API memory 2861 MiB"), that is ``memory_mib``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.hardware_file import file_name
from hwcalc.profiles.schema import INSTANCE_FIELDS, parse_instance, parse_yaml

WIDEST = 10_000
SMALLEST_SHARE = 64
"""An accelerator is cut into at most so many parts."""


def main(arguments: list[str] | None = None) -> int:
    """Write or check; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is missing or differs")
    parser.add_argument("--folder", type=Path, default=Path(built_in("instances")), help="where the files are")
    options = parser.parse_args(arguments)
    table = yaml.safe_load(options.table.read_text(encoding="utf-8"))
    unused = set(table["sources"]) - {entry["source"] for entry in table["instances"]}
    if unused:
        raise SystemExit(f"sources that nothing uses: {', '.join(sorted(unused))}")
    stale, paths = [], set()
    for entry in table["instances"]:
        path = options.folder / entry["cloud"] / f"{file_name(entry['instance'])}.yaml"
        if path in paths:
            raise SystemExit(f"{entry['instance']}: another one has the same file")
        paths.add(path)
        text = written(entry, table)
        parse_instance(parse_yaml(text, path))
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"{path.parent.name}/{path.name}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    verb = "differ" if options.check else "written"
    print(f"{len(table['instances'])} instances, {len(stale)} {verb}{': ' + ', '.join(stale) if options.check and stale else ''}")
    return int(options.check and bool(stale))


def written(entry: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    """The text of one file; a note or a source is one line, so that a change of it is one line in a diff."""
    unknown = set(entry) - {"cloud", "instance", "accelerator", "count", "fabric", "fraction", "note", "source"}
    if unknown:
        raise SystemExit(f"{entry['instance']}: no place for {', '.join(sorted(unknown))}")
    memory = re.search(r"API memory ([0-9]+) MiB", entry.get("note") or "")
    facts = {
        **entry,
        "schema_version": 1,
        "id": entry["instance"],
        "recorded": table["retrieved"],
        "fabric": entry.get("fabric"),
        "fraction": share(entry["fraction"]) if entry.get("fraction") else None,
        "memory_mib": int(memory[1]) if memory else None,
        "source": {entry["source"]: table["sources"][entry["source"]].strip()},
    }
    optional = {"fraction", "memory_mib", "note"}
    kept = {name: facts.get(name) for name in INSTANCE_FIELDS if name not in optional or facts.get(name) is not None}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=WIDEST, default_flow_style=False)


def share(fraction: float) -> str:
    """``1/6`` for 0.1667."""
    exact = Fraction(fraction).limit_denominator(SMALLEST_SHARE)
    return f"{exact.numerator}/{exact.denominator}"


if __name__ == "__main__":
    raise SystemExit(main())

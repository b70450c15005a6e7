"""Write ``profiles/compiled.jsonl`` from the fact files in YAML. With ``--check`` only say whether it is up to date.

python scripts/build_profiles.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hwcalc.profiles import engines, gpus, instances, visible
from hwcalc.profiles.compiled import COMPILED, TOP, compile_facts
from hwcalc.profiles.llamacpp import parse_llamacpp
from hwcalc.profiles.yaml_file import read_yaml

ENGINES = {"llamacpp": parse_llamacpp, "runtime": engines.parse_runtime, "vllm": engines.parse_vllm}
"""The check of each engine's file."""


def main(arguments: list[str] | None = None) -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say whether the file is up to date, and write nothing")
    check = parser.parse_args(arguments).check
    written = compile_facts(facts())
    if not check:
        COMPILED.write_bytes(written)
        return 0
    same = COMPILED.exists() and COMPILED.read_bytes() == written
    print("up to date" if same else f"{COMPILED.name} is out of date: python scripts/build_profiles.py", file=sys.stderr)
    return 0 if same else 1


def facts() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Folder, name and content of each fact file. Raises :class:`~hwcalc.profiles.catalog.ProfileError` for the first that is broken."""
    for path in gpus.BUILT_IN.glob("*.yaml"):
        file = read_yaml(path)
        gpus.parse_gpu(file)
        yield "gpus", path.stem, file.data
    for path in instances.BUILT_IN.glob("*/*.yaml"):
        file = read_yaml(path)
        instances.parse_instance(file)
        yield "instances", f"{path.parent.name}/{path.stem}", file.data
    for name, parse in ENGINES.items():
        file = read_yaml(engines.BUILT_IN / f"{name}.yaml")
        parse(file)
        yield "engines", name, file.data
    file = read_yaml(visible.BUILT_IN)
    visible.parse_hardware(file)
    yield TOP, visible.BUILT_IN.stem, file.data
    yield TOP, gpus.ALIASES.stem, gpus.parse_aliases(read_yaml(gpus.ALIASES))


if __name__ == "__main__":
    sys.exit(main())

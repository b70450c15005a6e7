"""Write ``profiles/compiled.jsonl`` from the fact files. With ``--check`` only say whether it is up to date.

python scripts/build_profiles.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from hwcalc.profiles import catalog
from hwcalc.profiles.catalog import ProfileError, built_in
from hwcalc.profiles.compiled import COMPILED, TOP, listed_facts
from hwcalc.profiles.engine_flags import EngineFlagsFile
from hwcalc.profiles.engine_hardware import EngineHardwareFile
from hwcalc.profiles.engines import BuildsFile, ClassesFile, LibraryFile, LlamacppFile, PublishedFile, RuntimeFile, VllmFile
from hwcalc.profiles.form import GpuId
from hwcalc.profiles.hardware_file import GpuFile, InstanceFile
from hwcalc.profiles.launch import LaunchWords
from hwcalc.profiles.links import LinksFile
from hwcalc.profiles.mig import MigFile
from hwcalc.profiles.schema import GlossaryFile, HardwareFile, PriceFile, check, read_yaml
from hwcalc.profiles.speed import FOLDER, SpeedClass

FORMS: Final = {"llamacpp": LlamacppFile, "runtime": RuntimeFile, "vllm": VllmFile}
"""The form of each engine's file."""
ENGINE_FORMS: Final = {
    "builds": BuildsFile,
    "classes": ClassesFile,
    "flags": EngineFlagsFile,
    "hardware": EngineHardwareFile,
    "library": LibraryFile,
    "published": PublishedFile,
}
"""The form of each file in an engine's folder."""


def main(arguments: list[str] | None = None) -> int:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say whether the file is up to date, and write nothing")
    check = parser.parse_args(arguments).check
    try:
        written = compile_facts(facts())
    except ProfileError as error:
        print(error, file=sys.stderr)
        return 1
    if not check:
        Path(COMPILED).write_bytes(written)
        return 0
    same = Path(COMPILED).exists() and Path(COMPILED).read_bytes() == written
    print("up to date" if same else f"{COMPILED} is out of date: python scripts/build_profiles.py", file=sys.stderr)
    return 0 if same else 1


def facts() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Folder, name and content of each fact file. Raises :class:`~hwcalc.profiles.catalog.ProfileError` for the first that is broken."""
    for folder, name, path, form in fact_files():
        file = read_yaml(path)
        check(file, form)
        yield folder, name, file.data
    yield TOP, "models", models()


def models() -> dict[str, tuple[Any, ...]]:
    """The columns of lists for each model of the catalog. Raises ``ProfileError`` for a broken file."""
    paths = sorted(Path(built_in("models")).glob("*/*.json"))
    entries = [catalog.parse_entry(path.read_text(encoding="utf-8"), path) for path in paths]
    return {entry["id"]: astuple(listed_facts(entry)) for entry in entries}


def fact_files() -> Iterator[tuple[str, str, Path, Any]]:
    """Folder, name, path and form of each fact file."""
    for path in Path(built_in("gpus")).glob("*.yaml"):
        yield "gpus", path.stem, path, GpuFile
    for path in Path(built_in("instances")).glob("*/*.yaml"):
        yield "instances", f"{path.parent.name}/{path.stem}", path, InstanceFile
    for path in Path(built_in("prices")).glob("*.yaml"):
        yield "prices", path.stem, path, PriceFile
    for name, form in FORMS.items():
        yield "engines", name, Path(built_in("engines", f"{name}.yaml")), form
    for name, form in ENGINE_FORMS.items():
        for path in Path(built_in("engines")).glob(f"*/{name}.yaml"):
            yield "engines", f"{path.parent.name}/{name}", path, form
    for path in Path(built_in(FOLDER)).glob("*.yaml"):
        yield FOLDER, path.stem, path, SpeedClass
    yield TOP, "hardware", Path(built_in("hardware.yaml")), HardwareFile
    yield TOP, "glossary", Path(built_in("glossary.yaml")), GlossaryFile
    yield TOP, "launch", Path(built_in("launch.yaml")), LaunchWords
    yield TOP, "links", Path(built_in("links.yaml")), LinksFile
    yield TOP, "mig", Path(built_in("mig.yaml")), MigFile
    yield TOP, "gpu_aliases", Path(built_in("gpu_aliases.yaml")), Mapping[GpuId, GpuId]


def compile_facts(facts: Iterable[tuple[str, str, Mapping[str, Any]]]) -> bytes:
    """The bytes of :data:`COMPILED`: a line of each fact file, with its folder, its name and its content."""
    lines = sorted(facts, key=lambda fact: fact[:2])
    return b"".join(
        json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n" for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())

"""The compiled fact files hold what the YAML files hold."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from msgspec.structs import astuple

from hwcalc.errors import InstallationError
from hwcalc.profiles import compiled
from hwcalc.profiles.catalog import built_in
from hwcalc.profiles.compiled import COMPILED, TOP, listed_facts, names, record, records
from hwcalc.profiles.schema import read_yaml
from tests.paths import ROOT

FOLDERS: Final = {folder: Path(built_in(folder)) for folder in ("engines", "gpus", "instances", "prices")}


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """``scripts/build_profiles.py``."""
    spec = importlib.util.spec_from_file_location("build_profiles", ROOT / "scripts" / "build_profiles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fact_files() -> Iterator[tuple[str, str, Path]]:
    """Folder, name and path of every fact file in YAML, found without the script."""
    for folder, path in FOLDERS.items():
        yield from ((folder, file.relative_to(path).with_suffix("").as_posix(), file) for file in path.rglob("*.yaml"))
    yield from ((TOP, file.stem, file) for file in Path(built_in()).glob("*.yaml"))


def test_the_script_writes_the_file_as_it_is(builder: ModuleType) -> None:
    """After a change of a fact file: ``python scripts/build_profiles.py``."""
    assert builder.compile_facts(builder.facts()) == Path(COMPILED).read_bytes()
    assert builder.main(["--check"]) == 0


def test_every_fact_file_is_in_it() -> None:
    """With its content and in the order of its keys; one by one and a folder at once; and nothing else is."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for folder, name, path in fact_files():
        found.setdefault(folder, {})[name] = read_yaml(path).data

    found[TOP]["models"] = {
        f"{path.parent.name}/{path.stem}": list(astuple(listed_facts(json.loads(path.read_text(encoding="utf-8")))))
        for path in sorted(Path(built_in("models")).glob("*/*.json"))
    }
    assert {*FOLDERS, TOP} == set(found)
    for folder, contents in found.items():
        assert list(names(folder)) == sorted(contents)
        assert dict(records(folder)) == contents
        for name, content in contents.items():
            assert json.dumps(record(folder, name)) == json.dumps(content)


def test_a_lost_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As any fact file that cannot be read."""
    monkeypatch.setattr(compiled, "COMPILED", str(tmp_path / "lost.jsonl"))
    compiled._lines.cache_clear()
    try:
        with pytest.raises(InstallationError, match=r"lost\.jsonl cannot be read"):
            names("gpus")
    finally:
        compiled._lines.cache_clear()


def test_any_text_keeps_its_place(builder: ModuleType) -> None:
    """Line ends, signs of other scripts and numbers of any size stay within their line."""
    contents: dict[str, dict[str, Any]] = {"a": {"x": "é\n\r\u2028\x85 ü"}, "b": {"x": 2**70, "y": 0.1}, "c": {}}
    written = builder.compile_facts(("f", name, content) for name, content in reversed(contents.items()))

    assert [json.loads(line) for line in written.splitlines()] == [["f", name, content] for name, content in contents.items()]


@pytest.mark.parametrize(
    "program",
    [
        "from hwcalc.profiles.gpus import built_in_gpus; built_in_gpus()",
        "from hwcalc.profiles.instances import built_in_instances; built_in_instances()",
        "from hwcalc import plan; plan('Qwen/Qwen3-32B', seq='32k', engine='vllm', gpu='rtx-4090')",
        "from hwcalc import plan; plan('Qwen/Qwen3-8B', seq='32k', engine='llamacpp', instance='g5.xlarge')",
    ],
)
def test_built_in_facts_need_neither_yaml_nor_pydantic(program: str) -> None:
    """They were checked when they were compiled, whether a plan fits or not."""
    code = f"import sys; {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    assert not {"yaml", "pydantic", "hwcalc.yaml_tree"} & set(done.stdout.split())

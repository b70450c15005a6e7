"""The command's own finder of modules: what it finds is what Python finds, and what is out of the ordinary is left to Python."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hwcalc.command import python
from tests.paths import INSIDE, ROOT

PROGRAM = """
import importlib, json, sys
import hwcalc
if sys.argv[1] == "own":
    from hwcalc.cli.finder import install
    install()
about = {}
for name in ("hwcalc.units", "hwcalc.planner", "hwcalc.formulas.tensor", "hwcalc.profiles.gpus", "hwcalc._version"):
    module = importlib.import_module(name)
    spec = module.__spec__
    about[name] = {
        "file": module.__file__, "cached": module.__cached__, "package": module.__package__, "path": list(getattr(module, "__path__", ())),
        "spec": [spec.name, spec.origin, spec.cached, spec.parent, spec.has_location, spec.submodule_search_locations],
        "code": getattr(module, "parse_tokens", len).__name__ and module.__loader__.get_code(name).co_filename,
        "loader": type(module.__loader__).__name__, "version": getattr(module, "__version__", None),
    }
print(json.dumps(about))
"""
ABOUT = ("file", "cached", "package", "path", "spec", "code", "version")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the package as it is installed, without bytecode."""
    for folder, name in INSIDE.items():
        shutil.copytree(
            ROOT / name, tmp_path / folder.replace(".", "/"), ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
    return tmp_path


Run = Callable[..., Any]


@pytest.fixture
def found(package: Path) -> Run:
    """What a process finds that uses this package, with the command's finder or Python's own."""

    def run(finder: str, *flags: str, **settings: str) -> Any:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KVPLAN", "PYTHON"))}
        done = python(*flags, "-c", PROGRAM, finder, env={**kept, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1", **settings})
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def test_it_finds_what_python_finds(found: Run, package: Path) -> None:
    """Files, bytecode, packages and names are the same, before there is bytecode and after, and beside a file that an older version left."""
    (package / "hwcalc" / "planner.py").write_text("raise ImportError\n", encoding="utf-8")
    for _ in range(2):
        own, usual = found("own"), found("usual")

        assert {name: [about[key] for key in ABOUT] for name, about in own.items()} == {
            name: [about[key] for key in ABOUT] for name, about in usual.items()
        }
        assert {about["loader"] for about in own.values()} == {"_Loader"}
        assert {about["loader"] for about in usual.values()} == {"SourceFileLoader"}


@pytest.mark.parametrize("change", ["another time", "another size", "both"])
def test_a_source_that_has_changed_is_read_again(found: Run, package: Path, change: str) -> None:
    """Bytecode counts if time and size of its source are those that it was made of."""
    source = package / "hwcalc" / "_version.py"
    before, status = found("own")["hwcalc._version"]["version"], source.stat()
    other = before.replace(before[0], "7", 1) if change == "another time" else f"{before}.post7"
    source.write_text(source.read_text(encoding="utf-8").replace(before, other), encoding="utf-8")
    later = 0 if change == "another size" else 5 * 10**9
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + later))

    assert found("own")["hwcalc._version"]["version"] == other
    assert found("own")["hwcalc._version"]["version"] == other


def test_bytecode_of_another_python_or_none_is_left_to_python(found: Run, package: Path) -> None:
    """It is made anew, as Python does it."""
    found("own")
    (kept,) = (package / "hwcalc" / "__pycache__").glob("_version.*.pyc")
    whole = kept.read_bytes()
    for broken in (b"", whole[:7], b"\0" * len(whole), whole[:4] + b"\3\0\0\0" + b"\0" * 8 + whole[16:]):
        kept.write_bytes(broken)

        assert found("own")["hwcalc._version"] == found("usual")["hwcalc._version"] | {"loader": "_Loader"}


@pytest.mark.parametrize(("flags", "settings"), [(["-O"], {}), ([], {"PYTHONPYCACHEPREFIX": "kept"})])
def test_where_python_keeps_bytecode_elsewhere_it_is_not_installed(
    found: Run, tmp_path: Path, flags: list[str], settings: dict[str, str]
) -> None:
    """Python's own finder knows where."""
    others = {name: str(tmp_path / value) for name, value in settings.items()}

    assert {about["loader"] for about in found("own", *flags, **others).values()} == {"SourceFileLoader"}


@pytest.mark.parametrize(("line", "loader"), [("main(['version'])", "SourceFileLoader"), ("main()", "_Loader")])
def test_only_the_command_installs_it(line: str, loader: str) -> None:
    """With arguments, ``main`` is a function of the library. Without, it ends the process."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(type(sys.modules['hwcalc.cli.run'].__loader__).__name__))\n"
        f"from hwcalc.cli import main\n{line}\n"
    )

    assert python("-c", program, "version").stdout.splitlines()[-1] == loader


def test_bytecode_that_comes_in_small_pieces_is_read_by_python(package: Path) -> None:
    """A file system may give less at once than was asked for: half of a file is no module."""
    program = (
        "import os\n"
        "import hwcalc.cli.finder as finder\n"
        "finder.install()\n"
        "import hwcalc.units\n"
        "whole, loader = os.read, hwcalc.units.__spec__.loader\n"
        "os.read = lambda file, size: whole(file, 1000)\n"
        "print(type(loader).__name__, loader.get_code('hwcalc.units').co_filename)\n"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KVPLAN", "PYTHON"))}
    done = python("-c", program, env={**kept, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"})

    assert done.stdout.split() == ["_Loader", str(package / "hwcalc" / "units.py")]
    assert done.stderr == ""

"""The shape of the program: no circle of files, no long file or function, no state that a call leaves behind.

Which room may import which is a contract of import-linter in ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from tests.paths import ROOT, sources

FOLDERS: Final = ("benchmarks", "formulas", "hwcalc", "profiles", "scripts", "tests")
LONGEST_FILE: Final = 420
LONGEST_FUNCTION: Final = 60
MOST_PARAMETERS: Final = 12

CALLED_BY_USERS: Final = frozenset({"hwcalc/library/plan.py:plan"})
"""Functions that users call, with a parameter for each option."""

REGISTRIES: Final = frozenset({"hwcalc.formulas.kind.KINDS"})
"""What a module adds itself to when it is imported."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MUTABLE: Final = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_MAKERS: Final = frozenset(
    {"dict", "list", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict", "WeakKeyDictionary"}
)
_CHANGES: Final = frozenset(
    [
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "appendleft",
        "remove",
        "setdefault",
        "sort",
        "update",
    ]
)


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
    return tuple(ast.walk(tree(path)))


def imported(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The package's own modules that a file imports: at its top, in its functions, and for type checking alone."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= names & known.keys()
            if names - known.keys():
                found.add(str(node.module))
    return (found & known.keys()) - {module}


def test_no_circle_of_files() -> None:
    """The files can be put in a row in which each imports only those before it."""
    known = sources()
    graph = {module: imported(module, path, known) for module, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


def files() -> list[Path]:
    """Every Python file of the repository."""
    return sorted(chain.from_iterable((ROOT / folder).rglob("*.py") for folder in FOLDERS))


def named(path: Path) -> str:
    """A file's path from the repository's root."""
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """The functions of a file, those inside others too, each with a name that can be read."""
    for node in nodes(path):
        if isinstance(node, Function):
            yield f"{named(path)}:{node.name}", node


def length(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    whole = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return whole
    text = function.body[0]
    return whole - ((text.end_lineno or 0) - text.lineno + 1)


def parameters(function: Function) -> int:
    """How many there are beside ``self``."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_long_file() -> None:
    """A file can be read in one go."""
    lengths = {named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}

    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_long_function() -> None:
    """A function fits a screen."""
    lengths = {name: length(function) for path in files() for name, function in functions(path)}

    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION} == {}


def test_no_function_of_many_parameters() -> None:
    """What belongs together is given as one value, except to functions that users call."""
    counts = {name: parameters(function) for path in files() for name, function in functions(path)}
    many = {name: count for name, count in counts.items() if count > MOST_PARAMETERS}

    assert {name: count for name, count in many.items() if name not in CALLED_BY_USERS} == {}
    assert many.keys() >= CALLED_BY_USERS


def test_no_global_statement() -> None:
    """No function assigns a module's names."""
    assert [named(path) for path in files() for node in nodes(path) if isinstance(node, ast.Global)] == []


def containers(module: ast.Module) -> set[str]:
    """Names of a module that hold something that can be changed."""
    found = set()
    for statement in module.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                names = {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                names = {name}
            case _:
                continue
        made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _MAKERS
        if made or isinstance(value, _MUTABLE):
            found |= names
    return found


def changed(module: ast.Module) -> set[str]:
    """Names of which a function of the file changes the contents, or which it hands out to be changed."""
    found = set()
    for node in chain.from_iterable(ast.walk(function) for function in ast.walk(module) if isinstance(function, Function)):
        match node:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.AugAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _CHANGES:
                found.add(name)
            case _:
                pass
    return found


def test_no_state_between_calls() -> None:
    """No module keeps what a call left behind, but for registries; caches of what is only read are ``lru_cache``."""
    found = {
        f"{module}.{name}"
        for module, path in sources().items()
        for name in containers(tree(path)) & changed(tree(path)) - local_names(tree(path))
    }

    assert found == REGISTRIES


def test_engines_do_not_change() -> None:
    """An engine is made once; no method but its constructor assigns to it, so that what was asked before leaves no trace."""
    assert [
        f"{module}.{name}"
        for module, path in sources().items()
        if module.startswith("hwcalc.engines.")
        for function in (node for node in nodes(path) if isinstance(node, Function) and not node.name.startswith("__"))
        for name in attributes_set(function)
    ] == []


def attributes_set(function: Function) -> Iterator[str]:
    """Attributes of its object, or of its class, to which a method assigns."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store() | ast.Del()):
                yield name
            case _:
                pass


def local_names(module: ast.Module) -> set[str]:
    """Names that a function binds for itself."""
    return {
        node.id
        for function in ast.walk(module)
        if isinstance(function, Function)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def test_no_paths_of_a_machine() -> None:
    """No comment or docstring names a folder of the machine on which it was written."""
    home = re.compile(r"/(?:home|Users|root|work|tmp)/\w")
    found = [f"{named(path)}:{number}" for path in files() for number, line in prose(path) if home.search(line)]

    assert found == []


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file's comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)#\s(.*)", line)
        if comment:
            yield number, comment[1]
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value

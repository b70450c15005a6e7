"""The shape of the program: no circle of files, no state that a call leaves behind, nothing that runs text.

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

REGISTRIES: Final = frozenset({"hwcalc.formulas.kind.KINDS"})
"""What a module adds itself to when it is imported."""

RUNNERS: Final = frozenset({"exec", "eval", "compile", "__import__", "execfile"})
UNPICKLERS: Final = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})
"""What runs text, and what unpickles."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MUTABLE: Final = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp, ast.GeneratorExp)
_MAKERS: Final = re.compile(
    "dict|list|set|bytearray|iter|defaultdict|deque|Counter|OrderedDict|ChainMap|fromkeys|count|cycle|SimpleNamespace|"
    "WeakKeyDictionary|WeakValueDictionary|WeakSet"
)
"""What makes something that can be changed, alone (``dict()``) or behind a point (``dict.fromkeys()``)."""

_CHANGES: Final = re.compile(
    "add|append|appendleft|clear|difference_update|discard|extend|extendleft|insert|intersection_update|move_to_end|pop|popitem|"
    "popleft|remove|reverse|rotate|setdefault|sort|subtract|symmetric_difference_update|update|__setitem__|__delitem__"
)


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
    return tuple(ast.walk(tree(path)))


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a file but those below ``if TYPE_CHECKING``, however deep."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            yield from statements(statement.orelse)
            continue
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(statement, part, []))


def imported(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The package's own modules that a file imports when it runs: at its top and in its functions."""
    found = set()
    for node in statements(tree(path).body):
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


def files_with(text: re.Pattern[str]) -> list[Path]:
    """The Python files in which a text stands, which is found sooner than in their syntax trees."""
    return [path for path in files() if text.search(path.read_text(encoding="utf-8"))]


def named(path: Path) -> str:
    """A file's path from the repository's root."""
    return path.relative_to(ROOT).as_posix()


def test_no_global_statement() -> None:
    """No function assigns a module's names."""
    written = files_with(re.compile(r"\bglobal\b"))
    assert [named(path) for path in written for node in nodes(path) if isinstance(node, ast.Global)] == []


def mutable(value: ast.expr | None) -> bool:
    """Whether an expression makes something that can be changed."""
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return _MAKERS.fullmatch(name) is not None
        case _:
            return isinstance(value, _MUTABLE)


def containers(body: list[ast.stmt]) -> set[str]:
    """Names of a module or class that hold something that can be changed."""
    found = set()
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value) if mutable(value):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if mutable(value):
                found.add(name)
            case _:
                pass
    return found


def own_imports(path: Path) -> set[str]:
    """Names that a file imports from the package, modules among them."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if str(node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0] == "hwcalc"
    }


def changed(function: Function) -> Iterator[str]:
    """Names that a function does not bind itself and of which it changes the contents."""
    bound = cache(local_names)
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=holder, ctx=ast.Store() | ast.Del()):
                pass
            case ast.Attribute(value=holder, ctx=ast.Store() | ast.Del()):
                pass
            case ast.Call(func=ast.Attribute(value=holder, attr=method)) if _CHANGES.fullmatch(method):
                pass
            case ast.Call(func=ast.Name(id="next"), args=[holder, *_]):
                pass
            case _:
                continue
        while isinstance(holder, ast.Attribute):
            holder = holder.value
        if isinstance(holder, ast.Name) and holder.id not in bound(function):
            yield holder.id


def test_no_state_between_calls() -> None:
    """No call leaves something behind in a module, except in registries. What is only read may be kept by an ``lru_cache``."""
    found = {
        f"{module}.{name}"
        for module, path in sources().items()
        if (kept := containers(tree(path).body) | own_imports(path))
        for function in nodes(path)
        if isinstance(function, Function)
        for name in kept & set(changed(function))
    }

    assert found == REGISTRIES


def test_no_part_of_the_program_can_run_text() -> None:
    """No call of ``exec`` and its kin, and no import of anything that unpickles."""
    found = []
    for module, path in sources().items():
        for node in nodes(path):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in RUNNERS:
                    found.append(f"{module}: {name}")
                case ast.Import(names=names) if UNPICKLERS & {one.name.partition(".")[0] for one in names}:
                    found.append(f"{module}: {names[0].name}")
                case ast.ImportFrom(module=str(name)) if name.partition(".")[0] in UNPICKLERS:
                    found.append(f"{module}: {name}")
                case ast.Constant(value="trust_remote_code"):
                    found.append(f"{module}: trust_remote_code")
                case _:
                    pass

    assert found == []


def test_no_state_in_classes() -> None:
    """What all objects of a class share cannot be changed: a tuple, a frozenset or a MappingProxyType."""
    assert [
        f"{module}.{node.name}.{name}"
        for module, path in sources().items()
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        for name in containers(node.body)
    ] == []


def test_no_state_in_defaults() -> None:
    """What all calls share cannot be changed."""
    assert [
        f"{module}:{node.lineno}"
        for module, path in sources().items()
        for node in nodes(path)
        if isinstance(node, Function | ast.Lambda)
        if any(mutable(default) for default in (*node.args.defaults, *node.args.kw_defaults))
    ] == []


@pytest.mark.parametrize(
    "change", ["SEEN[key] = 1", "del SEEN[key]", "SEEN.update(a=1)", "next(SEEN)", "rows.SEEN.add(key)", "rows.seen = key"]
)
def test_changes_are_seen(change: str) -> None:
    """The checks above find each way to change a container."""
    (function,) = ast.parse(f"def call(key):\n    {change}").body

    assert isinstance(function, Function)
    assert list(changed(function)) == ["rows" if "rows" in change else "SEEN"]


@pytest.mark.parametrize("value", ["{}", "dict()", "collections.OrderedDict()", "dict.fromkeys('ab')", "itertools.count()"])
def test_containers_are_seen(value: str) -> None:
    """The checks above find each way to make a container."""
    assert containers(ast.parse(f"SEEN: object = {value}\nFIXED = (1, 2)").body) == {"SEEN"}


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


def local_names(function: Function) -> set[str]:
    """Names that a function binds for itself: its parameters, and what it assigns."""
    inside = set(ast.walk(function))
    parameters_of = {node.arg for node in inside if isinstance(node, ast.arg)}
    return parameters_of | {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def test_no_paths_of_a_machine() -> None:
    """No comment or docstring names a folder of the machine on which it was written."""
    home = re.compile(r"/(?:home|Users|root|work|tmp)/\w")
    found = [f"{named(path)}:{number}" for path in files_with(home) for number, line in prose(path) if home.search(line)]

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

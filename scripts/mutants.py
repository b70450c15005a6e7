"""Which small faults in the formulas, the engines and the planner no test would notice.

A mutant is the program with a single small fault: another operator, another comparison, ``min`` for ``max``, ``and`` for ``or``, a number
off by one. The faults are those of cosmic-ray, which has to be installed beside the test extra, with pytest-cov::

    pip install cosmic-ray pytest-cov
    python scripts/mutants.py record tests/formulas tests/hwcalc/engines tests/hwcalc/planner tests/hwcalc/library  # which tests run which line
    python scripts/mutants.py run --count 500 --seed 1 --workers 2  # a random sample, a line of JSON each
    python scripts/mutants.py report

Places are drawn at random, each place with the same chance, and of each place one fault. Faults that Python's compiler does not see, such
as those in an annotation, are not drawn. Every mutant lives in a copy of the checkout: first run the tests that run the changed line, those
that run the fewest lines before the others, then up to 460 more of those tests, of each file in turn. A mutant is killed by a test that fails or by a run that does not
end. The survivors that are known, with the reason why no test could notice or need notice them, are in tests/mutants.yaml.

Exit 1 from ``report`` if more than one in twenty survives without a reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import zip_longest
from pathlib import Path
from queue import Queue
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
ROOMS: Final = ("formulas", "hwcalc/engines", "hwcalc/planner")
KEPT: Final = Path(tempfile.gettempdir()) / "kvplan-mutants"
"""Where coverage and results are kept between runs."""
COVERAGE, RESULTS, REASONS = KEPT / "coverage.db", KEPT / "results.jsonl", ROOT / "tests" / "mutants.yaml"
FIRST, MOST, SECONDS = 40, 500, 150
"""Tests of the first run, tests of the second, and the seconds after which a run is one that does not end."""
ALLOWED: Final = 0.05
NOT_FOUND: Final = 4
"""pytest's exit status for a test that is not there."""

_ARITHMETIC: Final = ("Add", "Sub", "Mul", "FloorDiv", "Mod")
_ORDER: Final = ("Lt", "LtE", "Gt", "GtE", "Eq", "NotEq")
OPERATORS: Final = (
    *(f"core/ReplaceBinaryOperator_{old}_{new}" for old in _ARITHMETIC for new in _ARITHMETIC if old != new),
    "core/ReplaceBinaryOperator_Div_Mul",
    "core/ReplaceBinaryOperator_LShift_RShift",
    "core/ReplaceBinaryOperator_BitAnd_BitOr",
    "core/ReplaceBinaryOperator_BitOr_BitAnd",
    *(f"core/ReplaceComparisonOperator_{old}_{new}" for old in _ORDER for new in _ORDER if old != new),
    "core/ReplaceComparisonOperator_Is_IsNot",
    "core/ReplaceComparisonOperator_IsNot_Is",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/NumberReplacer",
    "min for max",
)


class Mutant(NamedTuple):
    """One fault: a file, the operator, which of its occurrences in the file, and the line."""

    file: str
    operator: str
    occurrence: int
    line: int


def _operator(name: str) -> Any:
    """The operator of cosmic-ray of this name; the one that swaps ``min`` and ``max`` is our own."""
    from cosmic_ray import plugins
    from cosmic_ray.operators.operator import Operator
    from parso.python.tree import Name

    if name != "min for max":
        return plugins.get_operator(name)()
    other = {"min": "max", "max": "min", "larger": "smaller", "smaller": "larger"}

    class MinForMax(Operator):  # type: ignore[misc]  # its base has no types
        """Swaps the names, where they are called."""

        def mutation_positions(self, node: Any) -> Iterator[Any]:
            after = node.get_next_leaf() if isinstance(node, Name) and node.value in other else None
            if after is not None and after.value == "(" and node.get_previous_leaf().value not in ("def", "."):
                yield node.start_pos, node.end_pos

        def mutate(self, node: Any, index: int) -> Any:
            return Name(other[node.value], node.start_pos, prefix=node.prefix)

        @classmethod
        def examples(cls) -> tuple[()]:
            return ()

    return MinForMax()


@cache
def places(file: str) -> dict[tuple[int, int], list[Mutant]]:
    """Every place of a file that some operator changes, by line and column, with its mutants."""
    from cosmic_ray.ast import ast_nodes, get_ast

    tree, out = get_ast((ROOT / file).read_text(encoding="utf-8")), dict[tuple[int, int], list[Mutant]]()
    nodes = list(ast_nodes(tree))
    for name in OPERATORS:
        operator, occurrence = _operator(name), 0
        for node in nodes:
            for (line, column), _ in operator.mutation_positions(node):
                out.setdefault((line, column), []).append(Mutant(file, name, occurrence, line))
                occurrence += 1
    return out


def _bare(source: str) -> str | None:
    """The code without annotations and documentation, which no run reads; ``None`` if it does not compile."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Name("X", ast.Load())
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    return ast.dump(tree)


def mutated(mutant: Mutant) -> str | None:
    """The text of the file with the fault; ``None`` if it means what it meant before."""
    from cosmic_ray.mutating import mutate_code

    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    text = mutate_code(source, _operator(mutant.operator), mutant.occurrence)
    return None if text is None or _bare(text) in (None, _bare(source)) else str(text)


def sample(count: int, seed: int) -> list[Mutant]:
    """So many mutants of different places, in an order of chance that a change of one file leaves as it is for all others."""
    files = sorted(path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    sites = [(_chance(seed, file, number), file, spot) for file in files for number, spot in enumerate(sorted(places(file)))]
    out = list[Mutant]()
    for chance, file, spot in sorted(sites):
        if len(out) == count:
            break
        faults = places(file)[spot]
        mutant = faults[chance % len(faults)]
        if mutated(mutant) is not None:
            out.append(mutant)
    return out


def _chance(*words: str | int) -> int:
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "big")


class Coverage:
    """Which tests run which line."""

    def __init__(self) -> None:
        from coverage import CoverageData

        if not COVERAGE.exists():
            sys.exit(f"No record of the tests: {COVERAGE}. Run: python scripts/mutants.py record TESTS...")
        self.data = CoverageData(basename=str(COVERAGE))
        self.data.read()
        self.files = {Path(name).as_posix(): name for name in self.data.measured_files()}
        self.lines: dict[str, dict[int, list[str]]] = {}
        self.sizes: Counter[str] = Counter()
        for name in self.data.measured_files():
            by_line = self.data.contexts_by_lineno(name)
            file = next((name[name.index(room) :] for room in ROOMS if room in name), None)
            if file is not None:
                self.lines[file] = {
                    line: sorted({each.partition("|")[0] for each in tests if each}) for line, tests in by_line.items()
                }
                self.sizes.update(test for tests in self.lines[file].values() for test in tests)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that run the line, or else the nearest line before it that tests run. Those for small faults come first, then those that run few.

        A line of a module's own level runs when the module is imported, before any test: then all tests of the file count.
        """
        lines = self.lines.get(mutant.file, {})
        tests = lines.get(mutant.line) or []
        if not tests:
            near = [line for line in lines if line <= mutant.line and lines[line] and mutant.line - line < 12]
            tests = lines[max(near)] if near else sorted({test for each in lines.values() for test in each})
        return sorted(tests, key=lambda test: ("small_faults" not in test, self.sizes[test], test))


def _copied(folder: Path) -> Path:
    """A copy of the checkout's files under version control."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    files = subprocess.run(
        [shutil.which("git") or "git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, files.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def _fails(tree: Path, tests: list[str]) -> str | None:
    """The first test that fails in this tree, ``timeout`` for a run that does not end; ``None`` if all pass.

    Tests that are no longer there, or that a mutant gives another name, are left out: their absence notices nothing.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:cov",
        "-n",
        "0",
        "-q",
        "-x",
        "--no-header",
        "--tb=no",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": "default"}
    arguments = tree.parent / "tests.txt"
    arguments.write_text("\n".join(tests), encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, f"@{arguments}"], cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed and done.returncode == NOT_FOUND:
        there = [test for test in tests if not any(line.endswith(test) for line in done.stderr.splitlines())]
        if len(there) < len(tests):
            return _fails(tree, there) if there else None
    return failed[0][:200] if failed else f"exit {done.returncode}: {(done.stdout + done.stderr)[-200:]}"


def spread(tests: Sequence[str]) -> list[str]:
    """The tests, one of each file in turn: those of one file notice much the same.

    >>> spread(["a::1", "a::2", "b::1"])
    ['a::1', 'b::1', 'a::2']
    """
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return [test for row in zip_longest(*files.values()) for test in row if test is not None]


def judge(mutant: Mutant, tree: Path, coverage: Coverage) -> dict[str, Any]:
    """The verdict on a mutant: the test that failed, or none; with its changed line."""
    text, path = mutated(mutant), tree / mutant.file
    original = path.read_text(encoding="utf-8")
    tests, killer, ran = coverage.tests(mutant), None, 0
    assert text is not None
    changed = [new for old, new in zip(original.splitlines(), text.splitlines(), strict=False) if old != new]
    path.write_text(text, encoding="utf-8")
    try:
        for some in (tests[:FIRST], spread(tests[FIRST:])[: MOST - FIRST]):
            if some and killer is None:
                killer, ran = _fails(tree, some), ran + len(some)
    finally:
        path.write_text(original, encoding="utf-8")
    return {**mutant._asdict(), "now": "\n".join(changed).strip()[:300], "tests": len(tests), "ran": ran, "killed_by": killer}


def record(tests: list[str]) -> None:
    """Run tests once and keep which of them run which line."""
    KEPT.mkdir(exist_ok=True)
    settings = KEPT / "coveragerc"
    settings.write_text(f"[run]\nsource = {','.join(ROOMS)}\ndata_file = {COVERAGE}\n", encoding="utf-8")
    options = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *tests, *options], cwd=ROOT, check=False)


def run(count: int, seed: int, workers: int) -> None:
    """Judge a sample and append a line for each mutant. Those that stand there already are left out."""
    coverage, chosen = Coverage(), sample(count, seed)
    have = {(each["file"], each["operator"], each["occurrence"]) for each in _results()}
    chosen = [each for each in chosen if each[:3] not in have]
    folders: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        for number in range(workers):
            folders.put(_copied(Path(scratch) / str(number)))

        def work(mutant: Mutant) -> dict[str, Any]:
            tree = folders.get()
            try:
                return judge(mutant, tree, coverage)
            finally:
                folders.put(tree)

        with ThreadPoolExecutor(workers) as pool, RESULTS.open("a", encoding="utf-8") as out:
            for number, result in enumerate(pool.map(work, chosen), 1):
                print(json.dumps(result), file=out, flush=True)
                state = "survives" if result["killed_by"] is None else "killed"
                print(f"{number}/{len(chosen)} {state} {result['file']}:{result['line']} {result['now'][:90]}", flush=True)


def _results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []


def report() -> int:
    """The share that is killed, and each survivor without a reason."""
    import yaml

    reasons = {(each["file"], each["now"]) for each in yaml.safe_load(REASONS.read_text(encoding="utf-8"))}
    results = _results()
    alive = [each for each in results if each["killed_by"] is None]
    left = [each for each in alive if (each["file"], each["now"]) not in reasons]
    print(
        f"{len(results)} mutants: {len(results) - len(alive)} killed, {len(alive) - len(left)} with a reason, {len(left)} survive"
    )
    for each in left:
        print(f"{each['file']}:{each['line']} ({each['operator']}, {each['ran']} of {each['tests']} tests)\n    {each['now']}")
    return int(len(left) > ALLOWED * len(results))


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="run tests and keep which lines they run").add_argument("tests", nargs="+")
    one = commands.add_parser("run", help="judge a random sample")
    one.add_argument("--count", type=int, default=500)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--workers", type=int, default=2)
    commands.add_parser("report", help="what was killed and what survives")
    given = parser.parse_args()
    if given.command == "record":
        record(given.tests)
    elif given.command == "run":
        run(given.count, given.seed, given.workers)
    return report() if given.command == "report" else 0


if __name__ == "__main__":
    sys.exit(main())

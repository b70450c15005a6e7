"""Regular expressions that are compiled late: what they do, and that all of the program's are expressions."""

from __future__ import annotations

import copy
import re
from importlib import import_module
from pkgutil import walk_packages

import pytest

import hwcalc
from hwcalc.patterns import LazyPattern, pattern
from tests.hwcalc.command import python

EVERY = {
    f"{name}.{variable}": value
    for name in (found.name for found in walk_packages(hwcalc.__path__, "hwcalc.") if not found.name.endswith("__main__"))
    if not name.startswith(("hwcalc.probe", "hwcalc.plot"))
    for variable, value in vars(import_module(name)).items()
    if isinstance(value, LazyPattern)
}


@pytest.mark.parametrize("name", EVERY)
def test_every_expression_of_the_program_is_one(name: str) -> None:
    """It is compiled by its first use, which may be rare."""
    late = EVERY[name]

    assert re.compile(late.pattern, late.flags).pattern == late.pattern


def test_it_is_what_python_compiles() -> None:
    """Its text, its flags, and what it finds, the second time too."""
    early, late = re.compile(r"(a+)b", re.IGNORECASE), pattern(r"(a+)b", re.IGNORECASE)

    for _ in range(2):
        assert (late.pattern, late.flags, late.groups) == (early.pattern, early.flags, early.groups)
        assert [found.span() for found in late.finditer("xAABaab")] == [found.span() for found in early.finditer("xAABaab")]


def test_nothing_is_compiled_before_it_is_used() -> None:
    """An expression that is wrong is no error until then; neither is a question for something that no expression has."""
    late = pattern("(")

    assert not hasattr(late, "__deepcopy__")
    assert copy.copy(late) is not late
    with pytest.raises(re.error):
        late.match("")


PROGRAM = """
import re, sys, threading, time
from hwcalc.patterns import late_patterns
before, beside = re.compile, threading.Event()
if sys.argv[1] == "beside another thread":
    threading.Thread(target=beside.wait).start()
with late_patterns():
    found = re.compile("[0-9]+")
beside.set()
print(type(found).__name__, found.search("a80b")[0], re.compile is before)
"""


@pytest.mark.parametrize(("where", "kind"), [("alone", "LazyPattern"), ("beside another thread", "Pattern")])
def test_what_is_imported_compiles_late_too(where: str, kind: str) -> None:
    """In a process of its own, because the tests may have threads; the expression does the same in both."""
    done = python("-c", PROGRAM, where)

    assert (done.stdout.split(), done.stderr) == ([kind, "80", "True"], "")


def test_a_check_file_compiles_no_expression_of_the_library() -> None:
    """Events come from libyaml, which has its own."""
    text = (
        "from hwcalc.yaml_tree import plain_value, read_tree\n"
        "read = plain_value(read_tree('a: [1, 0.5, b]'))\n"
        "from yaml.reader import Reader\nprint(read, type(Reader.NON_PRINTABLE).__name__, list(vars(Reader.NON_PRINTABLE)))\n"
    )
    done = python("-c", text)

    assert (done.stdout, done.stderr) == ("{'a': [1, 0.5, 'b']} LazyPattern ['_text', '_flags']\n", "")

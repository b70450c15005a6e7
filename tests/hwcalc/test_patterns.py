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
    # As modules do with what they need while they are imported.
    assert found.match("80")
beside.set()
print(type(found).__name__, found.search("a80b")[0], re.compile is before)
"""


@pytest.mark.parametrize(("where", "kind"), [("alone", "LazyPattern"), ("beside another thread", "Pattern")])
def test_what_is_imported_compiles_late_too(where: str, kind: str) -> None:
    """In a process of its own, because the tests may have threads; the expression does the same in both."""
    done = python("-c", PROGRAM, where)

    assert (done.stdout.split(), done.stderr) == ([kind, "80", "True"], "")


def test_a_check_file_compiles_no_expression_of_the_library() -> None:
    """Events come from libyaml, which has its own. Who calls the library instead of the command has PyYAML as it is."""
    told = "from yaml.reader import Reader\nprint(type(Reader.NON_PRINTABLE).__name__, len(getattr(Reader.NON_PRINTABLE, '__dict__', {})))"
    command = f"from hwcalc.cli import main\nmain(['check', 'tests/readme/kvplan.yaml', '--quiet', '--json'])\n{told}"
    library = f"from hwcalc import check\ncheck('tests/readme/kvplan.yaml')\n{told}"

    # Beside its text and its flags, a late expression keeps what was asked of it.
    assert python("-c", command).stdout.splitlines()[-1] == "LazyPattern 2"
    assert python("-c", library).stdout.splitlines()[-1] == "Pattern 0"


def test_json_is_the_same_with_late_expressions() -> None:
    """Its part in C needs few of them; the part in Python, which stands in where that is missing, finds the others when it asks."""
    program = (
        "from hwcalc.patterns import late_patterns\n"
        "with late_patterns():\n"
        "    import json\n"
        "from json import decoder, encoder, scanner\n"
        "scan = scanner.py_make_scanner(json.JSONDecoder())\n"
        "text = encoder.py_encode_basestring_ascii('\\u00e9\"\\n')\n"
        "print(type(scanner.NUMBER_RE).__name__, scan('[1.5e3, -2]', 0)[0], text, json.loads(text) == '\\u00e9\"\\n')\n"
    )
    done = python("-c", program)

    assert (done.stdout.strip(), done.stderr) == ('LazyPattern [1500.0, -2] "\\u00e9\\"\\n" True', "")

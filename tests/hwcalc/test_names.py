"""What ``import hwcalc`` gives: every public name, each imported when it is asked for."""

from __future__ import annotations

import json

import pytest

import hwcalc
from tests.hwcalc.command import python


@pytest.mark.parametrize("name", hwcalc.__all__)
def test_public_name(name: str) -> None:
    """Each is there, also before anything has imported its module."""
    done = python("-c", f"import hwcalc; print(hwcalc.{name}); from hwcalc import {name}")

    assert (done.returncode, done.stderr) == (0, "")


def test_parts_are_names_too() -> None:
    """``hwcalc.errors`` needs no import of its own."""
    done = python("-c", "import hwcalc; print(hwcalc.errors.ConfigError.__name__, hwcalc.units.parse_bytes('1KiB', 'x'))")

    assert (done.stdout.split(), done.stderr) == (["ConfigError", "1024"], "")


def test_no_such_name() -> None:
    """It is an error of the usual kind, without a search for names that only tools ask for."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hwcalc.nothing
    with pytest.raises(AttributeError, match="no attribute '_repr_html_'"):
        _ = hwcalc._repr_html_


def test_names_are_listed() -> None:
    """Completion in a notebook sees them, and nothing that the package uses itself."""
    done = python("-c", "import hwcalc, json; print(json.dumps(dir(hwcalc)))")

    assert json.loads(done.stdout) == sorted(hwcalc.__all__)

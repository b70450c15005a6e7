"""Names of typing without typing: each module must load with what stands for them in a command, and see typing itself in the library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hwcalc.cli import unread_hints
from hwcalc.formulas import hints


def _printed(program: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_what_stands_in_has_the_same_names() -> None:
    """A module that imports a name must find it in a command too."""
    assert set(hints.__all__) <= set(vars(unread_hints))


def test_what_stands_in_does_nothing() -> None:
    """Every name can be imported without typing; brackets drop what is in them, and a cast gives the value."""
    program = (
        "import sys\n"
        "from hwcalc.cli.unread_hints import stand_in\n"
        "stand_in()\n"
        f"from hwcalc.formulas.hints import {', '.join(hints.__all__)}\n"
        "class Counts(Protocol[TypeVar('T', bound=int)]): ...\n"
        "class Few(Counts[int], Protocol): count: ClassVar[Final[int]]\n"
        "Use: TypeAlias = Literal['always', 'last']\n"
        "@overload\n"
        "def twice(of: int) -> int: ...\n"
        "@dataclass_transform(frozen_default=True)\n"
        "class Point: x: Any\n"
        "print(cast('int', 3), twice.__name__, Point.__name__, Few.__mro__[1].__name__, TYPE_CHECKING, 'typing' in sys.modules)\n"
    )

    assert _printed(program) == ["3", "twice", "Point", "Counts", "False", "False"]


@pytest.mark.parametrize("before", ["pass", "from hwcalc.cli import main; main(['--version'])"])
def test_the_library_has_the_names_of_typing(before: str) -> None:
    """Whoever imports typing after the library may evaluate its annotations, as pydantic does: Any is anything there, no class."""
    program = (
        f"{before}\n"
        "from hwcalc.engines.request import Family\n"
        "from hwcalc.engines.devices import WeightRead\n"
        "import typing\n"
        "print(typing.get_type_hints(Family)['family'])\n"
        "print(typing.get_origin(typing.get_type_hints(WeightRead)['use']))\n"
    )

    assert _printed(program)[-3:] == ["dict[collections.abc.Hashable,", "typing.Any]", "typing.Literal"]


def test_nothing_stands_in_where_typing_is_loaded() -> None:
    """A program that has imported it and then runs the command keeps its names."""
    unread_hints.stand_in()

    assert sys.modules["hwcalc.formulas.hints"] is hints

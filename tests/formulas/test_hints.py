"""Names of typing without typing: each module must load with what stands in for them, and see typing itself where that is loaded."""

from __future__ import annotations

import subprocess
import sys
import typing

import pytest

from hwcalc.formulas import hints


@pytest.mark.parametrize("name", sorted(set(hints.__all__) - {"Generic", "TYPE_CHECKING"}))
def test_names_are_those_of_typing_where_it_is_loaded(name: str) -> None:
    """A program that uses the library may evaluate our annotations."""
    assert getattr(hints, name) is getattr(typing, name)


def test_what_stands_in_does_nothing() -> None:
    """Every name can be imported without typing; brackets drop what is in them, and a cast gives the value."""
    program = (
        "import sys\n"
        "from hwcalc.formulas.hints import *\n"
        "class Counts(Protocol[TypeVar('T', bound=int)]): ...\n"
        "class Few(Counts[int], Protocol): count: ClassVar[Final[int]]\n"
        "Use: TypeAlias = Literal['always', 'last']\n"
        "@overload\n"
        "def twice(of: int) -> int: ...\n"
        "@dataclass_transform(frozen_default=True)\n"
        "class Point: x: Any\n"
        "print(cast('int', 3), twice.__name__, Point.__name__, Few.__mro__[1].__name__, TYPE_CHECKING, 'typing' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["3", "twice", "Point", "Counts", "False", "False"]

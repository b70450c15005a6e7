"""What somebody who adds an engine has to read: about fifteen names of an engine, fewer of a deployment, about twenty of an occupancy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hwcalc.engines import ENGINES, find_engine
from hwcalc.engines.deployment import Deployment, Occupancy
from hwcalc.engines.engine import Engine

_GENERAL = ("hwcalc.engines.deployment", "hwcalc.engines.engine", "hwcalc.engines.general", "hwcalc.engines.pooled")
"""Modules that answer for every engine."""


def _own_classes(base: type) -> Iterator[type]:
    """The classes of all engines that derive from this one."""
    for name in ENGINES:
        engine = find_engine(name)[0]
        for one in {Engine: type(engine), Deployment: engine.deployment, Occupancy: engine.occupancy}[base].__mro__:
            if issubclass(one, base) and one.__module__ not in _GENERAL:
                yield one


@pytest.mark.parametrize(("base", "most"), [(Engine, 16), (Deployment, 13), (Occupancy, 25)])
def test_what_engines_answer(base: type, most: int) -> None:
    """Names of the class to which some engine gives an answer of its own; what is the subject of one engine is an object of its own."""
    names = {name for name in (*vars(base), *base.__annotations__) if not name.startswith(("__", "_abc"))}
    answered = {name for one in _own_classes(base) for name in vars(one)} & names
    assert len(answered) <= most, sorted(answered)

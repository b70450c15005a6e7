"""Dialects of logs: one module each, with what it looks for, a parser, and how its figures are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from hwcalc.errors import UsageError
from hwcalc.formulas.frozen import frozen, replace
from hwcalc.reconcile.dialects import prometheus, transformers, vllm, vllm_rows, vllm_settings

if TYPE_CHECKING:
    from hwcalc.engines.base import Engine, Opened
    from hwcalc.model import Note
    from hwcalc.reconcile.facts import Facts
    from hwcalc.reconcile.rows import Row

__all__ = ["DIALECTS", "Dialect", "Parser", "find_dialect"]


class Parser(Protocol):
    """Takes a log line by line."""

    facts: Facts
    starts: int

    def feed(self, number: int, text: str) -> None:
        """One line."""


@frozen
class Dialect:
    """How one program writes.

    ``sought`` are lines that it is known by, ``inputs`` the plan's keywords and engine options that a log states, ``compare`` the rows
    and what could not be compared, ``overheads`` what a calibration keeps, ``batch_shape`` the conditions that it holds under. ``online_format`` is the weight
    format that the engine was told to make of plain weights, ``states_version`` whether a start names the engine's version.
    """

    name: str
    title: str
    engine: str
    sought: tuple[str, ...]
    parser: Callable[[], Parser]
    inputs: Callable[[Facts], tuple[dict[str, object], dict[str, str]]]
    compare: Callable[[Facts, Engine, Opened, float], tuple[list[Row], list[Note]]]
    overheads: Callable[[Facts, Opened], dict[str, int]]
    batch_shape: Callable[[Opened], tuple[int, int]]
    online_format: Callable[[Facts], str | None] = lambda _: None
    states_version: bool = False


_VLLM: Final = Dialect(
    name=vllm.NAME,
    title=vllm.TITLE,
    engine="vllm",
    sought=vllm.SOUGHT,
    parser=vllm.VllmParser,
    inputs=vllm_settings.plan_inputs,
    compare=vllm_rows.compare,
    overheads=vllm_rows.overheads,
    batch_shape=vllm_rows.batch_shape,
    online_format=vllm_settings.online_format,
    states_version=True,
)
DIALECTS: Final = (
    _VLLM,
    # A running server states the same figures in other words.
    replace(
        _VLLM,
        name=prometheus.NAME,
        title=prometheus.TITLE,
        sought=prometheus.SOUGHT,
        parser=prometheus.PrometheusParser,
        inputs=prometheus.plan_inputs,
    ),
    Dialect(
        name=transformers.NAME,
        title=transformers.TITLE,
        engine="transformers",
        sought=transformers.SOUGHT,
        parser=transformers.TransformersParser,
        inputs=transformers.plan_inputs,
        compare=transformers.compare,
        overheads=transformers.overheads,
        batch_shape=transformers.batch_shape,
    ),
)
"""In the order in which a log that two of them know equally well is taken for one."""


def find_dialect(name: str) -> Dialect:
    """The dialect of this name. Raises :class:`~hwcalc.errors.UsageError`."""
    for dialect in DIALECTS:
        if dialect.name == name.strip().lower():
            return dialect
    known = ", ".join(dialect.name for dialect in DIALECTS)
    raise UsageError(f"--dialect {name[:40]!r} is not known.", hint=f"Known: {known}.")

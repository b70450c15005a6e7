"""The requests that users send to a server, with their lengths, arrivals and common prefixes, made from words or read from a trace.

Nothing here knows an engine. ``request`` has the records, and puts requests in order. ``made`` makes a workload of words, with the
distributions of ``lengths``; ``trace`` reads files of the ``formats`` that are published. ``opening`` takes any of them, and plain rows.

The package is also the function: ``hwcalc.workload(...)`` is :func:`hwcalc.workload.opening.workload`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.workload.opening", "workload")

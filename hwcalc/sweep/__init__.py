"""Many plans at once: a grid of models, lengths, batches, formats, accelerators and ranks, as rows for a spreadsheet or a notebook.

If an engine's cache is a sum of terms that are linear in positions and batch (:mod:`hwcalc.sweep.curves`), NumPy evaluates whole blocks
of the grid at once. All other points are planned one by one. Both ways give the same numbers. Only the modules of this room import
NumPy.

The package is also the function: ``hwcalc.sweep(...)`` is :func:`hwcalc.sweep.rows.sweep`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.sweep.rows", "sweep")

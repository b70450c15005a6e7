"""Many plans at once: a grid of models, lengths, batches, formats, accelerators and ranks, as rows for a spreadsheet or a notebook.

Where an engine's cache is a sum of terms that are each linear in positions and batch (:mod:`hwcalc.sweep.curves`), a whole block
of the grid is evaluated with NumPy; every other point is planned by itself. Both give the same numbers. NumPy is imported by the
modules of this folder and by nothing else of the program.

The package is also the function: ``hwcalc.sweep(...)`` is :func:`hwcalc.sweep.rows.sweep`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.sweep.rows", "sweep")

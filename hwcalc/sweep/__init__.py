"""Many plans at once: a grid of models, lengths, batches, formats, accelerators and ranks, as rows for a spreadsheet or a notebook.

A model is deployed once for each setting, and the form of its memory (:mod:`hwcalc.engines.forms`) is evaluated over all lengths and batches
at once, with NumPy (:mod:`hwcalc.sweep.setting`). A setting without a form, or with numbers beyond 64 bits, is planned point by point, and so
is a small grid. All ways give the same numbers. Only the modules of this package import NumPy.

``grid`` has the lists of values and the blocks of rows, ``setting`` plans one model in one setting at all lengths and batches, ``family``
evaluates a form over them, ``rows`` goes through the grid, and ``writers`` writes CSV, JSON and Parquet.

The package is also the function: ``hwcalc.sweep(...)`` is :func:`hwcalc.sweep.rows.sweep`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.sweep.rows", "sweep")

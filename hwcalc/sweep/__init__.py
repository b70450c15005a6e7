"""Many plans at once: a grid of models, lengths, batches, formats, accelerators and ranks, as rows for a spreadsheet or a notebook.

What holds of a setting at every length and batch is worked out once, and the engine's own form (:mod:`hwcalc.engines.forms`) is called with
arrays of them. A setting without a form is planned point by point, and so are few points, for which NumPy would not be worth its import.
Both ways give the same rows. No other room plans with NumPy.

The package is also the function: ``hwcalc.sweep(...)`` is :func:`hwcalc.sweep.rows.sweep`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.sweep.rows", "sweep")

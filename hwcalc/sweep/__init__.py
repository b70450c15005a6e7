"""Many plans at once: a grid of models, lengths, batches, formats, accelerators and ranks, as rows for a spreadsheet or a notebook.

A request is opened once for each setting, and the engine's own form of its memory (:mod:`hwcalc.engines.forms`) is evaluated over all lengths
and batches at once, with NumPy (:mod:`hwcalc.sweep.setting`). What has no form, or numbers beyond 64 bits, is planned point by point, and so
are few points. All ways give the same numbers. Only the modules of this room import NumPy.

The package is also the function: ``hwcalc.sweep(...)`` is :func:`hwcalc.sweep.rows.sweep`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.sweep.rows", "sweep")

"""Pictures of a model's memory, in a file or in the terminal.

:mod:`hwcalc.plot.series` has the numbers, each of which is a plan's; ``figures`` draws them with matplotlib, ``terminal`` with plotext.
``build`` makes the picture of several models.

The package is also the function: ``hwcalc.plot(...)`` is :func:`hwcalc.plot.build.plot`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.plot.build", "plot")

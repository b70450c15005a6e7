"""The gate for CI: a file of models, requests and requirements, judged one by one.

:mod:`~hwcalc.check.tree` reads YAML from strangers, :mod:`~hwcalc.check.file` makes checks of it, :mod:`~hwcalc.check.judge` compares
a plan with what is required, :mod:`~hwcalc.check.lock` and :mod:`~hwcalc.check.baseline` remember what was true before, and
:mod:`~hwcalc.check.run` does it all and gives a :class:`~hwcalc.check.result.CheckDocument`.

The package is also the function: ``hwcalc.check(...)`` is :func:`hwcalc.check.run.check`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.check.run", "check")

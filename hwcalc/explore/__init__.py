"""One page that opens anywhere: a model's memory to look at, without a request to anywhere.

Python hands the page each engine's memory in one normal form (:mod:`hwcalc.engines.forms`); a small evaluator in ``page/forms.js`` draws
it. The page repeats no rule of a cache.

``build`` makes the page and its payload, of the parts of ``runs`` (the choices, and the forms for each), ``hand`` (dimensions by hand, as
polynomials) and ``sections`` (the figures beside the equation). ``serve`` is a server for one reader on this machine.

The package is also the function: ``hwcalc.explore(...)`` is :func:`hwcalc.explore.build.explore`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.explore.build", "explore")

"""One page that opens anywhere: a model's memory to look at, without a request to anywhere.

Python hands the page each engine's memory in one normal form (:mod:`hwcalc.engines.forms`); a small evaluator in ``page/forms.js`` draws
it. The page repeats no rule of a cache.
"""

from __future__ import annotations

"""The gate for CI: a file lists models, requests and requirements, and each check is judged.

:mod:`~hwcalc.check.file` reads untrusted YAML and makes checks of it, :mod:`~hwcalc.check.deployed` makes them (:mod:`~hwcalc.check.server`) of the servers of commands
and manifests, which :mod:`~hwcalc.check.mend` mends, :mod:`~hwcalc.check.judge` compares a plan with its requirements,
:mod:`~hwcalc.check.models` keeps the facts about models, :mod:`~hwcalc.check.baseline` compares with earlier runs, and
:mod:`~hwcalc.check.run` runs all of it and returns a :class:`~hwcalc.check.result.CheckDocument`. :mod:`~hwcalc.check.command` reads the files that are named first.

The package is also the function: ``hwcalc.check(...)`` is :func:`hwcalc.check.command.check`.
"""

from __future__ import annotations

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.check.command", "check")

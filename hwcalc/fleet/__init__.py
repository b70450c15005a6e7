"""Several models on nodes of unlike kinds, at the least cost. The package is also a function: ``hwcalc.fleet("fleet.yaml")``."""

from hwcalc.packages import make_callable

make_callable(__name__, "hwcalc.fleet.run", "fleet")

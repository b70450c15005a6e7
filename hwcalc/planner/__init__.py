"""From a model and a request to a :class:`~hwcalc.planner.result.Plan`."""

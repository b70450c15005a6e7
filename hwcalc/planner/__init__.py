"""Turns a model and a request into a :class:`~hwcalc.planner.result.Plan`."""

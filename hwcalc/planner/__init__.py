"""Turns a model and a request into a :class:`~hwcalc.planner.result.Plan`.

``options`` has the options of a plan, each said once (``values``: their types, ``command_line``: the line that repeats a plan). ``context``
fills in every default and opens the request; ``plan`` adds up the answer of ``result``, with the weights of ``planned_weights``, the
``policy``, the ``sharing``, the ``speed`` (``speed_work``: bytes and operations of a step), and the ``fit``. The ``fit`` asks ``solve`` (the
longest, the most, the fewest), ``verdict`` (its words) and ``advice`` (what would make it fit). ``fitting`` finds the largest format that
fits, ``recommend`` the hardware (``layouts``: the parallel sizes that people run), ``diff`` compares two models. ``strategies``
(``strategies_cost``, ``strategies_result``) sets ways of allocating a cache side by side, and ``runnables`` is the answer of ``kvplan fit``.
"""

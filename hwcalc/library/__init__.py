"""The functions of the library: plans, recommendations, explanations and comparisons as typed values.

A module is named after its function: ``load``, ``plan``, ``recommend``, ``explain``, ``compare``, ``fit``, ``keep``, ``strategies`` and
``blocks`` (what comes back of a paged cache). ``lists`` reads lists of numbers, words and models for them. An explanation is made of the
parts of ``explained``: ``explain_memory`` and ``explain_policy`` write its sections, ``often_quoted`` the formulas that others quote,
and ``layer_bytes`` what each layer caches. What can I run is ``fit``, with ``candidates`` (the models that could run here) and
``indexing`` (their figures, worked out before).
"""

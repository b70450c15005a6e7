"""Traffic on a deployment, step by step: each engine's scheduler replayed over its own pool.

``core`` is what all engines share: the clock, arrivals, the log. ``content`` names what is in blocks, ``pool`` is a pool of blocks with
a prefix cache. Each engine has a package with its rules: ``vllm``, ``sglang``, ``llamacpp``. ``simulate`` makes schedulers from a deployment and runs
them; ``durations`` says how long steps take, ``routing`` which server gets a request. ``result`` has the rows, ``latency`` and ``traffic`` what
follows from them, ``compare`` puts settings side by side.
"""

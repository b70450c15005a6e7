"""vLLM's scheduler over its pool of blocks, step by step.

``groups`` has what each kind of layers keeps, ``cache`` the blocks of all requests, ``live`` a request, ``scheduler`` who runs and who waits,
and ``settings`` makes them from a deployment. The rules are those of vLLM 0.33.
"""

"""SGLang's scheduler over its pool of tokens, pass by pass.

``tree`` is the one radix tree of what is cached, ``policies`` says who is next, ``admission`` who fits, ``running`` counts those that
decode, and ``scheduler`` says what a pass runs and who is retracted. ``second`` and ``hybrid`` add the pools of windows and states, and
``settings`` makes all from a deployment. The rules are those of SGLang 0.5.23.
"""

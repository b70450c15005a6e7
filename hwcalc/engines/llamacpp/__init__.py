"""llama.cpp: contexts of libllama as llama-server, Ollama and bindings make them.

``engine`` deploys a model, and ``occupancy`` says what a load holds and what is refused; ``ollama`` is the same server with Ollama's names.
They ask ``builds`` (what holds in which build), ``settings`` (options, and every default of a context), ``rules`` (what a layer keeps),
``tensors`` (those of a file), ``layers`` (their bytes, and on which device each lies), ``graph`` (the buffers of a pass) and ``layout`` (what each
device holds of all that). ``form`` is the memory by length and number of sequences, ``policies`` what a policy or sharing changes, ``command``
the command line.
"""

from hwcalc.engines.llamacpp.engine import Llamacpp

__all__ = ["Llamacpp"]

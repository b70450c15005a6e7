"""llama.cpp: contexts of libllama as llama-server, Ollama and bindings make them."""

from hwcalc.engines.llamacpp.engine import Llamacpp

__all__ = ["Llamacpp"]

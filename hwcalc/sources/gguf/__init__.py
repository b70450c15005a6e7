"""GGUF files as a source: headers of files on this machine, on the Hub and in Ollama's store. Tensors are never read."""

"""GGUF files as a source."""

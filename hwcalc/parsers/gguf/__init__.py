"""GGUF metadata: what the keys of a file say, which layers they describe, and which keys the converter writes for a config."""

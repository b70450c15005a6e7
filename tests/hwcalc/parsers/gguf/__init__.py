"""Tests of GGUF metadata and of the keys for a config."""

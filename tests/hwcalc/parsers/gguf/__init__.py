"""Tests of GGUF metadata."""

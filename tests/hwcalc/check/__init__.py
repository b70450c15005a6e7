"""Tests of ``kvplan check``."""

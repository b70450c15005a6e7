"""Tests of how weights are stored."""

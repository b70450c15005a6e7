"""Tests of how configs are read."""

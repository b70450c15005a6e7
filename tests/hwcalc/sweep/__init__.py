"""Tests of many plans at once."""

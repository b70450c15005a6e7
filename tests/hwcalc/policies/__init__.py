"""Tests of the cache policies."""

"""Tests of results as text."""

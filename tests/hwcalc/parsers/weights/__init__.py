"""Tests of the parameter counts."""

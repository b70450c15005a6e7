"""Tests of what engines keep and need."""

"""Tests of fleets."""

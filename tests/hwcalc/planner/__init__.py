"""Tests of plans and solvers."""

"""Tests of the hardware that a plan is for."""

"""Tests of plans, and of questions turned round."""

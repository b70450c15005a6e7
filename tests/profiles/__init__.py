"""Tests of the facts and their loaders."""

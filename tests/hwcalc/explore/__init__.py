"""Tests of the page and of its server."""

"""Tests of the page in a real browser, read from disk and with the network off."""

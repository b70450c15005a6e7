"""Tests of reading commands and manifests."""

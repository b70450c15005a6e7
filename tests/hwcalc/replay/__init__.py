"""Tests of replays of traffic."""

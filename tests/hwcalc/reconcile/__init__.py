"""Tests of what an engine's log says beside the plan."""

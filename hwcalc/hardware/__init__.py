"""Accelerators: look-up by name, detection on this machine, and candidates for a recommendation."""

"""Accelerators: by name, on this machine, and those that a recommendation chooses from."""

"""The parts of ``scripts/interrupts.py``."""

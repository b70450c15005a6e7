"""Accelerators: look-up by name, detection on this machine, and candidates for a recommendation.

``profiles`` reads the profiles of all accelerators and instances, ``named`` finds one by the name that a user types, ``local`` detects the
accelerators of this machine, and ``candidates`` lists those that a recommendation chooses from, and the next larger one.
"""

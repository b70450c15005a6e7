"""The cache of a plan on a real device: allocated, measured, compared. Nothing here imports torch before it is asked to measure."""

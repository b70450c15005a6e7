"""The tests mirror the source tree; ``golden`` holds numbers that engines themselves produced."""

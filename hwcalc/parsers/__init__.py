"""Read a config into layers and weights: :func:`hwcalc.parsers.parse.parse`."""

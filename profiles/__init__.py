"""Facts as data, one file per item, and their loaders. To load one item, a loader reads one file, or its part of the compiled file."""

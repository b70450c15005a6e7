"""Facts as data, one file per item, and the loaders that read them. Loading one item reads one file."""

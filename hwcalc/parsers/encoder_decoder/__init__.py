"""Documents of an encoder and a decoder."""

"""Encoders and decoders of pictures and sound beside a language model: one room a family, the shared pieces in ``build``."""

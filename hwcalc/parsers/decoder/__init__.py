"""Decoder-only models of attention and an MLP or experts: a spec for each family, in the rooms of this package."""

"""Decoder-only models of attention and an MLP or experts: one spec a family."""

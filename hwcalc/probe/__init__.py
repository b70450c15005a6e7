"""Allocate the cache of a plan on a real device, measure it, and compare. torch is imported only when something is measured."""

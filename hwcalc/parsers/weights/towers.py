"""The pieces of towers, for modules that have not moved yet."""

from hwcalc.parsers.towers.build import Style, UnknownTowerError, conv, encoder_layer, grid, patch_conv, tower

__all__ = ["Style", "UnknownTowerError", "conv", "encoder_layer", "grid", "patch_conv", "tower"]

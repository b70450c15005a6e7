"""MLX on a Mac (mlx-lm): caches that grow, and the limit of the memory that Metal wires."""

from hwcalc.engines.mlx.engine import Mlx

__all__ = ["Mlx"]

"""MLX on a Mac (mlx-lm): caches that grow, and the limit of the memory that Metal wires.

``engine`` says what is made of a model and of options, what the caches hold, and writes the command line. It asks ``layers`` (the slots of
each cache class, what each model file keeps of a layer, and how a model is divided over machines).
"""

from hwcalc.engines.mlx.engine import Mlx

__all__ = ["Mlx"]

"""Text Generation Inference as an engine.

``engine`` has all of it: the settings of launcher and server, which models and caches it takes, its pool, and the command line.
"""

from hwcalc.engines.tgi.engine import Tgi

__all__ = ["Tgi"]

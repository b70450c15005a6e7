from __future__ import annotations
from hwcalc.engines.base import Opened
from hwcalc.engines.mlx.models import file_of
def check(opened: Opened) -> None:
    file_of(opened.model)

"""Weight formats whose name says their bits: ``exl2 4.0bpw``, ``exl3 3.5bpw``, ``mlx-4bit``."""

from __future__ import annotations

import re
from typing import Final

from hwcalc.formulas.formats import WeightFormat
from hwcalc.formulas.weights import WeightRole
from hwcalc.quantization.scheme import Rule, Scheme

__all__ = ["EXAMPLES", "by_bits", "named_by_bits"]

EXAMPLES: Final = ("exl2_4bpw", "exl3_4bpw", "mlx_4bit", "mlx_8bit")
"""Names to list: the bits may be others."""

_EXL: Final = re.compile(r"(exl[23])_?([1-8](?:\.[0-9]{1,2})?)_?(?:bpw|bits?)?")
_MLX: Final = re.compile(r"mlx_?(?:q|int)?([234568])_?(?:bits?)?")
_HEAD_BITS: Final = 6
"""Bits of the output head: the default of ExLlama's converters."""
_MATRICES: Final = (WeightRole.LINEAR, WeightRole.EXPERT)


def named_by_bits(name: str) -> str | None:
    """The canonical name of such a format; ``None`` if ``name`` is none. Words are joined by underscores.

    >>> named_by_bits("exl2_4.0bpw"), named_by_bits("exl3_3.5"), named_by_bits("mlx_4bit"), named_by_bits("exl2")
    ('exl2_4bpw', 'exl3_3.5bpw', 'mlx_4bit', None)
    """
    exl, mlx = _EXL.fullmatch(name), _MLX.fullmatch(name)
    if exl is not None and float(exl[2]) <= 8:
        return f"{exl[1]}_{float(exl[2]):g}bpw"
    return None if mlx is None else f"mlx_{mlx[1]}bit"


def by_bits(name: str) -> Scheme | None:
    """The scheme of such a name in its canonical form.

    ExLlama's converters reach the bits as an average over the matrices of the layers; the head has six, the embedding stays in 16.
    MLX quantises every matrix and the embedding in groups of 64 numbers with a scale and a bias of 16 bits.
    """
    exl, mlx = _EXL.fullmatch(name), _MLX.fullmatch(name)
    if exl is not None:
        from fractions import Fraction

        bits = Fraction(exl[2])
        matrices = WeightFormat(name=name, bits=bits.numerator, per=bits.denominator)
        head = WeightFormat(name=f"{exl[1]}_{_HEAD_BITS}bpw", bits=_HEAD_BITS)
        return Scheme(name=name, rules=(Rule(format=matrices, roles=_MATRICES), Rule(format=head, roles=(WeightRole.HEAD,))))
    if mlx is None:
        return None
    form = WeightFormat(name=name, bits=int(mlx[1]), group=64, scale_bytes=4)
    return Scheme(
        name=name, rules=(Rule(format=form, roles=(*_MATRICES, WeightRole.HEAD, WeightRole.EMBEDDING), text_only=True),)
    )

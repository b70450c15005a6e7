"""The names of llama.cpp's mixes, which are asked for where no weight is stored by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["BY_IMATRIX", "MIXES"]

MIXES: Final[Mapping[str, str]] = {
    "q1_0": "q1_0",
    "q2_0": "q2_0",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
    "q8_0": "q8_0",
    "mxfp4_moe": "mxfp4",
    "q2_k": "q2_k",
    "q2_k_s": "q2_k",
    "q3_k_s": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_l": "q3_k",
    "q4_k_s": "q4_k",
    "q4_k_m": "q4_k",
    "q5_k_s": "q5_k",
    "q5_k_m": "q5_k",
    "q6_k": "q6_k",
    "iq1_s": "iq1_s",
    "iq1_m": "iq1_m",
    "iq2_xxs": "iq2_xxs",
    "iq2_xs": "iq2_xs",
    "iq2_s": "iq2_xs",
    "iq2_m": "iq2_s",
    "iq3_xxs": "iq3_xxs",
    "iq3_xs": "iq3_s",
    "iq3_s": "iq3_s",
    "iq3_m": "iq3_s",
    "iq4_nl": "iq4_nl",
    "iq4_xs": "iq4_xs",
    "tq1_0": "tq1_0",
    "tq2_0": "tq2_0",
}
"""File type -> main type (``llama_ftype_get_default_type``)."""

BY_IMATRIX: Final = frozenset({"q4_0", "q5_0", "iq3_xxs", "iq4_nl", "iq4_xs"})
"""Mixes that choose otherwise with an importance matrix."""

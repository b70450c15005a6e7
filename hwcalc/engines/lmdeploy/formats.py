"""The KV formats of LMDeploy: its ``quant_policy``.

Sources: lmdeploy/messages.py QuantPolicy, cli/utils.py quant_policy, pytorch/engine/cache_engine.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hwcalc.engines.lmdeploy.classes import PYTORCH
from hwcalc.engines.options import is_auto
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import brief, shown

__all__ = ["FORMATS", "NONE", "KvFormat", "parse_policy", "read_format"]


class KvFormat(Record):
    """A ``quant_policy``: bits of a key and of a value, and how many numbers of the model's dtype a head adds to a token of each."""

    policy: int
    name: str
    key_bits: int | None
    value_bits: int | None
    key_scales: int = 0
    value_scales: int = 0

    @property
    def spelled(self) -> str:
        """The name of the format; empty where the cache is in the dtype of the model."""
        return self.name if self.policy else ""


NONE: Final = KvFormat(policy=0, name="none", key_bits=None, value_bits=None)
FORMATS: Final[Mapping[int, KvFormat]] = MappingProxyType(
    {
        one.policy: one
        for one in (
            NONE,
            KvFormat(policy=4, name="int4", key_bits=4, value_bits=4, key_scales=2, value_scales=2),
            KvFormat(policy=8, name="int8", key_bits=8, value_bits=8, key_scales=2, value_scales=2),
            KvFormat(policy=16, name="fp8", key_bits=8, value_bits=8),
            KvFormat(policy=17, name="fp8_e5m2", key_bits=8, value_bits=8),
            # Keys have a scale of each of two parts, values only one.
            KvFormat(policy=42, name="turbo_quant", key_bits=4, value_bits=2, key_scales=2, value_scales=1),
        )
    }
)
"""``quant_policy`` -> the format."""
_NAMES: Final = {one.name: one for one in FORMATS.values()} | {"fp8_e4m3": FORMATS[16]}
_OWN: Final = frozenset({"fp16", "bf16"})
"""Names of a cache that is not quantised: it is in the dtype that the model runs in."""


def parse_policy(name: str, value: str) -> int:
    """The number of a policy, from the number or the name that the command line of LMDeploy takes."""
    given = value.strip().lower()
    found = _NAMES.get(given) or (FORMATS.get(int(given)) if given.isascii() and given.isdecimal() and len(given) < 4 else None)
    if found is None:
        allowed = ", ".join(f"{one.policy} ({one.name})" for one in FORMATS.values())
        raise UsageError(f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {allowed}.")
    return found.policy


def read_format(dtype: str | None, option: str | None, backend: str) -> KvFormat:
    """The format that ``--dtype`` and the option ``quant_policy`` name. Raises an error if the back end has it not."""
    asked = None if option is None else FORMATS[parse_policy("quant_policy", option)]
    named = None if is_auto(dtype) else _named(dtype or "")
    if asked is not None and named is not None and asked != named:
        raise UsageError(
            f"--dtype {brief(dtype or '', 40)} is quant_policy {named.policy}, but quant_policy={asked.policy} is given.",
            hint="Leave out one of them.",
        )
    chosen = asked or named or NONE
    if backend != PYTORCH and chosen.policy not in (0, 4, 8):
        raise UnsupportedError(
            f"TurboMind has no quant_policy {chosen.policy} ({chosen.name}).",
            hint=f"Use 0, 4 or 8, or: --engine-option backend={PYTORCH}",
        )
    return chosen


def _named(dtype: str) -> KvFormat:
    name = dtype.strip().lower()
    if name in _OWN:
        return NONE
    found = _NAMES.get(name)
    if found is None:
        known = ", ".join(("auto", *sorted(_OWN), *(one for one in _NAMES if one != NONE.name)))
        raise UnknownNameError(f"LMDeploy has no KV cache in {shown(dtype, 40)}.", option="dtype", hint=f"Known: {known}.")
    return found

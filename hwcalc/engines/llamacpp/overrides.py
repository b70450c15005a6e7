"""Where the user puts tensors by patterns of their names: ``-ot``, ``--cpu-moe`` and ``--n-cpu-moe``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import WeightTensor

__all__ = ["EXPERTS", "HOST_BUFFER", "Override", "overrides", "with_overrides"]

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""common/common.h ``LLM_FFN_EXPS_REGEX``: what ``--cpu-moe`` and ``--n-cpu-moe`` put on the host."""
HOST_BUFFER: Final = "CPU"
"""The name of the host's buffer type in ``-ot``."""
_MOST_PATTERNS: Final = 256


class Override(Record):
    """A pattern of ``-ot`` and the buffer type for the tensors that it finds."""

    pattern: str
    buffer: str


def overrides(override_tensor: str | None = None, *, cpu_moe: bool = False, n_cpu_moe: int | None = None) -> tuple[Override, ...]:
    """The overrides of ``-ot``, ``--cpu-moe`` and ``--n-cpu-moe`` in this order (common/arg.cpp, common/common.h).

    Raises :class:`~hwcalc.errors.UsageError` for a text that llama.cpp would refuse, or that kvplan will not compile.
    """
    found = []
    for part in (override_tensor or "").split(",") if override_tensor else ():
        pattern, equals, buffer = part.partition("=")
        if not equals or not buffer:
            raise UsageError(
                f"override_tensor takes PATTERN=BUFFER, and {shown(part, 60)} has no buffer.",
                hint=r'For example: --engine-option "override_tensor=\.ffn_.*_exps\.=CPU"',
            )
        found.append(Override(pattern=pattern, buffer=buffer))
    if len(found) > _MOST_PATTERNS:
        raise UsageError(f"override_tensor has {len(found)} patterns; kvplan reads up to {_MOST_PATTERNS}.")
    if cpu_moe:
        found.append(Override(pattern=EXPERTS, buffer=HOST_BUFFER))
    if n_cpu_moe:
        # llama.cpp makes a pattern for each layer, which find the same as this one.
        numbers = "|".join(map(str, range(n_cpu_moe)))
        found.append(Override(pattern=rf"blk\.({numbers}){EXPERTS}", buffer=HOST_BUFFER))
    return tuple(found)


def with_overrides(tensors: Iterable[WeightTensor], given: Iterable[Override]) -> tuple[WeightTensor, ...]:
    """The tensors with the buffers that overrides name. The first pattern that is found in a name decides."""
    named = tuple(given)
    if not named:
        return tuple(tensors)
    from hwcalc.quantization.patterns import compiled

    patterns = [(compiled(one.pattern), one.buffer) for one in named]
    return tuple(
        replace(one, buffer=next((buffer for pattern, buffer in patterns if pattern.found_in(one.name)), None)) for one in tensors
    )

"""The command line of mlx-lm that runs a plan, and what it can be told so that it takes less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hwcalc.engines.command import CommandInput, check_one_replica
from hwcalc.engines.mlx.models import LISTED, file_of
from hwcalc.engines.mlx.options import bits_of
from hwcalc.engines.mlx.windows import keeps_windows
from hwcalc.engines.saving import Cost, Saving
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import LatentAttention, SlidingAttention

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy

_FLAGS: Final[Mapping[str, str]] = {
    "kv_bits": "--kv-bits",
    "kv_group_size": "--kv-group-size",
    "quantized_kv_start": "--quantized-kv-start",
    "prefill_step_size": "--prefill-step-size",
    "decode_concurrency": "--decode-concurrency",
    "prompt_cache_size": "--prompt-cache-size",
    "max_kv_size": "--max-kv-size",
}
_OF_SERVER: Final = frozenset({"decode_concurrency", "prompt_cache_size"})
_BITS_OF_DTYPE: Final = {"int4": "4", "int8": "8"}


def flag(name: str, value: object) -> str:
    """How mlx-lm spells an option of kvplan or an engine option; empty if it has no flag for it."""
    if name == "dtype" and str(value) in _BITS_OF_DTYPE:
        return f"--kv-bits {_BITS_OF_DTYPE[str(value)]}"
    return f"{_FLAGS[name]} {value}" if name in _FLAGS else ""


def serve(planned: CommandInput) -> list[str]:
    """``mlx_lm.server``, or ``mlx_lm.generate`` with ``max_kv_size``, which the server does not know.

    Raises :class:`~hwcalc.errors.UnsupportedError` for what has no flag.
    """
    check_one_replica(planned, "mlx-lm")
    if planned.revision is not None:
        raise UnsupportedError("mlx_lm.server has no flag for a revision.", hint="Download it and give its folder.")
    if planned.weights is not None:
        bits = "".join(letter for letter in planned.weights if letter.isdigit()) or "4"
        raise UnsupportedError(
            f"mlx_lm.server runs a model as it is stored, and not in {planned.weights}.",
            hint=f"Convert it first: mlx_lm.convert --hf-path {planned.model} -q --q-bits {bits}",
        )
    if planned.lora is not None:
        raise UnsupportedError("--lora names no adapter that mlx-lm could load.", hint="Leave out --lora.")
    alone = "max_kv_size" in planned.options
    refused = sorted(_OF_SERVER & planned.options.keys()) if alone else []
    if refused:
        raise UnsupportedError(f"mlx_lm.generate has max_kv_size, and mlx_lm.server has {refused[0]}.", hint="Leave out one.")
    machines = planned.parallel.tp * planned.parallel.pp
    words = ["mlx.launch", "-n", str(machines)] if machines > 1 else []
    words += ["mlx_lm.generate" if alone else "mlx_lm.server", "--model", planned.path or planned.model]
    if planned.parallel.pp > 1:
        words.append("--pipeline")
    if planned.draft is not None:
        words += ["--draft-model", planned.draft]
    if planned.kv_dtype_named:
        words += flag("dtype", planned.kv_dtype).split()
    for name, value in planned.options.items():
        words += flag(name, value).split()
    return [*words, *planned.flags]


def savings(opened: Occupancy) -> Iterator[Saving]:
    """A quantized cache, where the model file reads one, and weights of eight and four bits."""
    kinds = {type(group.kind) for group in opened.plain_stack.groups}
    windows = SlidingAttention in kinds and keeps_windows(opened.model)
    if bits_of(opened) is None and not windows and LatentAttention not in kinds and file_of(opened.model) not in LISTED:
        for cost, bits in ((Cost.CACHE, "8"), (Cost.FEW_CACHE_BITS, "4")):
            yield Saving(cost, f"a cache of {bits} bits", {"engine_options": {"kv_bits": bits}})
    yield Saving(Cost.WEIGHTS, "weights of 8 bits", {"weights": "mlx_8bit"})
    yield Saving(Cost.FEW_BITS, "weights of 4 bits", {"weights": "mlx_4bit"})

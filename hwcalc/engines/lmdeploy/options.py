"""The options of LMDeploy, by its own names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.lmdeploy.classes import BACKENDS, PYTORCH
from hwcalc.engines.lmdeploy.formats import parse_policy
from hwcalc.engines.options import EngineOption, choice_option, integer_option
from hwcalc.errors import UsageError
from hwcalc.text import brief

if TYPE_CHECKING:
    from fractions import Fraction

_FLAG: Final = choice_option("true", "false", "on", "off")


def entry_count_option(name: str, value: str) -> Fraction:
    """A share of what is free, above 0 and below 1, and in TurboMind of 0.14 a whole number for so many blocks."""
    from fractions import Fraction

    whole, _, part = value.partition(".")
    digits = (whole or "0") + part
    number = Fraction(value) if digits.isascii() and digits.isdecimal() and len(value) < 30 else Fraction(0)
    if not (0 < number < 1 or (number >= 1 and number.denominator == 1)):
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is neither a share nor a number of blocks.",
            hint="Allowed: above 0 and below 1, such as 0.8; with backend=turbomind blocks too, such as 4096.",
        )
    return number


def _kernel_block(name: str, value: str) -> int:
    """A power of two from 16 on (lmdeploy/messages.py PytorchEngineConfig)."""
    number = integer_option(16, 2**20)(name, value)
    if number & (number - 1):
        raise UsageError(f"engine option {name}={brief(value, 40)} is no power of two.", hint="Allowed: 16, 32, 64, 128 ...")
    return number


OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        name: EngineOption(name=name, help=text, default=default, check=check)
        for name, text, default, check in (
            ("backend", "which engine of the two", PYTORCH, choice_option(*BACKENDS)),
            ("quant_policy", "format of the cache: 0, 4, 8, 16, 17 or 42", "0, or by --dtype", parse_policy),
            ("cache_max_entry_count", "share of the free memory for the cache; TurboMind: or blocks", "0.8", entry_count_option),
            ("cache_block_seq_len", "tokens in a block", "64", integer_option(1, 2**20)),
            ("kernel_block_size", "tokens in a block of the kernels", "cache_block_seq_len", _kernel_block),
            ("max_batch_size", "sequences at once", "by GPU: 1024, 384 or 128", integer_option(1, 2**20)),
            ("max_prefill_token_num", "tokens of prompts at once", "8192", integer_option(1, 2**30)),
            ("num_gpu_blocks", "blocks, whatever the memory", "by memory", integer_option(16, 2**40)),
            ("enable_prefix_caching", "keep blocks of finished requests", "false", _FLAG),
            ("prefix_cache_state_budget", "state slots for prefix caching", "0", integer_option(0, 2**20)),
            ("fp32_mamba_ssm_dtype", "recurrent states in fp32", "false", _FLAG),
            ("flash_mla", "whether flash_mla is installed", "by GPU", _FLAG),
        )
    }
)

"""The options of llama.cpp under its own names: fields of ``llama_context_params`` and ``llama_model_params`` (include/llama.h)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hwcalc.engines.options import EngineOption, choice_option, integer_option
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.formulas import DType

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""``kv_cache_types`` (common/arg.cpp)."""

_MOST: Final = 2**31 - 1
_CONTEXTS: Final = ("default", "mtp")
_WORDS: Final = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def is_switched_on(value: str) -> bool:
    """The value of a switch that was checked."""
    return _WORDS[value.lower()]


def switch(name: str, value: str) -> bool:
    """The parser of a switch."""
    if value.lower() not in _WORDS:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is not known.", hint="Allowed: true, false (or 1, 0, on, off)."
        )
    return is_switched_on(value)


def _auto_switch(name: str, value: str) -> bool | None:
    # LLAMA_FLASH_ATTN_TYPE_AUTO is -1.
    return None if value.lower() in ("auto", "-1") else switch(name, value)


def _context_type(name: str, value: str) -> str:
    """The context, by its word or as ``llama_context_type`` counts."""
    word = _CONTEXTS[int(value)] if value in ("0", "1") else value
    return choice_option(*_CONTEXTS)(name, word)


_NEAREST: Final = (("16", "f16"), ("32", "f32"), ("8", "q8_0"), ("5", "q5_1"), ("4", "q4_0"))
"""The cache that people mean by a number of bits: fp8, q4."""


@cache
def _cache_dtypes() -> frozenset[DType]:
    return frozenset(found for known in CACHE_TYPES if (found := find_dtype(known)) is not None)


@lru_cache(maxsize=64)
def cache_type(name: str, value: str) -> DType:
    """The format of keys or of values. Raises :class:`~hwcalc.errors.UnsupportedError` for one that llama.cpp has no cache in."""
    dtype = find_dtype(value.strip().lower())
    if dtype is None or dtype not in _cache_dtypes():
        near = next((f"Nearest: {name}. " for bits, name in _NEAREST if bits in value), "")
        raise UnsupportedError(
            f"{name} {brief(value, 40)}: llama.cpp has no cache in this format.", hint=f"{near}Allowed: {', '.join(CACHE_TYPES)}."
        )
    return dtype


def _option(name: str, text: str, default: str, check: object) -> EngineOption:
    return EngineOption(name=name, help=text, default=default, check=check)  # type: ignore[arg-type]


_CACHE: Final = f"one of {', '.join(CACHE_TYPES)}"

OPTIONS: Final[Mapping[str, EngineOption]] = MappingProxyType(
    {
        option.name: option
        for option in (
            _option(
                "n_ctx",
                "tokens of all sequences together; 0 is the model's own context (-c)",
                "seq x batch",
                integer_option(0, _MOST),
            ),
            _option("n_seq_max", "sequences at once, llama-server's slots (-np)", "batch", integer_option(0, _MOST)),
            _option("kv_unified", "one buffer for all sequences in place of one for each (-kvu)", "false", switch),
            _option("n_batch", "most tokens of a batch (-b)", "2048", integer_option(0, _MOST)),
            _option("n_ubatch", "most tokens that are computed at once (-ub)", "512", integer_option(0, _MOST)),
            _option("type_k", f"format of keys: {_CACHE} (-ctk)", "f16", cache_type),
            _option("type_v", f"format of values (-ctv): {_CACHE}", "f16", cache_type),
            _option(
                "swa_full", "whether layers with a window keep all tokens (--swa-full)", "false; true with defaults=api", switch
            ),
            _option("flash_attn", "flash attention: auto, on or off (-fa)", "auto", _auto_switch),
            _option("n_rs_seq", "older recurrent states kept for each sequence, for speculation", "0", integer_option(0, 1024)),
            _option("load_mtp", "load the layers for multi-token prediction (--spec-type draft-mtp)", "false", switch),
            _option(
                "ctx_type",
                "which context: the main one, or that of multi-token prediction",
                "default",
                _context_type,
            ),
            _option(
                "defaults",
                "whose defaults: of llama-server and llama-cli, or of the library",
                "server",
                choice_option("api", "server"),
            ),
            _option("ollama", "start as Ollama does", "false", switch),
        )
    }
)

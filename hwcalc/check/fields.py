"""The keys of a check: the options of a plan by their own names, and what may be required. Each is said once, here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hwcalc.check.tree import Node
from hwcalc.errors import UsageError
from hwcalc.units import MIB, parse_bytes, parse_share, parse_tokens

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["ALIASES", "FITTING", "HARDWARE", "OPTIONS", "REQUIREMENTS", "Field", "Headroom"]


class Field(NamedTuple):
    """How one key is read: ``read`` gives its value or raises :class:`~hwcalc.errors.UsageError`; ``schema`` is its JSON Schema."""

    read: Callable[[Node, str], Any]
    help: str
    schema: Mapping[str, Any]


class Headroom(NamedTuple):
    """What must stay free: bytes on each GPU, or a share of what the engine may use."""

    bytes: int = 0
    share: Fraction | None = None

    def of(self, usable_bytes: int) -> int:
        """Bytes, a fraction of one rounded up."""
        return self.bytes if self.share is None else -(-usable_bytes * self.share.numerator // self.share.denominator)


_LONGEST_TEXT: Final = 4096
LEAST_HEADROOM: Final = MIB
"""Fewer bare bytes than this are a slip: ``5`` for ``5%``."""

_PERCENT: Final = r"(?:100(?:\.0{1,9})?|[0-9]{1,2}(?:\.[0-9]{1,9})?)[ ]*%"
_PART: Final = r"(?:0(?:\.[0-9]{1,18})?|1(?:\.0{1,18})?)"
_UNITS: Final = r"[0-9][0-9_,]*(?:(?:\.[0-9][0-9_,]*)?[ ]?[kKmMgGtT][iI]?[bB]|[ ]?[bB])"
"""A share of the whole in percent, one as a decimal, and bytes with their unit: as the reader takes them, and as the schema says."""


def _text(node: Node, key: str) -> str:
    """Text. A bare number is taken as it was written: a commit may look like one."""
    scalar = isinstance(node.value, (str, int, float)) and not isinstance(node.value, bool)
    if not scalar or not node.text.strip() or len(node.text) > _LONGEST_TEXT or "\0" in node.text:
        raise UsageError(f"{key} must be text", hint=f"Write {key}: TEXT, in quotes if YAML reads it otherwise.")
    return node.text


def _plain(node: Node, key: str, kinds: tuple[type, ...], allowed: str) -> Any:
    value = node.value
    if isinstance(value, float) and value.is_integer() and float not in kinds:
        value = int(value)  # 5.0 is a whole number to JSON Schema, so it is one here
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise UsageError(f"{key} is not {allowed}", hint=f"Allowed: {allowed}.")
    return value


def _tokens(node: Node, key: str) -> int:
    return parse_tokens(_plain(node, key, (int, str), "a whole number from 1, such as 32768 or 32k"), key)


def _number_of(node: Node, key: str) -> int:
    return parse_tokens(_plain(node, key, (int, str), "a whole number from 1"), key)


def _tokens_from_zero(node: Node, key: str) -> int:
    return parse_tokens(_plain(node, key, (int, str), "a whole number from 0, such as 1500 or 32k"), key, minimum=0)


def _bytes(node: Node, key: str) -> int:
    return parse_bytes(_plain(node, key, (int, str), "bytes, or a size such as 20GiB or 80GB"), key)


def _number(node: Node, key: str) -> float:
    value = float(_plain(node, key, (int, float), "a number above 0"))
    if not 0 < value < 1e18:
        raise UsageError(f"{key} is out of range: {node.text[:40]}", hint="Allowed: a number above 0.")
    return value


def _share(node: Node, key: str) -> str:
    """A share of the whole such as ``5%`` or ``0.05``, as text that :func:`~hwcalc.units.parse_share` takes."""
    _text(node, key)
    share = parse_share(node.value, key)
    written = not isinstance(node.value, str) or re.fullmatch(f"{_PERCENT}|{_PART}", node.value)
    if not written or not 0 <= share <= 1:
        raise UsageError(f"{key} is not a share of the whole: {node.text[:40]!r}", hint="Allowed: a share such as 0.05, or 5%.")
    return str(node.value)


def _flag(node: Node, key: str) -> bool:
    if not isinstance(node.value, bool):
        raise UsageError(f"{key} is not true or false", hint="Allowed: true, false.")
    return node.value


def _engine_options(node: Node, key: str) -> dict[str, str]:
    if not isinstance(node.value, dict):
        raise UsageError(f"{key} must map names to values", hint="Write engine_options: {block_size: 32}")
    for name, item in node.value.items():
        if not isinstance(item.value, (str, int, float)) or not item.text:
            raise UsageError(f"the engine option {name[:40]!r} must be text, a number, true or false")
    return {name: str(item.value).lower() if isinstance(item.value, bool) else item.text for name, item in node.value.items()}


def _headroom(node: Node, key: str) -> Headroom:
    """``5%`` of what the engine may use, or bytes. A number alone is bytes only where it can hardly be meant as a share."""
    allowed = "a share such as 5%, or bytes such as 2GiB"
    given = _plain(node, key, (int, str), allowed)
    if isinstance(given, str) and given.rstrip().endswith("%"):
        share = parse_share(given, key)
        if not re.fullmatch(_PERCENT, given):
            raise UsageError(f"{key} is not a share of the whole: {node.text[:40]!r}", hint=f"Allowed: {allowed}.")
        return Headroom(share=share)
    size = parse_bytes(given, key)
    bare = isinstance(given, int) or not re.fullmatch(_UNITS, given)
    if bare and (isinstance(given, str) or 0 < size < LEAST_HEADROOM):
        raise UsageError(f"{key} {node.text[:40]!r} has no unit, percent or bytes", hint=f"Write {allowed}.")
    return Headroom(bytes=size)


_TEXT: Final = {"type": ["string", "number"]}
_COUNT: Final = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[0-9][0-9_,.]*\s?[kKmMgG]?$"}]}
_FROM_ZERO: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9][0-9_,.]*\s?[kKmMgG]?$"}]}
_SIZE: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": rf"^(?:{_UNITS}|[0-9][0-9_,]*)$"}]}
_SHARE: Final = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": f"^(?:{_PERCENT}|{_PART})$"}]
}
_HEADROOM: Final = {
    "anyOf": [
        {"const": 0},
        {"type": "integer", "minimum": LEAST_HEADROOM},
        {"type": "string", "pattern": f"^(?:{_PERCENT}|{_UNITS})$"},
    ]
}
_PAIRS: Final = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

OPTIONS: Final[Mapping[str, Field]] = {
    "seq": Field(_tokens, "Tokens per sequence, prompt and output: 32768, 32k. Default: the model's own maximum.", _COUNT),
    "batch": Field(_number_of, "Sequences alive at once; concurrency is the same. Default: 1.", _COUNT),
    "dtype": Field(_text, "KV-cache dtype: fp8, bf16, q8_0; K:V for two.", _TEXT),
    "weights": Field(_text, "Weight format: bf16, fp8, awq, ... Default: as published.", _TEXT),
    "engine": Field(_text, "Whose rules: reference, vllm, vllm@0.25.1, ... Default: reference.", _TEXT),
    "gpu": Field(_text, "Accelerator: l4, h100-sxm5-80gb.", _TEXT),
    "gpus": Field(_number_of, "How many.", _COUNT),
    "instance": Field(_text, "A cloud instance type, instead of gpu and gpus.", _TEXT),
    "tp": Field(_number_of, "Tensor parallel size.", _COUNT),
    "pp": Field(_number_of, "Pipeline parallel size.", _COUNT),
    "dp": Field(_number_of, "Data parallel size.", _COUNT),
    "dcp": Field(_number_of, "Decode context parallel size.", _COUNT),
    "ep": Field(_number_of, "Expert parallel size.", _COUNT),
    "memory_utilization": Field(_share, "Share of the GPU that the engine may use.", _SHARE),
    "kv_memory": Field(_bytes, "Bytes per GPU for the cache, given directly: 60GiB.", _SIZE),
    "encoder_seq": Field(_tokens_from_zero, "Encoder tokens for cross attention.", _FROM_ZERO),
    "engine_options": Field(_engine_options, "The engine's own knobs by their own names.", _PAIRS),
    "margin": Field(_share, "Share of the GPU to leave alone: 5%.", _SHARE),
    "lora": Field(_text, "Adapters held beside the model: rank=16,count=8.", _TEXT),
    "draft": Field(_text, "Draft model of speculative decoding: an id or a path.", _TEXT),
    "revision": Field(_text, "Branch, tag or commit of the model.", _TEXT),
    "assume": Field(_text, "gqa: read an unknown architecture as plain attention.", _TEXT),
}
"""Key -> how it is read. These are the keyword arguments of :func:`hwcalc.plan`."""

REQUIREMENTS: Final[Mapping[str, Field]] = {
    "fits": Field(
        _flag, "Whether it must fit. Default: true where a GPU, an instance or kv_memory is given.", {"type": "boolean"}
    ),
    "headroom": Field(_headroom, "What must stay free of what the engine may use: 5%, or bytes per GPU, 2GiB.", _HEADROOM),
    "max_cache": Field(_bytes, "Most bytes of cache, all GPUs together.", _SIZE),
    "max_weights": Field(_bytes, "Most bytes of weights.", _SIZE),
    "max_total": Field(_bytes, "Most bytes of everything that is planned, all GPUs together.", _SIZE),
    "max_bytes_per_token": Field(_bytes, "Most bytes that one more token takes.", _SIZE),
    "min_concurrency": Field(_number_of, "Fewest sequences of seq tokens that must fit at once.", _COUNT),
    "min_seq": Field(_tokens, "Shortest acceptable longest sequence.", _COUNT),
    "max_gpus": Field(_number_of, "Most GPUs that it may take to fit.", _COUNT),
    "min_decode_tokens_per_s": Field(
        _number, "Lowest acceptable upper bound of decoding speed.", {"type": "number", "exclusiveMinimum": 0}
    ),
}
"""Key -> how what is required is read, in the order of the reports."""

ALIASES: Final = {"concurrency": "batch"}
HARDWARE: Final = ("gpu", "instance", "kv_memory")
"""Any of them asks for a verdict."""
FITTING: Final = ("fits", "headroom", "min_concurrency", "min_seq", "max_gpus", "min_decode_tokens_per_s")
"""What can be required only of a verdict."""

"""The words of ``--kv-cache-dtype``, what ``auto`` becomes, and the bytes of one head and token in each.

Per-tensor fp8 keeps its scale with the weights; the per-token-head formats keep one fp32 for the key and one for the value beside
each head; nvfp4 keeps an fp8 scale for every 16 elements; turboquant packs key and value of a head into one slot.

Source: vLLM 0.33, config/cache.py, utils/torch_utils.py, v1/kv_cache_interface.py and the backends' own packing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from hwcalc.errors import UnknownNameError, UnsupportedError
from hwcalc.formulas import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    DType,
    LatentAttention,
    LayerKind,
    Role,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import ModelSpec
from hwcalc.profiles.dtypes import find_dtype

__all__ = [
    "COMPRESSED_ROW",
    "WORDS",
    "check_word",
    "checkpoint_word",
    "is_turboquant",
    "latent_row",
    "plain_name",
    "read_word",
    "role_formats",
    "row_bytes",
]

_FP8: Final = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
_NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})
_TURBOQUANT: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "turboquant_k8v4": (8, 4),
        "turboquant_4bit_nc": (4, 4),
        "turboquant_k3v4_nc": (3, 4),
        "turboquant_3bit_nc": (3, 3),
    }
)
"""Bits of a key element and of a value element."""
_PER_TOKEN_HEAD: Final[Mapping[str, int]] = MappingProxyType(
    {"int4_per_token_head": 4, "int8_per_token_head": 8, "fp8_per_token_head": 8}
)
_DS_MLA: Final[Mapping[str, int]] = MappingProxyType({"fp8_ds_mla": 656, "nvfp4_ds_mla": 352})
"""Bytes of one token of DeepSeek-V3.2's latent: 512 fp8 + 4 fp32 scales + 64 bf16; 512 fp4 with scales + 64 fp8."""
_ROCM: Final = frozenset({"octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit"})
_PLAIN: Final[Mapping[str, str]] = MappingProxyType(
    {"float16": "fp16", "bfloat16": "bf16", "fp16": "fp16", "bf16": "bf16", "half": "fp16"}
)
WORDS: Final = ("auto", "float16", "bfloat16", *sorted(_FP8), *sorted(_NVFP4), *_DS_MLA, *_PER_TOKEN_HEAD, *_TURBOQUANT)

_NATIVE_FP8: Final = 89

COMPRESSED_ROW: Final = 584
"""DeepSeek-V4's 512 elements: 448 fp8, 64 bf16 and 8 one-byte scales."""


def read_word(spelling: str) -> str:
    """The engine's word for what the user wrote; ``fp16`` and ``bf16`` stand for the long names."""
    word = spelling.strip().lower()
    word = {"fp16": "float16", "half": "float16", "bf16": "bfloat16"}.get(word, word)
    if word in WORDS:
        return word
    if word in _ROCM:
        raise UnsupportedError(f"--dtype {word} is for AMD GPUs only, and not counted here.", hint=f"Known: {', '.join(WORDS)}.")
    raise UnknownNameError(
        f"--dtype {spelling[:40]!r} is no --kv-cache-dtype of vLLM.", option="dtype", hint=f"Known: {', '.join(WORDS)}."
    )


def plain_name(word: str) -> str | None:
    """``bf16`` for ``bfloat16``; ``None`` for a word that is not a plain float."""
    return _PLAIN.get(word)


def checkpoint_word(quantization: Mapping[str, Any] | None) -> str | None:
    """What the checkpoint's own scheme makes of ``auto``: ModelOpt's and compressed-tensors' notes on the KV cache."""
    if not quantization:
        return None
    method = str(quantization.get("quant_method", ""))
    inner = quantization.get("quantization")
    places = [place for place in (inner, quantization) if isinstance(place, Mapping)]
    scheme = next((place[key] for key in ("kv_cache_scheme", "kv_cache_quant_algo") for place in places if place.get(key)), None)
    if scheme is None:
        return None
    if method.startswith("modelopt"):
        if isinstance(scheme, Mapping):
            if scheme.get("type") != "float":
                return None
            return {8: "fp8_e4m3" if scheme.get("dynamic") is False else None, 4: "nvfp4"}.get(scheme.get("num_bits", 0))
        return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(scheme).lower())
    return "fp8" if method == "compressed-tensors" else None


def row_bytes(word: str, key: int, value: int, plain: int) -> int:
    """Bytes of one head and token: ``key`` and ``value`` elements, ``plain`` bytes each where nothing is quantized.

    >>> row_bytes("auto", 128, 128, 2), row_bytes("fp8", 128, 128, 2), row_bytes("fp8_per_token_head", 128, 128, 2)
    (512, 256, 264)
    >>> row_bytes("nvfp4", 128, 128, 2), row_bytes("turboquant_k8v4", 128, 128, 2)
    (144, 196)
    """
    if word in _FP8:
        return key + value
    if word in _PER_TOKEN_HEAD:
        per_byte = 8 // _PER_TOKEN_HEAD[word]
        return key // per_byte + value // per_byte + 2 * 4
    if word in _NVFP4:
        return sum(width // 2 + width // 16 for width in (key, value))
    if word in _TURBOQUANT:
        packed = sum(_turboquant(word, key))
        return packed + packed % 2
    if word in _DS_MLA:
        raise UnsupportedError(
            f"--dtype {word} is a layout of DeepSeek's sparse latent attention.", hint="Use --dtype fp8 for this model."
        )
    return (key + value) * plain


def _turboquant(word: str, width: int) -> tuple[int, int]:
    """Bytes of a key and of a value: packed codes, two bytes for the key's norm, four for the value's scale and zero."""
    key, value = _TURBOQUANT[word]
    return (width if key == 8 else -(-width * key // 8) + 2), -(-width * value // 8) + 4


def latent_row(word: str, elements: int, plain: int) -> int:
    """Bytes of one token of a latent layer."""
    if word in _DS_MLA:
        return _DS_MLA[word]
    if word in _FP8:
        return elements
    return elements * plain


def is_turboquant(word: str) -> bool:
    """Whether key and value are packed by turboquant, which leaves the outer layers of dense models alone."""
    return word in _TURBOQUANT


def check_word(word: str, kinds: frozenset[type[LayerKind]], architecture: int) -> None:
    """Raise if no backend of that GPU stores these layers so."""
    latent = LatentAttention in kinds
    sparse = latent and SparseIndexer in kinds
    title = f"--dtype {word}"
    if word in _DS_MLA and not sparse and not (word == "fp8_ds_mla" and CompressedAttention in kinds):
        raise UnsupportedError(f"{title} is for latent attention with an indexer (DeepSeek-V3.2, GLM-5).", hint="Use --dtype fp8")
    if word == "nvfp4_ds_mla" and architecture // 10 != 10:
        raise UnsupportedError(f"{title} needs a GPU of compute capability 10.x.", hint="Use --dtype fp8")
    if (latent or CompressedAttention in kinds) and (
        word in _PER_TOKEN_HEAD or word in _TURBOQUANT or word in _NVFP4 or word == "fp8_e5m2"
    ):
        raise UnsupportedError(f"vLLM has no backend with {title} for latent attention.", hint="Use --dtype fp8")
    if word in _FP8 and latent and not sparse and architecture < _NATIVE_FP8:
        raise UnsupportedError(
            f"{title} on latent attention needs a GPU of compute capability 8.9 or more.", hint="Use --dtype auto"
        )
    if word in _TURBOQUANT and any(issubclass(kind, (SlidingAttention, ChunkedAttention, CrossAttention)) for kind in kinds):
        raise UnsupportedError(f"vLLM has no backend with {title} for windowed or cross attention.", hint="Use --dtype fp8")
    if word in _NVFP4 and architecture // 10 != 10:
        raise UnsupportedError(f"{title} needs a GPU of compute capability 10.x.", hint="Use --dtype fp8")


def role_formats(word: str, model: ModelSpec, plain: DType, conv: DType, state: DType) -> dict[Role, DType]:
    """The format of each role, for what one token adds by the formulas."""
    roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE), plain)
    kinds = [group.kind for group in model.stack_for("vllm").groups]
    if any(isinstance(kind, CompressedAttention) for kind in kinds):
        state = _known("fp32")
        if word == "fp8_ds_mla":
            roles[Role.LATENT] = DType(name=word, block_elements=512, block_bytes=COMPRESSED_ROW)
    elif word in _FP8:
        roles = dict.fromkeys(roles, _known("fp8"))
    elif word == "fp8_ds_mla":
        roles |= {Role.LATENT: _known("fp8_scaled_128"), Role.ROPE: _known("bf16")}
    elif word == "nvfp4_ds_mla":
        roles |= {Role.LATENT: _known("nvfp4"), Role.ROPE: _known("fp8")}
    elif word in _NVFP4:
        roles = dict.fromkeys(roles, _known("nvfp4"))
    else:
        head = next((kind.head_dim for kind in kinds if isinstance(kind, AttentionKind)), None)
        if head is not None and word in _PER_TOKEN_HEAD:
            width = head * _PER_TOKEN_HEAD[word] // 8 + 4
            roles = dict.fromkeys(roles, DType(name=word, block_elements=head, block_bytes=width))
        elif head is not None and word in _TURBOQUANT:
            key, value = _turboquant(word, head)
            roles[Role.KEY] = DType(name=word, block_elements=head, block_bytes=key)
            roles[Role.VALUE] = DType(name=word, block_elements=head, block_bytes=value + (key + value) % 2)
    return {**roles, Role.INDEX: _known("fp8_scaled_128"), Role.CONV: conv, Role.STATE: state}


def _known(name: str) -> DType:
    dtype = find_dtype(name)
    if dtype is None:
        raise KeyError(name)
    return dtype

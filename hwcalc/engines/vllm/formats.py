"""The formats of vLLM: those of the cache, the bytes of a row in them, and the formats of weights that a release reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.models import known_dtype
from hwcalc.engines.options import HEAD, CacheFormat
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
from hwcalc.model import Note
from hwcalc.profiles.engines import planned_version, since
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.engines.vllm.deployment import VllmDeployment
    from hwcalc.engines.vllm.settings import VllmSettings
    from hwcalc.model import ModelSpec

FP8: Final = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})
TURBOQUANT: Final = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""KV dtype -> bits of a key element and of a value element."""
PER_TOKEN_HEAD: Final = {"int4_per_token_head": 4, "int8_per_token_head": 8, "fp8_per_token_head": 8}
_DS_MLA: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""KV dtype -> bytes per token of DeepSeek-V3.2's latent: 512 fp8 + 4 fp32 scales + 64 bf16, or 512 fp4 with scales + 64 fp8."""
_DS_MLA_VALUES: Final = 512 + 64
_ROCM: Final = frozenset({"octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit"})
FLOAT_NAMES: Final = {"float16": "fp16", "bfloat16": "bf16", "fp16": "fp16", "bf16": "bf16", "half": "fp16"}
LONG_NAMES: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The formats of numbers, as the flags of vLLM spell them."""
KV_DTYPES: Final = ("auto", "float16", "bfloat16", *sorted(FP8), *sorted(NVFP4), *_DS_MLA, *PER_TOKEN_HEAD, *TURBOQUANT)

SINCE: Final = {
    "fp8_inc": "0.10",
    "fp8_ds_mla": "0.11.1",
    **dict.fromkeys(TURBOQUANT, "0.20"),
    "int8_per_token_head": "0.20",
    "fp8_per_token_head": "0.20",
    "nvfp4": "0.21",
    "int4_per_token_head": "0.25",
    "nvfp4_4over6": "0.28",
    "nvfp4_ds_mla": "0.30",
}
"""The first release that takes a KV dtype (``CacheDType`` of config/cache.py; of nvfp4, which 0.20 lists and no backend of it has, the first
backend); all others are older than 0.8."""


COMPRESSED_ROW: Final = 584
"""Bytes of an entry of DeepSeek-V4 with 512 elements: 448 fp8, 64 bf16 and 8 scales of one byte."""


def read_kv_dtype(spelling: str) -> str:
    """The KV dtype that the user wrote, as vLLM spells it; ``fp16`` and ``bf16`` are accepted for the long names.

    Raises :class:`~hwcalc.errors.UnknownNameError` or :class:`~hwcalc.errors.UnsupportedError`.
    """
    kv_dtype = spelling.strip().lower()
    kv_dtype = "float16" if kv_dtype == "half" else LONG_NAMES.get(kv_dtype, kv_dtype)
    if kv_dtype in KV_DTYPES:
        return kv_dtype
    if kv_dtype in _ROCM:
        raise UnsupportedError(
            f"--dtype {kv_dtype} is for AMD GPUs only, and not counted here.", hint=f"Known: {', '.join(KV_DTYPES)}."
        )
    raise UnknownNameError(
        f"--dtype {shown(spelling, 40)} is no --kv-cache-dtype of vLLM.", option="dtype", hint=f"Known: {', '.join(KV_DTYPES)}."
    )


def checkpoint_kv_dtype(quantization: Mapping[str, Any] | None) -> str | None:
    """The KV dtype that ``auto`` becomes for a checkpoint of ModelOpt or compressed-tensors that names one; else ``None``."""
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
            bits = scheme.get("num_bits")
            return "nvfp4" if bits == 4 else "fp8_e4m3" if bits == 8 and scheme.get("dynamic") is False else None
        return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(scheme).lower())
    return "fp8" if method == "compressed-tensors" else None


def row_bytes(kv_dtype: str, key: int, value: int, element_bytes: int) -> int:
    """Bytes of one head and token with ``key`` and ``value`` elements. An element takes ``element_bytes`` if it is not quantized.

    >>> row_bytes("auto", 128, 128, 2), row_bytes("fp8", 128, 128, 2), row_bytes("fp8_per_token_head", 128, 128, 2)
    (512, 256, 264)
    >>> row_bytes("nvfp4", 128, 128, 2), row_bytes("turboquant_k8v4", 128, 128, 2)
    (144, 196)
    """
    if kv_dtype in FP8:
        return key + value
    if kv_dtype in PER_TOKEN_HEAD:
        per_byte = 8 // PER_TOKEN_HEAD[kv_dtype]
        return key // per_byte + value // per_byte + 2 * 4
    if kv_dtype in NVFP4:
        return sum(width // 2 + width // 16 for width in (key, value))
    if kv_dtype in TURBOQUANT:
        packed = sum(_turboquant(kv_dtype, key))
        return packed + packed % 2
    if kv_dtype in _DS_MLA:
        raise UnsupportedError(
            f"--dtype {kv_dtype} is a layout of DeepSeek's sparse latent attention.", hint="Use --dtype fp8 for this model."
        )
    return (key + value) * element_bytes


def _turboquant(kv_dtype: str, width: int) -> tuple[int, int]:
    """Bytes of a key and of a value: the packed codes, two bytes for the norm of the key, and four for scale and zero of the value."""
    key, value = TURBOQUANT[kv_dtype]
    return (width if key == 8 else -(-width * key // 8) + 2), -(-width * value // 8) + 4


def cache_formats(newest: str) -> tuple[CacheFormat, ...]:
    """The formats of the cache, as the newest release has them."""
    return tuple(
        CacheFormat(
            name=name,
            bits=8 * _DS_MLA[name] / _DS_MLA_VALUES if name in _DS_MLA else 8 * row_bytes(name, HEAD, HEAD, 2) / (2 * HEAD),
            stored=_stored(name),
            since=SINCE.get(name, ""),
            source=f"vLLM {newest}, config/cache.py CacheDType",
        )
        for name in KV_DTYPES
        if name not in ("auto", *LONG_NAMES.values())
    )


def _stored(kv_dtype: str) -> str:
    """How a format stores values, and where their scales lie."""
    if kv_dtype in PER_TOKEN_HEAD:
        bits = PER_TOKEN_HEAD[kv_dtype]
        return f"{bits} bits, and a float32 scale for the key and one for the value of each token and head (here of {HEAD})"
    if kv_dtype in NVFP4:
        return "4 bits, and an fp8 scale for each 16 values"
    if kv_dtype in TURBOQUANT:
        bits, of_value = TURBOQUANT[kv_dtype]
        norm = "" if bits == 8 else " and 2 bytes for the norm of each"
        return f"keys in {bits} bits{norm}, values in {of_value} bits and 4 bytes for the scale and the zero of each, in a head of {HEAD}"
    if kv_dtype in _DS_MLA:
        return f"the latent of DeepSeek-V3.2, {_DS_MLA_VALUES} values, in {_DS_MLA[kv_dtype]} bytes a token"
    return "no scale in the cache, that of a layer is one of its weights"


def latent_row(kv_dtype: str, elements: int, element_bytes: int) -> int:
    """Bytes of one token of a latent layer. An element takes ``element_bytes`` if it is not quantized."""
    if kv_dtype in _DS_MLA:
        return _DS_MLA[kv_dtype]
    if kv_dtype in FP8:
        return elements
    return elements * element_bytes


def check_kv_dtype(kv_dtype: str, kinds: frozenset[type[LayerKind]], capability: int) -> None:
    """Raise :class:`~hwcalc.errors.UnsupportedError` if no backend of that GPU stores these kinds of layers in this KV dtype."""
    latent = LatentAttention in kinds
    sparse = latent and SparseIndexer in kinds
    compressed = CompressedAttention in kinds
    windowed_or_cross = any(issubclass(kind, (SlidingAttention, ChunkedAttention, CrossAttention)) for kind in kinds)
    packed = kv_dtype in PER_TOKEN_HEAD or kv_dtype in TURBOQUANT or kv_dtype in NVFP4
    title = f"--dtype {kv_dtype}"
    # Whether it is refused, why, and what to use in its place; the first that holds counts.
    rules = (
        (
            kv_dtype in _DS_MLA and not sparse and not (kv_dtype == "fp8_ds_mla" and compressed),
            f"{title} is for latent attention with an indexer (DeepSeek-V3.2, GLM-5).",
            "Use --dtype fp8",
        ),
        (
            (latent or compressed) and (packed or kv_dtype == "fp8_e5m2"),
            f"vLLM has no backend with {title} for latent attention.",
            "Use --dtype fp8",
        ),
        (
            kv_dtype in FP8 and latent and not sparse and capability < 89,
            f"{title} on latent attention needs a GPU of compute capability 8.9 or more.",
            "Use --dtype auto",
        ),
        (
            kv_dtype in TURBOQUANT and windowed_or_cross,
            f"vLLM has no backend with {title} for windowed or cross attention.",
            "Use --dtype fp8",
        ),
    )
    for refused, message, hint in rules:
        if refused:
            raise UnsupportedError(message, hint=hint)


def role_formats(model: ModelSpec, settings: VllmSettings) -> dict[Role, DType]:
    """The format of each role, with which the formulas compute the growth per token."""
    kv_dtype, conv, state = settings.kv_dtype, known_dtype(settings.conv), known_dtype(settings.state)
    roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE), known_dtype(settings.model_dtype))
    kinds = [group.kind for group in model.stack_for("vllm").groups]
    if any(isinstance(kind, CompressedAttention) for kind in kinds):
        state = known_dtype("fp32")
        if kv_dtype == "fp8_ds_mla":
            roles[Role.LATENT] = DType(name=kv_dtype, block_elements=512, block_bytes=COMPRESSED_ROW)
    elif kv_dtype in FP8:
        roles = dict.fromkeys(roles, known_dtype("fp8"))
    elif kv_dtype == "fp8_ds_mla":
        roles |= {Role.LATENT: known_dtype("fp8_scaled_128"), Role.ROPE: known_dtype("bf16")}
    elif kv_dtype == "nvfp4_ds_mla":
        roles |= {Role.LATENT: known_dtype("nvfp4"), Role.ROPE: known_dtype("fp8")}
    elif kv_dtype in NVFP4:
        roles = dict.fromkeys(roles, known_dtype("nvfp4"))
    else:
        head = next((kind.head_dim for kind in kinds if isinstance(kind, AttentionKind)), None)
        if head is not None and kv_dtype in PER_TOKEN_HEAD:
            width = head * PER_TOKEN_HEAD[kv_dtype] // 8 + 4
            roles = dict.fromkeys(roles, DType(name=kv_dtype, block_elements=head, block_bytes=width))
        elif head is not None and kv_dtype in TURBOQUANT:
            key, value = _turboquant(kv_dtype, head)
            roles[Role.KEY] = DType(name=kv_dtype, block_elements=head, block_bytes=key)
            roles[Role.VALUE] = DType(name=kv_dtype, block_elements=head, block_bytes=value + (key + value) % 2)
    return {**roles, Role.INDEX: known_dtype("fp8_scaled_128"), Role.CONV: conv, Role.STATE: state}


ALWAYS_MADE: Final = {**{name: ("dtype", long) for name, long in LONG_NAMES.items()}, "fp8": ("quantization", "fp8")}
"""Format -> the flag, and its value, with which every release makes it of the published weights."""


_MADE: Final = {
    "int8": ("int8_per_channel_weight_only", "0.20", None),
    "fp8_block": ("fp8_per_block", "0.20", None),
    "fp8_channel": ("fp8_per_channel", "0.24", None),
    "mxfp8": ("mxfp8", "0.19", None),
    "bnb4": ("bitsandbytes", "0.8.2", "0.28"),
}
"""Format -> the value of ``--quantization`` that makes it, the first release that has it, and the first that has it no longer."""
_BITSANDBYTES: Final = ("bnb4", "bnb4_double", "bnb8")
_CAME: Final = {"nvfp4": "0.8", "mxfp4": "0.10.1", "mxfp8": "0.16"}
"""The first release that reads a checkpoint in this format; all others are older."""
_GONE: Final = {"GGUF": "0.24", "bitsandbytes": "0.28"}
"""The first release that no longer reads a group of formats."""


def quantizing_flag(name: str, version: str) -> tuple[str, str] | None:
    """The flag and its value with which this release makes weights of a format; ``None`` if they must be published so."""
    release = planned_version(version)
    value, came, gone = _MADE.get(name, ("", None, None))
    if came is None or release < since(came) or (gone is not None and release >= since(gone)):
        return ALWAYS_MADE.get(name)
    return "quantization", value


def check_weights(deployment: VllmDeployment) -> tuple[Note, ...]:
    """Raise an error for ``--weights`` in a format that this release does not read. A note says if a checkpoint in it is needed."""
    model, version, release = deployment.model, deployment.version, planned_version(deployment.version)
    if model.gguf is not None and model.gguf.tensors and release >= since(_GONE["GGUF"]):
        raise UnsupportedError(
            f"vLLM {version} does not read GGUF files: they left it with {_GONE['GGUF']}.",
            hint="Use: --engine llamacpp, or give the model that the file was made of.",
        )
    if deployment.setup.weights is None:
        return ()
    from hwcalc.quantization.ggml import MIXES
    from hwcalc.quantization.planned import format_name, planned_scheme

    name = format_name(deployment.setup.weights) or ""
    first = _CAME.get(name)
    if first is not None and release < since(first):
        raise UnsupportedError(
            f"vLLM {version} does not read weights in {name}.", hint=f"Use: --engine vllm@{first} or newer, or --weights awq"
        )
    family = "bitsandbytes" if name in _BITSANDBYTES else "GGUF" if name in MIXES else ""
    last = _GONE.get(family)
    if last is not None and release >= since(last):
        raise UnsupportedError(
            f"vLLM {version} does not read weights in {name}: {family} left it with {last}.",
            hint="Use: --weights awq for 4 bits or fp8 for 8, or leave out --engine for the formulas alone.",
        )
    published = planned_scheme(model, None)[0]
    if quantizing_flag(name, version) is not None or (published is not None and published.name == name):
        return ()
    message = (
        f"Planned as if a checkpoint in {name} were loaded: vLLM does not make {name} of the published weights. "
        "For its command line, give a model that is published so."
    )
    return (Note(code="needs-checkpoint", message=message),)

"""What a request to SGLang comes to, with every default filled in.

A server first settles its arguments by model and accelerator (``arg_groups/``), and then sizes its pools by them. Without an accelerator
nothing is settled: a bare byte budget is divided as the arguments say, and kernels are those of an H100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.engines.options import is_auto, is_on
from hwcalc.engines.request import Request
from hwcalc.engines.sglang.models import (
    COPIES_STATES,
    MINIMAX_SPARSE,
    ON_TRITON,
    TRTLLM_LATENT,
    is_compressed,
    is_sparse_latent,
)
from hwcalc.engines.sglang.options import OPTIONS
from hwcalc.engines.sglang.states import STATE_RULES
from hwcalc.errors import UnknownNameError
from hwcalc.formulas import LatentAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec
from hwcalc.text import shown

__all__ = ["KV_DTYPES", "SglangSettings", "capability_of", "read_settings"]

KV_DTYPES: Final = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16")
"""What ``--kv-cache-dtype`` takes."""
_SPELLINGS: Final = {"bfloat16": "bf16", "fp8": "fp8_e4m3"}
_STATE_NAMES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_HOPPER: Final = (9, 0)
_BLACKWELL: Final = 10
_SWA_RATIO: Final = 0.8
_DSV4_RATIO: Final = 0.1
_DSV4_REQUESTS: Final = 256
_EAGLE_REQUESTS: Final = 48
_MAMBA_RATIO: Final = 0.9
_INDEX_PAGE: Final = 64
_MINIMAX_PAGE: Final = 128
_FA4_PAGE: Final = 128
_DSV4_PAGE: Final = 256
_CHUNKS: Final = ((20, 2048), (35, 4096), (60, 4096), (160, 8192))
"""GiB that the accelerator has less than, and its tokens of a prompt in a batch; 16,384 above."""
_LARGEST_CHUNK: Final = 16_384
_USUAL_CHUNK: Final = 8192


@frozen
class SglangSettings:
    """The settings by which pools are sized. ``requests`` is ``None`` where SGLang takes as many as it thinks right.

    ``swa_ratio`` is ``None`` where window tokens follow from the number of requests.
    """

    kv_dtype: str
    element_bytes: int
    page_size: int
    chunk: int
    requests: int | None
    total_tokens: int | None
    swa_ratio: float | None
    radix: bool
    overlap: bool
    mamba_ratio: float
    mamba_slots: int | None
    strategy: str
    state_dtype: str | None
    dsa_backend: str
    draft_layers: int
    draft_tokens: int
    tp: int
    pp: int
    dp: int
    context: int
    fraction: float | None

    @property
    def own_requests(self) -> int | None:
        """Requests of one replica, as the user limits them."""
        return None if self.requests is None else max(1, self.requests // self.dp)

    @property
    def drafts(self) -> bool:
        """Whether a draft proposes tokens."""
        return self.draft_layers > 0


def capability_of(request: Request) -> tuple[int, int]:
    """The compute capability of the accelerator; that of an H100 if there is none or it has none."""
    gpu = request.hardware.gpu
    major, _, minor = ("" if gpu is None else gpu.compute_capability or "").partition(".")
    return (int(major), int(minor or 0)) if major.isdecimal() else _HOPPER


def read_settings(model: ModelSpec, request: Request) -> SglangSettings:
    """The settings of a request. Raises the error of SGLang for a KV dtype that it does not take."""
    options, major = request.options, capability_of(request)[0]
    kv_dtype = _kv_dtype(model, request.dtype, major)
    radix = not is_on(options.get("disable_radix_cache"))
    settled = request.hardware.gpu is not None
    states = any(type(group.kind) in STATE_RULES for group in model.stack.groups)
    strategy = "none"
    if states and radix:
        strategy = _strategy(model, options.get("mamba_scheduler_strategy", "auto"), settled=settled)
    layers, tokens = _option(options, "speculative") or (0, 0)
    named = _option(options, "max_running_requests")
    replicas = request.parallel.dp if is_on(options.get("enable_dp_attention")) else 1
    ratio = _option(options, "swa_full_tokens_ratio")
    return SglangSettings(
        kv_dtype=kv_dtype,
        element_bytes=2 if kv_dtype in ("bf16", "fp16") else 1,
        page_size=_option(options, "page_size") or _page_size(model, major),
        # Replicas that divide attention alone divide the batch of a pass, too (``handle_data_parallelism``).
        chunk=(_option(options, "chunked_prefill_size") or _chunk(request)) // replicas,
        requests=_requests(model, drafts=layers > 0, settled=settled, states=states) if named is None else named,
        total_tokens=_option(options, "max_total_tokens"),
        swa_ratio=_swa_ratio(model, ratio, by_request=named is not None, radix=radix, settled=settled),
        radix=radix,
        overlap=not is_on(options.get("disable_overlap_schedule")) and strategy != "no_buffer",
        mamba_ratio=_option(options, "mamba_full_memory_ratio") or _MAMBA_RATIO,
        mamba_slots=_option(options, "max_mamba_cache_size"),
        strategy=strategy,
        state_dtype=_STATE_NAMES.get(options.get("mamba_ssm_dtype", "auto")),
        dsa_backend=_dsa_backend(options.get("dsa_backend", "auto"), kv_dtype, major),
        draft_layers=layers,
        draft_tokens=tokens,
        tp=request.parallel.tp,
        pp=request.parallel.pp,
        dp=replicas,
        context=model.max_position_embeddings or request.seq,
        fraction=_option(options, "mem_fraction_static"),
    )


def _option(options: Mapping[str, str], name: str) -> Any:
    """The value of an option, or nothing."""
    return OPTIONS[name].check(name, options[name]) if name in options else None


def _kv_dtype(model: ModelSpec, requested: str | None, major: int) -> str:
    """The KV dtype by its short name. Raises :class:`~hwcalc.errors.UnknownNameError` for one that SGLang does not take."""
    if is_auto(requested):
        if is_compressed(model):
            return "fp8_e4m3"
        if is_sparse_latent(model) and major >= _BLACKWELL:
            return "fp8_e4m3"
        return "fp8_e4m3" if _declares_fp8(model) else "fp16" if model.dtype in ("fp16", "fp32") else "bf16"
    spelled = (requested or "").strip().lower()
    if spelled not in KV_DTYPES and spelled not in _SPELLINGS:
        raise UnknownNameError(
            f"--dtype {shown(requested or '', 40)}: SGLang does not take it as --kv-cache-dtype.",
            option="dtype",
            hint=f"Known: {', '.join(KV_DTYPES)}.",
        )
    return _SPELLINGS.get(spelled, spelled)


def _declares_fp8(model: ModelSpec) -> bool:
    """Whether the files ask for a cache in fp8 (``kv_cache_quant_algo``)."""
    scheme = model.quantization or {}
    nested = scheme.get("quantization")
    named = [one.get("kv_cache_quant_algo") for one in (scheme, nested) if isinstance(one, Mapping)]
    return "FP8" in (str(one).upper() for one in named if one)


def _page_size(model: ModelSpec, major: int) -> int:
    """What the attention backend needs that SGLang takes by itself (``arg_groups/model_overrides``, ``overrides.py``)."""
    if is_compressed(model):
        return _DSV4_PAGE
    if model.architecture in MINIMAX_SPARSE:
        return _MINIMAX_PAGE
    if is_sparse_latent(model):
        return _INDEX_PAGE
    if major != _BLACKWELL or model.architecture in ON_TRITON:
        return 1
    kinds = [group.kind for group in model.stack.groups]
    latent = any(isinstance(kind, LatentAttention) for kind in kinds)
    if latent:
        return _INDEX_PAGE if model.architecture in TRTLLM_LATENT else 1
    unlike = any(isinstance(kind, AttentionKind) and kind.head_dim != kind.v_head_dim for kind in kinds)
    return _FA4_PAGE if unlike else _INDEX_PAGE


def _chunk(request: Request) -> int:
    gpu = request.hardware.gpu
    if gpu is None or gpu.memory_total_mib is None:
        return _USUAL_CHUNK
    return next((chunk for below, chunk in _CHUNKS if gpu.memory_total_mib < below * 1024), _LARGEST_CHUNK)


def _requests(model: ModelSpec, *, drafts: bool, settled: bool, states: bool) -> int | None:
    """Requests at once where the user names no number; states of drafts cannot be counted without one."""
    if settled and is_compressed(model):
        return _DSV4_REQUESTS
    return _EAGLE_REQUESTS if drafts and (settled or states) else None


def _swa_ratio(model: ModelSpec, named: float | None, *, by_request: bool, radix: bool, settled: bool) -> float | None:
    """Window tokens for each token; ``None`` where their number follows from that of the requests.

    That is so without a prefix cache, whatever the ratio, and for DeepSeek-V4 while nobody has set one, as a server does.
    """
    if is_compressed(model):
        return named or (None if by_request and not settled else _DSV4_RATIO)
    if by_request and not radix:
        return None
    return named or _SWA_RATIO


def _strategy(model: ModelSpec, named: str, *, settled: bool) -> str:
    """How the prefix cache copies states."""
    if named != "auto":
        return named
    return "extra_buffer" if settled and model.architecture in COPIES_STATES else "no_buffer"


def _dsa_backend(named: str, kv_dtype: str, major: int) -> str:
    if named != "auto":
        return named
    return "trtllm" if major >= _BLACKWELL and kv_dtype == "fp8_e4m3" else "flashmla_sparse"

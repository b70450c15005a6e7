"""The settings of LMDeploy for one request, with every default filled in.

Sources: lmdeploy/messages.py, lmdeploy/utils.py get_max_batch_size, pytorch/config.py _update_torch_dtype, pytorch/engine/executor/base.py
_adjust_block_size, pytorch/configurations/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.capability import compute_capability
from hwcalc.engines.lmdeploy.classes import PYTORCH, TURBOMIND, frees_window
from hwcalc.engines.lmdeploy.formats import NONE, KvFormat, read_format
from hwcalc.engines.lmdeploy.options import OPTIONS, entry_count_option
from hwcalc.engines.options import is_on
from hwcalc.engines.request import Request
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import GatedDeltaNet, LatentAttention, SlidingAttention, SparseIndexer
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.profiles.gpus import Gpu

__all__ = ["LmdeploySettings", "read_settings"]

_BATCHES: Final = (("a100", 384), ("a800", 384), ("h100", 1024), ("h800", 1024), ("l20y", 1024), ("h200", 1024))
"""Part of a device's name, in the order in which LMDeploy looks -> ``max_batch_size``."""
_OTHER_BATCH: Final = 128
_HOPPER: Final = 90
_AMPERE: Final = 80
_WIDE_HEAD: Final = 512
_WIDE_HEAD_BLOCK: Final = 32
_MLA_BLOCK: Final = 64
_SPARE_SLOTS: Final = 2
"""A slot for the system, and one for rolling prefill."""


class LmdeploySettings(Record):
    """What a request comes to. ``window`` is that of the whole model, outside of which blocks are freed; 0 is none.

    ``sparse`` says that latents are in the fp8 rows of FlashMLA, with the keys of an indexer beside. ``slots`` are those of recurrent
    states, and ``reserved_blocks`` those that no request gets.
    """

    backend: str
    form: KvFormat
    model_dtype: str
    state_dtype: str
    tp: int
    block_size: int
    kernel_block_size: int
    ratio: float
    max_batch_size: int
    prefill_tokens: int
    num_gpu_blocks: int | None
    prefix_caching: bool
    window: int
    sparse: bool
    slots: int

    @property
    def pytorch(self) -> bool:
        """Whether this is the PyTorch back end."""
        return self.backend == PYTORCH

    @property
    def reserved_blocks(self) -> int:
        """The block of dummy inputs and padding, in PyTorch."""
        return int(self.pytorch)

    @property
    def spare_blocks(self) -> int:
        """Blocks that the longest sequence cannot have: PyTorch's sessions end a block before the last one."""
        return 2 * int(self.pytorch)


def read_settings(model: ModelSpec, request: Request) -> LmdeploySettings:
    """Fill in the defaults. Raises an error for settings that LMDeploy refuses."""
    options, gpu = request.options, request.hardware.gpu
    backend = options.get("backend", PYTORCH)
    form = read_format(request.dtype, options.get("quant_policy"), backend)
    kinds = {type(group.kind) for group in model.stack.groups}
    sparse = SparseIndexer in kinds
    if sparse:
        # FlashMLA's rows are fp8 whatever is asked for.
        form = NONE
        if not _has_flash_mla(request):
            raise UnsupportedError(
                "DeepSeek-V3.2 requires flash_mla to be available, says LMDeploy of sparse attention; it runs from Hopper on.",
                hint="Use: --gpu h200, without flash_mla=false",
            )
    dtype = _model_dtype(model, gpu)
    block, kernel = _blocks(model, request, backend, sparse=sparse)
    slots = _slots(request, backend) if GatedDeltaNet in kinds else 0
    count = options.get("cache_max_entry_count")
    entries = None if count is None else entry_count_option("cache_max_entry_count", count)
    if entries is not None and entries >= 1 and backend == PYTORCH:
        raise UsageError(
            f"invalid cache_max_entry_count, says LMDeploy's PyTorch back end: {entries} is no share.",
            hint="Use: --engine-option cache_max_entry_count=0.8, or num_gpu_blocks for blocks",
        )
    ratio = request.hardware.memory_utilization if entries is None or entries >= 1 else float(entries)
    if "num_gpu_blocks" in options and backend == TURBOMIND:
        raise UsageError(
            "num_gpu_blocks is an option of the PyTorch back end.",
            hint=f"Leave it out, or use: --engine-option backend={PYTORCH}",
        )
    window = _window(model) if backend == PYTORCH else 0
    asked = is_on(options.get("enable_prefix_caching"))
    return LmdeploySettings(
        backend=backend,
        form=form,
        model_dtype=dtype,
        state_dtype="fp32" if backend == PYTORCH and is_on(options.get("fp32_mamba_ssm_dtype")) else dtype,
        tp=request.parallel.tp,
        block_size=block,
        kernel_block_size=kernel,
        ratio=0.8 if ratio is None else ratio,
        max_batch_size=_batch(request),
        prefill_tokens=_number(request, "max_prefill_token_num", 8192),
        num_gpu_blocks=_fixed_blocks(request, entries),
        prefix_caching=asked and not window,
        window=window,
        sparse=sparse,
        slots=slots,
    )


def _number(request: Request, name: str, default: int) -> int:
    value = request.options.get(name)
    return default if value is None else int(str(OPTIONS[name].check(name, value)))


def _fixed_blocks(request: Request, entries: Fraction | None) -> int | None:
    """The blocks that are asked for by their number; ``None`` if the memory decides."""
    if entries is not None and entries >= 1:
        return int(entries)
    return _number(request, "num_gpu_blocks", 0) if "num_gpu_blocks" in request.options else None


def _model_dtype(model: ModelSpec, gpu: Gpu | None) -> str:
    """bf16 for a model of bf16 on a GPU that has it; everything else runs in fp16, and so does AWQ."""
    method = str((model.quantization or {}).get("quant_method", "")).lower()
    return "bf16" if model.dtype == "bf16" and method != "awq" and compute_capability(gpu) >= _AMPERE else "fp16"


def _batch(request: Request) -> int:
    """The sequences that run at once: by the name of the device; without a GPU those of an H100."""
    gpu = request.hardware.gpu
    name = "h100" if gpu is None else f"{gpu.id} {gpu.name}".lower()
    by_name = next((size for part, size in _BATCHES if part in name), _OTHER_BATCH)
    return _number(request, "max_batch_size", by_name)


def _slots(request: Request, backend: str) -> int:
    if backend == TURBOMIND:
        return _batch(request)
    return _batch(request) + _SPARE_SLOTS + _number(request, "prefix_cache_state_budget", 0)


def _window(model: ModelSpec) -> int:
    if not frees_window(model):
        return 0
    named = model.facts.sliding_window
    built = (group.kind.window for group in model.stack.groups if isinstance(group.kind, SlidingAttention))
    return named or max(built, default=0)


def _blocks(model: ModelSpec, request: Request, backend: str, *, sparse: bool) -> tuple[int, int]:
    """Tokens in a block, and in a block of the kernels."""
    asked = _number(request, "cache_block_seq_len", 64)
    kernel = _number(request, "kernel_block_size", asked)
    if backend == TURBOMIND:
        step = 32 if compute_capability(request.hardware.gpu) >= _AMPERE else 64
        if asked % step:
            raise UsageError(
                f"cache_block_seq_len={asked:,} is no multiple of {step}.", hint=f"TurboMind has blocks of {step}, {2 * step} ..."
            )
        return asked, asked
    if kernel < 16 or kernel & (kernel - 1) or asked % kernel:
        raise UsageError(
            f"cache_block_seq_len={asked:,} is no multiple of a kernel block of {kernel:,}, or that is no power of two from 16 on.",
            hint="Use: --engine-option cache_block_seq_len=64, and for other multiples kernel_block_size=16",
        )
    wide = [kind for kind in (group.kind for group in model.stack.groups) if isinstance(kind, LatentAttention)]
    if wide and model.architecture != "MiniCPM3ForCausalLM" and (sparse or _has_flash_mla(request)):
        if asked != _MLA_BLOCK:
            raise UsageError(f"cache_block_seq_len={asked:,}: flash_mla has blocks of 64.", hint="Leave it out.")
        return asked, kernel
    width = max((_key_width(group.kind) for group in model.stack.groups), default=0)
    return (_WIDE_HEAD_BLOCK, _WIDE_HEAD_BLOCK) if width >= _WIDE_HEAD and asked > _WIDE_HEAD_BLOCK else (asked, kernel)


def _key_width(kind: object) -> int:
    if isinstance(kind, LatentAttention):
        return kind.kv_lora_rank + kind.qk_rope_head_dim
    return int(getattr(kind, "head_dim", 0) or 0)


def _has_flash_mla(request: Request) -> bool:
    """Whether flash_mla is installed, which runs from Hopper on."""
    given = request.options.get("flash_mla")
    return compute_capability(request.hardware.gpu) >= _HOPPER and (given is None or is_on(given))

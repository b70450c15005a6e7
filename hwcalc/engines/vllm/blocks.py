"""The block size that vLLM settles on: by backend and GPU, then stretched until a block of attention holds a recurrent state.

Source: vLLM 0.33, platforms/cuda.py (order of backends), platforms/interface.py (alignment of hybrids).
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Final

from hwcalc.engines.vllm.specs import ceil_div
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import CompressedAttention, LatentAttention, LayerKind, SparseIndexer

if TYPE_CHECKING:
    from hwcalc.profiles.gpus import Gpu

__all__ = ["backend_block", "gpu_architecture", "hybrid_block", "kernel_block", "sparse_word"]

_DEFAULT: Final = 16
_HOPPER: Final = 90
_COMPRESSED_BLOCK: Final = 256
_INDEXED_BLOCK: Final = 64
_LATENT_MULTIPLE: Final = 128
_FLASHINFER_NOPE: Final = (64, 128, 192)


def gpu_architecture(gpu: Gpu | None) -> int:
    """Compute capability as a number, 9.0 as 90; an H100's where there is no GPU or it is not CUDA's."""
    if gpu is None or gpu.compute_capability is None:
        return _HOPPER
    major, _, low = gpu.compute_capability.partition(".")
    return int(major) * 10 + int(low or 0)


def sparse_word(word: str, architecture: int, *, plain: bool) -> str:
    """What a sparse latent backend makes of an fp8 word: on SM90 and SM12x DeepSeek's own layout, on SM10x plain fp8.

    ``plain`` says that the word is no quantized one. Raises :class:`~hwcalc.errors.UnsupportedError` where no backend exists.
    """
    family = architecture // 10
    if family not in (9, 10, 12):
        raise UnsupportedError(
            f"vLLM has no sparse latent attention for compute capability {architecture / 10:.1f}.",
            hint="Use a GPU of compute capability 9.0, 10.x or 12.x.",
        )
    if family == 12 or (family == 9 and not plain and word != "fp8_ds_mla"):
        return "fp8_ds_mla"
    return word


def kernel_block(kinds: frozenset[type[LayerKind]], word: str, architecture: int, nope: int | None) -> int:
    """The smallest block that the attention backend's kernels take, multiples of which they take too (or split).

    ``nope`` is the width of a latent layer's keys without positions.
    """
    if CompressedAttention in kinds:
        return _COMPRESSED_BLOCK
    if LatentAttention in kinds:
        if SparseIndexer in kinds:
            return _INDEXED_BLOCK
        if architecture // 10 == 9 and word.startswith("fp8"):
            return 64  # FLASHMLA; FLASH_ATTN_MLA has no fp8
        if architecture // 10 == 10:
            return 32 if nope in _FLASHINFER_NOPE else 128  # FLASHINFER_MLA, else CUTLASS_MLA
        return _DEFAULT
    if SparseIndexer in kinds:
        return 128  # MiniMax-M3
    return _DEFAULT


def backend_block(kernel: int, *, packed: bool, user: int | None) -> int:
    """Tokens of a block before recurrent states are looked at. ``packed``: outer layers stay at twice the packed layers' bytes."""
    size = user if user is not None else max(_DEFAULT, kernel)
    if user is not None and (user % kernel if kernel != _DEFAULT else user % _DEFAULT):
        raise UnsupportedError(
            f"block_size={user:,} is not taken by the attention backend of this model.", hint=f"Use a multiple of {kernel}."
        )
    # The packed page at 8 bits a element must cover a page of 16 tokens at 16 bits.
    return max(size, ceil_div(2 * _DEFAULT, size) * size) if packed else size


def hybrid_block(size: int, kernel: int, *, attention_row: int, state: int, latent: bool, alignment: int) -> int:
    """Tokens of a block once its attention page must hold a state of ``state`` bytes.

    ``attention_row`` is the bytes of a token of one attention layer. Jamba: states of 311,296 bytes beside 4,096 bytes a token
    make 80 tokens, the first multiple of 16 that holds one (80 x 4,096 = 327,680).
    """
    step = max(kernel, size, _LATENT_MULTIPLE if latent else 0)
    step = lcm(step, alignment)
    found = step * ceil_div(state, step * attention_row)
    return max(size, ceil_div(found, kernel) * kernel)

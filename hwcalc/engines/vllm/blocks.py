"""The block size that vLLM chooses: by attention backend and GPU, and then enlarged until an attention block holds a recurrent state.

Source: vLLM 0.33, platforms/cuda.py (order of backends), platforms/interface.py (alignment of hybrids).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwcalc.engines.vllm.specs import ceil_div
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import CompressedAttention, LatentAttention, LayerKind, SparseIndexer

if TYPE_CHECKING:
    from hwcalc.engines.vllm.rules import Rules

_DEFAULT: Final = 16
_COMPRESSED_BLOCK: Final = 256
_INDEXED_BLOCK: Final = 64
_WIDEST_HEAD: Final = 512
_FLASHINFER_NOPE: Final = (64, 128, 192)


def sparse_kv_dtype(kv_dtype: str, capability: int, *, keep: bool) -> str:
    """The KV dtype that a sparse latent backend uses: DeepSeek's own fp8 layout on SM90 and SM12x, ordinary fp8 on SM10x.

    ``keep`` says that SM90 keeps the requested dtype. Raises :class:`~hwcalc.errors.UnsupportedError` if there is no backend for the GPU.
    """
    family = capability // 10
    if family not in (9, 10, 12):
        raise UnsupportedError(
            f"vLLM has no sparse latent attention for compute capability {capability / 10:.1f}.",
            hint="Use a GPU of compute capability 9.0, 10.x or 12.x.",
        )
    if family == 12 or (family == 9 and not keep and kv_dtype != "fp8_ds_mla"):
        return "fp8_ds_mla"
    return kv_dtype


def kernel_block(
    kinds: frozenset[type[LayerKind]], kv_dtype: str, capability: int, nope: int | None, widest: int, rules: Rules
) -> int:
    """The smallest block size, in tokens, of the attention backend's kernels. They also accept its multiples, or split them.

    ``nope`` is the width of the keys without rotary positions in a latent layer, ``widest`` that of the widest head of other attention.
    """
    if CompressedAttention in kinds:
        return _COMPRESSED_BLOCK
    if LatentAttention in kinds:
        if SparseIndexer in kinds:
            return _INDEXED_BLOCK
        if capability // 10 == 9 and kv_dtype.startswith("fp8"):
            return 64  # FLASHMLA; FLASH_ATTN_MLA has no fp8
        if capability // 10 == 10 and rules.latent_block_sm10x:
            return rules.latent_block_sm10x
        if capability // 10 == 10:
            return 32 if nope in _FLASHINFER_NOPE else 128  # FLASHINFER_MLA, else CUTLASS_MLA
        return rules.latent_block if capability // 10 == 9 else _DEFAULT
    if SparseIndexer in kinds:
        return 128  # MiniMax-M3
    if capability // 10 == 9 and widest == _WIDEST_HEAD and kv_dtype in ("fp8", "fp8_e4m3"):
        return rules.wide_fp8_block  # FlashAttention 4
    return _DEFAULT


def backend_block(kernel: int, *, packed: bool, user: int | None) -> int:
    """Tokens in a block, before recurrent states are considered. ``user`` is the requested block size.

    ``packed`` is for turboquant, whose outer layers stay in the model dtype.
    """
    size = user if user is not None else max(_DEFAULT, kernel)
    if user is not None and (user % kernel if kernel != _DEFAULT else user % _DEFAULT):
        raise UsageError(
            f"block_size={user:,} is not taken by the attention backend of this model.", hint=f"Use a multiple of {kernel}."
        )
    # A packed page with 8 bits per element must hold a page of 16 tokens with 16 bits per element.
    return max(size, ceil_div(2 * _DEFAULT, size) * size) if packed else size


def compressed_block(user: int | None, rules: Rules) -> int:
    """Tokens in a block of compressed latent attention (DeepSeek-V4). ``user`` is the requested block size."""
    if user is not None and user not in rules.compressed_blocks:
        raise UsageError(
            f"block_size={user:,} is not known for compressed latent attention.",
            hint="Use: --engine-option block_size=" + " or ".join(map(str, rules.compressed_blocks)),
        )
    return user or _COMPRESSED_BLOCK


def hybrid_block(size: int, kernel: int, *, attention_row: int, state: int, step: int) -> int:
    """Tokens in a block of a hybrid model, whose attention page must hold a recurrent state of ``state`` bytes.

    ``attention_row`` is the bytes per token of one attention layer. Jamba has states of 311,296 bytes and attention of 4,096 bytes per
    token: a block has 80 tokens, the first multiple of 16 that holds a state (80 x 4,096 = 327,680).
    """
    tokens = step * ceil_div(state, step * attention_row)
    return max(size, ceil_div(tokens, kernel) * kernel)

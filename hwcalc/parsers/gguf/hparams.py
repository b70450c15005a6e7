"""The hyperparameters of a GGUF file as llama.cpp reads them: ``llama_hparams`` (src/llama-hparams.h) from the keys of the metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hwcalc.formulas.frozen import frozen

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

__all__ = ["Hparams", "hparams_of", "read_hparams"]


@frozen
class Hparams:
    """The values that bear on memory, with the names of llama.cpp. Tuples have one entry per layer (``n_layer_all`` entries).

    Zero or an empty tuple: the file does not say, or the architecture has no such thing. Four layers of which the last is dense have
    ``is_swa == (True, True, True, False)``.
    """

    arch: str
    n_layer_all: int
    """All blocks of the file, those for multi-token prediction included."""
    n_layer_nextn: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    causal: bool
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    head_k: int
    head_v: int
    head_k_swa: int
    head_v_swa: int
    n_rot: int
    key_length_mla: int
    value_length_mla: int
    kv_lora_rank: int
    n_swa: int
    """The window that llama.cpp uses; 0 where it ignores the one of the file."""
    is_swa: tuple[bool, ...]
    chunked: bool
    sliding_window: int
    """The window that the file names, whether or not llama.cpp uses it."""
    is_recurrent: tuple[bool, ...]
    kv_from_start: int | None
    """How many of the first layers have a cache of their own; ``None`` if all have."""
    ssm_d_conv: int
    ssm_d_inner: int
    ssm_d_state: int
    ssm_dt_rank: int
    ssm_n_group: int
    kda_head_dim: int
    wkv_head_size: int
    token_shift_count: int
    shortconv_l_cache: int
    indexer_n_head: int
    indexer_head_size: int
    indexer_top_k: int
    indexer_full: tuple[bool, ...]
    compress_ratios: tuple[int, ...]
    n_layer_dense_lead: int
    n_expert: int
    n_expert_used: int
    n_ff_exp: int
    n_ff_shexp: int

    @property
    def n_layer(self) -> int:
        """The layers of the main context: all but those for multi-token prediction."""
        return self.n_layer_all - self.n_layer_nextn


def read_hparams(keys: Mapping[str, Any]) -> Hparams:
    """Read the metadata of a file. Raises :class:`~hwcalc.errors.ConfigError` for a value that makes no sense."""
    raise NotImplementedError


def hparams_of(model: ModelSpec) -> Hparams:
    """The hyperparameters of a model: from its file, or from the keys that the converter would write for its config."""
    raise NotImplementedError

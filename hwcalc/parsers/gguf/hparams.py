"""The hyperparameters of a GGUF file as llama.cpp reads them: ``llama_hparams`` (src/llama-hparams.h) from the keys of the metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from hwcalc.errors import UnknownArchitectureError
from hwcalc.formulas.record import Record
from hwcalc.model import GGUF_ARCHITECTURE
from hwcalc.parsers.gguf.architectures import ARCHITECTURES, Architecture, SwaType
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.model import GgufTensor, ModelSpec

__all__ = ["HPARAMS", "Hparams", "hparams_of", "read_hparams"]

HPARAMS: Final = "gguf hparams"
"""Where a model keeps the result of :func:`hparams_of`."""


class Hparams(Record):
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
    n_rot_swa: int = 0
    key_length_mla: int = 0
    value_length_mla: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    kv_lora_rank_swa: int = 0
    key_length_mla_swa: int = 0
    value_length_mla_swa: int = 0
    n_swa: int = 0
    """The window that llama.cpp uses; 0 where it ignores the one of the file."""
    is_swa: tuple[bool, ...]
    swa_type: SwaType = "none"
    sliding_window: int = 0
    """The window that the file names, whether or not llama.cpp uses it."""
    named_swa: tuple[bool, ...] = ()
    """The layers that the file gives a window, where llama.cpp uses it for models of another depth alone; else empty."""
    is_recurrent: tuple[bool, ...]
    kv_from_start: int | None = None
    """How many of the first layers have a cache of their own; ``None`` if all have."""
    router_layer: int | None = None
    """A last block with one key and one value that chooses adapters (Granite Switch)."""
    loops: int = 1
    """How often the blocks of the file are run through, each time with a cache of its own."""
    ssm_d_conv: int = 0
    ssm_d_inner: int = 0
    ssm_d_state: int = 0
    ssm_dt_rank: int = 0
    ssm_n_group: int = 0
    kda_head_dim: int = 0
    head_la: int = 0
    """The width of a head of lightning attention."""
    wkv_head_size: int = 0
    token_shift_count: int = 2
    shortconv_l_cache: int = 0
    ple_conv_state: int = 0
    """Width of the convolution state of a layer with n-gram embeddings."""
    ple_layer: int | None = None
    indexer_n_head: int = 0
    indexer_head_size: int = 0
    indexer_top_k: int = 0
    indexer_kpool: int = 0
    indexer_full: tuple[bool, ...] = ()
    compress_ratios: tuple[int, ...] = ()
    n_layer_dense_lead: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_expert_shared: int = 0
    n_ff_exp: int = 0
    n_ff_shexp: int = 0
    hyper_connections: int = 0
    dec_n_layer: int = 0
    n_embd_per_layer: int = 0
    """Width of an embedding that each layer has for itself (Gemma 3n and 4)."""

    @property
    def architecture(self) -> Architecture:
        """The row of the architecture."""
        return ARCHITECTURES[self.arch]

    @property
    def n_layer(self) -> int:
        """The layers of the main context: all but those for multi-token prediction."""
        return self.n_layer_all - self.n_layer_nextn

    @property
    def chunked(self) -> bool:
        """Whether a window begins anew after every ``n_swa`` tokens."""
        return self.swa_type == "chunked"

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are one latent vector."""
        return bool(self.key_length_mla and self.value_length_mla)

    def head_width_k(self, layer: int) -> int:
        """Numbers in a key of one head."""
        return self.head_k_swa if self.is_swa[layer] else self.head_k

    def head_width_v(self, layer: int) -> int:
        """Numbers in a value of one head."""
        return self.head_v_swa if self.is_swa[layer] else self.head_v

    def n_embd_k_gqa(self, layer: int) -> int:
        """Numbers that a token's keys have in a layer, all heads together."""
        return self.head_width_k(layer) * self.n_head_kv[layer]

    def n_embd_v_gqa(self, layer: int) -> int:
        """Numbers that a token's values have in a layer."""
        return self.head_width_v(layer) * self.n_head_kv[layer]

    @cached_property
    def query_width(self) -> int:
        """Numbers of a token's queries in the widest layer."""
        if self.is_mla:
            return max(self.n_head) * self.key_length_mla
        return max((self.n_head[n] * self.head_width_k(n) for n in range(self.n_layer)), default=0)

    @cached_property
    def attention_width(self) -> int:
        """Numbers that the attention gives for a token in the widest layer."""
        if self.is_mla:
            return max(self.n_head) * self.value_length_mla
        return max((self.n_head[n] * self.head_width_v(n) for n in range(self.n_layer)), default=0)

    @property
    def n_embd_v_gqa_max(self) -> int:
        """The widest values of all layers."""
        return max(map(self.n_embd_v_gqa, range(self.n_layer_all)))

    @property
    def n_embd_r(self) -> int:
        """Numbers in the rolling state of a recurrent layer: last inputs of a convolution, or token shifts."""
        if self.wkv_head_size:
            return self.token_shift_count * self.n_embd
        if self.shortconv_l_cache:
            return self.n_embd * (self.shortconv_l_cache - 1)
        inputs = max(0, self.ssm_d_conv - 1)
        if self.kda_head_dim:
            return 3 * (inputs if self.ssm_d_conv else 3) * self.n_head[0] * self.kda_head_dim
        return inputs * (self.ssm_d_inner + 2 * self.ssm_n_group * self.ssm_d_state)

    @property
    def n_embd_s(self) -> int:
        """Numbers in the state of a recurrent layer that every token updates."""
        if self.wkv_head_size:
            return self.n_embd * self.wkv_head_size
        width = self.kda_head_dim or self.head_la
        return width * width * self.n_head[0] if width else self.ssm_d_state * self.ssm_d_inner


def read_hparams(keys: Mapping[str, Any], tensors: Sequence[GgufTensor] = ()) -> Hparams:
    """Read the metadata of a file. ``tensors`` are those of the file, if it is one.

    Raises :class:`~hwcalc.errors.UnknownArchitectureError` for an architecture that llama.cpp does not know, and
    :class:`~hwcalc.errors.ConfigError` for a value that makes no sense.
    """
    from hwcalc.parsers.gguf.keys import Keys, architecture_name
    from hwcalc.parsers.gguf.reading import read_values

    name = architecture_name(keys)
    row = ARCHITECTURES.get(name)
    if row is None:
        raise _unknown(name)
    return Hparams(**read_values(Keys(keys, name), row, tensors))


def _unknown(name: str) -> UnknownArchitectureError:
    from difflib import get_close_matches

    near = get_close_matches(name[:60], ARCHITECTURES, 3)
    known = (
        f"Near it: {', '.join(near)}." if near else f"llama.cpp v0.5.0 knows {len(ARCHITECTURES)}, such as llama, qwen3, gemma3."
    )
    return UnknownArchitectureError(
        f"No parser knows {GGUF_ARCHITECTURE} {shown(name, 60)}.",
        hint=f"{known} Give the model's config.json instead, if it has one.",
    )


def hparams_of(model: ModelSpec) -> Hparams:
    """The hyperparameters of a model: from its file, or from the keys that the converter would write for its config."""

    def make() -> Hparams:
        if model.gguf is not None:
            return read_hparams(model.gguf.keys, model.gguf.tensors)
        from hwcalc.parsers.gguf.from_config import gguf_keys

        return read_hparams(gguf_keys(model))

    found: Hparams = model.once(HPARAMS, make)
    return found

"""The settings of a context with every default filled in, and the cells that follow from them (src/llama-context.cpp)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from hwcalc.engines.llamacpp.options import OPTIONS, cache_type
from hwcalc.engines.options import is_auto
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Dtypes
from hwcalc.errors import UsageError
from hwcalc.formulas import DType, Role
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.parsers.gguf.hparams import Hparams

__all__ = [
    "CELLS",
    "MAX_SEQUENCES",
    "STATE_DTYPE",
    "Settings",
    "dtypes_asked",
    "dtypes_of",
    "read_settings",
    "rounded_up",
    "settings_at",
]

CELLS: Final = 256
"""``GGML_PAD(n_ctx, 256)``: cells come in multiples of this."""
MAX_SEQUENCES: Final = 256
"""``LLAMA_MAX_SEQ`` (src/llama-cparams.h)."""
STATE_DTYPE: Final = DType(name="fp32", block_elements=1, block_bytes=4)
"""``GGML_TYPE_F32``, which ``create_memory`` names for every recurrent state (src/llama-model.cpp)."""
_GGML: Final = {"fp16": "f16", "fp32": "f32"}
"""ggml's names, where they are others."""


def rounded_up(count: int, multiple: int = CELLS) -> int:
    """The next multiple: 300 cells are 512."""
    return -(-count // multiple) * multiple


class Settings(Record):
    """Everything that the sizes of a context depend on beside the model, with the names of llama.cpp.

    Those that follow from length and number of sequences are arrays where these are (:func:`settings_at`).
    """

    n_ctx_asked: int
    """``n_ctx`` before it is rounded."""
    n_ctx: int
    """Cells of all streams together, as ``llama_n_ctx`` says."""
    n_ctx_seq: int
    """Cells of one stream, of which one sequence has at most so many."""
    n_seq_max: int
    kv_unified: bool
    n_stream: int
    """Buffers of cells: one for all sequences, or one for each."""
    n_batch: int
    n_ubatch: int
    n_outputs: int
    """Most tokens of a batch whose logits are computed."""
    type_k: DType
    type_v: DType
    flash_attn: bool
    """Whether values lie as flash attention wants them. ``auto`` counts as on: the cache is made before it is tried."""
    flash_attn_asked: bool | None
    """What was asked; ``None`` is auto."""
    swa_full: bool
    n_rs_seq: int
    """Older recurrent states kept for each sequence; 0 where the architecture has no such thing."""
    load_mtp: bool
    drafts: bool
    """Whether this is the context of multi-token prediction."""
    cells_swa: int
    """Cells of a stream in layers with a window."""
    server: bool
    """Whether the defaults are those of llama-server."""
    ollama: bool

    @property
    def named(self) -> dict[str, int | str | bool]:
        """What the log of llama.cpp says of a context when it is made."""
        attention = "auto" if self.flash_attn_asked is None else "on" if self.flash_attn_asked else "off"
        return {
            "n_seq_max": self.n_seq_max,
            "n_ctx": self.n_ctx,
            "n_ctx_seq": self.n_ctx_seq,
            "n_batch": self.n_batch,
            "n_ubatch": self.n_ubatch,
            "n_rs_seq": self.n_rs_seq,
            "kv_unified": self.kv_unified,
            "swa_full": self.swa_full,
            "flash_attn": attention,
            "type_k": _GGML.get(self.type_k.name, self.type_k.name),
            "type_v": _GGML.get(self.type_v.name, self.type_v.name),
        }

    @property
    def state_rows(self) -> int:
        """Recurrent states in each layer: one for each sequence, and those kept for going back."""
        return self.n_seq_max * (1 + self.n_rs_seq)

    @property
    def outputs(self) -> int:
        """Tokens of a batch whose logits are reserved."""
        outputs: int = smaller(self.n_ubatch, self.n_outputs)
        return outputs

    @property
    def tokens_each(self) -> int:
        """Tokens of a batch that are of one sequence."""
        return -(-self.n_ubatch // self.n_seq_max)

    @property
    def alone(self) -> int:
        """1 if there is one sequence, 0 if there are more."""
        return (self.n_seq_max == 1) * 1

    @property
    def groups_of_4(self) -> int:
        """Cells of a stream for latents of four tokens (``DSV4_CSA_RATIO``)."""
        return self.group_cells(4)

    @property
    def groups_of_128(self) -> int:
        """Cells of a stream for latents of 128 tokens (``DSV4_HCA_RATIO``)."""
        return self.group_cells(128)

    def group_cells(self, ratio: int) -> int:
        """Cells of a stream where one is for a group of tokens."""
        return rounded_up(larger(1, -(-self.n_ctx_seq // ratio)))


def read_settings(request: Request, read: Hparams) -> Settings:
    """The settings of a request about a model."""
    options = _parsed(request)
    sequences = max(1, options.get("n_seq_max", request.replica_batch))
    if sequences > MAX_SEQUENCES:
        raise UsageError(
            f"llama.cpp runs at most {MAX_SEQUENCES} sequences at once (asked: {sequences:,}).",
            hint=f"Use: --batch {MAX_SEQUENCES}, or start several servers: --dp {-(-sequences // MAX_SEQUENCES)}",
        )
    asked = options.get("n_ctx", request.seq * request.replica_batch) or read.n_ctx_train
    return _settings(options, read, _cache_types(request, options), asked, sequences)


def settings_at(request: Request, read: Hparams, tokens: int, sequences: int, batch: int | None = None) -> Settings:
    """The settings for so many sequences of so many tokens, integers or arrays; ``batch`` is what the program chooses as n_batch and n_ubatch.

    The request names neither a context nor how many sequences there are.
    """
    options = _parsed(request)
    if batch is not None:
        options |= {"n_batch": batch, "n_ubatch": batch}
    return _settings(options, read, _cache_types(request, options), tokens * sequences, sequences)


def _settings(options: Mapping[str, Any], read: Hparams, types: tuple[DType, DType], asked: int, sequences: int) -> Settings:
    """``asked`` are the cells of all sequences."""
    row = read.architecture
    server = options.get("defaults", "server") == "server"
    batch, unified = options.get("n_batch", 2048), options.get("kv_unified", False)
    n_batch = smaller(asked, batch) if read.causal else batch
    n_ubatch = smaller(n_batch, options.get("n_ubatch", 512))
    per_stream = rounded_up(asked) if unified else rounded_up(rounded_up(asked) // sequences)
    swa_full, drafts = options.get("swa_full", not server), options.get("ctx_type") == "mtp"
    # The caches of DeepSeek-V4 are apart for each sequence, whatever was asked (src/llama-kv-cache-dsv4.cpp).
    shared = unified and (row.memory != "compressed" or drafts)
    reach = read.n_swa * (sequences if shared else 1) + n_ubatch
    asked_attention = options.get("flash_attn")
    if row.keeps_flash_attention_off:
        asked_attention = False
    # A search makes very many.
    return Settings(
        n_ctx_asked=asked,
        n_ctx=per_stream if unified else per_stream * sequences,
        n_ctx_seq=per_stream,
        n_seq_max=sequences,
        kv_unified=unified,
        n_stream=1 if shared else sequences,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_outputs=_outputs(options, n_batch, sequences, server=server),
        type_k=types[0],
        type_v=types[1],
        flash_attn=asked_attention is not False,
        flash_attn_asked=asked_attention,
        swa_full=swa_full,
        n_rs_seq=options.get("n_rs_seq", 0) if row.rollback else 0,
        load_mtp=options.get("load_mtp", False),
        drafts=drafts,
        cells_swa=per_stream if swa_full else rounded_up(smaller(per_stream, reach)),
        server=server,
        ollama=options.get("ollama", False),
    )


def _parsed(request: Request) -> dict[str, Any]:
    options = {name: OPTIONS[name].check(name, value) for name, value in request.options.items() if name in OPTIONS}
    if options.get("n_ubatch") == 0:
        # As large as a batch is asked to be.
        options["n_ubatch"] = options.get("n_batch", 2048)
    return options


def _cache_types(request: Request, options: Mapping[str, Any]) -> tuple[DType, DType]:
    """The formats of keys and values: each by its own option, else by ``--dtype``, else 16-bit floats."""
    spelled = "f16" if is_auto(request.dtype) else (request.dtype or "").strip().lower()
    key, _, value = spelled.partition(":")
    return (
        options.get("type_k") or cache_type("--dtype", key),
        options.get("type_v") or cache_type("--dtype", value or key),
    )


@lru_cache(maxsize=128)
def dtypes_of(key: DType, value: DType) -> Dtypes:
    """The formats of all that a cache holds, from those of keys and values."""
    roles = {
        Role.KEY: key,
        Role.VALUE: value,
        Role.LATENT: key,
        Role.ROPE: key,
        Role.INDEX: key,
        Role.STATE: STATE_DTYPE,
        Role.CONV: STATE_DTYPE,
    }
    return Dtypes(kv=key.name if key == value else f"{key.name}:{value.name}", roles=MappingProxyType(roles))


def dtypes_asked(request: Request) -> Dtypes:
    """The formats that a request asks for, whatever the model."""
    return dtypes_of(*_cache_types(request, _parsed(request)))


def _outputs(options: Mapping[str, Any], n_batch: int, sequences: int, *, server: bool) -> int:
    """llama-server computes logits for one token of each slot, and for what a draft proposes; other programs for a whole batch."""
    return sequences * (1 + options.get("n_rs_seq", 0)) if server else n_batch

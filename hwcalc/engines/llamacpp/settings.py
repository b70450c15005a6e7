"""The settings of a context with every default filled in, and the cells that follow from them (src/llama-context.cpp)."""

from __future__ import annotations

from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.llamacpp.options import OPTIONS, cache_type
from hwcalc.engines.options import is_auto
from hwcalc.engines.stored import Dtypes
from hwcalc.errors import UsageError
from hwcalc.formulas import DType, Role
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.parsers.gguf.hparams import Hparams

if TYPE_CHECKING:
    from hwcalc.engines.setup import Request, Setup
    from hwcalc.parsers.gguf.hparams import Hparams

CELLS: Final = 256
"""``GGML_PAD(n_ctx, 256)``: cells come in multiples of this."""
MAX_SEQUENCES: Final = 256
"""``LLAMA_MAX_SEQ`` (src/llama-cparams.h)."""
STATE_DTYPE: Final = DType(name="fp32", block_elements=1, block_bytes=4)
"""``GGML_TYPE_F32``, which ``create_memory`` names for every recurrent state (src/llama-model.cpp)."""
_GGML: Final = {"fp16": "f16", "fp32": "f32"}
"""ggml's names, where they are others."""


def rounded_up(count: int, multiple: int = CELLS) -> int:
    """The count rounded up to a multiple: 300 cells become 512."""
    return -(-count // multiple) * multiple


class Settings(Record):
    """The settings on which the sizes of a context depend, without the model, with the names of llama.cpp.

    Those that follow from length and number of sequences are arrays where these are (:meth:`ContextOptions.settings`).
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
        """The settings by the names that llama.cpp's log has for them when a context is made."""
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
        """The number of recurrent states in each layer: one for each sequence, and those kept for going back."""
        return self.n_seq_max * (1 + self.n_rs_seq)

    @property
    def outputs(self) -> int:
        """The number of tokens of a batch whose logits are reserved."""
        outputs: int = smaller(self.n_ubatch, self.n_outputs)
        return outputs

    @property
    def tokens_each(self) -> int:
        """The number of tokens of a batch that belong to a single sequence."""
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


class ContextOptions(Record):
    """The options of a context, whatever the load. A value is ``None`` where the load decides it."""

    n_ctx: int | None
    n_seq_max: int | None
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    dtype: str | None
    """The text of ``--dtype``."""
    type_k: DType | None
    type_v: DType | None
    swa_full: bool
    flash_attn: bool | None
    """``None`` is auto."""
    n_rs_seq: int
    load_mtp: bool
    drafts: bool
    """Whether this is the context of multi-token prediction."""
    server: bool
    ollama: bool

    @classmethod
    def of(cls, setup: Setup) -> ContextOptions:
        """The options of a setup. Raises :class:`~hwcalc.errors.UsageError` for a value that llama.cpp would refuse."""
        options: dict[str, Any] = {
            name: OPTIONS[name].check(name, value) for name, value in setup.options.items() if name in OPTIONS
        }
        server = options.get("defaults", "server") == "server"
        n_batch = options.get("n_batch", 2048)
        n_ubatch = options.get("n_ubatch", 512)
        return cls(
            n_ctx=options.get("n_ctx"),
            n_seq_max=options.get("n_seq_max"),
            kv_unified=options.get("kv_unified", False),
            n_batch=n_batch,
            # 0 is as large as a batch is asked to be.
            n_ubatch=n_ubatch if "n_ubatch" not in options else n_ubatch or n_batch,
            dtype=setup.dtype,
            type_k=options.get("type_k"),
            type_v=options.get("type_v"),
            swa_full=options.get("swa_full", not server),
            flash_attn=options.get("flash_attn"),
            n_rs_seq=options.get("n_rs_seq", 0),
            load_mtp=options.get("load_mtp", False),
            drafts=options.get("ctx_type") == "mtp",
            server=server,
            ollama=options.get("ollama", False),
        )

    @cached_property
    def types(self) -> tuple[DType, DType]:
        """The formats of keys and values: each by its own option, else by ``--dtype``, else 16-bit floats."""
        spelled = "f16" if is_auto(self.dtype) else (self.dtype or "").strip().lower()
        key, _, value = spelled.partition(":")
        return self.type_k or cache_type("--dtype", key), self.type_v or cache_type("--dtype", value or key)

    def slots(self, planned: int) -> int:
        """How many sequences the context is made for: as many as the options name, or as are planned.

        Raises :class:`~hwcalc.errors.UsageError` for more than llama.cpp runs at once.
        """
        sequences = max(1, planned if self.n_seq_max is None else self.n_seq_max)
        if sequences > MAX_SEQUENCES:
            raise UsageError(
                f"llama.cpp runs at most {MAX_SEQUENCES} sequences at once (asked: {sequences:,}).",
                hint=f"Use: --batch {MAX_SEQUENCES}, or start several servers: --dp {-(-sequences // MAX_SEQUENCES)}",
            )
        return sequences

    def settings(self, read: Hparams, cells: int, sequences: int, batch: int | None = None) -> Settings:
        """The settings of a context of ``cells`` tokens for all sequences together; integers or arrays.

        ``batch`` is the number of tokens that the program chooses as n_batch and n_ubatch, where it does.
        """
        row, unified = read.architecture, self.kv_unified
        n_batch, n_ubatch = (self.n_batch, self.n_ubatch) if batch is None else (batch, batch)
        n_batch = smaller(cells, n_batch) if read.causal else n_batch
        n_ubatch = smaller(n_batch, n_ubatch)
        per_stream = rounded_up(cells) if unified else rounded_up(rounded_up(cells) // sequences)
        # The caches of DeepSeek-V4 are apart for each sequence, whatever was asked (src/llama-kv-cache-dsv4.cpp).
        shared = unified and (row.memory != "compressed" or self.drafts)
        reach = read.n_swa * (sequences if shared else 1) + n_ubatch
        flash_attn = False if row.keeps_flash_attention_off else self.flash_attn
        type_k, type_v = self.types
        return Settings(
            n_ctx_asked=cells,
            n_ctx=per_stream if unified else per_stream * sequences,
            n_ctx_seq=per_stream,
            n_seq_max=sequences,
            kv_unified=unified,
            n_stream=1 if shared else sequences,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            # llama-server computes logits for one token of each slot, and for what a draft proposes; other programs for a whole batch.
            n_outputs=sequences * (1 + self.n_rs_seq) if self.server else n_batch,
            type_k=type_k,
            type_v=type_v,
            flash_attn=flash_attn is not False,
            flash_attn_asked=flash_attn,
            swa_full=self.swa_full,
            n_rs_seq=self.n_rs_seq if row.rollback else 0,
            load_mtp=self.load_mtp,
            drafts=self.drafts,
            cells_swa=per_stream if self.swa_full else rounded_up(smaller(per_stream, reach)),
            server=self.server,
            ollama=self.ollama,
        )


def read_settings(request: Request, read: Hparams) -> Settings:
    """The settings of a request about a model."""
    context, batch = ContextOptions.of(request.setup), request.replica_batch
    sequences = context.slots(batch)
    cells = request.seq * batch if context.n_ctx is None else context.n_ctx
    return context.settings(read, cells or read.n_ctx_train, sequences)


@lru_cache(maxsize=128)
def dtypes_of(key: DType, value: DType) -> Dtypes:
    """The formats of all tensors of a cache, from those of keys and values."""
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


def dtypes_asked(setup: Setup) -> Dtypes:
    """The formats of the cache that a setup names, whatever the model."""
    return dtypes_of(*ContextOptions.of(setup).types)

"""The options of llama.cpp, and the settings of a context with every default filled in (src/llama-context.cpp).

Options of a context have the names of ``llama_context_params`` and ``llama_model_params`` (include/llama.h). The others say where layers and
tensors lie, and how much memory stays free. From the settings follow the cells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from hwcalc.engines.llamacpp.builds import NEWEST_RULES, BuildRules
from hwcalc.engines.llamacpp.tensors import overrides
from hwcalc.engines.options import choice_option, integer_option, is_auto, options_of, size_option
from hwcalc.engines.stored import Dtypes
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import DType, Role
from hwcalc.formulas.arithmetic import ceil_div, larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.parsers.gguf.hparams import Hparams
from hwcalc.profiles.dtypes import find_dtype
from hwcalc.text import brief
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import Override
    from hwcalc.engines.setup import Request, Setup

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""``kv_cache_types`` (common/arg.cpp)."""

DRAFTED: Final = 3
"""``common_params_speculative_draft.n_max`` (common/common.h): tokens that are drafted at a time."""

_MOST: Final = 2**31 - 1
_CONTEXTS: Final = ("default", "mtp")
_WORDS: Final = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def switch(name: str, value: str) -> bool:
    """True if a switch is on, from the text of the option. Raises an error for other words."""
    if value.lower() not in _WORDS:
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is not known.", hint="Allowed: true, false (or 1, 0, on, off)."
        )
    return _WORDS[value.lower()]


def _auto_switch(name: str, value: str) -> bool | None:
    # LLAMA_FLASH_ATTN_TYPE_AUTO is -1.
    return None if value.lower() in ("auto", "-1") else switch(name, value)


def _context_type(name: str, value: str) -> str:
    """The context type, from its word or its number in ``llama_context_type``."""
    word = _CONTEXTS[int(value)] if value in ("0", "1") else value
    return choice_option(*_CONTEXTS)(name, word)


_NEAREST: Final = (("16", "f16"), ("32", "f32"), ("8", "q8_0"), ("5", "q5_1"), ("4", "q4_0"))
"""The cache that people mean by a number of bits: fp8, q4."""


@lru_cache(maxsize=64)
def cache_type(name: str, value: str) -> DType:
    """The format of keys or of values. Raises :class:`~hwcalc.errors.UnsupportedError` for one that llama.cpp has no cache in."""
    dtype = find_dtype(value.strip().lower())
    if dtype is None or dtype not in map(find_dtype, CACHE_TYPES):
        near = next((f"Nearest: {name}. " for bits, name in _NEAREST if bits in value), "")
        raise UnsupportedError(
            f"{name} {brief(value, 40)}: llama.cpp has no cache in this format.", hint=f"{near}Allowed: {', '.join(CACHE_TYPES)}."
        )
    return dtype


F16: Final = cache_type("type_k", "f16")
_CACHE: Final = f"one of {', '.join(CACHE_TYPES)}"


OPTIONS: Final = options_of(
    ("n_ctx", "tokens of all sequences together; 0 is the model's own context (-c)", "seq x batch", integer_option(0, _MOST)),
    ("n_seq_max", "sequences at once, llama-server's slots (-np)", "batch", integer_option(0, _MOST)),
    ("kv_unified", "one buffer for all sequences in place of one for each (-kvu)", "false", switch),
    ("n_batch", "most tokens of a batch (-b)", "2048", integer_option(0, _MOST)),
    ("n_ubatch", "most tokens that are computed at once (-ub)", "512", integer_option(0, _MOST)),
    ("type_k", f"format of keys: {_CACHE} (-ctk)", "f16", cache_type),
    ("type_v", f"format of values (-ctv): {_CACHE}", "f16", cache_type),
    ("type_k_draft", f"format of a draft's keys: {_CACHE} (-ctkd)", "f16", cache_type),
    ("type_v_draft", "format of a draft's values (-ctvd)", "f16", cache_type),
    ("swa_full", "whether layers with a window keep all tokens (--swa-full)", "false; true with defaults=api", switch),
    ("flash_attn", "flash attention: auto, on or off (-fa)", "auto", _auto_switch),
    (
        "n_rs_seq",
        "tokens drafted at a time, for which older recurrent states are kept",
        "0; 3 with load_mtp",
        integer_option(0, 1024),
    ),
    ("load_mtp", "load the layers for multi-token prediction (--spec-type draft-mtp)", "false", switch),
    (
        "mtp_layers",
        "0 for a file that was made without the layers for multi-token prediction",
        "as the model has",
        choice_option("0"),
    ),
    ("ctx_type", "which context: the main one, or that of multi-token prediction", "default", _context_type),
    ("defaults", "whose defaults: of llama-server and llama-cli, or of the library", "server", choice_option("api", "server")),
    ("ollama", "start as Ollama does", "false", switch),
)


FIT_TARGET_MIB: Final = 1024
"""common/common.h ``fit_params_target``: what ``--fit`` leaves free on each device."""
FIT_CTX: Final = 4096
"""common/common.h ``fit_params_min_ctx``: ``--fit`` does not shrink a context below it."""
MOST_DEVICES: Final = 16
"""src/llama.cpp ``llama_max_devices``."""
_MOST_GBPS: Final = 20_000
_MOST_LAYERS: Final = 100_000


def _layers(name: str, value: str) -> int | str:
    text = {"-1": "auto", "-2": "all"}.get(value.strip(), value.strip().lower())
    return text if text in ("auto", "all") else integer_option(0, _MOST_LAYERS)(name, text)


def _shares(name: str, value: str) -> tuple[float, ...]:
    parts = re.split(r"[,/]+", value.strip()[:400])
    if not all(re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", part, re.ASCII) for part in parts) or len(parts) > MOST_DEVICES:
        message = f"engine option {name}={brief(value, 40)} is no list of shares."
        raise UsageError(message, hint=f"One number a GPU, {MOST_DEVICES} at most: {name}=3,1")
    return tuple(map(float, parts))


def _gbps(name: str, value: str) -> float:
    text = value.strip()[:40]
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", text, re.ASCII) or not 1 <= float(text) <= _MOST_GBPS:
        message = f"engine option {name}={brief(value, 40)} is no bandwidth: from 1 to {_MOST_GBPS:,} GB/s."
        raise UsageError(message, hint=f"Two channels of DDR5-5600 have 89.6 GB/s, of DDR4-3200 51.2: {name}=51.2")
    return float(text)


PLACE_OPTIONS: Final = options_of(
    ("n_gpu_layers", "layers on the GPU: a number, all, or auto (what fits)", "auto", _layers),
    ("n_cpu_moe", "layers, from the first, whose experts stay in host memory", "0", integer_option(0, _MOST_LAYERS)),
    ("cpu_moe", "keep all experts in host memory", "false", switch),
    ("override_tensor", "tensors on another device: PATTERN=CPU", "", lambda _, value: overrides(value)),
    ("tensor_split", "share of the layers on each GPU: 3,1", "by free memory", _shares),
    ("split_mode", "how several GPUs divide the model", "layer", choice_option("none", "layer", "row")),
    ("main_gpu", "the GPU that is used with split_mode=none", "0", integer_option(0, MOST_DEVICES - 1)),
    ("no_kv_offload", "keep the cache in host memory", "false", switch),
    ("fit", "leave layers in host memory where the GPU is too small", "true", switch),
    ("fit_target", "MiB of each GPU that stay free", str(FIT_TARGET_MIB), integer_option(0, 2**30)),
    ("fit_ctx", "the shortest context that fitting by itself leads to", str(FIT_CTX), integer_option(1)),
    ("no_extra_bufts", "keep weights as they are, not repacked for the processor (-nr)", "false", switch),
    ("host_bandwidth", "GB/s that the memory of the host delivers", "89.6", _gbps),
    ("mmproj", "memory of a projector (--mmproj), as llama-server's log estimates it: 1178MiB", "none", size_option),
    ("host_memory", "memory of the host that llama.cpp may take: 64GiB", "not known", size_option),
)


class PlaceOptions(Record):
    """The options, parsed. ``n_gpu_layers`` is ``None`` where llama.cpp fits the layers by itself, and -1 for all."""

    n_gpu_layers: int | None
    n_cpu_moe: int
    cpu_moe: bool
    overrides: tuple[Override, ...]
    tensor_split: tuple[float, ...]
    split_mode: Literal["none", "layer", "row"]
    main_gpu: int
    kv_on_host: bool
    target_bytes: int
    shortest: int
    no_repack: bool
    projector_bytes: int
    host_bytes: int | None
    host_gbps: float | None


def place_options(options: Mapping[str, str], *, default: str = "fit") -> PlaceOptions:
    """Parse the options of a request. ``default`` is what a program does if no option says where layers lie: ``fit``, ``all`` or ``none`` of them.

    As common/fit.cpp, it does not fit them where the user says so.
    """
    given: dict[str, Any] = {name: option.check(name, options[name]) for name, option in PLACE_OPTIONS.items() if name in options}
    fixed = (
        options.keys() & {"n_cpu_moe", "override_tensor", "tensor_split"}
        or given.get("cpu_moe")
        or options.get("split_mode") == "row"
    )
    layers = given.get("n_gpu_layers", 0 if default == "none" else "auto")
    if layers == "auto" and not fixed and given.get("fit", True) and default == "fit":
        layers = None
    return PlaceOptions(
        n_gpu_layers=-1 if isinstance(layers, str) else layers,
        n_cpu_moe=given.get("n_cpu_moe", 0),
        cpu_moe=given.get("cpu_moe", False),
        overrides=given.get("override_tensor", ()),
        tensor_split=given.get("tensor_split", ()),
        split_mode=given.get("split_mode", "layer"),
        main_gpu=given.get("main_gpu", 0),
        kv_on_host=given.get("no_kv_offload", False),
        target_bytes=given.get("fit_target", FIT_TARGET_MIB) * MIB,
        shortest=given.get("fit_ctx", FIT_CTX),
        no_repack=given.get("no_extra_bufts", False),
        projector_bytes=given.get("mmproj", 0),
        host_bytes=given.get("host_memory"),
        host_gbps=given.get("host_bandwidth"),
    )


CELLS: Final = 256
"""``GGML_PAD(n_ctx, 256)``: cells come in multiples of this."""
_CELLS_WITHOUT_FLASH: Final = 32
"""What ``llama_kv_cache::get_padding`` was without flash attention."""
MAX_SEQUENCES: Final = 256
"""``LLAMA_MAX_SEQ`` (src/llama-cparams.h)."""
STATE_DTYPE: Final = DType(name="fp32", block_elements=1, block_bytes=4)
"""``GGML_TYPE_F32``, which ``create_memory`` names for every recurrent state (src/llama-model.cpp)."""


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
    """Cells of one stream."""
    slot_tokens: int
    """The most tokens of a sequence, which the log calls n_ctx_seq, or n_ctx_per_seq."""
    n_seq_max: int
    kv_unified: bool
    n_stream: int
    """Buffers of cells: one for all sequences, or one for each."""
    n_batch: int
    n_ubatch: int
    n_outputs: int
    """Most tokens of a batch whose logits are computed, which the buffers are made for."""
    n_outputs_wanted: int
    """Most tokens of a batch whose logits the program asks for."""
    type_k: DType
    type_v: DType
    flash_attn: bool
    """True if values lie as flash attention wants them. ``auto`` counts as on: the cache is made before it is tried."""
    flash_attn_asked: bool | None
    """What was asked; ``None`` is auto."""
    swa_full: bool
    n_rs_seq: int
    """Older recurrent states kept for each sequence; 0 where the architecture has no such thing."""
    load_mtp: bool
    drafts: bool
    """True if this is the context of multi-token prediction."""
    cells_swa: int
    """Cells of a stream in layers with a window."""
    server: bool
    """True if the defaults are those of llama-server."""
    ollama: bool
    rules: BuildRules
    """What holds in the build."""

    @property
    def cell_multiple(self) -> int:
        """The number of which the cells of a cache are a multiple."""
        return _multiple(self.rules, flash_attn=self.flash_attn)

    @property
    def n_ctx_logged(self) -> int:
        """The cells of all streams as the log prints them: before builds divided the context themselves, as they were asked for."""
        return self.n_ctx if self.rules.divides == "down" else self.n_ctx_asked

    @property
    def mask_rows(self) -> int:
        """The rows of a mask: the tokens of a batch, which some builds round up in each stream."""
        rows = self.rules.mask_rows
        return self.n_ubatch if rows == 1 else self.n_stream * rounded_up(ceil_div(self.n_ubatch, self.n_stream), rows)

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
        return rounded_up(larger(1, ceil_div(self.n_ctx_seq, 4)))

    @property
    def groups_of_128(self) -> int:
        """Cells of a stream for latents of 128 tokens (``DSV4_HCA_RATIO``)."""
        return rounded_up(larger(1, ceil_div(self.n_ctx_seq, 128)))


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
    draft_types: tuple[DType, DType]
    """The formats of a draft's keys and values, whatever those of the model's are (``common_base_params_to_speculative``)."""
    swa_full: bool
    flash_attn: bool | None
    """``None`` is auto."""
    n_rs_seq: int
    drafted: int
    """The most tokens that a draft proposes at a time, each of which has an output."""
    load_mtp: bool
    drafts: bool
    """True if this is the context of multi-token prediction."""
    server: bool
    ollama: bool
    rules: BuildRules
    """What holds in the build."""

    @classmethod
    def of(cls, setup: Setup, rules: BuildRules = NEWEST_RULES) -> ContextOptions:
        """The options of a setup. Raises :class:`~hwcalc.errors.UsageError` for a value that llama.cpp would refuse."""
        options: dict[str, Any] = {
            name: OPTIONS[name].check(name, value) for name, value in setup.options.items() if name in OPTIONS
        }
        server = options.get("defaults", "server") == "server"
        n_batch = options.get("n_batch", 2048)
        n_ubatch = options.get("n_ubatch", 512)
        load_mtp, drafts = options.get("load_mtp", False), options.get("ctx_type") == "mtp"
        n_rs_seq = options.get("n_rs_seq", DRAFTED if load_mtp and server else 0)
        if drafts and server:
            n_rs_seq = 0
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
            draft_types=(options.get("type_k_draft") or F16, options.get("type_v_draft") or F16),
            swa_full=options.get("swa_full", not server),
            flash_attn=options.get("flash_attn", None if rules.flash_auto else False),
            n_rs_seq=n_rs_seq,
            drafted=n_rs_seq or (0 if setup.draft is None else DRAFTED),
            load_mtp=load_mtp,
            drafts=drafts,
            server=server,
            ollama=options.get("ollama", False),
            rules=rules,
        )

    @cached_property
    def types(self) -> tuple[DType, DType]:
        """The formats of keys and values: each by its own option, else by ``--dtype``, else 16-bit floats.

        llama-server makes the context of multi-token prediction in the formats of a draft.
        """
        if self.drafts and self.server:
            return self.draft_types
        spelled = "f16" if is_auto(self.dtype) else (self.dtype or "").strip().lower()
        key, _, value = spelled.partition(":")
        return self.type_k or cache_type("--dtype", key), self.type_v or cache_type("--dtype", value or key)

    def slots(self, planned: int) -> int:
        """The number of sequences that the context is made for: as many as the options name, or as are planned.

        Raises :class:`~hwcalc.errors.UsageError` for more than llama.cpp runs at once.
        """
        sequences = max(1, planned if self.n_seq_max is None else self.n_seq_max)
        if sequences > MAX_SEQUENCES:
            raise UsageError(
                f"llama.cpp runs at most {MAX_SEQUENCES} sequences at once (asked: {sequences:,}).",
                hint=f"Use: --users {MAX_SEQUENCES}, or start several servers: --dp {-(-sequences // MAX_SEQUENCES)}",
            )
        return sequences

    def settings(self, read: Hparams, cells: int, sequences: int, batch: int | None = None) -> Settings:
        """The settings of a context of ``cells`` tokens for all sequences together; integers or arrays.

        ``batch`` is the number of tokens that the program chooses as n_batch and n_ubatch, where it does.
        """
        row, rules = read.architecture, self.rules
        unified = self.kv_unified or not rules.streams
        n_batch, n_ubatch = (self.n_batch, self.n_ubatch) if batch is None else (batch, batch)
        n_batch = smaller(cells, n_batch) if read.causal else n_batch
        n_ubatch = smaller(n_batch, n_ubatch)
        flash_attn = False if row.keeps_flash_attention_off else self.flash_attn
        multiple = _multiple(rules, flash_attn=flash_attn is not False)
        context = rounded_up(cells, multiple) if rules.cells == "context" else cells
        divided = context if unified else context // sequences if rules.divides == "down" else ceil_div(context, sequences)
        per_stream = rounded_up(divided, multiple)
        n_ctx = per_stream if unified else per_stream * sequences
        if rules.cells == "nothing" and rules.divides == "up":
            n_ctx = cells
        elif rules.cells == "cache" and row.memory in ("hybrid", "recurrent"):
            # Only the caches of other models change the number that the context has.
            n_ctx = rounded_up(cells, multiple) if row.memory == "hybrid" else cells
        # The caches of DeepSeek-V4 are apart for each sequence, whatever was asked (src/llama-kv-cache-dsv4.cpp).
        shared = unified and (row.memory != "compressed" or self.drafts)
        whole = not rules.hybrid_streams and row.memory == "hybrid" and not shared
        n_ctx_seq = n_ctx if whole else per_stream
        reach = read.n_swa * (sequences if shared else 1) + (n_batch if rules.windows == "batch" else n_ubatch)
        # llama-server computes logits for one token of each slot, and for what a draft proposes; other programs for a whole batch.
        wanted = sequences * (1 + self.drafted) if self.server else n_batch
        all_cells = self.swa_full or rules.windows == "all"
        type_k, type_v = self.types
        return Settings(
            n_ctx_asked=cells,
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx_seq,
            slot_tokens=per_stream if rules.divides == "down" else cells // sequences,
            n_seq_max=sequences,
            kv_unified=unified,
            n_stream=1 if shared else sequences,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_outputs=wanted if rules.outputs_limited else n_batch,
            n_outputs_wanted=wanted,
            type_k=type_k,
            type_v=type_v,
            flash_attn=flash_attn is not False,
            flash_attn_asked=flash_attn,
            swa_full=self.swa_full,
            n_rs_seq=self.n_rs_seq if row.rollback else 0,
            load_mtp=self.load_mtp,
            drafts=self.drafts,
            cells_swa=n_ctx_seq if all_cells else _window_cells(rules, n_ctx_seq, reach, multiple),
            server=self.server,
            ollama=self.ollama,
            rules=rules,
        )


def _multiple(rules: BuildRules, *, flash_attn: bool) -> int:
    """The number of which the cells of a cache are a multiple. ``auto`` counts as with flash attention."""
    if rules.cells == "cache":
        return CELLS if flash_attn else _CELLS_WITHOUT_FLASH
    return CELLS if rules.cells == "context" else 1


def _window_cells(rules: BuildRules, cells: int, reach: int, multiple: int) -> int:
    """The cells of layers with a window: those that it reaches, but no more than others have."""
    size: int = smaller(cells, rounded_up(reach, multiple))
    return rounded_up(smaller(cells, reach)) if rules.cells == "context" else size


def read_settings(request: Request, read: Hparams) -> Settings:
    """The settings of a request about a model."""
    context, batch = ContextOptions.of(request.setup), request.replica_batch
    sequences = context.slots(batch)
    cells = request.load.seq * batch if context.n_ctx is None else context.n_ctx
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

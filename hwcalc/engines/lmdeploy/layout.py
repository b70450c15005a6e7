"""LMDeploy's settings with every default filled in, what a block and a state slot take on one rank, and how it divides weights over ranks.

PyTorch keeps all pieces of a block of one layer side by side (keys, values, their scales, the indexer's keys), each rounded up to 256 bytes; a
slot of recurrent states has the states of all layers, again in pieces of 256 bytes. TurboMind rounds nothing.

Sources: lmdeploy/messages.py (QuantPolicy, PytorchEngineConfig), lmdeploy/utils.py get_max_batch_size, cli/utils.py quant_policy,
pytorch/engine/executor/base.py _adjust_block_size, pytorch/configurations/; pytorch/engine/cache_engine.py (CacheDesc,
CacheEngine.allocate_caches, StateCacheEngine), in 0.18 cache_engine/{schema,layout}.py and backends/cuda/nsa.py; TurboMind of 0.14.0:
src/turbomind/models/llama/SequenceManager.cc,
src/turbomind/kernels/attention/block.h. Weights are never in 32 bits (pytorch/config.py _update_torch_dtype); replicas divide attention
alone; PyTorch does not cut tables: pytorch/config.py (DistConfig: attn_tp is tp / dp, mlp_tp is tp), pytorch/models/{llama,qwen3,deepseek_v2}.py,
turbomind/builders/text_model.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from hwcalc.engines.devices import compute_capability
from hwcalc.engines.models import model_classes
from hwcalc.engines.options import HEAD, CacheFormat, choice_option, integer_option, is_auto, is_on, options_of
from hwcalc.engines.rank_weights import GroupRank, Rank, Rules
from hwcalc.engines.stored import check_heads
from hwcalc.errors import UncountedError, UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import (
    ChunkedAttention,
    FullAttention,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    NoCache,
    Role,
    SlidingAttention,
    SparseIndexer,
)
from hwcalc.formulas.formats import BF16, FLOATS, FP16, WeightFormat
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Weight, WeightRole
from hwcalc.text import brief, shown
from hwcalc.units import MIB

if TYPE_CHECKING:
    from fractions import Fraction

    from hwcalc.engines.setup import Parallel, Setup
    from hwcalc.model import ModelSpec

PYTORCH: Final = "pytorch"
TURBOMIND: Final = "turbomind"
BACKENDS: Final = (PYTORCH, TURBOMIND)


class KvFormat(Record):
    """A ``quant_policy``: bits of a key and of a value, and how many numbers of the model's dtype a head adds to a token of each."""

    policy: int
    name: str
    key_bits: int | None
    value_bits: int | None
    key_scales: int = 0
    value_scales: int = 0

    @property
    def spelled(self) -> str:
        """The name of the format; empty where the cache is in the dtype of the model."""
        return self.name if self.policy else ""


NONE: Final = KvFormat(policy=0, name="none", key_bits=None, value_bits=None)
FORMATS: Final[Mapping[int, KvFormat]] = MappingProxyType(
    {
        one.policy: one
        for one in (
            NONE,
            KvFormat(policy=4, name="int4", key_bits=4, value_bits=4, key_scales=2, value_scales=2),
            KvFormat(policy=8, name="int8", key_bits=8, value_bits=8, key_scales=2, value_scales=2),
            KvFormat(policy=16, name="fp8", key_bits=8, value_bits=8),
            KvFormat(policy=17, name="fp8_e5m2", key_bits=8, value_bits=8),
            # Keys have a scale of each of two parts, values only one.
            KvFormat(policy=42, name="turbo_quant", key_bits=4, value_bits=2, key_scales=2, value_scales=1),
        )
    }
)
"""``quant_policy`` -> the format."""
_NAMES: Final = {one.name: one for one in FORMATS.values()} | {"fp8_e4m3": FORMATS[16]}
_OWN: Final = frozenset({"fp16", "bf16"})
"""Names of a cache that is not quantised: it is in the dtype that the model runs in."""


def cache_formats(newest: str) -> tuple[CacheFormat, ...]:
    """The formats of the cache, as the newest release has them."""
    return tuple(
        CacheFormat(
            name=one.name,
            # A scale is a number of the model's dtype, of 16 bits.
            bits=(one.key_bits + one.value_bits) / 2 + 16 * (one.key_scales + one.value_scales) / (2 * HEAD),
            stored=f"keys in {one.key_bits} bits, values in {one.value_bits}{_scales(one)}",
            source=f"LMDeploy {newest}, messages.py QuantPolicy {one.policy}",
        )
        for one in FORMATS.values()
        if one.key_bits is not None and one.value_bits is not None
    )


def _scales(form: KvFormat) -> str:
    """Where the scales of a format lie."""
    if not form.key_scales:
        return ", and no scale in the cache"
    numbers = f"{form.key_scales} numbers of the model's dtype for a key and {form.value_scales} for a value"
    return f", and {numbers} of each token and head (here of {HEAD})"


def parse_policy(name: str, value: str) -> int:
    """The number of a policy, from the number or the name that the command line of LMDeploy takes."""
    given = value.strip().lower()
    form = _NAMES.get(given) or (FORMATS.get(int(given)) if given.isascii() and given.isdecimal() and len(given) < 4 else None)
    if form is None:
        allowed = ", ".join(f"{known.policy} ({known.name})" for known in FORMATS.values())
        raise UsageError(f"engine option {name}={brief(value, 40)} is not known.", hint=f"Allowed: {allowed}.")
    return form.policy


INDEX_APART_SINCE: Final = (0, 16)
"""Since then the keys of indexers have rows of their own, of the layers alone that have an indexer, and ``quant_policy`` is read beside them
(pytorch/configurations/deepseek_v32.py _finalize_v32_cache_specs)."""
PLAIN_ROWS_SINCE: Final = (0, 17)
"""Since then sparse latents are in bf16 unless fp8 is named, and a forward pass has a buffer for the scores of indexers."""
OBJECTS_SINCE: Final = (0, 15)
"""Since then TurboMind has its blocks and states as objects of one region (src/turbomind/turbomind.cc CreateEngine)."""
INDEX_SCORES_BYTES: Final = 512 * MIB
"""LMDEPLOY_DSA_INDEXER_MAX_LOGITS_MB, by default (pytorch/envs.py)."""


def read_format(dtype: str | None, option: str | None, backend: str) -> KvFormat:
    """The format that ``--dtype`` and the option ``quant_policy`` name. Raises an error if the back end has it not."""
    requested = None if option is None else FORMATS[parse_policy("quant_policy", option)]
    name, named = (dtype or "").strip().lower(), None
    if not is_auto(dtype):
        named = NONE if name in _OWN else _NAMES.get(name)
        if named is None:
            known = ", ".join(("auto", *sorted(_OWN), *(one for one in _NAMES if one != NONE.name)))
            what = f"LMDeploy has no KV cache in {shown(dtype or '', 40)}."
            raise UnknownNameError(what, option="dtype", hint=f"Known: {known}.")
    if requested is not None and named is not None and requested != named:
        raise UsageError(
            f"--dtype {brief(dtype or '', 40)} is quant_policy {named.policy}, but quant_policy={requested.policy} is given.",
            hint="Leave out one of them.",
        )
    chosen = requested or named or NONE
    if backend != PYTORCH and chosen.policy not in (0, 4, 8):
        message = f"TurboMind has no quant_policy {chosen.policy} ({chosen.name})."
        raise UnsupportedError(message, hint=f"Use 0, 4 or 8, or: --engine-option backend={PYTORCH}")
    return chosen


_FLAG: Final = choice_option("true", "false", "on", "off")


def entry_count_option(name: str, value: str) -> Fraction:
    """A share of what is free, above 0 and below 1, and in TurboMind up to 0.14 a whole number for so many blocks."""
    from fractions import Fraction

    whole, _, part = value.partition(".")
    digits = (whole or "0") + part
    number = Fraction(value) if digits.isascii() and digits.isdecimal() and len(value) < 30 else Fraction(0)
    if not (0 < number < 1 or (number >= 1 and number.denominator == 1)):
        raise UsageError(
            f"engine option {name}={brief(value, 40)} is neither a share nor a number of blocks.",
            hint="Allowed: above 0 and below 1, such as 0.8; with backend=turbomind of 0.14 blocks too, such as 4096.",
        )
    return number


def _kernel_block(name: str, value: str) -> int:
    """A power of two from 16 on (lmdeploy/messages.py PytorchEngineConfig)."""
    number = integer_option(16, 2**20)(name, value)
    if number & (number - 1):
        raise UsageError(f"engine option {name}={brief(value, 40)} is no power of two.", hint="Allowed: 16, 32, 64, 128 ...")
    return number


OPTIONS: Final = options_of(
    ("backend", "which engine of the two", PYTORCH, choice_option(*BACKENDS)),
    ("quant_policy", "format of the cache: 0, 4, 8, 16, 17 or 42", "0, or by --dtype", parse_policy),
    ("cache_max_entry_count", "share of the free memory for the cache; TurboMind: or blocks", "0.8", entry_count_option),
    ("cache_block_seq_len", "tokens in a block", "64", integer_option(1, 2**20)),
    ("kernel_block_size", "tokens in a block of the kernels", "cache_block_seq_len", _kernel_block),
    ("max_batch_size", "sequences at once", "by GPU: 1024, 384 or 128", integer_option(1, 2**20)),
    ("max_prefill_token_num", "tokens of prompts at once", "8192", integer_option(1, 2**30)),
    ("num_gpu_blocks", "blocks, whatever the memory", "by memory", integer_option(16, 2**40)),
    ("enable_prefix_caching", "keep blocks of finished requests", "false", _FLAG),
    ("prefix_cache_state_budget", "state slots for prefix caching", "0", integer_option(0, 2**20)),
    ("fp32_mamba_ssm_dtype", "recurrent states in fp32", "false", _FLAG),
    ("flash_mla", "whether flash_mla is installed", "by GPU", _FLAG),
)

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

    ``sparse`` says that an indexer's keys lie beside the latents, ``fp8_rows`` that these are in the fp8 rows of FlashMLA. ``release`` is
    LMDeploy's. ``slots`` are those of recurrent states, and ``reserved_blocks`` those that no request gets.
    """

    backend: str
    release: tuple[int, ...]
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
    fp8_rows: bool
    slots: int

    @property
    def index_scores_bytes(self) -> int:
        """The buffer for the scores of indexers."""
        return INDEX_SCORES_BYTES if self.sparse and self.release >= PLAIN_ROWS_SINCE else 0

    @property
    def pytorch(self) -> bool:
        """True if this is the PyTorch back end."""
        return self.backend == PYTORCH

    @property
    def reserved_blocks(self) -> int:
        """The block of dummy inputs and padding, in PyTorch."""
        return int(self.pytorch)

    @property
    def spare_blocks(self) -> int:
        """Blocks that the longest sequence cannot have: PyTorch's sessions end a block before the last one."""
        return 2 * int(self.pytorch)


def read_settings(model: ModelSpec, setup: Setup, release: tuple[int, ...]) -> LmdeploySettings:
    """Fill in the defaults. Raises an error for settings that LMDeploy refuses."""
    options, gpu = setup.options, setup.hardware.gpu
    backend = options.get("backend", PYTORCH)
    form = read_format(setup.dtype, options.get("quant_policy"), backend)
    kinds = {type(group.kind) for group in model.stack.groups}
    sparse = SparseIndexer in kinds
    fp8_rows = sparse and (release < PLAIN_ROWS_SINCE or form == FORMATS[16])
    if sparse:
        if release >= INDEX_APART_SINCE and form not in (NONE, FORMATS[16]):
            message = f"Sparse MLA does not support quant_policy={form.policy} ({form.name}), says LMDeploy."
            raise UnsupportedError(message, hint="Use: --dtype auto, or --dtype fp8 for FlashMLA's fp8 rows")
        # Before, FlashMLA's rows were fp8 whatever the user named.
        form = NONE
        if not _has_flash_mla(setup):
            raise UnsupportedError(
                "DeepSeek-V3.2 requires flash_mla to be available, says LMDeploy of sparse attention; it runs from Hopper on.",
                hint="Use: --gpu h200, without flash_mla=false",
            )
    # bf16 for a model of bf16 on a GPU that has it; fp16 for all others, and for AWQ.
    method = str((model.quantization or {}).get("quant_method", "")).lower()
    dtype = "bf16" if model.dtype == "bf16" and method != "awq" and compute_capability(gpu) >= _AMPERE else "fp16"
    block, kernel = _blocks(model, setup, backend, sparse=sparse)
    # The sequences that run at once: by the name of the device; without a GPU those of an H100.
    name = "h100" if gpu is None else f"{gpu.id} {gpu.name}".lower()
    batch = _number(setup, "max_batch_size", next((size for part, size in _BATCHES if part in name), _OTHER_BATCH))
    slots = batch if GatedDeltaNet in kinds else 0
    if slots and backend == PYTORCH:
        slots += _SPARE_SLOTS + _number(setup, "prefix_cache_state_budget", 0)
    count = options.get("cache_max_entry_count")
    entries = None if count is None else entry_count_option("cache_max_entry_count", count)
    if entries is not None and entries >= 1 and backend == PYTORCH:
        message = f"invalid cache_max_entry_count, says LMDeploy's PyTorch back end: {entries} is no share."
        raise UsageError(message, hint="Use: --engine-option cache_max_entry_count=0.8, or num_gpu_blocks for blocks")
    ratio = setup.hardware.memory_utilization if entries is None or entries >= 1 else float(entries)
    if backend == TURBOMIND and release >= OBJECTS_SINCE:
        if entries is not None and entries >= 1:
            message = f"object-cache path no longer accepts cache_max_block_count as a block count, says TurboMind: {entries}."
            raise UsageError(message, hint="Use: --engine-option cache_max_entry_count=0.8, or --engine lmdeploy@0.14")
        if GatedDeltaNet in kinds:
            message = "TurboMind makes recurrent states as they are needed since 0.15, in slabs beside its blocks: kvplan has no rule for that."
            raise UncountedError(message, hint=f"Use: --engine-option backend={PYTORCH}, or --engine lmdeploy@0.14")
    if "num_gpu_blocks" in options and backend == TURBOMIND:
        message = "num_gpu_blocks is an option of the PyTorch back end."
        raise UsageError(message, hint=f"Leave it out, or use: --engine-option backend={PYTORCH}")
    blocks = _number(setup, "num_gpu_blocks", 0) if "num_gpu_blocks" in options else None
    window = _window(model) if backend == PYTORCH else 0
    return LmdeploySettings(
        backend=backend,
        release=release,
        form=form,
        model_dtype=dtype,
        state_dtype="fp32" if backend == PYTORCH and is_on(options.get("fp32_mamba_ssm_dtype")) else dtype,
        tp=setup.parallel.tp,
        block_size=block,
        kernel_block_size=kernel,
        ratio=0.8 if ratio is None else ratio,
        max_batch_size=batch,
        prefill_tokens=_number(setup, "max_prefill_token_num", 8192),
        num_gpu_blocks=int(entries) if entries is not None and entries >= 1 else blocks,
        prefix_caching=is_on(options.get("enable_prefix_caching")) and not window,
        window=window,
        sparse=sparse,
        fp8_rows=fp8_rows,
        slots=slots,
    )


def _number(setup: Setup, name: str, default: int) -> int:
    value = setup.options.get(name)
    return default if value is None else int(str(OPTIONS[name].check(name, value)))


def _window(model: ModelSpec) -> int:
    """The window outside of which blocks are freed: where the config names one and its use is not switched off; 0 is none."""
    if "window_off" in model_classes("lmdeploy").row(model).words or not model.config.get("use_sliding_window", True):
        return 0
    named = model.facts.sliding_window
    built = (group.kind.window for group in model.stack.groups if isinstance(group.kind, SlidingAttention))
    return named or max(built, default=0)


def _blocks(model: ModelSpec, setup: Setup, backend: str, *, sparse: bool) -> tuple[int, int]:
    """Tokens in a block, and in a block of the kernels."""
    block_size = _number(setup, "cache_block_seq_len", 64)
    kernel = _number(setup, "kernel_block_size", block_size)
    if backend == TURBOMIND:
        step = 32 if compute_capability(setup.hardware.gpu) >= _AMPERE else 64
        if block_size % step:
            message = f"cache_block_seq_len={block_size:,} is no multiple of {step}."
            raise UsageError(message, hint=f"TurboMind has blocks of {step}, {2 * step} ...")
        return block_size, block_size
    if kernel < 16 or kernel & (kernel - 1) or block_size % kernel:
        raise UsageError(
            f"cache_block_seq_len={block_size:,} is no multiple of a kernel block of {kernel:,}, or that is no power of two from 16 on.",
            hint="Use: --engine-option cache_block_seq_len=64, and for other multiples kernel_block_size=16",
        )
    wide = [kind for kind in (group.kind for group in model.stack.groups) if isinstance(kind, LatentAttention)]
    if wide and "expanded" not in model_classes("lmdeploy").row(model).words and (sparse or _has_flash_mla(setup)):
        if block_size != _MLA_BLOCK:
            raise UsageError(f"cache_block_seq_len={block_size:,}: flash_mla has blocks of 64.", hint="Leave it out.")
        return block_size, kernel
    widths = [kind.kv_lora_rank + kind.qk_rope_head_dim for kind in wide]
    widths += [getattr(group.kind, "head_dim", 0) or 0 for group in model.stack.groups if group.kind not in wide]
    if max(widths, default=0) >= _WIDE_HEAD and block_size > _WIDE_HEAD_BLOCK:
        return _WIDE_HEAD_BLOCK, _WIDE_HEAD_BLOCK
    return block_size, kernel


def _has_flash_mla(setup: Setup) -> bool:
    """True if flash_mla is installed, which runs from Hopper on."""
    given = setup.options.get("flash_mla")
    return compute_capability(setup.hardware.gpu) >= _HOPPER and (given is None or is_on(given))


_ALIGNMENT: Final = 256
_SPARSE_ROW: Final = 656
"""Bytes of a token in FlashMLA's fp8 rows: 512 numbers, four scales in fp32, and 64 rotary numbers in 16 bits."""
_INDEX_SCALE: Final = 4
_ITEM: Final = 2
"""Bytes of a number of the model's dtype, which is bf16 or fp16."""
_SHARED_KEY: Final = 576
"""The width of a key at which TurboMind stores no values: a latent, and its rotary key."""
_ATTENTION: Final = (FullAttention, SlidingAttention, ChunkedAttention)
KINDS: Final[frozenset[type[LayerKind]]] = frozenset({*_ATTENTION, LatentAttention, SparseIndexer, GatedDeltaNet, NoCache})
"""The kinds of layers that have a rule here."""


class Piece(NamedTuple):
    """One tensor of a layer: bytes of a block, or of a state slot, on one rank. Without a ``dtype`` it is in that of the model."""

    name: str
    role: Role
    dtype: str
    bytes: int


class Shape(Record):
    """The heads of a layer on one rank, and the widths of a key and of a value; ``index_dim`` is that of an indexer's key, or 0."""

    heads: int
    key: int
    value: int
    index_dim: int = 0


class PoolLayout(Record):
    """The pool of one rank. ``layers`` have ``pieces`` each, of an indexer ``index_layers``; ``states`` are those of one of ``state_layers``, without
    padding.
    """

    layers: int
    index_layers: int
    pieces: tuple[Piece, ...]
    state_layers: int
    states: tuple[Piece, ...]
    alignment: int
    index_apart: bool
    """True if the keys of an indexer are shown as its own: where they are those of layers that have one."""

    @property
    def layer_bytes(self) -> int:
        """A block of one layer that has all pieces."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def block_bytes(self) -> int:
        """A block of all layers."""
        index_bytes = sum(piece.bytes for piece in self.pieces if piece.role is Role.INDEX)
        return self.layers * (self.layer_bytes - index_bytes) + self.index_layers * index_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of recurrent states, for all layers."""
        return sum(aligned(self.state_layers * piece.bytes, self.alignment) for piece in self.states)


def aligned(size: int, alignment: int = _ALIGNMENT) -> int:
    """Round up to a multiple of the alignment.

    >>> aligned(257)
    512
    """
    return -(-size // alignment) * alignment


def pytorch_pieces(shape: Shape, form: KvFormat, block: int, kernel_block: int, *, fp8_rows: bool = False) -> tuple[Piece, ...]:
    """The pieces of a block of one layer in PyTorch, each rounded up in every kernel block of it.

    Llama-3.1-8B in int8: keys 64 x 8 x 128 = 65,536 bytes and their scales 64 x 8 x 2 x 2 = 2,048, and as much for values.
    """
    rows, times, latent = kernel_block * shape.heads, block // kernel_block, not shape.value
    if fp8_rows:
        parts = [("latent", Role.LATENT, "fp8_ds_mla", rows * _SPARSE_ROW)]
    else:
        name, scales, role = ("latent", "latent_scales", Role.LATENT) if latent else ("keys", "key_scales", Role.KEY)
        parts = [
            (name, role, form.spelled, rows * _width(shape.key, form.key_bits)),
            ("values", Role.VALUE, form.spelled, rows * _width(shape.value, form.value_bits)),
            (scales, role, "", rows * form.key_scales * _ITEM),
            # There are scales of values even where a latent has none.
            ("value_scales", Role.VALUE, "", rows * form.value_scales * _ITEM),
        ]
    if shape.index_dim:
        parts.append(("indexer_keys", Role.INDEX, "fp8_e4m3", kernel_block * shape.index_dim))
        parts.append(("indexer_scales", Role.INDEX, "fp32", kernel_block * _INDEX_SCALE))
    return tuple(Piece(name, role, dtype, times * aligned(size)) for name, role, dtype, size in parts if size)


def _width(numbers: int, bits: int | None) -> int:
    """Bytes of the numbers of one head, packed into whole bytes."""
    if bits is None:
        return numbers * _ITEM
    if numbers * bits % 8:
        raise UnsupportedError(
            f"LMDeploy cannot pack a head of {numbers:,} numbers in {bits} bits.", hint="Use --dtype int8, fp8 or auto"
        )
    return numbers * bits // 8


def turbomind_pieces(shape: Shape, form: KvFormat, block: int) -> tuple[Piece, ...]:
    """The pieces of a block of one layer in TurboMind, with two numbers of 16 bits for each quantised row."""
    rows = block * shape.heads
    shared = shape.key == _SHARED_KEY
    bits = form.key_bits or 8 * _ITEM
    data, scales = rows * (shape.key * bits // 8), rows * form.key_scales * _ITEM
    key, role = ("latent", Role.LATENT) if shared else ("keys", Role.KEY)
    parts = [(key, role, form.spelled, data), (f"{key.removesuffix('s')}_scales", role, "", scales)]
    if not shared:
        parts += [("values", Role.VALUE, form.spelled, data), ("value_scales", Role.VALUE, "", scales)]
    return tuple(Piece(*part) for part in parts if part[3])


def plan_layout(model: ModelSpec, settings: LmdeploySettings, parallel: Parallel) -> PoolLayout:
    """The pool of one rank. Raises an error for layers that LMDeploy does not run, or that it cannot divide."""
    groups = model.stack_for("lmdeploy").groups
    index = max((group.kind.index_head_dim for group in groups if isinstance(group.kind, SparseIndexer)), default=0)
    shapes: dict[Shape, int] = {}
    states: dict[tuple[Piece, ...], int] = {}
    for group in groups:
        if isinstance(group.kind, GatedDeltaNet):
            pieces = _state_pieces(group.kind, settings, parallel.tp)
            states[pieces] = states.get(pieces, 0) + group.count
        elif not isinstance(group.kind, (SparseIndexer, NoCache)):
            shape = _shape(model, group.kind, parallel.tp, index)
            shapes[shape] = shapes.get(shape, 0) + group.count
    if len(shapes) != 1 or len(states) > 1:
        raise UnsupportedError(
            f"LMDeploy keeps layers of one shape: {model.id} has {len(shapes)} shapes of attention and {len(states)} of states.",
            hint="Use: --engine vllm, or --engine reference",
        )
    ((shape, layers),) = shapes.items()
    if index and not shape.index_dim:
        message = f"LMDeploy has indexers beside latents alone, which {model.id} does not have."
        raise UnsupportedError(message, hint="Use: --engine vllm, or --engine reference")
    if settings.pytorch:
        pieces = pytorch_pieces(shape, settings.form, settings.block_size, settings.kernel_block_size, fp8_rows=settings.fp8_rows)
    else:
        pieces = turbomind_pieces(shape, settings.form, settings.block_size)
    state, state_layers = next(iter(states.items()), ((), 0))
    indexers = sum(group.count for group in groups if isinstance(group.kind, SparseIndexer))
    apart = settings.release >= INDEX_APART_SINCE
    return PoolLayout(
        layers=layers,
        index_layers=indexers if apart else layers,
        pieces=pieces,
        state_layers=state_layers,
        states=state,
        alignment=_ALIGNMENT if settings.pytorch else 1,
        index_apart=indexers == layers or apart,
    )


def _shape(model: ModelSpec, kind: LayerKind, tp: int, index: int) -> Shape:
    if isinstance(kind, LatentAttention) and kind.window is None:
        check_heads("LMDeploy", kind, tp)
        if "expanded" in model_classes("lmdeploy").row(model).words:
            width = kind.qk_nope_head_dim + kind.qk_rope_head_dim
            return Shape(heads=kind.num_attention_heads // tp, key=width, value=width)
        # One head, which LMDeploy repeats for every rank.
        return Shape(heads=1, key=kind.kv_lora_rank + kind.qk_rope_head_dim, value=0, index_dim=index)
    if isinstance(kind, _ATTENTION) and kind.head_dim == kind.v_head_dim:
        check_heads("LMDeploy", kind, tp)
        # With more ranks than heads each is repeated.
        return Shape(heads=max(1, kind.num_key_value_heads // tp), key=kind.head_dim, value=kind.v_head_dim)
    what = "a latent with a window" if isinstance(kind, LatentAttention) else "values of another width than keys"
    raise UnsupportedError(f"There is no rule for {what} in LMDeploy.", hint="Use: --engine vllm, or --engine reference")


def _state_pieces(kind: GatedDeltaNet, settings: LmdeploySettings, tp: int) -> tuple[Piece, ...]:
    """The states of one layer. The convolution keeps d_conv columns, one more than it needs."""
    for heads in (kind.num_key_heads, kind.num_value_heads):
        if heads % tp:
            raise UsageError(f"LMDeploy cannot split {heads} linear heads over tp {tp}.", hint="Use a tp that divides them.")
    columns = kind.conv_dim // tp * kind.d_conv
    numbers = kind.num_value_heads // tp * kind.key_head_dim * kind.value_head_dim
    wide = 2 if settings.state_dtype == "fp32" else 1
    return (
        Piece("conv_state", Role.CONV, settings.model_dtype, columns * _ITEM),
        Piece("recurrent_state", Role.STATE, settings.state_dtype, numbers * _ITEM * wide),
    )


def kept_by(layout: PoolLayout, kind: LayerKind) -> Iterable[Piece]:
    """The pieces of a layer of this kind. Before 0.16 every layer has an indexer's keys, also one that shares the indexer of another."""
    if isinstance(kind, GatedDeltaNet):
        return layout.states
    if isinstance(kind, NoCache):
        return ()
    if isinstance(kind, SparseIndexer) or layout.index_apart:
        indexed = isinstance(kind, SparseIndexer)
        return [piece for piece in layout.pieces if layout.index_apart and (piece.role is Role.INDEX) is indexed]
    return layout.pieces


class _Pytorch(GroupRank):
    """Every rank has the whole embedding and head, but for the embedding of DeepSeek's classes, which is cut by rows."""

    def ranks(self, block: Block, weight: Weight) -> int:
        if not self.is_vocabulary(weight):
            return super().ranks(block, weight)
        latent = any(isinstance(group.kind, LatentAttention) for group in self.model.stack.groups)
        return self.tp if latent and weight.role is WeightRole.EMBEDDING else 1


class _TurbomindRules(Rules):
    engine: ClassVar[str] = "lmdeploy"
    rank: ClassVar[type[Rank]] = GroupRank

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """bf16 or fp16: what is published in fp32 is loaded in fp16 (pytorch/config.py _update_torch_dtype)."""
        dtype = FLOATS.get(weight_dtype or model.dtype or "", BF16)
        return FP16 if dtype.bits > BF16.bits else dtype


class _PytorchRules(_TurbomindRules):
    rank: ClassVar[type[Rank]] = _Pytorch


PYTORCH_WEIGHTS: Final = _PytorchRules()
TURBOMIND_WEIGHTS: Final = _TurbomindRules()

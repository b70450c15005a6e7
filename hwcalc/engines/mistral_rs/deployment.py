"""A request to mistral.rs, with what its options come to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.mistral_rs.layers import check_shared, is_state, layer_tensors
from hwcalc.engines.mistral_rs.models import EXACT_WIDTHS, as_built, check_class, check_model, keeps_all_heads, layer_types
from hwcalc.engines.mistral_rs.pool import pages_of, plan_pool
from hwcalc.engines.model_dtypes import known_dtype, model_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import (
    AUTO,
    integer_option,
    is_auto,
    parse_kv_dtype,
    share_option,
)
from hwcalc.engines.policies import Support
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import AttentionKind, ChunkedAttention, GatedDeltaNet, LatentAttention, LayerKind, Role, SlidingAttention
from hwcalc.formulas.record import Record
from hwcalc.model import Note
from hwcalc.text import brief

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving
    from hwcalc.formulas import DType, Stack


_FP8_SINCE: Final = 8
"""The major compute capability from which CUDA's kernels take f8e4m3."""
FRACTION: Final = 0.9

MOST_SEQUENCES: Final = 32

_BLOCK: Final = 32

_FIRST_SLOTS: Final = 9

_PAD_SLOTS: Final = 1

_FLOATS: Final = ("bf16", "fp16", "fp32")

_FP8: Final = ("f8e4m3", "fp8", "fp8_e4m3")

_OLDER: Final = {
    "pa_gpu_mem": "pa_memory_mb",
    "pa_gpu_mem_usage": "pa_memory_fraction",
    "pa_ctxt_len": "pa_context_len",
    "pa_blk_size": "pa_block_size",
}
"""Names of the Python package and of older servers -> those of ``mistralrs serve``."""


class Settings(Record):
    """What the options come to. ``memory_mb`` and ``context_tokens`` are null where a share of the GPU decides."""

    paged: bool
    block_size: int
    memory_mb: int | None
    context_tokens: int | None
    fraction: float
    most_sequences: int
    fp8: bool


class MistralOccupancy(GeneralOccupancy):
    """It also keeps the settings."""

    @cached_property
    def settings(self) -> Settings:
        """What the options come to. Raises :class:`~hwcalc.errors.UsageError` for what excludes each other."""
        return self.shared("settings", self._read)

    @property
    def plain_stack(self) -> Stack:
        """The layers as it allocates their caches: in Gemma 4 also those that read the cache of an earlier one."""
        stack, types = super().plain_stack, layer_types(self.model)
        if self.model.architecture not in EXACT_WIDTHS or len(types) != len(stack):
            return stack
        paged = self.settings.paged
        built: Stack = self.model.once(("mistral-rs layers", paged), lambda: as_built(stack, types, paged=paged))
        return built

    @cached_property
    def model_format(self) -> DType:
        """The dtype that the model runs in, in which a cache is kept by default."""
        requested = (self.request.dtype or AUTO).strip().lower()
        if requested in _FLOATS:
            parsed = parse_kv_dtype(requested)
            assert isinstance(parsed, tuple)
            return parsed[0]
        return model_dtype(self.model).value

    @property
    def slots(self) -> int:
        """State slots of each layer with a state: nine at first, and with pages one for every sequence that may run and one to pad."""
        if self.settings.paged:
            return max(_FIRST_SLOTS, self.settings.most_sequences + _PAD_SLOTS)
        return slots_for(self.request.replica_batch)

    def _read(self) -> Settings:
        options = _by_newest_names(self.request.options)
        return Settings(
            paged=_is_paged(self, options.get("paged_attn", AUTO)),
            block_size=int(options.get("pa_block_size", _BLOCK)),
            memory_mb=_whole(options, "pa_memory_mb"),
            context_tokens=_whole(options, "pa_context_len"),
            fraction=share_option(
                "pa_memory_fraction", options.get("pa_memory_fraction"), self.request.hardware.memory_utilization, FRACTION
            ),
            most_sequences=_whole(options, "max_seqs") or MOST_SEQUENCES,
            fp8=_is_fp8(self.request.dtype, options.get("pa_cache_type")),
        )

    def choose_dtypes(self) -> Noted[Dtypes]:
        plain = self.model_format
        kept = known_dtype("fp8_e4m3") if self.settings.fp8 else plain
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE, Role.INDEX), kept)
        # Gated delta nets alone keep their states in 32 bits.
        delta = any(isinstance(group.kind, GatedDeltaNet) for group in self.model.stack.groups)
        roles |= {Role.STATE: known_dtype("fp32") if delta else plain, Role.CONV: plain}
        notes = model_dtype(self.model, self.request.dtype).notes if is_auto(self.request.dtype) and kept is plain else ()
        return Noted(Dtypes(kv=kept.name, roles=MappingProxyType(roles)), notes)

    def check_class(self) -> None:
        check_class(self.model)

    def check(self) -> None:
        self.shared("supported", lambda: check_model(self.model))
        check_shared(self)
        _check_layout(self)
        _check_fp8(self)
        if self.request.sharing.beams > 1:
            raise UnsupportedError("mistral.rs has no beam search.", hint="Leave out --beams, or use: --samples")
        _check_weights(self.request.weights)
        self.tell(*self.shared("remarks", lambda: tuple(_remarks(self))))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return layer_tensors(kind, self)

    def shard_tensors(self, shard: LayerKind) -> tuple[StoredTensor, ...]:
        """Pages that a layer does not use are as narrow as those of a rank, too."""
        return layer_tensors(shard, self, self.request.parallel.tp)

    def expands_latents(self) -> bool:
        gpu = self.request.hardware.gpu
        return not self.settings.paged or (gpu is not None and gpu.vendor.lower() == "apple")

    def fullest_bytes(self) -> int:
        from hwcalc.engines.pooled import blocks_of_requests

        if not self.settings.paged:
            return super().fullest_bytes()
        return pages_of(self).needed(blocks_of_requests(self, self.settings.block_size))

    def plan_budget(self) -> Noted[Budget | None]:
        if not self.settings.paged:
            return super().plan_budget()
        from hwcalc.engines.mistral_rs.memory import plan_budget

        return plan_budget(self)

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        return Noted(plan_pool(self, budget_bytes) if self.settings.paged and pages_of(self).elements else None)

    def holds(self, budget_bytes: int) -> bool:
        from hwcalc.engines.pooled import blocks_of_requests

        if not self.settings.paged:
            return self.needed_bytes <= budget_bytes
        pool = self.plan_pool(max(0, budget_bytes)).value
        if pool is None or pool.blocks is None:
            return self.needed_bytes <= budget_bytes
        return budget_bytes >= 0 and pool.fits and pool.blocks - 1 >= blocks_of_requests(self, self.settings.block_size)

    def most_sequences(self) -> tuple[int, str]:
        return self.settings.most_sequences * self.request.parallel.dp, "max_seqs"

    def longest(self, budget_bytes: int, bound: int) -> int | None:
        if not self.settings.paged or self.request.lengths or self.request.sharing.asked:
            return None
        if not pages_of(self).elements or budget_bytes < 0:
            return None
        pool = plan_pool(self.sized(seq=1), budget_bytes, capped=False)
        if not pool.fits:
            return 0
        return min(bound, max(0, (pool.blocks or 0) - 1) // self.request.replica_batch * self.settings.block_size)

    def curve(self) -> Curve | None:
        from hwcalc.engines.mistral_rs.form import slots_curve

        curve = super().curve()
        return curve if curve is None or self.settings.paged else slots_curve(self, curve)

    def form(self) -> MemoryForm | None:
        if not self.settings.paged:
            return super().form()
        from hwcalc.engines.mistral_rs.form import paged_form

        return paged_form(self, self.chunks()[1])

    def weight_rules(self) -> Rules:
        from hwcalc.engines.mistral_rs.weights import MISTRAL_RS

        return MISTRAL_RS

    def support_of_sharing(self) -> Support:
        """Source: paged_attention/kv_cache_manager.rs get_computed_blocks; prefix_cacher.rs copies a cache without pages."""
        if self.settings.paged:
            how = "blocks of finished prompts are found again by their hash; what requests that run at once share is not planned"
        else:
            how = "a kept prefix is copied for each sequence"
        return Support(offered=False, how=how)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.saving import Cost, Saving

        if self.settings.paged and not any(isinstance(group.kind, LatentAttention) for group in self.model.stack.groups):
            yield Saving(Cost.CACHE, "f8e4m3 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "q8_0 weights", {"weights": "q8_0"})
        yield Saving(Cost.FEW_BITS, "q4_k_m weights", {"weights": "q4_k_m"})


def slots_for(sequences: int) -> int:
    """State slots without pages, which double as sequences come."""
    slots = _FIRST_SLOTS
    while slots < sequences:
        slots *= 2
    return slots


def _by_newest_names(options: object) -> dict[str, str]:
    """The options under the names of ``mistralrs serve``; no two that mean the same or exclude each other."""
    found: dict[str, str] = {}
    for name, value in cast("dict[str, str]", options).items():
        newest = _OLDER.get(name, name)
        if newest in found:
            raise UsageError(
                f"engine options {newest} and {name} are the same.", hint=f"Give one: --engine-option {newest}={value}"
            )
        found[newest] = value
    sizes = [name for name in ("pa_context_len", "pa_memory_mb", "pa_memory_fraction") if name in found]
    if len(sizes) > 1:
        raise UsageError(
            f"mistral.rs: the argument --{sizes[1].replace('_', '-')} cannot be used with --{sizes[0].replace('_', '-')}.",
            hint=f"Give one: --engine-option {sizes[0]}={found[sizes[0]]}",
        )
    return found


def _whole(options: dict[str, str], name: str) -> int | None:
    return None if name not in options else integer_option(1)(name, options[name])


def _is_paged(opened: Occupancy, mode: str) -> bool:
    """PagedAttention is on with CUDA, off on Metal unless it is asked for, and there is none elsewhere."""
    gpu = opened.request.hardware.gpu
    vendor = "nvidia" if gpu is None else gpu.vendor.lower()
    if vendor not in ("nvidia", "apple"):
        raise UnsupportedError(
            f"mistral.rs has no back end for {vendor} GPUs.", hint="It runs on CUDA and Metal: --gpu h100-sxm5-80gb"
        )
    return vendor == "nvidia" if mode == AUTO else mode == "on"


def _is_fp8(dtype: str | None, named: str | None) -> bool:
    spelled = (dtype or AUTO).strip().lower()
    if not is_auto(dtype) and spelled not in (*_FLOATS, *_FP8):
        raise UnknownNameError(
            f"--dtype {brief(spelled, 40)}: mistral.rs keeps its cache in the model's dtype or in f8e4m3.",
            option="dtype",
            hint=f"Use: --dtype {', '.join((AUTO, *_FLOATS, 'fp8'))}",
        )
    return spelled in _FP8 or named == "f8e4m3"


def _check_weights(requested: str | None) -> None:
    """Formats into which it converts while loading, or in which it runs; a published one is no choice."""
    from hwcalc.quantization.planned import format_name

    name = format_name(requested)
    if name is None or name in ("bf16", "fp16", "fp32"):
        return
    from hwcalc.engines.mistral_rs.command import ISQ

    if name in ISQ:
        return
    raise UnsupportedError(
        f"mistral.rs does not make {name} weights of the published ones.",
        hint=f"Use --weights {', '.join(('bf16', *ISQ))}, or a model that is published so.",
    )


def _check_layout(opened: MistralOccupancy) -> None:
    """Tensor parallelism as ``validate_tp_head_layout`` has it (mistralrs-quant/src/distributed/layers.rs)."""
    parallel = opened.request.parallel
    for name in ("dcp", "ep"):
        if getattr(parallel, name) > 1:
            raise UsageError(f"mistral.rs has no --{name}.", hint=f"Leave out --{name}.")
    if parallel.tp > 1 and parallel.pp > 1:
        raise UnsupportedError(
            "mistral.rs divides a model over GPUs by NCCL (--tp) or maps its layers to them (--pp), and does not do both.",
            hint=f"Use: --tp {parallel.tp * parallel.pp}, or --pp {parallel.tp * parallel.pp}",
        )
    for group in opened.plain_stack.groups:
        kind = group.kind
        if not isinstance(kind, (AttentionKind, LatentAttention)):
            continue
        if kind.num_attention_heads % parallel.tp:
            raise UnsupportedError(
                f"mistral.rs: total number of attention heads ({kind.num_attention_heads}) must be divisible by tensor parallel size "
                f"({parallel.tp}).",
                hint="Use another --tp.",
            )
        heads = kind.num_key_value_heads if isinstance(kind, AttentionKind) else parallel.tp
        if max(heads, parallel.tp) % min(heads, parallel.tp):
            raise UnsupportedError(
                f"mistral.rs: total number of KV heads ({heads}) and tensor parallel size ({parallel.tp}) must divide each other.",
                hint="Use another --tp.",
            )


def _check_fp8(opened: MistralOccupancy) -> None:
    """f8e4m3 is for pages (``PagedCacheType::validate``)."""
    if not opened.settings.fp8:
        return
    if not opened.settings.paged:
        raise UnsupportedError(
            "mistral.rs keeps f8e4m3 in pages alone.", hint="Use: --engine-option paged_attn=on, or --dtype auto"
        )
    if any(isinstance(group.kind, LatentAttention) for group in opened.plain_stack.groups):
        raise UnsupportedError("mistral.rs: FP8 KV cache is not supported for MLA.", hint="Use: --dtype auto")
    gpu = opened.request.hardware.gpu
    capability = None if gpu is None else gpu.compute_capability
    if capability is not None and int(capability.partition(".")[0]) < _FP8_SINCE:
        raise UnsupportedError(
            f"mistral.rs: FP8 KV cache requires CUDA compute capability 8.0 or newer; this GPU has {capability}.",
            hint="Use: --dtype auto",
        )


def _remarks(opened: MistralOccupancy) -> Iterator[Note]:
    settings = opened.settings
    kinds: set[type[LayerKind]] = {type(group.kind) for group in opened.plain_stack.groups}
    if opened.request.hardware.gpu is None:
        yield Note(code="assumed-cuda", message="Planned as with CUDA, where PagedAttention is on. Name the GPU with --gpu.")
    if settings.paged and not kinds.isdisjoint((SlidingAttention, ChunkedAttention)):
        message = "PagedAttention keeps every token of windowed layers: the pool is counted as if all layers were full attention."
        yield Note(code="window-not-honoured", message=message)
    if any(is_state(group.kind) for group in opened.plain_stack.groups):
        counted = f"9 at the start, {opened.slots:,} " + ("reserved for max_seqs and one to pad" if settings.paged else "in use")
        yield Note(code="state-slots", message=f"States have {counted}, whether sequences run or not.")
    if not settings.paged and "prefix_cache_n" not in opened.request.options:
        message = (
            "Up to 16 prefixes stay after their requests, each a full copy that is not planned: --engine-option prefix_cache_n=0."
        )
        yield Note(code="kept-prefixes", message=message)
    if settings.paged and opened.plain_stack is not opened.model.stack_for("mistral-rs"):
        message = "Layers that read the cache of an earlier one have pages too, which nothing uses."
        yield Note(code="pages-for-shared", message=message)
    if settings.paged and opened.request.parallel.tp * opened.request.parallel.pp > 1 and opened.request.hardware.gpu is not None:
        message = "On several GPUs mistral.rs sets nothing aside for activations: they have what pa_memory_fraction leaves free."
        yield Note(code="activations-not-reserved", message=message)
    if keeps_all_heads(opened.model) and opened.request.parallel.tp > 1:
        yield Note(code="all-heads", message="mistral.rs makes room for all key/value heads of this model on every rank.")

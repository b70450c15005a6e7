"""mistral.rs: what it makes of a model and of its options, what its pages or its caches without pages hold, and ``mistralrs serve`` for a plan.

PagedAttention is on with CUDA; caches grow by 512 positions where it is off. Source of the command line: mistralrs-cli/src/args of 0.9.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.engine import EVERY_TOKEN
from hwcalc.engines.facts import Command, Facts, IdleRules, Rest, Told, WeightFormats
from hwcalc.engines.forms import StagedCurve
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.mistral_rs.layers import (
    MISTRAL_RS,
    RULES,
    as_built,
    check_model,
    counted_elements,
    is_state,
    layer_types,
    shard,
    state_copies,
    words_of,
)
from hwcalc.engines.mistral_rs.pool import FIRST_SLOTS, SPARE_TOKENS, MistralPool, SlotsCurve, paged_parts, plan_budget, slots_for
from hwcalc.engines.models import known_dtype
from hwcalc.engines.options import (
    AUTO,
    CacheFormat,
    CommandInput,
    check_one_replica,
    choice_option,
    integer_option,
    is_auto,
    is_on,
    number_option,
    options_of,
    share_option,
)
from hwcalc.engines.pooled import BlockPool, PooledDeployment, PooledOccupancy
from hwcalc.engines.setup import Load
from hwcalc.engines.stored import Dtypes, StoredTensor, Support, bytes_of, stage_groups
from hwcalc.engines.subjects import Traits, without_policy
from hwcalc.errors import UnknownNameError, UnsupportedError, UsageError
from hwcalc.formulas import (
    AttentionKind,
    ChunkedAttention,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    Role,
    SharedCache,
    SlidingAttention,
)
from hwcalc.formulas.hybrid import pipeline_stages
from hwcalc.formulas.record import Record
from hwcalc.model import Definition, Note, Noted
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.quantization.planned import format_name
from hwcalc.text import brief
from hwcalc.units import MIB

if TYPE_CHECKING:
    from hwcalc.engines.devices import Saving
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.memory import Budget
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.formulas import DType, Stack

FRACTION: Final = 0.9
MOST_SEQUENCES: Final = 32
ISQ: Final = {
    "q8_0": "q8_0", "q4_0": "q4_0", "q4_k": "q4k", "q4_k_m": "q4k", "q5_k": "q5k", "q6_k": "q6k", "q3_k": "q3k", "q2_k": "q2k", "fp8": "fp8",
}  # fmt: skip
"""A format of kvplan -> what ``--isq`` calls it; the weights are made so while they are loaded."""
_BLOCK: Final = 32
_NUMBERS: Final = ("pa_memory_mb", "pa_context_len", "max_seqs")
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


class MistralDeployment(PooledDeployment):
    """A model on mistral.rs."""

    reserved_blocks = 1
    reserved_for = "null_block"

    def at(self, load: Load) -> MistralOccupancy:
        return MistralOccupancy(self, load)

    @cached_property
    def settings(self) -> Settings:
        """The settings that the options come to. Raises an error for what excludes each other or mistral.rs does not have."""
        options, setup = _by_newest_names(self.setup.options), self.setup
        # PagedAttention is on with CUDA, off on Metal unless the user switches it on, and there is none elsewhere.
        mode, spelled = options.get("paged_attn", AUTO), (setup.dtype or AUTO).strip().lower()
        numbers = {name: integer_option(1)(name, options[name]) for name in _NUMBERS if name in options}
        share, utilization = options.get("pa_memory_fraction"), setup.hardware.memory_utilization
        fraction = share_option("pa_memory_fraction", share, utilization, FRACTION)
        if not is_auto(setup.dtype) and spelled not in (*_FLOATS, *_FP8):
            message = f"--dtype {brief(spelled, 40)}: mistral.rs keeps its cache in the model's dtype or in f8e4m3."
            raise UnknownNameError(message, option="dtype", hint=f"Use: --dtype {', '.join((AUTO, *_FLOATS, 'fp8'))}")
        return Settings(
            paged=self.setup.hardware.vendor == "nvidia" if mode == AUTO else mode == "on",
            block_size=int(options.get("pa_block_size", _BLOCK)),
            memory_mb=numbers.get("pa_memory_mb"),
            context_tokens=numbers.get("pa_context_len"),
            fraction=fraction,
            most_sequences=numbers.get("max_seqs", MOST_SEQUENCES),
            fp8=spelled in _FP8 or options.get("pa_cache_type") == "f8e4m3",
        )

    @cached_property
    def plain_stack(self) -> Stack:
        """The layers with a cache of their own: in Gemma 4 also those that read the cache of an earlier layer."""
        stack, types = self.model.stack_for(self.engine.name), layer_types(self.model)
        if "exact_widths" not in words_of(self.model) or len(types) != len(stack):
            return stack
        paged = self.settings.paged
        built: Stack = self.model.once(("mistral-rs layers", paged), lambda: as_built(stack, types, paged=paged))
        return built

    @cached_property
    def model_format(self) -> DType:
        """The dtype that the model runs in, in which a cache is kept by default: by the accelerator, whatever the checkpoint has."""
        requested = (self.setup.dtype or AUTO).strip().lower()
        return known_dtype(requested if requested in _FLOATS else self._auto_dtype)

    @property
    def _auto_dtype(self) -> str:
        """bf16 where the accelerator computes in it, else fp16."""
        gpu = self.setup.hardware.gpu
        capability = None if gpu is None else gpu.capability
        return "fp16" if capability is not None and capability < _BF16_FROM else "bf16"

    def weight_dtype(self) -> str:
        return self.model_format.name

    @property
    def block_size(self) -> int:
        return self.settings.block_size

    @cached_property
    def block_pool(self) -> MistralPool | None:
        """The pool of a rank; ``None`` without pages, or if no layer has any."""
        if not self.settings.paged:
            return None
        tp, settings = self.setup.parallel.tp, self.settings
        shortest, groups = self.at(Load(seq=1)), self.plain_stack.groups
        elements = sum(group.count * counted_elements(shard(self.model, group.kind, tp), shortest, tp) for group in groups)
        if not elements:
            return None
        item_bytes = shortest.dtypes.roles[Role.KEY].block_bytes
        return MistralPool(
            block_size=settings.block_size,
            block_bytes=elements * item_bytes * settings.block_size,
            sequence_blocks=self.pages.pages,
            reserved=self.reserved_blocks,
            reserved_for=self.reserved_for,
            item_bytes=item_bytes,
            elements=elements,
            state_bytes=max(states for _, states in self.stages) if self.setup.hardware.kv_memory is None else 0,
            memory_mb=settings.memory_mb,
            context_tokens=settings.context_tokens,
            is_metal=self.setup.hardware.vendor == "apple",
        )

    @cached_property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """Two sums for each pipeline stage of a paged cache: bytes of a block, and bytes of all slots of recurrent states."""
        tp, shortest = self.setup.parallel.tp, without_policy(self.at(Load(seq=1)).replica)
        pages: dict[LayerKind, int] = {}
        states: dict[LayerKind, int] = {}
        for group in self.plain_stack.groups:
            tensors = shortest.tensors(shard(self.model, group.kind, tp), tp)
            states[group.kind] = sum(tensor.bytes for tensor in tensors if tensor.once)
            pages[group.kind] = bytes_of(tensors) - states[group.kind]
        return tuple(
            (sum(group.count * pages[group.kind] for group in groups), sum(group.count * states[group.kind] for group in groups))
            for groups in stage_groups(shortest)
        )

    @cached_property
    def dtypes(self) -> Noted[Dtypes]:
        plain = self.model_format
        kept = known_dtype("fp8_e4m3") if self.settings.fp8 else plain
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE, Role.INDEX), kept)
        # Gated delta nets alone keep their states in 32 bits.
        delta = any(isinstance(group.kind, GatedDeltaNet) for group in self.model.stack.groups)
        roles |= {Role.STATE: known_dtype("fp32") if delta else plain, Role.CONV: plain}
        notes: tuple[Note, ...] = ()
        if is_auto(self.setup.dtype) and kept is plain:
            said = f"KV dtype auto: {plain.name}, in which mistral.rs runs a model here, whatever its checkpoint has. Set it with --dtype."
            notes = (Note(code="default-dtype", message=said),)
        return Noted(Dtypes(kv=kept.name, roles=MappingProxyType(roles)), notes)

    @cached_property
    def accepted(self) -> bool:
        """That mistral.rs takes the model in this layout. Raises an error if it does not."""
        check_model(self.model)
        settings, kinds = self.settings, [group.kind for group in self.plain_stack.groups]
        shapes = {(kind.num_key_value_heads, kind.head_dim, kind.v_head_dim) for kind in kinds if isinstance(kind, AttentionKind)}
        if settings.paged and len(shapes) > 1 and any(isinstance(kind, SharedCache) for kind in kinds):
            raise UnsupportedError(
                "mistral.rs pages the layers that share a cache too, and which of the model's two shapes each has is not planned.",
                hint="Use: --engine-option paged_attn=off, or --engine reference",
            )
        self._check_layout()
        # f8e4m3 is for pages (`PagedCacheType::validate`).
        if settings.fp8 and not settings.paged:
            raise UnsupportedError(
                "mistral.rs keeps f8e4m3 in pages alone.", hint="Use: --engine-option paged_attn=on, or --dtype auto"
            )
        if settings.fp8 and any(isinstance(kind, LatentAttention) for kind in kinds):
            raise UnsupportedError("mistral.rs: FP8 KV cache is not supported for MLA.", hint="Use: --dtype auto")
        return True

    @cached_property
    def traits(self) -> Traits:
        on_apple = self.setup.hardware.vendor == "apple"
        return Traits(expands_latents=not self.settings.paged or on_apple)

    def weight_rules(self) -> Rules:
        return MISTRAL_RS

    def _check_layout(self) -> None:
        """Raise an error for a layout that ``validate_tp_head_layout`` refuses (mistralrs-quant/src/distributed/layers.rs)."""
        parallel = self.setup.parallel
        for name in ("dcp", "ep"):
            if getattr(parallel, name) > 1:
                raise UsageError(f"mistral.rs has no --{name}.", hint=f"Leave out --{name}.")
        if parallel.tp > 1 and parallel.pp > 1:
            raise UnsupportedError(
                "mistral.rs divides a model over GPUs by NCCL (--tp) or maps its layers to them (--pp), and does not do both.",
                hint=f"Use: --tp {parallel.tp * parallel.pp}, or --pp {parallel.tp * parallel.pp}",
            )
        for group in self.plain_stack.groups:
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


class MistralOccupancy(PooledOccupancy):
    """What mistral.rs holds under one load."""

    deployment: MistralDeployment

    @cached_property
    def block_pool(self) -> MistralPool | None:
        pool = self.deployment.block_pool
        return None if pool is None else pool.under(self.tokens, self.request.replica_batch)

    @property
    def slots(self) -> int:
        """State slots of each layer with a state."""
        settings = self.deployment.settings
        # With pages nine at first, and one for every sequence that may run and one to pad.
        return max(FIRST_SLOTS, settings.most_sequences + 1) if settings.paged else slots_for(self.request.replica_batch)

    def check(self) -> None:
        self.deployment.accepted  # noqa: B018
        if self.load.sharing.beams > 1:
            raise UnsupportedError("mistral.rs has no beam search.", hint="Leave out --beams, or use: --samples")
        name = format_name(self.setup.weights)
        if name is not None and name not in (*_FLOATS, *ISQ):
            message = f"mistral.rs does not make {name} weights of the published ones."
            raise UnsupportedError(message, hint=f"Use --weights {', '.join(('bf16', *ISQ))}, or a model that is published so.")
        self.tell(*self._remarks())

    def tensors(self, kind: LayerKind, ranks: int = 1) -> tuple[StoredTensor, ...]:
        """The tensors of one layer; ``kind`` is that of one of so many tensor-parallel ranks."""
        return RULES[type(kind)](kind, self, ranks)

    def shard_tensors(self, shard: LayerKind) -> tuple[StoredTensor, ...]:
        """The tensors of a layer on one rank; pages that the layer does not use are as narrow as the others of the rank."""
        return self.tensors(shard, self.setup.parallel.tp)

    @cached_property
    def needed_bytes(self) -> int:
        pool, unlike = self.deployment.block_pool, self.unlike_blocks
        if pool is None:
            return super().needed_bytes
        blocks = pool.demand(self.tokens, self.request.replica_batch) if unlike is None else unlike
        return max(blocks * block_bytes + state_bytes for block_bytes, state_bytes in self.deployment.stages)

    def _plan_budget(self) -> Noted[Budget | None]:
        return plan_budget(self) if self.deployment.settings.paged else super()._plan_budget()

    def pool_info(self, pool: BlockPool, budget_bytes: int) -> PoolInfo:
        assert isinstance(pool, MistralPool)
        info, branches = super().pool_info(pool, budget_bytes), self.load.sharing.branches
        assert info.needed_bytes is not None
        longest = max(self.tokens, self.model.max_position_embeddings or 0)
        return replace(
            info,
            max_seq=min(longest, pool.free(budget_bytes) // branches * pool.block_size),
            state_slots=self.slots if any(is_state(group.kind) for group in self.stack.groups) else None,
            needed_bytes=-(-info.needed_bytes // MIB) * MIB + pool.state_bytes,
        )

    def pool_message(self, pool: BlockPool, budget_bytes: int, requests: int) -> str | None:
        assert isinstance(pool, MistralPool)
        message, held = pool.message(budget_bytes), pool.blocks(budget_bytes) * pool.block_size
        if message is not None or requests:
            return message
        if self.tokens <= held:
            return f"Sequence 0 with {self.tokens} tokens cannot be scheduled: KV cache exhausted even after preempting all running sequences."
        return f"Sequence 0 with {self.tokens} tokens exceeds the total KV cache capacity of {held} tokens."

    def most_sequences(self) -> tuple[int, str]:
        return self.deployment.settings.most_sequences * self.setup.parallel.dp, "max_seqs"

    def curve(self) -> Curve | None:
        curve = super().curve()
        if curve is None or self.deployment.settings.paged or not curve.total_once_bytes:
            return curve
        # Without pages, what the cache takes with the slots of the planned sequences tells the bytes of a slot.
        copies = state_copies(self.model)
        slots = self.slots + copies
        once = curve.once_on if isinstance(curve, StagedCurve) else (curve.once_bytes,) * len(curve.gpus)
        return SlotsCurve(
            gpus=curve.gpus,
            total=curve.total,
            slot_bytes=tuple(size // slots for size in once),
            all_slot_bytes=curve.total_once_bytes // slots,
            copies=copies,
            dp=self.setup.parallel.dp,
        )

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.general_form import form_with

        if not self.deployment.settings.paged:
            return super().form()
        return form_with(self, lambda: paged_parts(self, self.chunks()[1]), pools=self.deployment.block_pool)

    @cached_property
    def sharing_support(self) -> Support:
        """Source: paged_attention/kv_cache_manager.rs get_computed_blocks; prefix_cacher.rs copies a cache without pages."""
        how = "a kept prefix is copied for each sequence"
        if self.deployment.settings.paged:
            how = "blocks of finished prompts are found again by their hash; what requests that run at once share is not planned"
        return Support(offered=False, how=how)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.devices import Cost, Saving

        latent = any(isinstance(group.kind, LatentAttention) for group in self.model.stack.groups)
        if self.deployment.settings.paged and not latent:
            yield Saving(Cost.CACHE, "f8e4m3 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "q8_0 weights", {"weights": "q8_0"})
        yield Saving(Cost.FEW_BITS, "q4_k_m weights", {"weights": "q4_k_m"})

    def _remarks(self) -> Iterator[Note]:
        settings = self.deployment.settings
        kinds: set[type[LayerKind]] = {type(group.kind) for group in self.deployment.plain_stack.groups}
        if self.setup.hardware.gpu is None:
            yield Note(code="assumed-cuda", message="Planned as with CUDA, where PagedAttention is on. Name the GPU with --gpu.")
        if settings.paged and not kinds.isdisjoint((SlidingAttention, ChunkedAttention)):
            message = (
                "PagedAttention keeps every token of windowed layers: the pool is counted as if all layers were full attention."
            )
            yield Note(code="window-not-honoured", message=message)
        if any(is_state(group.kind) for group in self.deployment.plain_stack.groups):
            use = "reserved for max_seqs and one to pad" if settings.paged else "in use"
            message = f"States have slots whether sequences run or not: 9 at the start, then {self.slots:,} {use}."
            yield Note(code="state-slots", message=message)
        if not settings.paged and "prefix_cache_n" not in self.setup.options:
            message = "Up to 16 prefixes stay after their requests, each a full copy that is not planned: --engine-option prefix_cache_n=0."
            yield Note(code="kept-prefixes", message=message)
        if settings.paged and self.deployment.plain_stack is not self.model.stack_for("mistral-rs"):
            message = "Layers that read the cache of an earlier one have pages too, which nothing uses."
            yield Note(code="pages-for-shared", message=message)
        if settings.paged and self.setup.parallel.tp * self.setup.parallel.pp > 1 and self.setup.hardware.gpu is not None:
            message = (
                "On several GPUs mistral.rs sets nothing aside for activations: they have what pa_memory_fraction leaves free."
            )
            yield Note(code="activations-not-reserved", message=message)
        if "all_heads" in words_of(self.model) and self.setup.parallel.tp > 1:
            yield Note(code="all-heads", message="mistral.rs makes room for all key/value heads of this model on every rank.")


def _by_newest_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options under the names of ``mistralrs serve``; no two that mean the same or exclude each other."""
    found: dict[str, str] = {}
    for name, value in options.items():
        newest = _OLDER.get(name, name)
        if newest in found:
            raise UsageError(
                f"engine options {newest} and {name} are the same.", hint=f"Give one: --engine-option {newest}={value}"
            )
        found[newest] = value
    sizes = [name for name in ("pa_context_len", "pa_memory_mb", "pa_memory_fraction") if name in found]
    if len(sizes) > 1:
        message = f"mistral.rs: the argument --{sizes[1].replace('_', '-')} cannot be used with --{sizes[0].replace('_', '-')}."
        raise UsageError(message, hint=f"Give one: --engine-option {sizes[0]}={found[sizes[0]]}")
    return found


def _block(name: str, value: str) -> int:
    size = integer_option(1)(name, value)
    if size not in (8, 16, 32):
        raise UsageError(f"mistral.rs: Block size must be in [8, 16, 32], got {size}.", hint=f"Use: --engine-option {name}=32")
    return size


_MEMORY: Final = integer_option(1)

_OPTIONS: Final = options_of(
    ("paged_attn", "PagedAttention", "auto: with CUDA", choice_option("auto", "on", "off")),
    ("pa_context_len", "tokens for which the pool is made", "none", _MEMORY),
    ("pa_memory_mb", "MB (2^20 bytes) of the pool", "by pa_memory_fraction", _MEMORY),
    ("pa_memory_fraction", "share of the GPU for weights and cache", str(FRACTION), number_option(1)),
    ("pa_block_size", "tokens in a block: 8, 16 or 32", "32", _block),
    ("pa_cache_type", "format of the pool", "auto", choice_option("auto", "f8e4m3")),
    ("max_seqs", "sequences at once", str(MOST_SEQUENCES), integer_option(1, 2**20)),
    ("prefix_cache_n", "prefixes kept where there is no pool", "16", integer_option(0, 2**20)),
    ("pa_gpu_mem", "pa_memory_mb in the Python package", "none", _MEMORY),
    ("pa_gpu_mem_usage", "pa_memory_fraction in the Python package", "none", number_option(1)),
    ("pa_ctxt_len", "pa_context_len in older servers", "none", _MEMORY),
    ("pa_blk_size", "pa_block_size in older servers", "none", _block),
)


class MistralCommand(Command):
    """``mistralrs serve`` for a plan."""

    known = True

    def asked(self, said: Told) -> Mapping[str, Any]:
        """``--dtype`` is that of the cache too, and the GPUs that it sees share the layers: each has a part of all, or without NCCL some of them."""
        changed: dict[str, Any] = dict(said.on_all_gpus("pp" if is_on(str(said.extra.get("MISTRALRS_NO_NCCL"))) else "tp"))
        floats = {name: each for each, name in _FLOATS.items()}
        if said.settings.get("dtype") in floats:
            changed["dtype"] = floats[said.settings["dtype"]]
        tokens = said.options.get("seq")
        if isinstance(tokens, int) and tokens > SPARE_TOKENS and said.knobs().get("paged_attn") == "on":
            changed["seq"] = tokens - SPARE_TOKENS
        return said.changed(**changed)

    def flag(self, name: str, value: object) -> str:
        """The spelling in mistral.rs of one option of kvplan or one engine option; empty if it has no flag for it."""
        if name == "dtype":
            return " ".join(_kv_dtype(str(value)))
        if name == "weights":
            return " ".join(_FLAGS.words(name, ISQ[str(value)])) if str(value) in ISQ else ""
        name = _OLDER.get(name, name)
        return _FLAGS.text(name, value)

    def words(self, planned: CommandInput) -> list[str]:
        """The words of ``mistralrs serve`` for a plan. Raises :class:`~hwcalc.errors.UsageError` for what it cannot be told."""
        for name in ("lora", "draft"):
            if getattr(planned, name) is not None:
                raise UsageError(f"--{name} names no files that mistral.rs could load.", hint=f"Leave out --{name}.")
        check_one_replica(planned, "mistral.rs")
        of, parallel = _FLAGS.words, planned.parallel
        words = [*_FLAGS.program, *of("model", planned.path or planned.model)]
        if parallel.gpus > 1:
            # NCCL takes all GPUs that it sees. With pipeline stages it is off, and layers are mapped to GPUs.
            seen = f"CUDA_VISIBLE_DEVICES={','.join(str(number) for number in range(parallel.gpus))}"
            words = ["env", seen, *(["MISTRALRS_NO_NCCL=1"] if parallel.pp > 1 else []), *words]
        tokens = planned.seq + (SPARE_TOKENS if planned.options.get("paged_attn") == "on" else 0)
        words += [*of("seq", tokens), *of("batch", planned.batch)]
        if parallel.pp > 1:
            stages = pipeline_stages(planned.layers, parallel.pp)
            words += of("device_layers", ";".join(f"{number}:{len(stage)}" for number, stage in enumerate(stages)))
        options = {_OLDER.get(name, name): value for name, value in planned.options.items()}
        if planned.kv_dtype_named:
            words += _kv_dtype(planned.kv_dtype)
            if planned.kv_dtype not in _FLOATS:
                options.pop("pa_cache_type", None)
        if planned.weights is not None:
            # The engine has accepted the format.
            name = format_name(planned.weights) or ""
            words += of("dtype", _FLOATS[name]) if name in _FLOATS else of("weights", ISQ[name])
        # The three flags for the size of the pool exclude each other; that of an option is the nearest to the user's wish.
        if _SIZES.isdisjoint(options):
            if planned.kv_memory is not None:
                words += of("pa_memory_mb", planned.kv_memory // MIB)
            elif planned.memory_utilization is not None:
                words += of("memory_utilization", planned.memory_utilization)
        for name, value in options.items():
            words += of(name, value)
        return [*words, *(word for required in planned.requires for word in required.flag.split()), *planned.flags]


class MistralIdle(IdleRules):
    """Models of one process, of which each can be unloaded and loaded again; weights that it quantizes itself are quantized again.

    Source: mistral.rs 0.9.2, mistralrs-core/src/lib.rs (``unload_model``), mistralrs-server-core/src/handlers.rs.
    """

    ways = (Rest(name="unloaded", how="POST /v1/models/unload; POST /v1/models/reload", ends=True),)
    one_process = True
    source = "mistral.rs 0.9.2 mistralrs-core/src/lib.rs"


class MistralRs(GeneralEngine):
    """The caches of mistral.rs."""

    deployment = MistralDeployment
    occupancy = MistralOccupancy
    name = "mistral-rs"
    title = "mistral.rs: PagedAttention, or caches that grow by 512"
    label = "mistral.rs"
    definition = Definition.ENGINE
    facts = Facts(
        cache_formats=tuple(
            CacheFormat(
                name=name, bits=8, stored="in pages, and no scale in the cache", source="mistral.rs 0.9.2, --pa-cache-type"
            )
            for name in _FP8
        ),
        idle=MistralIdle(),
        users_option="max_seqs",
        cache_is="pages of the planned sequences, and all slots of states",
        pool_is="GPU blocks x block size",
        unbounded=MappingProxyType({SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}),
        pooled=True,
        # A sequence that an empty cache cannot hold is rejected when it comes (paged_attention/scheduler.rs).
        short_pool="rejects longer requests",
    )
    weights = WeightFormats(None, "q8_0", "q4_k_m")
    command = MistralCommand()
    versions = ("0.9.2",)
    source = "mistral.rs 9e922623f24b (0.9.2), paged_attention/mod.rs"
    kinds = frozenset(RULES)
    options = _OPTIONS


_FLAGS: Final = engine_flags("mistral-rs")
_SIZES: Final = frozenset({"pa_context_len", "pa_memory_mb", "pa_memory_fraction"})
_BF16_FROM: Final = (8, 0)
"""Compute capability from which mistral.rs runs in bf16 by itself (utils/normal.rs, MIN_BF16_CC)."""
_FLOATS: Final = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}


def _kv_dtype(name: str) -> list[str]:
    return _FLAGS.words("dtype", _FLOATS[name]) if name in _FLOATS else _FLAGS.words("pa_cache_type", _FP8[0])

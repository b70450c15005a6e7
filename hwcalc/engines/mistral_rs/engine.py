"""mistral.rs: PagedAttention on CUDA, and caches that grow by 512 positions where it is off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.base import Opened
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.kinds import EVERY_TOKEN
from hwcalc.engines.mistral_rs.layers import RULES, check_shared, is_state, layer_tensors
from hwcalc.engines.mistral_rs.models import check_class, check_model, keeps_all_heads
from hwcalc.engines.mistral_rs.opened import FRACTION, MOST_SEQUENCES, MistralOpened, of_mistral
from hwcalc.engines.mistral_rs.pool import pages_of, plan_pool
from hwcalc.engines.model_dtypes import known_dtype, model_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption, choice_option, integer_option, is_auto, number_option
from hwcalc.engines.policies import Support
from hwcalc.engines.request import Request
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import AttentionKind, ChunkedAttention, GatedDeltaNet, LatentAttention, LayerKind, Role, SlidingAttention
from hwcalc.model import Definition, ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving

__all__ = ["MistralRs"]

_FP8_SINCE: Final = 8
"""The major compute capability from which CUDA's kernels take f8e4m3."""


def _block(name: str, value: str) -> int:
    size = integer_option(1)(name, value)
    if size not in (8, 16, 32):
        raise UsageError(f"mistral.rs: Block size must be in [8, 16, 32], got {size}.", hint=f"Use: --engine-option {name}=32")
    return size


def _share(name: str, value: str) -> float:
    return number_option(1)(name, value)


_MEMORY: Final = integer_option(1)
_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], object]], ...]] = (
    ("paged_attn", "PagedAttention", "auto: with CUDA", choice_option("auto", "on", "off")),
    ("pa_context_len", "tokens for which the pool is made", "none", _MEMORY),
    ("pa_memory_mb", "MB (2^20 bytes) of the pool", "by pa_memory_fraction", _MEMORY),
    ("pa_memory_fraction", "share of the GPU for weights and cache", str(FRACTION), _share),
    ("pa_block_size", "tokens in a block: 8, 16 or 32", "32", _block),
    ("pa_cache_type", "format of the pool", "auto", choice_option("auto", "f8e4m3")),
    ("max_seqs", "sequences at once", str(MOST_SEQUENCES), integer_option(1, 2**20)),
    ("prefix_cache_n", "prefixes kept where there is no pool", "16", integer_option(0, 2**20)),
    ("pa_gpu_mem", "pa_memory_mb in the Python package", "none", _MEMORY),
    ("pa_gpu_mem_usage", "pa_memory_fraction in the Python package", "none", _share),
    ("pa_ctxt_len", "pa_context_len in older servers", "none", _MEMORY),
    ("pa_blk_size", "pa_block_size in older servers", "none", _block),
)


class MistralRs(GeneralEngine):
    """The caches of mistral.rs."""

    name: ClassVar[str] = "mistral-rs"
    title: ClassVar[str] = "mistral.rs: PagedAttention, or caches that grow by 512"
    label: ClassVar[str] = "mistral.rs"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "pages of the planned sequences, and all slots of states"
    pool_is: ClassVar[str] = "GPU blocks x block size"
    versions: ClassVar[tuple[str, ...]] = ("0.9.2",)
    source: ClassVar[str] = "mistral.rs 9e922623f24b (0.9.2), paged_attention/mod.rs"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}
    )
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "q8_0", "q4_k_m")
    choices: ClassVar[Choices | None] = None
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
    )

    def unchecked(self, model: ModelSpec, request: Request) -> MistralOpened:
        return MistralOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        own = of_mistral(opened)
        plain = own.model_format
        kept = known_dtype("fp8_e4m3") if own.settings.fp8 else plain
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE, Role.INDEX), kept)
        # Gated delta nets alone keep their states in 32 bits.
        delta = any(isinstance(group.kind, GatedDeltaNet) for group in opened.model.stack.groups)
        roles |= {Role.STATE: known_dtype("fp32") if delta else plain, Role.CONV: plain}
        notes = model_dtype(opened.model, opened.request.dtype).notes if is_auto(opened.request.dtype) and kept is plain else ()
        return Noted(Dtypes(kv=kept.name, roles=MappingProxyType(roles)), notes)

    def check_class(self, opened: Opened) -> None:
        check_class(opened.model)

    def check(self, opened: Opened) -> None:
        own = of_mistral(opened)
        opened.shared("supported", lambda: check_model(opened.model))
        check_shared(own)
        _check_layout(own)
        _check_fp8(own)
        if opened.request.sharing.beams > 1:
            raise UnsupportedError("mistral.rs has no beam search.", hint="Leave out --beams, or use: --samples")
        _check_weights(opened.request.weights)
        opened.tell(*opened.shared("remarks", lambda: tuple(_remarks(own))))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        return layer_tensors(kind, of_mistral(opened))

    def rank_tensors(self, shard: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """Pages that a layer does not use are as narrow as those of a rank, too."""
        return layer_tensors(shard, of_mistral(opened), opened.request.parallel.tp)

    def expands_latents(self, opened: Opened) -> bool:
        own = of_mistral(opened)
        gpu = opened.request.hardware.gpu
        return not own.settings.paged or (gpu is not None and gpu.vendor.lower() == "apple")

    def needed_bytes(self, opened: Opened) -> int:
        from hwcalc.engines.pages import blocks_of_requests

        own = of_mistral(opened)
        if not own.settings.paged:
            return super().needed_bytes(opened)
        return pages_of(own).needed(blocks_of_requests(own, own.settings.block_size))

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        own = of_mistral(opened)
        if not own.settings.paged:
            return super().budget(opened)
        from hwcalc.engines.mistral_rs.memory import plan_budget

        return plan_budget(own)

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        own = of_mistral(opened)
        return Noted(plan_pool(own, budget_bytes) if own.settings.paged and pages_of(own).elements else None)

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        from hwcalc.engines.pages import blocks_of_requests

        own = of_mistral(opened)
        if not own.settings.paged:
            return opened.needed_bytes <= budget_bytes
        pool = opened.engine.pool(opened, max(0, budget_bytes)).value
        if pool is None or pool.blocks is None:
            return opened.needed_bytes <= budget_bytes
        return budget_bytes >= 0 and pool.fits and pool.blocks - 1 >= blocks_of_requests(own, own.settings.block_size)

    def most_sequences(self, opened: Opened) -> tuple[int, str]:
        return of_mistral(opened).settings.most_sequences * opened.request.parallel.dp, "max_seqs"

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        own = of_mistral(opened)
        if not own.settings.paged or opened.request.lengths or opened.request.sharing.asked:
            return None
        if not pages_of(own).elements or budget_bytes < 0:
            return None
        pool = plan_pool(of_mistral(opened.sized(seq=1)), budget_bytes, capped=False)
        if not pool.fits:
            return 0
        return min(bound, max(0, (pool.blocks or 0) - 1) // opened.request.replica_batch * own.settings.block_size)

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.mistral_rs.form import slots_curve

        own, curve = of_mistral(opened), super().curve(opened)
        return curve if curve is None or own.settings.paged else slots_curve(own, curve)

    def form(self, opened: Opened) -> MemoryForm | None:
        own = of_mistral(opened)
        if not own.settings.paged:
            return super().form(opened)
        from hwcalc.engines.mistral_rs.form import paged_form

        return paged_form(own, self.chunks(opened)[1])

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.mistral_rs.weights import MISTRAL_RS

        return MISTRAL_RS

    def sharing_support(self, opened: Opened) -> Support:
        """Source: paged_attention/kv_cache_manager.rs get_computed_blocks; prefix_cacher.rs copies a cache without pages."""
        if of_mistral(opened).settings.paged:
            how = "blocks of finished prompts are found again by their hash; what requests that run at once share is not planned"
        else:
            how = "a kept prefix is copied for each sequence"
        return Support(offered=False, how=how)

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.saving import Cost, Saving

        if of_mistral(opened).settings.paged and not any(
            isinstance(group.kind, LatentAttention) for group in opened.model.stack.groups
        ):
            yield Saving(Cost.CACHE, "f8e4m3 cache", {"dtype": "fp8"})
        yield Saving(Cost.WEIGHTS, "q8_0 weights", {"weights": "q8_0"})
        yield Saving(Cost.FEW_BITS, "q4_k_m weights", {"weights": "q4_k_m"})

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.mistral_rs.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.mistral_rs.command import serve

        return serve(planned)


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


def _check_layout(opened: MistralOpened) -> None:
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


def _check_fp8(opened: MistralOpened) -> None:
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


def _remarks(opened: MistralOpened) -> Iterator[Note]:
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

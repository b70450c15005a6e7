"""vLLM as an engine: which models it takes, what its pool stores, what a budget holds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.base import Engine, Option, choice_option, integer_option, number_option
from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.rank_weights import Rules
from hwcalc.engines.reference import named
from hwcalc.engines.request import Request
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import Context, Dtypes, StoredTensor
from hwcalc.engines.vllm import formats, versions
from hwcalc.engines.vllm.blocks import gpu_architecture
from hwcalc.engines.vllm.command import FLAGS, serve
from hwcalc.engines.vllm.layout import Held, Layout, Part, plan_layout
from hwcalc.engines.vllm.memory import plan_budget, weight_parts
from hwcalc.engines.vllm.pool import group_infos, plan_pool, usable_blocks
from hwcalc.engines.vllm.settings import Settings, cached_kinds, read_settings
from hwcalc.engines.vllm.shards import check_experts
from hwcalc.engines.vllm.specs import Spec
from hwcalc.engines.vllm.weights import VLLM
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, CrossAttention, LatentAttention, LayerKind, Role, SlidingAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.tensor import Once
from hwcalc.model import Definition, ModelSpec, Note
from hwcalc.planner.result import Plan

if TYPE_CHECKING:
    from hwcalc.engines.stored import Allocation

__all__ = ["Vllm"]

_FLAG: Final = choice_option("true", "false", "on", "off")
_STATE_DTYPE: Final = choice_option("auto", "float32", "float16", "bfloat16", "fp32", "fp16", "bf16")
_OWN_CACHES: Final = ("Inkling", "Qwen4Exp", "Zaya")
_ROLES: Final = {"latent": Role.LATENT, "window_latent": Role.LATENT, "compressed_latent": Role.LATENT}
_VENDORS: Final = ("nvidia", "amd")
_OLDEST_ARCHITECTURE: Final = 70
"""Compute capability 7.0, as vLLM's installation page asks for."""
_LAYOUT_KEYS: Final = ("seq", "dtype", "tp", "pp", "dcp", "gpu", "options")


class Vllm(Engine):
    """Pools of blocks, by vLLM's own plan."""

    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM: blocks of a pool that groups of layers share"
    label: ClassVar[str] = "vLLM"
    definition: ClassVar[Definition] = Definition.ENGINE
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    versions: ClassVar[tuple[str, ...]] = versions.VERSIONS
    source: ClassVar[str] = "vLLM 0.33.0, v1/core/kv_cache_planning.py"
    options: ClassVar[Mapping[str, Option]] = MappingProxyType(
        {
            name: Option(name=name, help=text, default=default, check=check)
            for name, text, default, check in (
                ("block_size", "tokens in a block", "by backend, at least 16", integer_option(1, 2**20)),
                ("max_num_batched_tokens", "tokens in a batch", "by GPU: 2048, 8192 or 16384", integer_option(1, 2**30)),
                ("max_num_seqs", "requests in a batch", "by GPU: 256 or 1024", integer_option(1, 2**30)),
                ("enable_prefix_caching", "keep blocks of finished requests", "true, false without attention", _FLAG),
                ("async_scheduling", "schedule a batch ahead", "true", _FLAG),
                ("disable_hybrid_kv_cache_manager", "keep windowed layers whole", "false", _FLAG),
                ("mamba_cache_dtype", "dtype of convolution states", "auto", _STATE_DTYPE),
                ("mamba_ssm_cache_dtype", "dtype of recurrent states", "auto", _STATE_DTYPE),
                ("num_gpu_blocks_override", "blocks, whatever the memory", "by memory", integer_option(1, 2**40)),
                ("dtype", "dtype that the model runs in", "auto", _STATE_DTYPE),
                ("cpu_offload_gb", "GiB of weights in host memory, per GPU", "0", number_option(2**20)),
                ("kv_offloading_size", "GiB of host memory for blocks that left the GPU", "none", number_option(2**20)),
                ("speculative", "ngram:N, mtp:N, eagle:MODEL[:N] or draft:MODEL[:N]", "none", lambda _, value: value),
            )
        }
    )

    def __init__(self) -> None:
        self._last: tuple[tuple[object, ...], tuple[Settings, Layout, Held]] | None = None

    def resolve_version(self, wanted: str) -> str:
        return versions.resolve(wanted)

    def dtypes(self, model: ModelSpec, request: Request, notes: list[Note]) -> Dtypes:
        settings = read_settings(model, request, self.version(request.engine_version))
        roles = formats.role_formats(settings.word, model, named(settings.plain), named(settings.conv), named(settings.state))
        if request.dtype in (None, "auto"):
            what = f"the model's dtype, {settings.plain}" if settings.word == "auto" else settings.word
            notes.append(Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."))
        return Dtypes(kv=settings.plain if settings.word == "auto" else settings.word, roles=MappingProxyType(roles))

    def check(self, context: Context) -> None:
        model, request = context.model, context.request
        cross = CrossAttention in cached_kinds(model)
        versions.check_architecture(model.architecture, context.version, cross=cross)
        if (model.architecture or "").startswith(_OWN_CACHES):
            raise UnsupportedError(
                f"vLLM keeps the short convolutions of {model.architecture} in caches of their own, which kvplan does not know yet.",
                hint="Use: --engine reference",
            )
        _check_ranks(model, request)
        if context.version != versions.VERSIONS[0]:
            message = "Flags and KV dtypes are taken to be those of 0.33; what kvplan knows to differ is applied."
            context.notes.append(Note(code="older-version", message=message))
        if request.gpu is None:
            context.notes.append(
                Note(
                    code="default-gpu",
                    message="No GPU given: block sizes and batches are those of an H100. Set it with --gpu.",
                )
            )
        elif request.gpu.vendor.lower() not in _VENDORS or 0 < gpu_architecture(request.gpu) < _OLDEST_ARCHITECTURE:
            raise UnsupportedError(
                f"vLLM's rules for {request.gpu.name} are not known.",
                hint="Known: NVIDIA GPUs from compute capability 7.0 on, and AMD's. Without --gpu: give a budget with --kv-memory.",
            )
        elif request.gpu.vendor.lower() != "nvidia":
            context.notes.append(
                Note(code="not-cuda", message="vLLM's rules for NVIDIA GPUs are used; other backends may choose other blocks.")
            )
        settings = self._plan(context)[0]
        if model.architecture == "FalconForCausalLM" and request.dtype not in (None, "auto") and settings.word == "auto":
            context.notes.append(
                Note(
                    code="dtype-ignored", message="vLLM builds Falcon's attention without the cache settings: --dtype is ignored."
                )
            )
        if settings.speculation is not None and settings.speculation.method == "mtp":
            context.notes.append(Note(code="draft-layers", message="The drafting layers keep their cache in the same pool."))
        if "kv_offloading_size" in request.options:
            message = f"kv_offloading_size: {request.options['kv_offloading_size']} GiB of host memory; the pool on the GPU stays as it is."
            context.notes.append(Note(code="host-memory", message=message))
        if request.dp > 1:
            context.notes.append(Note(code="per-replica", message=f"The pool is that of one of {request.dp} replicas."))

    def tensors(self, kind: LayerKind, context: Context) -> tuple[StoredTensor, ...]:
        """Whole blocks of every request, on all tensor-parallel ranks together."""
        groups = context.model.stack_for(self.name).groups
        number = next(number for number, group in enumerate(groups) if group.kind is kind or group.kind == kind)
        held = self._plan(context)[2]
        return tuple(_stored(context, part, spec, blocks) for part, spec, blocks in held.kinds if part.kind == number)

    def extras(self, context: Context) -> tuple[StoredTensor, ...]:
        """What a request takes of the pool beside its layers' pages: drafts, layers left unpacked, space of narrower groups."""
        _, layout, held = self._plan(context)
        copies = context.batch * context.request.tp
        wanted = layout.total_blocks(context.tokens)
        total = copies * wanted * sum(layout.stage_bytes)
        parts = {
            "draft_layers": copies * held.drafts,
            "unpacked_layers": copies * held.outer,
            "unused_block_space": total - copies * (held.layers + held.outer + held.drafts),
        }
        return tuple(_extra(name, size) for name, size in parts.items() if size)

    def rank_bytes(self, context: Context, total_bytes: int) -> int:
        layout = self._plan(context)[1]
        return context.request.replica_batch * layout.total_blocks(context.tokens) * max(layout.stage_bytes, default=0)

    def needed_bytes(self, context: Context) -> int:
        return self.rank_bytes(context, 0)

    def allocation(self, context: Context, stage: int) -> tuple[Allocation, ...]:
        """One raw buffer for each page of a block, which groups share; of as many blocks as the plan's budget holds.

        Without a budget there are the blocks of the planned sequences, and the null block.
        """
        from hwcalc.engines.allocation import planned_blocks
        from hwcalc.engines.vllm.buffers import pool_buffers

        settings, layout, _ = self._plan(context)
        needed = context.request.replica_batch * layout.total_blocks(context.tokens) + 1
        blocks = settings.override or planned_blocks(self, context, needed)
        return pool_buffers(layout, blocks, stage)

    def most_sequences(self, context: Context) -> tuple[int, str]:
        return self._plan(context)[0].sequences * context.request.dp, "max_num_seqs"

    def longest(self, context: Context, budget_bytes: int, bound: int) -> int | None:
        """By the layout at hand, where that is the same at every length."""
        settings, layout, _ = self._plan(context)
        if layout.depends_on_length or not layout.stage_bytes:
            return None
        usable = usable_blocks(layout, settings, budget_bytes)
        found = layout.longest(usable // context.request.replica_batch, bound)
        return found if settings.same_batches(found) else None

    def flag(self, name: str, value: object) -> str:
        return f"{FLAGS[name]} {value}" if name in FLAGS else super().flag(name, value)

    def groups(self, context: Context) -> tuple[PoolGroup, ...]:
        return group_infos(self._plan(context)[1], context.tokens)

    def pool(self, context: Context, budget_bytes: int) -> PoolInfo:
        settings, layout, _ = self._plan(context)
        if settings.override is not None and settings.override * max(layout.stage_bytes, default=0) > budget_bytes:
            message = (
                f"num_gpu_blocks_override={settings.override:,} is more than the budget holds: vLLM's check passes over it, "
                "and the allocation runs out of memory."
            )
            context.notes.append(Note(code="override-beyond-budget", message=message))
        length = context.tokens
        return plan_pool(layout, settings, budget_bytes, length, max(length, context.model.max_position_embeddings or 0))

    def budget(self, context: Context) -> Budget | None:
        settings = self._plan(context)[0]
        return plan_budget(
            context,
            sequences=settings.sequences,
            batched_tokens=settings.batched_tokens,
            speculation=settings.speculation,
        )

    def command(self, plan: Plan) -> list[str]:
        return serve(plan)

    def weight_rules(self) -> Rules:
        return VLLM

    def plain_dtype(self, context: Context) -> str:
        """A float32 checkpoint is loaded in 16 bits unless ``dtype`` says otherwise."""
        return self._plan(context)[0].plain

    def weight_parts(self, context: Context) -> tuple[BudgetPart, ...] | None:
        return weight_parts(context)

    def _plan(self, context: Context) -> tuple[Settings, Layout, Held]:
        """Settings and layout of a context; the last one is kept, since a plan asks for it once per layer kind."""
        request = context.request
        key = (context.model, context.version, *(getattr(request, name) for name in _LAYOUT_KEYS))
        last = self._last
        if last is not None and all(
            old is new or (type(old) in (int, str) and old == new) for old, new in zip(last[0], key, strict=True)
        ):
            return last[1]
        settings = read_settings(context.model, request, context.version)
        layout = plan_layout(context.model, settings, request.seq)
        planned = settings, layout, layout.held(request.seq)
        self._last = key, planned
        return planned


def _stored(context: Context, part: Part, spec: Spec, blocks: int) -> StoredTensor:
    copies = context.batch * context.request.tp
    state = spec.form == "state" or part.name.endswith("_state")
    role = Role.STATE if state else Role.INDEX if part.name == "indexer_keys" else _ROLES.get(part.name, Role.KEY)
    ranks = f" x {context.request.tp} ranks" if context.request.tp > 1 else ""
    return StoredTensor(
        name=part.name,
        role=role,
        axes=("bytes of a block",),
        shape=(spec.page,),
        dtype=context.dtypes.state if spec.form == "state" else context.dtypes.kv,
        positions=blocks,
        span=OwnRule(f"{blocks:,} blocks of {spec.block_size:,} tokens", blocks),
        bytes=copies * blocks * spec.page,
        rule=f"{blocks:,} blocks x {spec.page:,} B{ranks}",
    )


def _extra(name: str, size: int) -> StoredTensor:
    rule = {
        "draft_layers": "blocks of the layers that draft",
        "unpacked_layers": "outer layers at the model's dtype, beyond a packed layer's bytes",
        "unused_block_space": "a block is as wide as the widest group",
    }[name]
    return StoredTensor(
        name=name, role=Role.KEY, axes=("bytes",), shape=(size,), dtype="int8", positions=1, span=Once(), bytes=size, rule=rule
    )


def _check_ranks(model: ModelSpec, request: Request) -> None:
    """Refuse what vLLM's own start-up refuses."""
    kinds = [group.kind for group in model.stack_for("vllm").groups]
    attention = [kind for kind in kinds if isinstance(kind, (AttentionKind, LatentAttention))]
    for kind in attention:
        if kind.num_attention_heads % request.tp:
            raise UsageError(
                f"vLLM cannot split {kind.num_attention_heads} attention heads over tp {request.tp}.",
                hint="Use a tp that divides the number of heads.",
            )
    if request.ep not in (1, request.tp * request.dp):
        raise UsageError(
            f"ep {request.ep} is not tp x dp: vLLM deals experts out over all {request.tp * request.dp} ranks.",
            hint=f"Use --ep {request.tp * request.dp}, or leave it out.",
        )
    if request.ep == 1 and request.tp * request.dp > 1:
        check_experts(model, request.tp * request.dp)
    if request.dcp == 1:
        return
    if request.tp % request.dcp:
        raise UsageError(f"dcp {request.dcp} does not divide tp {request.tp}.", hint="dcp reuses the ranks of tp: add --tp.")
    if any(isinstance(kind, (SlidingAttention, ChunkedAttention)) for kind in attention):
        raise UnsupportedError("vLLM has no dcp for windowed attention.", hint="Leave out --dcp.")
    for kind in attention:
        if not isinstance(kind, AttentionKind) or isinstance(kind, CrossAttention):
            continue
        most = request.tp // kind.num_key_value_heads
        if most < request.dcp:
            raise UsageError(
                f"dcp {request.dcp} needs {request.dcp} ranks for each of the {kind.num_key_value_heads} key/value heads; "
                f"tp {request.tp} has {most}.",
                hint=f"Use --tp {request.dcp * kind.num_key_value_heads}, or leave out --dcp.",
            )

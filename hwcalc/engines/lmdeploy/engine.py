"""LMDeploy as an engine: the models it accepts, the contents of its pool, and what fits into a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.base import Engine, Opened
from hwcalc.engines.budget import Budget, BudgetPart
from hwcalc.engines.capability import compute_capability
from hwcalc.engines.kinds import BY_MODEL, EVERY_TOKEN
from hwcalc.engines.lmdeploy.classes import TURBOMIND, check_architecture, runs
from hwcalc.engines.lmdeploy.groups import group_infos
from hwcalc.engines.lmdeploy.layout import KINDS, Piece, kept_by
from hwcalc.engines.lmdeploy.opened import LmdeployOpened, of_lmdeploy
from hwcalc.engines.lmdeploy.options import OPTIONS
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import EngineOption, is_auto, is_on
from hwcalc.engines.policies import Support
from hwcalc.engines.pool import PoolGroup, PoolInfo
from hwcalc.engines.request import Request
from hwcalc.engines.sharing import SharedBlocks
from hwcalc.engines.spans import OwnRule
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import ChunkedAttention, GatedDeltaNet, LayerKind, Role, SlidingAttention
from hwcalc.formulas.tensor import Once
from hwcalc.formulas.weights import Weight
from hwcalc.model import Definition, ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving
    from hwcalc.policies.base import Chosen

__all__ = ["Lmdeploy"]

_OLDEST_GPU: Final = 70
_ROLE_FORMATS: Final = {"none": None, "int4": "int4", "int8": "int8", "fp8": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "turbo_quant": "int4"}  # fmt: skip
_FP32_STATES: Final = "LMDEPLOY_FP32_MAMBA_SSM_DTYPE=1"


class Lmdeploy(Engine):
    """A pool of blocks of all layers, and slots of recurrent states, by the rules of LMDeploy."""

    name: ClassVar[str] = "lmdeploy"
    title: ClassVar[str] = "LMDeploy: its PyTorch back end, and TurboMind"
    label: ClassVar[str] = "LMDeploy"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences, and all slots of states"
    pool_is: ClassVar[str] = "num_gpu_blocks x block_size"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    scatters: ClassVar[bool] = True
    assumed_gpu: ClassVar[str | None] = "h100-sxm5-80gb"
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "awq")
    versions: ClassVar[tuple[str, ...]] = ("0.14",)
    source: ClassVar[str] = "LMDeploy 0.14.0, pytorch/engine/cache_engine.py, executor/base.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = KINDS
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: BY_MODEL, ChunkedAttention: EVERY_TOKEN}
    )
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def unchecked(self, model: ModelSpec, request: Request) -> LmdeployOpened:
        return LmdeployOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        settings = of_lmdeploy(opened).settings
        own = known_dtype(settings.model_dtype)
        named = _ROLE_FORMATS[settings.form.name]
        kept = known_dtype("fp8_e4m3") if settings.sparse else own if named is None else known_dtype(named)
        roles = dict.fromkeys(Role, kept)
        roles |= {Role.CONV: own, Role.STATE: known_dtype(settings.state_dtype), Role.INDEX: known_dtype("fp8_scaled_128")}
        kv = "fp8_ds_mla" if settings.sparse else settings.model_dtype if named is None else settings.form.name
        dtypes = Dtypes(kv=kv, roles=MappingProxyType(roles))
        if settings.sparse and not (is_auto(opened.request.dtype) and "quant_policy" not in opened.request.options):
            message = "LMDeploy keeps the latents of this model in FlashMLA's fp8 rows, whatever quant_policy is."
            return Noted(dtypes, (Note(code="dtype-ignored", message=message),))
        if not is_auto(opened.request.dtype) or settings.form.policy:
            return Noted(dtypes)
        what = "FlashMLA's fp8 rows" if settings.sparse else f"the dtype that the model runs in, {settings.model_dtype}"
        return Noted(dtypes, (Note(code="default-dtype", message=f"KV dtype auto: {what}. Set it with --dtype."),))

    def check_class(self, opened: Opened) -> None:
        check_architecture(opened.model, of_lmdeploy(opened).settings.backend)

    def check(self, opened: Opened) -> None:
        planned = of_lmdeploy(opened)
        _check_request(planned)
        # Plan the layout here, since LMDeploy refuses a model that it cannot lay out.
        planned.layout  # noqa: B018
        opened.tell(*opened.shared("remarks", lambda: tuple(_remarks(planned))))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        """The blocks of all requests, or all slots, on all tensor-parallel ranks together."""
        planned = of_lmdeploy(opened)
        if isinstance(kind, GatedDeltaNet):
            return tuple(_slots(planned, piece.name, piece.role, piece.dtype, piece.bytes) for piece in planned.layout.states)
        return tuple(_blocks(planned, piece) for piece in kept_by(planned.layout, kind))

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        """What rounding adds to a slot of states, whose pieces hold all layers."""
        planned = of_lmdeploy(opened)
        padding = planned.layout.slot_padding
        return (_slots(planned, "state_padding", Role.STATE, "uint8", padding),) if padding and planned.settings.slots else ()

    def needed_bytes(self, opened: Opened) -> int:
        planned = of_lmdeploy(opened)
        return planned.blocks_for(opened.request.replica_requests) * planned.layout.block_bytes + planned.state_bytes

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        """The pool, with as many blocks as fit into the budget, or those of the planned sequences; and the slots of states."""
        planned = of_lmdeploy(opened)
        blocks, width = _allocated_blocks(planned), planned.layout.block_bytes
        made = [_buffer("kv_pool", blocks, width, blocks)] if blocks else []
        if planned.state_bytes:
            made.append(_buffer("state_pool", planned.settings.slots, planned.layout.slot_bytes, None))
        return tuple(made)

    def groups(self, opened: Opened) -> tuple[PoolGroup, ...]:
        return group_infos(of_lmdeploy(opened))

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.lmdeploy.pool import plan_pool

        planned = of_lmdeploy(opened)
        bound = max(opened.tokens, opened.model.max_position_embeddings or 0)
        return Noted(plan_pool(planned, budget_bytes, bound))

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        """The same answer as :meth:`PoolInfo.holds`, without planning the pool."""
        from hwcalc.engines.lmdeploy.pool import holds

        return holds(of_lmdeploy(opened), budget_bytes)

    def longest(self, opened: Opened, budget_bytes: int, bound: int) -> int | None:
        from hwcalc.engines.lmdeploy.pool import longest

        return longest(of_lmdeploy(opened), budget_bytes, bound)

    def most_sequences(self, opened: Opened) -> tuple[int, str]:
        return of_lmdeploy(opened).settings.max_batch_size * opened.request.parallel.dp, "max_batch_size"

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        """The same within a family: nothing of it follows from length and batch."""
        from hwcalc.engines.lmdeploy.memory import plan_budget

        return opened.shared("budget", lambda: plan_budget(of_lmdeploy(opened)))

    def weights(self, opened: Opened) -> Noted[tuple[BudgetPart, ...] | None]:
        from hwcalc.engines.equation import rank_weights_part

        return rank_weights_part(opened)

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.lmdeploy.weights import PYTORCH_WEIGHTS, TURBOMIND_WEIGHTS

        return PYTORCH_WEIGHTS if of_lmdeploy(opened).settings.pytorch else TURBOMIND_WEIGHTS

    def weight_dtype(self, opened: Opened) -> str:
        return of_lmdeploy(opened).settings.model_dtype

    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        tokens = of_lmdeploy(opened).settings.prefill_tokens
        return tokens, tokens, tokens

    def deals_experts(self, opened: Opened) -> bool:
        return True

    def sharing_support(self, opened: Opened) -> Support:
        from hwcalc.engines.lmdeploy.sharing import sharing_support

        return sharing_support(of_lmdeploy(opened))

    def shared_tokens(self, opened: Opened) -> tuple[int, int]:
        planned, together = of_lmdeploy(opened), opened.together
        size = planned.settings.block_size
        prefix = planned.found(together.prefix) * size
        return prefix, max(prefix, planned.found(together.prompt) * size) if together.forks else prefix

    def shared_blocks(self, opened: Opened) -> tuple[SharedBlocks, ...]:
        from hwcalc.engines.lmdeploy.sharing import blocks_of_group

        return blocks_of_group(of_lmdeploy(opened))

    def policy_support(self, opened: Opened, chosen: Chosen) -> Support:
        return Support(
            offered=False, how="LMDeploy has no cache policies; a window frees blocks only where the whole model has one"
        )

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.lmdeploy.form import plan_curve

        return plan_curve(of_lmdeploy(opened))

    def form(self, opened: Opened) -> MemoryForm | None:
        from hwcalc.engines.lmdeploy.form import plan_form

        return plan_form(of_lmdeploy(opened))

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.lmdeploy.savings import savings

        return savings(of_lmdeploy(opened))

    def settings(self, opened: Opened) -> Mapping[str, int | str | bool]:
        one = of_lmdeploy(opened).settings
        words: dict[str, int | str | bool] = {
            "backend": one.backend,
            "quant_policy": one.form.policy,
            "block_size": one.block_size,
            "max_batches": one.max_batch_size,
            "window_size": one.window or -1,
        }
        return words | ({"num_state_caches": one.slots} if one.slots else {})

    def environment(self, opened: Opened) -> tuple[str, ...]:
        one = of_lmdeploy(opened).settings
        return (_FP32_STATES,) if one.slots and one.state_dtype == "fp32" else ()

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.lmdeploy.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.lmdeploy.command import serve

        return serve(planned)


def _check_request(opened: LmdeployOpened) -> None:
    """Raise an error for what LMDeploy does not have, or kvplan does not know of it."""
    request, gpu = opened.request, opened.request.hardware.gpu
    if request.parallel.pp > 1:
        raise UnsupportedError("LMDeploy has no pipeline parallelism.", hint="Leave out --pp, or use --tp")
    if request.parallel.dcp > 1:
        raise UnsupportedError(
            "LMDeploy's context parallelism (TurboMind's --cp) is not known to kvplan.",
            hint="Leave out --dcp, or use --engine vllm",
        )
    if request.parallel.ep not in (1, request.parallel.tp * request.parallel.dp):
        ranks = request.parallel.tp * request.parallel.dp
        raise UsageError(
            f"ep {request.parallel.ep} is not tp x dp: LMDeploy deals experts out over all {ranks} ranks.",
            hint=f"Use --ep {ranks}, or leave it out.",
        )
    if request.parallel.ep > 1 and not any(weight.copies > 1 for weight in _weights(opened)):
        raise UsageError(f"{opened.model.id} has no experts to deal out.", hint="Leave out --ep.")
    if request.draft is not None:
        raise UnsupportedError(
            "kvplan does not know what drafts take in LMDeploy.", hint="Leave out --draft, or use --engine vllm"
        )
    if request.policy is not None:
        raise UnsupportedError("LMDeploy has no cache policies.", hint="Leave out --policy, or use --engine reference")
    if gpu is not None and (gpu.vendor.lower() != "nvidia" or compute_capability(gpu) < _OLDEST_GPU):
        raise UnsupportedError(
            f"LMDeploy's rules for {gpu.name} are not known.",
            hint="Known: NVIDIA GPUs from compute capability 7.0 on. Without --gpu: give a budget with --kv-memory.",
        )


def _weights(opened: Opened) -> Iterator[Weight]:
    for block in () if opened.model.counted is None else opened.model.counted.blocks:
        yield from block.weights


def _remarks(opened: LmdeployOpened) -> Iterator[Note]:
    """Notes on the settings."""
    request, settings, options = opened.request, opened.settings, opened.request.options
    if request.hardware.gpu is None:
        yield Note(code="default-gpu", message="No GPU given: max_batch_size and blocks are those of an H100. Set it with --gpu.")
    if settings.pytorch and "backend" not in options and runs(opened.model.architecture, TURBOMIND):
        message = "LMDeploy starts TurboMind for this model unless it is told --backend pytorch, which this plans; else: backend=turbomind."
        yield Note(code="backend", message=message)
    if settings.window:
        message = f"A prompt lies in blocks as a whole; behind it those outside of {settings.window:,} tokens are freed, of all layers alike."
        yield Note(code="window-freed", message=message)
    if is_on(options.get("enable_prefix_caching")) and settings.window:
        yield Note(code="prefix-caching-off", message="LMDeploy has no prefix caching for a model with a window.")
    if settings.pytorch and is_on(options.get("enable_prefix_caching")) and settings.slots:
        yield Note(
            code="state-checkpoints", message="Checkpoints of states borrow idle slots, or those of prefix_cache_state_budget."
        )
    if request.parallel.dp > 1:
        yield Note(code="per-replica", message=f"The pool is that of one of {request.parallel.dp} replicas.")


def _allocated_blocks(opened: LmdeployOpened) -> int:
    """Blocks of the pool: of the budget of the plan, or without one those of the planned sequences and the reserved one."""
    size = opened.request.hardware.kv_memory
    if size is None and opened.request.hardware.gpu is not None:
        size = None if opened.budget is None else max(0, opened.budget.expected)
    pool = None if size is None and opened.settings.num_gpu_blocks is None else opened.pool(size or 0)
    needed = opened.blocks_for(opened.request.replica_requests) + opened.settings.reserved_blocks
    return needed if pool is None or pool.blocks is None else pool.blocks


def _buffer(name: str, count: int, width: int, blocks: int | None) -> Allocation:
    from hwcalc.engines.allocation import Allocation

    return Allocation(name=name, layer=-1, dtype="uint8", shape=(count, width), bytes=count * width, blocks=blocks)


def _blocks(opened: LmdeployOpened, piece: Piece) -> StoredTensor:
    """A piece of the blocks of one layer."""
    tp, blocks, held = opened.request.parallel.tp, opened.blocks, opened.held.total
    ranks = f" x {tp} ranks" if tp > 1 else ""
    unlike = opened.together.unlike
    sequences = f"{opened.batch:,} sequences x " if opened.batch > 1 and not unlike else ""
    return StoredTensor(
        name=piece.name,
        role=piece.role,
        axes=("bytes of a block",),
        shape=(piece.bytes,),
        dtype=piece.dtype or opened.settings.model_dtype,
        positions=blocks,
        span=OwnRule(f"{blocks:,} blocks of {opened.settings.block_size:,} tokens", blocks),
        bytes=tp * held * piece.bytes,
        rule=f"{sequences}{held if unlike else blocks:,} blocks x {piece.bytes:,} B{ranks}",
    )


def _slots(opened: LmdeployOpened, name: str, role: Role, dtype: str, size: int) -> StoredTensor:
    """All slots of a state, which are there whatever the number of sequences."""
    parallel, slots = opened.request.parallel, opened.settings.slots
    ranks = parallel.tp * parallel.dp
    return StoredTensor(
        name=name,
        role=role,
        axes=("bytes of a slot",),
        shape=(size,),
        dtype=dtype,
        positions=slots,
        span=Once(),
        bytes=ranks * slots * size,
        rule=f"{slots:,} slots x {size:,} B{f' x {ranks} ranks' if ranks > 1 else ''}",
        once=True,
        why=f"{slots:,} slots of states",
    )

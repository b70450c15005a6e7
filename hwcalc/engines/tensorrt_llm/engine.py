"""TensorRT-LLM as an engine: the models it accepts, what its pool holds, and the budget of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.base import Opened
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.heads import check_heads
from hwcalc.engines.kinds import BY_MODEL, EVERY_TOKEN
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption
from hwcalc.engines.policies import Support
from hwcalc.engines.sharing import SharedBlocks, blocks_in_common
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.engines.tensorrt_llm.groups import group_infos
from hwcalc.engines.tensorrt_llm.opened import TensorrtOpened, of_tensorrt
from hwcalc.engines.tensorrt_llm.options import OPTIONS, is_attention_dp
from hwcalc.engines.tensorrt_llm.pieces import RULES
from hwcalc.engines.tensorrt_llm.settings import Settings
from hwcalc.engines.tensorrt_llm.stored import buffers, extra_tensors, stored_piece
from hwcalc.engines.tensorrt_llm.supported import check_class, check_supported, runs_states
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import ChunkedAttention, LayerKind, Role, SlidingAttention
from hwcalc.model import Definition, ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.command import CommandInput, EmittedFile
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.request import Request
    from hwcalc.engines.saving import Saving

__all__ = ["TensorrtLlm"]


class TensorrtLlm(GeneralEngine):
    """A pool of blocks, by the rules of TensorRT-LLM's PyTorch back end."""

    name: ClassVar[str] = "tensorrt-llm"
    title: ClassVar[str] = "TensorRT-LLM: blocks of a share of what is left after loading"
    label: ClassVar[str] = "TensorRT-LLM"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences; states and windows of max_batch_size requests"
    pool_is: ClassVar[str] = "max tokens in paged KV cache"
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    counts_copies: ClassVar[bool] = True
    groups_share: ClassVar[bool] = False
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "nvfp4")
    choices: ClassVar[Choices | None] = None
    versions: ClassVar[tuple[str, ...]] = ("1.4",)
    source: ClassVar[str] = "TensorRT-LLM 1.4 (sources read, not run), _torch/pyexecutor"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: BY_MODEL, ChunkedAttention: EVERY_TOKEN}
    )
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def unchecked(self, model: ModelSpec, request: Request) -> TensorrtOpened:
        """Under attention DP every rank of ``tp`` is a replica of attention."""
        parallel = request.parallel
        if is_attention_dp(request.options) and parallel.tp > 1:
            request = request.changed(tp=1, dp=parallel.tp * parallel.dp)
        return TensorrtOpened(engine=self, model=model, request=request, version=self.version(request.engine_version))

    def deals_experts(self, opened: Opened) -> bool:
        return is_attention_dp(opened.request.options)

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        one = of_tensorrt(opened).settings
        kv = "fp8_e4m3" if one.kv_dtype in ("fp8", "fp8_ds_mla") else one.kv_dtype
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE), known_dtype(kv))
        roles |= {
            Role.INDEX: known_dtype("fp8_scaled_128"),
            Role.STATE: known_dtype(one.state_dtype),
            Role.CONV: known_dtype(one.model_dtype),
        }
        return Noted(Dtypes(kv=one.kv_dtype, roles=MappingProxyType(roles)))

    def check_class(self, opened: Opened) -> None:
        check_class(opened.model)

    def check(self, opened: Opened) -> None:
        planned = of_tensorrt(opened)
        check_supported(opened.model, opened.request)
        for group in opened.plain_stack.groups:
            check_heads("TensorRT-LLM", group.kind, planned.settings.tp)
        if any(piece.state for pieces in planned.kind_pieces.values() for piece in pieces) and not runs_states(opened.model):
            raise UnsupportedError(
                f"TensorRT-LLM's PyTorch back end keeps no recurrent states of {opened.model.architecture}.",
                hint="Plan it with --engine vllm or transformers.",
            )
        planned.layout  # noqa: B018 - so that a layer that it cannot split is told now
        opened.tell(*opened.shared("remarks", lambda: tuple(_remarks(planned.settings, opened))))

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        planned = of_tensorrt(opened)
        pieces = planned.kind_pieces.get(kind, ())
        return tuple(stored_piece(planned, piece) for piece in pieces)

    def extras(self, opened: Opened) -> tuple[StoredTensor, ...]:
        return extra_tensors(of_tensorrt(opened))

    def needed_bytes(self, opened: Opened) -> int:
        return of_tensorrt(opened.replica).needs.most

    def allocation(self, opened: Opened, stage: int) -> tuple[Allocation, ...]:
        return buffers(of_tensorrt(opened), stage)

    def groups(self, opened: Opened) -> tuple[PoolGroup, ...]:
        return group_infos(of_tensorrt(opened))

    def pool(self, opened: Opened, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.tensorrt_llm.pool import plan_pool

        return Noted(plan_pool(of_tensorrt(opened), budget_bytes))

    def holds(self, opened: Opened, budget_bytes: int) -> bool:
        from hwcalc.engines.tensorrt_llm.pool import holds

        return holds(of_tensorrt(opened), budget_bytes)

    def most_sequences(self, opened: Opened) -> tuple[int, str]:
        return of_tensorrt(opened).settings.sequences * opened.request.parallel.dp, "max_batch_size"

    def budget(self, opened: Opened) -> Noted[Budget | None]:
        from hwcalc.engines.tensorrt_llm.memory import plan_budget

        return plan_budget(of_tensorrt(opened))

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.tensorrt_llm.weights import TENSORRT

        return TENSORRT

    def forward_tokens(self, opened: Opened) -> tuple[int, int, int]:
        tokens = of_tensorrt(opened).settings.batched_tokens
        return tokens, tokens, tokens

    def curve(self, opened: Opened) -> Curve | None:
        from hwcalc.engines.tensorrt_llm.form import plan_curve

        return plan_curve(of_tensorrt(opened))

    def form(self, opened: Opened) -> MemoryForm | None:
        from hwcalc.engines.tensorrt_llm.form import plan_form

        return plan_form(of_tensorrt(opened))

    def sharing_support(self, opened: Opened) -> Support:
        """Block reuse, and beams that fork from one prompt."""
        one, sharing = of_tensorrt(opened).settings, opened.request.sharing
        if one.reuse:
            return Support(offered=True, how="block reuse: whole blocks that begin alike are kept once")
        if sharing.beams > 1 and not sharing.prefix and sharing.samples == 1:
            return Support(offered=True, how="beams have the whole blocks of their prompt once, and the others each")
        how = "block reuse is off; it takes --engine-option enable_block_reuse=true"
        return Support(offered=False, how=how)

    def shared_tokens(self, opened: Opened) -> tuple[int, int]:
        size = of_tensorrt(opened).settings.block
        prefix, prompt = super().shared_tokens(opened)
        return prefix // size * size, max(prefix, prompt) // size * size

    def shared_blocks(self, opened: Opened) -> tuple[SharedBlocks, ...]:
        planned = of_tensorrt(opened)
        kinds = {window: "full" if window is None else "window" for window in planned.all_blocks}
        size = planned.settings.block
        return tuple(blocks_in_common(kind, size, planned.held(window), planned.together) for window, kind in kinds.items())

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.tensorrt_llm.savings import savings

        return savings(of_tensorrt(opened))

    def settings(self, opened: Opened) -> Mapping[str, int | str | bool]:
        one = of_tensorrt(opened).settings
        return {"tokens_per_block": one.block, "manager": "v2" if one.v2 else "v1"}

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.tensorrt_llm.command import flag_text

        return flag_text(name, value)

    def command_file(self, planned: CommandInput) -> EmittedFile | None:
        from hwcalc.engines.command import EmittedFile
        from hwcalc.engines.tensorrt_llm.command import SETTINGS_FILE, serve, settings_file

        text = settings_file(planned)
        return EmittedFile(name=SETTINGS_FILE, text=text, environment=(), command=tuple(serve(planned))) if text else None

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.tensorrt_llm.command import serve

        return serve(planned)


def _remarks(one: Settings, opened: Opened) -> Iterator[Note]:
    """Notes on the settings."""
    windows = any("window" in group.kind.numbers() and group.kind.numbers()["window"] for group in opened.stack.groups)
    if windows and one.window_pattern is None and not (one.v2 and one.derives_windows) and not one.scratch:
        message = "Windowed layers keep all tokens: TensorRT-LLM cuts them only with --engine-option max_attention_window."
        yield Note(code="window-not-honoured", message=message)
    if one.host_bytes:
        message = "host_cache_size keeps blocks of finished requests in host memory; the pool on the GPU stays as it is."
        yield Note(code="host-memory", message=message)
    if opened.request.parallel.dp > 1:
        yield Note(code="per-replica", message=f"The pool is that of one of {opened.request.parallel.dp} replicas.")

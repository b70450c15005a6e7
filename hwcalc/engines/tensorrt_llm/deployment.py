"""A request that TensorRT-LLM has opened, with its settings, its layout and the blocks of its sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.heads import check_heads
from hwcalc.engines.model_dtypes import known_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.policies import Support
from hwcalc.engines.sharing import Blocks, Held, SharedBlocks, blocks_in_common, held_blocks
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.engines.tensorrt_llm.groups import group_infos
from hwcalc.engines.tensorrt_llm.layout import FOREVER, Layout, Stage
from hwcalc.engines.tensorrt_llm.needs import Needs
from hwcalc.engines.tensorrt_llm.options import is_attention_dp
from hwcalc.engines.tensorrt_llm.pieces import Piece, pieces_of
from hwcalc.engines.tensorrt_llm.settings import Settings, read_settings
from hwcalc.engines.tensorrt_llm.stored import buffers, extra_tensors, stored_piece
from hwcalc.engines.tensorrt_llm.supported import check_class, check_supported, runs_states
from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.formulas import CompressedAttention, LayerKind, Role, SlidingAttention
from hwcalc.formulas.arithmetic import ceil_div
from hwcalc.model import Note

if TYPE_CHECKING:
    from hwcalc.engines.allocation import Allocation
    from hwcalc.engines.budget import Budget
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.engines.forms import Curve, MemoryForm
    from hwcalc.engines.pool import PoolGroup, PoolInfo
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving
    from hwcalc.engines.tensorrt_llm.storage import Storage
    from hwcalc.formulas.hybrid import Group


class TensorrtOccupancy(GeneralOccupancy):
    """An opened request with the values that the rules use again and again."""

    @cached_property
    def settings(self) -> Settings:
        """The settings, which no length or batch changes."""
        return self.told(self.shared("settings", lambda: read_settings(self.model, self.request)))

    @cached_property
    def kind_pieces(self) -> dict[LayerKind, tuple[Piece, ...]]:
        """The buffers of one layer of each kind, each with its window."""
        return self.shared(("pieces", self._windows), self._plan_pieces)

    def _plan_pieces(self) -> dict[LayerKind, tuple[Piece, ...]]:
        groups = zip(self.stack.groups, self._windows, strict=True)
        return {group.kind: pieces_of(group.kind, self.settings, window) for group, window in groups}

    @cached_property
    def _windows(self) -> tuple[int | None, ...]:
        """The window of each kind: all of the length that the buffers depend on."""
        return tuple(self._window(group) for group in self.stack.groups)

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows of sequences that are longer than any of them, the smallest first."""
        forever = self.sized(seq=FOREVER)
        found = {forever._window(group) for group in forever.stack.groups}  # noqa: SLF001 - a request of the same family
        return tuple(sorted(window for window in found if window is not None))

    def _window(self, group: Group) -> int | None:
        """The window of the layers of one kind, cut to the longest sequence; ``None`` keeps all tokens."""
        one, length = self.settings, self.tokens
        if one.window_pattern is not None:
            pattern = one.window_pattern
            found = {min(length, pattern[number % len(pattern)]) for number in group.layers}
            if len(found) > 1:
                raise UsageError(
                    f"max_attention_window gives layers of one kind ({group.kind.title}) different windows.",
                    hint="Give one window for all layers, or one for each kind.",
                )
            (window,) = found
            return None if window == length else window
        if one.v2 and one.derives_windows and isinstance(group.kind, SlidingAttention) and group.kind.window < length:
            return group.kind.window
        return None

    @cached_property
    def layout(self) -> Layout:
        """The layers of every stage. It depends on the length only where that is shorter than a window."""
        return self.shared(("layout", self._windows), self._plan_layout)

    def _plan_layout(self) -> Layout:
        from hwcalc.engines.ranks import stage_groups

        pieces = self.kind_pieces
        stages = tuple(Stage(kinds=tuple((pieces[group.kind], group.count) for group in groups)) for groups in stage_groups(self))
        compressed = any(isinstance(kind, CompressedAttention) for kind in pieces)
        return Layout(stages=stages, settings=self.settings, kinds=tuple(pieces.items()), compressed=compressed)

    def held(self, window: int | None) -> Held:
        """The blocks that all sequences together take in the pool of one window."""
        size, together, layout = self.settings.block, self.together, self.layout
        parts = []
        for tokens, requests in together.lengths:
            most = layout.blocks(window, tokens)
            prefix = min(together.prefix, tokens - 1) // size
            prompt = max(prefix, min(together.prompt, tokens) // size) if together.forks else prefix
            blocks = Blocks(max(most, ceil_div(tokens, size)), most, prefix, prompt)
            parts.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(parts, together.copies)

    def blocks_of(self, window: int | None) -> int:
        """The same, in all."""
        if not self.together.unlike:
            return self.batch * self.layout.blocks(window, self.tokens)
        return self.held(window).total

    @cached_property
    def all_blocks(self) -> dict[int | None, int]:
        """The blocks of all sequences for the layers of each window."""
        return {window: self.blocks_of(window) for window in self.layout.windows}

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """V2: the pools of every stage."""
        return cast("tuple[Storage, ...]", self.layout.storages(self.tokens))

    @cached_property
    def needs(self) -> Needs:
        """What the planned sequences take of the pools, were they all on this replica."""
        return Needs(self.layout, self.tokens, self.batch, self.all_blocks)

    def deals_experts(self) -> bool:
        return is_attention_dp(self.request.options)

    def choose_dtypes(self) -> Noted[Dtypes]:
        one = self.settings
        kv = "fp8_e4m3" if one.kv_dtype in ("fp8", "fp8_ds_mla") else one.kv_dtype
        roles = dict.fromkeys((Role.KEY, Role.VALUE, Role.LATENT, Role.ROPE), known_dtype(kv))
        roles |= {
            Role.INDEX: known_dtype("fp8_scaled_128"),
            Role.STATE: known_dtype(one.state_dtype),
            Role.CONV: known_dtype(one.model_dtype),
        }
        return Noted(Dtypes(kv=one.kv_dtype, roles=MappingProxyType(roles)))

    def check_class(self) -> None:
        check_class(self.model)

    def check(self) -> None:
        check_supported(self.model, self.request)
        for group in self.plain_stack.groups:
            check_heads("TensorRT-LLM", group.kind, self.settings.tp)
        if any(piece.state for pieces in self.kind_pieces.values() for piece in pieces) and not runs_states(self.model):
            raise UnsupportedError(
                f"TensorRT-LLM's PyTorch back end keeps no recurrent states of {self.model.architecture}.",
                hint="Plan it with --engine vllm or transformers.",
            )
        self.layout  # noqa: B018 - so that a layer that it cannot split is told now
        self.tell(*self.shared("remarks", lambda: tuple(_remarks(self.settings, self))))

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        pieces = self.kind_pieces.get(kind, ())
        return tuple(stored_piece(self, piece) for piece in pieces)

    def model_tensors(self) -> tuple[StoredTensor, ...]:
        return extra_tensors(self)

    def fullest_bytes(self) -> int:
        return self.replica.needs.most

    def stage_allocation(self, stage: int) -> tuple[Allocation, ...]:
        return buffers(self, stage)

    def block_groups(self) -> tuple[PoolGroup, ...]:
        return group_infos(self)

    def plan_pool(self, budget_bytes: int) -> Noted[PoolInfo | None]:
        from hwcalc.engines.tensorrt_llm.pool import plan_pool

        return Noted(plan_pool(self, budget_bytes))

    def holds(self, budget_bytes: int) -> bool:
        from hwcalc.engines.tensorrt_llm.pool import holds

        return holds(self, budget_bytes)

    def most_sequences(self) -> tuple[int, str]:
        return self.settings.sequences * self.request.parallel.dp, "max_batch_size"

    def plan_budget(self) -> Noted[Budget | None]:
        from hwcalc.engines.tensorrt_llm.memory import plan_budget

        return plan_budget(self)

    def weight_rules(self) -> Rules:
        from hwcalc.engines.tensorrt_llm.weights import TENSORRT

        return TENSORRT

    def forward_tokens(self) -> tuple[int, int, int]:
        tokens = self.settings.batched_tokens
        return tokens, tokens, tokens

    def curve(self) -> Curve | None:
        from hwcalc.engines.tensorrt_llm.form import plan_curve

        return plan_curve(self)

    def form(self) -> MemoryForm | None:
        from hwcalc.engines.tensorrt_llm.form import plan_form

        return plan_form(self)

    def support_of_sharing(self) -> Support:
        """Block reuse, and beams that fork from one prompt."""
        one, sharing = self.settings, self.request.sharing
        if one.reuse:
            return Support(offered=True, how="block reuse: whole blocks that begin alike are kept once")
        if sharing.beams > 1 and not sharing.prefix and sharing.samples == 1:
            return Support(offered=True, how="beams have the whole blocks of their prompt once, and the others each")
        how = "block reuse is off; it takes --engine-option enable_block_reuse=true"
        return Support(offered=False, how=how)

    def shared_tokens(self) -> tuple[int, int]:
        size = self.settings.block
        prefix, prompt = super().shared_tokens()
        return prefix // size * size, max(prefix, prompt) // size * size

    def shared_blocks(self) -> tuple[SharedBlocks, ...]:
        kinds = {window: "full" if window is None else "window" for window in self.all_blocks}
        size = self.settings.block
        return tuple(blocks_in_common(kind, size, self.held(window), self.together) for window, kind in kinds.items())

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.tensorrt_llm.savings import savings

        return savings(self)

    def reported_settings(self) -> Mapping[str, int | str | bool]:
        one = self.settings
        return {"tokens_per_block": one.block, "manager": "v2" if one.v2 else "v1"}


def _remarks(one: Settings, opened: Occupancy) -> Iterator[Note]:
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

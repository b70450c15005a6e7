"""A request that vLLM has opened, with its settings and the layout of its pool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from hwcalc.engines.base import Opened
from hwcalc.engines.sharing import Held
from hwcalc.engines.vllm.groups import BlockGroup
from hwcalc.engines.vllm.layout import PoolLayout, RequestBytes, plan_layout
from hwcalc.engines.vllm.placed import LayerCache
from hwcalc.engines.vllm.settings import VllmSettings, read_settings
from hwcalc.engines.vllm.sharing import group_held
from hwcalc.engines.vllm.specs import LayerSpec
from hwcalc.formulas import LayerKind

if TYPE_CHECKING:
    from hwcalc.engines.vllm.evicting import PromptPeak

__all__ = ["VllmOpened", "of_vllm"]


class VllmOpened(Opened):
    """An opened request with the values that the rules of vLLM use again and again."""

    @cached_property
    def settings(self) -> VllmSettings:
        """The settings with every default filled in. Within a family only the batch sizes differ."""
        first = self.shared("settings", lambda: read_settings(self.model, self.request, self.version))
        return first.sized(self.request)

    @cached_property
    def layout(self) -> PoolLayout:
        """The layers in groups. If the layout is the same at every length, as for most models, the model keeps it."""
        settings, length = self.settings, self.request.seq
        if settings.speculation is not None and settings.speculation.model is not None:
            return plan_layout(self.model, settings, length)
        # Within a family the settings differ in their batch alone, and no block depends on how many sequences there are.
        own = ("layout", settings.batched_tokens)
        kept: PoolLayout | None = self.family.get(own)
        if kept is not None:
            return kept
        key = ("vllm layout", *{**asdict(settings), "sequences": 0, "full_batch": None, "override": None}.values())
        layout: PoolLayout = self.model.worked_out.get(key) or plan_layout(self.model, settings, length)
        if not layout.depends_on_length:
            self.model.worked_out[key] = self.family[own] = layout
        return layout

    @cached_property
    def held(self) -> PoolLayout:
        """The layout with what a request holds of it: under a policy less than the tokens of its length, in groups that the policy cuts."""
        if self.evicted is None:
            return self.layout
        from hwcalc.engines.vllm.evicting import held_layout

        return held_layout(self.layout, self, self.evicted)

    @property
    def prompt_peak(self) -> PromptPeak | None:
        """What a request holds under a policy while its prompt is read, where that is more."""
        return self.counts[1]

    @cached_property
    def counts(self) -> tuple[int, PromptPeak | None]:
        """Blocks of one request, and while its prompt is read. Under a policy the family keeps them by length."""
        if self.request.policy is None:
            return self.layout.total_blocks(self.tokens), None
        from hwcalc.engines.vllm.evicting import prompt_peak

        def count() -> tuple[int, PromptPeak | None]:
            return self.held.total_blocks(self.tokens), prompt_peak(self.held, self)

        return self.shared(("counts", self.tokens, self.ahead), count)

    def holding(self, counts: Mapping[int, int]) -> VllmOpened:
        """The same behind the prompt, when none is being read."""
        other: VllmOpened = super().holding(counts)
        vars(other)["counts"] = other.held.total_blocks(other.tokens), None
        return other

    @property
    def blocks(self) -> int:
        """Blocks of one request, in all groups together."""
        return self.counts[0]

    @cached_property
    def by_kind(self) -> PoolLayout:
        """The layout with the kinds of layers as the request has them."""
        if self.evicted is None:
            return self.layout
        from hwcalc.engines.vllm.evicting import renumbered

        return replace(self.held, caches=renumbered(self.layout, self, self.evicted))

    def blocks_for(self, requests: int) -> int:
        """Blocks of so many requests on one replica: under a policy with those whose prompts are being read."""
        peak, branches = self.prompt_peak, self.request.sharing.branches
        reading = 0 if peak is None else min(requests * branches, peak.at_once) * (peak.blocks - self.blocks)
        if not self.together.unlike:
            return requests * branches * self.blocks + reading
        replica: VllmOpened = self.replica.sized(batch=requests)  # type: ignore[assignment]
        return replica.all_blocks + reading

    @cached_property
    def request_bytes(self) -> RequestBytes:
        """What one request takes on one rank of every stage, all stages together."""
        return self.by_kind.request_bytes(self.tokens)

    def held_in(self, group: BlockGroup) -> Held:
        """The blocks that all sequences together take in one group."""
        return group_held(self.held, self.settings, group, self.together)

    @cached_property
    def all_blocks(self) -> int:
        """The blocks that all sequences together take in all groups."""
        if not self.together.unlike:
            return self.batch * self.blocks
        return sum(self.held_in(group).total for group in self.layout.stage_groups[0])

    @cached_property
    def all_bytes(self) -> RequestBytes:
        """What all sequences together take on one rank of every stage, all stages together."""
        if not self.together.unlike:
            return self.request_bytes.times(self.batch)
        return self.by_kind.taken(lambda group: self.held_in(group).total)

    @cached_property
    def kind_caches(self) -> dict[LayerKind, list[tuple[LayerCache, LayerSpec, int, int]]]:
        """The caches of one layer of each kind, with the blocks of one sequence and of all."""
        kinds = [group.kind for group in self.stack.groups]
        caches: dict[LayerKind, list[tuple[LayerCache, LayerSpec, int, int]]] = {kind: [] for kind in kinds}
        for (cache, spec, blocks), (_, _, held) in zip(self.request_bytes.kinds, self.all_bytes.kinds, strict=True):
            caches[kinds[cache.kind]].append((cache, spec, blocks, held))
        return caches


def of_vllm(opened: Opened) -> VllmOpened:
    """The request with its vLLM type. Only requests that vLLM has opened reach its rules."""
    assert isinstance(opened, VllmOpened)
    return opened

"""A request that vLLM has opened, with its settings and the layout of its pool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from hwcalc.engines.base import Opened
from hwcalc.engines.vllm.layout import LayerCache, PoolLayout, RequestBytes, plan_layout
from hwcalc.engines.vllm.settings import VllmSettings, read_settings
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
        key = ("vllm layout", settings)
        kept: PoolLayout | None = self.model.worked_out.get(key)
        if kept is not None:
            return kept
        layout = plan_layout(self.model, settings, length)
        if not layout.depends_on_length:
            self.model.worked_out[key] = layout
        return layout

    @cached_property
    def held(self) -> PoolLayout:
        """The layout with what a request holds of it: under a policy less than the tokens of its length, in groups that the policy cuts."""
        if self.evicted is None:
            return self.layout
        from hwcalc.engines.vllm.evicting import held_layout

        return held_layout(self.layout, self, self.evicted)

    @cached_property
    def prompt_peak(self) -> PromptPeak | None:
        """What a request holds under a policy while its prompt is read, where that is more."""
        if self.evicted is None:
            return None
        from hwcalc.engines.vllm.evicting import prompt_peak

        return prompt_peak(self.held, self)

    def holding(self, counts: Mapping[int, int]) -> VllmOpened:
        """The same behind the prompt, when none is being read."""
        other: VllmOpened = super().holding(counts)
        vars(other)["prompt_peak"] = None
        return other

    @cached_property
    def blocks(self) -> int:
        """Blocks of one request, in all groups together."""
        return self.held.total_blocks(self.tokens)

    def blocks_for(self, requests: int) -> int:
        """Blocks of so many requests: under a policy with those whose prompts are being read."""
        peak = self.prompt_peak
        return requests * self.blocks + (0 if peak is None else min(requests, peak.at_once) * (peak.blocks - self.blocks))

    @cached_property
    def request_bytes(self) -> RequestBytes:
        """What one request takes on one rank of every stage, all stages together."""
        return self.held.request_bytes(self.tokens)

    @cached_property
    def kind_caches(self) -> dict[LayerKind, list[tuple[LayerCache, LayerSpec, int]]]:
        """The caches of one layer of each kind, with their blocks."""
        kinds = [group.kind for group in self.stack.groups]
        caches: dict[LayerKind, list[tuple[LayerCache, LayerSpec, int]]] = {kind: [] for kind in kinds}
        for cache, spec, blocks in self.request_bytes.kinds:
            caches[kinds[cache.kind]].append((cache, spec, blocks))
        return caches


def of_vllm(opened: Opened) -> VllmOpened:
    """The request with its vLLM type. Only requests that vLLM has opened reach its rules."""
    assert isinstance(opened, VllmOpened)
    return opened

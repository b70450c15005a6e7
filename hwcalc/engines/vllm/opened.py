"""A request that vLLM has opened: its settings, and how its pool is laid out."""

from __future__ import annotations

from functools import cached_property

from hwcalc.engines.base import Opened
from hwcalc.engines.vllm.layout import HeldBytes, PoolLayout, plan_layout
from hwcalc.engines.vllm.settings import VllmSettings, read_settings

__all__ = ["VllmOpened", "of_vllm"]


class VllmOpened(Opened):
    """What vLLM's rules ask of a request again and again."""

    @cached_property
    def settings(self) -> VllmSettings:
        """Every default filled in. Of a family only the batches differ."""
        first = self.shared("settings", lambda: read_settings(self.model, self.request, self.version))
        return first.sized(self.request)

    @cached_property
    def layout(self) -> PoolLayout:
        """Layers in groups. Most models have the same one at every length, which is kept with the model."""
        settings, length = self.settings, self.request.seq
        if settings.speculation is not None and settings.speculation.model is not None:
            return plan_layout(self.model, settings, length)
        key = ("vllm layout", settings)
        known: PoolLayout | None = self.model.worked_out.get(key)
        if known is not None:
            return known
        layout = plan_layout(self.model, settings, length)
        if not layout.depends_on_length:
            self.model.worked_out[key] = layout
        return layout

    @cached_property
    def blocks(self) -> int:
        """Blocks of one request in all groups."""
        return self.layout.total_blocks(self.tokens)

    @cached_property
    def held(self) -> HeldBytes:
        """What one request holds on one rank of each stage."""
        return self.layout.held(self.tokens)


def of_vllm(opened: Opened) -> VllmOpened:
    """A request that vLLM itself has opened: no other comes to its rules."""
    assert isinstance(opened, VllmOpened)
    return opened

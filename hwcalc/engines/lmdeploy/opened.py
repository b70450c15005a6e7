"""A request that LMDeploy has opened, with its settings and the layout of its pool."""

from __future__ import annotations

from functools import cached_property

from hwcalc.engines.base import Opened
from hwcalc.engines.lmdeploy.layout import PoolLayout, plan_layout
from hwcalc.engines.lmdeploy.settings import LmdeploySettings, read_settings
from hwcalc.engines.sharing import Blocks, Held, held_blocks
from hwcalc.formulas.stairs import Stair, blocks_stair

__all__ = ["LmdeployOpened", "of_lmdeploy"]


class LmdeployOpened(Opened):
    """An opened request with the values that the rules of LMDeploy use again and again."""

    @cached_property
    def settings(self) -> LmdeploySettings:
        """The settings with every default filled in."""
        return self.shared("settings", lambda: read_settings(self.model, self.request))

    @cached_property
    def layout(self) -> PoolLayout:
        """The pool of one rank."""
        return self.shared("layout", lambda: plan_layout(self.model, self.settings, self.request.parallel))

    @property
    def state_bytes(self) -> int:
        """All slots of recurrent states, on one rank."""
        return self.settings.slots * self.layout.slot_bytes

    @cached_property
    def block_stair(self) -> Stair:
        """The most blocks that a sequence holds at once, by its tokens.

        A prompt is in blocks as a whole. Where the whole model has a window, blocks that have left it are freed behind the prompt.
        """
        size, window, prompt = self.settings.block_size, self.settings.window, self.request.prompt
        if not window or prompt is None:
            return blocks_stair(size)
        # While a token is added, the window of the one before it is held too.
        return blocks_stair(size)._replace(most=max(-(-prompt // size), (window + size - 2) // size + 1))

    def blocks_of(self, tokens: int) -> int:
        """The most blocks that a sequence of so many tokens holds at once."""
        return self.block_stair.at(tokens)

    @property
    def blocks(self) -> int:
        """Blocks of one sequence of the planned length."""
        return self.blocks_of(self.tokens)

    def found(self, tokens: int) -> int:
        """Blocks of this many tokens, at the beginning of a prompt, that another request finds: the last token is computed anew."""
        return max(0, min(tokens, self.request.prompt_tokens - 1)) // self.settings.block_size

    @cached_property
    def held(self) -> Held:
        """The blocks that all sequences together take."""
        together = self.together
        lengths = []
        for tokens, requests in together.lengths:
            most, prefix = self.blocks_of(tokens), self.found(min(together.prefix, tokens))
            prompt = self.found(min(together.prompt, tokens)) if together.forks else prefix
            blocks = Blocks(-(-tokens // self.settings.block_size), most, prefix, prompt)
            lengths.append((blocks, requests * together.prompts, requests * together.branches))
        return held_blocks(lengths, together.copies)

    def blocks_for(self, requests: int) -> int:
        """Blocks of so many requests on one replica."""
        if not self.together.unlike:
            return requests * self.request.sharing.branches * self.blocks
        replica: LmdeployOpened = self.replica.sized(batch=requests)  # type: ignore[assignment]
        return replica.held.total


def of_lmdeploy(opened: Opened) -> LmdeployOpened:
    """The request with its own type. Only requests that LMDeploy has opened reach its rules."""
    assert isinstance(opened, LmdeployOpened)
    return opened

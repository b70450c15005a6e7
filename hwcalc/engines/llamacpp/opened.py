"""A request that llama.cpp has opened, with the hyperparameters of the model and the settings of its context."""

from __future__ import annotations

from functools import cached_property

from hwcalc.engines.base import Opened
from hwcalc.engines.llamacpp.settings import Settings, read_settings
from hwcalc.formulas import Stack
from hwcalc.parsers.gguf.hparams import Hparams, hparams_of
from hwcalc.parsers.gguf.layers import cached_layers

__all__ = ["LlamacppOpened", "of_llamacpp"]


class LlamacppOpened(Opened):
    """An opened request with the values that the rules of llama.cpp use again and again."""

    @property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return hparams_of(self.model)

    @cached_property
    def settings(self) -> Settings:
        """The settings with every default filled in."""
        return read_settings(self.request, self.hparams)

    @property
    def stack(self) -> Stack:
        """What llama.cpp keeps for each block of the file in the context that is planned."""
        read, drafts = self.hparams, self.settings.drafts
        made: Stack = self.model.once(("llamacpp layers", drafts), lambda: Stack(cached_layers(read, drafts=drafts)))
        return made


def of_llamacpp(opened: Opened) -> LlamacppOpened:
    """The request with its own type. Only requests that llama.cpp has opened reach its rules."""
    assert isinstance(opened, LlamacppOpened)
    return opened

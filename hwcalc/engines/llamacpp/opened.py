"""A request that llama.cpp has opened, with the hyperparameters of the model and the settings of its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from hwcalc.engines.base import Opened
from hwcalc.engines.llamacpp.place_options import PlaceOptions, checked_options
from hwcalc.engines.llamacpp.settings import MAX_SEQUENCES, Settings, read_settings, settings_at
from hwcalc.engines.request import Request
from hwcalc.engines.stored import bytes_of
from hwcalc.formulas import Full, LayerKind, Stack
from hwcalc.parsers.gguf.hparams import Hparams, hparams_of
from hwcalc.parsers.gguf.layers import cached_layers
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from hwcalc.engines.llamacpp.tensors import WeightGroup, WeightTensor

__all__ = ["LlamacppOpened", "of_llamacpp"]

T = TypeVar("T")


class LlamacppOpened(Opened):
    """An opened request with the values that the rules of llama.cpp use again and again."""

    @cached_property
    def hparams(self) -> Hparams:
        """The model as llama.cpp reads it."""
        return hparams_of(self.model)

    def started(self) -> Request:
        """The request as the server is started."""
        return self.request

    @cached_property
    def plain_settings(self) -> Settings:
        """The settings with every default filled in, if nothing is dropped."""
        started = self.started()
        if not self.together.unlike or "n_ctx" in started.options:
            return read_settings(started, self.hparams)
        # One cell of a buffer that all sequences use can belong to several of them.
        cells = sum(run.positions for run in self.replica.together.runs(Full()))
        return read_settings(replace(started, options={**started.options, "n_ctx": str(cells)}), self.hparams)

    @cached_property
    def settings(self) -> Settings:
        """The settings with every default filled in. Under a policy a context has fewer cells, unless the user says how many."""
        plain = self.plain_settings
        if self.evicted is None or not self.evicted.most or "n_ctx" in self.request.options:
            return plain
        from hwcalc.engines.llamacpp.evicting import context_tokens, cut_settings

        shifted, request = self.unshifted is None, self.started()
        tokens = context_tokens(self, self.evicted, plain, shifted=shifted)
        made = read_settings(replace(request, options={**request.options, "n_ctx": str(tokens)}), self.hparams)
        return cut_settings(made, plain, shifted=shifted)

    @property
    def most_slots(self) -> int:
        """How many sequences a context may have."""
        return MAX_SEQUENCES

    def settings_at(self, tokens: int, sequences: int) -> Settings:
        """The settings at another length and number of sequences, integers or arrays, where no option fixes the context."""
        return settings_at(self.started(), self.hparams, tokens, sequences)

    def holding(self, counts: Mapping[int, int]) -> LlamacppOpened:
        """The same: cells are there from the start."""
        return self

    @property
    def cuts_prompts(self) -> bool:
        """Whether a prompt that is longer than the context is cut."""
        return False

    def shift_words(self, cells: int, sinks: int) -> tuple[str, tuple[str, ...]]:
        """How a context of so many cells a sequence is asked for that keeps the first ``sinks`` tokens, and its flags."""
        flags = ("--context-shift", "--keep", f"{sinks}")
        return f"-c {cells * self.request.replica_batch} {' '.join(flags)}", flags

    @cached_property
    def unshifted(self) -> str | None:
        """Why context shift does not do what the policy of the request does; ``None`` if it does."""
        from hwcalc.engines.llamacpp.evicting import shifts

        asked = self.request.policy
        assert asked is not None
        prompt = self.request.prompt_tokens
        return shifts(asked.chosen, prompt, self.hparams, self.plain_settings, cuts_prompts=self.cuts_prompts)

    @cached_property
    def uncut(self) -> LlamacppOpened:
        """The request for layers that a policy leaves alone."""
        kept = self.evicted is None or self.unshifted is None
        return self if kept else of_llamacpp(self.without_policy())

    @cached_property
    def plain_stack(self) -> Stack:
        """What llama.cpp keeps for each block of the file in the context that is planned."""
        read, drafts = self.hparams, self.plain_settings.drafts
        made: Stack = self.model.once(("llamacpp layers", drafts), lambda: Stack(cached_layers(read, drafts=drafts)))
        return made

    @cached_property
    def place_options(self) -> PlaceOptions:
        """The options that say where layers lie."""
        fits_itself = self.settings.server
        make = partial(checked_options, self.request, self.engine.label, fits_itself=fits_itself)
        options: PlaceOptions = self.shared("place options", make)
        return options

    @property
    def gpus(self) -> int:
        """The GPUs that layers can lie on; 0 for a machine without any."""
        gpu = self.request.hardware.gpu
        return 0 if gpu is not None and gpu.is_host else self.request.gpus

    @cached_property
    def weight_tensors(self) -> tuple[WeightTensor, ...] | None:
        """The tensors of the planned file; ``None`` if they are not known."""
        from hwcalc.engines.llamacpp.groups import weight_tensors

        tensors: tuple[WeightTensor, ...] | None = self.shared("weight tensors", lambda: weight_tensors(self))
        return tensors

    @cached_property
    def weight_groups(self) -> tuple[WeightGroup, ...] | None:
        """The same tensors, alike ones together."""
        from hwcalc.engines.llamacpp.groups import weight_groups

        return weight_groups(self.model, format_name(self.request.weights))

    @cached_property
    def largest_tensors(self) -> tuple[tuple[int, int], ...]:
        """Bytes of the largest tensor of each block: among its experts, and among all else. Empty if they are not known."""
        largest: tuple[tuple[int, int], ...] = self.model.once(("llamacpp largest", self.request.weights), self._largest_tensors)
        return largest

    def _largest_tensors(self) -> tuple[tuple[int, int], ...]:
        most = [[0, 0] for _ in range(self.hparams.n_layer_all)]
        for group in self.weight_groups or ():
            tensor = group.first
            for layer in () if tensor.tower else group.blocks:
                if 0 <= layer < len(most):
                    most[layer][not tensor.expert] = max(most[layer][not tensor.expert], tensor.bytes)
        return tuple((experts, other) for experts, other in most)

    @cached_property
    def kind_bytes(self) -> dict[LayerKind, int]:
        """Bytes of cache and states of one layer of each kind."""
        return {kind: bytes_of(tensors) for kind, tensors in self.kind_tensors.items()}

    def kept(self, key: str, make: Callable[[], T]) -> T:
        """Call ``make`` once for this request alone, and return the result."""
        if key not in self._answers:
            self._answers[key] = make()
        answer: T = self._answers[key]
        return answer

    @cached_property
    def _answers(self) -> dict[str, Any]:
        return {}


def of_llamacpp(opened: Opened) -> LlamacppOpened:
    """The request with its own type. Only requests that llama.cpp has opened reach its rules."""
    assert isinstance(opened, LlamacppOpened)
    return opened

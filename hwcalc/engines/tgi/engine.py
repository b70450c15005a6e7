"""Hugging Face Text Generation Inference: blocks of a pool, by the back end of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import EVERY_TOKEN, Turns
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.options import Choices, EngineOption, choice_option, integer_option, number_option
from hwcalc.engines.tgi.deployment import BLOCKS, FRACTION, REQUESTS, WIGGLE_ROOM, TgiOccupancy, wiggle_room
from hwcalc.engines.tgi.layers import RULES
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.deployment import Occupancy


_SWITCH: Final = choice_option("true", "false", "1", "0")

_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], object]], ...]] = (
    ("attention", "back end, which decides the tokens of a block", "by head width and GPU", choice_option("auto", *BLOCKS)),
    ("cuda_memory_fraction", "share of the GPU", str(FRACTION), number_option(1)),
    ("wiggle_room", "share of that for weights and cache (TGI_WIGGLE_ROOM)", str(WIGGLE_ROOM), wiggle_room),
    ("max_batch_prefill_tokens", "tokens of the warm-up", "by GPU and model, or 4096", integer_option(1, 2**30)),
    ("max_concurrent_requests", "requests at once", str(REQUESTS), integer_option(1, 2**20)),
    ("prefix_caching", "keep blocks of finished requests", "with flashinfer", _SWITCH),
)


class Tgi(GeneralEngine):
    """The pool of TGI."""

    occupancy: ClassVar[type[Occupancy]] = TgiOccupancy
    name: ClassVar[str] = "tgi"
    title: ClassVar[str] = "Text Generation Inference: blocks for every token of every layer"
    label: ClassVar[str] = "TGI"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "blocks of the planned sequences"
    pool_is: ClassVar[str] = "KV-cache blocks x block size"
    versions: ClassVar[tuple[str, ...]] = ("3.3.6",)
    source: ClassVar[str] = "TGI db931fcf42da (3.3.6-dev0), models/flash_causal_lm.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}
    )
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "fp8", "bnb4")
    choices: ClassVar[Choices | None] = None
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
    )

    def turns(self, model: ModelSpec, options: Mapping[str, str]) -> Turns:
        """ROCm takes no prompt that is longer than a window, and a prompt has a token less than its sequence."""
        window = model.config.get("sliding_window")
        return super().turns(model, options).also(tokens=(window + 1,) if isinstance(window, int) else ())

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.tgi.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.tgi.command import launch

        return launch(planned)

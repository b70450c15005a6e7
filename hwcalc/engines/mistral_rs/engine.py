"""mistral.rs: PagedAttention on CUDA, and caches that grow by 512 positions where it is off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from hwcalc.engines.engine import EVERY_TOKEN
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.mistral_rs.deployment import FRACTION, MOST_SEQUENCES, MistralOccupancy
from hwcalc.engines.mistral_rs.layers import RULES
from hwcalc.engines.options import Choices, EngineOption, choice_option, integer_option, number_option
from hwcalc.errors import UsageError
from hwcalc.formulas import ChunkedAttention, LayerKind, SlidingAttention
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.deployment import Occupancy


def _block(name: str, value: str) -> int:
    size = integer_option(1)(name, value)
    if size not in (8, 16, 32):
        raise UsageError(f"mistral.rs: Block size must be in [8, 16, 32], got {size}.", hint=f"Use: --engine-option {name}=32")
    return size


def _share(name: str, value: str) -> float:
    return number_option(1)(name, value)


_MEMORY: Final = integer_option(1)

_OPTIONS: Final[tuple[tuple[str, str, str, Callable[[str, str], object]], ...]] = (
    ("paged_attn", "PagedAttention", "auto: with CUDA", choice_option("auto", "on", "off")),
    ("pa_context_len", "tokens for which the pool is made", "none", _MEMORY),
    ("pa_memory_mb", "MB (2^20 bytes) of the pool", "by pa_memory_fraction", _MEMORY),
    ("pa_memory_fraction", "share of the GPU for weights and cache", str(FRACTION), _share),
    ("pa_block_size", "tokens in a block: 8, 16 or 32", "32", _block),
    ("pa_cache_type", "format of the pool", "auto", choice_option("auto", "f8e4m3")),
    ("max_seqs", "sequences at once", str(MOST_SEQUENCES), integer_option(1, 2**20)),
    ("prefix_cache_n", "prefixes kept where there is no pool", "16", integer_option(0, 2**20)),
    ("pa_gpu_mem", "pa_memory_mb in the Python package", "none", _MEMORY),
    ("pa_gpu_mem_usage", "pa_memory_fraction in the Python package", "none", _share),
    ("pa_ctxt_len", "pa_context_len in older servers", "none", _MEMORY),
    ("pa_blk_size", "pa_block_size in older servers", "none", _block),
)


class MistralRs(GeneralEngine):
    """The caches of mistral.rs."""

    occupancy: ClassVar[type[Occupancy]] = MistralOccupancy
    name: ClassVar[str] = "mistral-rs"
    title: ClassVar[str] = "mistral.rs: PagedAttention, or caches that grow by 512"
    label: ClassVar[str] = "mistral.rs"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "pages of the planned sequences, and all slots of states"
    pool_is: ClassVar[str] = "GPU blocks x block size"
    versions: ClassVar[tuple[str, ...]] = ("0.9.2",)
    source: ClassVar[str] = "mistral.rs 9e922623f24b (0.9.2), paged_attention/mod.rs"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType(
        {SlidingAttention: EVERY_TOKEN, ChunkedAttention: EVERY_TOKEN}
    )
    has_command: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "q8_0", "q4_k_m")
    choices: ClassVar[Choices | None] = None
    options: ClassVar[Mapping[str, EngineOption]] = MappingProxyType(
        {name: EngineOption(name=name, help=text, default=default, check=check) for name, text, default, check in _OPTIONS}
    )

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.mistral_rs.command import flag_text

        return flag_text(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.mistral_rs.command import serve

        return serve(planned)

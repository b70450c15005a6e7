"""mlx-lm: each layer has a cache of its own, which grows with the tokens; there is no pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.base import Opened
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.kinds import BY_MODEL
from hwcalc.engines.mlx.checks import check
from hwcalc.engines.mlx.layers import PREFILL_STEP, RULES
from hwcalc.engines.mlx.models import CHUNKED, MODEL_DTYPE_STATES, as_read, file_of
from hwcalc.engines.mlx.options import DECODE_CONCURRENCY, OPTIONS, bits_of, checked_dtype, number_of
from hwcalc.engines.model_dtypes import known_dtype, model_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption, is_auto
from hwcalc.engines.policies import Support
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.formulas import LayerKind, Role, SlidingAttention
from hwcalc.model import Definition, ModelSpec

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.forms import Curve
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.request import Request
    from hwcalc.engines.saving import Saving

__all__ = ["Mlx"]


class Mlx(GeneralEngine):
    """The caches of mlx-lm. Bytes are those of their arrays, of which those behind the last token are room."""

    name: ClassVar[str] = "mlx"
    title: ClassVar[str] = "mlx-lm, the caches of MLX"
    label: ClassVar[str] = "MLX"
    definition: ClassVar[Definition] = Definition.ENGINE
    cache_is: ClassVar[str] = "arrays at their largest, while a prompt is read or behind it"
    versions: ClassVar[tuple[str, ...]] = ("0.32.2",)
    source: ClassVar[str] = "mlx-lm 0.32.2, models/cache.py and generate.py"
    kinds: ClassVar[frozenset[type[LayerKind]] | None] = frozenset(RULES)
    unbounded: ClassVar[Mapping[type[LayerKind], str]] = MappingProxyType({SlidingAttention: BY_MODEL})
    has_command: ClassVar[bool] = True
    stores_prompts_apart: ClassVar[bool] = True
    weight_choices: ClassVar[tuple[str | None, ...]] = (None, "mlx_8bit", "mlx_6bit", "mlx_4bit")
    choices: ClassVar[Choices | None] = Choices(weights=("bf16", "mlx_8bit", "mlx_4bit"))
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        """The cache has the dtype of the activations, which is that of the weights, or of the scales of quantised ones."""
        own, notes = model_dtype(opened.model, opened.request.dtype)
        named, bits = checked_dtype(opened), bits_of(opened)
        if named is not None:
            own = known_dtype(named)
        if not is_auto(opened.request.dtype):
            notes = ()
        states = own if file_of(opened.model) in MODEL_DTYPE_STATES else known_dtype("fp32")
        roles = {**dict.fromkeys(Role, own), Role.STATE: states}
        kv = own.name if bits is None else f"int{bits.bits}"
        return Noted(Dtypes(kv=kv, roles=MappingProxyType(roles)), notes)

    def check(self, opened: Opened) -> None:
        check(opened)

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        return RULES[type(kind)](kind, opened)

    def unchecked(self, model: ModelSpec, request: Request) -> Opened:
        return super().unchecked(as_read(model), request)

    def chunks(self, opened: Opened) -> tuple[int | None, int | None, int | None]:
        step = number_of(opened, "prefill_step_size", PREFILL_STEP)
        return step, step, step

    def working(self, opened: Opened) -> tuple[BudgetPart, ...]:
        from hwcalc.engines.mlx.peak import parts

        return tuple(parts(opened))

    def curve(self, opened: Opened) -> Curve | None:
        """As the general rule, but asked length by length where the cache is quantized on the way or goes in odd pieces."""
        from hwcalc.engines.general_form import asked_curve

        curve = None if bits_of(opened) is not None else super().curve(opened)
        return asked_curve(opened) if curve is None else curve

    def weight_rules(self, opened: Opened) -> Rules:
        from hwcalc.engines.mlx.weights import MLX

        return MLX

    def most_sequences(self, opened: Opened) -> tuple[int, str] | None:
        """The server takes requests one after the other where the cache is quantized, drafts are made or caches cannot be joined.

        Source: server.py ModelProvider (is_batchable), ResponseGenerator._is_batchable.
        """
        alone = opened.request.parallel.dp
        if bits_of(opened) is not None:
            return alone, "kv_bits"
        if opened.request.draft is not None:
            return alone, "draft model"
        if file_of(opened.model) in CHUNKED:
            return alone, "ChunkedKVCache"
        return alone * number_of(opened, "decode_concurrency", DECODE_CONCURRENCY), "decode_concurrency"

    def pads(self, opened: Opened) -> bool:
        """A ``BatchKVCache`` is padded on the left to its longest sequence."""
        return True

    def sharing_support(self, opened: Opened) -> Support:
        """Source: server.py LRUPromptCache, generate.py BatchGenerator."""
        how = "the server's prompt cache saves time and no memory: every request gets a copy of what is kept"
        if opened.request.sharing.branches > 1:
            how = "mlx-lm has neither samples nor beams of one request: each is a request of its own"
        return Support(offered=False, how=how)

    def savings(self, opened: Opened, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.mlx.command import savings

        return savings(opened)

    def flag(self, name: str, value: object) -> str:
        from hwcalc.engines.mlx.command import flag

        return flag(name, value)

    def command(self, planned: CommandInput) -> list[str]:
        from hwcalc.engines.mlx.command import serve

        return serve(planned)

"""mlx-lm: each layer has a cache of its own, which grows with the tokens; there is no pool."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from hwcalc.engines.general import GeneralOccupancy
from hwcalc.engines.mlx.checks import check
from hwcalc.engines.mlx.layers import PREFILL_STEP, RULES
from hwcalc.engines.mlx.models import CHUNKED, MODEL_DTYPE_STATES, file_of
from hwcalc.engines.mlx.options import DECODE_CONCURRENCY, bits_of, checked_dtype, number_of
from hwcalc.engines.model_dtypes import known_dtype, model_dtype
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import is_auto
from hwcalc.engines.policies import Support
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.formulas import LayerKind, Role

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart
    from hwcalc.engines.forms import Curve
    from hwcalc.engines.rank_weights import Rules
    from hwcalc.engines.saving import Saving


class MlxOccupancy(GeneralOccupancy):
    """MlxOccupancy."""

    def choose_dtypes(self) -> Noted[Dtypes]:
        """The cache has the dtype of the activations, which is that of the weights, or of the scales of quantised ones."""
        own, notes = model_dtype(self.model, self.request.dtype)
        named, bits = checked_dtype(self), bits_of(self)
        if named is not None:
            own = known_dtype(named)
        if not is_auto(self.request.dtype):
            notes = ()
        states = own if file_of(self.model) in MODEL_DTYPE_STATES else known_dtype("fp32")
        roles = {**dict.fromkeys(Role, own), Role.STATE: states}
        kv = own.name if bits is None else f"int{bits.bits}"
        return Noted(Dtypes(kv=kv, roles=MappingProxyType(roles)), notes)

    def check(self) -> None:
        check(self)

    def tensors(self, kind: LayerKind) -> tuple[StoredTensor, ...]:
        return RULES[type(kind)](kind, self)

    def chunks(self) -> tuple[int | None, int | None, int | None]:
        step = number_of(self, "prefill_step_size", PREFILL_STEP)
        return step, step, step

    def working(self) -> tuple[BudgetPart, ...]:
        from hwcalc.engines.mlx.peak import parts

        return tuple(parts(self))

    def curve(self) -> Curve | None:
        """As the general rule, but asked length by length where the cache is quantized on the way or goes in odd pieces."""
        from hwcalc.engines.general_form import asked_curve

        curve = None if bits_of(self) is not None else super().curve()
        return asked_curve(self) if curve is None else curve

    def weight_rules(self) -> Rules:
        from hwcalc.engines.mlx.weights import MLX

        return MLX

    def most_sequences(self) -> tuple[int, str] | None:
        """The server takes requests one after the other where the cache is quantized, drafts are made or caches cannot be joined.

        Source: server.py ModelProvider (is_batchable), ResponseGenerator._is_batchable.
        """
        alone = self.request.parallel.dp
        if bits_of(self) is not None:
            return alone, "kv_bits"
        if self.request.draft is not None:
            return alone, "draft model"
        if file_of(self.model) in CHUNKED:
            return alone, "ChunkedKVCache"
        return alone * number_of(self, "decode_concurrency", DECODE_CONCURRENCY), "decode_concurrency"

    def pads(self) -> bool:
        """A ``BatchKVCache`` is padded on the left to its longest sequence."""
        return True

    def support_of_sharing(self) -> Support:
        """Source: server.py LRUPromptCache, generate.py BatchGenerator."""
        how = "the server's prompt cache saves time and no memory: every request gets a copy of what is kept"
        if self.request.sharing.branches > 1:
            how = "mlx-lm has neither samples nor beams of one request: each is a request of its own"
        return Support(offered=False, how=how)

    def savings(self, short_bytes: int) -> Iterator[Saving]:
        from hwcalc.engines.mlx.command import savings

        return savings(self)

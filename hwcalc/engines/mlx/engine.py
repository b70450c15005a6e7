"""mlx-lm: each layer has a cache of its own, which grows with the tokens; there is no pool."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hwcalc.engines.base import Opened
from hwcalc.engines.general import GeneralEngine
from hwcalc.engines.mlx.checks import check
from hwcalc.engines.mlx.layers import PREFILL_STEP, RULES
from hwcalc.engines.mlx.models import MODEL_DTYPE_STATES, file_of
from hwcalc.engines.mlx.options import OPTIONS, bits_of, checked_dtype, number_of
from hwcalc.engines.noted import Noted
from hwcalc.engines.options import Choices, EngineOption
from hwcalc.engines.reference import known_dtype, model_dtype
from hwcalc.engines.stored import Dtypes, StoredTensor
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import LayerKind, Role
from hwcalc.model import Definition

if TYPE_CHECKING:
    from hwcalc.engines.budget import BudgetPart
    from hwcalc.engines.command import CommandInput
    from hwcalc.engines.rank_weights import Rules

__all__ = ["Mlx"]


class Mlx(GeneralEngine):
    """The caches of mlx-lm. Bytes are those of their arrays, of which those behind the last token are room."""

    name: ClassVar[str] = "mlx"
    title: ClassVar[str] = "mlx-lm, the caches of MLX"
    label: ClassVar[str] = "MLX"
    definition: ClassVar[Definition] = Definition.ENGINE
    versions: ClassVar[tuple[str, ...]] = ("0.32.2",)
    source: ClassVar[str] = "mlx-lm 0.32.2, models/cache.py and generate.py"
    assumed_gpu: ClassVar[str | None] = None
    choices: ClassVar[Choices | None] = Choices(weights=("bf16", "mlx_8bit", "mlx_4bit"))
    options: ClassVar[Mapping[str, EngineOption]] = OPTIONS

    def dtypes(self, opened: Opened) -> Noted[Dtypes]:
        """The cache has the dtype of the activations, which is that of the weights, or of the scales of quantised ones."""
        own, notes = model_dtype(opened.model, opened.request.dtype)
        named, bits = checked_dtype(opened), bits_of(opened)
        if named is not None:
            own, notes = known_dtype(named), ()
        states = own if file_of(opened.model) in MODEL_DTYPE_STATES else known_dtype("fp32")
        roles = {**dict.fromkeys(Role, own), Role.STATE: states}
        kv = own.name if bits is None else f"int{bits.bits}"
        return Noted(Dtypes(kv=kv, roles=MappingProxyType(roles)), notes)

    def check(self, opened: Opened) -> None:
        check(opened)

    def tensors(self, kind: LayerKind, opened: Opened) -> tuple[StoredTensor, ...]:
        rule = RULES.get(type(kind))
        if rule is None:
            raise UnsupportedError(f"mlx-lm has no rule for {kind.title}.", hint="Use: --engine reference")
        return rule(kind, opened)

    def chunks(self, opened: Opened) -> tuple[int | None, int | None, int | None]:
        step = number_of(opened, "prefill_step_size", PREFILL_STEP)
        return step, step, step

"""Heads over ranks: engines that shard a fused projection divide its heads evenly, and refuse to start where that cannot be done."""

from __future__ import annotations

from hwcalc.errors import UsageError
from hwcalc.formulas import LatentAttention, LayerKind
from hwcalc.formulas.attention import AttentionKind


def check_heads(engine: str, kind: LayerKind, tp: int) -> None:
    """Check that ``tp`` ranks share the heads of a layer evenly. Raises :class:`~hwcalc.errors.UsageError`.

    Key/value heads are divided, or each is repeated on as many ranks: 10 of them are on 1, 2, 5, 10 or 20 ranks, and not on 8.
    """
    if not isinstance(kind, (AttentionKind, LatentAttention)):
        return
    if kind.num_attention_heads % tp:
        raise UsageError(
            f"{engine} cannot split {kind.num_attention_heads} attention heads over tp {tp}.",
            hint="Use a tp that divides the number of heads.",
        )
    if not isinstance(kind, AttentionKind):
        return
    heads = kind.num_key_value_heads
    if heads % tp and tp % heads:
        raise UsageError(
            f"{engine} cannot split {heads} key/value heads over tp {tp}.",
            hint="Use a tp that divides the number of key/value heads, or a multiple of it.",
        )

"""The layers that speculative decoding adds to the pool: the model's multi-token-prediction layers, or those of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hwcalc.errors import UsageError
from hwcalc.formulas import CompressedAttention, LatentAttention, LayerKind, SparseIndexer
from hwcalc.formulas.attention import AttentionKind

if TYPE_CHECKING:
    from hwcalc.engines.vllm.speculation import Speculation
    from hwcalc.model import ModelSpec


def draft_layers(model: ModelSpec, speculation: Speculation | None) -> Sequence[LayerKind]:
    """The kinds of the draft's layers, in order; empty for n-gram lookup."""
    if speculation is None or speculation.method == "ngram":
        return ()
    if speculation.model is not None:
        return [kind for layer in speculation.model.stack_for("vllm") for kind in layer]
    return [kind for _ in range(_modules(model)) for kind in _predictor(model)]


def _modules(model: ModelSpec) -> int:
    if model.facts.mtp_modules is None:
        raise UsageError(
            f"speculative=mtp: the config of {model.id} names no multi-token-prediction layers.", hint="Use: speculative=ngram:N"
        )
    return model.facts.mtp_modules


def _predictor(model: ModelSpec) -> Sequence[LayerKind]:
    """A predicting layer is built like the model's last layer with attention. That of DeepSeek-V4 has only the window."""
    for layer in reversed(model.stack_for("vllm").layers):
        for kind in layer:
            if isinstance(kind, CompressedAttention):
                return [
                    CompressedAttention(num_attention_heads=kind.num_attention_heads, head_dim=kind.head_dim, window=kind.window)
                ]
        kinds: list[LayerKind] = [kind for kind in layer if isinstance(kind, (AttentionKind, LatentAttention))]
        if kinds:
            # It has its own indexer, even if the last layers reuse the selection of an earlier layer.
            groups = model.stack_for("vllm").groups
            return kinds + [group.kind for group in groups if isinstance(group.kind, SparseIndexer)][:1]
    raise UsageError(f"speculative=mtp: {model.id} has no attention layer.", hint="Use: speculative=ngram:N")

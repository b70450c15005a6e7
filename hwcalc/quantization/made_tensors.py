"""Tensors of a GGUF file that are no parameters of the model: the converter makes them of the config, or keeps a table of numbers."""

from __future__ import annotations

from collections.abc import Iterator

from hwcalc.formulas import FullAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import ModelSpec
from hwcalc.quantization.mix_places import Family

__all__ = ["made_tensors"]


def made_tensors(model: ModelSpec) -> Iterator[Family]:
    """What ``generate_extra_tensors`` writes (conversion/*.py)."""
    kinds = {scaling.kind.lower() for scaling in model.facts.rope_scalings}
    attention = [group.kind for group in model.stack.groups if isinstance(group.kind, AttentionKind)]
    # Factors for Llama 3's stretching; those of Gemma 4, whose layers without a window turn a part of a head.
    turned = [kind for kind in attention if "llama3" in kinds or ("proportional" in kinds and isinstance(kind, FullAttention))]
    if turned:
        yield Family(stem="rope_freqs.weight", shape=(turned[0].head_dim // 2,), type="f32", layers=())
    hashed, chosen = model.facts.hash_routed_layers, model.facts.experts_per_token
    if hashed and chosen and model.vocab_size is not None:
        yield Family(stem="ffn_gate_tid2eid.weight", shape=(chosen, model.vocab_size), type="i32", layers=tuple(range(hashed)))

"""Tensors of a GGUF file that are no parameters of the model: made of the config, or numbers that only the checkpoint has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hwcalc.formulas import FullAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.model import ModelSpec
from hwcalc.quantization.mix_places import Family

__all__ = ["made_tensors"]


_CORRECTED: Final = frozenset(
    {
        "axk1", "axk2", "bailing_hybrid", "deepseek_ref", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots1", "dots3_note",
        "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "kimi_k2", "kimi_k25",
        "kimi_k3", "kimi_linear", "kimi_vl", "lfm2_moe", "mimo_v2_flash", "minimax_m2", "minimax_m3", "minimax_m3_vl", "nemotron_h",
        "solar_open", "step3p5", "step3p7",
    }
)  # fmt: skip
"""Model types whose routers have a correction for each expert that transformers keeps as a buffer: the checkpoints have it."""
_CORRECTED_CLASSES: Final = frozenset({"BailingMoeV2ForCausalLM"})
"""Classes with such a correction whose model type has others without."""
_ROUTER: Final = "ffn_gate_inp.weight"
_CORRECTION: Final = "exp_probs_b.bias"
_BARE: Final = frozenset({"hy_v3"})
"""Model types whose checkpoints have the correction as ``mlp.expert_bias``: the converter adds no ending to that."""


def made_tensors(model: ModelSpec, families: Sequence[Family]) -> Iterator[Family]:
    """What ``generate_extra_tensors`` writes (conversion/*.py), and buffers. ``families`` are those of the parameters."""
    kinds = {scaling.kind.lower() for scaling in model.facts.rope_scalings}
    attention = [group.kind for group in model.stack.groups if isinstance(group.kind, AttentionKind)]
    # Factors for Llama 3's stretching; those of Gemma 4, whose layers without a window turn a part of a head.
    turned = [kind for kind in attention if "llama3" in kinds or ("proportional" in kinds and isinstance(kind, FullAttention))]
    if turned:
        yield Family(stem="rope_freqs.weight", shape=(turned[0].head_dim // 2,), type="f32", layers=())
    hashed, chosen = model.facts.hash_routed_layers, model.facts.experts_per_token
    if hashed and chosen and model.vocab_size is not None:
        yield Family(stem="ffn_gate_tid2eid.weight", shape=(chosen, model.vocab_size), type="i32", layers=tuple(range(hashed)))
    corrected = model.model_type in _CORRECTED or model.architecture in _CORRECTED_CLASSES
    if corrected and not any(one.stem == _CORRECTION for one in families):
        # Layers that find their experts in a table have no correction.
        for router in families:
            layers = tuple(number for number in router.layers if number >= (hashed or 0))
            if router.stem == _ROUTER and layers:
                stem = _CORRECTION.removesuffix(".bias") if model.model_type in _BARE else _CORRECTION
                yield Family(stem=stem, shape=router.shape[1:], type="f32", layers=layers)

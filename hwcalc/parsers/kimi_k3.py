"""Kimi K3: language model, vision tower and projector, by the checkpoint and SGLang's ``kimi_k3.py``.

The language model is Kimi Linear with three differences. Gates are full matrices. Experts work at half the width, between two
projections. And there are attention residuals: before each block a norm and a learned query mix the sums of earlier layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hwcalc.formulas import KimiDeltaAttention, LatentAttention, Layer
from hwcalc.formulas.weights import Block, Part, WeightRole, experts, gated_mlp, linear, parameter, plain_mlp, rms_norm
from hwcalc.formulas.weights_state import kimi_delta_attention
from hwcalc.parsers.blocks import Named, Weighed, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import sparse_layers
from hwcalc.parsers.latent.layers import kind_weights
from hwcalc.parsers.reading import Readers, Reading, kind_in
from hwcalc.parsers.relabelled import read_nested


def _weigh(config: Config, top: Config, reading: Reading) -> tuple[Block, ...]:
    text, hidden = reading.config, reading.config.integer("hidden_size")
    nested = text.sub("linear_attn_config")
    full_gate = nested is not None and nested.flag("use_full_rank_gate")
    residuals = text.maybe_integer("attn_res_block_size", minimum=0)
    norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

    def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
        layer, sparse = key
        for kind in layer:
            if isinstance(kind, KimiDeltaAttention):
                yield "delta", _delta(kind, hidden, full_gate=full_gate)
            else:
                yield "attention", _attention(text, kind_in(config, (kind,), LatentAttention))
        yield ("moe", _experts(text)) if sparse else ("mlp", gated_mlp(hidden, text.integer("intermediate_size")))
        yield "norm", norms
        if residuals:
            yield "residual", _residual("self_attention_res", hidden) + _residual("mlp_res", hidden)

    sparse = sparse_layers(text, len(reading.layers), 1)
    out = ends(text, top, embed="language_model.model.embed_tokens", norm="language_model.model.norm")
    out += repeated(zip(reading.layers, sparse, strict=True), weigh)
    if residuals:
        out.append(Block(kind="residual", weights=_residual("language_model.model.output_attn_res", hidden)))
    vision = config.sub("vision_config", "kimi_k3_vision")
    return (*out, *(_vision(vision) if vision is not None else ()))


def _residual(path: str, hidden: int) -> Weighed:
    return rms_norm(f"{path}_norm", hidden) + parameter(f"{path}_proj.weight", 1, hidden)


def _delta(kind: KimiDeltaAttention, hidden: int, *, full_gate: bool) -> Weighed:
    weights = kimi_delta_attention(hidden, **kind.numbers(), low_rank_gate=not full_gate)
    # The decay is one number a head, which the checkpoint pads to head_dim: 128 numbers for 96 heads.
    padded = parameter("self_attn.A_log", max(kind.num_heads, kind.head_dim))
    return tuple(padded[0] if weight.path == "self_attn.A_log" else weight for weight in weights)


def _attention(text: Config, kind: LatentAttention) -> Weighed:
    gate = text.integer("hidden_size"), kind.num_attention_heads * kind.v_head_dim
    weights = kind_weights(text, kind, text.maybe_integer("q_lora_rank"))
    return weights + linear("self_attn.g_proj", *gate) if text.flag("mla_use_output_gate") else weights


def _experts(text: Config) -> Weighed:
    hidden, width = text.integer("hidden_size"), text.integer("moe_intermediate_size")
    latent = text.maybe_integer("routed_expert_hidden_size")
    count, path = text.integer("num_experts"), "block_sparse_moe"
    expert = gated_mlp(latent or hidden, width, path=f"{path}.experts")
    weights = experts(expert, count, text.integer("num_experts_per_token"))
    weights += linear(f"{path}.gate", hidden, count, role=WeightRole.ROUTER)
    shared = (text.maybe_integer("num_shared_experts", minimum=0) or 0) * width
    if shared:
        weights += gated_mlp(hidden, shared, path=f"{path}.shared_experts")
    if latent is not None:
        # They count as other than linear because the released quantisation leaves them alone without naming them.
        weights += linear(f"{path}.routed_expert_down_proj", hidden, latent, role=WeightRole.OTHER)
        weights += linear(f"{path}.routed_expert_up_proj", latent, hidden, role=WeightRole.OTHER)
        if text.flag("latent_moe_use_norm"):
            weights += rms_norm(f"{path}.routed_expert_norm", latent)
    return weights


def _vision(vision: Config) -> Iterator[Block]:
    """MoonViT without biases, learned positions, and a projector of two matrices over 2 x 2 merged patches."""
    width, inner = vision.integer("vt_hidden_size"), vision.integer("qkv_hidden_size")
    patch = vision.integer("patch_size")
    path = "vision_tower.encoder.blocks"
    layer = rms_norm(f"{path}.norm0", width) + rms_norm(f"{path}.norm1", width)
    layer += linear(f"{path}.wqkv", width, 3 * inner) + linear(f"{path}.wo", inner, width)
    mlp = vision.integer("vt_intermediate_size")
    layer += plain_mlp(width, mlp, bias=False, path=f"{path}.mlp", names=("fc0", "fc1"))
    rows, columns = vision.integer("init_pos_emb_height"), vision.integer("init_pos_emb_width")
    outside = parameter("vision_tower.patch_embed.proj.weight", width, 3, patch, patch, role=WeightRole.CONV)
    outside += parameter("vision_tower.patch_embed.pos_emb.weight", rows, columns, width, role=WeightRole.EMBEDDING)
    outside += rms_norm("vision_tower.encoder.final_layernorm", width)
    yield Block(kind="vision_layer", weights=layer, part=Part.VISION, count=vision.number_of_layers("vt_num_hidden_layers"))
    yield Block(kind="vision", weights=outside, part=Part.VISION)
    merge = vision.integers("merge_kernel_size", length=2, minimum=1) or [1, 1]
    merged, hidden = merge[0] * merge[1] * width, vision.integer("text_hidden_size")
    projector = linear("mm_projector.proj.0", merged, merged) + linear("mm_projector.proj.2", merged, hidden)
    yield Block(kind="projector", weights=projector + rms_norm("mm_projector.post_norm", hidden), part=Part.PROJECTOR)


KIMI_K3: Final = Readers(layers=lambda config: read_nested(config, "kimi_linear"), weights=_weigh)

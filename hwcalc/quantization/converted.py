"""The GGUF file that llama.cpp's converter makes of a model (conversion/*.py, 0c1e57098): its tensors, with their shapes, in 16
or 32 bits.

Names follow from the ends of paths in a checkpoint (gguf-py/gguf/tensor_mapping.py): a key of a table is such an end without
``.weight`` or ``.bias``, and the longest that fits decides; after a slash it holds for one kind of block. What no key fits keeps
its path: the file is not known that well, but its bytes are. Experts are merged into one tensor, fused projections are split or
kept, and the matrix that takes keys and values out of a latent becomes two. Vectors, norms, routers and convolutions stay in 32
bits. Some tensors are no parameters: made of the config, or numbers that only the checkpoint has. Towers lie in a file of their
own, which is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Final

from msgspec import field

from hwcalc.formulas import FullAttention
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.formats import BF16
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec
from hwcalc.quantization.mixes import Family, MixFacts, Placed, placed
from hwcalc.text import by_word

OUTSIDE: Final[Mapping[str, str]] = by_word({
    "token_embd": "embed_tokens word_embeddings embeddings shared", "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection", "per_layer_proj_norm": "per_layer_projection_norm",
    "position_embd": "embed_positions position_embeddings", "token_types": "token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm word_embeddings_layernorm embedding_norm embed_tokens.embed_norm pre_ln",
    "output": "lm_head", "output_norm": "norm norm_f final_layernorm ln_out", "output_hc_base": "hc_head.hc_base",
    "output_hc_fn": "hc_head.hc_fn", "output_hc_scale": "hc_head.hc_scale", "cls": "pooler.dense",
})  # fmt: skip
"""Tensors outside the layers."""

_INSIDE: Final[Mapping[str, str]] = {
    # attention
    "q_proj": "attn_q", "query": "attn_q",
    "k_proj": "attn_k", "key": "attn_k",
    "v_proj": "attn_v", "value": "attn_v",
    "o_proj": "attn_output", "out_proj": "attn_output", "wo": "attn_output", "attn.c_proj": "attn_output",
    "attention.dense": "attn_output", "self_attention.dense": "attn_output", "self_attn.dense": "attn_output",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "query_key_value": "attn_qkv", "qkv_proj": "attn_qkv", "Wqkv": "attn_qkv", "c_attn": "attn_qkv", "W_pack": "attn_qkv", "wqkv": "attn_qkv",
    "q_norm": "attn_q_norm", "q_layernorm": "attn_q_norm", "q_weight": "attn_q_norm",
    "k_norm": "attn_k_norm", "k_layernorm": "attn_k_norm", "k_weight": "attn_k_norm",
    "self_attn.gate_proj": "attn_gate", "self_attn.g_proj": "attn_gate",
    "sinks": "attn_sinks", "attn_sub_norm": "attn_sub_norm",
    # latent attention
    "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm", "q_a_norm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm", "kv_b_proj": "attn_kv_b",
    "self_attn.output_gate": "attn_gate", "self_attn.norm": "attn_norm_2",
    "self_attn.kv_proj": "attn_kv", "self_attn.kv_norm": "attn_kv_a_norm", "o_a_proj": "attn_output_a", "o_b_proj": "attn_output_b",
    "indexer.wq_b": "indexer.attn_q_b", "indexer.wk": "indexer.attn_k", "indexer.k_norm": "indexer.k_norm",
    "indexer.q_norm": "indexer.q_norm", "indexer.weights_proj": "indexer.proj", "indexer.q_proj": "indexer.q_proj",
    "indexer.k_proj": "indexer.k_proj",
    "compressor.kv_proj": "attn_compressor_kv", "compressor.gate_proj": "attn_compressor_gate",
    "compressor.position_bias": "attn_compressor_ape", "compressor.kv_norm": "attn_compressor_norm",
    "compressor.indexer.kv_proj": "indexer_compressor_kv", "compressor.indexer.gate_proj": "indexer_compressor_gate",
    "compressor.indexer.position_bias": "indexer_compressor_ape", "compressor.indexer.kv_norm": "indexer_compressor_norm",
    "compressor.indexer.q_b_proj": "indexer.attn_q_b", "compressor.indexer.scorer.weights_proj": "indexer.proj",
    "attn_hc.base": "hc_attn_base", "attn_hc.fn": "hc_attn_fn", "attn_hc.scale": "hc_attn_scale",
    "ffn_hc.base": "hc_ffn_base", "ffn_hc.fn": "hc_ffn_fn", "ffn_hc.scale": "hc_ffn_scale",
    # feed forward
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down", "gate_up_proj": "ffn_up",
    "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down", "fc1": "ffn_up", "fc2": "ffn_down", "fc_in": "ffn_up", "fc_out": "ffn_down",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "dense_h_to_4h": "ffn_up", "dense_4h_to_h": "ffn_down",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    "input_linear": "ffn_gate", "output_linear": "ffn_down", "ffn_sub_norm": "ffn_sub_norm",
    "residual_layernorm": "ffn_norm_exps", "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale", "residual_mlp.gate_proj": "ffn_gate", "residual_mlp.up_proj": "ffn_up",
    "residual_mlp.down_proj": "ffn_down",
    # experts: "_exps" and "_shexp" are added by what the path says
    "experts.gate_proj": "ffn_gate_exps", "experts.up_proj": "ffn_up_exps", "experts.down_proj": "ffn_down_exps",
    "experts.mlp.gate_proj": "ffn_gate_exps", "experts.mlp.up_proj": "ffn_up_exps", "experts.mlp.down_proj": "ffn_down_exps",
    "experts.w1": "ffn_gate_exps", "experts.w3": "ffn_up_exps", "experts.w2": "ffn_down_exps",
    "shared_expert_gate": "ffn_gate_inp_shexp", "expert_bias": "exp_probs_b", "e_score_correction_bias": "exp_probs_b",
    "fc1_latent_proj": "ffn_latent_down", "fc2_latent_proj": "ffn_latent_up",
    "routed_expert_down_proj": "ffn_routed_down", "routed_expert_up_proj": "ffn_routed_up", "routed_expert_norm": "ffn_routed_norm",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    # norms of a layer
    "norm_0": "attn_norm", "input_layernorm": "attn_norm", "operator_norm": "attn_norm", "ln1": "attn_norm", "pre_mixer_norm": "attn_norm",
    "norm_1": "ffn_norm", "pre_ff_layernorm": "ffn_norm", "ffn_norm": "ffn_norm", "ln2": "ffn_norm", "pre_mlp_norm": "ffn_norm",
    "post_attention_layernorm": "ffn_norm", "post_mixer_norm": "post_attention_norm", "post_mlp_norm": "post_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "norm/norm": "attn_norm",
    # states
    "mamba/in_proj": "ssm_in", "mamba/out_proj": "ssm_out", "mamba/x_proj": "ssm_x", "mamba/bcdt_proj": "ssm_x", "mamba/dt_proj": "ssm_dt",
    "mamba/conv1d": "ssm_conv1d", "mamba/norm": "ssm_norm", "mamba/A_log": "ssm_a", "mamba/D": "ssm_d", "mamba/dt_bias": "ssm_dt",
    "mamba/b_layernorm": "ssm_b_norm", "mamba/c_layernorm": "ssm_c_norm", "mamba/dt_layernorm": "ssm_dt_norm",
    "mamba/B_norm": "ssm_b_norm", "mamba/C_norm": "ssm_c_norm", "mamba/dt_norm": "ssm_dt_norm",
    "delta/in_proj_qkv": "attn_qkv", "delta/in_proj_z": "attn_gate", "delta/in_proj_a": "ssm_alpha", "delta/in_proj_b": "ssm_beta",
    "delta/in_proj_ba": "ssm_ba", "delta/in_proj_qkvz": "attn_qkv", "delta/out_proj": "ssm_out", "delta/conv1d": "ssm_conv1d",
    "delta/A_log": "ssm_a", "delta/dt_bias": "ssm_dt", "delta/norm": "ssm_norm", "delta/o_norm": "ssm_norm", "delta/b_proj": "ssm_beta",
    "delta/f_a_proj": "ssm_f_a", "delta/f_b_proj": "ssm_f_b", "delta/g_a_proj": "ssm_g_a", "delta/g_b_proj": "ssm_g_b",
    "delta/g_proj": "ssm_g", "delta/q_conv1d": "ssm_conv1d_q", "delta/k_conv1d": "ssm_conv1d_k", "delta/v_conv1d": "ssm_conv1d_v",
    "conv/in_proj": "shortconv.in_proj", "conv/out_proj": "shortconv.out_proj", "conv/conv": "shortconv.conv",
    "mlp_res_proj": "ffn_res_score", "self_attention_res_proj": "attn_res_score",
    # multi-token prediction
    "eh_proj": "nextn.eh_proj", "mtp.fc": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm", "shared_head.norm": "nextn.shared_head_norm",
    "mtp.norm": "nextn.shared_head_norm", "embed_tokens": "nextn.embed_tokens", "shared_head.head": "nextn.shared_head_head",
    "input_proj": "nextn.eh_proj", "token_layernorm": "nextn.enorm", "hidden_layernorm": "nextn.hnorm",
    "final_layernorm": "layer_output_norm",
}  # fmt: skip
"""Tensors of a layer."""

_AFTER: Final = frozenset({
    "gpt_oss", "glm4_moe", "solar_open", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "seed_oss",
    "apertus",
})  # fmt: skip
"""Model types whose norm before the feed-forward part is called ``post_attention_norm``."""
_BOTH_AFTER: Final = frozenset({"olmo2", "olmo3", "exaone4", "exaone_moe"})
"""Model types whose two norms both follow what they belong to."""
_FOUR_NORMS: Final[Mapping[str, str]] = {"norm_1": "post_attention_norm", "norm_2": "ffn_norm", "norm_3": "post_ffw_norm"}
"""The norms of a layer with two before and two after."""
_SHARED: Final = ("shared_expert.", "shared_experts.", "shared_mlp.", "shared_mlp_")


@lru_cache(maxsize=4096)
def gguf_stem(path: str, kind: str, model_type: str = "", *, inside: bool, four_norms: bool = False) -> str:
    """The name of a tensor without the number of its layer, ``.weight`` and ``.bias`` kept.

    >>> gguf_stem("mlp.experts.down_proj.weight", "moe", inside=True)
    'ffn_down_exps.weight'
    >>> gguf_stem("mlp.shared_experts.up_proj.weight", "moe", inside=True), gguf_stem("lm_head.weight", "head", inside=False)
    ('ffn_up_shexp.weight', 'output.weight')
    """
    module, ending = path, ""
    for suffix in (".weight", ".bias"):
        if path.endswith(suffix):
            module, ending = path.removesuffix(suffix), suffix
    if module.endswith(("dt_bias", "correction_bias", "expert_bias")):
        ending = ".bias"
    table = _INSIDE if inside else OUTSIDE
    parts = module.split(".")
    ends = [".".join(parts[at:]) for at in range(len(parts))]
    if inside and four_norms and module in _FOUR_NORMS:
        return f"{_FOUR_NORMS[module]}{ending}"
    if inside and module in ("norm_1", "post_attention_layernorm") and model_type in _AFTER:
        return f"post_attention_norm{ending}"
    if inside and module in ("norm_0", "norm_1") and model_type in _BOTH_AFTER:
        return f"{'post_attention_norm' if module == 'norm_0' else 'post_ffw_norm'}{ending}"
    stem = next((table[key] for end in ends for key in (f"{kind}/{end}", end) if key in table), None)
    if stem is None:
        return path
    if not ending and not stem.startswith("ssm_") and "." not in stem:
        ending = ".weight"
    shared = any(word in f"{module}." for word in _SHARED) and stem in ("ffn_gate", "ffn_up", "ffn_down")
    return f"{stem}{'_shexp' if shared else ''}{ending}"


_CORRECTED: Final = frozenset({
    "axk1", "axk2", "bailing_hybrid", "deepseek_ref", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots1", "dots3_note",
    "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4", "kimi_k2", "kimi_k25",
    "kimi_k3", "kimi_linear", "kimi_vl", "lfm2_moe", "mimo_v2_flash", "minimax_m2", "minimax_m3", "minimax_m3_vl", "nemotron_h",
    "solar_open", "step3p5", "step3p7",
})  # fmt: skip
"""Model types whose routers have a correction for each expert that transformers keeps as a buffer: the checkpoints have it."""
_CORRECTED_CLASSES: Final = frozenset({"BailingMoeV2ForCausalLM"})
"""Classes with such a correction whose model type has others without."""
_ROUTER: Final = "ffn_gate_inp.weight"
_CORRECTION: Final = "exp_probs_b.bias"
_BARE: Final = frozenset({"hy_v3"})
"""Model types whose checkpoints have the correction as ``mlp.expert_bias``: the converter adds no ending to that."""


def made_tensors(model: ModelSpec, families: Sequence[Family]) -> Iterator[Family]:
    """The tensors that ``generate_extra_tensors`` writes (conversion/*.py), and buffers. ``families`` are the parameters'."""
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


FOUR_BITS: Final = frozenset({"mxfp4", "nvfp4"})
"""Formats of checkpoints that the converter only repacks."""

_PARTS: Final = (Part.LANGUAGE, Part.ENCODER, Part.MTP)
_SPLIT: Final = frozenset({"InternLM2ForCausalLM", "BaichuanForCausalLM", "BaiChuanForCausalLM", "BailingMoeForCausalLM"})
"""Classes whose fused queries, keys and values the converter pulls apart."""
_KEPT_KV_B: Final = frozenset({"minicpm3", "plm"})
"""Model types whose ``kv_b_proj`` it keeps in one."""
_FUSED_EXPERTS: Final = frozenset({"granite_swa", "gemma4", "gemma4_text", "gemma4_unified_text"})
"""Model types whose gates and ups of experts it keeps in one tensor."""
_GATE_UP: Final = "ffn_gate_up_exps.weight"
_WITHOUT_MTP: Final = frozenset(
    {"deepseek_v3", "kimi_k2", "axk1", "mimo", "deepseek_v4", "deepseek_ref", "minimax_m2", "minimax_m3_vl"}
)
"""Model types whose layers for multi-token prediction it leaves out."""
_FLOAT_ROLES: Final = (WeightRole.ROUTER, WeightRole.NORM, WeightRole.BIAS, WeightRole.CONV)
_FLOAT_STEMS: Final = frozenset({"indexer.proj.weight", "position_embd.weight", "token_types.weight", "ffn_gate_inp.weight"})
_ONE_COUNT: Final = ("qwen3_next", "qwen3_5", "minimax_")
"""Model types of which the converter writes one count of heads, though some layers have none."""
_ARCHITECTURES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), "falcon"),
    **dict.fromkeys(("bailing_moe_v3", "bailingmoe3"), "bailingmoe3"),
    "glm5_next": "glm5-next",
    "mistral": "llama",
    "nemotron-nas": "deci",
}
"""Model type -> architecture, where the rule of a mix has an exception for it and the names differ."""


Pieces = Mapping[tuple[str, Part, str], Mapping[int, "tuple[Piece, ...]"]]
"""(kind of block, part, path) -> number of the layer in its block -> pieces."""


class Piece(Record):
    """A weight of one layer, or a part of it, in a tensor of the file: its family, its layer there, and how many numbers it is."""

    family: int
    layer: int
    elements: int


class Conversion(Record):
    """The file, and where the weights of the model lie in it."""

    families: tuple[Family, ...]
    facts: MixFacts
    read_pieces: Callable[[], Pieces]
    mtp_from: int
    """The number of the first layer for multi-token prediction."""

    kept: Mapping[int, str] = field(default_factory=dict)
    """Families that the checkpoint has in four bits, and that stay so unless a mix makes them smaller."""

    @cached_property
    def pieces(self) -> Pieces:
        """The pieces of each weight, by its layers."""
        return self.read_pieces()

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """The tensors by what the mixes ask of them."""
        return placed(self.families, self.facts)


def converted(model: ModelSpec) -> Conversion:
    """The file of a model whose weights are counted."""
    return model.once("converted to GGUF", lambda: _converted(model))


def _converted(model: ModelSpec) -> Conversion:
    blocks = () if model.counted is None else model.counted.blocks
    blocks = tuple(block for block in blocks if block.part in _PARTS)
    if model.model_type in _WITHOUT_MTP:
        blocks = tuple(block for block in blocks if block.part is not Part.MTP)
    trunk = len(model.stack)
    families: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    numbers: dict[tuple[str, tuple[int, ...], str], int] = {}
    sources: dict[int, tuple[Block, Weight]] = {}
    rows: list[_Row] = []
    for block in blocks:
        own = range(block.count) if block.layers is None else block.layers
        layers = _layers(block, own, model, trunk)
        four = any(weight.path.startswith("norm_2.") for weight in block.weights)
        for weight in block.weights:
            found = []
            for stem, shape, elements in _tensors(block, weight, model, four_norms=four):
                key = (stem, shape, _type(stem, shape, weight))
                if key in numbers and stem != _GATE_UP and not set(layers).isdisjoint(families[key] or (-1,)):
                    # Two weights cannot share a name: the second keeps its own.
                    key = (f"{block.part.value}.{weight.path}", shape, key[2])
                place = numbers.setdefault(key, len(numbers))
                sources.setdefault(place, (block, weight))
                families.setdefault(key, []).extend(layers)
                found.append((place, elements))
            rows.append(((block.kind, block.part, weight.path), own, layers or (-1,) * len(own), found))
    made = tuple(
        Family(stem=stem, shape=shape, type=form, layers=tuple(sorted(set(layers))))
        for (stem, shape, form), layers in families.items()
    )
    made = (*made, *made_tensors(model, made)) if made else made
    return Conversion(
        families=made,
        facts=_facts(model, made, trunk),
        mtp_from=trunk,
        kept=_kept(model, sources),
        read_pieces=partial(_pieces, rows),
    )


_Row = tuple[tuple[str, Part, str], Sequence[int], Sequence[int], list[tuple[int, int]]]
"""The key of a weight, the numbers of its layers in its block and in the file, and the family and elements of each of its pieces."""


def _pieces(rows: Iterable[_Row]) -> Pieces:
    pieces: dict[tuple[str, Part, str], dict[int, tuple[Piece, ...]]] = {}
    for key, own, layers, found in rows:
        places = pieces.setdefault(key, {})
        for number, layer in zip(own, layers, strict=True):
            places[number] = tuple(Piece(family=place, layer=layer, elements=elements) for place, elements in found)
    return pieces


def _kept(model: ModelSpec, sources: Mapping[int, tuple[Block, Weight]]) -> dict[int, str]:
    """The families whose weights are in four bits already, which the converter repacks; what else is quantised it makes float again."""
    if model.quantization is None:
        return {}
    from hwcalc.quantization.config import read_scheme

    scheme = read_scheme(model.quantization, model.facts.expert_dtype)
    if scheme is None:
        return {}
    kept = {}
    for index, (block, weight) in sources.items():
        names = {form.name for _, form in scheme.formats(block, weight, BF16)}
        if names <= FOUR_BITS and len(names) == 1:
            kept[index] = names.pop()
    return kept


def _layers(block: Block, own: Sequence[int], model: ModelSpec, trunk: int) -> tuple[int, ...]:
    """The numbers of the layers in the file; empty outside the layers. All parts of a module for prediction are one block there."""
    if block.part is Part.MTP:
        modules = model.facts.mtp_modules
        return tuple(trunk + (number if modules is None else min(number, modules - 1)) for number in own)
    return tuple(own) if block.layers is not None or block.count > 1 else ()


def _tensors(block: Block, weight: Weight, model: ModelSpec, *, four_norms: bool) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, shape (row length first) and elements of each tensor that a weight becomes a part of."""
    inside = block.part is Part.MTP or block.layers is not None or block.count > 1
    if weight.role is WeightRole.ROUTER and "shared_expert_gate" not in weight.path:
        stem = f"ffn_gate_inp.{'bias' if weight.path.endswith('.bias') else 'weight'}"
    else:
        stem = gguf_stem(weight.path, block.kind, model.model_type, inside=inside, four_norms=four_norms)
        if weight.path.startswith("mlp.router.bias"):
            stem = "ffn_gate_inp.bias"
    shape = tuple(reversed(weight.shape))
    if weight.copies > 1:
        shape = (*shape, weight.copies)
        fused = model.model_type in _FUSED_EXPERTS and stem in ("ffn_gate_exps.weight", "ffn_up_exps.weight")
        if fused:
            yield _GATE_UP, (shape[0], 2 * shape[1], *shape[2:]), weight.elements
            return
    if len(shape) == 3 and weight.role is WeightRole.CONV:
        # Kimi's keep the middle dimension; states of Mamba-2 get one.
        shape = shape if stem.startswith("ssm_conv1d_") else tuple(length for length in shape if length > 1) or (1,)
    if stem in ("ssm_a", "ssm_d") and len(shape) == 1 and block.kind == "mamba":
        paths = [one.path for one in block.weights]
        second = any(path.endswith("dt_bias") for path in paths) and not any("bcdt" in path for path in paths)
        shape = (1, *shape) if second else shape
    if stem == "attn_qkv.weight" and (model.architecture in _SPLIT or "qkvz" in weight.path):
        yield from _divided(block, weight, model)
    elif stem == "attn_kv_b.weight" and model.model_type not in _KEPT_KV_B:
        yield from _latent(block, weight, model)
    elif weight.path.endswith(("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight")):
        # Without experts beside it, a shared expert is the feed-forward part itself.
        blocks = () if model.counted is None else model.counted.blocks
        shared = "_shexp" if any(one.role is WeightRole.EXPERT for each in blocks for one in each.weights) else ""
        if weight.path.endswith("output_linear.weight"):
            yield f"ffn_down{shared}.weight", shape, weight.elements
        else:
            for name in ("gate", "up"):
                yield f"ffn_{name}{shared}.weight", (shape[0], shape[1] // 2), weight.elements // 2
    else:
        yield stem, shape, weight.elements


def _divided(block: Block, weight: Weight, model: ModelSpec) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Fused projections pulled apart. The output has a column for each number of the queries."""
    rows, columns = weight.shape
    out = next(one.shape[1] for one in block.weights if len(one.shape) == 2 and one is not weight and one.shape[0] == columns)
    if "qkvz" in weight.path:
        # Queries, keys and values stay together; the gate is as wide as the output's rows.
        yield "attn_qkv.weight", (columns, rows - out), (rows - out) * columns
        yield "attn_gate.weight", (columns, out), out * columns
        return
    rest = (rows - out) // 2
    for name, width in (("q", out), ("k", rest), ("v", rest)):
        yield f"attn_{name}.weight", (columns, width), width * columns


def _latent(block: Block, weight: Weight, model: ModelSpec) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Keys and values out of the latent, one matrix each for every head: rows of the keys are as long as a key without rotation."""
    from hwcalc.formulas.latent import ExpandedLatentAttention, LatentAttention

    rows, rank = weight.shape
    kinds = [group.kind for group in model.stack.groups if isinstance(group.kind, (LatentAttention, ExpandedLatentAttention))]
    kind = next((one for one in kinds if one.num_attention_heads * (one.qk_nope_head_dim + one.v_head_dim) == rows), None)
    if kind is None:
        yield "attn_kv_b.weight", (rank, rows), weight.elements
        return
    heads, nope, value = kind.num_attention_heads, kind.qk_nope_head_dim, kind.v_head_dim
    yield "attn_k_b.weight", (nope, rank, heads), heads * nope * rank
    yield "attn_v_b.weight", (rank, value, heads), heads * value * rank


def _type(stem: str, shape: tuple[int, ...], weight: Weight) -> str:
    """32 bits for vectors and for what the converter keeps exact; 16 for all else."""
    dimensions = sum(length > 1 for length in shape[1:]) + 1
    exact = dimensions <= 1 or weight.role in _FLOAT_ROLES or stem in _FLOAT_STEMS or stem.endswith("_norm.weight")
    return "f32" if exact or not stem.endswith(".weight") else "bf16"


def _facts(model: ModelSpec, families: tuple[Family, ...], trunk: int) -> MixFacts:
    experts = max(
        (family.shape[2] for family in families if family.stem.endswith("_exps.weight") and len(family.shape) > 2), default=0
    )
    kind = model.model_type
    predicting = 0 if kind in _WITHOUT_MTP else model.facts.mtp_modules or 0
    first = next(iter(model.stack), ())
    heads = next((one for one in first if isinstance(one, AttentionKind)), None)
    latent = next((one for one in first if hasattr(one, "num_attention_heads")), None)
    if heads is None and latent is None and kind.startswith(_ONE_COUNT):
        heads = next((group.kind for group in model.stack.groups if isinstance(group.kind, AttentionKind)), None)
    gqa = heads.num_attention_heads // heads.num_key_value_heads if heads else getattr(latent, "num_attention_heads", 0)
    return MixFacts(
        arch=_ARCHITECTURES.get(kind, kind),
        n_layer_all=max(trunk + predicting, 1 + max((number for family in families for number in family.layers), default=-1)),
        n_expert=experts,
        n_gqa=gqa,
    )

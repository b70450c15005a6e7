"""The GGUF file that llama.cpp's converter makes of a model (conversion/*.py, 0c1e57098): its tensors, with their shapes, in 16 or 32 bits.

Experts are merged into one tensor, fused projections are split or kept, and the matrix that takes keys and values out of a latent becomes
two. Vectors, norms, routers and convolutions stay in 32 bits. Towers lie in a file of their own, which is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Final

from msgspec import field

from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.formats import BF16
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole
from hwcalc.model import ModelSpec
from hwcalc.quantization.gguf_names import gguf_stem
from hwcalc.quantization.made_tensors import made_tensors
from hwcalc.quantization.mix_places import Family, MixFacts, Placed, placed

__all__ = ["FOUR_BITS", "Conversion", "Piece", "converted"]

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
    elif weight.path.endswith("shared_mlp.input_linear.weight"):
        for name in ("gate", "up"):
            yield f"ffn_{name}{_shared(model)}.weight", (shape[0], shape[1] // 2), weight.elements // 2
    elif weight.path.endswith("shared_mlp.output_linear.weight"):
        yield f"ffn_down{_shared(model)}.weight", shape, weight.elements
    else:
        yield stem, shape, weight.elements


def _shared(model: ModelSpec) -> str:
    """What the name of a shared expert ends in. Without experts beside it, it is the feed-forward part itself."""
    blocks = () if model.counted is None else model.counted.blocks
    return "_shexp" if any(weight.role is WeightRole.EXPERT for block in blocks for weight in block.weights) else ""


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

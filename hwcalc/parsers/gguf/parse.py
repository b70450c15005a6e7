"""A GGUF file as a :class:`~hwcalc.model.ModelSpec`: layers from the metadata, parameters and weight bytes from the tensors.

Layers are read twice: :func:`published_layers` is what the model is, whatever runs it; :func:`cached_layers` is what llama.cpp
keeps for each block of the file. There a window that it ignores is no window, and layers for multi-token prediction keep nothing
in the main context. Tensors are blocks of weights under their names without the number of the layer: ``attn_q.weight``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import ClassVar, Final

from hwcalc import formulas
from hwcalc.errors import ConfigError
from hwcalc.formulas import FullAttention, Layer, LayerKind, NoCache, SharedCache, Stack
from hwcalc.formulas.tensor import CacheTensor
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, Weights
from hwcalc.model import (
    GGUF_ARCHITECTURE,
    VOCABULARY,
    GgufFacts,
    GgufTensor,
    ModelFacts,
    ModelSpec,
    Parameters,
    RawModel,
    gguf_weights,
)
from hwcalc.parsers.config import check_size
from hwcalc.parsers.gguf.hparams import Hparams, read_hparams
from hwcalc.quantization.ggml import FLOAT_TYPES, ROTARY, TABLES, part_of_layer, placed, stated_type, without_prefix

_PARTS: Final = {"v.": Part.VISION, "a.": Part.AUDIO, "mm.": Part.PROJECTOR, "enc.": Part.ENCODER}
_HEADS: Final = frozenset({"output.weight", "output.bias", "cls.output.weight"})
_OUTSIDE: Final = {WeightRole.EMBEDDING: "embedding", WeightRole.HEAD: "head", WeightRole.NORM: "norm"}
_CONVS: Final = frozenset({"conv1d", "shortconv", "conv"})
_NORM: Final = r"norm|(^|_)ln(_|$)"


def counted_weights(read: Hparams, tensors: Sequence[GgufTensor]) -> Weights | None:
    """All weights of the file; ``None`` if its tensors are not known. Layers with equal tensors are one block."""
    if not tensors:
        return None
    drafts_from = read.n_layer // read.loops
    outside: dict[tuple[str, Part], list[Weight]] = {}
    layers: dict[tuple[str, Part, int], list[Weight]] = {}
    for tensor in tensors:
        path, number = placed(tensor.name)
        if path.startswith(ROTARY):
            continue
        part = next((part for prefix, part in _PARTS.items() if path.startswith(prefix)), Part.LANGUAGE)
        weight = _weight(read, path, tensor.shape or (1,))
        if number < 0:
            outside.setdefault((_OUTSIDE.get(weight.role, "outside"), part), []).append(weight)
            continue
        part = Part.MTP if part is Part.LANGUAGE and number >= drafts_from else part
        kind = "mtp" if without_prefix(path).startswith("nextn.") else part_of_layer(path)
        layers.setdefault((kind, part, number), []).append(weight)
    alike: dict[tuple[str, Part, tuple[Weight, ...]], list[int]] = {}
    for (kind, part, number), weights in sorted(layers.items()):
        alike.setdefault((kind, part, tuple(sorted(weights, key=_path))), []).append(number)
    once = (Block(kind=kind, weights=tuple(sorted(weights, key=_path)), part=part) for (kind, part), weights in outside.items())
    repeated = (
        Block(kind=kind, weights=same, part=part, count=len(numbers), layers=tuple(numbers))
        for (kind, part, same), numbers in alike.items()
    )
    return Weights(blocks=(*once, *repeated))


_path = attrgetter("path")


def _weight(read: Hparams, path: str, shape: tuple[int, ...]) -> Weight:
    """A tensor as a weight: ggml counts the row length first. The experts of a layer lie side by side in one tensor."""
    whole = tuple(reversed(shape))
    module, _, last = path.removesuffix(".weight").rpartition(".")
    stem = module if last == "bias" else last
    experts = stem.endswith("_exps")
    role = _role(path, stem, whole)
    if not experts or len(whole) < 2:
        return Weight(path=path, shape=whole, role=role)
    copies, one = whole[0], whole[1:]
    role = WeightRole.EXPERT if len(one) > 1 else role
    return Weight(path=path, shape=one, role=role, copies=copies, active=min(copies, read.n_expert_used or copies))


def _role(path: str, stem: str, shape: tuple[int, ...]) -> WeightRole:
    if path in TABLES:
        return WeightRole.EMBEDDING
    if path in _HEADS:
        return WeightRole.HEAD
    if re.search(_NORM, stem):
        return WeightRole.NORM
    if path.endswith(".bias"):
        return WeightRole.BIAS
    if stem.startswith("ffn_gate_inp"):
        return WeightRole.ROUTER
    if stem.rpartition("_")[2] in _CONVS:
        return WeightRole.CONV
    return WeightRole.LINEAR if len(shape) == 2 and path.endswith(".weight") else WeightRole.OTHER


NOTHING: Final[Layer] = (NoCache(),)

CSA_RATIO: Final = 4
"""The ratio whose compressor overlaps (``DSV4_CSA_RATIO``, src/llama-kv-cache-dsv4.cpp)."""


class NoHeads(LayerKind):
    """A layer that llama.cpp counts among those with a cache although it has no key/value heads."""

    name: ClassVar[str] = NoCache.name
    title: ClassVar[str] = "attention without key/value heads"
    keeps: ClassVar[str] = "Nothing; without flash attention, values as wide as those of the widest layer."
    source: ClassVar[str] = "llama.cpp, src/llama-kv-cache.cpp"

    def tensors(self) -> tuple[CacheTensor, ...]:
        return ()


def published_layers(read: Hparams) -> tuple[Layer, ...]:
    """The layers of the model, without those for multi-token prediction."""
    count = read.dec_n_layer if read.architecture.encoder_decoder else read.n_layer
    return tuple(_published(read, layer) for layer in range(count))


def _published(read: Hparams, layer: int) -> Layer:
    row = read.architecture
    if row.memory == "none":
        return NOTHING
    if row.encoder_decoder:
        own = _attention(read, min(layer, read.n_layer_all - 1), None)
        return (own, formulas.CrossAttention(**_heads(read, 0))) if isinstance(own, FullAttention) else (own,)
    if row.memory == "shared" or (read.kv_from_start is not None and layer >= read.kv_from_start):
        return (SharedCache(),)
    kinds: list[LayerKind] = []
    if read.is_recurrent[layer]:
        kinds.append(_state(read))
        if row.recurrence != "beside":
            return tuple(kinds)
    if row.recurrence == "no-keys-no-ffn" and read.n_ff[layer]:
        return NOTHING
    # The window is that of the file; 0 tokens are none.
    window = read.sliding_window or read.n_swa
    slides = window and (row.ignores_window or (read.named_swa or read.is_swa)[layer])
    kinds.insert(0, _attention(read, layer, window + row.window_without_query if slides else None))
    # Beside each key there is a gate.
    indexer = (_indexer(read, extra=1, quantized=row.memory != "msa"),) if has_indexer(read, layer) else ()
    return (*kinds, *indexer)


def _heads(read: Hparams, layer: int) -> dict[str, int]:
    """The dimensions of the attention of a layer. Query heads are not cached, so that a file may leave them out."""
    return {
        "num_attention_heads": max(1, read.n_head[layer], read.n_head_kv[layer]),
        "num_key_value_heads": read.n_head_kv[layer],
        "head_dim": read.head_width_k(layer),
        "v_head_dim": read.head_width_v(layer),
    }


@lru_cache(maxsize=256)
def _alike(kind: type[LayerKind], **numbers: int) -> LayerKind:
    """Equal layers are one object: they are looked up again and again."""
    return kind(**numbers)


def _softmax(read: Hparams, heads: Mapping[str, int], window: int | None) -> LayerKind:
    """Keys and values of all tokens, or of those in a window."""
    if window is None:
        return _alike(FullAttention, **heads)
    if read.swa_type == "chunked":
        return _alike(formulas.ChunkedAttention, **heads, chunk=window)
    return _alike(formulas.SlidingAttention, **heads, window=window)


def _attention(read: Hparams, layer: int, window: int | None) -> LayerKind:
    """Keys and values of one layer, or its latent."""
    row = read.architecture
    if row.memory == "compressed":
        return _compressed(read, layer)
    if row.latents != "none":
        return _latent(read, layer, window)
    heads = _heads(read, layer)
    if not all(heads.values()):
        return NoCache()
    return _softmax(read, heads, window)


def _latent(read: Hparams, layer: int, window: int | None) -> LayerKind:
    """A latent and a rotary key. In older files the width of a key is that of one head, and the rotary part is named apart."""
    swa = read.is_swa[layer] and read.kv_lora_rank_swa > 0
    rank = read.kv_lora_rank_swa if swa else read.kv_lora_rank
    rope = read.head_width_k(layer) - rank if read.is_mla else read.n_rot
    key = read.key_length_mla_swa if swa else read.key_length_mla or read.head_k
    value = read.value_length_mla_swa if swa else read.value_length_mla or read.head_v
    return formulas.LatentAttention(
        num_attention_heads=max(1, read.n_head[layer]),
        kv_lora_rank=rank,
        qk_rope_head_dim=max(0, rope),
        qk_nope_head_dim=max(0, key - rope),
        v_head_dim=value,
        window=window,
    )


def _compressed(read: Hparams, layer: int) -> LayerKind:
    ratio = read.compress_ratios[layer]
    indexed = ratio == CSA_RATIO
    return formulas.CompressedAttention(
        num_attention_heads=max(1, read.n_head[layer]),
        head_dim=read.head_width_k(layer),
        window=read.n_swa,
        compress_ratio=ratio or None,
        overlap=indexed,
        index_n_heads=read.indexer_n_head if indexed else None,
        index_head_dim=read.indexer_head_size if indexed else None,
        index_topk=read.indexer_top_k or None if indexed else None,
    )


def has_indexer(read: Hparams, layer: int) -> bool:
    """True if a layer keeps keys of an indexer of its own."""
    row = read.architecture
    if not row.indexer or row.memory == "compressed" or not read.indexer_head_size:
        return False
    if row.memory == "msa":
        return layer >= read.n_layer_dense_lead
    return layer < read.n_layer and read.indexer_full[layer] and not read.is_recurrent[layer] and bool(read.indexer_top_k)


def _indexer(read: Hparams, *, extra: int, quantized: bool) -> LayerKind:
    """An indexer. Where it scores pools of tokens, so many vectors as wide as a key lie beside each key."""
    return formulas.SparseIndexer(
        index_n_heads=max(1, read.indexer_n_head),
        index_head_dim=read.indexer_head_size,
        index_extra_elements=extra * read.indexer_head_size if read.indexer_kpool else 0,
        index_topk=read.indexer_top_k or None,
        index_quantized=quantized,
    )


def _state(read: Hparams) -> LayerKind:
    """The recurrent state of a layer."""
    states, inner, rank = read.architecture.states, read.ssm_d_inner, read.ssm_dt_rank
    # The number of heads, where it divides the width; else one head of the whole width, which keeps as much.
    heads = rank if rank and inner % rank == 0 else 1
    if states == "mamba1":
        return formulas.Mamba1(d_inner=inner, d_state=read.ssm_d_state, d_conv=read.ssm_d_conv)
    if states == "mamba2":
        return formulas.Mamba2(
            num_heads=heads,
            head_dim=inner // heads,
            d_state=read.ssm_d_state,
            n_groups=read.ssm_n_group,
            d_conv=read.ssm_d_conv,
        )
    if states == "delta":
        return formulas.GatedDeltaNet(
            num_key_heads=read.ssm_n_group,
            num_value_heads=heads,
            key_head_dim=read.ssm_d_state,
            value_head_dim=inner // heads,
            d_conv=read.ssm_d_conv,
        )
    if states == "kda":
        return formulas.KimiDeltaAttention(num_heads=read.n_head[0], head_dim=read.kda_head_dim, d_conv=read.ssm_d_conv or 4)
    if states == "wkv":
        return formulas.RwkvMatrix(
            hidden_size=read.n_embd,
            num_heads=max(1, read.n_embd // read.wkv_head_size),
            head_dim=read.wkv_head_size,
            token_shifts=1 if read.token_shift_count == 1 else None,
        )
    if states == "short-conv":
        return formulas.ShortConvolution(channels=read.n_embd, d_conv=read.shortconv_l_cache)
    return formulas.LightningAttention(num_heads=read.n_head[0], head_dim=read.head_la)


def cached_layers(read: Hparams, *, drafts: bool = False) -> tuple[Layer, ...]:
    """The layers that llama.cpp caches for each block of the file: ``create_memory`` (src/llama-model.cpp).

    ``drafts`` asks for the context of multi-token prediction (``ctx_type=mtp``) in place of the main one.
    """
    columns = (read.n_head, read.n_head_kv, read.n_ff, read.is_swa, read.is_recurrent, read.indexer_full, read.compress_ratios)
    starts = (read.n_layer, read.n_layer_dense_lead, read.n_layer_all if read.kv_from_start is None else read.kv_from_start)
    said = [column for column in columns if len(column) == read.n_layer_all]
    # Blocks of which the file says the same keep the same.
    made: dict[tuple[object, ...], Layer] = {}
    out: list[Layer] = []
    for first, end in pairwise(sorted({0, read.n_layer_all, *(start for start in starts if 0 < start < read.n_layer_all)})):
        for layer, key in enumerate(zip(*(column[first:end] for column in said), [first] * (end - first), strict=True), first):
            if key not in made:
                made[key] = _cached(read, layer, drafts=drafts) or NOTHING
            out.append(made[key])
    return tuple(out)


def _cached(read: Hparams, layer: int, *, drafts: bool) -> Layer:
    row, is_draft = read.architecture, layer >= read.n_layer
    if row.memory == "shared":
        return (SharedCache(),)
    dense = drafts and row.dense_mtp
    kinds: list[LayerKind] = []
    if _has_attention(read, layer, drafts=drafts):
        kinds.append(_cached_attention(read, layer, drafts=drafts))
    if row.memory in ("recurrent", "hybrid", "hybrid-indexer") and not dense and not is_draft and read.is_recurrent[layer]:
        kinds.append(_state(read))
    # The draft head of GLM-5-Next is a sparse layer; others are dense.
    if row.memory == "hybrid-indexer" and is_draft if dense else has_indexer(read, layer):
        kinds.append(_indexer(read, extra=2, quantized=False))
    return tuple(kinds)


def _has_attention(read: Hparams, layer: int, *, drafts: bool) -> bool:
    """True if the filter of the attention cache lets a layer through."""
    row, is_draft = read.architecture, layer >= read.n_layer
    memory = row.memory
    if memory in ("none", "recurrent"):
        return False
    if memory in ("msa", "dsa-or-attention"):
        return True
    if memory == "compressed":
        return is_draft or not drafts
    hybrid = memory in ("hybrid", "hybrid-indexer") and not (drafts and row.dense_mtp)
    if not hybrid:
        # A file of nothing but draft layers, or one whose last block is a router, has no main part to leave out.
        split = read.n_layer_nextn and read.n_layer and read.router_layer is None
        return is_draft == drafts if split else True
    if row.recurrence == "beside":
        return True
    if read.is_recurrent[layer] or (row.trunk_only and is_draft):
        return False
    return row.recurrence != "no-keys-no-ffn" or not read.n_ff[layer]


def _cached_attention(read: Hparams, layer: int, *, drafts: bool) -> LayerKind:
    row = read.architecture
    if read.kv_from_start is not None and layer >= read.kv_from_start:
        return SharedCache()
    if row.memory == "compressed" and not drafts:
        return _compressed(read, layer)
    window = max(1, read.n_swa) if read.is_swa[layer] else None
    width = read.n_embd_k_gqa(layer)
    if not width and not read.n_embd_v_gqa(layer):
        return NoHeads()
    heads = _heads(read, layer)
    if read.is_mla:
        # One vector for all heads; more heads than one make it so many times as wide.
        rope = min(read.n_rot, width - 1)
        return formulas.LatentAttention(
            num_attention_heads=heads["num_attention_heads"],
            kv_lora_rank=width - rope,
            qk_rope_head_dim=rope,
            qk_nope_head_dim=max(0, read.key_length_mla - rope),
            v_head_dim=read.value_length_mla,
            window=window,
        )
    return _softmax(read, heads, window)


_READING: Final = "llamacpp"
_FLOATS: Final = {name: dtype for dtype, name in FLOAT_TYPES.items()}

_BEARING: Final = (GGUF_ARCHITECTURE, VOCABULARY)
"""Keys outside the architecture's own that cache and weights depend on."""


def parse_gguf(raw: RawModel) -> ModelSpec:
    """Read a description whose config is the metadata of a GGUF file.

    Raises :class:`~hwcalc.errors.UnknownArchitectureError` for an architecture that llama.cpp does not know, and
    :class:`~hwcalc.errors.ConfigError` for a value that makes no sense.
    """
    keys = raw.config
    read = read_hparams(keys, raw.tensors)
    try:
        published, cached = published_layers(read), cached_layers(read)
    except ValueError as error:
        raise ConfigError(f"the metadata of {read.arch} do not make sense: {error}.") from error
    counted, files = counted_weights(read, raw.tensors), keys.get("split.count")
    weights = gguf_weights(raw.tensors, max(1, files) if type(files) is int else 1, "GGUF header") if raw.tensors else None
    parameters = raw.parameters
    if parameters is None and counted is not None:
        parameters = Parameters(total=counted.total, active=counted.active, mtp=counted.mtp or None)
    spec = ModelSpec(
        id=raw.id,
        source=raw.source,
        location=raw.location,
        revision=raw.revision,
        model_type=read.arch,
        architecture=None,
        stack=Stack(published),
        dtype=_FLOATS.get(stated_type(keys) or ""),
        max_position_embeddings=read.n_ctx_train or None,
        hidden_size=read.n_embd,
        vocab_size=read.n_vocab or None,
        parameters=parameters,
        weights=raw.weights or weights,
        counted=counted,
        notes=raw.notes,
        readings={_READING: Stack(cached)} if published != cached else {},
        facts=ModelFacts(
            experts_per_token=read.n_expert_used,
            mtp_modules=read.n_layer_nextn or None,
            sliding_window=read.sliding_window or None,
        ),
        gguf=GgufFacts(keys=keys, tensors=raw.tensors),
        bearing={key: value for key, value in keys.items() if key.startswith(f"{read.arch}.") or key in _BEARING},
        config=keys,
    )
    check_size((spec,))
    return spec

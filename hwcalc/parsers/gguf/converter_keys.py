"""What llama.cpp's converter reads of a config, and the keys that it writes for most architectures: sizes, heads, experts, states.

A converter reads the level of a config that describes the language model, and the layers that a parser has read from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

from hwcalc import formulas
from hwcalc.errors import ConfigError
from hwcalc.formulas import AttentionKind, LayerKind, SharedCache, SlidingAttention
from hwcalc.formulas.record import Record
from hwcalc.model import VOCABULARY, ModelSpec, RawModel
from hwcalc.parsers.config import Config

_CONTEXT: Final = (
    "max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length", "model_max_length", "max_seq_len",
)  # fmt: skip
_FEED_FORWARD: Final = ("prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size", "n_inner", "hidden_dim")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_USED: Final = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")


def common_keys(source: Source) -> Keys:
    """The keys that the converter writes for every class, if the config has them (conversion/base.py)."""
    keys: Keys = {
        "block_count": source.layers,
        "context_length": source.number(*_CONTEXT),
        "embedding_length": source.width,
        "feed_forward_length": _feed_forward(source),
        "expert_count": source.number(*_EXPERTS),
        "expert_used_count": next((count for key in _USED if (count := _one(source, key)) is not None), None),
        "expert_feed_forward_length": _one(source, "moe_intermediate_size"),
        "expert_shared_count": next((count for key in _SHARED if (count := _one(source, key)) is not None), None),
        "leading_dense_block_count": source.number("first_k_dense_replace"),
        "hyper_connection.count": source.number("hc_mult", "hc_count"),
        "attention.q_lora_rank": source.number("q_lora_rank"),
        VOCABULARY: source.number("vocab_size"),
    }
    if source.get("is_causal") is False:
        keys["attention.causal"] = False
    return {key: value for key, value in keys.items() if value is not None} | head_keys(source) | kind_keys(source)


def _feed_forward(source: Source) -> int | list[int] | None:
    """One width, or one per layer (Gemma 3n). A null hides the keys behind it."""
    for key in _FEED_FORWARD:
        value = source.get(key)
        if value is None and key in source.config.raw:
            return None
        if isinstance(value, (list, tuple)):
            return source.alike(source.config.integers(key, length=source.layers) or [0])
        if value is not None:
            return source.number(key)
    return None


def _one(source: Source, key: str) -> int | None:
    """A number that some files repeat for each layer (Hunyuan). The converter asks that all are the same."""
    if not isinstance(source.get(key), (list, tuple)):
        return source.number(key)
    values = source.config.integers(key) or [0]
    if len(set(values)) != 1:
        raise source.config.error_in_words(
            key, "a list of different numbers", "the same for all layers, as llama.cpp's converter asks"
        )
    return values[0]


def head_keys(source: Source) -> Keys:
    """Heads and their widths. A layer without attention has 0 key/value heads. Layers that slide may have widths of their own."""
    heads = [each for each in source.heads if each is not None]
    if not heads:
        return {}
    full = source.example(slides=False) or heads[0]
    sliding = source.example(slides=True) or full
    # The heads of a layer that reads another's cache are set by the row of the table.
    none = full if source.shares else Heads(0, 0, 0, 0)
    every = [each or none for each in source.heads]
    keys: Keys = {
        "attention.head_count": source.alike([each.queries for each in heads]),
        "attention.head_count_kv": source.alike([each.keys for each in every]),
        "attention.key_length": full.key_length,
        "attention.value_length": full.value_length,
    }
    if len({each.queries for each in heads}) > 1:
        keys["attention.head_count"] = [each.queries for each in every]
    if (sliding.key_length, sliding.value_length) != (full.key_length, full.value_length):
        keys |= {"attention.key_length_swa": sliding.key_length, "attention.value_length_swa": sliding.value_length}
    return keys


def kind_keys(source: Source) -> Keys:
    """The keys of states, latents and indexers."""
    if all(isinstance(group.kind, AttentionKind) for group in source.model.stack.groups):
        # Nobody need import the kinds that have them.
        return {}
    keys: Keys = {}
    if latent := source.first(formulas.LatentAttention):
        keys |= {
            "attention.kv_lora_rank": latent.kv_lora_rank,
            "attention.key_length_mla": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
            "attention.value_length_mla": latent.v_head_dim,
            "rope.dimension_count": latent.qk_rope_head_dim,
        }
    indexers: list[formulas.SparseIndexer | formulas.CompressedAttention] = []
    if indexer := source.first(formulas.SparseIndexer):
        indexers.append(indexer)
    indexers += [each for each in source.kinds(formulas.CompressedAttention) if each and each.index_head_dim][:1]
    for each in indexers:
        keys |= {
            "attention.indexer.head_count": each.index_n_heads or 0,
            "attention.indexer.key_length": each.index_head_dim or 0,
        }
        keys |= {} if each.index_topk is None else {"attention.indexer.top_k": each.index_topk}
    return keys | _state_keys(source)


def _state_keys(source: Source) -> Keys:
    names = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count")
    if mamba := source.first(formulas.Mamba1):
        keys = ("time_step_rank", "dt_rank", "mamba_dt_rank")
        rank = None if isinstance(source.get(*keys), str) else source.number(*keys)
        sizes = (mamba.d_conv, mamba.d_inner, mamba.d_state, rank or -(-source.width // 16))
        return dict(zip(names[:4], sizes, strict=True))
    if mamba2 := source.first(formulas.Mamba2):
        inner = mamba2.num_heads * mamba2.head_dim
        return dict(zip(names, (mamba2.d_conv, inner, mamba2.d_state, mamba2.num_heads, mamba2.n_groups), strict=True))
    if delta := source.first(formulas.GatedDeltaNet):
        inner = delta.num_value_heads * delta.value_head_dim
        heads, groups = delta.num_value_heads, delta.num_key_heads
        return dict(zip(names, (delta.d_conv, inner, delta.key_head_dim, heads, groups), strict=True))
    if kimi := source.first(formulas.KimiDeltaAttention):
        return {"ssm.conv_kernel": kimi.d_conv, "kda.head_dim": kimi.head_dim}
    if rwkv := source.first(formulas.RwkvMatrix):
        return {"wkv.head_size": rwkv.head_dim, "attention.head_count": 0}
    if short := source.first(formulas.ShortConvolution):
        return {"shortconv.l_cache": short.d_conv}
    return {}


def pattern(source: Source, layers: int | None = None, *, beyond: bool = False) -> list[bool]:
    """For each layer, True if it slides, as the layers say; those of multi-token prediction behind them as in ``beyond``."""
    types = source.words("layer_types")
    if types is not None and source.shares:
        slides = [each == "sliding_attention" for each in types[: source.layers]]
    else:
        slides = [each is not None and each.slides for each in source.heads]
    return slides + [beyond] * ((layers or 0) - len(slides))


def window_keys(source: Source, *, listed: bool, needed: bool = False) -> Keys:
    """The window, and with ``listed`` the layers that have it. ``needed``: the converter refuses a file without."""
    window = source.number("sliding_window", "sliding_window_size", "window_size")
    if window is None:
        if needed:
            raise source.config.missing("sliding_window")
        return {}
    keys: Keys = {"attention.sliding_window": window}
    return keys | ({"attention.sliding_window_pattern": pattern(source)} if listed else {})


K = TypeVar("K", bound=LayerKind)

_LARGEST = 2**40


class Heads(NamedTuple):
    """The heads of one layer: of queries, of keys, and the elements of one key and one value."""

    queries: int
    keys: int
    key_length: int
    value_length: int
    slides: bool = False


Keys = dict[str, Any]
"""Metadata by key, without the name of the architecture in front."""


class Source(Record):
    """A model to convert. The getters look into the language level first, then at the top, as the converter's merged dict does."""

    model: ModelSpec
    config: Config

    @cached_property
    def top(self) -> Mapping[str, Any]:
        """The whole file."""
        return self.model.config

    def get(self, *keys: str) -> Any:
        """The first of these keys that is there and not null, class defaults included."""
        for key in keys:
            value = self.config.get(key)
            value = self.top.get(key) if value is None else value
            if value is not None:
                return value
        return None

    def number(self, *keys: str, minimum: int = 0) -> int | None:
        """The first of these keys as a whole number."""
        for key in keys:
            value = self.get(key)
            if value is not None:
                return self.config.checked_integer(key, value, minimum=minimum, maximum=_LARGEST)
        return None

    def wanted(self, *keys: str) -> int:
        """The same for a number that must be there."""
        value = self.number(*keys)
        if value is None:
            raise self.config.missing(keys[0])
        return value

    def fraction(self, *keys: str) -> float | None:
        """The first of these keys as a share, from the level itself or from its rotary embedding."""
        for key in keys:
            value = self.get(key)
            value = self.rope.get(key) if value is None else value
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                    raise self.config.error(key, value, "a number from 0 to 1")
                return float(value)
        return None

    def words(self, key: str) -> list[str] | None:
        """A list of strings, or ``None``."""
        return self.config.strings(key)

    def section(self, key: str) -> Source:
        """The values inside an object, which may be missing."""
        inner = self.get(key)
        inner = {} if inner is None else inner
        if not isinstance(inner, Mapping):
            raise self.config.error(key, inner, "an object")
        return Source(model=self.model, config=Config(inner, where=key))

    @cached_property
    def rope(self) -> Mapping[str, Any]:
        """The parameters by which positions are rotated; of full layers, where kinds of layers differ."""
        found = self.get("rope_parameters", "rope_scaling")
        rope = found if isinstance(found, Mapping) else {}
        full = rope.get("full_attention")
        return full if isinstance(full, Mapping) else rope

    @cached_property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.wanted("hidden_size")

    @cached_property
    def layers(self) -> int:
        """Layers of the model, without those for multi-token prediction."""
        return len(self.model.stack)

    def kinds(self, kind: type[K]) -> list[K | None]:
        """For each layer its part of this kind."""
        return [next((part for part in layer if isinstance(part, kind)), None) for layer in self.model.stack]

    def first(self, kind: type[K]) -> K | None:
        """The first part of this kind."""
        return next((part for part in self.kinds(kind) if part is not None), None)

    @cached_property
    def heads(self) -> tuple[Heads | None, ...]:
        """The heads of each layer, ``None`` for a layer without attention of its own."""
        # Equal layers are read once.
        read = {
            layer: next((heads for part in layer if (heads := _heads(part))), None) for layer in dict.fromkeys(self.model.stack)
        }
        return tuple(read[layer] for layer in self.model.stack)

    @property
    def query_heads(self) -> list[int]:
        """The heads of queries of each layer, 0 without attention of its own."""
        return [each.queries if each else 0 for each in self.heads]

    @property
    def key_heads(self) -> list[int]:
        """The heads of keys of each layer."""
        return [each.keys if each else 0 for each in self.heads]

    def example(self, *, slides: bool) -> Heads | None:
        """The heads of the first layer with a window, or of the first without."""
        return next((each for each in self.heads if each and each.slides == slides), None)

    @cached_property
    def shares(self) -> bool:
        """True if layers read the cache of others. Their heads are those of the layers before them."""
        return any(isinstance(part, SharedCache) for layer in self.model.stack for part in layer)

    def alike(self, values: Sequence[int]) -> int | list[int]:
        """One number if all layers have the same, else one per layer."""
        return values[0] if len(set(values)) == 1 else list(values)


def _heads(part: LayerKind) -> Heads | None:
    if isinstance(part, AttentionKind):
        slides = isinstance(part, SlidingAttention)
        return Heads(part.num_attention_heads, part.num_key_value_heads, part.head_dim, part.v_head_dim, slides)
    if isinstance(part, formulas.LatentAttention):
        length = part.kv_lora_rank + part.qk_rope_head_dim
        return Heads(part.num_attention_heads, 1, length, part.kv_lora_rank, part.window is not None)
    if isinstance(part, formulas.CompressedAttention):
        return Heads(part.num_attention_heads, 1, part.head_dim, part.head_dim)
    return None


def source_of(model: ModelSpec) -> Source:
    """The model with the level of its config that the layers were read from."""
    from hwcalc.parsers.unknown import language_config

    raw = RawModel(id=model.id, config=model.config, source=model.source, weights=model.weights)
    try:
        level = language_config(raw, model.assumption)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{model.id} does not make sense: {error}.") from error
    return Source(model=model, config=level)

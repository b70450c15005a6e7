"""Kimi delta attention with latent attention in between: Kimi Linear, Bailing hybrids and GLM-5 Next.

Mirrors ``modeling_*.py`` of those names in transformers 5.23. Bailing's gates are full matrices, and its latent attention has
no query latent but an output gate of one number a head. GLM-5 Next joins residual streams around every block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec.structs import replace

from hwcalc.formulas import KimiDeltaAttention, LatentAttention, Layer, LayerKind, SparseIndexer
from hwcalc.formulas.record import Record
from hwcalc.formulas.weights import Block, gated_mlp, linear, parameter
from hwcalc.formulas.weights_state import kimi_delta_attention
from hwcalc.parsers.blocks import Named, ends, repeated, rms_norms
from hwcalc.parsers.config import Config
from hwcalc.parsers.decoder.build import Experts, moe_weights, sparse_layers, times
from hwcalc.parsers.hyper import hyper_connection
from hwcalc.parsers.latent.layers import indexer_modes, kind_weights, latent_attention, sparse_indexer
from hwcalc.parsers.reading import Reading, build_layers, every
from hwcalc.parsers.states import LINEAR, spelled_layer_types, state_dtype

_EXPERTS: Final = Experts(count="num_local_experts", shared=times("n_shared_experts"))
_FULL: Final = "full_attention"
_INDEXED: Final = "indexed_attention"
# Keys that never bear on the cache, and keys of latent attention, which are left unread where no layer has it.
_WITHOUT_EFFECT: Final = (
    "attn_res_block_size", "head_dim", "index_kpool", "index_kpool_always_select_tail", "kda_lower_bound", "kda_safe_gate",
    "kv_lora_rank", "latent_moe_use_norm", "linear_lower_bound", "mla_use_nope", "mla_use_output_gate", "num_attention_heads",
    "num_key_value_heads", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip

Types = Callable[[Config, Config | None, int], list[str]]
"""Gives the type of each layer, by the config, its ``linear_attn_config`` and the number of layers."""


class DeltaFamily(Record):
    """One of the models above: what it has where the file does not say, and how it differs."""

    types: Types
    dense: int
    """How many of the first layers have no experts."""
    bailing: bool = False
    """Whether gates are full matrices, linear heads as many as query heads, and queries without a latent."""
    indexed: bool = False
    """Whether there are indexers, which pool tokens, and several residual streams."""

    def read(self, config: Config) -> Reading:
        """Layers of Kimi delta attention and of latent attention."""
        count = config.number_of_layers()
        nested = config.sub("linear_attn_config")
        types = spelled_layer_types(config, count) or self.types(config, nested, count)
        if nested is not None:
            # A file with layer_types may still have the lists that they were made from.
            nested.ignore("full_attn_layers", "kda_layers")
        delta = (_delta(config, nested, bailing=self.bailing),)
        config.ignore(*_WITHOUT_EFFECT)
        modes = indexer_modes(config, count) if self.indexed else []

        def full_layer(layer: Config, index: int) -> Layer:
            latent = (latent_attention(layer),)
            return (*latent, _indexer(layer)) if self.indexed and modes[index] == "full" else latent

        readers = {LINEAR: lambda _layer, _index: delta, _FULL: full_layer} | ({_INDEXED: full_layer} if self.indexed else {})
        layers = build_layers(config, types, readers)
        # transformers packs one more element into every entry: whether the token is padding.
        readings = {"transformers": tuple(map(_padded, layers))} if self.indexed else {}
        return Reading(layers=layers, config=config, state_dtype=state_dtype(config), readings=readings)

    def weigh(self, config: Config, top: Config, reading: Reading) -> tuple[Block, ...]:
        """The blocks of weights of these layers, and those around them."""
        hidden = config.integer("hidden_size")
        norms = rms_norms(hidden, "input_layernorm", "post_attention_layernorm")

        def weigh(key: tuple[Layer, bool]) -> Iterator[Named]:
            layer, sparse = key
            for kind in layer:
                yield from self._mixer(config, kind)
            yield (
                ("moe", moe_weights(config, _EXPERTS))
                if sparse
                else ("mlp", gated_mlp(hidden, config.integer("intermediate_size")))
            )
            yield "norm", norms
            if self.indexed:
                for path in ("attn_hc", "ffn_hc"):
                    yield "hyper_connection", hyper_connection(path, config.integer("hc_mult"), hidden, 3)

        sparse = sparse_layers(config, len(reading.layers), self.dense)
        return (*ends(config, top), *repeated(zip(reading.layers, sparse, strict=True), weigh))

    def _mixer(self, config: Config, kind: LayerKind) -> Iterator[Named]:
        hidden, rank = config.integer("hidden_size"), None if self.bailing else config.maybe_integer("q_lora_rank")
        if isinstance(kind, KimiDeltaAttention):
            low_rank = not self.bailing
            yield "delta", kimi_delta_attention(hidden, **kind.numbers(), low_rank_decay=low_rank, low_rank_gate=low_rank)
        elif isinstance(kind, LatentAttention):
            gate = linear("self_attn.g_proj", hidden, kind.num_attention_heads) if self.bailing else ()
            yield "attention", kind_weights(config, kind, rank) + gate
        elif isinstance(kind, SparseIndexer):
            # GLM-5 Next pools tokens, by a gate as wide as the key and a learned position within the pool.
            path, width = "self_attn.indexer.index_kpool_compress", kind.index_head_dim
            pool = parameter(f"{path}_ape", config.integer("index_kpool"), width) + parameter(f"{path}_gate", width, hidden)
            yield "indexer", kind_weights(config, kind, rank) + pool


def _kimi(_config: Config, nested: Config | None, count: int) -> list[str]:
    """Kimi's lists count layers from 1: [4, 8] are the fourth and the eighth."""
    full = nested.integers("full_attn_layers") if nested is not None else None
    linear = nested.integers("kda_layers") if nested is not None else None
    if nested is None or full is None or linear is None:
        return [_FULL if i and i % 4 == 0 else LINEAR for i in range(count)]
    if sorted((*full, *linear)) != list(range(1, count + 1)):
        raise nested.error(
            "full_attn_layers", full, f"numbers from 1 to {count} that together with kda_layers name each layer once"
        )
    return [_FULL if number in full else LINEAR for number in range(1, count + 1)]


def _delta(config: Config, nested: Config | None, *, bailing: bool) -> KimiDeltaAttention:
    """The nested ``linear_attn_config`` wins over linear_* keys; Bailing has as many linear heads as query heads."""

    def width(nested_key: str, key: str, otherwise: str) -> int:
        given = [nested.maybe_integer(nested_key) if nested is not None else None, config.maybe_integer(key)]
        given += [config.maybe_integer(otherwise)] if bailing else []
        found = next((value for value in given if value is not None), None)
        if found is None:
            raise config.missing(otherwise if bailing else key)
        return found

    return KimiDeltaAttention(
        num_heads=width("num_heads", "linear_num_heads", "num_attention_heads"),
        # Where transformers has saved a Bailing config, head_dim is the rotary width: the other keys go first.
        head_dim=width("head_dim", "linear_head_dim", "head_dim"),
        d_conv=width("short_conv_kernel_size", "linear_conv_kernel_dim", "short_conv_kernel_size"),
    )


def _indexer(config: Config) -> SparseIndexer:
    """GLM-5 Next scores pools of tokens: it keeps a gate beside each token's key, as wide as the key."""
    indexer = sparse_indexer(config)
    return replace(indexer, index_extra_elements=indexer.index_head_dim)


def _padded(layer: Layer) -> Layer:
    return tuple(
        replace(kind, index_extra_elements=kind.index_extra_elements + 1) if isinstance(kind, SparseIndexer) else kind
        for kind in layer
    )


KIMI_LINEAR: Final = DeltaFamily(types=_kimi, dense=1)
BAILING: Final = DeltaFamily(
    types=lambda config, _nested, count: every(config.integer("layer_group_size"), count, _FULL, LINEAR), dense=2, bailing=True
)
GLM5_NEXT: Final = DeltaFamily(types=lambda _config, _nested, count: every(4, count, _FULL, LINEAR), dense=3, indexed=True)

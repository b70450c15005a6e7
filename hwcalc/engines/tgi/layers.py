"""What TGI stores for one layer, and how it divides layers over its shards.

Read, not run, in 3.3.6-dev0 (commit db931fcf42da): ``server/text_generation_server/models/flash_causal_lm.py`` (heads, widths),
``models/__init__.py`` (latent attention is expanded), ``models/mamba.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.engines.models import model_classes
from hwcalc.engines.rank_weights import Rules
from hwcalc.errors import UnsupportedError
from hwcalc.formulas import (
    AttentionKind,
    ChunkedAttention,
    ExpandedLatentAttention,
    FullAttention,
    LatentAttention,
    LayerKind,
    Mamba1,
    SlidingAttention,
)
from hwcalc.formulas.attention import key_value_tensors
from hwcalc.formulas.formats import BF16, FLOATS, WeightFormat
from hwcalc.formulas.tensor import Once

if TYPE_CHECKING:
    from hwcalc.engines.stored import StoredTensor
    from hwcalc.engines.tgi.deployment import TgiDeployment, TgiOccupancy
    from hwcalc.model import ModelSpec

_NOPE: Final = 128
_ROPE: Final = 64


class TgiRules(Rules):
    """Weights by ideal sharding. Key/value heads are divided and rounded down, a single one stays; none is repeated."""

    engine = "tgi"

    def weight_format(self, model: ModelSpec, weight_dtype: str | None) -> WeightFormat:
        """Weights are loaded in 16 bits, whatever the checkpoint has."""
        return FLOATS.get(weight_dtype or "", BF16)

    def shard(self, model: ModelSpec, kind: LayerKind, tp: int) -> LayerKind:
        if isinstance(kind, (LatentAttention, ExpandedLatentAttention)):
            return replace(kind, num_attention_heads=max(1, kind.num_attention_heads // tp))
        if not isinstance(kind, AttentionKind) or keeps_whole_heads(model):
            return kind
        heads = kind.num_key_value_heads
        return replace(
            kind,
            num_attention_heads=max(1, kind.num_attention_heads // tp),
            num_key_value_heads=max(1, heads // tp),
        )


TGI: Final = TgiRules()


def keeps_whole_heads(model: ModelSpec) -> bool:
    """Whether the transformers back end does not divide the heads."""
    return "whole_heads" in model_classes("tgi").row(model).words


def check_layers(deployment: TgiDeployment) -> None:
    """Refuse what the flash classes do not take. Raises :class:`~hwcalc.errors.UnsupportedError`."""
    tp, model = deployment.setup.parallel.tp, deployment.model
    shapes = set()
    for group in deployment.plain_stack.groups:
        kind = group.kind
        if isinstance(kind, LatentAttention) and not deployment.is_native:
            raise UnsupportedError(f"TGI has no latent attention in {model.model_type}.", hint="Use: --engine reference")
        if not isinstance(kind, AttentionKind):
            continue
        shapes.add((kind.num_key_value_heads, kind.head_dim))
        if kind.num_attention_heads % tp:
            raise UnsupportedError(
                f"TGI: `num_heads` must be divisible by `num_shards` (got `num_heads`: {kind.num_attention_heads} and `num_shards`: {tp}).",
                hint="Use another --tp.",
            )
        if kind.num_key_value_heads > tp and kind.num_key_value_heads % tp and not keeps_whole_heads(model):
            raise UnsupportedError(
                f"TGI: `num_key_value_heads` must be divisible by `num_shards` (got `num_key_value_heads`: {kind.num_key_value_heads} and "
                f"`num_shards`: {tp}).",
                hint="Use another --tp.",
            )
        if 1 < kind.num_key_value_heads < tp and not keeps_whole_heads(model):
            raise UnsupportedError(
                f"TGI: assert self.num_kv_heads > 0: {kind.num_key_value_heads} key/value heads on {tp} shards, and none is repeated.",
                hint=f"Use: --tp {kind.num_key_value_heads}",
            )
    if len(shapes) > 1:
        raise UnsupportedError("TGI has one shape of keys and values for all layers of a model.", hint="Use: --engine reference")


def _attention(kind: AttentionKind, occupancy: TgiOccupancy) -> tuple[StoredTensor, ...]:
    """Every token of every layer, whatever its window; values are as wide as keys."""
    tensors = key_value_tensors(kind.num_key_value_heads, kind.head_dim, kind.head_dim, occupancy.deployment.pages)
    return occupancy.store_all(tensors)


def _latent(kind: LatentAttention, occupancy: TgiOccupancy) -> tuple[StoredTensor, ...]:
    """Keys and values of every head, both as wide as the wider of them.

    The keys ``qk_nope_dim`` and ``qk_rope_dim``, for which TGI looks, are in no config: the widths are 128 + 64 whatever it says.
    """
    width = max(_NOPE + _ROPE, kind.v_head_dim)
    axes = ("num_attention_heads", "max(qk_nope_head_dim + qk_rope_head_dim, v_head_dim)")
    tensors = key_value_tensors(kind.num_attention_heads, width, width, occupancy.deployment.pages)
    stored = occupancy.store_all(replace(tensor, axes=axes) for tensor in tensors)
    if (kind.qk_nope_head_dim, kind.qk_rope_head_dim) == (_NOPE, _ROPE) or occupancy.together.unlike:
        return stored
    words = f"{kind.num_attention_heads:,} x {width:,}"
    return tuple(
        replace(tensor, rule=f"{occupancy.batch:,} x {tensor.positions:,} x {words} x {item.block_bytes} B: TGI's own widths")
        for tensor, item in ((tensor, occupancy.dtypes.roles[tensor.role]) for tensor in stored)
    )


def _mamba(kind: Mamba1, occupancy: TgiOccupancy) -> tuple[StoredTensor, ...]:
    """States of a batch: all columns of the convolution, in the model's dtype."""
    conv, *rest = kind.tensors()
    columns = replace(conv, shape=(*conv.shape, kind.d_conv), axes=(*conv.axes, "d_conv"), span=Once())
    return occupancy.store_all((columns, *rest))


RULES: Final[Mapping[type[LayerKind], Callable[..., tuple[StoredTensor, ...]]]] = MappingProxyType(
    {
        FullAttention: _attention,
        SlidingAttention: _attention,
        ChunkedAttention: _attention,
        LatentAttention: _latent,
        Mamba1: _mamba,
    }
)
"""Kind of layer -> the tensors of a layer of that kind."""

"""Pieces shared by the modules that weigh a stack of unlike layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from hwcalc.errors import ConfigError, UsageError
from hwcalc.formulas import Layer
from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import Block, Part, Weight, WeightRole, attention, embedding, experts, gated_mlp, linear, rms_norm
from hwcalc.parsers.config import Config
from hwcalc.parsers.registry import dialect_for, read_with
from hwcalc.parsers.weights.decoder import tied_head

__all__ = ["attention_of", "cached_layers", "ends", "gated_experts", "repeated"]

Named = tuple[str, tuple[Weight, ...]]
"""A block's kind and its tensors."""
K = TypeVar("K", bound=Hashable)


def cached_layers(config: Config) -> tuple[Layer, ...]:
    """What each layer caches, as the model type's dialect reads it: its dims are those of the weights.

    Raises :class:`~hwcalc.errors.ConfigError` if a value makes no sense.
    """
    try:
        return read_with(dialect_for(config.model_type) or "", config).layers
    except (ConfigError, UsageError):
        raise
    except ValueError as error:
        raise ConfigError(f"the {config.model_type} config does not make sense: {error}.") from error


def repeated(layers: Iterable[K], weigh: Callable[[K], Iterable[Named]], part: Part = Part.LANGUAGE) -> list[Block]:
    """Blocks of a stack. Equal layers are weighed once, and equal blocks of unlike layers are counted together.

    Two Mamba layers and one of attention, each with an MLP: Mamba x 2, MLP x 3, attention x 1.
    """
    places: dict[K, list[int]] = {}
    for number, layer in enumerate(layers):
        places.setdefault(layer, []).append(number)
    found: dict[Named, list[int]] = {}
    for layer, numbers in places.items():
        for kind, weights in weigh(layer):
            if weights:
                found.setdefault((kind, weights), []).extend(numbers)
    return [
        Block(kind=kind, weights=weights, part=part, count=len(numbers), layers=tuple(sorted(numbers)))
        for (kind, weights), numbers in found.items()
    ]


def ends(config: Config, top: Config, *, embed: str = "model.embed_tokens", norm: str = "model.norm") -> list[Block]:
    """What stands before and after the layers: embeddings, an RMS norm, and the head where it is a tensor of its own."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    out = [
        Block(kind="embedding", weights=embedding(embed, vocab, hidden)),
        Block(kind="norm", weights=rms_norm(norm, hidden)),
    ]
    if not tied_head(config, top):
        out.append(Block(kind="head", weights=linear("lm_head", hidden, vocab, role=WeightRole.HEAD)))
    return out


def attention_of(
    kind: AttentionKind,
    hidden_size: int,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    qk_norm: bool = False,
    path: str = "self_attn",
) -> tuple[Weight, ...]:
    """The weights of an attention layer by what it caches. ``qk_norm`` is one scale per channel of a head."""
    weights = attention(
        hidden_size,
        kind.num_attention_heads,
        kind.num_key_value_heads,
        kind.head_dim,
        kind.v_head_dim,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        path=path,
    )
    if qk_norm:
        weights += rms_norm(f"{path}.q_norm", kind.head_dim) + rms_norm(f"{path}.k_norm", kind.head_dim)
    return weights


def gated_experts(
    hidden_size: int, width: int, count: int, active: int, *, path: str = "mlp", router: str = "gate"
) -> tuple[Weight, ...]:
    """Gated experts and the linear router that chooses among them."""
    return (
        *experts(gated_mlp(hidden_size, width, path=f"{path}.experts"), count, active),
        *linear(f"{path}.{router}", hidden_size, count, role=WeightRole.ROUTER),
    )

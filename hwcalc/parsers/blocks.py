"""Blocks of weights that many families have: those of a stack of layers, of both ends of the model, of attention and experts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

from hwcalc.formulas.attention import AttentionKind
from hwcalc.formulas.weights import (
    Block,
    Part,
    Weight,
    WeightRole,
    attention,
    embedding,
    experts,
    gated_mlp,
    layer_norm,
    linear,
    rms_norm,
)
from hwcalc.parsers.config import Config

__all__ = [
    "Named",
    "Switch",
    "Weighed",
    "attention_of",
    "ends",
    "gated_experts",
    "head_block",
    "in_layers",
    "norm",
    "repeated",
    "rms_norms",
    "switched",
    "tied_head",
]

Switch = bool | str
"""Yes, no, or the config key that says so."""


Weighed = tuple[Weight, ...]


_TIED_BY_EITHER: Final = frozenset(
    {
        "glm4v", "glm4v_moe", "glm_ocr", "hunyuan_vl", "llava", "llava_next_video", "llava_onevision", "minimax_m3_vl",
        "paddleocr_vl", "qwen2_5_vl", "qwen2_vl", "shieldgemma2", "video_llama_3",
    }
)  # fmt: skip


_TIED_BY_TEXT: Final = frozenset({"vibevoice"})


def switched(config: Config, switch: Switch) -> bool:
    """The value of a switch for this config."""
    return config.flag(switch) if isinstance(switch, str) else switch


def norm(kind: str, path: str, width: int) -> Weighed:
    """One norm of the given kind."""
    if kind == "none":
        return ()
    if kind == "layer":
        return layer_norm(path, width)
    return rms_norm(path, width)


def rms_norms(width: int, *paths: str) -> Weighed:
    """Several RMS norms of one width."""
    return tuple(weight for path in paths for weight in rms_norm(path, width))


def tied_head(config: Config, top: Config) -> bool:
    """Whether input and output embeddings are one tensor: the key of the whole document decides, else that of the language model.

    A few classes hand the language model's key up. With those either key ties, or the language model's key alone.
    """
    own = config.get("tie_word_embeddings")
    if top.model_type in _TIED_BY_TEXT:
        return bool(own)
    whole = top.get("tie_word_embeddings")
    if top.model_type in _TIED_BY_EITHER:
        return bool(whole) or bool(own)
    return bool(own if whole is None else whole)


def head_block(config: Config, *, tied: bool, bias: bool = False, width: int | None = None) -> tuple[Block, ...]:
    """The output head: nothing but its bias where it is tied to the embedding."""
    hidden = config.integer("hidden_size") if width is None else width
    head = linear("lm_head", hidden, config.integer("vocab_size"), bias=bias, role=WeightRole.HEAD)
    if tied:
        head = head[1:]
    return (Block(kind="head", weights=head),) if head else ()


Named = tuple[str, tuple[Weight, ...]]
"""A block's kind and its tensors."""


K = TypeVar("K", bound=Hashable)


def repeated(layers: Iterable[K], weigh: Callable[[K], Iterable[Named]], part: Part = Part.LANGUAGE) -> list[Block]:
    """The blocks of a stack of layers. Equal layers are weighed once. Equal blocks of different layers are counted together.

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


def in_layers(kind: str, weights: Weighed, count: int, part: Part = Part.LANGUAGE) -> Block:
    """A block that each of ``count`` layers has."""
    return Block(kind=kind, weights=weights, part=part, count=count, layers=tuple(range(count)))


def ends(
    config: Config,
    top: Config,
    *,
    embed: str = "model.embed_tokens",
    norm: str | Weighed = "model.norm",
    head: str = "lm_head",
) -> list[Block]:
    """The blocks around the layers: embedding, last norm (the name of an RMS norm, or weights), and a head that is not tied."""
    hidden, vocab = config.integer("hidden_size"), config.integer("vocab_size")
    out = [
        Block(kind="embedding", weights=embedding(embed, vocab, hidden)),
        Block(kind="norm", weights=rms_norm(norm, hidden) if isinstance(norm, str) else norm),
    ]
    if not tied_head(config, top):
        out.append(Block(kind="head", weights=linear(head, hidden, vocab, role=WeightRole.HEAD)))
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
    """The weights of an attention layer, by what it caches. ``qk_norm`` is one scale per channel of a head."""
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

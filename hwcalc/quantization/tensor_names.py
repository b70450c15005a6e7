"""What the names of tensors in GGUF files say (src/llama-arch.cpp, llama.cpp 0c1e57098)."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ROTARY", "TABLES", "part_of_layer", "placed", "whole_name", "without_prefix"]

TABLES: Final = frozenset({"token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight"})
"""Tables in which a row is looked up for each token."""
ROTARY: Final = ("rope_freqs.", "rope_factors_")
"""How tensors begin that only follow from the config: every device with a layer has a copy."""

_PREFIXES: Final = ("enc.", "dec.", "v.", "a.")
_IN_LAYER: Final = re.compile(rf"({'|'.join(map(re.escape, _PREFIXES))})?blk\.([0-9]{{1,5}})\.(.+)", re.DOTALL)
_STATES: Final = ("ssm_", "time_mix_", "shortconv.")
_FEED_FORWARD: Final = ("ffn_", "exp_probs", "channel_mix", "layer_output_norm")


def placed(name: str) -> tuple[str, int]:
    """A tensor's name without its layer, and the layer; -1 for a tensor outside the layers.

    >>> placed("blk.12.attn_q.weight"), placed("enc.blk.0.attn_q.weight"), placed("output.weight")
    (('attn_q.weight', 12), ('enc.attn_q.weight', 0), ('output.weight', -1))
    """
    match = _IN_LAYER.fullmatch(name)
    return (name, -1) if match is None else ((match[1] or "") + match[3], int(match[2]))


def whole_name(stem: str, number: int) -> str:
    """The name of a tensor in a layer: the reverse of :func:`placed`.

    >>> whole_name("enc.attn_q.weight", 3), whole_name("output.weight", -1)
    ('enc.blk.3.attn_q.weight', 'output.weight')
    """
    if number < 0:
        return stem
    rest = without_prefix(stem)
    return f"{stem.removesuffix(rest)}blk.{number}.{rest}"


def without_prefix(stem: str) -> str:
    """A name without the word for the encoder, the decoder or the tower in front."""
    return stem.removeprefix(next((one for one in _PREFIXES if stem.startswith(one)), ""))


def part_of_layer(stem: str) -> str:
    """The part of a layer that a tensor belongs to: ``state``, ``mlp`` or ``attention``.

    >>> part_of_layer("ssm_in.weight"), part_of_layer("enc.ffn_up.weight"), part_of_layer("attn_q.weight")
    ('state', 'mlp', 'attention')
    """
    rest = without_prefix(stem)
    if rest.startswith(_STATES):
        return "state"
    return "mlp" if rest.startswith(_FEED_FORWARD) else "attention"

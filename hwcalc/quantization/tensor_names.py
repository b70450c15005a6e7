"""The names of tensors in GGUF files."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["placed"]

_IN_LAYER: Final = re.compile(r"(enc\.|dec\.|v\.|a\.)?blk\.([0-9]{1,5})\.(.+)", re.DOTALL)


def placed(name: str) -> tuple[str, int]:
    """A tensor's name without its layer, and the layer; -1 for a tensor outside the layers.

    >>> placed("blk.12.attn_q.weight"), placed("enc.blk.0.attn_q.weight"), placed("output.weight")
    (('attn_q.weight', 12), ('enc.attn_q.weight', 0), ('output.weight', -1))
    """
    match = _IN_LAYER.fullmatch(name)
    return (name, -1) if match is None else ((match[1] or "") + match[3], int(match[2]))

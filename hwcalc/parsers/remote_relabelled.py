"""Files that are another type's under a label of their own: read as that type, by that type's dialect.

- deepseek_ref: DeepSeek-V4 in its reference code's key names, which transformers' ``deepseek_v4`` takes too
  (``compress_ratios``, ``sliding_window``, ``index_*``).
- kimi_k3: its ``text_config`` is a Kimi Linear model. ``attn_res_block_size`` groups *layers* whose outputs later layers mix
  (attention over depth): it lives within one token's step.
- step3_vl: its ``text_config`` is a ``step3_text`` model, which not every file names.
- minimax_m3: the language model of ``minimax_m3_vl`` on its own; ``sparse_attention_config`` as there.
"""

from __future__ import annotations

from typing import Final

from hwcalc.errors import UnknownArchitectureError
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Reading
from hwcalc.parsers.registry import dialect_for, read_with

__all__ = ["read"]

_SAME_FILE: Final = {"deepseek_ref": "deepseek_v4", "minimax_m3": "minimax_m3_vl_text"}
_NESTED: Final = {"kimi_k3": "kimi_linear", "step3_vl": "step3_text"}
_WITHOUT_EFFECT: Final = ("attn_res_block_size",)


def _as(config: Config) -> Reading:
    """Read a config by the dialect that claims its model type."""
    dialect = dialect_for(config.model_type)
    if dialect is None:
        raise UnknownArchitectureError(
            f"No parser knows model_type {str(config.model_type)[:60]!r}.",
            hint="To read it as plain attention on every layer, with every number marked as assumed: --assume gqa.",
        )
    return read_with(dialect, config)


def read(config: Config) -> Reading:
    """Read one of the types above."""
    model_type = config.model_type or ""
    if model_type in _SAME_FILE:
        return _as(config.retyped(_SAME_FILE[model_type]))
    inner = _NESTED[model_type]
    text = config.sub("text_config", inner)
    if text is None:
        raise config.missing("text_config")
    if text.model_type == model_type:
        raise config.error("text_config.model_type", model_type, inner)
    text.ignore(*_WITHOUT_EFFECT)
    return _as(text)

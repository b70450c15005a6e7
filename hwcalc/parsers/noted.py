"""Which keys a reading took from the model's class, since the file leaves them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.model import LEFT_OUT, Note
from hwcalc.parsers.class_table import defaults_version
from hwcalc.parsers.config import Config

__all__ = ["filled_in", "from_the_class", "left_out_text"]

# Class defaults that decide how much is cached. Others are not worth a note.
_WORTH_A_NOTE: Final = frozenset(
    {
        "num_hidden_layers",
        "decoder_layers",
        "num_attention_heads",
        "decoder_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "d_model",
        "d_kv",
        "sliding_window",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "attention_chunk_size",
        "num_kv_shared_layers",
        "global_head_dim",
        "state_size",
        "conv_kernel",
        "expand",
        "mamba_d_state",
        "mamba_d_conv",
    }
)


def filled_in(config: Config) -> Mapping[str, Any]:
    """What the file leaves out and the model's class fills in, as far as it decides how much is cached."""
    defaults = config.assumed_defaults().items()
    return {key: value for key, value in defaults if key in _WORTH_A_NOTE and not isinstance(value, bool)}


def from_the_class(language: Config, *, complete: bool) -> tuple[Note, ...]:
    """A note that lists them. It is a warning where somebody may have forgotten them: not in a ``complete`` config, as published."""
    filled = filled_in(language)
    if not filled:
        return ()
    # Published documents of several parts leave out the heads of their language model, where these are the class's own.
    forgotten = _DIMENSIONS if language.where == "" else _SIZES
    code = "class-defaults" if complete or not forgotten & filled.keys() else LEFT_OUT
    return (Note(code=code, message=left_out_text(language, filled)),)


def left_out_text(language: Config, filled: Mapping[str, Any]) -> str:
    """The sentence about what the model's class fills in."""
    listed = ", ".join(f"{key} {value}" for key, value in sorted(filled.items()))
    return f"The config leaves out {listed}: taken from the {language.model_type} class of transformers {defaults_version()}."


_SIZES: Final = frozenset({"num_hidden_layers", "decoder_layers", "hidden_size", "d_model"})
_DIMENSIONS: Final = _SIZES | {"num_attention_heads", "decoder_attention_heads", "num_key_value_heads", "head_dim", "d_kv"}
"""The numbers of layers and heads, and their widths."""

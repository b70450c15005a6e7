"""Which keys a reading took from the model's class, since the file leaves them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hwcalc.model import Note
from hwcalc.parsers.class_table import defaults_version
from hwcalc.parsers.config import Config

__all__ = ["filled_in", "from_the_class"]

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


def from_the_class(language: Config) -> tuple[Note, ...]:
    """A note that lists them."""
    filled = filled_in(language)
    if not filled:
        return ()
    listed = ", ".join(f"{key} {value}" for key, value in sorted(filled.items()))
    source = f"the {language.model_type} class of transformers {defaults_version()}"
    return (Note(code="class-defaults", message=f"The config leaves out {listed}: taken from {source}."),)

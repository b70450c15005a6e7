"""What SGLang asks of the class of a model: ``configs/model_config.py``, ``arg_groups/`` and ``models/`` of 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines.models import model_classes
from hwcalc.formulas import CompressedAttention, LatentAttention, SparseIndexer

if TYPE_CHECKING:
    from hwcalc.model import ModelSpec

_LENGTHS: Final = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Keys of the longest sequence; the first that the text part has counts (``CONTEXT_LENGTH_KEYS``)."""
_NO_LENGTH: Final = 2048
_CLASS_LENGTHS: Final = {"step3p5": 128_000, "step3p7": 128_000}
"""``max_seq_len`` of classes of SGLang's own, whatever ``max_position_embeddings`` says (``Step3p5Config``)."""
_TEXT_ONLY_READ: Final = frozenset({"step3p7"})
"""Model types whose class reads the text part alone, and has defaults where there is none."""
_STRETCHED: Final = frozenset({"linear", "dynamic"})
"""Kinds of rotary embeddings whose factor counts; those of the others are already part of the length."""


def words_of(model: ModelSpec) -> Mapping[str, str]:
    """What the row of the model's class says in ``profiles/engines/sglang/classes.yaml``."""
    return model_classes("sglang").row(model).words


def context_tokens(model: ModelSpec) -> int:
    """The longest sequence as SGLang reads it (``get_context_length``); requests at once follow from it."""
    text, top = model.config.get("text_config"), model.config.get("model_type")
    own: Mapping[str, Any] = text if isinstance(text, Mapping) else {} if top in _TEXT_ONLY_READ else model.config
    defaults = {"max_seq_len": _CLASS_LENGTHS.get(str(top)), "max_position_embeddings": model.max_position_embeddings}
    lengths = {**defaults, **own}
    longest = next((length for key in _LENGTHS if isinstance(length := lengths.get(key), int) and length > 0), _NO_LENGTH)
    scalings = model.facts.rope_scalings
    # A factor for one kind of layer (Gemma 3) is none of the model.
    factor = scalings[0].factor if len(scalings) == 1 and "gemma3" not in model.model_type else None
    return int(longest * factor) if factor and scalings[0].kind in _STRETCHED and not scalings[0].original_tokens else longest


def is_compressed(model: ModelSpec) -> bool:
    """DeepSeek-V4: a window, and one entry for every group of tokens."""
    return any(isinstance(group.kind, CompressedAttention) for group in model.stack.groups)


def is_sparse_latent(model: ModelSpec) -> bool:
    """DeepSeek-V3.2 and its kin: latents with an indexer (``is_deepseek_dsa``)."""
    kinds = {type(group.kind) for group in model.stack.groups}
    return kinds >= {LatentAttention, SparseIndexer}


def splits_windows(model: ModelSpec) -> bool:
    """Whether windows have a pool of their own."""
    return "splits_windows" in words_of(model) or is_compressed(model)


def shows_images(model: ModelSpec) -> bool:
    """Whether SGLang loads the towers of a model, so that it reserves memory for images (``enable_multimodal``)."""
    parts = model.facts.part_types
    return bool(parts.keys() & {"vision", "audio"}) and "text_alone" not in words_of(model)

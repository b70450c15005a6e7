"""The metadata that llama.cpp's converter would write for a model that is described by a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hwcalc.errors import ConfigError, UnsupportedError
from hwcalc.model import FIDELITY, GGUF_ARCHITECTURE, VOCABULARY, ModelSpec
from hwcalc.parsers.gguf.from_config.common import common_keys
from hwcalc.parsers.gguf.from_config.source import source_of
from hwcalc.parsers.gguf.from_config.table import row_of, row_of_type
from hwcalc.text import shown

if TYPE_CHECKING:
    from hwcalc.parsers.gguf.from_config.source import Keys, Source
    from hwcalc.parsers.gguf.from_config.table import Row

__all__ = ["gguf_keys", "row_for"]

_FILE_TYPES = {"bf16": 32}
"""The type of file that ``--outtype auto`` makes of weights in bfloat16; of all others, single precision too, it makes float16 (1)."""

_LEVELS = ("text_config", "llm_config", "lm_config", "language_config", "thinker_config")
"""Where a file keeps the config of its language model, as the converter looks for it (conversion/base.py, load_hparams)."""

_TOP_FIRST = frozenset(
    {"Exaone4_5_ForConditionalGeneration", "KimiK3ForConditionalGeneration", "Step3p7ForConditionalGeneration"}
)
"""Classes that count although the config of their language model names another (conversion/base.py, get_model_architecture)."""


def gguf_keys(model: ModelSpec) -> Mapping[str, Any]:
    """The keys of a GGUF file for this model, as far as they bear on memory, and ``general.architecture``.

    They are those that llama.cpp's converter writes at commit 0c1e57098. Vision and audio towers go into a file of their own, which
    has other keys. Raises :class:`~hwcalc.errors.UnsupportedError` for a model that the converter does not know.
    """
    return model.once("gguf keys", lambda: _keys(model))


def _keys(model: ModelSpec) -> Mapping[str, Any]:
    row = row_for(model)
    source = source_of(model)
    try:
        keys = common_keys(source)
        if row.rotary is not None:
            _add_rotary(row.rotary, source, keys)
        if row.adds is not None:
            row.adds(source, keys)
    except (ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"the values of {model.id} do not make sense for llama.cpp: {shown(str(error), 100)}.") from error
    arch = _architecture(row, source, keys)
    general = {GGUF_ARCHITECTURE: arch} | ({} if model.dtype is None else {"general.file_type": _FILE_TYPES.get(model.dtype, 1)})
    return general | {key if key == VOCABULARY else f"{arch}.{key}": value for key, value in keys.items()}


def _add_rotary(default: float, source: Source, keys: Keys) -> None:
    """How much of a head is rotated."""
    length = keys.get("attention.key_length")
    if not isinstance(length, int):
        return
    dimensions = source.number("rotary_dim")
    share = source.fraction("partial_rotary_factor", "rotary_pct")
    share = default if share is None else share
    keys["rope.dimension_count"] = int(share * length) if dimensions is None else dimensions


def _architecture(row: Row, source: Source, keys: Keys) -> str:
    """The architecture of the row, or the one that a converter chooses by the content of the file."""
    if row.arch == "mistral3" and source.config.model_type == "mistral4":
        return "mistral4"
    if row.arch == "nemotron_h" and "expert_count" in keys:
        return "nemotron_h_moe"
    if row.arch == "granitehybrid" and "ssm.conv_kernel" not in keys:
        return "granitemoe" if keys.get("expert_used_count") else "granite"
    return row.arch


def row_for(model: ModelSpec) -> Row:
    """The converter of a model: by the class that the config of its language model names, else by that at the top, else by its type.

    A config that was put together from other sources may name a class that the published file does not: there, too, the type counts.
    """
    top, inner = _class(model.config), None
    level: Mapping[str, Any] = next((each for key in _LEVELS if isinstance(each := model.config.get(key), Mapping)), {})
    if isinstance(deeper := level.get("text_config"), Mapping) and "thinker_config" in model.config:
        level = deeper
    inner = _class(level)
    name = top if top in _TOP_FIRST or inner is None else inner
    row = row_of(name)
    reconstructed = any(note.code == FIDELITY for note in model.notes)
    if row is None and (name is None or reconstructed or (level and inner is None)):
        row = row_of_type(_type(level)) or row_of_type(_type(model.config))
    if row is None:
        what = f"The class {shown(name, 60)}" if name else f"model_type {shown(_type(model.config) or 'none', 60)}"
        raise UnsupportedError(
            f"{what} of {model.id} is none that llama.cpp converts to GGUF.",
            hint="Plan it with another engine: --engine reference, or see kvplan engines",
        )
    return row


def _class(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else None
    return first if isinstance(first, str) else None


def _type(config: Mapping[str, Any]) -> str | None:
    found = config.get("model_type")
    return found if isinstance(found, str) else None

"""Models of images and sound whose language model is another model's, with its keys at the top of the file.

- minicpmv, minicpmo: ``version`` says which one, as in vLLM's ``minicpmv.py`` and ``minicpmo.py`` (0.25). A file without is
  MiniCPM-V 2.0 if it is 2,304 wide with 64 queries, else 2.5; MiniCPM-o without is 2.6.
- Keye-VL and Keye-VL 1.5: Qwen3, as in vLLM's ``keye.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hwcalc.formulas.weights import Block
from hwcalc.parsers.config import Config
from hwcalc.parsers.reading import Readers, Reading
from hwcalc.parsers.registry import known_family

_MINICPM_V: Final = {"2.0": "minicpm", "2.5": "llama", "2.6": "qwen2", "4.0": "llama", "4.5": "qwen3"}
_MINICPM_O: Final = {"2.6": "qwen2", "4.5": "qwen3"}


def minicpm_version(config: Config, default: str = "") -> str:
    """The version of a MiniCPM-V or MiniCPM-o, such as ``2.6``."""
    given = config.get("version")
    if given is None:
        first = config.integer("hidden_size") == 2304 and config.maybe_integer("query_num") == 64
        return default or ("2.0" if first else "2.5")
    return str(given) if "." in str(given) else f"{given}.0"


def _by_version(types: Mapping[str, str], default: str = "") -> Callable[[Config], str]:
    def model_type(config: Config) -> str:
        found = types.get(minicpm_version(config, default))
        if found is None:
            raise config.error("version", config.get("version"), f"one of {', '.join(types)}")
        return found

    return model_type


def _of(model_type: Callable[[Config], str]) -> Readers:
    """A family that reads the file as the model type that ``model_type`` finds in it."""

    def read(config: Config) -> Reading:
        inner = model_type(config)
        # MiniCPM-o: whether sound comes in pieces.
        config.ignore("chunk_input")
        return known_family(inner).read(config.sub("text_config", inner) or config.retyped(inner))

    def weigh(_config: Config, top: Config, reading: Reading) -> Sequence[Block] | None:
        return known_family(reading.config.model_type).weigh(reading.config, top, reading)

    return Readers(layers=read, weights=weigh)


MINICPM_V: Final = _of(_by_version(_MINICPM_V))
MINICPM_O: Final = _of(_by_version(_MINICPM_O, default="2.6"))
KEYE: Final = _of(lambda _config: "qwen3")

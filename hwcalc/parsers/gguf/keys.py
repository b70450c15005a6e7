"""The metadata of a GGUF file, with checked values. A wrong value is an error that names the key, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hwcalc.errors import ConfigError
from hwcalc.formulas import MAX_DIMENSION
from hwcalc.model import GGUF_ARCHITECTURE, VOCABULARY
from hwcalc.text import quoted, shown

__all__ = ["MAX_LAYERS", "Keys", "architecture_name"]

MAX_LAYERS: Final = 512
"""``LLAMA_MAX_LAYERS`` (src/llama-hparams.h): most blocks of a file, and most entries of a list per layer."""

_HINT: Final = "Check that the keys are those of the file: kvplan reads them as llama.cpp does."


def architecture_name(keys: Mapping[str, Any]) -> str:
    """The value of ``general.architecture``."""
    name = keys.get(GGUF_ARCHITECTURE)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{GGUF_ARCHITECTURE} is {quoted(name)}, but must be a name such as llama.", hint=_HINT)
    return name


class Keys:
    """The keys of one file. Getters take a key without the architecture in front: ``attention.head_count``."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self.values = values
        self.architecture = architecture

    def get(self, key: str) -> Any:
        """The value as it is; ``None`` if the file has no such key."""
        return self.values.get(f"{self.architecture}.{key}")

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self.get(key) is not None

    def is_list(self, key: str) -> bool:
        """Whether the file has a list under this key."""
        return isinstance(self.get(key), (list, tuple))

    def error(self, key: str, value: object, allowed: str) -> ConfigError:
        """Make the error about a value. The caller raises it."""
        return ConfigError(f"{shown(self.architecture, 40)[1:-1]}.{key} is {quoted(value)}, but must be {allowed}.", hint=_HINT)

    def missing(self, key: str) -> ConfigError:
        """Make the error about a missing key. The caller raises it."""
        name = shown(self.architecture, 40)[1:-1]
        return ConfigError(f"{name}.{key} is missing: llama.cpp does not load a {name} file without it.", hint=_HINT)

    def whole(self, key: str, default: int | None = 0, *, minimum: int = 0, maximum: int = MAX_DIMENSION) -> int:
        """A whole number. Without a default the key must be there."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        return self._whole(key, value, minimum, maximum)

    def _whole(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(key, value, f"a whole number from {minimum:,} to {maximum:,}")
        return value

    def switch(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def per_layer(self, key: str, layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """One number for each layer: a list of that length, or one number for all. Without a default it must be there."""
        if not self.has(key):
            if default is None:
                raise self.missing(key)
            return tuple(default)
        if not self.is_list(key):
            return (self.whole(key),) * layers
        numbers = self.numbers(key)
        if len(numbers) != layers:
            raise self.error_in_words(key, f"a list of {len(numbers):,}", f"one number, or a list of {layers:,}")
        return numbers

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; true counts as 1. It has no entry if the file has no such key."""
        values = self.get(key)
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)):
            raise self.error(key, values, "a list")
        if len(values) > MAX_LAYERS:
            raise self.error_in_words(key, f"a list of {len(values):,}", f"a list of at most {MAX_LAYERS:,}")
        return tuple(int(value) if isinstance(value, bool) else self._whole(key, value, 0, MAX_DIMENSION) for value in values)

    def error_in_words(self, key: str, words: str, allowed: str) -> ConfigError:
        """As :meth:`error`, about a value that is described and not shown."""
        return ConfigError(f"{shown(self.architecture, 40)[1:-1]}.{key} is {words}, but must be {allowed}.", hint=_HINT)

    def vocabulary(self) -> int:
        """The number of tokens: of the list, or as the file says; 0 if it does not say."""
        count = self.values.get(VOCABULARY)
        tokens = self.values.get("tokenizer.ggml.tokens")
        if count is None and isinstance(tokens, (list, tuple)):
            count = len(tokens)
        if count is None:
            return self.whole("vocab_size")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_DIMENSION:
            raise ConfigError(
                f"{VOCABULARY} is {quoted(count)}, but must be a whole number from 0 to {MAX_DIMENSION:,}.", hint=_HINT
            )
        return count

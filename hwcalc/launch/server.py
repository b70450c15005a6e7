"""A server that a text would start: what it is told, in words that mean the same for all engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hwcalc.formulas.record import Record
from hwcalc.masking import without_tokens
from hwcalc.text import printable

if TYPE_CHECKING:
    from hwcalc.launch.words import Word

KEYS: Final = (
    "engine", "engine_version", "image", "role", "model", "revision", "quantization", "weights", "dtype", "kv_cache_dtype", "max_model_len", "tp",
    "pp", "dp", "ep", "dcp", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_seqs", "max_num_batched_tokens", "block_size", "speculative",
    "lora", "enforce_eager", "cpu_offload", "n_gpu_layers", "ctx", "slots", "cache_type_k", "cache_type_v", "gpu", "gpus_per_replica", "instance",
    "replicas",
)  # fmt: skip
"""The settings that several engines mean alike, in the order of the JSON. What else bears on memory stands in ``extra``."""
FILE_NAME: Final = "(file name)"
"""Stands behind a format of weights that the name of a file states, and no repository."""
CUT_FROM: Final = "cut_from"
"""The setting, beside :data:`KEYS`, that names the accelerator of a MIG slice."""


class Server(Record):
    """A server. ``settings`` has the values of :data:`KEYS` that the text states, in the engine's units resolved; ``extra`` the engine's other words.

    ``unresolved`` says what the text leaves open, ``asks`` the names of the variables that would close it. ``irrelevant`` are the flags on which no
    byte depends, ``unknown`` those that the engine does not know, and ``unplanned`` those that bear on memory in a way that no plan counts, with the
    reason. ``places`` has the word that each setting was read from, and flags that are wrong by their own names; ``words`` are all arguments, and
    ``name`` is what the text calls the server. It ``joins`` others where the text starts Ray, so that further nodes may have GPUs for it. ``repeated``
    are sentences on keys that stand twice, ``variables`` is what it is started with: ``NAME=VALUE``. ``env_files`` has the files of those that bear
    on its plan and stand in one.
    """

    settings: Mapping[str, Any]
    extra: Mapping[str, Any] = MappingProxyType({})
    unresolved: tuple[str, ...] = ()
    irrelevant: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unplanned: Mapping[str, str] = MappingProxyType({})
    asks: tuple[str, ...] = ()
    places: Mapping[str, Word] = MappingProxyType({})
    words: tuple[Word, ...] = ()
    name: str = ""
    line: int = 1
    faults: tuple[str, ...] = ()
    joins: bool = False
    repeated: tuple[str, ...] = ()
    variables: frozenset[str] = frozenset()
    env_files: Mapping[str, str] = MappingProxyType({})

    @property
    def lines(self) -> dict[str, int]:
        """The line of each setting that stands in the text."""
        return {name: word.line for name, word in self.places.items() if word.line}

    def __getattr__(self, name: str) -> Any:
        """A setting by its name; ``None`` where the text does not state it."""
        if name in KEYS:
            return self.settings.get(name)
        message = f"a server has no {name!r}"
        raise AttributeError(message)

    def to_dict(self) -> dict[str, Any]:
        """The server as plain values: every key of :data:`KEYS`, ``None`` where the text says nothing, and the lists. No secret is in it."""
        document: dict[str, Any] = {key: _plain(self.settings.get(key)) for key in KEYS}
        document["extra"] = _plain(self.extra)
        document["unresolved"] = [without_tokens(each) for each in self.unresolved]
        document["irrelevant"] = [without_tokens(each) for each in self.irrelevant]
        return document

    def __repr__(self) -> str:
        said = ", ".join(
            f"{key}={self.settings[key]!r}" for key in ("engine", "model", "tp", "max_model_len") if key in self.settings
        )
        return f"<Server: {without_tokens(said)}>"


def names_of(servers: Iterable[Server]) -> list[str]:
    """What the servers of a text are called: by their names there, else by engine and model, as it stands there. The second of one name has ``(2)`` behind it."""
    out, known = list[str](), Counter[str]()
    for server in servers:
        word = server.places.get("model")
        model = server.model or (word.text if word is not None else "") or "model not known"
        name = printable(server.name) or f"{server.settings.get('engine')} {printable(str(model))}"
        known[name] += 1
        out.append(name if known[name] == 1 else f"{name} ({known[name]})")
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_tokens(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value

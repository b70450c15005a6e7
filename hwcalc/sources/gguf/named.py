"""Names of GGUF files on the Hub as people write them: ``org/name:Q4_K_M``, ``org/name/file.gguf``, an address of a file."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from hwcalc.formulas.record import Record
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.gguf.names import is_gguf

__all__ = ["GgufName", "gguf_name"]

_HUB: Final = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.+)", re.DOTALL | re.IGNORECASE)
_ADDRESS: Final = re.compile(r"([^/]+/[^/]+)/(?:resolve|blob|raw)/([^/]+)/(.+)", re.DOTALL)
_REPOSITORY: Final = re.compile(r"([^/:@]+/[^/:@]+)(?:@([^:]+))?:([^:@]+)(?:@(.+))?", re.DOTALL)
_PATH: Final = re.compile(r"([^/:@]+/[^/:@]+)/([^:@]+)(?:@(.+))?", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +()/-]{0,199}")
_LATEST: Final = "latest"


class GgufName(Record):
    """A repository, the file or quantisation in it (empty: llama.cpp's choice), and a revision."""

    repository: str
    file: str
    revision: str | None = None


def gguf_name(text: str) -> GgufName | None:
    r"""What a text names, if it is a GGUF file on the Hub.

    >>> gguf_name("bartowski/x-GGUF:Q4_K_M"), gguf_name("hf.co/bartowski/x-GGUF:latest")
    (GgufName(repository='bartowski/x-GGUF', file='Q4_K_M', revision=None), GgufName(repository='bartowski/x-GGUF', file='', revision=None))
    >>> gguf_name("https://huggingface.co/org/x/resolve/main/q4/a.gguf?download=true")
    GgufName(repository='org/x', file='q4/a.gguf', revision='main')
    >>> gguf_name("org/x/a.gguf"), gguf_name("org/x"), gguf_name("C:/x:y")
    (GgufName(repository='org/x', file='a.gguf', revision=None), None, None)
    """
    on_hub = _HUB.fullmatch(text)
    if on_hub is not None:
        path = unquote(re.split(r"[?#]", on_hub[1], maxsplit=1)[0])
        address = _ADDRESS.fullmatch(path)
        if address is not None:
            return _named(address[1], address[3], address[2]) if is_gguf(address[3]) else None
        text = path
    match = _REPOSITORY.fullmatch(text)
    if match is not None:
        return _named(match[1], match[3], match[2] or match[4])
    match = _PATH.fullmatch(text)
    return _named(match[1], match[2], match[3]) if match is not None and is_gguf(match[2]) else None


def _named(repository: str, file: str, revision: str | None) -> GgufName | None:
    sound = is_model_id(repository) and _WORD.fullmatch(file) and ".." not in file and "//" not in file
    if not sound:
        return None
    return GgufName(repository=repository, file="" if file.lower() == _LATEST else file, revision=revision)

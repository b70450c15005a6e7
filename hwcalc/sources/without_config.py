"""A repository without a ``config.json``: read ``params.json`` or a GGUF file instead, or explain what the repository contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.errors import KvplanError, ModelNotFoundError, UnsupportedError
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.document import LARGEST_DOCUMENT, parse_document
from hwcalc.sources.gguf.names import is_gguf
from hwcalc.text import operand, shown

if TYPE_CHECKING:
    from hwcalc.model import RawModel
    from hwcalc.sources.repository import Repository
    from hwcalc.sources.wanted import Wanted

__all__ = ["without_config"]


def without_config(repository: Repository, wanted: Wanted) -> bytes | RawModel | None:
    """The content of ``params.json``, or the model of a GGUF file; ``None`` if the repository does not exist.

    Raises :class:`~hwcalc.errors.UnsupportedError` if the repository holds an adapter, and
    :class:`~hwcalc.errors.ModelNotFoundError` if it holds configs in folders or nothing that describes a model.
    """
    listing = repository.listing()
    if listing is None:
        return repository.whole("params.json", LARGEST_DOCUMENT)
    names = listing.names
    what = f"{shown(repository.asked)} on {repository.client.name}"
    if "params.json" in names:
        return repository.whole("params.json", LARGEST_DOCUMENT)
    if "adapter_config.json" in names:
        base = _base_of_adapter(repository) or listing.base
        raise UnsupportedError(
            f"{what} is an adapter{f' for {base}' if base else ''}: the model that it is loaded into has the cache.",
            hint=f"Plan the base model: kvplan {base}" if base else "Plan the base model that its page names.",
        )
    inner = [name.removesuffix("/config.json") for name in names if name.endswith("/config.json")]
    if inner:
        listed = ", ".join(shown(name) for name in inner[:6]) + (", ..." if len(inner) > 6 else "")
        many = "several configs, each" if len(inner) > 1 else "its config"
        raise ModelNotFoundError(
            f"{what} has {many} in a folder: {listed}.",
            hint=f"Choose one and plan it as a folder: {_download(repository.asked, f'{inner[0]}/config.json')}",
        )
    if any(is_gguf(name) for name in names):
        from hwcalc.sources.gguf.hub import read_repository

        return read_repository(repository, names, wanted)
    content = "is empty" if not set(names) - {".gitattributes", "README.md"} else "has no config.json"
    raise ModelNotFoundError(
        f"{what} {content}: nothing in it describes a model.",
        hint="Check the id; any model's folder or config.json will do as well.",
    )


def _download(asked: str, name: str) -> str:
    """The command that downloads one file, whose name the Hub gave."""
    if name.startswith("-"):
        return f"hf download --local-dir . {asked} {operand(name)}"
    return f"hf download {asked} {operand(name)} --local-dir ."


def _base_of_adapter(repository: Repository) -> str:
    try:
        data = repository.whole("adapter_config.json", LARGEST_DOCUMENT)
        document = {} if data is None else parse_document(data, "adapter_config.json")
    except KvplanError:
        return ""
    base = document.get("base_model_name_or_path")
    return base if isinstance(base, str) and is_model_id(base) else ""

"""Read a model: :func:`load_model`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

from hwcalc.errors import ConfigError
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers import parse
from hwcalc.parsers.limits import MAX_NAME
from hwcalc.planner.asked import Access, read_options

__all__ = ["ModelLike", "load", "load_model"]

ModelLike = str | os.PathLike[str] | Mapping[str, Any] | IO[str] | IO[bytes] | ModelSpec


def load_model(
    model: ModelLike,
    *,
    revision: str | None = None,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    headers: bool = True,
    assume: str | None = None,
) -> ModelSpec:
    """Read a model: an id, a path, an open ``config.json``, or a config dict.

    If neither the Hugging Face cache nor the catalog knows an id, the Hub is asked, unless ``offline`` or ``HF_HUB_OFFLINE`` forbids it.
    With ``headers``, the headers of weight files beside the config are read too, for exact weight bytes.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if no source knows the model, :class:`~hwcalc.errors.ConfigError` (or a subclass)
    if its config cannot be understood, and :class:`~hwcalc.errors.HubError` if the Hub is needed but does not deliver it.
    """
    asked = read_options({"revision": revision, "assume": assume, "offline": offline, "token": token, "endpoint": endpoint})
    return load(model, asked.access, revision=asked.revision, assume=asked.assume, headers=headers)


def load(
    model: ModelLike, access: Access, *, revision: str | None = None, assume: str | None = None, headers: bool = True
) -> ModelSpec:
    """As :func:`load_model`, with options that were already parsed."""
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, Mapping):
        from hwcalc.sources.document import check_document

        check_document(model, "the config")
        name = model.get("_name_or_path")
        raw = RawModel(
            id=name if isinstance(name, str) and 0 < len(name) <= MAX_NAME else "config", config=model, source="python"
        )
        return parse(raw, assume=assume)
    from hwcalc.sources import resolve, resolve_stream

    if isinstance(model, (str, os.PathLike)):
        return parse(resolve(model, revision=revision, weights=headers, **vars(access)), assume=assume)
    if hasattr(model, "read"):
        return parse(resolve_stream(model), assume=assume)
    raise ConfigError(f"a model must be an id, a path, an open file or a config dict (got {type(model).__name__}).")

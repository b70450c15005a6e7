"""Reading a model: :func:`load_model`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

from hwcalc.errors import ConfigError
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers import parse
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

    An id that neither the Hugging Face cache nor the catalog knows is asked of the Hub, unless ``offline`` or ``HF_HUB_OFFLINE``
    forbids it. With ``headers`` the headers of weight files that lie with the config are read too, for exact weight bytes.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if no source knows it and :class:`~hwcalc.errors.ConfigError` (or a
    subclass) if its config cannot be understood; :class:`~hwcalc.errors.HubError` if the Hub is needed and does not give it.
    """
    asked = read_options({"revision": revision, "assume": assume, "offline": offline, "token": token, "endpoint": endpoint})
    return load(model, asked.access, revision=asked.revision, assume=asked.assume, headers=headers)


def load(
    model: ModelLike, access: Access, *, revision: str | None = None, assume: str | None = None, headers: bool = True
) -> ModelSpec:
    """The same with options that were read already."""
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, Mapping):
        called = model.get("_name_or_path")
        raw = RawModel(id=called if isinstance(called, str) and called else "config", config=model, source="python")
        return parse(raw, assume=assume)
    from hwcalc.sources import resolve, resolve_stream

    if isinstance(model, (str, os.PathLike)):
        return parse(resolve(model, revision=revision, weights=headers, **vars(access)), assume=assume)
    if hasattr(model, "read"):
        return parse(resolve_stream(model), assume=assume)
    raise ConfigError(f"a model must be an id, a path, an open file or a config dict (got {type(model).__name__}).")

"""Read a model: :func:`load_model`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec.structs import asdict

from hwcalc.errors import ConfigError, KvplanError, UnknownArchitectureError, UnreadKeysError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.model import GGUF_ARCHITECTURE, ModelLike, ModelSpec, RawModel
from hwcalc.parsers.config import MAX_NAME
from hwcalc.parsers.parse import parse
from hwcalc.planner.asked import Access, Asked, read_options
from hwcalc.planner.values import read_flag
from hwcalc.sources.request import tell
from hwcalc.text import message as safe_message
from hwcalc.text import printable


class Missing(Record):
    """A model among several that could not be read. It becomes a row with the reason."""

    id: str
    error: KvplanError


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
    """Read a model: an id, a path, an open ``config.json`` or GGUF file, a config dict, or a dict of GGUF metadata.

    If neither the Hugging Face cache nor the catalog knows an id, the Hub is asked, unless ``offline`` or ``HF_HUB_OFFLINE`` forbids it.
    With ``headers``, the headers of weight files beside the config are read too, for exact weight bytes.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if no source knows the model, :class:`~hwcalc.errors.ConfigError` (or a subclass)
    if its config cannot be understood, and :class:`~hwcalc.errors.HubError` if the Hub is needed but does not deliver it.
    """
    asked = read_options({"revision": revision, "assume": assume, "offline": offline, "token": token, "endpoint": endpoint})
    return load(model, asked.access, revision=asked.revision, assume=asked.assume, headers=read_flag(headers, "headers"))


def load(
    model: ModelLike | None,
    access: Access,
    *,
    revision: str | None = None,
    assume: str | None = None,
    headers: bool = True,
    dimensions: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """As :func:`load_model`, with options that were already parsed.

    ``dimensions`` replace those of the model; without a model they are the bare equation.
    """
    if model is None:
        return _equation(dimensions or {})
    if isinstance(model, ModelSpec):
        if dimensions:
            raise UsageError("a model that was read already keeps its dimensions.", hint="Give its config, id or path instead.")
        return model
    raw = _described(model, access, revision, headers=headers)
    if dimensions:
        from hwcalc.parsers.dimensions import Changes

        return Changes(raw, assume).model(dimensions)
    try:
        return parse(raw, assume=assume)
    except ConfigError as error:
        named = isinstance(error, (UnknownArchitectureError, UnreadKeysError)) or error.message.startswith("--")
        if raw.source in ("local", "gguf", "stdin") and raw.location and not named:
            # The file is at fault.
            error.message = safe_message(f"{raw.location}: {error.message}")
            error.args = (error.message,)
        raise error from error.__cause__


def with_dimensions(
    model: ModelLike | None, access: Access, given: Mapping[str, Any], *, revision: str | None = None, assume: str | None = None
) -> Callable[[Mapping[str, int]], ModelSpec] | None:
    """Makes the model with the ``given`` dimensions and others, again and again; its description is read once, when it is first needed.

    ``None`` for a model that can be read only once, or was read already, and for layers that are written down.
    """
    if "layers_of" in given:
        return None
    if model is None:
        return lambda dimensions: _equation({**given, **dimensions})
    if not isinstance(model, (str, os.PathLike, Mapping)) or model == "-":
        return None
    from hwcalc.parsers.dimensions import Changes

    changes = cache(lambda: Changes(_described(model, access, revision, headers=False), assume))
    return lambda dimensions: changes().model({**given, **dimensions})


def _equation(dimensions: Mapping[str, Any]) -> ModelSpec:
    from hwcalc.parsers.dimensions import EXAMPLE, equation_model

    if not dimensions:
        raise UsageError("no MODEL is named.", hint=f"Write: kvplan MODEL, or the bare equation:\n{EXAMPLE}")
    return equation_model(dimensions)


def _described(model: Any, access: Access, revision: str | None, *, headers: bool) -> RawModel:
    """The description of a model, from wherever it is."""
    if isinstance(model, Mapping):
        from hwcalc.sources.document import check_document

        if GGUF_ARCHITECTURE in model:
            # Readers of GGUF files give numbers and lists of numpy's.
            model = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in model.items()}
        check_document(model, "the config")
        return RawModel(id=_own_name(model), config=model, source="python")
    from hwcalc.sources import resolve, resolve_stream

    if isinstance(model, (str, os.PathLike)):
        return resolve(model, revision=revision, weights=headers, **asdict(access))
    if hasattr(model, "read"):
        return resolve_stream(model)
    raise ConfigError(f"a model must be an id, a path, an open file or a config dict (got {type(model).__name__}).")


def _own_name(config: Mapping[str, Any]) -> str:
    """The name of a model that is a dict: what it calls itself, without control characters, else ``config``."""
    name = config.get("general.name" if GGUF_ARCHITECTURE in config else "_name_or_path")
    return printable(name) if isinstance(name, str) and 0 < len(name) <= MAX_NAME else "config"


def load_each(given: Sequence[ModelLike | None], asked: Asked, *, keep_going: bool = False) -> tuple[ModelSpec | Missing, ...]:
    """Read several models, as the options say. One that cannot be read does not end the others.

    Raises the first error if no model can be read, unless ``keep_going`` is set.
    """
    models: list[ModelSpec | Missing] = []
    for number, model in enumerate(given, 1):
        # One that is read alone may be one of several that are asked for.
        tell(f"reading model {number:,} of {len(given):,}" if len(given) > 1 else "reading a model")
        try:
            models.append(load(model, asked.access, revision=asked.revision, assume=asked.assume, dimensions=asked.dimensions))
        except KvplanError as error:
            if isinstance(model, (str, os.PathLike)):
                models.append(Missing(id=os.fspath(model), error=error))
                continue
            name = _own_name(model) if isinstance(model, Mapping) else getattr(model, "name", None)
            models.append(Missing(id=name if isinstance(name, str) and name else "config", error=error))
    missing = [model for model in models if isinstance(model, Missing)]
    wrong = next((model.error for model in missing if isinstance(model.error, UsageError)), None)
    if missing and not keep_going and (wrong is not None or len(missing) == len(models)):
        raise wrong or missing[0].error
    return tuple(models)

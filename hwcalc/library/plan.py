"""The library: :func:`load_model` and :func:`plan`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

from hwcalc.engines import find_engine
from hwcalc.errors import ConfigError, UsageError
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers import parse
from hwcalc.planner.plan import plan_model
from hwcalc.planner.result import Plan
from hwcalc.units import parse_bytes, parse_share, parse_tokens

__all__ = ["ModelLike", "load_model", "opened", "option_draft", "plan"]

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
    for name, value in {"revision": revision, "assume": assume, "token": token, "endpoint": endpoint}.items():
        if value is not None and not isinstance(value, str):
            shown = type(value).__name__ if name == "token" else f"{value!r:.60}"
            raise UsageError(f"{name} must be a string (got {shown}).")
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, Mapping):
        called = model.get("_name_or_path")
        raw = RawModel(id=called if isinstance(called, str) and called else "config", config=model, source="python")
        return parse(raw, assume=assume)
    from hwcalc.sources import resolve, resolve_stream

    if isinstance(model, (str, os.PathLike)):
        raw = resolve(model, revision=revision, offline=offline, token=token, endpoint=endpoint, weights=headers)
        return parse(raw, assume=assume)
    if hasattr(model, "read"):
        return parse(resolve_stream(model), assume=assume)
    raise ConfigError(f"a model must be an id, a path, an open file or a config dict (got {type(model).__name__}).")


def plan(
    model: ModelLike,
    *,
    seq: int | str | None = None,
    batch: int | str = 1,
    dtype: str | None = None,
    engine: str = "reference",
    encoder_seq: int | str | None = None,
    engine_options: Mapping[str, object] | None = None,
    weights: str | None = None,
    gpu: str | None = None,
    gpus: int | str | None = None,
    instance: str | None = None,
    tp: int | str = 1,
    pp: int | str = 1,
    dp: int | str = 1,
    dcp: int | str = 1,
    ep: int | str = 1,
    memory_utilization: float | str | None = None,
    kv_memory: int | str | None = None,
    margin: float | str | None = None,
    lora: str | None = None,
    draft: ModelLike | None = None,
    revision: str | None = None,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    assume: str | None = None,
) -> Plan:
    """Plan the cache of ``batch`` sequences of ``seq`` tokens, and the weights beside it, as published or as ``weights``.

    Keyword arguments are the command's options with ``_`` for ``-``; token counts may be written ``"32k"``. ``model`` is
    whatever :func:`load_model` takes. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.

    >>> config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...           "hidden_size": 4096, "torch_dtype": "bfloat16"}
    >>> plan(config, seq="32k").cache.total_bytes
    4294967296
    """
    # The arguments as they were given: nothing else has a name yet.
    given = {name: value for name, value in locals().items() if name != "model"}
    spec, request = opened(model, given)
    return plan_model(spec, **request)


def opened(model: ModelLike, given: Mapping[str, Any]) -> tuple[ModelSpec, dict[str, Any]]:
    """The model, and the keywords of :func:`plan` among ``given`` as the planner takes them. What is wrong by itself is said first."""
    given = {"batch": 1, "engine": "reference", "offline": False, **given}
    texts = {name: given.get(name) for name in ("dtype", "engine", "weights", "gpu", "instance", "lora")}
    for name, value in texts.items():
        if not isinstance(value, str) and (value is not None or name == "engine"):
            raise UsageError(f"{name} must be a string (got {value!r:.60}).", hint=f'Write {name}="...".')
    request: dict[str, Any] = {
        **{name: text for name, text in texts.items() if name != "lora"},
        "batch": parse_tokens(given["batch"], "batch"),
        **{name: parse_tokens(given[name], name) for name in ("seq", "gpus") if given.get(name) is not None},
        **{name: parse_tokens(given.get(name, 1), name) for name in ("tp", "pp", "dp", "dcp", "ep")},
        **{name: parse_share(given[name], name) for name in ("memory_utilization", "margin") if given.get(name) is not None},
        "engine_options": _options(given.get("engine_options")),
    }
    if "memory_utilization" in request:
        request["memory_utilization"] = float(request["memory_utilization"])
    if given.get("encoder_seq") is not None:
        request["encoder_seq"] = parse_tokens(given["encoder_seq"], "encoder_seq", minimum=0)
    if given.get("kv_memory") is not None:
        request["kv_memory"] = parse_bytes(given["kv_memory"], "kv_memory")
    if texts["lora"] is not None:
        from hwcalc.engines.lora import parse_lora

        request["lora"] = parse_lora(texts["lora"])
    hub = {name: given.get(name) for name in ("offline", "token", "endpoint", "assume")}
    spec = load_model(model, revision=given.get("revision"), **hub)  # type: ignore[arg-type]
    if given.get("draft") is not None:
        request["draft"] = load_model(given["draft"], **hub)  # type: ignore[arg-type]
    else:
        request["option_draft"] = option_draft(request["engine"], request["engine_options"], **hub)
    return spec, request


def option_draft(engine: str, options: Mapping[str, str], **hub: Any) -> ModelSpec | None:
    """The draft that an option of the engine names, loaded from where the model may be; ``None`` where no option names one."""
    named = find_engine(engine)[0].draft_named(options)
    return None if named is None else load_model(named, **hub)


def _options(given: Mapping[str, object] | None) -> dict[str, str]:
    """Engine options as the command line gives them: strings."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"engine_options must be a dict (got {type(given).__name__}).", hint='Write {"cache": "static"}.')
    options: dict[str, str] = {}
    for name, value in (given or {}).items():
        if not isinstance(name, str) or isinstance(value, (list, tuple, dict, set)) or value is None:
            raise UsageError(f"engine_options must map names to plain values (got {name!r:.60}: {value!r:.60}).")
        options[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return options

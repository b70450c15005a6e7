"""The library: :func:`load_model` and :func:`plan`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

from hwcalc.errors import ConfigError, UsageError
from hwcalc.model import ModelSpec, RawModel
from hwcalc.parsers import parse
from hwcalc.planner.plan import plan_model
from hwcalc.planner.result import Plan
from hwcalc.units import parse_bytes, parse_share, parse_tokens

__all__ = ["ModelLike", "load_model", "plan"]

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
    for name, value in {"revision": revision, "assume": assume}.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} must be a string (got {value!r:.60}).")
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
    for name, value in {
        "dtype": dtype,
        "engine": engine,
        "weights": weights,
        "gpu": gpu,
        "instance": instance,
        "lora": lora,
    }.items():
        if not isinstance(value, str) and (value is not None or name == "engine"):
            raise UsageError(f"{name} must be a string (got {value!r:.60}).", hint=f'Write {name}="...".')
    # What is wrong by itself is said before the Hub is asked.
    request: dict[str, Any] = {
        "seq": None if seq is None else parse_tokens(seq, "seq"),
        "batch": parse_tokens(batch, "batch"),
        "encoder_seq": None if encoder_seq is None else parse_tokens(encoder_seq, "encoder_seq", minimum=0),
        "engine_options": _options(engine_options),
        "gpus": None if gpus is None else parse_tokens(gpus, "gpus"),
        **{name: parse_tokens(ranks, name) for name, ranks in {"tp": tp, "pp": pp, "dp": dp, "dcp": dcp, "ep": ep}.items()},
        "memory_utilization": None
        if memory_utilization is None
        else float(parse_share(memory_utilization, "memory_utilization")),
        "kv_memory": None if kv_memory is None else parse_bytes(kv_memory, "kv_memory"),
        "margin": None if margin is None else parse_share(margin, "margin"),
    }
    if lora is not None:
        from hwcalc.engines.lora import parse_lora

        request["lora"] = parse_lora(lora)
    hub = {"offline": offline, "token": token, "endpoint": endpoint, "assume": assume}
    spec = load_model(model, revision=revision, **hub)  # type: ignore[arg-type]
    if draft is not None:
        request["draft"] = load_model(draft, **hub)  # type: ignore[arg-type]
    return plan_model(spec, dtype=dtype, engine=engine, weights=weights, gpu=gpu, instance=instance, **request)


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

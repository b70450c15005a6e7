"""Plan one model: :func:`plan`.

The types of the keywords that functions with ``**options`` take, for type checkers.

A test compares them with the table in :mod:`hwcalc.planner.options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from hwcalc.engines import DEFAULT, find_engine, usual_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.library.load import Missing, ModelLike, load
from hwcalc.model import ModelSpec
from hwcalc.planner.asked import Access, Asked, read_options
from hwcalc.planner.context import open_request
from hwcalc.planner.result import Plan


def plan(
    model: ModelLike | None = None,
    *,
    seq: int | str | None = None,
    batch: int | str = 1,
    dtype: str | None = None,
    engine: str | None = None,
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
    prompt: int | str | None = None,
    policy: object = None,
    policy_rules: str | None = None,
    compaction: str | None = None,
    shared_prefix: int | str | None = None,
    lengths: Sequence[int | str] | str | None = None,
    samples: int | str = 1,
    beams: int | str = 1,
    revision: str | None = None,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    assume: str | None = None,
    layers: int | str | None = None,
    heads: int | str | None = None,
    kv_heads: int | str | None = None,
    head_dim: int | str | None = None,
    hidden_size: int | str | None = None,
    intermediate_size: int | str | None = None,
    vocab_size: int | str | None = None,
    parameters: int | str | None = None,
) -> Plan:
    """Plan the cache of ``batch`` sequences of ``seq`` tokens, and the weights, as published or in the format ``weights``.

    Keyword arguments are the options of the command, with ``_`` in place of ``-``; token counts may be written ``"32k"``. ``model`` may
    be whatever :func:`load_model` takes. Without one, ``layers``, ``heads``, ``kv_heads`` and ``head_dim`` are the bare equation; beside
    one they say what to change. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.

    >>> config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...           "hidden_size": 4096, "torch_dtype": "bfloat16"}
    >>> plan(config, seq="32k").cache.total_bytes
    4294967296
    >>> plan(layers=32, heads=32, kv_heads=8, head_dim=128, seq="32k").cache.total_bytes
    4294967296
    """
    given = {
        "seq": seq, "batch": batch, "dtype": dtype, "engine": engine, "encoder_seq": encoder_seq,
        "engine_options": engine_options, "weights": weights, "gpu": gpu, "gpus": gpus, "instance": instance, "tp": tp,
        "pp": pp, "dp": dp, "dcp": dcp, "ep": ep, "memory_utilization": memory_utilization, "kv_memory": kv_memory,
        "margin": margin, "lora": lora, "draft": draft, "prompt": prompt, "policy": policy, "policy_rules": policy_rules,
        "compaction": compaction, "shared_prefix": shared_prefix, "lengths": lengths, "samples": samples,
        "beams": beams, "revision": revision, "offline": offline, "token": token,
        "endpoint": endpoint, "assume": assume, "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "hidden_size": hidden_size, "intermediate_size": intermediate_size, "vocab_size": vocab_size,
        "parameters": parameters,
    }  # fmt: skip
    return _planned(model, read_options(given))


def _planned(model: ModelLike | None, asked: Asked) -> Plan:
    from hwcalc.planner.change import command_line
    from hwcalc.planner.plan import plan_model

    spec, request = load_request(model, asked)
    return plan_model(spec, line=command_line(spec, request, model=model, asked=asked), **request)


def plan_loaded(model: ModelSpec, given: Mapping[str, Any], draft: ModelSpec | None = None, *, advise: bool = False) -> Plan:
    """Plan as :func:`plan` does, but read nothing: a draft in ``given`` is loaded, and ``draft`` is the one an engine option names.

    The plan offers no changes unless ``advise`` is set.
    """
    from hwcalc.planner.plan import plan_model

    return plan_model(model, advise=advise, **request_of(given, draft))


def open_loaded(model: ModelSpec, given: Mapping[str, Any], draft: ModelSpec | None = None) -> tuple[Occupancy, dict[str, Any]]:
    """The opened request of :func:`plan_loaded`, and its parsed keywords, for those who ask more of it than a plan."""
    request = request_of(given, draft)
    return open_request(model, **request), request


def request_of(given: Mapping[str, Any], draft: ModelSpec | None = None) -> dict[str, Any]:
    """The parsed keywords of :func:`~hwcalc.planner.context.open_request` for those of :func:`plan_loaded`."""
    asked = read_options(given)
    return asked.keywords() | ({"option_draft": draft} if asked.draft is None else {"draft": asked.draft})


def load_request(model: ModelLike | None, asked: Asked) -> tuple[ModelSpec, dict[str, Any]]:
    """Load the model and its draft. Returns the model, and the keywords of :func:`~hwcalc.planner.context.open_request`."""
    spec = load(model, asked.access, revision=asked.revision, assume=asked.assume, dimensions=asked.dimensions)
    request = asked.keywords()
    if asked.draft is not None:
        request["draft"] = load(asked.draft, asked.access, assume=asked.assume)
    else:
        request["option_draft"] = option_draft(asked.engine, asked.engine_options, asked.access, asked.assume)
    return spec, request


def option_draft(engine: str | None, options: Mapping[str, str], access: Access, assume: str | None) -> ModelSpec | None:
    """Load the draft model that an engine option names; ``None`` if no option names one."""
    named = find_engine(engine)[0].draft_named(options)
    return None if named is None else load(named, access, assume=assume)


def engine_of(model: ModelSpec | Missing, given: str | None) -> str:
    """The engine that plans a model: the one that was ``given``, which may include a version, or the model's own."""
    if given is not None:
        return given
    return DEFAULT if isinstance(model, Missing) else usual_engine(model)


class _Everywhere(TypedDict, total=False):
    """Options that all of these functions take, with or without named hardware."""

    memory_utilization: float | str | None
    lora: str | None
    draft: ModelLike | None
    encoder_seq: int | str | None
    prompt: int | str | None
    policy_rules: str | None
    compaction: str | None
    shared_prefix: int | str | None
    lengths: Sequence[int | str] | str | None
    samples: int | str
    beams: int | str
    engine_options: Mapping[str, object] | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None


class _Dimensions(TypedDict, total=False):
    """Options that change the dimensions of a model, or give them without one."""

    layers: int | str | None
    heads: int | str | None
    kv_heads: int | str | None
    head_dim: int | str | None
    hidden_size: int | str | None
    intermediate_size: int | str | None
    vocab_size: int | str | None
    parameters: int | str | None


class _Hardware(_Everywhere, total=False):
    """Options of functions that can name hardware."""

    gpus: int | str | None
    instance: str | None
    pp: int | str
    dp: int | str
    dcp: int | str
    ep: int | str
    kv_memory: int | str | None


class CompareOptions(_Hardware, _Dimensions, total=False):
    """Options that have the same value in all plans of a comparison."""

    margin: float | str | None


class SweepOptions(CompareOptions, total=False):
    """Options that have the same value in all plans of a sweep."""

    weights: str | None
    engine: str | None


class PlanOptions(SweepOptions, total=False):
    """All options of a plan."""

    policy: object
    seq: int | str | None
    batch: int | str
    dtype: str | None
    gpu: str | None
    tp: int | str


class RecommendOptions(_Everywhere, _Dimensions, total=False):
    """Options of a plan that name no hardware."""

    policy: object
    margin: float | str | None
    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str | None


class ReconcileOptions(_Hardware, total=False):
    """Options of a plan that replace what a log states, or add to it."""

    policy: object
    seq: int | str | None
    batch: int | str | None
    dtype: str | None
    weights: str | None
    gpu: str | None
    tp: int | str | None


class FitOptions(TypedDict, total=False):
    """Options of a plan that many models share on one kind of GPU."""

    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str | None
    engine_options: Mapping[str, object] | None
    gpu: str | None
    gpus: int | str | None
    memory_utilization: float | str | None
    margin: float | str | None


class StrategiesOptions(_Dimensions, total=False):
    """Options of a plan by which ways of allocation differ, or that say how the model is read."""

    seq: int | str | None
    batch: int | str
    prompt: int | str | None
    encoder_seq: int | str | None
    dtype: str | None
    weights: str | None
    engine: str | None
    engine_options: Mapping[str, object] | None
    gpu: str | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None


class ExploreOptions(_Dimensions, total=False):
    """Options of a plan that are chosen when a page opens, that all its states have, or that say how models are read."""

    seq: int | str | None
    batch: int | str
    dtype: str | None
    weights: str | None
    engine: str | None
    gpus: int | str | None
    tp: int | str
    memory_utilization: float | str | None
    margin: float | str | None
    encoder_seq: int | str | None
    assume: str | None
    revision: str | None
    offline: bool
    token: str | None
    endpoint: str | None

"""Plan one model: :func:`plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from hwcalc.engines import DEFAULT, find_engine, usual_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.errors import ModelNotFoundError
from hwcalc.launch.server import Server
from hwcalc.library.load import Missing, load
from hwcalc.model import ModelLike, ModelSpec
from hwcalc.planner.asked import Access, Asked, read_options, take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.options import PlanOptions, takes
from hwcalc.planner.result import Plan

if TYPE_CHECKING:
    from hwcalc.launch.planned import Planned


@takes(PlanOptions)
def plan(model: ModelLike | Server | None = None, **options: Unpack[PlanOptions]) -> Plan:
    """Plan the cache of ``batch`` sequences of ``seq`` tokens, and the weights, as published or in the format ``weights``.

    Keyword arguments are the options of the command, with ``_`` in place of ``-``; token counts may be written ``"32k"``. ``model`` may
    be whatever :func:`load_model` takes, or a server that :func:`read_launch` has read, of which ``options`` change what the text says. Without one, ``layers``, ``heads``, ``kv_heads`` and ``head_dim`` are the bare equation; beside
    one they say what to change. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.

    >>> config = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...           "hidden_size": 4096, "torch_dtype": "bfloat16"}
    >>> plan(config, seq="32k").cache.total_bytes
    4294967296
    >>> plan(layers=32, heads=32, kv_heads=8, head_dim=128, seq="32k").cache.total_bytes
    4294967296
    """
    if isinstance(model, Server):
        from hwcalc.launch.planned import planned

        return plan_told(planned(model, options))
    _, asked = take_options("plan", options)
    from hwcalc.planner.command_line import command_line
    from hwcalc.planner.plan import plan_model

    spec, request = load_request(model, asked)
    return plan_model(spec, line=command_line(spec, request, model=model, asked=asked), **request)


def plan_told(told: Planned) -> Plan:
    """The plan of a server that was read, of the longest request that it holds where it is told to allow that."""
    from hwcalc.launch.planned import ON_SERVER, heeded, is_on_server, set_words, with_left

    try:
        made = plan(told.model, **told.options)
    except ModelNotFoundError as error:
        if not is_on_server(told.model):
            raise
        raise ModelNotFoundError(f"{error.message} {ON_SERVER}", hint=f"Add: {set_words('model', 'ORG/NAME')}") from error
    made = plan(told.model, **{**told.options, "seq": made.held_seq}) if told.fitted and made.held_seq else made
    options = with_own_length(told.options, told.own_length, made.model.max_position_embeddings)
    made = made if options is told.options else plan(told.model, **options)
    return with_left(heeded(made, told.variables), told.left)


def with_own_length(options: Mapping[str, Any], name: str, longest: int | None) -> Mapping[str, Any]:
    """The options with the ``longest`` sequence of the model for the engine's option of this ``name``, where users send shorter ones.

    They stay the same where the option has a value, and without a name.
    """
    knobs = options.get("engine_options") or {}
    if (
        not name
        or name in knobs
        or longest is None
        or (read_options({"seq": options.get("seq")}).values["seq"] or longest) >= longest
    ):
        return options
    return {**options, "engine_options": {**knobs, name: str(longest)}}


def plan_loaded(
    model: ModelSpec,
    given: Mapping[str, Any],
    draft: ModelSpec | None = None,
    *,
    advise: bool = False,
    read_with: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan as :func:`plan` does, but read nothing: a draft in ``given`` is loaded, and ``draft`` is the one an engine option names.

    The plan offers no changes unless ``advise`` is set; ``read_with`` are the options with which the model was read, which their command
    lines have too.
    """
    from hwcalc.planner.command_line import command_line
    from hwcalc.planner.plan import plan_model

    request = request_of(given, draft)
    line = command_line(model, request, asked=read_options({**given, **(read_with or {})})) if advise else None
    return plan_model(model, line=line, advise=advise, **request)


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
    named = find_engine(engine)[0].requests.draft_named(options)
    return None if named is None else load(named, access, assume=assume)


def engine_of(model: ModelSpec | Missing, given: str | None) -> str:
    """The engine that plans a model: the one that was ``given``, which may include a version, or the model's own."""
    if given is not None:
        return given
    return DEFAULT if isinstance(model, Missing) else usual_engine(model)

"""Plan one model: :func:`plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from hwcalc.engines import DEFAULT, find_engine, usual_engine
from hwcalc.engines.deployment import Occupancy
from hwcalc.engines.pool import Try
from hwcalc.errors import KvplanError, ModelNotFoundError
from hwcalc.launch.server import Server
from hwcalc.library.load import Missing, load
from hwcalc.model import ModelLike, ModelSpec
from hwcalc.planner.asked import Access, Asked, read_options, take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.options import PlanOptions, takes
from hwcalc.planner.result import Advice, Plan
from hwcalc.planner.verdict import Verdict

if TYPE_CHECKING:
    from hwcalc.launch.planned import Planned
    from hwcalc.planner.command_line import CommandLine


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
    return _plan_asked(model, options)


def _plan_asked(model: ModelLike | None, options: Mapping[str, Any], variables: frozenset[str] = frozenset()) -> Plan:
    """The plan of these options, for an engine that is started with ``variables``."""
    _, asked = take_options("plan", options)
    from hwcalc.planner.command_line import command_line
    from hwcalc.planner.plan import plan_model

    spec, request = load_request(model, asked)
    line = command_line(spec, request, model=model, asked=asked)
    made = plan_model(spec, line=line, **request)
    if variables:
        from hwcalc.launch.planned import heeded

        made = heeded(made, variables)
    return _with_length_taken(made, spec, line, request)


def _with_length_taken(made: Plan, spec: ModelSpec, line: CommandLine, request: Mapping[str, Any]) -> Plan:
    """The plan, whose changes have a length that the engine takes where it refuses the planned one: alone the model's own, or others with it."""
    longest = spec.max_position_embeddings
    if made.fit is None or not made.refused_length or made.fit.verdict is Verdict.FITS or longest is None:
        return made

    def work_out() -> tuple[Try, ...]:
        from hwcalc.planner.plan import plan_model

        shorter = line.changed(seq=longest)
        try:
            now = plan_model(spec, line=shorter, **{**request, "seq": longest})
        except KvplanError:
            return tuple(before.suggestions)
        if now.fit is None or now.refused_length:
            return tuple(before.suggestions)
        told = Try(
            command=shorter.text,
            flag=engine.command.flag("seq", longest),
            effect=f"{longest:,} tokens, the model's maximum",
            settings={"seq": str(longest)},
        )
        serves = now.fit.verdict is Verdict.FITS and (now.within is None or now.within.holds)
        return (told,) if serves else tuple(_beside(told, each) for each in now.fit.suggestions)

    before, engine = made.fit, find_engine(made.request.engine)[0]
    return replace(made, fit=replace(made.fit, suggestions=Advice(work_out)))


def _beside(length: Try, change: Try) -> Try:
    """A change of a plan of another ``length``, told with it; one that has a length of its own stays."""
    if "seq" in change.settings:
        return change
    flag = " ".join(filter(None, (change.flag, length.flag)))
    effect = f"{change.effect}; the length is the model's maximum"
    return replace(change, flag=flag, effect=effect, settings={**length.settings, **change.settings})


def plan_told(told: Planned) -> Plan:
    """The plan of a server that was read, of the longest request that it holds where it is told to allow that."""
    from hwcalc.launch.planned import ON_SERVER, is_on_server, set_words, with_left

    try:
        made = _plan_asked(told.model, told.options, told.variables)
    except ModelNotFoundError as error:
        if not is_on_server(told.model):
            raise
        raise ModelNotFoundError(f"{error.message} {ON_SERVER}", hint=f"Add: {set_words('model', 'ORG/NAME')}") from error
    if told.fitted and made.held_seq:
        made = _plan_asked(told.model, {**told.options, "seq": made.held_seq}, told.variables)
    options = with_own_length(told.options, told.own_length, made.model.max_position_embeddings)
    made = made if options is told.options else _plan_asked(told.model, options, told.variables)
    return with_left(made, told.left)


def with_own_length(options: Mapping[str, Any], name: str, longest: int | None) -> Mapping[str, Any]:
    """The options with the ``longest`` sequence of the model for the engine's option of this ``name``, where users send shorter ones.

    They stay the same where the option has a value, and without a name.
    """
    knobs = options.get("engine_options") or {}
    if (
        not name
        or name in knobs
        or longest is None
        or (read_options({"seq": options.get("seq")}).values.get("seq") or longest) >= longest
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

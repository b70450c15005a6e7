"""What helps a plan for a machine of one's own before other hardware does: the engine of ``fit``, the memory of the host, and larger batches.

All are planned before they are offered, as every other change is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwcalc.engines import AT_HOME, DEFAULT
from hwcalc.engines.pool import Try
from hwcalc.engines.runs_on import usual_server
from hwcalc.errors import KvplanError
from hwcalc.planner import solve
from hwcalc.planner.asked import Asked
from hwcalc.planner.context import open_request
from hwcalc.planner.expected import speed_of, speed_words
from hwcalc.planner.options import HOST_MEMORY, LIMITS, ROWS
from hwcalc.planner.values import AUTO, TYPES, unit_text
from hwcalc.planner.verdict import places_text
from hwcalc.profiles.gpus import usual_host_gb
from hwcalc.units import few_digits, parse_size

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.command_line import CommandLine

DECENT: Final = 4
"""Bits of a weight. With fewer the answers of a model suffer."""
_FAR: Final = 1.5
"""How many times as fast a prompt is at least with another batch that is offered."""
_OWN: Final = ("engine", "draft", *LIMITS)
"""Options of who chose an engine already, or its memory."""


def at_home(opened: Occupancy, line: CommandLine) -> tuple[Try, ...]:
    """The plan of the engine that :func:`~hwcalc.library.fit.fit` takes on this GPU, in the format that it takes; none if that does not fit.

    It is for a ``line`` that names a GPU and neither an engine nor limits of its memory, where people mostly run that engine.
    """
    gpu, given = opened.setup.hardware.gpu, {name: value for name, value in line.given.items() if name in ROWS}
    if any(given.get(name) is not None for name in _OWN) or opened.engine.name != DEFAULT:
        return ()
    if gpu is None or usual_server(gpu) != AT_HOME:
        return ()
    # What is planned without a length is this one: the engine would shorten it.
    length = {} if given.get("lengths") else {"seq": opened.tokens}
    settings = {**length, "engine": AT_HOME, "weights": given.get("weights") or AUTO}
    try:
        found = open_request(opened.model, **{**Asked(values=given).keywords(), **settings})
        verdict = solve.verdict_of(found)
    except KvplanError:
        return ()
    settings["weights"] = found.setup.weights
    what = f"{found.engine.label}{'' if found.setup.weights is None else f', {found.setup.weights} weights'}"
    larger = () if verdict.fits and verdict.certain else more_memory(found, line.changed(**settings))
    if larger:
        one = larger[0]
        return (_try(line, {**settings, "ram": ROWS["ram"].read(one.settings["ram"])}, f"{what}, {one.effect}"),)
    if not verdict.fits:
        return ()
    return (_try(line, settings, _effect(what, found, sure=verdict.certain)),)


def more_memory(opened: Occupancy, line: CommandLine) -> tuple[Try, ...]:
    """The smallest usual memory of the host with which this surely fits; none where the memory of the host is not what it lacks."""
    gpu = opened.setup.hardware.gpu
    # A machine with one memory is sold with as much as it has.
    if gpu is None or gpu.shares_host_memory or "host memory" not in {opened.devices.lacking(end) for end in ("low", "expected")}:
        return ()
    given = opened.setup.options.get(HOST_MEMORY)
    least = 0 if given is None else parse_size(given, HOST_MEMORY)
    own = {name: value for name, value in (line.given.get("engine_options") or {}).items() if name != HOST_MEMORY}
    for size in usual_host_gb():
        ram = ROWS["ram"].read(str(size))
        if ram <= least:
            continue
        found = solve.tried(opened, options={**opened.setup.options, HOST_MEMORY: unit_text(ram)})
        if found is not None and solve.holds(found, "low"):
            what = f"{size} GB of memory in the machine"
            return (_try(line, {"ram": ram, "engine_options": own or None}, _effect(what, found, sure=True)),)
    return ()


def larger_batches(opened: Occupancy, line: CommandLine) -> tuple[Try, ...]:
    """The largest batch of a prompt with which this surely fits, where experts of the host are copied for each and that is far faster.

    None is offered to who chose the batch, nor where whole layers lie on the host: another file helps these first.
    """
    option, settings, placement = opened.engine.facts.chunk_option, opened.setup.options, opened.devices.placement()
    copies = any(place.copied is not None for place in opened.told(opened.devices.reads()))
    if not copies or placement is None or placement.host.layers or not placement.experts_on_host:
        return ()
    if not option or option in settings or not solve.holds(opened):
        return ()
    before = _prompt_s(opened)
    for value in reversed(opened.engine.facts.trade_offs[option].values):
        found = None if before is None else solve.tried(opened, options={**settings, option: value})
        after = None if found is None else _prompt_s(found)
        if found is not None and before and after and before >= _FAR * after and solve.holds(found, "low"):
            tokens = found.load.prompt_tokens
            what = (
                f"batches of {int(value):,}: a prompt of {tokens:,} takes {few_digits(after)} s instead of {few_digits(before)}"
            )
            command = line.changed(engine_options={**(line.given.get("engine_options") or {}), option: value}).text
            flag, written = opened.engine.command.flag(option, value), {f"engine_options.{option}": value}
            return (Try(flag=flag, effect=_effect(what, found, sure=True), command=command, settings=written),)
    return ()


def _prompt_s(opened: Occupancy) -> float | None:
    """The seconds that a prompt alone is expected to take; ``None`` where nothing is expected."""
    info = speed_of(opened)
    return None if info is None or info.prefill_s is None else info.prefill_s.expected


def _effect(what: str, found: Occupancy, *, sure: bool) -> str:
    """What changes, where the layers lie then, how fast it decodes, and how sure it is."""
    where, placement = "", found.devices.placement()
    if placement is not None and placement.gpu_layers is not None and placement.all_layers is not None:
        held = {
            "experts": len(placement.experts_on_host),
            "host_bytes": placement.host.needed(),
            "moved_bytes": placement.moved_bytes,
        }
        where = places_text(found.setup.gpus, placement.gpu_layers, placement.all_layers, **held)
    return "; ".join(filter(None, (what, where, speed_words(found), "" if sure else "probably fits")))


def _try(line: CommandLine, settings: dict[str, Any], effect: str) -> Try:
    """The change with its command and the settings that differ from those of the line."""
    written = {name: None if value is None else TYPES[ROWS[name].type].write(value) for name, value in settings.items()}
    differing = {name: text for name, text in written.items() if settings[name] != line.given.get(name)}
    return Try(flag="", effect=effect, command=line.changed(**settings).text, settings=differing)

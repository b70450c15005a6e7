"""Speeds of a model: :func:`speed`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Unpack

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION, Answer, Part
from hwcalc.engines import DEFAULT, ENGINES, find_engine, spelled
from hwcalc.engines.runs_on import usual_server
from hwcalc.errors import UnknownRulesError, UsageError
from hwcalc.formulas.arithmetic import larger, smaller
from hwcalc.formulas.record import Record
from hwcalc.library.plan import load_request
from hwcalc.model import Definition, ModelLike, ModelSpec, Note
from hwcalc.planner.aiconfigurator import STEP_MODEL, averaged
from hwcalc.planner.asked import take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.expected import unmeasured
from hwcalc.planner.forecast import forecast
from hwcalc.planner.options import SpeedOptions, takes
from hwcalc.planner.plan import beyond_maximum
from hwcalc.planner.solve import holds, most
from hwcalc.planner.step_time import speculating, speed_class_of, step_times
from hwcalc.planner.values import AICONFIGURATOR
from hwcalc.profiles.speed import backend_words, backends_of, find_speed_class, measured_engines
from hwcalc.text import quoted
from hwcalc.units import MOST_TOKENS, parse_accepted, parse_tokens

if TYPE_CHECKING:
    from hwcalc.engines.deployment import Occupancy
    from hwcalc.planner.forecast import Quantity
    from hwcalc.profiles.hardware_file import Gpu

Numbers = Any
"""A number, or an array of numbers."""
MOST: Final = "max"
"""As many requests at once as fit."""


class SpeedQuantity(Part):
    """A quantity as the bound that nothing beats, the expected value, and the low and the high end of its range: numbers, or arrays.

    ``low`` is the smaller number: the slow end of a rate, and the fast end of a time. Where nothing like it was measured, all but the bound
    are null. ``source`` says to which measurements the class was fitted, and how far it is off.
    """

    bound: Numbers
    expected: Numbers
    low: Numbers
    high: Numbers
    definition: Definition
    source: str


class Speed(Answer, Record):
    """Speeds of requests that each have a prompt of ``prompt`` tokens and ``output`` tokens of an answer, ``concurrency`` at once.

    ``at_once`` is how many of them fit; others wait. ``step_terms`` are the seconds of each term of a step that decodes all of them, and
    ``prompt_terms`` those of a prompt alone; both add up to the expected time.
    """

    schema_version: str
    kvplan_version: str
    model: str
    engine: str
    gpu: str
    gpus: int
    tp: int
    pp: int
    dp: int
    ep: int
    prompt: Numbers
    output: Numbers
    concurrency: Numbers
    cached_prefix: Numbers
    at_once: Numbers
    prefill_tokens_per_s: SpeedQuantity
    """Of one prompt that is computed alone."""
    decode_tokens_per_s: SpeedQuantity
    """Of all requests while none of them is at its prompt."""
    output_tokens_per_s: SpeedQuantity
    """Of all requests, with the time for their prompts."""
    ttft_s: SpeedQuantity
    """From a request to its first token."""
    itl_s: SpeedQuantity
    """Mean time between two tokens of a request, with what the prompts of others take of it."""
    e2e_s: SpeedQuantity
    """From a request to its last token."""
    speed_class: str | None
    """The class of engine and hardware whose measurements the expected values go by; null where there are none."""
    step_terms: Mapping[str, Numbers]
    prompt_terms: Mapping[str, Numbers]
    notes: tuple[Note, ...]

    def headline(self) -> str:
        rate = self.output_tokens_per_s
        value = rate.bound if rate.expected is None else rate.expected
        words = "at most" if rate.expected is None else "about"
        if not isinstance(value, (int, float)):
            return f"{self.model} on {self.gpus:,} x {self.gpu} with {self.engine}"
        return f"{self.model} on {self.gpus:,} x {self.gpu} with {self.engine}: {words} {value:,.4g} tokens/s"

    def records(self) -> list[dict[str, Any]]:
        return [
            {"quantity": name, **{end: _plain(getattr(getattr(self, name), end)) for end in ("bound", "expected", "low", "high")}}
            for name in QUANTITIES
        ]

    def to_dict(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in QUANTITIES:
            quantity = document[name]
            document[name] = {field: _plain(getattr(quantity, field)) for field in quantity.__struct_fields__}
        for name in ("step_terms", "prompt_terms"):
            document[name] = {term: _plain(value) for term, value in document[name].items()}
        document["notes"] = [{"code": note.code, "message": note.message} for note in self.notes]
        return {name: _plain(value) for name, value in document.items()}


QUANTITIES: Final = ("prefill_tokens_per_s", "decode_tokens_per_s", "output_tokens_per_s", "ttft_s", "itl_s", "e2e_s")


@takes(SpeedOptions)
def speed(
    model: ModelLike | None = None,
    *,
    prompt: Numbers,
    output: Numbers = 1,
    concurrency: Numbers = 1,
    cached_prefix: Numbers = 0,
    accepted_tokens: float = 1,
    backend: str | None = None,
    tuned: bool = True,
    measured: str | None = None,
    **options: Unpack[SpeedOptions],
) -> Speed:
    """Speeds of ``concurrency`` requests at once, each with a prompt of ``prompt`` tokens and an answer of ``output`` tokens.

    ``cached_prefix`` tokens of each prompt lie in the cache already. Numbers may be arrays that broadcast, and are counts as in the command
    otherwise: ``"8k"``. ``concurrency="max"`` is as many as fit. ``backend`` is that of the engine where it has several: ``"vulkan"`` or
    ``"rocm"`` of llama.cpp. Servers are expected to be tuned for the model; with ``tuned=False`` they are started with the defaults of their
    engine, and take as much longer as such servers were measured to. ``accepted_tokens`` are those that a step adds to each request on average
    with speculative decoding, which vLLM logs as mean acceptance length; what drafting takes is not counted. ``measured="aiconfigurator"``
    takes the mean with what that package says, if it is installed. ``options`` are keywords of :func:`hwcalc.plan`; ``gpu`` or ``instance`` is needed. Without ``engine`` it is vLLM
    in a datacenter and llama.cpp elsewhere. It may also be one
    that was measured and is not planned, such as ``"exllamav2"``. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.

    >>> found = speed("meta-llama/Llama-3.1-8B", engine="vllm", gpu="h100-sxm5-80gb", prompt=8000, output=500, concurrency=16)
    >>> round(found.itl_s.bound, 4)
    0.0096
    >>> found.itl_s.bound <= found.itl_s.low < found.itl_s.expected < found.itl_s.high
    True
    """
    given: dict[str, Any] = dict(options)
    named = given.get("engine")
    name = named.lower().strip() if isinstance(named, str) else ""
    foreign = name if name in measured_engines() and spelled(name) not in ENGINES else None
    if foreign is not None:
        # An engine without rules of memory keeps at least what the formulas say.
        given["engine"] = DEFAULT
    _, asked = take_options("speed", given)
    if asked.dp > 1 and asked.ep > 1 and (shares := find_engine(asked.engine or DEFAULT)[0].facts.shared_experts_option):
        # What data parallelism with expert parallelism means there.
        asked = asked.changed(engine_options={shares: "true", **asked.engine_options})
    if backend is not None and not isinstance(backend, str):
        raise UsageError(f"backend is {quoted(backend)}.", hint='Name one: backend="vulkan"')
    if measured is not None and not (isinstance(measured, str) and measured == AICONFIGURATOR):
        raise UsageError(f"measured is {quoted(measured)}.", hint=f'Allowed: measured="{AICONFIGURATOR}"')
    if not isinstance(tuned, bool):
        raise UsageError(f"tuned is {quoted(tuned)}.", hint="Give True or False.")
    if asked.gpu is None and asked.instance is None:
        raise UsageError("speed needs an accelerator.", hint='Name one: gpu="h100". See: kvplan gpus')
    lengths = {
        "prompt": _count(prompt, "prompt", 1),
        "output": _count(output, "output", 1),
        "cached_prefix": _count(cached_prefix, "cached_prefix", 0),
    }
    saturated = isinstance(concurrency, str) and concurrency.strip().lower() == MOST
    users = 1 if saturated else _count(concurrency, "concurrency", 1)
    _check_shapes(**lengths, concurrency=users)
    if _largest(lengths["cached_prefix"] - lengths["prompt"]) >= 0:
        raise UsageError(
            "cached_prefix has as many tokens as the prompt, or more.", hint="At least the last token of a prompt is computed."
        )
    spec, request = load_request(model, asked)
    request |= {
        "seq": _largest(lengths["prompt"] + lengths["output"]),
        "batch": _largest(users),
        "prompt": _largest(lengths["prompt"]),
    }
    opened, refused = _opened(spec, request)
    gpu = opened.setup.hardware.gpu
    assert gpu is not None
    chosen: tuple[Note, ...] = ()
    if named is None and opened.engine.name == DEFAULT:
        # Without an engine there would be a bound alone.
        usual = usual_server(gpu)
        if find_speed_class(usual, gpu) is not None:
            opened, refused = _opened(spec, {**request, "engine": usual})
            chosen = (
                Note(
                    code="default-engine", message=f"As {opened.engine.label} runs it on {gpu.id}. Another engine: --engine NAME."
                ),
            )
    if refused:
        foreign = spelled(str(named))
    if backend is not None:
        _check_backend(foreign or opened.engine.name, gpu, backend)
    found = speed_class_of(opened, backend, foreign)
    if found is not None and not tuned:
        found = found.untuned
    times = step_times(opened, speed_class=found)
    if times is None:
        hint = "Give their format: weights=..."
        raise UsageError(f"no speed of {spec.id}: its weights are not counted.", hint=hint)
    times = speculating(times, opened, parse_accepted(accepted_tokens, "accepted_tokens"))
    if foreign is not None:
        times = replace(times, mixes_prompts=found is not None and "serving" in found.ranges)
    at_once, users = _at_once(opened, lengths, users, saturated=saturated)
    by = STEP_MODEL
    if measured is not None:
        if not all(isinstance(one, int) for one in (*lengths.values(), at_once)):
            raise UsageError("measured is for one load, and there are arrays.", hint="Give numbers, or leave out measured.")
        times, by = averaged(opened, times, concurrency=at_once, **lengths)
    notes = [*chosen, *opened.notes, *refused, *beyond_maximum(opened)]
    if not holds(opened) and not holds(opened.changed(batch=1, prompt=None)):
        message = (
            "By the expected values not even one of the longest requests fits: the speed is that of hardware on which it would."
        )
        notes.append(Note(code="does-not-fit", message=message))
    elif _largest(users - at_once) > 0:
        fit = f"{at_once:,}" if isinstance(at_once, int) else "as many as at_once"
        notes.append(
            Note(code="waiting", message=f"Of the requests at once, {fit} fit in the cache by the expected value; others wait.")
        )
    if found is None:
        notes.append(_unmeasured_note(opened, named))
    values = forecast(times, **lengths, concurrency=at_once, users=users)
    # How many fit is an estimate: the bound is that of all of them at once, if that is faster.
    loose = values if at_once is users else forecast(times, **lengths, concurrency=users)
    new = lengths["prompt"] - lengths["cached_prefix"]
    source = f"{by}; {found.text}" if found is not None else "roofline: no measurements of this engine on this accelerator"
    definition = Definition.ESTIMATE if found is not None else Definition.BOUND

    def shown(quantity: Quantity, bound: Numbers) -> SpeedQuantity:
        return SpeedQuantity(
            bound=bound, expected=quantity.expected, low=quantity.low, high=quantity.high, definition=definition, source=source
        )

    def rate(time: Quantity, tokens: Numbers, loose_time: Quantity, all_tokens: Numbers) -> SpeedQuantity:
        found = time.per_s(tokens)
        return shown(found, larger(found.bound, loose_time.per_s(all_tokens).bound))

    parallel = opened.setup.parallel
    return Speed(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        engine=foreign or opened.engine.name,
        gpu=gpu.id,
        gpus=parallel.gpus,
        tp=parallel.tp,
        pp=parallel.pp,
        dp=parallel.dp,
        ep=parallel.ep,
        **lengths,
        concurrency=users,
        at_once=at_once,
        prefill_tokens_per_s=rate(values.prefill_s, new, loose.prefill_s, new),
        decode_tokens_per_s=rate(values.step_s, at_once * times.accepted_tokens, loose.step_s, users * times.accepted_tokens),
        output_tokens_per_s=rate(values.cycle_s, at_once * lengths["output"], loose.cycle_s, users * lengths["output"]),
        ttft_s=shown(values.ttft_s, values.ttft_s.bound),
        itl_s=shown(values.itl_s, values.itl_s.bound),
        e2e_s=shown(values.e2e_s, smaller(values.e2e_s.bound, loose.e2e_s.bound)),
        speed_class=None if found is None else found.id,
        step_terms=values.step_terms,
        prompt_terms=values.prompt_terms,
        notes=tuple(dict.fromkeys(notes)),
    )


def _opened(spec: ModelSpec, request: Mapping[str, Any]) -> tuple[Occupancy, tuple[Note, ...]]:
    """The occupancy of a request: by the formulas, with a note, where the rules of its engine on the accelerator are not known."""
    try:
        return open_request(spec, **request), ()
    except UnknownRulesError as error:
        opened = open_request(spec, **{**request, "engine": DEFAULT, "engine_options": {}})
        return opened, (Note(code="by-formulas", message=f"{error} The speed is that of what the formulas say of its memory."),)


def _unmeasured_note(opened: Occupancy, named: str | None) -> Note:
    if named is not None:
        return unmeasured(opened)
    message = "No expected speed without an engine: the bound alone. Name one: --engine vllm, --engine llamacpp."
    return Note(code="speed-not-measured", message=message)


def _at_once(opened: Occupancy, lengths: Mapping[str, Numbers], users: Numbers, *, saturated: bool) -> tuple[Numbers, Numbers]:
    """Requests that are served at once, and that there are."""
    if saturated:
        fit = max(1, most(opened).value)
        return fit, fit
    if holds(opened):
        return users, users
    if isinstance(users, int) and all(isinstance(one, int) for one in lengths.values()):
        return max(1, min(users, most(opened).value)), users
    import numpy as np

    seqs, counts = np.broadcast_arrays(lengths["prompt"] + lengths["output"], users)
    fits = {int(seq): max(1, most(opened.changed(seq=int(seq), batch=1, prompt=None)).value) for seq in np.unique(seqs)}
    return np.minimum(counts, np.vectorize(fits.__getitem__)(seqs)), users


def _count(given: Numbers, name: str, least: int) -> Numbers:
    """A count or an array of counts, checked."""
    counts: Numbers
    if isinstance(given, (list, tuple)) or getattr(given, "ndim", False):
        import numpy as np

        try:
            counts = np.asarray(given)
        except ValueError:
            counts = np.array([])
        if counts.dtype.kind not in "iu" or not counts.size:
            raise UsageError(
                f"{name} is no array of whole numbers.", hint="Give whole numbers: 8000, or numpy.array([1000, 8000])."
            )
        counts = counts.astype("int64")
        smallest, largest = int(counts.min()), int(counts.max())
    else:
        counts = smallest = largest = parse_tokens(given, name, minimum=least)
    if smallest < least or largest > MOST_TOKENS:
        wrong = smallest if smallest < least else largest
        raise UsageError(f"{name} is {wrong:,}.", hint=f"Allowed: from {least} to {MOST_TOKENS:,}.")
    return counts


def _check_backend(engine: str, gpu: Gpu, backend: str) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for a backend that is not told from others of the engine on such accelerators."""
    known = backends_of(engine, gpu)
    if not known:
        message = f"backend is {quoted(backend)}, but {engine} on {gpu.id} has no backends that are told apart."
        raise UsageError(message, hint="Leave it out.")
    if not any(word in backend_words(backend) for word in known):
        raise UsageError(f"backend is {quoted(backend)}.", hint=f"Allowed of {engine} on {gpu.id}: {', '.join(known)}.")


def _check_shapes(**given: Numbers) -> None:
    """Raise :class:`~hwcalc.errors.UsageError` for two arrays that do not broadcast."""
    shapes = {name: value.shape for name, value in given.items() if not isinstance(value, int)}
    for (one, first), (other, second) in combinations(shapes.items(), 2):
        if any(size != its and 1 not in (size, its) for size, its in zip(reversed(first), reversed(second), strict=False)):
            message = f"{one} has the shape {first}, and {other} {second}: they do not broadcast."
            hint = f"Give arrays of one shape, or one with more axes for every pair of values: {one}[:, None]"
            raise UsageError(message, hint=hint)


def _largest(value: Numbers) -> int:
    return int(value) if isinstance(value, (int, float)) else int(value.max())


def _plain(value: Numbers) -> Any:
    """A value of a document: arrays as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.value if isinstance(value, Definition) else value

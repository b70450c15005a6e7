"""Makes the page of several models: :func:`explore`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.explore.axes import GPUS, LEAST_TOKENS, MOST_TOKENS, PageAxes, PageLayout
from hwcalc.explore.html import Html, html_of, json_text
from hwcalc.explore.payload import PageModel, payload_of
from hwcalc.formulas.record import Record
from hwcalc.library.lists import Words, each_model, words
from hwcalc.library.load import Missing, ModelLike, load, load_each, with_dimensions
from hwcalc.model import ModelSpec, Note
from hwcalc.planner.asked import Asked, take_options
from hwcalc.planner.auto_weights import refuse_auto
from hwcalc.planner.change import STANDARD_INPUT, command_line
from hwcalc.planner.context import open_request
from hwcalc.planner.options import OPTIONS
from hwcalc.quantization.planned import format_name

if TYPE_CHECKING:
    from typing import Unpack

    from hwcalc.library.keywords import ExploreOptions

__all__ = ["EQUATION", "MOST_MODELS", "Page", "explore", "page_of"]

EQUATION: Final[Mapping[str, int]] = {
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
}
"""The dimensions of the page without a model: those of Llama-3.1-8B."""
MOST_MODELS: Final = 200
_FIXED: Final = ("memory_utilization", "margin", "encoder_seq")
"""Options of a plan that the page has no control for: every state has them."""


class Page(Record):
    """A page, and what to say beside it. ``payload`` is the JSON text of another model with the choices of this page."""

    html: Html
    models: int
    payload: Callable[[ModelSpec], str]
    notes: tuple[Note, ...] = ()


def explore(models: ModelLike | Sequence[ModelLike] = (), *, gpu: Words = None, **options: Unpack[ExploreOptions]) -> str:
    """One HTML page on which the memory of these models can be looked at, as text. It needs no network and no other file.

    ``gpu`` are the accelerators to choose from. ``seq``, ``batch``, ``dtype``, ``weights``, ``engine``, ``gpus`` and ``tp`` say what is
    chosen when the page opens; the other options are those of :func:`hwcalc.plan` that ``kvplan explore`` has. Without a model the page
    drives the bare equation. Raises a :class:`~hwcalc.errors.KvplanError` subclass, for a model that cannot be read too.
    """
    return page_of(models, {"gpu": gpu, **options}).html.text


def page_of(models: ModelLike | Sequence[ModelLike], given: Mapping[str, Any], *, live: bool = False) -> Page:
    """As :func:`explore`, from a dict of all keywords. With ``live`` a server is behind the page."""
    from hwcalc.hardware.named import gpu_ids

    notes: list[Note] = []
    _, asked = take_options("explore", {name: value for name, value in given.items() if name != "gpu"})
    refuse_auto(asked.weights, "explore")
    if asked.seq is not None and asked.seq < LEAST_TOKENS:
        raise UsageError(
            f"--seq {asked.seq:,}: the lengths of a page begin at {LEAST_TOKENS} tokens.",
            hint=f"Give {LEAST_TOKENS} or more; kvplan plan takes any length.",
        )
    gpus = gpu_ids(words(given.get("gpu"), "gpu"), notes)
    chosen = _models(models, asked)
    axes = _axes(asked, gpus or GPUS)
    payload = payload_of(chosen, axes, first=_first(asked, axes, named=bool(gpus)), live=live)

    _check_formats(asked, chosen, payload)

    def another(spec: ModelSpec) -> str:
        return json_text(payload_of((_page_model(spec, spec.id, asked),), axes, live=live))

    return Page(html=html_of(payload, _title(chosen)), models=len(chosen), payload=another, notes=tuple(notes))


def _models(models: ModelLike | Sequence[ModelLike], asked: Asked) -> tuple[PageModel, ...]:
    """The models, each with a name of its own. Without any it is the bare equation."""
    if isinstance(models, (list, tuple)) and not models:
        return (_page_model(load(None, asked.access, dimensions={**EQUATION, **asked.dimensions}), None, asked),)
    given = each_model(models)
    if len(given) > MOST_MODELS:
        raise UsageError(
            f"a page holds at most {MOST_MODELS} models (got {len(given):,}).",
            hint="Name fewer, or choose from all of them: kvplan explore --serve",
        )
    found = load_each(given, asked)
    missing = next((one.error for one in found if isinstance(one, Missing)), None)
    if missing is not None:
        raise missing
    return _renamed(_page_model(spec, one, asked) for spec, one in zip(found, given, strict=True) if isinstance(spec, ModelSpec))


def _page_model(spec: ModelSpec, given: object, asked: Asked) -> PageModel:
    """The model with the words that name it on a command line."""
    kept = {name for name in asked.given if name in _FIXED} | {row.name for row in OPTIONS if row.reads_model}
    line = command_line(spec, {}, model=given, asked=replace(asked, given=asked.given & kept))
    if given is None:
        line = line.changed(**{**EQUATION, **asked.dimensions})
    own = {**EQUATION, **asked.dimensions} if given is None else asked.dimensions
    changed = with_dimensions(cast("ModelLike | None", given), asked.access, own, revision=asked.revision, assume=asked.assume)
    word = line.model
    # Options come behind it.
    argument = f"./{word}" if word is not None and word.startswith("-") and word != STANDARD_INPUT else word
    return PageModel(spec=spec, argument=argument, words=line.words, changed=changed)


def _renamed(models: Iterable[PageModel]) -> tuple[PageModel, ...]:
    """The models with a number behind the name of one that has the name of another."""
    out: dict[str, PageModel] = {}
    for model in models:
        name, number = model.name, 1
        while name in out:
            number += 1
            name = f"{model.name} ({number})"
        out[name] = model if number == 1 else replace(model, own_name=name)
    return tuple(out.values())


def _axes(asked: Asked, gpus: tuple[str, ...]) -> PageAxes:
    """The choices of the page, with those that the user names among them."""
    usual = PageAxes()
    layouts, batches = list(usual.layouts), set(usual.batches)
    if {"gpus", "tp"} & asked.given:
        layout = _layout(asked)
        layouts += [] if layout in layouts else [layout]
    return replace(
        usual,
        gpus=gpus,
        layouts=tuple(sorted(layouts, key=lambda one: (one.count, one.tp))),
        batches=tuple(sorted(batches | {asked.batch})),
        most_tokens=max(MOST_TOKENS, asked.seq or 0),
        dtypes=() if asked.dtype is None else (asked.dtype,),
        weights=() if asked.weights is None else (asked.weights,),
        fixed={name: getattr(asked, name) for name in _FIXED if name in asked.given},
    )


def _layout(asked: Asked) -> PageLayout:
    """The layout that the user names."""
    count = asked.gpus or asked.tp
    tp = asked.tp if "tp" in asked.given else count
    if count % tp:
        raise UsageError(
            f"tp {tp} does not divide {count:,} GPUs.", hint="On the page the other GPUs are replicas: make it divide."
        )
    return PageLayout(count=count, tp=tp)


def _check_formats(asked: Asked, models: Sequence[PageModel], payload: Mapping[str, Any]) -> None:
    """Raise the engine's error for a format that the user names and that no engine takes for any of the models."""
    engines = [payload["first"]["engine"]] if asked.engine is not None else [engine["name"] for engine in payload["engines"]]
    found = [
        runs for model in payload["models"] for name, runs in model["engines"].items() if name in engines and "curve" in runs
    ]
    for option, lists in (("dtype", "dtypes"), ("weights", "weights")):
        name = getattr(asked, option)
        if name is not None and found and not any(name in runs[lists] for runs in found):
            format_name(asked.weights)
            _ = open_request(models[0].spec, engine=engines[0], seq=1024, gpu=payload["gpus"][0]["id"], **{option: name}).budget


def _first(asked: Asked, axes: PageAxes, *, named: bool) -> dict[str, object]:
    """What is chosen when the page opens, as far as the user says."""
    from hwcalc.engines import find_engine

    first: dict[str, object] = {
        name: getattr(asked, name) for name in ("seq", "batch", "dtype", "weights") if name in asked.given
    }
    if asked.engine is not None:
        engine, version = find_engine(asked.engine)
        if engine.name not in axes.engines or version is not None:
            raise UsageError(
                f"the page has no {asked.engine}.",
                hint=f"It has the newest rules of {', '.join(axes.engines)}: --engine {axes.engines[0]}",
            )
        first["engine"] = engine.name
    if named:
        first["gpu"] = axes.gpus[0]
    if {"gpus", "tp"} & asked.given:
        first |= {"count": _layout(asked).count, "tp": _layout(asked).tp}
    return first


def _title(models: Sequence[PageModel]) -> str:
    more = len(models) - 1
    return f"kvplan: {models[0].name}" + (f" and {more} more" if more else "")

"""What the page knows of its models: the form of every engine's memory, for every choice that the page offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.engines import find_engine
from hwcalc.engines.base import Opened
from hwcalc.engines.forms import MemoryForm
from hwcalc.errors import KvplanError
from hwcalc.explore.axes import AS_PUBLISHED, LEAST_TOKENS, PageAxes, options_of_engine
from hwcalc.explore.encode import Place, Pools, every, grid_of
from hwcalc.explore.sections import sections_of
from hwcalc.formulas.frozen import frozen
from hwcalc.model import ModelSpec
from hwcalc.planner.context import open_request
from hwcalc.profiles.gpus import find_gpu
from hwcalc.sources.progress import tell
from hwcalc.units import human_bytes

__all__ = ["SCHEMA", "PageModel", "payload_of"]

SCHEMA: Final = 1
_USUAL_TOKENS: Final = 4096
_NO_FORM: Final = "what this model needs beside its cache is not known to kvplan."


@frozen
class PageModel:
    """A model of the page. ``argument`` and ``words`` name it on a command line; the bare equation has words only."""

    spec: ModelSpec
    argument: str | None
    words: tuple[str, ...] = ()
    own_name: str | None = None

    @property
    def name(self) -> str:
        """The name on the page, which no other model of it has."""
        return self.own_name or self.spec.id


def payload_of(
    models: Sequence[PageModel], axes: PageAxes, *, first: Mapping[str, object] | None = None, live: bool = False
) -> dict[str, Any]:
    """The payload of a page (``page/types.d.ts``). The same models give the same text."""
    pools = Pools()
    rows = []
    for number, model in enumerate(models, 1):
        tell(f"{model.name}, {number:,} of {len(models):,}")
        rows.append(_model(model, axes, pools))
    return {
        "schema": SCHEMA,
        "kvplan": __version__,
        "live": live,
        "first": dict(first or {}),
        "lengths": {"least": LEAST_TOKENS, "most": axes.most_tokens},
        "batches": list(axes.batches),
        "layouts": [vars(layout) for layout in axes.layouts],
        "gpus": list(map(_gpu, axes.gpus)),
        "engines": list(map(_engine, axes.engines)),
        "models": rows,
        **pools.document(),
    }


def _gpu(name: str) -> dict[str, str]:
    from hwcalc.hardware.named import load_gpu

    gpu = load_gpu(name, [])
    return {"id": gpu.id, "name": getattr(gpu, "name", gpu.id), "memory": str(gpu.memory_marketing_gb)}


def _engine(name: str) -> dict[str, Any]:
    engine = find_engine(name)[0]
    return {
        "name": name,
        "label": engine.label,
        "version": engine.version(None),
        "definition": engine.definition.value,
        "options": dict(options_of_engine(name)),
    }


def _model(model: PageModel, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    spec = model.spec
    return {
        "id": model.name,
        "argument": model.argument,
        "words": list(model.words),
        "max_seq": spec.max_position_embeddings,
        "parameters": None if spec.parameters is None else spec.parameters.total,
        "warnings": [note.message for note in spec.warnings],
        "engines": {name: _runs(spec, name, axes, pools) for name in axes.engines},
        **sections_of(spec, axes, pools),
    }


def _runs(model: ModelSpec, engine: str, axes: PageAxes, pools: Pools) -> dict[str, Any]:
    """The forms of one engine, or why it has none."""
    family = _Family(model, engine, axes)
    try:
        return family.document(pools)
    except KvplanError as error:
        return {"refused": pools.text(_sentence(error))}


def _sentence(error: KvplanError) -> str:
    """What an engine says when it refuses, and what it offers instead."""
    return f"{error.message} {error.hint}".strip()


class _Family:
    """All forms of one model by one engine."""

    def __init__(self, model: ModelSpec, engine: str, axes: PageAxes) -> None:
        self._model, self._engine, self._axes = model, engine, axes
        self._opened: dict[tuple[str | None, str | None, int, int], Opened | KvplanError] = {}
        self.dtypes = (None, *(name for name in axes.dtypes_of(engine) if name in axes.dtypes or self._takes(dtype=name)))
        self.weights = (
            None,
            *(name for name in axes.weights_of(engine, model) if name in axes.weights or self._takes(weights=name)),
        )

    def document(self, pools: Pools) -> dict[str, Any]:
        """The forms as grids. Raises the engine's error if it refuses everything."""
        sizes = (len(self.dtypes), len(self.weights), len(self._axes.layouts), len(self._axes.gpus))
        forms: dict[Place, MemoryForm] = {}
        refused: dict[Place, int | None] = {}
        for place in every(sizes):
            form = self._form(place)
            refused[place] = None if isinstance(form, MemoryForm) else pools.text(_sentence(form))
            if isinstance(form, MemoryForm):
                forms[place] = form
        if not forms:
            error = self._form((0, 0, 0, 0))
            assert isinstance(error, KvplanError)
            raise error
        ignored = frozenset(place for place, why in refused.items() if why is not None)

        def grid(cells: Mapping[Place, int | None]) -> Any:
            return grid_of(cells, sizes, ignored)

        names = dict.fromkeys(name for form in forms.values() for name in _named(form))
        return {
            "dtypes": [self._default_dtype(), *self.dtypes[1:]],
            "weights": [AS_PUBLISHED, *self.weights[1:]],
            "refused": grid_of(refused, sizes),
            "curve": grid({place: pools.curve(form) for place, form in forms.items()}),
            "rest": grid({place: pools.rest(form) for place, form in forms.items()}),
            "parts": [grid({place: _part(form, name, pools) for place, form in forms.items()}) for name in names],
        }

    def _default_dtype(self) -> str:
        """The name of the format that the engine chooses by itself."""
        return next(str(one.dtypes.kv) for one in self._opened.values() if isinstance(one, Opened) and one.request.dtype is None)

    def _takes(self, **formats: str) -> bool:
        """Whether the engine accepts a format on any of the accelerators."""
        opened = (self._open(formats.get("dtype"), formats.get("weights"), 0, gpu) for gpu in range(len(self._axes.gpus)))
        return any(isinstance(one, Opened) for one in opened)

    def _form(self, place: Place) -> MemoryForm | KvplanError:
        dtype, weights, layout, gpu = place
        opened = self._open(self.dtypes[dtype], self.weights[weights], layout, gpu)
        if isinstance(opened, KvplanError):
            return opened
        try:
            form = opened.engine.form(opened)
        except KvplanError as error:
            return error
        return form or KvplanError(_NO_FORM)

    def _open(self, dtype: str | None, weights: str | None, layout: int, gpu: int) -> Opened | KvplanError:
        key = (dtype, weights, layout, gpu)
        if key not in self._opened:
            sizes = self._axes.layouts[layout].parallel(self._engine)
            longest = self._model.max_position_embeddings or _USUAL_TOKENS
            options = {"dtype": dtype, "weights": weights, "engine_options": dict(options_of_engine(self._engine))}
            try:
                self._opened[key] = open_request(
                    self._model, engine=self._engine, gpu=self._axes.gpus[gpu], seq=min(_USUAL_TOKENS, longest),
                    tp=sizes.tp, pp=sizes.pp, dp=sizes.dp, **options, **self._axes.fixed,
                )  # fmt: skip
            except KvplanError as error:
                self._opened[key] = error
        return self._opened[key]


def _named(form: MemoryForm) -> Iterator[tuple[str, int]]:
    """The names of the parts, with a number where two have the same."""
    seen: dict[str, int] = {}
    for part in form.parts:
        yield part.name, seen.setdefault(part.name, 0)
        seen[part.name] += 1


def _part(form: MemoryForm, name: tuple[str, int], pools: Pools) -> int | None:
    """The place of the part with this name, if there is one."""
    return next((pools.part(part) for own, part in zip(_named(form), form.parts, strict=True) if own == name), None)

"""What the page knows of its models: the form of every engine's memory, for every choice that the page offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import asdict

from hwcalc._version import __version__
from hwcalc.engines import find_engine
from hwcalc.explore.axes import LEAST_TOKENS, PageAxes, choices_of
from hwcalc.explore.encode import Pools, title_of
from hwcalc.explore.hand import Changed, hand_of
from hwcalc.explore.runs import runs_of
from hwcalc.explore.sections import sections_of
from hwcalc.formulas.record import Record
from hwcalc.model import ModelSpec
from hwcalc.planner.verdict import Verdict
from hwcalc.sources.request import tell
from hwcalc.text import clean, cut, shell_word

__all__ = ["SCHEMA", "PageModel", "name_of", "payload_of"]

SCHEMA: Final = 1
_LONGEST_NAME: Final = 200


def name_of(model: ModelSpec) -> str:
    """What a model is called, in a form that no output takes for more than a name."""
    return cut(clean(model.id), _LONGEST_NAME)


MOST_BY_HAND: Final = 20
"""Models of a page whose dimensions can be set: each takes about 10 kB and half a second."""
_NOT_BY_HAND: Final = f"By hand the page has its first {MOST_BY_HAND} models: name this one before others."


class PageModel(Record):
    """A model of the page. ``argument`` and ``words`` name it on a command line; the bare equation has words only."""

    spec: ModelSpec
    argument: str | None
    words: tuple[str, ...] = ()
    own_name: str | None = None
    changed: Changed | None = None
    """Makes it with other dimensions; ``None`` where its description cannot be read again."""

    @property
    def name(self) -> str:
        """The name on the page, which no other model of it has: what it is called, as any output shows it."""
        return self.own_name or name_of(self.spec)


def payload_of(
    models: Sequence[PageModel], axes: PageAxes, *, first: Mapping[str, object] | None = None, live: bool = False
) -> dict[str, Any]:
    """The payload of a page (``page/types.d.ts``). The same models give the same text."""
    pools = Pools()
    rows = []
    for number, model in enumerate(models, 1):
        tell(f"{model.name}, {number:,} of {len(models):,}")
        rows.append(_model(model, axes, pools, by_hand=number <= MOST_BY_HAND))
    return {
        "schema": SCHEMA,
        "kvplan": __version__,
        "live": live,
        "first": dict(first or {}),
        "lengths": {"least": LEAST_TOKENS, "most": axes.most_tokens},
        "batches": list(axes.batches),
        "layouts": [asdict(layout) for layout in axes.layouts],
        "verdicts": {verdict.value: {"words": verdict.text, "meaning": verdict.meaning} for verdict in Verdict},
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
        "splits_layers": engine.splits_layers,
        "options": dict(choices_of(name).options),
    }


def _model(model: PageModel, axes: PageAxes, pools: Pools, *, by_hand: bool) -> dict[str, Any]:
    spec = model.spec
    engines = {name: runs_of(spec, name, axes, pools) for name in axes.engines}
    return {
        "id": model.name,
        "argument": None if model.argument is None else shell_word(model.argument),
        "words": list(map(shell_word, model.words)),
        "max_seq": spec.max_position_embeddings,
        "layers": [[pools.text(title_of(group.kind.name)), pools.text(group.layers.text)] for group in spec.stack.groups],
        "parameters": None if spec.parameters is None else spec.parameters.total,
        "warnings": [note.message for note in spec.warnings],
        "engines": engines,
        "hand": hand_of(spec, model.changed, axes, pools, engines) if by_hand else _NOT_BY_HAND,
        **sections_of(spec, axes, pools),
    }

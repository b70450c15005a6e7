"""Make the page of several models: :func:`explore`.

The payload has the form of every engine's memory, for every choice that the page offers. The modules in ``page/`` become one script: each
after those that it imports, without ``import`` lines and the word ``export``. Page and payload are one HTML file that makes no request; its
Content-Security-Policy lets exactly this script and this style run, by their hashes.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import asdict, astuple, replace

from hwcalc._version import __version__
from hwcalc.engines import find_engine
from hwcalc.errors import UsageError
from hwcalc.explore.hand import Changed, hand_of
from hwcalc.explore.runs import (
    GPUS,
    LEAST_TOKENS,
    MOST_TOKENS,
    PageAxes,
    PageLayout,
    Pools,
    Requests,
    choices_of,
    layouts_of,
    runs_of,
    title_of,
)
from hwcalc.explore.sections import sections_of
from hwcalc.explore.speeds import gpu_rates, speeds_of
from hwcalc.explore.starts import starts_of
from hwcalc.formulas.record import Record
from hwcalc.library.lists import Words, each_model, words
from hwcalc.library.load import Missing, load, load_each, with_dimensions
from hwcalc.model import ModelLike, ModelSpec, Note
from hwcalc.planner.asked import Access, Asked, take_options
from hwcalc.planner.command_line import STANDARD_INPUT, command_line
from hwcalc.planner.context import open_request
from hwcalc.planner.cost import price_info, price_of, use_of
from hwcalc.planner.layouts import divides
from hwcalc.planner.options import OPTIONS, PRICED, ExploreOptions, takes
from hwcalc.planner.speed_work import ALIKE
from hwcalc.planner.values import refuse_auto
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.dtypes import format_spellings
from hwcalc.profiles.speed import MOST_REACHED
from hwcalc.quantization.planned import format_name
from hwcalc.sources.request import tell
from hwcalc.text import clean, cut, shell_word

if TYPE_CHECKING:
    from typing import Unpack

    from hwcalc.profiles.hardware_file import Gpu


_IMPORT: Final = re.compile(r'^import \{ ([\w$, ]+) \} from "\./([\w-]+\.js)";$')
_EXPORT: Final = re.compile(r"^export (?=(?:async function|function|const|class)\b)")
_DECLARED: Final = re.compile(r"^(?:async function\*?|function\*?|const|let|var|class) ([\w$]+)")
_HOLE: Final = re.compile(r"\{\{(\w+)\}\}")
_WHERE: Final = {
    False: "Everything is in this file. It makes no request.",
    True: "It asks only <code>kvplan explore --serve</code> on this machine, for further models.",
}


class Frame(Record):
    """What one page differs in from another but for its payload: the module that starts it, which imports all others, and its words."""

    main: str = "main.js"
    lead: str = "Does it fit, how long, how many at once?"
    about: str = (
        "An estimate has a low and a high end beside it; the other bytes are exact by the formulas, or by the engine's own rule."
    )


_ESCAPED: Final = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}
"""What could end the element of the payload, as JSON writes it."""


_PACKED: Final = {"shapes", "terms", "curves", "parts", "rests", "reads", "shares"}
"""Lists of records that are so long that the names of their fields would take most of the page."""


_LONG: Final = 24
"""Letters of a list from which on its place is shorter."""


class Html(Record):
    """A page: its text, and the policy that it states, for a server to send as a header too."""

    text: str
    policy: str


def page_files() -> dict[str, str]:
    """The sources of the page by name, those of others as ``vendor/NAME``."""
    found: dict[str, str] = {}
    folder = files("hwcalc.explore") / "page"
    for prefix, place in (("", folder), ("vendor/", folder / "vendor")):
        entries = place.iterdir() if place.is_dir() else ()
        found |= {f"{prefix}{entry.name}": entry.read_text(encoding="utf-8") for entry in entries if entry.is_file()}
    return dict(sorted(found.items()))


_EXPLORER: Final = Frame()


def assemble(sources: Mapping[str, str], payload: Mapping[str, Any], title: str, frame: Frame = _EXPLORER) -> Html:
    """The page made of these sources."""
    own_style = "".join(text for name, text in sources.items() if "/" not in name and name.endswith(".css"))
    script = _ascii(_vendored(sources, ".js") + bundle(sources, frame.main), lambda letter: json.dumps(letter)[1:-1])
    style = _ascii(_vendored(sources, ".css") + own_style, lambda letter: f"\\{ord(letter):06x}")
    for name, text, end in (("script", script, r"</script|<!--"), ("style", style, "</style")):
        if re.search(end, text, re.IGNORECASE):
            raise ValueError(f"the {name} of the page has what would end its element: {end}")
    # Nothing is loaded from anywhere, and no other script or style runs; a live page asks the server that it came from.
    script_hash, style_hash = (b64encode(sha256(text.encode()).digest()).decode() for text in (script, style))
    policy = f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; base-uri 'none'; form-action 'none'"
    policy += "; connect-src 'self'" if payload["live"] else ""
    holes = {
        "title": escape(title),
        "lead": f"{frame.lead} {_WHERE[bool(payload['live'])]}",
        "about": frame.about,
        "version": escape(str(payload["kvplan"])),
        "csp": escape(policy),
        "style": style,
        "payload": json_text(packed(payload)),
        "script": script,
    }
    text = _HOLE.sub(lambda hole: holes[hole[1]], sources["page.html"])
    return Html(text=text.encode("ascii", "xmlcharrefreplace").decode("ascii"), policy=policy)


def _ascii(code: str, escaped: Callable[[str], str]) -> str:
    """Code with escapes for letters beyond ASCII, so that its hash is the same whatever a terminal or a server makes of the file."""
    return re.sub(r"[^\x00-\x7f]", lambda letter: escaped(letter[0]), code)


def json_text(document: object) -> str:
    """JSON that may stand in an HTML file: in ASCII, and without any letter that ends an element."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)


def packed(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload with lists of records as rows, each of which begins with the place of its names, and lists of the models that are equal once.

    ``unpacked`` in ``page/data.js`` reads it.

    >>> packed({"live": False, "parts": [{"name": "a", "low": 1}, {"name": "b", "low": 2}]})
    {'live': False, 'parts': {'names': [['name', 'low']], 'rows': [[0, 'a', 1], [0, 'b', 2]]}}
    """
    out: dict[str, Any] = {}
    for name, value in payload.items():
        if name == "models":
            out[name], out["lists"] = told_once(value)
            continue
        if not (name in _PACKED and value):
            out[name] = value
            continue
        places: dict[tuple[str, ...], int] = {}
        rows = [[places.setdefault(tuple(entry), len(places)), *entry.values()] for entry in value]
        out[name] = {"names": list(map(list, places)), "rows": rows}
    return out


def told_once(document: Any) -> tuple[Any, list[Any]]:
    """A document with ``{"at": place}`` for each long list that stands in it more than once, and these lists, in which others stand so.

    >>> told_once([{"a": [[100000000, 2000000000, 3]]}, [100000000, 2000000000, 3]])
    ([{'a': [{'at': 0}]}, {'at': 0}], [[100000000, 2000000000, 3]])
    """
    counts: Counter[str] = Counter()
    lists: list[Any] = []
    places: dict[str, int] = {}

    def count(piece: Any) -> None:
        if isinstance(piece, list):
            text = json.dumps(piece)
            counts[text] += 1
            if counts[text] > 1:
                return
        for each in piece.values() if isinstance(piece, dict) else piece if isinstance(piece, list) else ():
            count(each)

    def written(piece: Any) -> Any:
        if isinstance(piece, dict):
            return {name: written(each) for name, each in piece.items()}
        if not isinstance(piece, list):
            return piece
        text = json.dumps(piece)
        if counts[text] < 2 or len(text) < _LONG:
            return list(map(written, piece))
        if text not in places:
            told = list(map(written, piece))
            places[text] = len(lists)
            lists.append(told)
        return {"at": places[text]}

    count(document)
    return written(document), lists


def bundle(sources: Mapping[str, str], main: str = _EXPLORER.main) -> str:
    """The module ``main`` and those that it imports as one script. Raises :class:`ValueError` if two of them declare the same name, or import each other."""
    declared: dict[str, str] = {}
    out = ['(() => {\n"use strict";\n']
    for name in _in_order(sources, main, []):
        lines = []
        for line in sources[name].split("\n"):
            if _IMPORT.match(line):
                continue
            kept = _EXPORT.sub("", line)
            if kept.startswith(("import ", "import{", "export ")):
                raise ValueError(f"{name}: write an import or export in one line with names: {line}")
            if (found := _DECLARED.match(kept)) and declared.setdefault(found[1], name) != name:
                raise ValueError(f"{name} and {declared[found[1]]} both declare {found[1]}")
            lines.append(kept)
        out.append(f"\n// {name}\n" + "\n".join(lines).strip("\n") + "\n")
    return "".join((*out, "})();\n"))


def _in_order(sources: Mapping[str, str], name: str, above: list[str]) -> Iterator[str]:
    """A module behind all that it imports, each once."""
    if name in above:
        raise ValueError(f"modules of the page import each other: {' -> '.join((*above, name))}")
    if name not in sources:
        raise ValueError(f"{above[-1] if above else 'the page'} imports {name}, which is not there")
    told: dict[str, None] = {}
    for line in sources[name].split("\n"):
        if found := _IMPORT.match(line):
            told.update(dict.fromkeys(_in_order(sources, found[2], [*above, name])))
    told[name] = None
    yield from told


def _vendored(sources: Mapping[str, str], suffix: str) -> str:
    """The code of others of one kind, with their licences."""
    code = [text for name, text in sources.items() if name.startswith("vendor/") and name.endswith(suffix)]
    licences = [text for name, text in sources.items() if name.startswith("vendor/") and "LICENSE" in name] if code else []
    return "".join(
        [f"/*!\n{text.strip().replace('*/', '* /')}\n*/\n" for text in licences] + [f"{text.strip()}\n" for text in code]
    )


SCHEMA: Final = 1
_LONGEST_NAME: Final = 200


MOST_BY_HAND: Final = 4
"""Models of a page whose dimensions can be set: each takes as long as all the rest of a model."""
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
        return self.own_name or cut(clean(self.spec.id), _LONGEST_NAME)


def payload_of(
    models: Sequence[PageModel], axes: PageAxes, *, first: Mapping[str, object] | None = None, live: bool = False
) -> dict[str, Any]:
    """The payload of a page (``page/types.d.ts``). The same models give the same text."""
    from hwcalc.hardware.named import load_gpu

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
        "nodes": [{"gpu": gpu, "count": count} for gpu, count in axes.nodes],
        "verdicts": {
            verdict.value: {"words": verdict.text, "meaning": verdict.meaning, "fits": verdict.fits} for verdict in Verdict
        },
        "gpus": [_gpu(load_gpu(name, []), pools, axes) for name in axes.gpus],
        "formats": format_spellings(),
        "experts_power": ALIKE,
        "most_reached": MOST_REACHED,
        "use": float(use_of(axes.priced)),
        "engines": list(map(_engine, axes.engines)),
        "models": rows,
        **pools.pieces,
    }


def _gpu(gpu: Gpu, pools: Pools, axes: PageAxes) -> dict[str, Any]:
    from hwcalc.profiles.gpus import gpu_aliases

    priced = {count: price_of(axes.priced, gpu, count) for count in sorted({layout.count for layout in axes.layouts})}

    # A size of memory at the end of an id may be that which its profile has without a word.
    stem = gpu.id.removesuffix(f"-{gpu.memory_marketing_gb}gb")
    return {
        "id": gpu.id,
        "name": getattr(gpu, "name", gpu.id),
        "memory": str(gpu.memory_marketing_gb),
        "node": gpu.node,
        **gpu_rates(gpu, pools.pieces["rates"]),
        "prices": {
            str(count): [float(price.usd_per_hour), price_info(price.row or price).text]
            for count, price in priced.items()
            if price is not None
        },
        "aliases": [stem, *(alias for alias, meant in gpu_aliases().items() if meant in (gpu.id, stem))],
    }


def _engine(name: str) -> dict[str, Any]:
    engine = find_engine(name)[0]
    return {
        "name": name,
        "label": engine.label,
        "version": engine.version(None),
        "definition": engine.definition.value,
        "splits_layers": engine.facts.splits_layers,
        "options": dict(choices_of(name).options),
    }


def _model(model: PageModel, axes: PageAxes, pools: Pools, *, by_hand: bool) -> dict[str, Any]:
    spec = model.spec
    requests = {name: Requests(spec, name, axes) for name in axes.engines}
    engines = {name: runs_of(requests[name], pools) for name in axes.engines}
    return {
        "id": model.name,
        "argument": None if model.argument is None else shell_word(model.argument),
        "words": list(map(shell_word, model.words)),
        "max_seq": spec.max_position_embeddings,
        "layers": [[pools.text(title_of(group.kind.name)), pools.text(group.layers.text)] for group in spec.stack.groups],
        "parameters": None if spec.parameters is None else spec.parameters.total,
        "warnings": [note.message for note in spec.warnings],
        "shares": sorted({layout.tp for layout in axes.layouts if divides(spec, layout.tp)}),
        "engines": engines,
        "hand": hand_of(spec, model.changed, requests, pools, engines) if by_hand else _NOT_BY_HAND,
        "speeds": {name: speeds_of(requests[name], engines[name], pools) for name in axes.engines},
        "starts": {name: starts_of(requests[name], engines[name], pools) for name in axes.engines},
        **sections_of(spec, axes, pools, engines, requests),
    }


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
    access: Access = Access()
    """How further models are fetched."""
    notes: tuple[Note, ...] = ()


class PageText(str):
    """The text of a page. A notebook shows the page itself, in a frame."""

    __slots__ = ()

    def __repr__(self) -> str:
        title = self.partition("<title>")[2].partition("</title>")[0]
        return f"<PageText: {title}, {len(self):,} characters>"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self)}" width="100%" height="700" style="border: 0"></iframe>'


@takes(ExploreOptions)
def explore(models: ModelLike | Sequence[ModelLike] = (), *, gpu: Words = None, **options: Unpack[ExploreOptions]) -> PageText:
    """One HTML page on which the memory of these models can be looked at, as text. It needs no network and no other file.

    ``gpu`` are the accelerators to choose from. ``seq``, ``batch``, ``dtype``, ``weights``, ``engine``, ``gpus`` and ``tp`` say what is
    chosen when the page opens; the other options are those of :func:`hwcalc.plan` that ``kvplan explore`` has. Without a model the page
    drives the bare equation. Raises a :class:`~hwcalc.errors.KvplanError` subclass, for a model that cannot be read too.
    """
    return PageText(page_of(models, {"gpu": gpu, **options}).html.text)


def page_of(models: ModelLike | Sequence[ModelLike], given: Mapping[str, Any], *, live: bool = False) -> Page:
    """As :func:`explore`, from a dict of all keywords. With ``live`` a server is behind the page."""
    from hwcalc.hardware.named import counted, gpu_ids

    notes: list[Note] = []
    nodes = [counted(name) if given.get("gpus") is None else (name, None) for name in words(given.get("gpu"), "gpu")]
    # Nodes as compare takes them: 4xh100,8xh200.
    nodes = nodes if any(count for _, count in nodes) else []
    if nodes:
        given = {**given, "gpu": [name for name, _ in nodes], "gpus": nodes[0][1] or 1}
    _, asked = take_options("explore", {name: value for name, value in given.items() if name != "gpu"})
    refuse_auto(asked.weights, "explore")
    if asked.seq is not None and asked.seq < LEAST_TOKENS:
        raise UsageError(
            f"--seq {asked.seq:,}: the lengths of a page begin at {LEAST_TOKENS} tokens.",
            hint=f"Give {LEAST_TOKENS} or more; kvplan plan takes any length.",
        )
    gpus = gpu_ids(words(given.get("gpu"), "gpu"), notes)
    chosen = _models(models, asked)
    axes = _axes(asked, gpus or GPUS, [(gpu_ids((name,), [])[0], count or 1) for name, count in nodes if name])
    payload = payload_of(chosen, axes, first=_first(asked, axes), live=live)
    _check_formats(asked, chosen, payload)
    more = len(chosen) - 1
    title = f"kvplan: {chosen[0].name}" + (f" and {more} more" if more else "")

    def another(spec: ModelSpec) -> str:
        return json_text(packed(payload_of((_page_model(spec, spec.id, asked),), axes, live=live)))

    return Page(
        html=assemble(page_files(), payload, title), models=len(chosen), payload=another, access=asked.access, notes=tuple(notes)
    )


def _models(models: ModelLike | Sequence[ModelLike], asked: Asked) -> tuple[PageModel, ...]:
    """The models, each with a name of its own. Without any it is the bare equation."""
    if isinstance(models, (list, tuple)) and not models:
        return (_page_model(load(None, asked.access, dimensions=_equation(asked)), None, asked),)
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
    named: dict[str, PageModel] = {}
    for spec, one in zip(found, given, strict=True):
        if isinstance(spec, ModelSpec):
            model = _page_model(spec, one, asked)
            # One that has the name of another has a number behind it.
            name, number = model.name, 1
            while name in named:
                number += 1
                name = f"{model.name} ({number})"
            named[name] = model if number == 1 else replace(model, own_name=name)
    return tuple(named.values())


def _equation(asked: Asked) -> dict[str, Any]:
    """The dimensions of a page without a model, or its layers."""
    return asked.dimensions if "layers_of" in asked.given else {**EQUATION, **asked.dimensions}


def _page_model(spec: ModelSpec, given: object, asked: Asked) -> PageModel:
    """The model with the words that name it on a command line."""
    kept = {name for name in asked.given if name in {*_FIXED, *PRICED}} | {row.name for row in OPTIONS if row.reads_model}
    values = {name: value for name, value in asked.values.items() if name in kept}
    line = command_line(spec, {}, model=given, asked=Asked(values=values))
    own = asked.dimensions
    if given is None:
        own = _equation(asked)
        line = line.changed(**own)
    changed = with_dimensions(cast("ModelLike | None", given), asked.access, own, revision=asked.revision, assume=asked.assume)
    word = line.model
    # Options come behind it.
    argument = f"./{word}" if word is not None and word.startswith("-") and word != STANDARD_INPUT else word
    return PageModel(spec=spec, argument=argument, words=line.words, changed=changed)


def _axes(asked: Asked, gpus: tuple[str, ...], nodes: Sequence[tuple[str, int]]) -> PageAxes:
    """The choices of the page, with those that the user names among them."""
    usual = PageAxes()
    named = {"gpus", "tp"} & asked.given
    counts = {*(count for _, count in nodes), *([_layout(asked).count] if named else [])}
    layouts = {*usual.layouts, *(layout for count in counts for layout in layouts_of(count))}
    layouts |= {_layout(asked)} if "tp" in named else set()
    return replace(
        usual,
        gpus=gpus,
        layouts=tuple(sorted(layouts, key=astuple)),
        batches=tuple(sorted({*usual.batches, asked.batch})),
        most_tokens=max(MOST_TOKENS, asked.seq or 0),
        dtypes=() if asked.dtype is None else (asked.dtype,),
        weights=() if asked.weights is None else (asked.weights,),
        nodes=tuple(dict.fromkeys(nodes)),
        fixed={name: getattr(asked, name) for name in _FIXED if name in asked.given},
        priced={name: asked.values[name] for name in PRICED if name in asked.given},
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


def _first(asked: Asked, axes: PageAxes) -> dict[str, object]:
    """What is chosen when the page opens, as far as the user says.

    Of accelerators without a number the page chooses the fewest that surely hold it, and of nodes the first that does, if there is one.
    """
    named_values = ("seq", "batch", "dtype", "weights")
    first: dict[str, object] = {name: getattr(asked, name) for name in named_values if name in asked.given}
    if asked.engine is not None:
        engine, version = find_engine(asked.engine)
        if engine.name not in axes.engines or version is not None:
            raise UsageError(
                f"the page has no {asked.engine}.",
                hint=f"It has the newest rules of {', '.join(axes.engines)}: --engine {axes.engines[0]}",
            )
        first["engine"] = engine.name
    if axes.nodes:
        first["gpu"] = axes.nodes[0][0]
    if {"gpus", "tp"} & asked.given:
        layout = _layout(asked)
        sizes = {"count": layout.count, "tp": layout.tp}
        # How many share each layer follows from the model, unless the user says it.
        first |= sizes if "tp" in asked.given else {"count": sizes["count"]}
    return first

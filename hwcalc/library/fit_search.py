"""The search of :func:`~hwcalc.library.fit.fit`: which models it is asked for, which of them run, and why the others do not.

It also says in which order those that run are listed, and which of them are listed as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.candidates import Candidate, naming, pretrained_of, unread
from hwcalc.library.fit_quick import Quick, quick
from hwcalc.library.indexing import placed_model
from hwcalc.library.lists import texts, words
from hwcalc.model import Parameters
from hwcalc.planner.fitting import Fitted, Hosting
from hwcalc.planner.runnables import Runnable, Unread
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.model_index import ENGINE
from hwcalc.quantization.ggml import file_type
from hwcalc.quantization.gguf import PUBLISHED_MIXES
from hwcalc.text import quoted, shell_word, shown
from hwcalc.units import parse_parameters

if TYPE_CHECKING:
    from hwcalc.library.fit_quick import Whole
    from hwcalc.planner.result import SpeedInfo
    from hwcalc.profiles.model_index import IndexedModel

OF_A_FAMILY: Final = 3
"""As many models of a family as are listed, unless all are asked for."""
_ROOMY: Final = 2
"""A model made for so many times the tokens asked for stands before one that only just reaches them: it is usually the later one."""
_LAST_FIRST: Final = {letter: 0x7F - letter for letter in range(0x80)}
"""Turns a date into a text that stands the earlier the later it is."""
_DECENT: Final = frozenset(
    (
        *PUBLISHED_MIXES[: PUBLISHED_MIXES.index("iq4_xs") + 1],
        "mxfp4_moe",
        "bf16",
        "fp16",
        "f16",
        "f32",
        "q4_0",
        "q4_1",
        "q5_0",
        "q5_1",
        "iq4_nl",
        "nvfp4",
        "fp8",
        "int8",
        "awq",
        "gptq",
    )
)
"""Formats of four bits and more. With fewer the answers of a model suffer."""


class Found(NamedTuple):
    """A model that runs, by what its place in the list depends on; ``family`` in lower case. ``finish`` works out its row, which takes longer."""

    one: Candidate
    family: str
    also: tuple[str, ...]
    weights: str | None
    file_type: str | None
    seq: int
    parameters: int | None
    max_position_embeddings: int | None
    weights_bytes: int
    needed_bytes: int
    verdict: Verdict
    whole: bool
    finish: Callable[[], Runnable]

    @property
    def id(self) -> str:
        """The id of the model."""
        return self.one.id


def ordered(rows: Iterable[Found], words: Sequence[str] = ()) -> tuple[Found, ...]:
    """The best of each family first, and the families in the order of their best; before all, models with these words in their ids."""
    given = tuple(rows)
    raw = _pretrained(given)
    best = sorted(
        given, key=lambda row: (not all(word in row.id.lower() for word in words), *_rank(row, pretrained=row.id in raw))
    )
    places: dict[str, int] = {}
    for row in best:
        places.setdefault(row.family, len(places))
    return tuple(sorted(best, key=lambda row: places[row.family]))


def _pretrained(rows: Iterable[Found]) -> frozenset[str]:
    """Ids of the models that have not learnt to follow instructions."""
    families: dict[str, list[str]] = {}
    for row in rows:
        families.setdefault(row.family, []).extend((row.id, *row.also))
    return frozenset().union(*(pretrained_of(names, naming) for names in families.values()))


def _rank(row: Found, *, pretrained: bool) -> tuple[bool, bool, bool, bool, bool, int, str, str]:
    """What lies on the GPU whole and surely fits, at four bits and more; then what follows instructions; then what the context asked for does
    not fill; then the largest, then the newest.
    """
    form = row.weights or row.file_type
    decent = form is None or form in _DECENT
    newest = (row.one.released or "0").translate(_LAST_FIRST)
    return (
        not row.whole,
        not decent,
        row.whole and not row.verdict.certain,
        pretrained,
        row.max_position_embeddings is not None and row.max_position_embeddings < _ROOMY * row.seq,
        -(row.parameters or 0),
        newest,
        row.id,
    )


def alike(rows: Iterable[Found]) -> tuple[Found, ...]:
    """Models of a family of the same size as one row, which names the others."""
    groups: dict[tuple[object, ...], list[Found]] = {}
    for row in rows:
        key = (row.family, row.weights, row.weights_bytes, row.needed_bytes, row.seq, row.one.modality, row.one.stored)
        groups.setdefault((*key, row.id) if row.one.stored else key, []).append(row)
    return tuple(
        first if not others else first._replace(also=(*first.also, *(name for one in others for name in (one.id, *one.also))))
        for first, *others in groups.values()
    )


def best_of_families(rows: Iterable[Found]) -> tuple[Found, ...]:
    """The first few of each family."""
    listed: dict[str, int] = {}
    out = []
    for row in rows:
        count = listed[row.family] = listed.get(row.family, 0) + 1
        if count <= OF_A_FAMILY:
            out.append(row)
    return tuple(out)


_OF_SHAPE: Final = (
    "kv_dtype", "weights_bytes", "cache_bytes", "needed_bytes", "usable_bytes", "headroom_bytes", "max_seq", "expected_max_seq", "verdict", "gpu_layers",
    "all_layers", "host_bytes", "host_experts", "decode_tokens_per_s_bound", "bound_by",
)  # fmt: skip
"""Figures that are the same for all models of a shape."""


class Search:
    """One pass over the candidates. It counts what is left out."""

    def __init__(self, host: Hosting, wishes: Wishes) -> None:
        self.counts = dict.fromkeys(("considered", "filtered", "refused", "short", "too_large", "slow"), 0)
        self.unread: list[Unread] = []
        self._host = host
        self._wishes = wishes
        self._asked_quick = False
        self._quick: Quick | None = None
        self._shared: dict[tuple[int | None, int | None, int, str | None], Runnable | None] = {}

    def rows(self, candidates: Iterable[Candidate]) -> Iterator[Found]:
        """The models that run, in the order of the candidates."""
        for one in candidates:
            self._count("considered", one)
            wanted = self._wishes.has(one) and (one.parameters is None or self._wishes.of_size(one.parameters))
            row = self._row(one) if wanted else self._left_out("filtered", one)
            if row is not None:
                yield row

    def finished(self, row: Found) -> Runnable:
        """The row with all of its figures. What takes long is worked out for rows that are listed."""
        return replace(row.finish(), also=row.also)

    def _count(self, what: str, one: Candidate) -> None:
        self.counts[what] += 1 + len(one.also)

    def _left_out(self, what: str, one: Candidate) -> Found | None:
        """No row, but a count of the reason."""
        self._count(what, one)
        return None

    def _row(self, one: Candidate) -> Found | None:
        row = one.row
        if row is not None and row.shape is not None:
            if not self._asked_quick:
                self._asked_quick, self._quick = True, quick(self._host)
            seq = self._host.seq_for(row.max_position_embeddings)
            if self._quick is not None and self._quick.knows(row, seq):
                return self._known(one, row, self._quick, seq)
        if row is not None and row.refused and self._host.engine.name == ENGINE:
            return self._left_out("refused", one)
        if self._host.hopeless(one.parameters):
            return self._left_out("too_large", one)
        longest = None if row is None or one.parameters is None else row.max_position_embeddings
        short = longest is not None and self._host.seq_for(longest) > longest
        return self._left_out("short", one) if short else self._planned(one)

    def _known(self, one: Candidate, row: IndexedModel, found: Quick, seq: int) -> Found | None:
        """By the index: as a whole, or else in the smallest format with a part on the host."""
        if seq > (row.max_position_embeddings or seq):
            return self._left_out("short", one)
        if found.without_gpu:
            return self._of_speed(one, self._hosted(one, row, found.hosted(row, seq), seq))
        whole = found.whole(row, seq)
        if whole is not None:
            finish = partial(self._whole, one, row, found, whole, seq)
            place = Found(
                one=one,
                family=one.family.lower(),
                also=one.also,
                weights=whole.weights,
                file_type=None,
                seq=seq,
                parameters=row.parameters,
                max_position_embeddings=row.max_position_embeddings,
                weights_bytes=whole.weights_bytes,
                needed_bytes=whole.needed_bytes,
                verdict=Verdict.FITS,
                whole=True,
                finish=finish,
            )
            return self._of_speed(one, place)
        apart = None if self._wishes.only_whole else found.apart(row, seq)
        if apart is None and not self._wishes.only_whole:
            return self._of_speed(one, self._placed(one, found.smallest(row), row.parameters, row.active))
        if not apart:
            return self._left_out("too_large", one)
        place = Found(
            one=one,
            family=one.family.lower(),
            also=one.also,
            weights=found.smallest(row),
            file_type=None,
            seq=seq,
            parameters=row.parameters,
            max_position_embeddings=row.max_position_embeddings,
            weights_bytes=found.weights_bytes(row),
            needed_bytes=0,
            verdict=Verdict.FITS,
            whole=False,
            finish=partial(self._split, one, row, found, seq),
        )
        return self._of_speed(one, place)

    def _split(self, one: Candidate, row: IndexedModel, found: Quick, seq: int) -> Runnable:
        """The row of a model of which a part lies on the host."""
        made = self._made(one, found.smallest(row), seq, row.parameters, row.active)
        made = replace(made, all_layers=found.layers(row), weights_bytes=found.weights_bytes(row))
        return self._whole_row(one, made) or made

    def _whole(self, one: Candidate, row: IndexedModel, found: Quick, whole: Whole, seq: int) -> Runnable:
        """The row of a model that lies on the GPU as a whole."""
        layers = found.layers(row)
        made = replace(
            self._made(one, whole.weights, seq, row.parameters, row.active),
            kv_dtype=found.kv_dtype,
            weights_bytes=whole.weights_bytes,
            cache_bytes=whole.cache_bytes,
            needed_bytes=whole.needed_bytes,
            usable_bytes=found.usable_bytes,
            headroom_bytes=found.usable_bytes - whole.needed_bytes,
            gpu_layers=layers,
            all_layers=layers,
            host_bytes=whole.host_bytes,
            host_experts=0,
        )
        if not found.reads_as_planned(row, whole):
            return self._whole_row(one, made) or made
        speed, bound_by = found.speed(row, whole, seq)
        longest = found.longest(row, whole, seq)
        return replace(made, max_seq=longest, decode_tokens_per_s_bound=speed, bound_by=bound_by)

    def _hosted(self, one: Candidate, row: IndexedModel, formats: tuple[tuple[str, int], ...], seq: int) -> Found | None:
        """Without a GPU, in the first of these formats that surely fits, or in the smallest that fits at all."""
        if not formats:
            return self._left_out("too_large", one)
        *larger, (last, needed) = formats
        for name, size in larger:
            made = self._shape_of(one, replace(self._made(one, name, seq, row.parameters, row.active), needed_bytes=size))
            if made is not None and made.verdict.certain:
                return _place_of(one, made)
        made = replace(self._made(one, last, seq, row.parameters, row.active), needed_bytes=needed)
        if not larger:
            return self._later(one, made)
        whole = self._shape_of(one, made)
        return self._left_out("too_large", one) if whole is None else _place_of(one, whole)

    def _shape_of(self, one: Candidate, row: Runnable) -> Runnable | None:
        """The row with all of its figures; ``None``, and no count, if it does not fit."""
        counts = dict(self.counts)
        made = self._whole_row(one, row)
        self.counts = counts
        return made

    def _placed(self, one: Candidate, weights: str | None, parameters: int | None, active: int | None) -> Found | None:
        """In this format, as the engine places it by itself."""
        try:
            model = None if one.row is None or self._quick is None else placed_model(one.row, weights)
            return self._judged(one, self._host.apart(model or one.load(), weights), parameters, active)
        except KvplanError:
            return self._left_out("refused", one)

    def _later(self, one: Candidate, row: Runnable) -> Found:
        """The place of a row whose figures are worked out if it is listed."""
        return _place_of(one, row, lambda: self._whole_row(one, row) or row)

    def _whole_row(self, one: Candidate, row: Runnable) -> Runnable | None:
        """The figures of a model of which a part lies on the host. Models of one shape and length have the same."""
        assert one.row is not None
        key = (one.row.shape, one.row.max_position_embeddings, row.seq, row.weights)
        if key not in self._shared:
            made = self._placed(one, row.weights, row.parameters, row.active_parameters)
            self._shared[key] = None if made is None else made.finish()
        known = self._shared[key]
        return None if known is None else replace(row, **{name: getattr(known, name) for name in _OF_SHAPE})

    def _planned(self, one: Candidate) -> Found | None:
        """By reading the model and asking the engine."""
        try:
            model = one.load()
        except KvplanError as error:
            self.unread.append(unread(one, error))
            return None
        counted = model.parameters or Parameters()
        parameters, active = one.parameters or counted.total, one.active or counted.active
        if not self._wishes.of_size(parameters):
            return self._left_out("filtered", one)
        longest = model.max_position_embeddings
        if longest is not None and self._host.seq_for(longest) > longest:
            return self._left_out("short", one)
        try:
            fitted = self._host.best(model, stored=one.stored)
        except KvplanError as error:
            if one.source != "catalog":
                self.unread.append(unread(one, error))
            return self._left_out("refused", one)
        return self._of_speed(one, self._judged(one, fitted, parameters, active))

    def _judged(self, one: Candidate, fitted: Fitted, parameters: int | None, active: int | None) -> Found | None:
        """A planned model that fits; else it is counted."""
        if not fitted.verdict.fits or (self._wishes.only_whole and not fitted.whole):
            return self._left_out("too_large", one)
        request = fitted.opened.request
        made = replace(
            self._made(one, request.setup.weights, request.load.seq, parameters, active),
            model_type=one.model_type or fitted.opened.model.model_type,
            kv_dtype=fitted.opened.dtypes.kv,
            weights_bytes=fitted.weights_bytes,
            cache_bytes=fitted.opened.stored_bytes,
            needed_bytes=fitted.needed_bytes,
            usable_bytes=fitted.usable_bytes,
            headroom_bytes=fitted.usable_bytes - fitted.needed_bytes,
            max_position_embeddings=fitted.opened.model.max_position_embeddings,
            file_type=file_type(fitted.opened.model),
            verdict=fitted.verdict,
            gpu_layers=fitted.gpu_layers,
            all_layers=fitted.all_layers,
            host_bytes=fitted.host_bytes,
            host_experts=fitted.host_experts,
        )
        return _place_of(one, made, lambda: _with_speed(_with_longest(made, fitted), fitted.speed))

    def _of_speed(self, one: Candidate, row: Found | None) -> Found | None:
        """A row, unless it is slower than asked for."""
        least = self._wishes.least_speed
        if row is None or least is None:
            return row
        made = self.finished(row)
        return _place_of(one, made) if (made.decode_tokens_per_s_bound or 0) >= least else self._left_out("slow", one)

    def _made(self, one: Candidate, weights: str | None, seq: int, parameters: int | None, active: int | None) -> Runnable:
        """A row without its figures."""
        return Runnable(
            id=one.id,
            also=one.also,
            family=one.family,
            model_type=one.model_type,
            source=one.source,
            stored=one.stored,
            modality=one.modality,
            parameters=parameters,
            active_parameters=active,
            released=one.released,
            weights=weights,
            file_type=None,
            weights_bytes=0,
            seq=seq,
            batch=self._host.asked.batch,
            kv_dtype="",
            cache_bytes=0,
            needed_bytes=0,
            usable_bytes=0,
            headroom_bytes=0,
            max_seq=0,
            expected_max_seq=None,
            max_position_embeddings=None if one.row is None else one.row.max_position_embeddings,
            verdict=Verdict.FITS,
            gpu_layers=None,
            all_layers=None,
            host_bytes=None,
            host_experts=None,
            decode_tokens_per_s_bound=None,
            bound_by=None,
            command=self._command(one, weights, seq),
        )

    def _command(self, one: Candidate, weights: str | None, seq: int) -> str:
        """The line that plans this row."""
        asked = self._host.asked
        words = ["kvplan", one.word, "--seq", str(seq)]
        words += ["--batch", str(asked.batch)] if asked.batch != 1 else []
        words += ["--dtype", asked.dtype] if asked.dtype else []
        words += ["--weights", weights] if weights else []
        words += ["--engine", str(asked.engine)]
        words += ["--gpu", str(asked.gpu)]
        words += ["--gpus", str(asked.gpus)] if asked.gpus else []
        return " ".join(map(shell_word, words))


def _place_of(one: Candidate, row: Runnable, finish: Callable[[], Runnable] | None = None) -> Found:
    """What the place of a row depends on; ``finish`` makes what the row still lacks, if anything."""
    return Found(
        one=one,
        family=row.family.lower(),
        also=row.also,
        weights=row.weights,
        file_type=row.file_type,
        seq=row.seq,
        parameters=row.parameters,
        max_position_embeddings=row.max_position_embeddings,
        weights_bytes=row.weights_bytes,
        needed_bytes=row.needed_bytes,
        verdict=row.verdict,
        whole=row.whole,
        finish=(lambda: row) if finish is None else finish,
    )


def _with_longest(row: Runnable, fitted: Fitted) -> Runnable:
    sure = fitted.longest
    return replace(row, max_seq=sure, expected_max_seq=None if sure else fitted.expected_longest)


def _with_speed(row: Runnable, speed: SpeedInfo | None) -> Runnable:
    if speed is None:
        return row
    return replace(row, decode_tokens_per_s_bound=speed.decode_tokens_per_s_bound, bound_by=speed.bound_by)


MODALITIES: Final = ("text", "vision", "audio")


class Wishes(Record):
    """Which models are wanted."""

    words: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    modality: str | None = None
    only_whole: bool = False
    least_speed: float | None = None

    @classmethod
    def of(
        cls,
        models: str | Sequence[str],
        family: str | Sequence[str],
        min_params: int | str | None,
        max_params: int | str | None,
        modality: str | None,
        only_fits: bool,
        min_speed: float | str | None,
    ) -> Wishes:
        """From the options. Raises :class:`~hwcalc.errors.UsageError` for a wrong value."""
        least, most = (
            None if given is None else parse_parameters(given, name)
            for given, name in ((min_params, "min_params"), (max_params, "max_params"))
        )
        if least is not None and most is not None and least > most:
            raise UsageError(f"min_params {least:,} is more than max_params {most:,}.", hint="Leave one of them out.")
        if modality is not None and modality not in MODALITIES:
            raise UsageError(f"modality is {shown(str(modality), 40)}.", hint=f"Allowed: {', '.join(MODALITIES)}.")
        return cls(
            words=tuple(word.lower() for text in texts(models, "models") for word in text.split()),
            families=tuple(word.lower() for word in words(texts(family, "family"), "family")),
            least=least,
            most=most,
            modality=modality,
            only_whole=bool(only_fits),
            least_speed=_speed(min_speed),
        )

    def has(self, one: Candidate) -> bool:
        """Whether what is known without reading the model is what is wanted."""
        if not (self.words or self.families):
            return self.modality is None or one.modality == self.modality
        names, series = f"{one.id} {one.model_type}".lower(), f"{one.family} {one.model_type}".lower()
        return (
            all(word in names for word in self.words)
            and (not self.families or any(word in series for word in self.families))
            and (self.modality is None or one.modality == self.modality)
        )

    def of_size(self, parameters: int | None) -> bool:
        """Whether so many parameters are wanted; what is unknown is not, if a size was asked for."""
        if self.least is None and self.most is None:
            return True
        return parameters is not None and (self.least or 0) <= parameters <= (self.most or parameters)


def _speed(given: float | str | None) -> float | None:
    try:
        speed = None if given is None else float(given)
    except (TypeError, ValueError):
        speed = -1.0
    if speed is not None and not 0 <= speed < 1e9:
        raise UsageError(f"min_speed is {quoted(given)}.", hint="Write tokens per second: 20.")
    return speed

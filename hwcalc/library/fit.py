"""The models that run on one GPU, each in the best format that fits: :func:`fit`.

It says which models it is asked for, which of them run, why the others do not, in which order those that run are listed, and which of them
are listed as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from math import sqrt
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, SupportsFloat, Unpack

from msgspec.structs import replace

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.engines import AT_HOME
from hwcalc.engines.options import is_auto
from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.candidates import EMBEDDING, Candidate, catalog, folded, from_folder, on_this_machine, pretrained_of
from hwcalc.library.indexing import Quick, Whole, placed_model, quick
from hwcalc.library.lists import texts, words
from hwcalc.model import Note, Parameters
from hwcalc.planner.asked import Asked, take_options
from hwcalc.planner.at_home import DECENT
from hwcalc.planner.command_line import CommandLine
from hwcalc.planner.fitting import Fitted, Hosting, hosting
from hwcalc.planner.options import HOST_MEMORY, ROWS, WITHIN, FitOptions, takes
from hwcalc.planner.runnables import Runnable, Runnables, Unread
from hwcalc.planner.speed_result import SPEED_COLUMNS
from hwcalc.planner.values import AUTO, read_flag
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.gpus import much_host_gb
from hwcalc.profiles.hardware_file import Gpu
from hwcalc.profiles.model_index import ENGINE
from hwcalc.quantization.ggml import file_type
from hwcalc.quantization.planned import bits_of
from hwcalc.text import brief, quoted, shown
from hwcalc.units import parse_parameters, parse_tokens

if TYPE_CHECKING:
    from hwcalc.profiles.model_index import IndexedModel

LOCAL: Final = "local"
OF_A_FAMILY: Final = 3
"""As many models of a family as are listed, unless all are asked for."""
MODALITIES: Final = ("text", "vision", "audio", EMBEDDING)
_FASTEST: Final = 1e9
"""More tokens per second than anybody means."""
_ROOMY: Final = 2
"""A model made for so many times the tokens asked for stands before one that only just reaches them: it is usually the later one."""
_QUICK: Final = 6 * 10**9
"""Parameters that a token reads of experts in host memory, at some four bits and 50 GB/s, in less than a tenth of a second."""
_TIER: Final = 4
"""Items of a rank that tell how a model fits."""
_OLD: Final = 3.0
"""The age in years of a model whose date is not known: most of those are early ones."""
_OF_SHAPE: Final = (
    "kv_dtype", "weights_bytes", "cache_bytes", "needed_bytes", "usable_bytes", "headroom_bytes", "max_seq", "expected_max_seq", "verdict", "gpu_layers",
    "all_layers", "host_bytes", "host_experts", *SPEED_COLUMNS, "bound_by",
)  # fmt: skip
"""Figures that are the same for all models of a shape."""
_OF_FITTED: Final = (
    *("weights_bytes", "needed_bytes", "usable_bytes", "verdict"),
    *("gpu_layers", "all_layers", "host_bytes", "host_experts"),
)
"""Figures of a planned model that its row has by the same names."""


@takes(FitOptions)
def fit(
    models: str | Sequence[str] = (),
    *,
    family: str | Sequence[str] = (),
    min_params: int | str | None = None,
    max_params: int | str | None = None,
    modality: str | None = None,
    installed: bool = False,
    folder: str | Sequence[str] = (),
    only_fits: bool = False,
    min_speed: float | str | None = None,
    limit: int | str = 30,
    every: bool = False,
    **options: Unpack[FitOptions],
) -> Runnables:
    """List the models that run on a GPU with ``seq`` tokens (8,192 by default), each in the best format that fits.

    They are those of the catalog, or with ``installed`` those on this machine, and with ``folder`` the GGUF files there. ``models`` are
    words of the id; ``family``, ``min_params``, ``max_params`` (``"70B"``), ``modality`` (text, vision, audio, embedding) and
    ``min_speed`` (tokens per second) narrow the choice, and ``only_fits`` leaves out models of which a part stays in the memory of the host. Without
    ``every``, the best three of a family are listed, no embedding models unless words or ``modality`` name them, and variants with the same figures are one row; ``limit`` is the number of rows (0: all).
    ``options`` are keywords of :func:`hwcalc.plan`; without ``gpu`` it is this machine's. ``weights`` names one format for all. Raises a
    subclass of :class:`~hwcalc.errors.KvplanError`.
    """
    _, asked = take_options("fit", options)
    asked = asked.changed(weights=asked.weights or AUTO, engine=asked.engine or AT_HOME, gpu=asked.gpu or LOCAL)
    most, each = parse_tokens(limit, "limit", minimum=0), read_flag(every, "every")
    here, folders = read_flag(installed, "installed"), tuple(texts(folder, "folder", hint='Write folder="models".'))
    wishes = Wishes.of(models, family, min_params, max_params, modality, only_fits, min_speed)
    notes: list[Note] = []
    host = hosting(asked, _gpu(str(asked.gpu), notes), notes)
    search = Search(host=host, wishes=wishes)
    # The catalog, unless what is here or a folder is asked for.
    given: list[Iterable[Candidate]] = [*map(from_folder, folders), *([on_this_machine()] if here else [])]
    rows = ordered(search.rows(folded(chain.from_iterable(given or [catalog()]))), wishes.words)
    apart = rows if each else alike(rows)
    of_family: Counter[str] = Counter()
    kept: list[Entry] = []
    for row in apart:
        of_family[row.family] += 1
        if each or of_family[row.family] <= OF_A_FAMILY:
            kept.append(row)
    listed = tuple(search.listed(kept, most))
    if not kept and not given and not is_auto(asked.weights) and len(search.refusals) == 1:
        # A format that the engine reads of no model.
        raise next(iter(search.refusals.values()))
    notes += _with_memory(search, asked)
    if search.counts["considered"] == search.counts["filtered"] and wishes.words:
        notes.append(Note(code="no-match", message=wishes.unmatched))
    return Runnables(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        engine=host.engine.name,
        engine_version=host.engine_version,
        gpu=host.gpu.id,
        gpus=asked.gpus or 1,
        usable_bytes=listed[0].usable_bytes if listed else None,
        seq=host.seq,
        batch=asked.batch,
        sources=(*folders, *(("this machine",) if here else ())) or ("catalog",),
        **search.counts,
        models=listed,
        more=len(apart) - len(listed) - search.late,
        unread=tuple(search.unread),
        notes=tuple(notes),
    )


def _with_memory(search: Search, asked: Asked) -> Iterator[Note]:
    """A note on how many of the models that are too large run where the host has more memory than is taken for likely."""
    host = search.host
    if HOST_MEMORY not in host.engine.options or HOST_MEMORY in asked.engine_options or host.gpu.shares_host_memory:
        return
    much = much_host_gb()
    more = Search(host=replace(host, asked=asked.changed(ram=ROWS["ram"].read(str(much)))), wishes=search.wishes)
    found = sum(1 + len(row.candidate.also) for row in more.rows(search.large))
    if found:
        run = "runs" if found == 1 else "run"
        yield Note(
            code="more-memory",
            message=f"{found:,} of those that do not fit {run} on a machine with {much} GB of memory: --ram {much}",
        )


def _gpu(name: str, notes: list[Note]) -> Gpu:
    """The accelerator of this name. Raises :class:`~hwcalc.errors.UsageError` where this machine's is meant and it has none."""
    from hwcalc.hardware.named import load_gpu

    try:
        return load_gpu(name, notes)
    except UsageError as error:
        if name.strip().lower() == LOCAL:
            from hwcalc.hardware.local import EXAMPLE, this_machine

            error.hint = f"Without one: kvplan fit --gpu {this_machine() or EXAMPLE}; with one: kvplan fit --gpu rtx-4060-ti; a Mac: --gpu m4-24gb."
        raise


class Wishes(Record):
    """Wishes for models."""

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
        if modality is not None and (not isinstance(modality, str) or modality not in MODALITIES):
            given = shown(modality, 40) if isinstance(modality, str) else quoted(modality)
            raise UsageError(f"modality is {given}.", hint=f"Allowed: {', '.join(MODALITIES)}.")
        return cls(
            words=tuple(word.lower() for text in texts(models, "models") for word in text.split()),
            families=tuple(word.lower() for word in words(texts(family, "family"), "family")),
            least=least,
            most=most,
            modality=modality,
            only_whole=read_flag(only_fits, "only_fits"),
            least_speed=None if min_speed is None else _speed(min_speed),
        )

    @property
    def any_kind(self) -> bool:
        """True if neither names nor a modality were asked for."""
        return not (self.words or self.families or self.modality)

    @property
    def unmatched(self) -> str:
        """What to write where no model has the words."""
        if len(self.words) == 1:
            return f"No such model has {shown(self.words[0], 40)} in its id. All of them: kvplan models"
        words = [brief(word, 40) for word in self.words]
        return f"No such model has all of these words in its id: {' '.join(words)}. Several families: --family {','.join(words)}"

    def has(self, candidate: Candidate) -> bool:
        """True if what is known without reading the model is wanted."""
        if not (self.words or self.families):
            return candidate.modality != EMBEDDING if self.any_kind else candidate.modality == self.modality
        names, series = f"{candidate.id} {candidate.model_type}".lower(), f"{candidate.family} {candidate.model_type}".lower()
        return (
            all(word in names for word in self.words)
            and (not self.families or any(word in series for word in self.families))
            and (self.modality is None or candidate.modality == self.modality)
        )

    def of_size(self, parameters: int | None) -> bool:
        """True if so many parameters are wanted; what is unknown is not, if a size was asked for."""
        if self.least is None and self.most is None:
            return True
        return parameters is not None and (self.least or 0) <= parameters <= (self.most or parameters)


def _speed(given: object) -> float:
    """Tokens per second, from a number of any type or from text."""
    speed = -1.0
    if isinstance(given, (str, SupportsFloat)) and not isinstance(given, bool):
        with suppress(Exception):  # what its __float__ raises may be anything
            speed = float(given)
    if not 0 <= speed < _FASTEST:
        raise UsageError(f"min_speed is {quoted(given)}.", hint="Write tokens per second: 20.")
    return speed


class Entry(NamedTuple):
    """A model that runs, by what its place in the list depends on; ``family`` in lower case. ``finish`` works out its row, which takes longer."""

    candidate: Candidate
    family: str
    also: tuple[str, ...]
    weights: str | None
    file_type: str | None
    seq: int
    parameters: int | None
    active_parameters: int | None
    max_position_embeddings: int | None
    weights_bytes: int
    needed_bytes: int
    verdict: Verdict
    whole: bool
    finish: Callable[[], Runnable]

    @property
    def id(self) -> str:
        """The id of the model."""
        return self.candidate.id


class Search:
    """One pass over the candidates. It counts what is left out."""

    def __init__(self, host: Hosting, wishes: Wishes) -> None:
        self.counts = dict.fromkeys(("considered", "filtered", "embeddings", "refused", "short", "too_large", "slow"), 0)
        self.unread: list[Unread] = []
        self.large: list[Candidate] = []
        """Those that are too large."""
        self.refusals: dict[str, KvplanError] = {}
        """The engine's errors by their messages."""
        self.host = host
        self.wishes = wishes
        self.late = 0
        """Rows that are beyond the limits of time."""
        self._asked_quick = False
        self._quick: Quick | None = None
        self._shared: dict[tuple[int | None, int | None, int, str | None], Runnable | None] = {}

    def rows(self, candidates: Iterable[Candidate]) -> Iterator[Entry]:
        """The models that run, in the order of the candidates."""
        for candidate in candidates:
            self._left_out("considered", candidate)
            wanted = self.wishes.has(candidate) and (candidate.parameters is None or self.wishes.of_size(candidate.parameters))
            why = "embeddings" if candidate.modality == EMBEDDING and self.wishes.any_kind else "filtered"
            before = self.counts["too_large"]
            row = self._row(candidate) if wanted else self._left_out(why, candidate)
            if row is not None:
                yield row
            elif self.counts["too_large"] > before:
                self.large.append(candidate)

    def listed(self, rows: Sequence[Entry], most: int) -> Iterator[Runnable]:
        """The first rows with all of their figures, at most so many, or all if that is 0; within limits of time those that keep them."""
        if self.host.asked.given.isdisjoint(WITHIN):
            yield from map(self.finished, rows[:most] if most else rows)
            return
        number = 0
        for row in rows:
            if most and number == most:
                return
            made = self._in_time(row.candidate, self.finished(row))
            if made is not None:
                number += 1
                yield made

    def _in_time(self, candidate: Candidate, row: Runnable) -> Runnable | None:
        """The row with its users within the limits of time; ``None`` if the planned ones are beyond them, or if nothing is known of it."""
        from hwcalc.planner.plan import plan_model

        asked = {**self.host.asked.keywords(), "seq": row.seq, "weights": row.weights}
        within = plan_model(candidate.load(), advise=False, **asked).within
        if within is None or not within.holds:
            self.late += 1
            self._left_out("slow", candidate)
            return None
        served = within.at_batch
        times = {"ttft_s": served.ttft_s.expected, "itl_s": served.itl_s.expected}
        return replace(row, users=within.users, users_low=within.users_low, **times)

    def finished(self, row: Entry) -> Runnable:
        """The row with all of its figures. What takes long is worked out for rows that are listed."""
        return replace(row.finish(), also=row.also)

    def _left_out(self, what: str, candidate: Candidate) -> Entry | None:
        """No row, but a count of the reason."""
        self.counts[what] += 1 + len(candidate.also)
        return None

    def _row(self, candidate: Candidate) -> Entry | None:
        row = candidate.row
        if row is not None and row.shape is not None:
            if not self._asked_quick:
                self._asked_quick, self._quick = True, quick(self.host)
            seq = self.host.seq_for(row.max_position_embeddings)
            if self._quick is not None and self._quick.knows(row):
                return self._of_speed(candidate, self._known(candidate, row, self._quick, seq))
        if row is not None and row.refused and self.host.engine.name == ENGINE:
            return self._left_out("refused", candidate)
        if self.host.hopeless(candidate.parameters):
            return self._left_out("too_large", candidate)
        longest = None if row is None or candidate.parameters is None else row.max_position_embeddings
        if longest is not None and self.host.seq_for(longest) > longest:
            return self._left_out("short", candidate)
        return self._of_speed(candidate, self._planned(candidate))

    def _of_speed(self, candidate: Candidate, row: Entry | None) -> Entry | None:
        """A row, unless it is slower than asked for."""
        least = self.wishes.least_speed
        if row is None or least is None:
            return row
        made = self.finished(row)
        shown = made.decode_tokens_per_s_bound if made.decode_tokens_per_s is None else made.decode_tokens_per_s
        return _entry_of(candidate, made) if (shown or 0) >= least else self._left_out("slow", candidate)

    def _known(self, candidate: Candidate, row: IndexedModel, index: Quick, seq: int) -> Entry | None:
        """By the index: as a whole, or else in the smallest format with a part on the host."""
        if seq > (row.max_position_embeddings or seq):
            return self._left_out("short", candidate)
        if index.without_gpu:
            return self._hosted(candidate, row, index.hosted(row, seq), seq)
        whole = index.whole(row, seq)
        usual = None if self.wishes.only_whole else index.beside_host(row, whole)
        beside = None if usual is None else self._beside_host(candidate, row, index, seq, usual, sure=whole is not None)
        if beside is not None:
            return beside
        if whole is None:
            smallest = index.smallest(row)
            apart = None if self.wishes.only_whole else index.apart(row, seq, smallest)
            if apart is None and not self.wishes.only_whole:
                return self._placed(candidate, smallest, row.parameters, row.active)
            return self._apart(candidate, row, index, seq, smallest) if apart else self._left_out("too_large", candidate)
        return self._entry(
            candidate,
            row,
            seq,
            whole.weights,
            whole.weights_bytes,
            lambda: self._finished_whole(candidate, row, index, whole, seq),
            whole,
        )

    def _entry(
        self,
        candidate: Candidate,
        row: IndexedModel,
        seq: int,
        weights: str,
        weights_bytes: int,
        finish: Callable[[], Runnable],
        whole: Whole | None = None,
        verdict: Verdict = Verdict.FITS,
    ) -> Entry:
        """A model of the index that runs, as a whole or else with a part on the host."""
        return Entry(
            candidate=candidate,
            family=candidate.family.lower(),
            also=candidate.also,
            weights=weights,
            file_type=None,
            seq=seq,
            parameters=row.parameters,
            active_parameters=row.active,
            max_position_embeddings=row.max_position_embeddings,
            weights_bytes=weights_bytes,
            needed_bytes=0 if whole is None else whole.needed_bytes,
            verdict=verdict,
            whole=whole is not None,
            finish=finish,
        )

    def _beside_host(
        self, candidate: Candidate, row: IndexedModel, index: Quick, seq: int, weights: str, *, sure: bool
    ) -> Entry | None:
        """With experts in the memory of the host, in this format; ``None`` if that does not fit, or not for sure where it is to be ``sure``."""
        apart = None if sure else index.apart(row, seq, weights)
        if apart is not None:
            return self._apart(candidate, row, index, seq, weights) if apart else None
        # A format that does not fit is no model that is left out.
        counts = dict(self.counts)
        placed = self._placed(candidate, weights, row.parameters, row.active)
        self.counts = counts
        return placed if placed is not None and (placed.verdict.certain or not sure) else None

    def _apart(self, candidate: Candidate, row: IndexedModel, index: Quick, seq: int, weights: str) -> Entry:
        """With a part on the host in this format, in which it fits."""

        def finish() -> Runnable:
            made = self._made(candidate, weights, seq, row.parameters, row.active)
            made = replace(made, all_layers=index.layers(row), weights_bytes=index.weights_bytes(row, weights))
            return self._whole_row(candidate, made) or made

        # For its place in the list: its row says what the plan says.
        verdict = Verdict.FITS if index.surely_apart(row, seq, weights) else Verdict.PROBABLY
        return self._entry(candidate, row, seq, weights, index.weights_bytes(row, weights), finish, verdict=verdict)

    def _finished_whole(self, candidate: Candidate, row: IndexedModel, index: Quick, placement: Whole, seq: int) -> Runnable:
        """The row of a model that lies on the GPU as a whole."""
        layers = index.layers(row)
        made = replace(
            self._made(candidate, placement.weights, seq, row.parameters, row.active),
            kv_dtype=index.dtypes.kv,
            weights_bytes=placement.weights_bytes,
            cache_bytes=placement.cache_bytes,
            needed_bytes=placement.needed_bytes,
            usable_bytes=index.usable_bytes,
            headroom_bytes=index.usable_bytes - placement.needed_bytes,
            gpu_layers=layers,
            all_layers=layers,
            host_bytes=placement.host_bytes,
            host_experts=0,
        )
        if index.is_measured or not index.reads_as_planned(row, placement):
            return self._whole_row(candidate, made) or made
        made = replace(made, max_seq=index.longest(row, placement, seq))
        return made if candidate.modality == EMBEDDING else replace(made, **index.speed(row, placement, seq))

    def _hosted(
        self, candidate: Candidate, row: IndexedModel, formats: tuple[tuple[str, int, bool], ...], seq: int
    ) -> Entry | None:
        """Without a GPU, in the first of these formats that surely fits, or in the smallest that fits at all."""
        rows = [
            replace(self._made(candidate, name, seq, row.parameters, row.active), needed_bytes=needed)
            for name, needed, _ in formats
        ]
        if len(rows) == 1 and formats[0][-1]:
            return _entry_of(candidate, rows[0], lambda: self._whole_row(candidate, rows[0]) or rows[0])
        for made in rows:
            # A format that does not fit is no model that is left out.
            counts = dict(self.counts)
            whole = self._whole_row(candidate, made)
            self.counts = counts
            if whole is not None and (whole.verdict.certain or made is rows[-1]):
                return _entry_of(candidate, whole)
        return self._left_out("too_large", candidate)

    def _placed(self, candidate: Candidate, weights: str | None, parameters: int | None, active: int | None) -> Entry | None:
        """In this format, as the engine places it by itself."""
        try:
            model = None if candidate.row is None or self._quick is None else placed_model(candidate.row, weights)
            return self._judged(candidate, self.host.apart(model or candidate.load(), weights), parameters, active)
        except KvplanError:
            return self._left_out("refused", candidate)

    def _whole_row(self, candidate: Candidate, row: Runnable) -> Runnable | None:
        """The figures of a model of which a part lies on the host. Models of one shape and length have the same."""
        assert candidate.row is not None
        key = (candidate.row.shape, candidate.row.max_position_embeddings, row.seq, row.weights)
        if key not in self._shared:
            made = self._placed(candidate, row.weights, row.parameters, row.active_parameters)
            self._shared[key] = None if made is None else made.finish()
        known = self._shared[key]
        return None if known is None else replace(row, **{name: getattr(known, name) for name in _OF_SHAPE})

    def _planned(self, candidate: Candidate) -> Entry | None:
        """By reading the model and asking the engine."""
        try:
            model = candidate.load()
        except KvplanError as error:
            self.unread.append(_unread(candidate, error))
            return None
        counted = model.parameters or Parameters()
        parameters, active = candidate.parameters or counted.total, candidate.active or counted.active
        if not self.wishes.of_size(parameters):
            return self._left_out("filtered", candidate)
        longest = model.max_position_embeddings
        if longest is not None and self.host.seq_for(longest) > longest:
            return self._left_out("short", candidate)
        try:
            fitted = self.host.best(model, stored=candidate.stored, whole=self.wishes.only_whole)
        except KvplanError as error:
            if candidate.source != "catalog":
                self.unread.append(_unread(candidate, error))
            self.refusals[error.message] = error
            return self._left_out("refused", candidate)
        return self._judged(candidate, fitted, parameters, active)

    def _judged(self, candidate: Candidate, fitted: Fitted, parameters: int | None, active: int | None) -> Entry | None:
        """A planned model that fits; else it is counted."""
        if not fitted.verdict.fits or (self.wishes.only_whole and not fitted.whole):
            return self._left_out("too_large", candidate)
        opened = fitted.opened
        made = replace(
            self._made(candidate, opened.setup.weights, opened.load.seq, parameters, active),
            model_type=candidate.model_type or opened.model.model_type,
            kv_dtype=opened.dtypes.kv,
            cache_bytes=opened.stored_bytes,
            headroom_bytes=fitted.usable_bytes - fitted.needed_bytes,
            max_position_embeddings=opened.model.max_position_embeddings,
            file_type=file_type(opened.model),
            **{name: getattr(fitted, name) for name in _OF_FITTED},
        )

        def finish() -> Runnable:
            sure, speed = fitted.longest, fitted.speed
            row = replace(made, max_seq=sure, expected_max_seq=None if sure else fitted.expected_longest)
            return row if speed is None else replace(row, **speed.row(), bound_by=speed.bound_by)

        return _entry_of(candidate, made, finish)

    def _made(self, candidate: Candidate, weights: str | None, seq: int, parameters: int | None, active: int | None) -> Runnable:
        """A row without its figures, and with the line that plans it."""
        asked = self.host.asked
        line = CommandLine(model=candidate.word, given={**asked.values, "seq": seq, "weights": weights})
        figures = ("weights_bytes", "cache_bytes", "needed_bytes", "usable_bytes", "headroom_bytes", "max_seq")
        unknown = ("file_type", "expected_max_seq", "gpu_layers", "all_layers", "host_bytes", "host_experts")
        without: dict[str, Any] = {**dict.fromkeys(figures, 0), **dict.fromkeys((*unknown, *SPEED_COLUMNS, "bound_by"))}
        return Runnable(
            id=candidate.id,
            also=candidate.also,
            family=candidate.family,
            model_type=candidate.model_type,
            source=candidate.source,
            stored=candidate.stored,
            modality=candidate.modality,
            parameters=parameters,
            active_parameters=active,
            released=candidate.released,
            weights=weights,
            seq=seq,
            batch=asked.batch,
            kv_dtype="",
            max_position_embeddings=None if candidate.row is None else candidate.row.max_position_embeddings,
            verdict=Verdict.FITS,
            command=line.text,
            **without,
        )


def _unread(candidate: Candidate, error: KvplanError) -> Unread:
    """The row of a model that could not be read."""
    return Unread(id=candidate.word, source=candidate.source, message=error.message, hint=error.hint)


def _entry_of(candidate: Candidate, row: Runnable, finish: Callable[[], Runnable] | None = None) -> Entry:
    """The facts that place a row; ``finish`` makes what the row still lacks, if anything."""
    return Entry(
        candidate=candidate,
        family=row.family.lower(),
        also=row.also,
        weights=row.weights,
        file_type=row.file_type,
        seq=row.seq,
        parameters=row.parameters,
        active_parameters=row.active_parameters,
        max_position_embeddings=row.max_position_embeddings,
        weights_bytes=row.weights_bytes,
        needed_bytes=row.needed_bytes,
        verdict=row.verdict,
        whole=row.whole,
        finish=(lambda: row) if finish is None else finish,
    )


def _years(date: str) -> float:
    """A date such as ``2025-04-28`` in years."""
    year, month, day = (int(part or 1) for part in f"{date}--".split("-")[:3])
    return year + (month - 1) / 12 + (day - 1) / 372


def ability(parameters: int | None, active: int | None, age: float) -> float:
    """About what a model can do, by its size and its age in years: a year later, half the parameters do.

    Of a model with experts it is the geometric mean of all parameters and of those that work on a token.

    >>> ability(32 * 10**9, 2 * 10**9, 1.0) == ability(4 * 10**9, None, 0.0)
    True
    """
    return sqrt((parameters or 0) * (active or parameters or 0)) / 2**age


def ordered(rows: Iterable[Entry], words: Sequence[str] = ()) -> tuple[Entry, ...]:
    """The best of each family first, and the families in the order of their best, among those that fit as well; before all, models with
    these words in their ids.

    The best are those of most :func:`ability` that lie on the GPU, or there but for experts in host memory, in four bits and more.
    """
    given = tuple(rows)
    newest = max((_years(row.candidate.released) for row in given if row.candidate.released), default=0.0)
    families: dict[str, list[str]] = {}
    for row in given:
        families.setdefault(row.family, []).extend((row.id, *row.also))
    raw = frozenset[str]().union(*map(pretrained_of, families.values()))

    def rank(row: Entry) -> tuple[object, ...]:
        form = row.weights or row.file_type
        longest = row.max_position_embeddings
        return (
            not all(word in row.id.lower() for word in words),
            # What lies on the GPU, or there but for experts in host memory, and surely fits, at four bits and more.
            not (row.whole or _is_quick(row)),
            form is not None and (bits_of(form) or 0) < DECENT,
            not row.verdict.certain,
            # Then what follows instructions, what the context asked for does not fill, and what is able.
            row.id in raw,
            longest is not None and longest < _ROOMY * row.seq,
            -ability(
                row.parameters, row.active_parameters, newest - _years(row.candidate.released) if row.candidate.released else _OLD
            ),
            row.id,
        )

    # What fits as well stands together by family.
    places: dict[tuple[object, ...], int] = {}
    ranked = [(rank(row), row) for row in given]
    ranked.sort(key=itemgetter(0))
    for key, row in ranked:
        places.setdefault((*key[:_TIER], row.family), len(places))
    return tuple(row for _, row in sorted(ranked, key=lambda pair: places[*pair[0][:_TIER], pair[1].family]))


def _is_quick(row: Entry) -> bool:
    """True if experts of which few work on a token lie in the memory of the host."""
    parameters, active = row.parameters or 0, row.active_parameters or 0
    return 0 < active < parameters and active <= _QUICK


def alike(rows: Iterable[Entry]) -> tuple[Entry, ...]:
    """Models of a family of the same size as one row, which names the others."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for row in rows:
        key = (
            row.family,
            row.weights,
            row.weights_bytes,
            row.needed_bytes,
            row.seq,
            row.candidate.modality,
            row.candidate.stored,
        )
        groups.setdefault((*key, row.id) if row.candidate.stored else key, []).append(row)
    return tuple(
        first
        if not others
        else first._replace(also=(*first.also, *(name for other in others for name in (other.id, *other.also))))
        for first, *others in groups.values()
    )

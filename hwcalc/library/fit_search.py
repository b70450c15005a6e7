"""The search of :func:`~hwcalc.library.fit.fit`: which candidates are wanted, which run, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hwcalc.errors import KvplanError
from hwcalc.library.candidates import Candidate, unread
from hwcalc.library.fit_order import Found
from hwcalc.library.fit_quick import Quick, quick
from hwcalc.library.indexed import placed_model
from hwcalc.model import Parameters
from hwcalc.planner.fitting import Fitted, Hosting
from hwcalc.planner.runnables import Runnable, Unread
from hwcalc.planner.verdict import Verdict
from hwcalc.profiles.model_index import ENGINE
from hwcalc.quantization.ggml import file_type
from hwcalc.text import shell_word

if TYPE_CHECKING:
    from hwcalc.library.fit_quick import Whole
    from hwcalc.library.fit_wishes import Wishes
    from hwcalc.planner.result import SpeedInfo
    from hwcalc.profiles.model_index import IndexedModel

__all__ = ["Search"]

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
            self._made(one, request.weights, request.seq, parameters, active),
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

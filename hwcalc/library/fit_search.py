"""The search of :func:`~hwcalc.library.fit.fit`: which candidates are wanted, which run, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hwcalc.errors import KvplanError, UsageError
from hwcalc.formulas.frozen import field, frozen
from hwcalc.library.candidates import Candidate, unread
from hwcalc.library.lists import texts, words
from hwcalc.model import ModelSpec
from hwcalc.planner.fitting import Fitted, Hosting
from hwcalc.planner.runnables import Runnable, Unread
from hwcalc.text import quoted, shell_word, shown
from hwcalc.units import parse_parameters

__all__ = ["MODALITIES", "Search", "Wishes"]

MODALITIES: Final = ("text", "vision", "audio")


@frozen
class Wishes:
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


@frozen
class Search:
    """One pass over the candidates. It counts what is left out."""

    host: Hosting
    wishes: Wishes
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("considered", "filtered", "refused", "short", "too_large", "slow"), 0)
    )
    unread: list[Unread] = field(default_factory=list)

    def rows(self, candidates: Iterable[Candidate]) -> Iterator[Runnable]:
        """The models that run, in the order of the candidates."""
        for one in candidates:
            self._count("considered", one)
            if not self.wishes.has(one) or (one.parameters is not None and not self.wishes.of_size(one.parameters)):
                self._count("filtered", one)
                continue
            row = self._row(one)
            if row is not None:
                yield row

    def _count(self, what: str, one: Candidate) -> None:
        self.counts[what] += 1 + len(one.also)

    def _row(self, one: Candidate) -> Runnable | None:
        try:
            model = one.load()
        except KvplanError as error:
            self.unread.append(unread(one, error))
            return None
        parameters = one.parameters or (None if model.parameters is None else model.parameters.total)
        why = "" if self.wishes.of_size(parameters) else "filtered"
        if not why and self.host.seq_of(model) > (model.max_position_embeddings or self.host.seq):
            why = "short"
        if why:
            self._count(why, one)
            return None
        try:
            fitted = self.host.best(model, stored=one.stored)
        except KvplanError as error:
            if one.source != "catalog":
                self.unread.append(unread(one, error))
            self._count("refused", one)
            return None
        return self._judged(one, model, fitted, parameters)

    def _judged(self, one: Candidate, model: ModelSpec, fitted: Fitted, parameters: int | None) -> Runnable | None:
        if not fitted.fits or (self.wishes.only_whole and not fitted.whole):
            self._count("too_large", one)
            return None
        speed, bound_by = fitted.tokens_per_s
        if self.wishes.least_speed is not None and (speed or 0) < self.wishes.least_speed:
            self._count("slow", one)
            return None
        request = fitted.opened.request
        return Runnable(
            id=one.id,
            also=one.also,
            family=one.family,
            model_type=model.model_type,
            source=one.source,
            stored=one.stored,
            modality=one.modality,
            parameters=parameters,
            active_parameters=one.active or (None if model.parameters is None else model.parameters.active),
            released=one.released,
            weights=request.weights,
            weights_bytes=fitted.weights_bytes,
            seq=request.seq,
            batch=request.batch,
            kv_dtype=fitted.opened.dtypes.kv,
            cache_bytes=fitted.opened.stored_bytes,
            needed_bytes=fitted.needed_bytes,
            usable_bytes=fitted.usable_bytes,
            headroom_bytes=fitted.usable_bytes - fitted.needed_bytes,
            max_seq=fitted.longest,
            verdict=fitted.verdict,
            gpu_layers=fitted.gpu_layers,
            all_layers=fitted.all_layers,
            host_bytes=fitted.host_bytes,
            decode_tokens_per_s_bound=speed,
            bound_by=bound_by,
            command=self._command(one, fitted),
        )

    def _command(self, one: Candidate, fitted: Fitted) -> str:
        """The line that plans this row."""
        asked, request = self.host.asked, fitted.opened.request
        words = ["kvplan", one.word, "--seq", str(request.seq)]
        words += ["--batch", str(request.batch)] if request.batch != 1 else []
        words += ["--dtype", asked.dtype] if asked.dtype else []
        words += ["--weights", request.weights] if request.weights else []
        words += ["--engine", str(asked.engine)]
        words += ["--gpu", str(asked.gpu)]
        words += ["--gpus", str(asked.gpus)] if asked.gpus else []
        return " ".join(map(shell_word, words))

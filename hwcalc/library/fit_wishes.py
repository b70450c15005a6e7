"""Which models :func:`~hwcalc.library.fit.fit` is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.library.lists import texts, words
from hwcalc.text import quoted, shown
from hwcalc.units import parse_parameters

if TYPE_CHECKING:
    from hwcalc.library.candidates import Candidate

__all__ = ["MODALITIES", "Wishes"]

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
